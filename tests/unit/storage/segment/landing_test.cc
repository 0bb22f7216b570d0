// SPDX-License-Identifier: Apache-2.0
// Reads that land in their destination: the right bytes, through aligned pieces only, and nothing beside them.
#include "lib/storage/segment/landing.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "lib/base/random.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using kvstrata::core::storage::Landing;

namespace {

constexpr size_t kUnit = 4096;  // FORMAT.md
constexpr std::byte kUntouched{0xA5};

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(kUnit)); }
};
using Aligned = std::unique_ptr<std::byte, FreeAligned>;

Aligned Units(size_t count) {
  Aligned memory(static_cast<std::byte*>(::operator new(count* kUnit, std::align_val_t(kUnit))));
  std::fill_n(memory.get(), count * kUnit, kUntouched);
  return memory;
}

// What direct I/O does: refuses what is not in units, and gives at most `limit` units.
int64_t ReadUnits(const std::vector<std::byte>& file, const Landing& landing, size_t limit) {
  size_t at = static_cast<size_t>(landing.offset());
  if (at % kUnit != 0) return -1;
  size_t left = std::min(limit * kUnit, file.size() - at);
  int64_t done = 0;
  for (const iovec& piece : landing.pieces()) {
    if (reinterpret_cast<uintptr_t>(piece.iov_base) % kUnit != 0 || piece.iov_len % kUnit != 0) return -1;
    const size_t here = std::min(left, piece.iov_len);
    std::memcpy(piece.iov_base, file.data() + at, here);
    at += here;
    left -= here;
    done += static_cast<int64_t>(here);
  }
  return done;
}

}  // namespace

TEST_CASE("a read lands where it belongs, in whole units, however little each call reads") {
  std::vector<std::byte> file(6 * kUnit);
  REQUIRE(base::SeededRandom(3).Fill(file).ok());
  const Aligned room = Units(8), spare = Units(Landing::kSpareUnits);
  const size_t limit = GENERATE(1u, 2u, 100u);
  for (const size_t offset : {0u, 1u, 511u, 4095u, 4096u, 4097u, 9000u}) {
    for (const size_t size : {1u, 2u, 4000u, 4095u, 4096u, 4097u, 8191u, 8192u, 8193u, 12288u, 15576u}) {
      CAPTURE(limit, offset, size);
      std::fill_n(room.get(), 8 * kUnit, kUntouched);
      const size_t at = kUnit + offset % kUnit;
      const base::MutableBytes to(room.get() + at, size);
      REQUIRE(Landing::Fits(offset, to));
      Landing landing(offset, to, {spare.get(), Landing::kSpareUnits * kUnit});
      while (!landing.pieces().empty()) {
        const int64_t read = ReadUnits(file, landing, limit);
        REQUIRE(read > 0);
        landing.Advance(static_cast<uint64_t>(read));
      }
      // No unit is read that the range has no part of.
      REQUIRE(landing.offset() == (offset + size + kUnit - 1) / kUnit * kUnit);
      landing.Finish();
      REQUIRE(std::equal(to.begin(), to.end(), file.begin() + static_cast<ptrdiff_t>(offset)));
      REQUIRE(std::all_of(room.get(), to.data(), [](std::byte byte) { return byte == kUntouched; }));
      REQUIRE(std::all_of(to.data() + size, room.get() + 8 * kUnit, [](std::byte byte) { return byte == kUntouched; }));
    }
  }
}

TEST_CASE("a destination that lies otherwise than the file does not fit") {
  const Aligned room = Units(2);
  CHECK(Landing::Fits(8192, {room.get(), 100}));
  CHECK(Landing::Fits(5, {room.get() + 5, 100}));
  CHECK_FALSE(Landing::Fits(0, {room.get() + 16, 100}));
  CHECK_FALSE(Landing::Fits(512, {room.get(), 100}));
  CHECK_FALSE(Landing::Fits(5, {room.get() + 517, 100}));
}
