// SPDX-License-Identifier: Apache-2.0
#include "lib/format/uses.h"

#include "lib/base/status.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace format = kvstrata::core::format;

namespace {

format::Uses Sample() {
  format::Uses uses;
  uses.tick = 100;
  uses.frontier = 7;
  uses.blocks = {{1, 90, 3, 0, 0, 63, 0}, {2, (uint64_t{1} << 48) - 1, UINT16_MAX, UINT32_MAX, 63, 0, 2}};
  uses.snapshots = {{5, 80, 9}};
  return uses;
}

std::string FieldOfRefusal(const std::vector<std::byte>& bytes) {
  const auto uses = format::DecodeUses(bytes);
  if (uses.ok()) return "";
  CHECK(base::CodeOf(uses.status()) == base::Code::kCorrupt);
  return std::string(base::FieldOf(uses.status()));
}

}  // namespace

TEST_CASE("uses are read as they were written") {
  const format::Uses uses = Sample();
  const std::vector<std::byte> bytes = format::EncodeUses(uses);
  CHECK(bytes.size() == 24 + 2 * 24 + 24);
  const auto read = format::DecodeUses(bytes);
  REQUIRE(read.ok());
  CHECK(read->tick == uses.tick);
  CHECK(read->frontier == uses.frontier);
  CHECK(read->blocks == uses.blocks);
  CHECK(read->snapshots == uses.snapshots);
  CHECK(format::DecodeUses(format::EncodeUses({})).ok());
}

TEST_CASE("uses that are cut off, too long or out of range are refused") {
  const std::vector<std::byte> bytes = format::EncodeUses(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    CHECK(FieldOfRefusal({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)}) == "uses");
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(FieldOfRefusal(longer) == "uses");
  const auto with = [&](size_t at, uint8_t value) {
    std::vector<std::byte> changed = bytes;
    changed[at] = static_cast<std::byte>(value);
    return FieldOfRefusal(changed);
  };
  CHECK(with(6, 1) == "tick");          // 2^48
  CHECK(with(8, 101) == "tick");        // a frontier in the future
  CHECK(with(19, 0xFF) == "uses");      // four billion blocks: nothing is allocated for them
  CHECK(with(24 + 20, 1) == "first");   // 1 + 63 blocks more: behind a run's end
  CHECK(with(24 + 22, 3) == "priority");
  CHECK(with(24 + 23, 1) == "reserved");
  CHECK(with(72 + 20, 1) == "reserved");
}
