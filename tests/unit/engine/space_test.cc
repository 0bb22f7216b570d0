// SPDX-License-Identifier: Apache-2.0
// Budgets, eviction and leases of one cache.
#include <algorithm>
#include <vector>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
using base::Code;

// ---- Budgets and eviction -------------------------------------------------------------------------------------------

TEST_CASE("random work never takes more than the capacity, evicts leaves first and keeps every promise") {
  Rng rng(TestSeed("budget", 20260321));
  for (const uint64_t capacity : {uint64_t{14'000}, uint64_t{30'000}}) {
    // The storage has no byte to spare: a put beyond the budget would fail there.
    Store store(HybridLayout(), capacity);
    store.Open();
    std::vector<Tokens> prompts;
    for (int i = 0; i < 300; ++i) {
      CAPTURE(capacity, i);
      store.faults().CompleteAtRandom(rng.Chance(50));
      Tokens tokens = MakeTokens(rng.Between(1, 60), rng.Next());
      if (!prompts.empty() && rng.Chance(60)) {
        const Tokens& old = prompts[rng.Below(prompts.size())];
        tokens = Join(Prefix(old, rng.Below(old.size() + 1)), tokens);
      }
      tokens.resize(std::min<size_t>(tokens.size(), 90));
      StoreOptions options;
      options.chunk = rng.Between(1, 30);
      options.output_end = rng.Chance(50);
      store.StorePrompt(tokens, options);
      prompts.push_back(tokens);
      store.CheckAccounts();
      const Tokens& again = prompts[rng.Below(prompts.size())];
      const auto match = store.Lookup(again, {.allowed_modes = kAllModes});
      const Restored restored = store.Restore(*match, again);
      REQUIRE(restored.result.state == RestoreState::kComplete);
      store.CheckAccounts(/*idle=*/false);
    }
    const Stats stats = store.stats();
    CHECK(stats.blocks_evicted > 100);
    CHECK(stats.snapshots_evicted > 10);
    CHECK(stats.reads_absent + stats.reads_corrupt + stats.reads_stale + stats.reads_failed == 0);
    CHECK(stats.blocks_removed == 0);
  }
}

TEST_CASE("the coldest leaf goes first; a used prefix stays") {
  Store store(RowsLayout());
  OpenForBlocks(store, 10);
  const Tokens a = MakeTokens(16, 1), b = MakeTokens(16, 2), c = MakeTokens(16, 3);
  store.StorePrompt(a);
  store.StorePrompt(b);
  CHECK(BlocksOf(store, a) == 4);
  CHECK(store.RestoredTokens(Join(a, {1})) == 16);  // used: b is colder now
  store.StorePrompt(c);                             // needs four, two are free
  CHECK(BlocksOf(store, a) == 4);
  CHECK(BlocksOf(store, b) == 2);  // its leaves went, not its first blocks
  CHECK(BlocksOf(store, c) == 4);
  CHECK(store.stats().blocks_evicted == 2);
  store.CheckAccounts();
}

TEST_CASE("a chain longer than the budget is stored as far as it fits, and says so") {
  Store store(RowsLayout());
  store.options.io_timeout_ms = 1000;
  OpenForBlocks(store, 5);
  StoreOptions options;
  options.writer.wait_ms = 20;
  const Tokens tokens = MakeTokens(40, 1);
  const CommitInfo info = store.StorePrompt(tokens, options);
  CHECK(info.progress.blocks_stored == 5);
  CHECK(info.progress.blocks_dropped > 0);
  CHECK(info.progress.drop_reason == Code::kNoSpace);
  CHECK(BlocksOf(store, tokens) == 5);
  CHECK(store.RestoredTokens(tokens) == 20);
  store.CheckAccounts();
}

TEST_CASE("a parent is pinned while its child is on its way") {
  Store store(RowsLayout());
  OpenForBlocks(store, 3);
  const Tokens a = MakeTokens(8, 1), b = MakeTokens(4, 2);
  const auto writer = store.Begin();
  REQUIRE(store.Step(*writer, Prefix(a, 4), 0, 4).ok());
  store.faults().Stick();
  REQUIRE(store.Step(*writer, a, 4, 8).ok());
  // Everything else may go, the parent of the block on its way may not.
  CHECK(base::CodeOf(store.cache().Trim(0).status()) == Code::kOk);
  CHECK(BlocksOf(store, a) == 1);
  store.faults().Release();
  REQUIRE(writer->Commit(false, false, 60'000, nullptr).ok());
  CHECK(BlocksOf(store, a) == 2);
  store.CheckAccounts();
}

TEST_CASE("a parent that arrives before its child is pinned until the child has come, too") {
  Store store(RowsLayout());
  OpenForBlocks(store, 8);
  const Tokens a = MakeTokens(8, 1);
  const auto writer = store.Begin();
  store.faults().Stick();
  REQUIRE(store.Step(*writer, a, 0, 8).ok());  // both blocks on their way
  REQUIRE(store.faults().withheld() == 2);
  store.faults().ReleaseOldest();
  Await([&] { return BlocksOf(store, a) == 1; });
  REQUIRE(store.cache().Trim(0).ok());
  CHECK(BlocksOf(store, a) == 1);
  store.faults().Release();
  REQUIRE(writer->Commit(false, false, 60'000, nullptr).ok());
  CHECK(BlocksOf(store, a) == 2);
  CHECK(store.stats().blocks_dropped == 0);
  store.CheckAccounts();
}

TEST_CASE("snapshots live within their own share, and never push out rows beyond it") {
  Store store(HybridLayout());
  store.options.snapshot_bytes = 3000;
  store.Open();
  const Tokens rows = MakeTokens(200, 1);
  StoreOptions without;
  without.writer.no_snapshots = true;
  store.StorePrompt(rows, without);
  const uint64_t blocks = store.stats().held_blocks;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Tokens tokens = MakeTokens(7, 100 + seed);
    const auto writer = store.Begin();
    REQUIRE(store.Step(*writer, tokens, 0, 7).ok());
    REQUIRE(writer->Snapshot().ok());
    REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
    store.CheckAccounts();
  }
  const Stats stats = store.stats();
  CHECK(stats.held_blocks == blocks);
  CHECK(stats.blocks_evicted == 0);
  CHECK(stats.snapshots_evicted > 20);
  CHECK(stats.held_snapshots >= 3);
  // Nor while all of the share is on its way and nothing of it can be evicted.
  store.faults().Stick();
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Tokens tokens = MakeTokens(7, 200 + seed);
    WriterOptions options;
    options.wait_ms = 5;
    const auto writer = store.Begin(nullptr, options);
    REQUIRE(store.Step(*writer, tokens, 0, 7).ok());
    REQUIRE(writer->Snapshot().ok());
  }
  CHECK(store.stats().held_blocks == blocks);
  store.faults().Release();
  Await([&] { return store.stats().staging_bytes == 0; });
  store.CheckAccounts();
}

TEST_CASE("a record that can never fit is refused at once") {
  Store store(HybridLayout());
  store.options.snapshot_bytes = 400;
  store.Open();
  const CommitInfo info = store.StorePrompt(MakeTokens(20, 1));
  CHECK(info.progress.snapshots_dropped == 1);
  CHECK(info.progress.drop_reason == Code::kTooLarge);
  CHECK(info.progress.blocks_stored == 2);
  store.CheckAccounts();
}

TEST_CASE("a trim ends although others go on storing") {
  Store store(RowsLayout());
  store.Open();
  for (uint64_t seed = 0; seed < 20; ++seed) store.StorePrompt(MakeTokens(40, seed));
  const uint64_t target = store.stats().held_bytes / 2;
  // For each block that goes ten come, and find room.
  uint64_t removals = 0;
  store.faults().BeforeRemove([&] {
    if (++removals < 100) store.StorePrompt(MakeTokens(40, 100 + removals));
  });
  REQUIRE(store.cache().Trim(target).ok());
  store.faults().BeforeRemove(nullptr);
  CHECK(removals > 90);
  CHECK(removals < 120);
  CHECK(store.stats().held_bytes > target);
  CHECK(store.cache().Trim(target).value() <= target);
  store.CheckAccounts();
}

TEST_CASE("a failed removal keeps its bytes in the account") {
  Store store(RowsLayout());
  store.Open();
  store.StorePrompt(MakeTokens(16, 1));
  store.faults().FailNth(StorageCall::kRemove, 1, Code::kIo, /*and_all_after=*/true);
  const uint64_t held = store.stats().held_bytes;
  REQUIRE(store.cache().Trim(held - kRowsBlock).ok());
  const Stats stats = store.stats();
  CHECK(stats.held_blocks == 3);    // a trim tries to remove what was too much, once
  CHECK(stats.held_bytes == held);  // nothing has left the storage
  CHECK(stats.held_bytes == store.memory().UsedBytes());
  store.CheckAccounts(/*idle=*/false);
}

// ---- Leases ---------------------------------------------------------------------------------------------------------

TEST_CASE("a lease keeps what a match promised until its deadline, and no longer") {
  Store store(RowsLayout());
  OpenForBlocks(store, 8);
  const Tokens a = MakeTokens(16, 1), b = MakeTokens(32, 2);
  store.StorePrompt(a);
  StoreOptions options;
  options.writer.wait_ms = 20;
  const auto match = store.Lookup(Join(a, {1}), {.lease_ms = 1000});
  REQUIRE(match->leased());
  CHECK(store.stats().leased_bytes == 4 * kRowsBlock);
  store.StorePrompt(b, options);
  CHECK(BlocksOf(store, a) == 4);
  CHECK(BlocksOf(store, b) == 4);
  store.clock().AdvanceNs(999'999'999);
  CHECK(match->leased());
  REQUIRE(match->Renew(2000).ok());
  store.clock().AdvanceNs(1'999'999'999);
  CHECK(match->leased());
  store.clock().AdvanceNs(1);
  CHECK_FALSE(match->leased());
  CHECK(base::CodeOf(match->Renew(1000)) == Code::kInvalidState);
  store.StorePrompt(b, options);
  CHECK(BlocksOf(store, b) == 8);
  CHECK(BlocksOf(store, a) == 0);
  // What was promised is gone: the restore says so instead of giving anything else.
  const Restored restored = store.Restore(*match, a);
  CHECK(restored.result.state == RestoreState::kShortened);
  CHECK(restored.result.plan.usable_tokens == 0);
  CHECK(restored.result.plan.reason == Reason::kEvicted);
  store.CheckAccounts();
}

TEST_CASE("leases have a budget, and past it a match is unleased") {
  Store store(RowsLayout());
  store.options.lease_bytes = 5 * kRowsBlock;
  store.Open();
  const Tokens a = MakeTokens(16, 1), b = MakeTokens(16, 2);
  store.StorePrompt(a);
  store.StorePrompt(b);
  const auto first = store.Lookup(Join(a, {1}));
  const auto again = store.Lookup(Join(a, {2}));  // the same blocks: they count once
  const auto other = store.Lookup(Join(b, {1}));
  CHECK(first->leased());
  CHECK(again->leased());
  CHECK_FALSE(other->leased());
  CHECK(other->plan().usable_tokens == 16);
  const Stats stats = store.stats();
  CHECK(stats.unleased_matches == 1);
  CHECK(stats.leased_bytes == 4 * kRowsBlock);
  LookupOptions without;
  without.no_lease = true;
  CHECK_FALSE(store.Lookup(Join(a, {1}), without)->leased());
  // An expired lease makes room without anybody ending it.
  store.clock().AdvanceNs(61'000'000'000);
  CHECK(store.Lookup(Join(b, {1}))->leased());
}

TEST_CASE("a limited match keeps what it promises now") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 1);
  const auto writer = store.Begin();
  for (const uint64_t to : {16u, 40u}) {
    REQUIRE(store.Step(*writer, Prefix(tokens, to), to == 16 ? 0 : 16, to).ok());
    REQUIRE(writer->Snapshot().ok());
  }
  REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
  const auto match = store.Lookup(tokens);
  REQUIRE(match->plan().usable_tokens == 40);
  REQUIRE(match->Limit(39).ok());
  REQUIRE(match->plan().usable_tokens == 16);
  REQUIRE(match->leased());
  REQUIRE(store.cache().Trim(0).ok());
  CHECK(store.Restore(*match, tokens).result.state == RestoreState::kComplete);
  REQUIRE(match->Limit(engine::kNoPosition).ok());
  CHECK(match->plan().usable_tokens == 40);
  CHECK(store.Restore(*match, tokens).result.state == RestoreState::kComplete);
}

TEST_CASE("a peek changes nothing") {
  Store store(RowsLayout());
  OpenForBlocks(store, 8);
  const Tokens a = MakeTokens(16, 1), b = MakeTokens(16, 2), c = MakeTokens(4, 3);
  store.StorePrompt(a);
  store.StorePrompt(b);
  const Stats before = store.stats();
  CHECK(BlocksOf(store, a) == 4);
  CHECK(store.stats().lookups == before.lookups);
  CHECK(store.stats().leased_bytes == 0);
  store.StorePrompt(c);
  CHECK(BlocksOf(store, a) == 3);  // still the coldest
  CHECK(BlocksOf(store, b) == 4);
}
