// SPDX-License-Identifier: Apache-2.0
// The memory that large staging buffers share.
#include "lib/engine/staging_arena.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/base/random.h"
#include "lib/engine/staging.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using namespace kvstrata::core::engine;

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2u << 20;

uintptr_t AddressOf(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

TEST_CASE("large buffers share huge pages, which are given back but for the first ones when nobody has used them") {
  constexpr uint64_t kMore = StagingArena::kKeptBytes + 240'000;
  StagingArena arena(2 * kMore);
  std::byte* const first = arena.Allocate(240'000, kPage);
  std::byte* const second = arena.Allocate(kMore, kPage);
  REQUIRE((first != nullptr && second != nullptr));
  CHECK(AddressOf(first) % kHugePage == 0);
  CHECK(second == first + (240'000 + kPage - 1) / kPage * kPage);
  std::byte* const last = second + kMore - 1;
  *first = *second = *last = std::byte{7};
  arena.Release(first, 240'000, kPage);
  CHECK(arena.Allocate(240'000, kPage) == first);
  arena.Release(second, kMore, kPage);
  CHECK(*last == std::byte{7});
  CHECK(arena.unsettled());
  arena.Settle();  // has been used since the arena was made
  arena.Settle();  // a buffer lives
  CHECK(*last == std::byte{7});
  arena.Release(first, 240'000, kPage);
  CHECK(*last == std::byte{7});
  CHECK(arena.unsettled());
  arena.Settle();
  CHECK_FALSE(arena.unsettled());
  CHECK(*first == std::byte{7});
  // Given back, and clear again.
  CHECK(*last == std::byte{0});
  CHECK(arena.Allocate(240'000, kPage) == first);
  CHECK(arena.unsettled());
  arena.Release(first, 240'000, kPage);
}

TEST_CASE("what finds no room in the arena comes from elsewhere") {
  StagingArena arena(1 << 20);
  std::byte* const all = arena.Allocate(1 << 20, kPage);
  std::byte* const beside = arena.Allocate(100'000, kPage);
  std::byte* const small = arena.Allocate(1, kPage);
  std::byte* const larger = arena.Allocate((1 << 20) + 1, kPage);
  std::byte* const aligned = arena.Allocate(100'000, 2 * kPage);
  REQUIRE((all != nullptr && beside != nullptr && small != nullptr && larger != nullptr && aligned != nullptr));
  for (const std::byte* memory : {beside, small, larger, aligned}) {
    CHECK(AddressOf(memory) % kPage == 0);
    CHECK((memory < all || memory >= all + (1 << 20)));
  }
  CHECK(AddressOf(aligned) % (2 * kPage) == 0);
  arena.Release(beside, 100'000, kPage);
  arena.Release(small, 1, kPage);
  arena.Release(larger, (1 << 20) + 1, kPage);
  arena.Release(aligned, 100'000, 2 * kPage);
  arena.Release(all, 1 << 20, kPage);
  CHECK(arena.Allocate(1 << 20, kPage) == all);
  arena.Release(all, 1 << 20, kPage);
}

TEST_CASE("no two live buffers overlap, in any order of giving and taking") {
  struct Live {
    std::byte* memory;
    uint64_t bytes;
    std::byte mark;
  };
  StagingArena arena(2 << 20);
  base::SeededRandom random(11);
  std::vector<Live> live;
  const auto release = [&](size_t which) {
    const Live one = live[which];
    REQUIRE(std::all_of(one.memory, one.memory + one.bytes, [&](std::byte byte) { return byte == one.mark; }));
    arena.Release(one.memory, one.bytes, kPage);
    live.erase(live.begin() + static_cast<ptrdiff_t>(which));
  };
  for (int i = 0; i < 600; ++i) {
    if (!live.empty() && random.Below(2) == 0) {
      release(random.Below(live.size()));
      continue;
    }
    const uint64_t bytes = 1 + random.Below(400'000);
    const Live one{arena.Allocate(bytes, kPage), bytes, static_cast<std::byte>(i)};
    REQUIRE(one.memory != nullptr);
    REQUIRE(AddressOf(one.memory) % kPage == 0);
    std::fill_n(one.memory, bytes, one.mark);
    live.push_back(one);
  }
  while (!live.empty()) release(0);
}

TEST_CASE("a pool without an allocator gives out memory of its own, until the last buffer has gone") {
  auto pool = std::make_shared<StagingPool>(1 << 20, nullptr, nullptr);
  StagingBuffer buffer = pool->TryAcquire(200'000, -1).value();
  pool.reset();
  std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{1});
  CHECK(AddressOf(buffer.data()) % kHugePage == 0);
}
