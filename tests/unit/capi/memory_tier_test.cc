// SPDX-License-Identifier: Apache-2.0
// A tier of memory through the C API: what is attributed to which tier, what a close brings down, and rows that are
// pinned where they lie.
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/fake_allocator.h"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

constexpr uint64_t kMemory = 8 << 20;

PinHandle PinOf(const kvstrata_match* match, kvstrata_pin_info* info) {
  PinHandle pin;
  Error error;
  const kvstrata_status status = kvstrata_match_pin(match, Out(pin), &error);
  INFO(Describe(status, error));
  REQUIRE(status == KVSTRATA_OK);
  *info = Sized<kvstrata_pin_info>();
  REQUIRE(kvstrata_pin_get_info(pin.get(), info, nullptr) == KVSTRATA_OK);
  return pin;
}

// Rows that are not what the sequence's rows are, and the number of all: `rows` by stream.
uint64_t WrongRows(const World& world, const kvstrata_pin* pin, const kvstrata_pin_info& info, const Sequence& sequence,
                   std::vector<uint64_t>* rows) {
  rows->assign(world.kind.layout->streams.size(), 0);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < info.range_count; ++i) {
    auto range = Sized<kvstrata_pin_range>();
    REQUIRE(kvstrata_pin_get_range(pin, i, &range, nullptr) == KVSTRATA_OK);
    const kvstrata_stream& stream = world.kind.layout->streams.at(range.stream);
    REQUIRE(range.bytes == range.rows * stream.row_bytes);
    std::vector<std::byte> expected(stream.row_bytes);
    for (uint64_t row = 0; row < range.rows; ++row) {
      FillBytes(RowSeed(stream, range.stream, range.first_row + row, sequence, 0), expected);
      const auto* found = static_cast<const std::byte*>(range.data) + row * stream.row_bytes;
      if (std::memcmp(found, expected.data(), expected.size()) != 0) ++wrong;
    }
    rows->at(range.stream) += range.rows;
  }
  return wrong;
}

}  // namespace

TEST_CASE("V04: what was put is restored from memory, after a reopen from the store, then from memory", "[capi]") {
  World world;
  world.options.memory_bytes = kMemory;
  world.Open();
  const Sequence stored = RandomSequence(1, 600);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  CHECK(world.Restore(world.LookUp(Longer(stored), &info).get(), Longer(stored)) == 600);
  kvstrata_stats stats = world.Stats();
  CHECK(stats.restored_bytes > 0);
  CHECK(stats.restored_memory_bytes == stats.restored_bytes);
  CHECK(stats.storage_gets == 0);
  CHECK(stats.memory_bytes > 0);
  CHECK(stats.memory_bytes <= stats.memory_capacity_bytes);
  world.Close();
  world.Open();
  CHECK(world.Restore(world.LookUp(Longer(stored), &info).get(), Longer(stored)) == 600);
  stats = world.Stats();
  CHECK(stats.restored_bytes > 0);
  CHECK(stats.storage_get_bytes >= stats.restored_bytes - stats.restored_memory_bytes);
  // Promotions come behind the restores.
  while (world.Stats().restored_memory_bytes == stats.restored_memory_bytes) {
    REQUIRE(world.Restore(world.LookUp(Longer(stored), &info).get(), Longer(stored)) == 600);
  }
  CHECK(world.Stats().memory_promotions > 0);
}

TEST_CASE("R16: what was written back is in the store when the cache has closed", "[capi]") {
  World world;
  world.options.memory_bytes = kMemory;
  world.options.memory_write = KVSTRATA_WRITE_BACK;
  world.Open();
  const Sequence stored = RandomSequence(2, 600);
  world.StoreSequence(stored);
  REQUIRE(kvstrata_cache_close(world.cache.get(), 0, nullptr, nullptr) == KVSTRATA_OK);
  world.Close();
  world.options.memory_bytes = 0;
  world.options.memory_write = 0;
  world.Open();
  auto info = Sized<kvstrata_match_info>();
  CHECK(world.Restore(world.LookUp(Longer(stored), &info).get(), Longer(stored)) == 600);
}

TEST_CASE("pinned rows are the match's, from the held tokens on, and outlive match and cache", "[capi]") {
  World world;
  if (GENERATE(true, false)) {
    world.options.memory_bytes = kMemory;
  } else {
    world.options.storage = nullptr;  // a store in memory needs no tier
  }
  world.Open();
  const Sequence stored = RandomSequence(3, 640);
  world.StoreSequence(stored);
  auto lookup = AllModes();
  lookup.held_tokens = GENERATE(0, 64);
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(stored), &info, lookup);
  REQUIRE(info.usable_tokens == 640);
  auto pinned = Sized<kvstrata_pin_info>();
  PinHandle pin = PinOf(match.get(), &pinned);
  CHECK(pinned.first_token == lookup.held_tokens);
  CHECK(pinned.end_token == 640);
  CHECK(world.Stats().pinned_bytes == pinned.held_bytes);
  match.reset();
  REQUIRE(kvstrata_namespace_drop(world.space.get(), nullptr) == KVSTRATA_OK);
  world.Close();
  std::vector<uint64_t> rows;
  CHECK(WrongRows(world, pin.get(), pinned, stored, &rows) == 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const kvstrata_stream& stream = world.kind.layout->streams[i];
    CAPTURE(i);
    CHECK(rows[i] == (IsRows(stream) ? (640 - lookup.held_tokens) / stream.ratio : 0));
  }
  auto range = Sized<kvstrata_pin_range>();
  CHECK(kvstrata_pin_get_range(pin.get(), pinned.range_count, &range, nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
}

TEST_CASE("nothing is pinned of what is not in memory, dropped, or more than half of the tier", "[capi]") {
  World world;
  world.options.memory_bytes = kMemory;
  auto info = Sized<kvstrata_match_info>();
  auto pinned = Sized<kvstrata_pin_info>();
  const Sequence stored = RandomSequence(4, 320);
  SECTION("not in memory") {
    world.Open();
    world.StoreSequence(stored);
    world.Close();
    world.options.memory_promotion = KVSTRATA_PROMOTE_NEVER;
    world.Open();
    PinOf(world.LookUp(Longer(stored), &info).get(), &pinned);
  }
  SECTION("dropped") {
    world.Open();
    world.StoreSequence(stored);
    MatchHandle match = world.LookUp(Longer(stored), &info);
    REQUIRE(kvstrata_namespace_drop(world.space.get(), nullptr) == KVSTRATA_OK);
    PinOf(match.get(), &pinned);
  }
  SECTION("no room for pins") {
    world.options.storage = nullptr;
    world.options.memory_bytes = 0;
    world.options.lease_bytes = 1;
    world.Open();
    world.StoreSequence(stored);
    PinOf(world.LookUp(Longer(stored), &info).get(), &pinned);
  }
  CHECK(pinned.end_token == pinned.first_token);
  CHECK(pinned.range_count == 0);
  CHECK(pinned.held_bytes == 0);
  CHECK(world.Stats().pinned_bytes == 0);
}

TEST_CASE("what is damaged in memory before its first pin is not pinned", "[capi]") {
  // Between the calls nothing but the tier's records of a page and more lives in the allocator's memory.
  static std::mutex mutex;
  static std::set<void*> live;
  auto allocator = Sized<kvstrata_allocator>();
  allocator.allocate = [](void*, uint64_t size, uint64_t alignment) {
    const std::lock_guard lock(mutex);
    return *live.insert(::operator new(size, std::align_val_t(alignment))).first;
  };
  allocator.release = [](void*, void* memory, uint64_t, uint64_t alignment) {
    const std::lock_guard lock(mutex);
    live.erase(memory);
    ::operator delete(memory, std::align_val_t(alignment));
  };
  World world;
  world.options.allocator = &allocator;
  world.options.memory_bytes = kMemory;
  world.Open();
  const Sequence stored = RandomSequence(6, 320);
  world.StoreSequence(stored);
  REQUIRE_FALSE(live.empty());
  const bool damaged = GENERATE(true, false);
  for (void* record : live) static_cast<unsigned char*>(record)[3000] ^= damaged ? 1 : 0;
  auto info = Sized<kvstrata_match_info>();
  auto pinned = Sized<kvstrata_pin_info>();
  PinOf(world.LookUp(Longer(stored), &info).get(), &pinned);
  CHECK(pinned.first_token == 0);
  CHECK((pinned.end_token == 0) == damaged);
}

TEST_CASE("the tier's memory comes from the caller's allocator and goes back", "[capi]") {
  CountingAllocator allocator;
  {
    World world;
    world.options.allocator = allocator.table();
    world.options.memory_bytes = kMemory;
    world.Open();
    world.StoreSequence(RandomSequence(5, 600));
    CHECK(world.Stats().memory_bytes > 0);
  }
  CHECK(allocator.live() == 0);
  CHECK(allocator.mismatches() == 0);
}

}  // namespace kvstrata::test
