// SPDX-License-Identifier: Apache-2.0
// Caches on the lanes of one root: each finds what the others have stored, heeds what they drop, and keeps its budget.
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/unit/engine/lane_store.h"

using namespace kvstrata::test;

namespace {

uint64_t FoundBy(LaneStore& store, const Tokens& tokens) {
  store.Wait();
  return store.RestoredTokens(tokens);
}

}  // namespace

TEST_CASE("what one lane stores, all others restore without reopening") {
  TempDir directory;
  LaneStore a(directory.path(), 0);
  LaneStore b(directory.path(), 1);
  LaneStore reader(directory.path(), 0, /*read_only=*/true);
  const Tokens prompt = MakeTokens(70, 1);
  a.StorePrompt(prompt);
  CHECK(FoundBy(b, prompt) == 0);  // not durable
  REQUIRE(a.cache().Sync().ok());
  const uint64_t usable = FoundBy(a, prompt);
  CHECK(usable >= 64);
  CHECK(FoundBy(b, prompt) == usable);
  CHECK(FoundBy(reader, prompt) == usable);
  // Below another's blocks come our own, and are found by the other again.
  const Tokens longer = Join(prompt, MakeTokens(60, 2));
  b.StorePrompt(longer);
  CHECK(b.stats().blocks_deduplicated >= 8);
  REQUIRE(b.cache().Sync().ok());
  const uint64_t more = FoundBy(b, longer);
  CHECK(more >= 128);
  CHECK(FoundBy(a, longer) == more);
  CHECK(FoundBy(reader, longer) == more);
  // A newcomer, and the same lane opened again, whose blocks hang below another's.
  LaneStore late(directory.path(), 2);
  CHECK(FoundBy(late, longer) == more);
  b.Reopen();
  CHECK(b.stats().skipped_orphans == 0);
  CHECK(FoundBy(b, longer) == more);
  CHECK(b.stats().held_bytes < a.stats().held_bytes + b.stats().capacity_bytes);
}

TEST_CASE("who opens late has what one has that was there all the time, and gives up the same") {
  TempDir directory;
  LaneStore a(directory.path(), 0, false, /*capacity=*/1 << 20);
  LaneStore b(directory.path(), 1);
  LaneStore early(directory.path(), 0, /*read_only=*/true);
  std::vector<Tokens> prompts;
  for (uint64_t i = 0; i < 30; ++i) {
    prompts.push_back(MakeTokens(70, 300 + i));
    // Every third one goes on in the other lane; and both lanes begin some prompts at one time, unknown to each other.
    a.StoreDurably(prompts.back());
    if (i % 3 == 0) b.Wait();
    prompts.push_back(Join(prompts.back(), MakeTokens(60, 600 + i)));
    b.StoreDurably(prompts.back());
    if (i % 4 == 0) early.Wait();
    if (i % 4 == 0) early.RestoredTokens(prompts.front());
  }
  CHECK(a.stats().blocks_evicted > 0);
  LaneStore late(directory.path(), 0, /*read_only=*/true);
  const auto check_alike = [&] {
    for (const Tokens& tokens : prompts) CHECK(FoundBy(late, tokens) == FoundBy(early, tokens));
    const auto of_late = late.stats(), of_early = early.stats();
    CHECK(of_late.held_blocks == of_early.held_blocks);
    CHECK(of_late.held_snapshots == of_early.held_snapshots);
    CHECK(of_late.held_bytes == of_early.held_bytes);
  };
  check_alike();
  CHECK(late.stats().recovered_blocks > 0);
  CHECK(late.stats().recovered_snapshots > 0);
  CHECK(FoundBy(late, prompts.back()) >= 128);
  // Parents go before what another lane has below them, and come back.
  REQUIRE(a.cache().Trim(0).ok());
  REQUIRE(a.cache().Sync().ok());
  check_alike();
  for (size_t i = 0; i < prompts.size(); i += 2) a.StoreDurably(prompts[i]);
  check_alike();
  CHECK(FoundBy(late, prompts.back()) >= 128);
  for (LaneStore* store : {&a, &b}) {
    REQUIRE(store->cache().Trim(0).ok());
    REQUIRE(store->cache().Sync().ok());
  }
  check_alike();
  CHECK(late.stats().held_blocks == 0);
  CHECK(late.stats().held_bytes == 0);
}

TEST_CASE("what others have takes nothing of a lane's budget, and is not evicted for it") {
  TempDir directory;
  LaneStore a(directory.path(), 0);
  std::vector<Tokens> of_a;
  for (uint64_t i = 0; i < 20; ++i) of_a.push_back(MakeTokens(70, 100 + i));
  for (const Tokens& tokens : of_a) a.StoreDurably(tokens);
  LaneStore b(directory.path(), 1, false, /*capacity=*/1 << 20);
  const uint64_t before = b.stats().held_bytes;
  for (const Tokens& tokens : of_a) CHECK(FoundBy(b, tokens) >= 64);
  CHECK(b.stats().held_bytes == before);
  // Many times its budget.
  for (uint64_t i = 0; i < 60; ++i) {
    b.StorePrompt(MakeTokens(70, 1000 + i));
    REQUIRE(b.stats().held_bytes <= 1u << 20);
  }
  CHECK(b.stats().blocks_evicted + b.stats().snapshots_evicted > 0);
  CHECK(b.stats().blocks_stored > 8 * 40);
  for (const Tokens& tokens : of_a) CHECK(FoundBy(b, tokens) >= 64);
}

TEST_CASE("a drop in one lane is heeded by all before their next answer, and after reopening") {
  TempDir directory;
  LaneStore a(directory.path(), 0);
  LaneStore b(directory.path(), 1);
  LaneStore reader(directory.path(), 0, /*read_only=*/true);
  const Tokens prompt = MakeTokens(70, 1), other = MakeTokens(70, 2);
  a.StoreDurably(prompt);
  b.StoreDurably(other);
  for (LaneStore* store : {&a, &b, &reader}) {
    CHECK(FoundBy(*store, prompt) >= 64);
    CHECK(FoundBy(*store, other) >= 64);
  }
  REQUIRE(a.cache().DropNamespace(a.space()).ok());
  for (LaneStore* store : {&a, &b, &reader}) {  // no time has passed
    CHECK(store->RestoredTokens(prompt) == 0);
    CHECK(store->RestoredTokens(other) == 0);
  }
  CHECK(b.stats().held_blocks == 0);
  b.Reopen();
  CHECK(FoundBy(b, other) == 0);
  LaneStore late(directory.path(), 2);
  CHECK(FoundBy(late, prompt) == 0);
  // The new life is everybody's.
  b.StoreDurably(prompt);
  for (LaneStore* store : {&a, &b, &reader, &late}) CHECK(FoundBy(*store, prompt) >= 64);
}

TEST_CASE("what another lane has removed is a miss, and takes what hangs below it along") {
  TempDir directory;
  LaneStore a(directory.path(), 0);
  const Tokens prompt = MakeTokens(70, 1), longer = Join(prompt, MakeTokens(60, 2));
  a.StoreDurably(prompt);
  LaneStore b(directory.path(), 1);
  CHECK(FoundBy(b, prompt) >= 64);
  b.StoreDurably(longer);
  CHECK(FoundBy(b, longer) >= 128);
  const uint64_t held = b.stats().held_bytes;
  REQUIRE(a.cache().Trim(0).ok());
  REQUIRE(a.cache().Sync().ok());
  CHECK(FoundBy(b, longer) == 0);
  CHECK(b.stats().held_blocks == 0);
  CHECK(b.stats().held_bytes < held);
  CHECK(b.RestoredTokens(prompt) == 0);
  b.StoreDurably(longer);
  CHECK(FoundBy(a, longer) >= 128);
}

TEST_CASE("a reader of bytes that have been replaced meanwhile finds nothing, never others") {
  TempDir directory;
  LaneStore a(directory.path(), 0, false, /*capacity=*/1 << 20);
  LaneStore b(directory.path(), 1);
  std::vector<Tokens> prompts;
  for (uint64_t i = 0; i < 40; ++i) {
    prompts.push_back(MakeTokens(70, 500 + i));
    a.StoreDurably(prompts.back());
    // Looked up before the other's removals are known, every other time: every byte that comes is compared.
    if (i % 2 == 0) b.Wait();
    for (const Tokens& tokens : prompts) b.RestoredTokens(tokens);
  }
  CHECK(a.stats().blocks_evicted > 0);
  CHECK(FoundBy(b, prompts.back()) >= 64);
}
