// SPDX-License-Identifier: Apache-2.0
// What is evicted of a run stays taken until its record goes: that this is never more than a twentieth of the budget,
// whatever is hot, and that it costs nothing that could have stayed.
#include <algorithm>
#include <memory>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/lane_store.h"

using namespace kvstrata::test;
namespace trie = kvstrata::core::trie;

namespace {

constexpr uint64_t kBlockTokens = 4;  // RowsLayout

// All of it in one step, in as few runs as it may.
void StoreAtOnce(Store& store, const Tokens& tokens) {
  const auto match = store.Lookup(tokens);
  const auto writer = store.Begin(match.get());
  const absl::Status status = store.Step(*writer, tokens, match->plan().usable_tokens, tokens.size());
  INFO(status.ToString());
  REQUIRE(status.ok());
  REQUIRE(writer->Commit(false, false, 60'000, nullptr).ok());
}

// A beginning that is used again and again, behind which everybody goes on in a way of his own.
Tokens Head(uint64_t number) { return MakeTokens(kBlockTokens * 3, 1'000'000 + number); }

// As RowsLayout with rows of 1 KiB, so that a few dozen runs fill a store on files.
kvstrata::core::layout::Layout WideLayout() {
  kvstrata::core::layout::LayoutDesc desc;
  desc.block_tokens = kBlockTokens;
  kvstrata::core::layout::Stream rows;
  rows.role = kvstrata::core::layout::Role::kOther;
  rows.ratio = 1;
  rows.row_bytes = 1024;
  desc.streams = {rows};
  return kvstrata::core::layout::Layout::Create(desc).value();
}

uint64_t Bound(Store& store) { return store.options.capacity_bytes / 20; }

}  // namespace

TEST_CASE("hot beginnings of runs whose ends are cold keep no more than a twentieth of the budget from others") {
  for (const auto policy : {trie::EvictionPolicy::kLru, trie::EvictionPolicy::kFrequency}) {
    CAPTURE(static_cast<int>(policy));
    Store store(RowsLayout());
    store.options.eviction_policy = policy;
    store.Open();
    constexpr uint64_t kHeads = 100;
    uint64_t most = 0;
    for (uint64_t i = 0; i < 1500; ++i) {
      CAPTURE(i);
      // Each head comes once with a long end, and then without for a long time.
      if (i < kHeads) StoreAtOnce(store, Join(Head(i), MakeTokens(kBlockTokens * 20 + 1, i)));
      if (i >= kHeads) StoreAtOnce(store, MakeTokens(kBlockTokens * 20 + 1, i));
      store.Lookup(Join(Head(i % kHeads), {-1}));
      most = std::max(most, store.stats().unfreed_bytes);
      REQUIRE(store.stats().unfreed_bytes <= Bound(store));
    }
    CHECK(store.stats().blocks_evicted > 10'000);
    CHECK(most > Bound(store) / 2);  // else this says nothing
    store.CheckAccounts();
  }
}

TEST_CASE("unfreed bytes are bounded at each step of random work, also after opening again, but for leased ones") {
  Rng rng(TestSeed("unfreed", 20261130));
  Store store(RowsLayout(), 400'000);
  store.options.eviction_policy = rng.Chance(50) ? trie::EvictionPolicy::kFrequency : trie::EvictionPolicy::kLru;
  if (rng.Chance(50)) store.options.low_percent = 90;
  store.options.lease_bytes = store.options.capacity_bytes / 40;
  store.Open();
  std::vector<std::unique_ptr<Match>> held;
  uint64_t most = 0;
  for (uint64_t i = 0; i < 1200; ++i) {
    CAPTURE(i);
    // Parts of a few beginnings, so that runs are cut at each of their blocks, and branch there.
    const Tokens head = Head(rng.Below(30)), part = Prefix(head, rng.Between(kBlockTokens, head.size()));
    StoreAtOnce(store, Join(rng.Chance(50) ? part : Tokens(), MakeTokens(rng.Between(1, 100), rng.Next())));
    const Tokens query = Join(rng.Chance(80) ? part : Head(rng.Below(30)), {-1});
    auto match = store.Lookup(query);
    if (match->plan().mode != Mode::kNone && rng.Chance(20)) {
      REQUIRE(store.Restore(*match, query).result.state == RestoreState::kComplete);
    }
    if (match->leased() && rng.Chance(10)) held.push_back(std::move(match));
    if (!held.empty() && rng.Chance(25)) held.erase(held.begin());
    most = std::max(most, store.stats().unfreed_bytes);
    // What was leased when room was made may have been released since.
    REQUIRE(store.stats().unfreed_bytes <= Bound(store) + store.options.lease_bytes);
    if (rng.Chance(2)) store.cache().Trim(rng.Below(store.options.capacity_bytes)).status().IgnoreError();
    if (!rng.Chance(3)) continue;
    held.clear();
    store.Reopen();
    CHECK(store.stats().unfreed_bytes <= Bound(store));
    store.CheckAccounts();
  }
  held.clear();
  CHECK(most > Bound(store) / 2);
  store.CheckAccounts();
  CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
  REQUIRE(store.cache().Trim(0).ok());
  CHECK(store.stats().unfreed_bytes == 0);
  CHECK(store.stats().held_row_bytes == 0);
}

TEST_CASE("a leased beginning of a cut run stays, and with it all that its record takes") {
  Store store(RowsLayout(), 300'000);
  store.options.lease_bytes = 150'000;
  store.Open();
  constexpr uint64_t kHeads = 12;
  std::vector<std::unique_ptr<Match>> held;
  for (uint64_t i = 0; i < kHeads; ++i) {
    StoreAtOnce(store, Join(Head(i), MakeTokens(kBlockTokens * 4 + 1, i)));
    held.push_back(store.Lookup(Join(Head(i), {-1})));
    REQUIRE(held.back()->leased());
  }
  for (uint64_t i = 0; i < 300; ++i) StoreAtOnce(store, MakeTokens(kBlockTokens * 6 + 1, 100 + i));
  CHECK(store.stats().unfreed_bytes > 0);
  for (uint64_t i = 0; i < kHeads; ++i) {
    CHECK(held[i]->plan().usable_tokens == kBlockTokens * 3);
    CHECK(store.Restore(*held[i], Join(Head(i), {-1})).result.state == RestoreState::kComplete);
  }
  held.clear();
  for (uint64_t i = 0; i < 30; ++i) StoreAtOnce(store, MakeTokens(kBlockTokens * 6 + 1, 500 + i));
  CHECK(store.stats().unfreed_bytes <= Bound(store));
  store.CheckAccounts();
}

TEST_CASE("each lane bounds the unfreed bytes of its own records, and a reader counts none") {
  TempDir directory;
  constexpr uint64_t kCapacity = 4 << 20;
  const auto layout = WideLayout();
  LaneStore a(directory.path(), 0, false, kCapacity, layout);
  LaneStore b(directory.path(), 1, false, kCapacity, layout);
  LaneStore reader(directory.path(), 0, /*read_only=*/true, kCapacity, layout);
  constexpr uint64_t kHeads = 30;
  for (uint64_t i = 0; i < 400; ++i) {
    CAPTURE(i);
    LaneStore& writer = i % 2 == 0 ? a : b;
    // Each begins where the other lane goes on.
    const Tokens end = MakeTokens(kBlockTokens * 5 + 1, i);
    StoreAtOnce(writer, i < 3 * kHeads ? Join(Head(i % kHeads), end) : end);
    for (LaneStore* store : {&a, &b}) {
      store->Lookup(Join(Head(i * 7 % kHeads), {-1}));
      REQUIRE(store->stats().unfreed_bytes <= kCapacity / 20);
    }
    if (i % 50 != 0) continue;
    REQUIRE(writer.cache().Sync().ok());
    for (LaneStore* store : {&a, &b, &reader}) store->Wait();
    reader.Lookup(Join(Head(i * 7 % kHeads), {-1}));
    CHECK(reader.stats().unfreed_bytes == 0);
  }
  CHECK(a.stats().blocks_evicted > 200);
  CHECK(a.stats().unfreed_bytes > 0);
  for (LaneStore* store : {&a, &b}) {
    store->Reopen();
    CHECK(store->stats().unfreed_bytes <= kCapacity / 20);
    CHECK(store->cache().Verify(nullptr).value().corrupt == 0);
  }
}
