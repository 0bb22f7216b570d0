// SPDX-License-Identifier: Apache-2.0
// Counters with their denominators on a known run, the ring of events, trim, verify and the byte budget.
#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/fake_wait.h"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

std::vector<kvstrata_event> ReadEvents(kvstrata_cache* cache, uint64_t from, uint64_t capacity, uint64_t* next) {
  std::vector<kvstrata_event> events(capacity, Sized<kvstrata_event>());
  uint64_t count = 0;
  REQUIRE(kvstrata_cache_events(cache, from, events.data(), capacity, sizeof(kvstrata_event), &count, next, nullptr) ==
          KVSTRATA_OK);
  REQUIRE(count <= capacity);
  events.resize(count);
  return events;
}

}  // namespace

TEST_CASE("the counters of a known run are known", "[capi]") {
  World world;
  world.Open();
  const Sequence stored = RandomSequence(1, 100);
  const kvstrata_stats empty = world.Stats();  // the namespace's own record
  const kvstrata_commit_info commit = world.StoreSequence(stored);
  CHECK(commit.blocks_stored == 3);
  CHECK(commit.snapshots_stored == 1);
  CHECK(commit.blocks_dropped + commit.snapshots_dropped == 0);
  CHECK(world.StoreSequence(stored).blocks_deduplicated == 3);

  auto info = Sized<kvstrata_match_info>();
  MatchHandle hit = world.LookUp(Longer(stored), &info);  // 101 tokens, 96 matched, 100 usable
  world.LookUp(RandomSequence(2, 50), &info);             // 50 tokens, absent
  CHECK(info.reason == KVSTRATA_REASON_ABSENT);
  world.LookUp(stored.Prefix(96), &info);  // 96 tokens: matched is capped at 95
  CHECK(info.matched_tokens == 64);
  world.LookUp(stored.Prefix(20), &info);  // 20 tokens, shorter than a block
  CHECK(info.reason == KVSTRATA_REASON_SHORTER_THAN_BLOCK);
  auto peek = Sized<kvstrata_lookup_options>();
  peek.flags = KVSTRATA_LOOKUP_PEEK;
  world.LookUp(Longer(stored), &info, peek);
  CHECK(info.usable_tokens == 100);
  CHECK(info.leased == 0);
  CHECK(world.Restore(hit.get(), Longer(stored)) == 100);

  const kvstrata_stats stats = world.Stats();
  CHECK(stats.lookups == 4);
  CHECK(stats.hits == 1);
  CHECK(stats.misses == 3);
  CHECK(stats.peeks == 1);
  CHECK(stats.requested_tokens == 101 + 50 + 96 + 20);
  CHECK(stats.matched_tokens == 96 + 64);
  CHECK(stats.usable_tokens == 100);
  CHECK(stats.replayed_tokens == 0);
  CHECK(stats.reasons[KVSTRATA_REASON_ABSENT] == 1);
  CHECK(stats.reasons[KVSTRATA_REASON_SHORTER_THAN_BLOCK] == 1);
  CHECK(stats.blocks_stored == 3);
  CHECK(stats.blocks_deduplicated == 3);
  CHECK(stats.snapshots_stored == 1);
  CHECK(stats.held_blocks == 3);
  CHECK(stats.held_snapshots == 1);
  CHECK(stats.bytes_in - empty.bytes_in == stats.held_bytes - empty.held_bytes);
  CHECK(stats.bytes_out == 0);
  CHECK(stats.restores == 1);
  CHECK(stats.restored_bytes > 0);
  CHECK(stats.leased_bytes > 0);
  CHECK(stats.capacity_bytes == world.options.capacity_bytes);
  CHECK(stats.snapshot_capacity_bytes == world.options.capacity_bytes / 4);
  CHECK(stats.lease_capacity_bytes == world.options.capacity_bytes / 2);
  CHECK(stats.staging_capacity_bytes == 64 << 20);
  CHECK(stats.staging_bytes == 0);
  CHECK(stats.namespaces == 1);
  CHECK(stats.index_bytes > 0);
  hit.reset();
  // The thread that ran the restore may let go of its part of the lease a moment later.
  REQUIRE(WaitFor([&] { return world.Stats().leased_bytes == 0; }));
}

TEST_CASE("trim evicts down to the target, leaf first, and the books balance", "[capi]") {
  World world;
  world.KeepBlocksApart();
  world.Open();
  const Sequence stored = RandomSequence(1, 320);  // 10 blocks
  world.StoreSequence(stored);
  const kvstrata_stats before = world.Stats();
  uint64_t held = 0;
  const uint64_t target = before.held_bytes - before.held_snapshot_bytes - before.held_row_bytes / 2;
  REQUIRE(kvstrata_cache_trim(world.cache.get(), target, &held, nullptr) == KVSTRATA_OK);
  CHECK(held <= target);
  const kvstrata_stats after = world.Stats();
  CHECK(after.held_bytes == held);
  CHECK(after.bytes_in - after.bytes_out == held - (before.held_bytes - before.bytes_in));
  CHECK(after.held_blocks > 0);
  CHECK(after.blocks_evicted == 10 - after.held_blocks);
  // Leaf first: what is left is one chain from the beginning.
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(stored), &info, AllModes());
  CHECK(info.matched_tokens == after.held_blocks * 32);
  if (info.usable_tokens != 0) CHECK(world.Restore(match.get(), Longer(stored)) == info.usable_tokens);
  match.reset();
  // The thread that ran the restore may let go of its part of the lease a moment later.
  REQUIRE(WaitFor([&] { return world.Stats().leased_bytes == 0; }));
  REQUIRE(kvstrata_cache_trim(world.cache.get(), 0, &held, nullptr) == KVSTRATA_OK);
  CHECK(world.Stats().held_blocks + world.Stats().held_snapshots == 0);
}

TEST_CASE("the ring of events mirrors the index", "[capi]") {
  World world;
  world.Open();
  uint64_t next = 0;
  CHECK(ReadEvents(world.cache.get(), 1, 8, &next).empty());
  CHECK(next == 1);
  const uint64_t empty = world.Stats().bytes_in;
  world.StoreSequence(RandomSequence(1, 100));
  const uint64_t came_in = world.Stats().bytes_in - empty;
  uint64_t held = 0;
  REQUIRE(kvstrata_cache_trim(world.cache.get(), world.Stats().held_bytes - 1, &held, nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_namespace_drop(world.space.get(), nullptr) == KVSTRATA_OK);
  std::map<std::string, int64_t> blocks;  // digest -> how often it is there
  int64_t snapshots = 0;
  uint64_t stored_bytes = 0;
  uint64_t sequence = 0;
  bool dropped = false;
  // In small bites, as a reader would.
  for (uint64_t from = 1;;) {
    const std::vector<kvstrata_event> events = ReadEvents(world.cache.get(), from, 2, &next);
    if (events.empty()) break;
    for (const kvstrata_event& event : events) {
      CHECK(event.sequence == ++sequence);
      CHECK(event.struct_size == sizeof(kvstrata_event));
      const std::string digest(reinterpret_cast<const char*>(event.digest), sizeof event.digest);
      if (event.kind == KVSTRATA_EVENT_BLOCK_STORED) {
        blocks[digest] += 1;
        stored_bytes += event.bytes;
        CHECK(event.position % 32 == 0);
      }
      if (event.kind == KVSTRATA_EVENT_SNAPSHOT_STORED) {
        snapshots += 1;
        stored_bytes += event.bytes;
        CHECK(event.position == 100);
      }
      if (event.kind == KVSTRATA_EVENT_BLOCK_REMOVED) blocks[digest] -= 1;
      if (event.kind == KVSTRATA_EVENT_SNAPSHOT_REMOVED) snapshots -= 1;
      if (event.kind == KVSTRATA_EVENT_NAMESPACE_DROPPED) {
        dropped = true;
        blocks.clear();
        snapshots = 0;
      }
    }
    from = next;
  }
  CHECK(dropped);
  CHECK(sequence >= 6);
  CHECK(stored_bytes == came_in);
  for (const auto& [digest, count] : blocks) CHECK(count == 0);
  CHECK(snapshots == 0);
}

TEST_CASE("a reader of events that was too slow sees a gap", "[capi]") {
  World world;
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_gqa(1, 1, 4, 1, 1, Out(layout), nullptr) == KVSTRATA_OK);  // blocks of one token
  world.kind.layout = ModelLayout::Read(std::move(layout));
  world.kind.geometry = [](const kvstrata_stream&, uint64_t, Rng&) { return Geometry{}; };
  world.Open();
  const uint64_t stored = 4096 + 100;
  world.StoreSequence(RandomSequence(1, stored));
  uint64_t next = 0;
  const std::vector<kvstrata_event> events = ReadEvents(world.cache.get(), 1, 5000, &next);
  CHECK(events.size() == 4096);
  CHECK(events.front().sequence == 101);
  CHECK(events.back().sequence == stored);
  CHECK(next == stored + 1);
}

TEST_CASE("the budget is never exceeded, and full is normal", "[capi]") {
  World world;
  world.options.capacity_bytes = 200 << 10;
  world.Open();
  for (uint64_t i = 0; i < 40; ++i) {
    world.StoreSequence(RandomSequence(i, 200));
    const kvstrata_stats stats = world.Stats();
    REQUIRE(stats.held_bytes <= stats.capacity_bytes);
    REQUIRE(c_store_count(world.store.get()).payload_bytes <= stats.capacity_bytes);
  }
  CHECK(world.Stats().blocks_evicted > 0);
  world.Close();
  world.Open();
  CHECK(world.Stats().held_bytes <= world.options.capacity_bytes);
  CHECK(world.Stats().recovered_blocks > 0);
  CHECK(world.Stats().skipped_orphans == 0);
  CHECK(world.Stats().skipped_corrupt == 0);
}

TEST_CASE("a record that is larger than the budget is dropped and counted", "[capi]") {
  World world;
  world.options.capacity_bytes = 4 << 10;  // a block of the small model has more
  world.Open();
  const kvstrata_commit_info info = world.StoreSequence(RandomSequence(1, 100), 0);
  CHECK(info.blocks_stored == 0);
  CHECK(info.blocks_dropped > 0);
  CHECK((info.drop_reason == KVSTRATA_E_TOO_LARGE || info.drop_reason == KVSTRATA_E_NO_SPACE));
  CHECK(world.Stats().held_bytes <= world.options.capacity_bytes);
}

TEST_CASE("verify reads everything and reports progress, which can stop it", "[capi]") {
  World world;
  world.KeepBlocksApart();
  world.Open();
  world.StoreSequence(RandomSequence(1, 320));
  auto info = Sized<kvstrata_verify_info>();
  REQUIRE(kvstrata_cache_verify(world.cache.get(), nullptr, nullptr, &info, nullptr) == KVSTRATA_OK);
  CHECK(info.records >= 11);
  CHECK(info.bytes > 0);
  CHECK(info.corrupt + info.removed + info.unreadable == 0);
}

TEST_CASE("no-admit and no-snapshot writers keep the chain but store nothing", "[capi]") {
  World world;
  world.Open();
  const Sequence sequence = RandomSequence(1, 100);
  for (const uint32_t flags : {uint32_t{KVSTRATA_WRITER_NO_ADMIT}, uint32_t{KVSTRATA_WRITER_NO_SNAPSHOTS}}) {
    const auto engine = world.Engine();
    engine->sequence() = sequence;
    auto options = Sized<kvstrata_writer_options>();
    options.flags = flags;
    WriterHandle writer;
    REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, &options, Out(writer), nullptr) == KVSTRATA_OK);
    uint64_t count = 77;
    CHECK(kvstrata_writer_snapshot_positions(writer.get(), engine->sequence().All(), nullptr, 0, &count, nullptr) ==
          KVSTRATA_OK);
    CHECK(count == 0);
    REQUIRE(engine->Advance(writer.get(), 0, sequence.size()).empty());
    auto info = Sized<kvstrata_commit_info>();
    REQUIRE(kvstrata_writer_commit(writer.get(), KVSTRATA_COMMIT_OUTPUT_END, 0, &info, nullptr) == KVSTRATA_OK);
    CHECK(info.sequence_tokens == 100);
    CHECK(info.snapshots_stored == 0);
    CHECK(info.blocks_stored == (flags == KVSTRATA_WRITER_NO_ADMIT ? 0 : 3));
  }
}

}  // namespace kvstrata::test
