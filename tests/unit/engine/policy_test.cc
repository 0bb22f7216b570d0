// SPDX-License-Identifier: Apache-2.0
// Who stays and who comes: eviction policies, priorities, time to live, admission, watermarks and the medium's floor.
#include "lib/base/status.h"
#include "tests/unit/engine/engine_fixture.h"

namespace {

using namespace kvstrata::test;  // NOLINT: the fixture's words
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::core::base::FieldOf;
using kvstrata::core::trie::EvictionPolicy;
using kvstrata::core::trie::Priority;

constexpr uint64_t kBlock = 4;  // tokens, of RowsLayout

// A prompt of whole blocks of its own, and one token so that all of them can be matched.
Tokens PromptOf(uint64_t number, uint64_t blocks = 1) { return MakeTokens(blocks * kBlock + 1, 1000 + number); }

uint64_t Matched(Store& store, const Tokens& prompt, bool use = false) {
  LookupOptions lookup;
  lookup.peek = !use;
  lookup.no_lease = true;
  return store.Lookup(prompt, lookup)->state()->matched_blocks;
}

// What one block of RowsLayout takes of the budget, and what an empty store does.
struct Sizes {
  Sizes() {
    Store store(RowsLayout());
    store.Open();
    empty = store.stats().held_bytes;
    store.StorePrompt(PromptOf(0));
    block = store.stats().held_row_bytes;
    REQUIRE(block > 0);
    store.Close();
  }
  uint64_t empty = 0, block = 0;
  uint64_t Of(uint64_t blocks) const { return empty + blocks * block; }
};

WriterOptions With(Priority priority, uint32_t ttl_seconds = 0) {
  WriterOptions writer;
  writer.priority = priority;
  writer.ttl_seconds = ttl_seconds;
  return writer;
}

CommitInfo StoreAs(Store& store, const Tokens& prompt, const WriterOptions& writer) {
  StoreOptions options;
  options.writer = writer;
  return store.StorePrompt(prompt, options);
}

}  // namespace

TEST_CASE("E09: between watermarks of 95 and 90 percent the store never passes one nor overshoots the other") {
  const Sizes sizes;
  Store store(RowsLayout(), sizes.Of(200));
  store.options.high_percent = 95;
  store.options.low_percent = 90;
  store.Open();
  bool was_full = false;
  uint64_t lowest = UINT64_MAX;
  for (uint64_t i = 0; i < 600; ++i) {
    store.StorePrompt(PromptOf(i));
    const Stats stats = store.stats();
    REQUIRE(stats.held_bytes * 100 <= stats.capacity_bytes * 95);
    was_full = was_full || stats.blocks_evicted > 0;
    if (was_full) lowest = std::min(lowest, stats.held_bytes);
  }
  REQUIRE(was_full);
  // Down to 90 percent, less the part of one record that crosses it.
  CHECK(lowest * 100 <= sizes.Of(200) * 90);
  CHECK(lowest * 100 + sizes.block * 100 > sizes.Of(200) * 90);
  store.CheckAccounts();
  store.Close();
}

TEST_CASE("without watermarks a put evicts just what it needs") {
  const Sizes sizes;
  Store store(RowsLayout(), sizes.Of(20));
  store.Open();
  for (uint64_t i = 0; i < 100; ++i) {
    store.StorePrompt(PromptOf(i));
    CHECK(store.stats().held_blocks == std::min<uint64_t>(i + 1, 20));
  }
  CHECK(store.stats().blocks_dropped == 0);
  store.Close();
}

TEST_CASE("watermarks and floors that make no sense are refused by name") {
  const auto refused = [](auto set) {
    Store store(RowsLayout());
    set(store);
    const absl::Status status = store.TryOpen();
    store.Abandon();
    return std::pair(CodeOf(status), std::string(FieldOf(status)));
  };
  CHECK(refused([](Store& s) { s.options.high_percent = 101; }) ==
        std::pair(Code::kInvalidArgument, std::string("high_percent")));
  CHECK(refused([](Store& s) {
          s.options.high_percent = 80;
          s.options.low_percent = 81;
        }) == std::pair(Code::kInvalidArgument, std::string("low_percent")));
  CHECK(refused([](Store& s) { s.options.keep_free_bytes = 1; }) ==
        std::pair(Code::kUnsupported, std::string("keep_free_bytes")));
}

TEST_CASE("E03: a volume that others fill is left its floor: the store shrinks, then drops what it cannot take") {
  const Sizes sizes;
  const uint64_t volume = sizes.Of(100);
  uint64_t outside = 0;
  Store store(RowsLayout(), volume);
  store.free_bytes = [&] {
    const uint64_t taken = store.memory().UsedBytes() + outside;
    return taken < volume ? volume - taken : 0;
  };
  store.options.keep_free_bytes = 20 * sizes.block;
  store.Open();
  for (uint64_t i = 0; i < 120; ++i) store.StorePrompt(PromptOf(i));
  CHECK(store.stats().held_blocks == 80);
  outside = 20 * sizes.block;  // all that was left
  store.StorePrompt(PromptOf(200));
  CHECK(store.stats().held_blocks == 60);
  CHECK(store.free_bytes() >= 20 * sizes.block);
  CHECK(store.stats().blocks_dropped == 0);
  // What was stored last is what is left.
  CHECK(Matched(store, PromptOf(200)) == 1);
  CHECK(Matched(store, PromptOf(61)) == 1);
  CHECK(Matched(store, PromptOf(60)) == 0);
  // The others take at once what is freed: the put is dropped, says why, and has cost no more than was missing.
  outside = volume;
  const CommitInfo dropped = store.StorePrompt(PromptOf(300));
  CHECK(dropped.progress.blocks_dropped == 1);
  CHECK(dropped.progress.drop_reason == Code::kNoSpace);
  CHECK(store.stats().held_blocks == 60 - 21);
  outside = 0;
  CHECK(store.StorePrompt(PromptOf(301)).progress.blocks_stored == 1);
  store.CheckAccounts();
  store.Close();
}

TEST_CASE("E14: one-off requests that are not to be admitted leave eight hot prompts alone") {
  const Sizes sizes;
  Store store(RowsLayout(), sizes.Of(8 * 3));
  store.Open();
  for (uint64_t hot = 0; hot < 8; ++hot) store.StorePrompt(PromptOf(hot, 3));
  const Stats before = store.stats();
  WriterOptions no_admit;
  no_admit.no_admit = true;
  for (uint64_t i = 0; i < 64; ++i) {
    StoreAs(store, PromptOf(100 + i, 3), no_admit);
    CHECK(Matched(store, PromptOf(i % 8, 3), true) == 3);
  }
  CHECK(store.stats().bytes_in == before.bytes_in);
  CHECK(store.stats().blocks_evicted == 0);
  store.Close();
}

TEST_CASE("E15: on second sight a block is stored when another writer asks for it again, and not before") {
  const Sizes sizes;
  Store store(RowsLayout(), sizes.Of(30));
  store.options.second_sight = true;
  store.Open();
  const uint64_t empty = store.stats().bytes_in;
  // Steps of one token: each block is complete in a call of its own, and the sequence must not take itself for another.
  StoreOptions slowly;
  slowly.chunk = 1;
  CHECK(store.StorePrompt(PromptOf(1, 5), slowly).progress.blocks_stored == 0);
  CHECK(store.stats().blocks_not_admitted == 5);
  CHECK(store.stats().blocks_dropped == 0);
  CHECK(store.stats().bytes_in == empty);
  // The common part only: what comes after it is new.
  Tokens longer = Join(Prefix(PromptOf(1, 5), 3 * kBlock), PromptOf(2, 4));
  CHECK(store.StorePrompt(longer, slowly).progress.blocks_stored == 3);
  CHECK(store.StorePrompt(longer).progress.blocks_stored == 4);
  CHECK(store.RestoredTokens(longer) == 7 * kBlock);
  // What was evicted has been seen.
  REQUIRE(store.cache().Trim(0).ok());
  CHECK(store.stats().held_blocks == 0);
  CHECK(store.StorePrompt(longer).progress.blocks_stored == 7);
  store.CheckAccounts();
  store.Close();
}

TEST_CASE("E15: a key covers its prefix, so what was forgotten of a chain is taken with what was not") {
  Store store(RowsLayout());
  store.options.second_sight = true;
  store.options.ghost_bytes = 64;  // eight keys
  store.Open();
  StoreOptions at_once;
  at_once.chunk = 100;
  CHECK(store.StorePrompt(PromptOf(1, 12), at_once).progress.blocks_stored == 0);
  CHECK(store.StorePrompt(PromptOf(1, 12), at_once).progress.blocks_stored == 12);
  CHECK(store.RestoredTokens(PromptOf(1, 12)) == 12 * kBlock);
  store.Close();
}

TEST_CASE("E15: the snapshots of blocks that are not admitted are neither stored nor counted as dropped") {
  Store store(HybridLayout());
  store.options.second_sight = true;
  store.Open();
  StoreOptions options;
  options.output_end = true;
  const Tokens prompt = MakeTokens(43, 5);
  const CommitInfo first = store.StorePrompt(prompt, options);
  CHECK(first.progress.blocks_stored == 0);
  CHECK(first.progress.snapshots_stored == 0);
  CHECK(first.progress.snapshots_dropped == 0);
  const CommitInfo second = store.StorePrompt(prompt, options);
  CHECK(second.progress.blocks_stored == 5);
  CHECK(second.progress.snapshots_stored >= 1);
  CHECK(store.RestoredTokens(Join(prompt, {7})) == 43);
  store.Close();
}

TEST_CASE("a time to live: a miss when it is over, alive again when stored again, never longer than its parent") {
  Store store(RowsLayout());
  store.Open();
  const Tokens prompt = PromptOf(1, 3);
  StoreAs(store, Prefix(prompt, 2 * kBlock), With(Priority::kNormal, 10));
  // The third block asks for more than its parents have: they are given it, too.
  StoreAs(store, prompt, With(Priority::kNormal, 30));
  store.clock().AdvanceNs(29'000'000'000);
  CHECK(Matched(store, prompt) == 3);
  store.clock().AdvanceNs(1'000'000'000);
  CHECK(Matched(store, prompt) == 0);
  CHECK(store.RestoredTokens(prompt) == 0);
  CHECK(store.stats().held_blocks == 3);
  const CommitInfo again = StoreAs(store, prompt, With(Priority::kNormal, 5));
  CHECK(again.progress.blocks_deduplicated == 3);
  CHECK(store.RestoredTokens(prompt) == 3 * kBlock);
  store.clock().AdvanceNs(5'000'000'000);
  CHECK(Matched(store, prompt) == 0);
  // Without a time to live it is there for ever.
  store.StorePrompt(prompt);
  store.clock().AdvanceNs(1'000'000'000'000);
  CHECK(store.RestoredTokens(prompt) == 3 * kBlock);
  store.Close();
}

TEST_CASE("what has expired is reclaimed first, but not while it is leased") {
  const Sizes sizes;
  Store store(RowsLayout(), sizes.Of(10));
  store.Open();
  for (uint64_t i = 0; i < 8; ++i) store.StorePrompt(PromptOf(i));
  StoreAs(store, PromptOf(50), With(Priority::kHigh, 10));
  StoreAs(store, PromptOf(51), With(Priority::kHigh, 10));
  LookupOptions lookup;
  lookup.allowed_modes = kAllModes;
  const auto leased = store.Lookup(PromptOf(51), lookup);
  REQUIRE(leased->leased());
  store.clock().AdvanceNs(10'000'000'000);
  store.StorePrompt(PromptOf(60));
  CHECK(store.stats().blocks_expired == 1);
  CHECK(store.stats().blocks_evicted == 1);
  CHECK(store.stats().held_blocks == 10);
  for (uint64_t i = 0; i < 8; ++i) CHECK(Matched(store, PromptOf(i)) == 1);
  const Restored restored = store.Restore(*leased, PromptOf(51));
  CHECK(restored.result.plan.usable_tokens == kBlock);
  // The next one takes the coldest, since the expired one is still held.
  store.StorePrompt(PromptOf(61));
  CHECK(Matched(store, PromptOf(0)) == 0);
  CHECK(store.stats().blocks_expired == 1);
  store.Close();
}

TEST_CASE("priority: low goes first and high last; a normal writer lifts what it finds") {
  const Sizes sizes;
  Store store(RowsLayout(), sizes.Of(6));
  store.Open();
  StoreAs(store, PromptOf(1), With(Priority::kHigh));
  StoreAs(store, PromptOf(2), With(Priority::kNormal));
  StoreAs(store, PromptOf(3), With(Priority::kLow));
  StoreAs(store, PromptOf(4), With(Priority::kLow));
  StoreAs(store, PromptOf(4), With(Priority::kNormal));
  StoreAs(store, PromptOf(5), With(Priority::kNormal));
  StoreAs(store, PromptOf(6), With(Priority::kNormal));
  StoreAs(store, PromptOf(7), With(Priority::kNormal));
  CHECK(Matched(store, PromptOf(3)) == 0);
  StoreAs(store, PromptOf(8), With(Priority::kNormal));
  CHECK(Matched(store, PromptOf(2)) == 0);
  CHECK(Matched(store, PromptOf(4)) == 1);
  CHECK(Matched(store, PromptOf(1)) == 1);
  store.Close();
}

TEST_CASE("E08, E12: by frequency a shared prompt outlives five budgets of one-off prompts, and nothing is an orphan") {
  const auto policy = GENERATE(EvictionPolicy::kLru, EvictionPolicy::kFrequency);
  const Sizes sizes;
  Store store(RowsLayout(), sizes.Of(20));
  store.options.eviction_policy = policy;
  store.Open();
  const Tokens anchor = PromptOf(0, 4);
  for (uint64_t session = 0; session < 50; ++session) {
    const Tokens prompt = Join(Prefix(anchor, 4 * kBlock), PromptOf(session + 1));
    Matched(store, prompt, true);
    store.StorePrompt(prompt);
  }
  for (uint64_t i = 0; i < 100; ++i) store.StorePrompt(PromptOf(1000 + i));
  CHECK(Matched(store, anchor) == (policy == EvictionPolicy::kFrequency ? 4 : 0));
  store.CheckAccounts();
  store.Close();
}

TEST_CASE("the memory of keys that are not there counts as memory of the index, and is there only when needed") {
  const auto index_bytes = [](EvictionPolicy policy, bool second_sight, uint64_t ghost_bytes) {
    Store store(RowsLayout());
    store.options.eviction_policy = policy;
    store.options.second_sight = second_sight;
    store.options.ghost_bytes = ghost_bytes;
    store.Open();
    const uint64_t bytes = store.stats().index_bytes;
    store.Close();
    return bytes;
  };
  const uint64_t plain = index_bytes(EvictionPolicy::kLru, false, 64'000);
  CHECK(plain < 64'000);
  CHECK(index_bytes(EvictionPolicy::kFrequency, false, 64'000) == plain + 64'000);
  CHECK(index_bytes(EvictionPolicy::kLru, true, 64'000) == plain + 64'000);
  CHECK(index_bytes(EvictionPolicy::kFrequency, true, 0) == plain + (4 << 20));
}
