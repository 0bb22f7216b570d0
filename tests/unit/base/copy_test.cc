// SPDX-License-Identifier: Apache-2.0
#include "lib/base/copy.h"

#include <algorithm>
#include <vector>

#include "lib/base/random.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;

namespace {

uintptr_t AddressOf(const std::vector<std::byte>& bytes) { return reinterpret_cast<uintptr_t>(bytes.data()); }

}  // namespace

TEST_CASE("copies are whole and touch nothing else, however source and destination lie") {
  const uint64_t seed = 20261130;
  CAPTURE(seed);
  constexpr size_t kRoom = 3 * 4096;
  constexpr std::byte kUntouched{0xA5};
  std::vector<std::byte> source(kRoom), room(kRoom);
  base::SeededRandom random(seed);
  REQUIRE(random.Fill(source).ok());
  for (const auto copy : {&base::CopyBytes, &base::CopyPastCaches}) {
    for (const size_t size : {0u, 1u, 63u, 2047u, 2048u, 2049u, 4096u, 8000u}) {
      for (const size_t distance : {0u, 1u, 16u, 31u, 63u, 64u, 65u, 1000u, 4095u}) {
        CAPTURE(size, distance);
        const size_t from = random.Below(64);
        // Counted within a page.
        const size_t to = (AddressOf(source) + from + distance - AddressOf(room)) % 4096;
        std::ranges::fill(room, kUntouched);
        copy(room.data() + to, source.data() + from, size);
        const auto begin = room.begin() + static_cast<ptrdiff_t>(to), end = begin + static_cast<ptrdiff_t>(size);
        REQUIRE(std::equal(begin, end, source.begin() + static_cast<ptrdiff_t>(from)));
        REQUIRE(std::all_of(room.begin(), begin, [](std::byte byte) { return byte == kUntouched; }));
        REQUIRE(std::all_of(end, room.end(), [](std::byte byte) { return byte == kUntouched; }));
      }
    }
  }
  base::CopyBytes(nullptr, nullptr, 0);
  base::CopyPastCaches(nullptr, nullptr, 0);
}

TEST_CASE("rows are copied whole and nothing between or beside them is touched") {
  const uint64_t seed = 20261201;
  CAPTURE(seed);
  constexpr size_t kRoom = 3 * 4096, kRows = 3;
  constexpr std::byte kUntouched{0xA5};
  std::vector<std::byte> source(kRoom), room(kRoom);
  base::SeededRandom random(seed);
  REQUIRE(random.Fill(source).ok());
  for (const size_t bytes : {0u, 1u, 8u, 16u, 68u, 576u, 584u, 1024u, 2048u, 3000u}) {
    for (const size_t gap : {0u, 8u, 16u}) {
      for (const size_t aligned : {1u, 16u, 64u}) {
        CAPTURE(bytes, gap, aligned);
        const size_t before = AddressOf(room) % aligned;
        const size_t to = (aligned - before) % aligned + aligned * random.Below(4);
        const size_t from = random.Below(64), from_stride = bytes + random.Below(3) * 8, to_stride = bytes + gap;
        std::vector<std::byte> expected(kRoom, kUntouched);
        for (size_t row = 0; row < kRows; ++row) {
          for (size_t at = 0; at < bytes; ++at)
            expected[to + row * to_stride + at] = source[from + row * from_stride + at];
        }
        std::ranges::fill(room, kUntouched);
        base::CopyRowsPastCaches(room.data() + to, to_stride, source.data() + from, from_stride, bytes, kRows);
        REQUIRE(room == expected);
      }
    }
  }
}
