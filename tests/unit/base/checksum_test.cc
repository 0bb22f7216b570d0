// SPDX-License-Identifier: Apache-2.0
#include "lib/base/checksum.h"

#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/base/random.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;

TEST_CASE("the checksum of sequence 0 is plain XXH3-64") {
  // Published value of XXH3-64 for the empty input with seed 0.
  CHECK(base::Checksum({}, 0) == 0x2D06800538D394C2u);
}

TEST_CASE("vectors of any width give the value of XXH3-64") {
  const uint64_t seed = 20261130;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  std::vector<std::byte> bytes(70001);
  REQUIRE(random.Fill(bytes).ok());
  for (const size_t size : {0u, 3u, 128u, 240u, 241u, 1024u, 1025u, 18688u, 70000u}) {
    CAPTURE(size);
    // Not at a vector's boundary.
    const base::ByteView view = base::ByteView(bytes).subspan(1, size);
    CHECK(base::Checksum(view, 5) == XXH3_64bits_withSeed(view.data(), view.size(), 5 * base::kSequenceMultiplier));
  }
}

TEST_CASE("cuts do not change a checksum, a bit or the sequence number does") {
  const uint64_t seed = 20250101;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  for (const size_t size : {0u, 1u, 16u, 128u, 240u, 241u, 1024u, 1025u, 70000u}) {
    CAPTURE(size);
    std::vector<std::byte> bytes(size);
    REQUIRE(random.Fill(bytes).ok());
    const uint64_t whole = base::Checksum(bytes, 9);
    base::Checksummer summer(9);
    for (base::ByteView rest = bytes; !rest.empty();) {
      const size_t take = 1 + random.Below(rest.size());
      summer.Update(rest.first(take));
      rest = rest.subspan(take);
    }
    CHECK(summer.Finish() == whole);
    CHECK(base::Checksum(bytes, 10) != whole);
    if (size != 0) {
      bytes[random.Below(size)] ^= std::byte{0x10};
      CHECK(base::Checksum(bytes, 9) != whole);
    }
  }
}
