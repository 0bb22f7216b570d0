// SPDX-License-Identifier: Apache-2.0
// Arrays that grow: nothing moves, nothing overlaps, and what is told of memory is right, however growth is asked for.
#include "lib/base/chunked_array.h"

#include <cstdint>
#include <vector>

#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;

namespace {

// 48 bytes: no number of chunks fills a huge page.
struct Element {
  uint64_t number = 7;
  uint64_t rest[5] = {};
};

}  // namespace

TEST_CASE("elements stay where they are and what they are, whether room came for one or for a million") {
  base::ChunkedArray<Element, 5> array;
  // One by one, many at once, and so on.
  const uint64_t steps[] = {1, 40, 100'000, 100'001, 100'900, 500'000, 500'033};
  std::vector<Element*> addresses;
  for (const uint64_t count : steps) {
    CAPTURE(count);
    REQUIRE(array.Reserve(count));
    REQUIRE(array.capacity() >= count);
    const uint64_t before = addresses.size();
    for (uint64_t i = before; i < count; ++i) {
      if (array[i].number != 7 || array[i].rest[4] != 0) FAIL("not fresh: " << i);
      array[i].number = i;
      addresses.push_back(&array[i]);
    }
    CHECK(array.MemoryBytes() >= array.capacity() * sizeof(Element));
    // Pointers to chunks take 1 part in 96 at most twice over, and half a KiB of each 2 MiB is lost.
    CHECK(array.MemoryBytes() <= array.capacity() * sizeof(Element) * 104 / 100 + 4096);
    CHECK(array.capacity() < count + array.kChunk);
  }
  for (uint64_t i = 0; i < addresses.size(); ++i) {
    if (&array[i] != addresses[i] || array[i].number != i) FAIL("has moved or changed: " << i);
  }
}
