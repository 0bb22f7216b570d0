// SPDX-License-Identifier: Apache-2.0
// Recency, frequency, priority and time to live across restarts.
#include <filesystem>
#include <map>
#include <tuple>

#include "lib/format/uses.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/lane_store.h"

namespace {

using namespace kvstrata::test;  // NOLINT: the fixture's words
namespace format = kvstrata::core::format;
using kvstrata::core::base::Code;
namespace storage = kvstrata::core::storage;
namespace trie = kvstrata::core::trie;
using trie::EvictionPolicy;
using trie::Priority;

constexpr uint64_t kBlock = 4;  // tokens, of RowsLayout

Tokens PromptOf(uint64_t number, uint64_t blocks = 3) { return MakeTokens(blocks * kBlock + 1, 1000 + number); }

uint64_t Use(Store& store, const Tokens& prompt) {
  LookupOptions lookup;
  lookup.no_lease = true;
  return store.Lookup(prompt, lookup)->state()->matched_blocks;
}

// All that orders evictions, by key: of blocks, and of snapshots by position.
using Ranks = std::map<std::tuple<uint64_t, uint64_t, uint64_t>, std::tuple<uint64_t, uint32_t, uint32_t, uint32_t>>;

Ranks RanksOf(Store& store) {
  Ranks ranks;
  kvstrata::core::base::MutexLock lock(store.cache().mutex());
  store.space()->trie.VisitSlots(0, UINT64_MAX, [&](const trie::BlockInfo& block) {
    ranks[{block.key.digest.lo, block.key.digest.hi, 0}] = {block.heat, block.frequency, block.expires_at,
                                                            static_cast<uint32_t>(block.priority)};
  });
  store.space()->snapshots.VisitSlots(0, UINT64_MAX, [&](const trie::SnapshotInfo& snapshot) {
    ranks[{snapshot.sequence, snapshot.bytes, snapshot.position}] = {snapshot.last_use, snapshot.frequency, 0, 0};
  });
  return ranks;
}

// A store whose records outlive the process, as far as the cache knows.
void MakePersistent(Store& store) {
  store.capabilities = store.memory().capabilities();
  store.capabilities->persistent = true;
  store.capabilities->durable_sync = true;
}

// Which of the prompts are left, after each eviction until nothing is.
std::vector<std::vector<uint64_t>> EvictionOrder(Store& store, uint64_t prompts) {
  std::vector<std::vector<uint64_t>> order;
  while (store.stats().held_blocks > 0) {
    REQUIRE(store.cache().Trim(store.stats().held_bytes - 1).ok());
    order.emplace_back();
    for (uint64_t i = 0; i < prompts; ++i) order.back().push_back(BlocksOf(store, PromptOf(i)));
  }
  return order;
}

std::vector<storage::Key> UsesRecords(storage::Storage& memory) {
  std::vector<storage::Key> keys;
  storage::ListPage page;
  for (storage::Cursor cursor; !page.done; cursor = page.next) {
    REQUIRE(memory.List(cursor, 100, &page).ok());
    for (const storage::ListEntry& entry : page.entries) {
      const auto meta = format::DecodeRecordMeta(entry.meta);
      if (meta.ok() && meta->identity.kind == format::RecordKind::kUses) keys.push_back(entry.key);
    }
  }
  return keys;
}

}  // namespace

TEST_CASE("after a reopening evictions go on in the order of before, under each policy") {
  constexpr uint64_t kPrompts = 12;
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kFrequency}) {
    CAPTURE(static_cast<uint32_t>(policy));
    Store stayed(RowsLayout()), reopened(RowsLayout());
    for (Store* store : {&stayed, &reopened}) {
      store->options.eviction_policy = policy;
      MakePersistent(*store);
      store->Open();
      StoreOptions with;
      for (uint64_t i = 0; i < kPrompts; ++i) {
        with.writer.priority = i % 5 == 0 ? Priority::kHigh : i % 5 == 1 ? Priority::kLow : Priority::kNormal;
        store->StorePrompt(PromptOf(i), with);
      }
      // Not in the order of writing, unlike often, and not all of each.
      for (uint64_t i = 0; i < 40; ++i) Use(*store, PromptOf(i * i * 7 % kPrompts, 1 + i % 3));
    }
    const Ranks before = RanksOf(reopened);
    CHECK(before.size() == 3 * kPrompts);
    for (int round = 0; round < 3; ++round) {
      reopened.Reopen();
      CHECK(RanksOf(reopened) == before);
      reopened.CheckAccounts();
    }
    CHECK(EvictionOrder(reopened, kPrompts) == EvictionOrder(stayed, kPrompts));
  }
}

TEST_CASE("the blocks of a run are equally warm, and time goes by blocks, not by runs") {
  constexpr uint64_t kBlocks = 16;
  // In one run, and in a run for each block.
  for (const uint64_t chunk : {kBlocks * kBlock, kBlock}) {
    CAPTURE(chunk);
    Store store(RowsLayout());
    store.Open();
    StoreOptions with;
    with.chunk = chunk;
    uint64_t before = 0;
    for (uint64_t prompts = 1; prompts <= 3; ++prompts) {
      store.StorePrompt(PromptOf(prompts, kBlocks), with);
      std::map<uint64_t, uint64_t> blocks_by_heat;
      for (const auto& [key, rank] : RanksOf(store)) ++blocks_by_heat[std::get<0>(rank)];
      REQUIRE(blocks_by_heat.size() == prompts);
      const auto [heat, blocks] = *blocks_by_heat.rbegin();
      CHECK(blocks == kBlocks);
      CHECK(heat - before >= kBlocks);
      before = heat;
    }
  }
}

TEST_CASE("what was evicted of a run and comes back with it is the coldest") {
  Store store(RowsLayout());
  MakePersistent(store);
  store.Open();
  StoreOptions at_once;
  at_once.chunk = 16 * kBlock;
  store.StorePrompt(PromptOf(0, 16), at_once);
  store.StorePrompt(PromptOf(1));
  Use(store, PromptOf(0, 4));
  // The end of the run, which frees nothing, then the other prompt.
  REQUIRE(store.cache().Trim(store.stats().held_bytes - 1).ok());
  REQUIRE(BlocksOf(store, PromptOf(0, 16)) == 4);
  const Ranks before = RanksOf(store);
  store.Reopen();
  const Ranks after = RanksOf(store);
  CHECK(BlocksOf(store, PromptOf(0, 16)) == 16);
  for (const auto& [key, rank] : after) {
    if (before.contains(key)) {
      CHECK(rank == before.at(key));
    } else {
      CHECK(std::get<0>(rank) == 0);
    }
  }
  store.CheckAccounts();
}

TEST_CASE("snapshots keep their last use, and what comes after a reopening is hotter than all before") {
  Store store(HybridLayout());
  MakePersistent(store);
  store.Open();
  const Tokens a = MakeTokens(33, 1), b = MakeTokens(33, 2);
  store.StorePrompt(a);
  store.StorePrompt(b);
  store.RestoredTokens(a);
  const Ranks before = RanksOf(store);
  store.Reopen();
  CHECK(RanksOf(store) == before);
  uint64_t hottest = 0;
  for (const auto& [key, rank] : before) hottest = std::max(hottest, std::get<0>(rank));
  store.StorePrompt(MakeTokens(33, 3));
  uint64_t newer = 0;
  for (const auto& [key, rank] : RanksOf(store)) newer += before.contains(key) ? 0 : std::get<0>(rank) > hottest;
  CHECK(newer == RanksOf(store).size() - before.size());
  CHECK(newer > 0);
}

TEST_CASE("a time to live outlives the process") {
  Store store(RowsLayout());
  MakePersistent(store);
  store.Open();
  StoreOptions mortal;
  mortal.writer.ttl_seconds = 100;
  store.StorePrompt(PromptOf(0), mortal);
  store.StorePrompt(PromptOf(1));
  store.Reopen();
  CHECK(Use(store, PromptOf(0)) == 3);
  store.clock().AdvanceNs(101'000'000'000);
  store.Reopen();
  CHECK(Use(store, PromptOf(0)) == 0);
  CHECK(Use(store, PromptOf(1)) == 3);
  store.CheckAccounts();
}

TEST_CASE("what was known at the last sync is known after a kill") {
  TempDir dir;
  const std::string root = dir.path() + "/root", copy = dir.path() + "/copy";
  LaneStore store(root, 0);
  for (uint64_t i = 0; i < 4; ++i) store.StorePrompt(MakeTokens(25, i));
  for (const uint64_t i : {2u, 0u, 0u, 3u}) Use(store, MakeTokens(25, i));
  REQUIRE(store.cache().Sync().ok());
  const Ranks before = RanksOf(store);
  Use(store, MakeTokens(25, 1));  // not written down any more
  std::filesystem::copy(root, copy, std::filesystem::copy_options::recursive);
  LaneStore again(copy, 0);
  CHECK(RanksOf(again) == before);
}

TEST_CASE("each lane keeps the uses of its own blocks") {
  TempDir dir;
  std::array<Ranks, 2> before;
  {
    LaneStore first(dir.path(), 0), second(dir.path(), 1);
    first.StoreDurably(MakeTokens(25, 1));
    second.StoreDurably(MakeTokens(25, 2));
    for (int i = 0; i < 3; ++i) Use(first, MakeTokens(25, 1));
    Use(second, MakeTokens(25, 2));
    before = {RanksOf(first), RanksOf(second)};
    // Taken over from another lane, and none of this one's affair.
    second.Wait();
    Use(second, MakeTokens(25, 1));
    second.Close();
    first.Close();
  }
  for (const uint32_t lane : {0u, 1u}) {
    LaneStore store(dir.path(), lane);
    const Ranks after = RanksOf(store);
    for (const auto& [key, rank] : before[lane]) {
      CAPTURE(lane, std::get<0>(key), std::get<2>(key));
      REQUIRE(after.contains(key));
      const auto& now = after.at(key);
      CHECK(std::get<0>(now) == std::get<0>(rank));
      CHECK(std::get<1>(now) == std::get<1>(rank));
    }
    store.Close();
  }
}

TEST_CASE("many blocks take several parts, and few take away those that are not needed") {
  Store store(RowsLayout(), 4 << 20);
  store.options.staging_bytes = 1 << 16;
  MakePersistent(store);
  store.Open();
  for (uint64_t i = 0; i < 900; ++i) store.StorePrompt(PromptOf(i, 1));
  for (uint64_t i = 0; i < 900; i += 2) Use(store, PromptOf(i, 1));
  REQUIRE(store.cache().Sync().ok());
  CHECK(UsesRecords(store.memory()).size() == 2);
  const Ranks before = RanksOf(store);
  store.Reopen();
  CHECK(RanksOf(store) == before);
  REQUIRE(store.cache().Trim(store.stats().held_bytes - store.stats().held_row_bytes + 4 * kRowsBlock).ok());
  Use(store, PromptOf(898, 1));
  REQUIRE(store.cache().Sync().ok());
  CHECK(UsesRecords(store.memory()).size() == 1);
  store.CheckAccounts();
}

TEST_CASE("a part that is as large as parts become is read again") {
  Store store(RowsLayout(), 80 << 20);
  store.options.staging_bytes = 8 << 20;  // with less, parts are smaller
  MakePersistent(store);
  store.Open();
  constexpr uint64_t kPartBytes = 1 << 20;
  constexpr uint64_t kBlocks = kPartBytes / format::kBlockUsesBytes + 10;
  for (uint64_t i = 0; i < kBlocks; ++i) store.StorePrompt(PromptOf(i, 1));
  REQUIRE(store.cache().Sync().ok());
  CHECK(UsesRecords(store.memory()).size() == 2);
  const Ranks before = RanksOf(store);
  store.Reopen();
  CHECK(store.stats().skipped_corrupt == 0);
  CHECK((RanksOf(store) == before));  // too many to print
}

TEST_CASE("uses take their place in the byte budget, and give way where they have none") {
  Store store(RowsLayout(), 100'000);
  MakePersistent(store);
  store.Open();
  for (uint64_t round = 0; round < 4; ++round) {
    for (uint64_t i = 0; i < 60; ++i) store.StorePrompt(PromptOf(100 * round + i));
    store.CheckAccounts();
    store.Reopen();
    CHECK(store.stats().recovered_blocks > 0);
    store.CheckAccounts();
  }
}

TEST_CASE("uses that are damaged, or of records that have gone, change nothing but the order") {
  Store store(RowsLayout());
  MakePersistent(store);
  store.Open();
  for (uint64_t i = 0; i < 6; ++i) store.StorePrompt(PromptOf(i));
  Use(store, PromptOf(0));
  store.Close();
  const storage::Key key = UsesRecords(store.memory()).at(0);
  const std::string good = ReadNow(store.memory(), key).value();
  std::vector<storage::ListEntry> all;
  REQUIRE(ListAll(store.memory(), 100, &all).ok());
  std::string meta;
  for (const storage::ListEntry& entry : all) {
    if (entry.key == key) meta = std::string(kvstrata::core::base::AsText(entry.meta));
  }
  for (const size_t at : {size_t{3}, size_t{150}, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    REQUIRE(PutNow(store.memory(), key, bad, meta).status.ok());
    store.Open();
    CHECK(store.stats().skipped_corrupt == 1);
    CHECK(store.stats().recovered_blocks == 18);
    for (uint64_t i = 0; i < 6; ++i) CHECK(BlocksOf(store, PromptOf(i)) == 3);
    store.CheckAccounts();
    store.Close();
  }
}

TEST_CASE("uses that a worker could not write down are tried again after a pause that grows, and at the close") {
  Store store(RowsLayout());
  store.options.threads = 1;  // a restore that has ended means that the worker is done with what came before it
  MakePersistent(store);
  store.Open();
  store.StorePrompt(PromptOf(0));
  store.StorePrompt(PromptOf(1));
  for (int i = 0; i < 1100; ++i) Use(store, PromptOf(0));
  store.faults().FailNth(StorageCall::kPut, 1, Code::kIo, /*and_all_after=*/true);
  const auto restore_twice = [&] {
    for (int i = 0; i < 2; ++i) CHECK(store.RestoredTokens(PromptOf(1)) == 3 * kBlock);
  };
  uint64_t tries = store.faults().calls(StorageCall::kPut);
  for (const uint64_t pause_s : {0, 1, 2, 4, 8, 16, 32, 64, 64, 64}) {
    CAPTURE(pause_s);
    // Not a moment earlier, however many jobs there are.
    if (pause_s > 0) store.clock().AdvanceNs(pause_s * 1'000'000'000 - 1);
    if (pause_s > 0) restore_twice();
    CHECK(store.faults().calls(StorageCall::kPut) == tries);
    store.clock().AdvanceNs(1);
    restore_twice();
    CHECK(store.faults().calls(StorageCall::kPut) == ++tries);
  }
  store.faults().FailNothing();
  SECTION("by a worker") {
    store.clock().AdvanceNs(64'000'000'000);
    restore_twice();
    CHECK(UsesRecords(store.memory()).size() == 1);
  }
  SECTION("at the close, without a pause") {
    const Ranks before = RanksOf(store);
    store.Reopen();
    CHECK(RanksOf(store) == before);
  }
  store.CheckAccounts();
}

TEST_CASE("uses that are stuck in the storage when they are given up take their place in the budget") {
  Store store(RowsLayout());
  MakePersistent(store);
  store.options.io_timeout_ms = 50;
  store.Open();
  store.StorePrompt(PromptOf(0));
  Use(store, PromptOf(0));
  store.faults().Stick();
  store.cache().Sync().IgnoreError();  // a completion is withheld, not the record
  CHECK(UsesRecords(store.memory()).size() == 1);
  store.faults().Release();
  store.CheckAccounts();
  store.clock().AdvanceNs(1'000'000'000);
  Use(store, PromptOf(0));
  REQUIRE(store.cache().Sync().ok());
  store.CheckAccounts();
}

TEST_CASE("a memory that ends with the process keeps no uses") {
  Store store(RowsLayout());
  store.Open();
  store.StorePrompt(PromptOf(0));
  store.Close();
  CHECK(UsesRecords(store.memory()).empty());
}
