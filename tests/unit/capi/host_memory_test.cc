// SPDX-License-Identifier: Apache-2.0
// The caller's allocator: everything given back as it was given, within the bound that was set, released when idle.
#include <string>

#include "tests/support/catch.hpp"
#include "tests/support/fake_allocator.h"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {

TEST_CASE("staging comes from the caller's allocator, stays within its bound and goes back", "[capi]") {
  CountingAllocator allocator;
  {
    World world;
    world.options.allocator = allocator.table();
    world.options.staging_bytes = 256 << 10;
    world.Open();
    const Sequence stored = RandomSequence(1, 600);
    world.StoreSequence(stored);
    auto info = Sized<kvstrata_match_info>();
    MatchHandle match = world.LookUp(Longer(stored), &info);
    CHECK(world.Restore(match.get(), Longer(stored)) == 600);
    CHECK(allocator.allocations() > 0);
    CHECK(allocator.live() == 0);  // an idle cache holds none
    CHECK(allocator.peak_bytes() <= world.options.staging_bytes);
    CHECK(world.Stats().staging_peak_bytes <= world.options.staging_bytes);
    CHECK(world.Stats().staging_bytes == 0);
  }
  CHECK(allocator.live() == 0);
  CHECK(allocator.mismatches() == 0);
}

TEST_CASE("a writer whose blocks are larger than the staging memory is refused, and told both sizes", "[capi]") {
  World world;
  world.options.staging_bytes = 1024;
  world.Open();
  WriterHandle writer;
  Error error;
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), &error) == KVSTRATA_E_TOO_LARGE);
  CHECK(std::string(error.field) == "staging_bytes");
  CHECK(std::string(error.message).find("the bound is 1024") != std::string::npos);
  // One that stores nothing is not.
  kvstrata_writer_options options = {};
  options.struct_size = sizeof options;
  options.flags = KVSTRATA_WRITER_NO_ADMIT;
  CHECK(kvstrata_writer_open(world.space.get(), nullptr, &options, Out(writer), nullptr) == KVSTRATA_OK);
}

TEST_CASE("an allocation that fails is a dropped block or a shorter restore", "[capi]") {
  CountingAllocator allocator;
  World world;
  world.options.allocator = allocator.table();
  world.Open();
  const Sequence stored = RandomSequence(1, 100);
  allocator.FailNth(1);
  const kvstrata_commit_info info = world.StoreSequence(stored, 0);
  CHECK(allocator.failed());
  CHECK(info.blocks_dropped > 0);
  CHECK(info.drop_reason == KVSTRATA_E_OUT_OF_MEMORY);
  world.StoreSequence(stored);
  auto match_info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(stored), &match_info);
  REQUIRE(match_info.usable_tokens == 100);
  allocator.FailNth(1);
  const auto engine = world.Engine();
  auto result = Sized<kvstrata_plan_result>();
  RestoreOptions restore;
  restore.expect_faults = true;
  CHECK(engine->Restore(match.get(), Longer(stored), restore, &result).empty());
  CHECK(result.usable_tokens < 100);
}

TEST_CASE("an open that gave up waiting leaves memory to the requests that are still on their way", "[capi]") {
  CountingAllocator allocator;
  World world;
  REQUIRE(c_store_start_thread(world.store.get()) == 0);
  c_store_hold(world.store.get(), 1u << KVSTRATA_STORAGE_PUT);
  world.options.allocator = allocator.table();
  world.options.io_timeout_ms = 20;
  CacheHandle cache;
  CHECK(kvstrata_cache_open(&world.options, Out(cache), nullptr) == KVSTRATA_E_TIMEOUT);
  CHECK(cache == nullptr);
  CHECK(c_store_count(world.store.get()).destroyed == 0);  // still the caller's
  // The record of the store itself; it completes into what the failed open has left behind.
  CHECK(c_store_count(world.store.get()).waiting == 1);
  c_store_let_go(world.store.get());
  world.Open();
  world.Close();
  CHECK(allocator.live() == 0);
  CHECK(allocator.mismatches() == 0);
}

}  // namespace kvstrata::test
