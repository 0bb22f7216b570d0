// SPDX-License-Identifier: Apache-2.0
// Namespaces of one cache: dropped, purged, kept apart.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/status.h"
#include "lib/engine/prompt.h"
#include "lib/format/record.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace format = kvstrata::core::format;
namespace storage = kvstrata::core::storage;
using base::Code;

namespace {

struct Stored {
  std::string payload, meta;
  format::RecordIdentity identity;
};
using Records = std::map<storage::Key, Stored>;

Records RecordsOf(storage::Storage& memory) {
  std::vector<storage::ListEntry> listed;
  REQUIRE(ListAll(memory, 100, &listed).ok());
  Records out;
  for (const storage::ListEntry& entry : listed) {
    out[entry.key] = {ReadNow(memory, entry.key).value(), std::string(base::AsText(entry.meta)),
                      format::DecodeRecordMeta(entry.meta).value().identity};
  }
  return out;
}

// What a store that holds these records must find of a prompt: blocks from the first on without a gap, all of the life
// that the namespace's record has.
uint64_t BlocksIn(const Records& records, uint64_t block_tokens) {
  std::optional<format::NamespaceId> life;
  std::map<uint64_t, format::NamespaceId> blocks;
  for (const auto& [key, stored] : records) {
    if (stored.identity.kind == format::RecordKind::kNamespace) life = stored.identity.name_space;
    if (stored.identity.kind == format::RecordKind::kBlock) {
      blocks[stored.identity.position] = stored.identity.name_space;
    }
  }
  uint64_t count = 0;
  while (life.has_value() && blocks.contains((count + 1) * block_tokens) &&
         blocks[(count + 1) * block_tokens] == *life) {
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("a dropped namespace is empty at once, and stays usable") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(60, 1);
  store.StorePrompt(tokens);
  const auto old = store.Lookup(tokens);
  REQUIRE(old->plan().usable_tokens == 56);
  const auto life = store.space()->life;
  REQUIRE(store.cache().DropNamespace(store.space()).ok());
  CHECK(store.space()->life != life);
  CHECK(store.Lookup(tokens)->plan().usable_tokens == 0);
  const Restored restored = store.Restore(*old, tokens);
  CHECK(restored.result.state == RestoreState::kShortened);
  CHECK(restored.result.plan.usable_tokens == 0);
  CHECK(restored.result.plan.reason == Reason::kEvicted);
  CHECK(store.stats().held_blocks == 0);
  store.StorePrompt(tokens);
  CHECK(store.RestoredTokens(tokens) == 56);
  // The old match describes records of another life; nothing of it may come back.
  CHECK(store.Restore(*old, tokens).result.plan.usable_tokens == 0);
  CHECK(store.RestoredTokens(tokens) == 56);
  store.CheckAccounts(/*idle=*/false);
}

TEST_CASE("a drop of many thousand blocks is there at once, and lets lookups in while it takes them out") {
  Store store(RowsLayout(), 32 << 20);
  store.options.max_blocks = 20'000;
  store.Open();
  // A hundred prompts of a hundred blocks, in runs of 64 and 36.
  StoreOptions at_once;
  at_once.chunk = 400;
  for (uint64_t i = 0; i < 100; ++i) store.StorePrompt(MakeTokens(400, i), at_once);
  REQUIRE(store.stats().held_blocks == 10'000);
  const Tokens tokens = MakeTokens(400, 7);
  REQUIRE(store.RestoredTokens(tokens) == 396);
  uint64_t removals = 0, left_at_first = 0;
  store.faults().BeforeRemove([&] {
    if (++removals == 1) left_at_first = store.stats().held_blocks;
    if (removals % 50 == 1) CHECK(store.Lookup(tokens)->plan().usable_tokens == 0);
  });
  REQUIRE(store.cache().DropNamespace(store.space()).ok());
  CHECK(removals == 200);
  CHECK(left_at_first > 9'900);
  CHECK(store.stats().held_blocks == 0);
  store.faults().BeforeRemove(nullptr);
  store.StorePrompt(tokens);
  CHECK(store.RestoredTokens(tokens) == 396);
  store.CheckAccounts();
}

TEST_CASE("a namespace that fills the store can be dropped") {
  Store store(RowsLayout());
  store.options.io_timeout_ms = 2000;
  OpenForBlocks(store, 6);
  store.StorePrompt(MakeTokens(24, 1));
  REQUIRE(store.stats().held_bytes == store.stats().capacity_bytes);
  REQUIRE(store.cache().DropNamespace(store.space()).ok());
  CHECK(store.stats().held_blocks == 0);
  store.StorePrompt(MakeTokens(24, 1));
  CHECK(store.stats().held_blocks == 6);
  store.CheckAccounts();
}

TEST_CASE("puts that were on their way when their namespace was dropped leave no trace") {
  Store store(HybridLayout(), kNoRuns);
  store.Open();
  const Tokens tokens = MakeTokens(48, 1);
  const uint64_t used = store.memory().UsedBytes();
  const auto writer = store.Begin();
  store.faults().Stick();
  REQUIRE(store.Step(*writer, tokens, 0, 48).ok());
  REQUIRE(writer->Snapshot().ok());
  CHECK(store.faults().withheld() == 7);
  std::thread drop([&] { CHECK(store.cache().DropNamespace(store.space()).ok()); });
  Await([&] { return store.faults().withheld() == 8; });  // the namespace's record
  store.faults().CompleteAtRandom(true);
  store.faults().Release();
  drop.join();
  CommitInfo info;
  REQUIRE(writer->Commit(false, false, 60'000, &info).ok());
  CHECK(info.progress.pending == 0);
  CHECK(store.stats().held_blocks + store.stats().held_snapshots <= 7);
  CHECK(store.Lookup(tokens)->plan().usable_tokens == 0);
  Await([&] { return store.memory().UsedBytes() == used; });
  store.CheckAccounts();
  // Stored again in the new life, and found again after the next open.
  store.StorePrompt(tokens);
  store.Reopen();
  CHECK(store.RestoredTokens(tokens) == 40);
}

TEST_CASE("a restore that runs while its namespace is dropped shortens or has been in time") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(60, 1);
  store.StorePrompt(tokens);
  for (int round = 0; round < 10; ++round) {
    const auto match = store.Lookup(tokens);
    REQUIRE(match->plan().usable_tokens == 56);
    store.faults().CompleteAtRandom(true);
    std::thread drop([&] { CHECK(store.cache().DropNamespace(store.space()).ok()); });
    const Restored restored = store.Restore(*match, tokens);  // checks every byte of what it says
    drop.join();
    CHECK((restored.result.state == RestoreState::kComplete || restored.result.state == RestoreState::kShortened));
    store.StorePrompt(tokens);
    CHECK(store.RestoredTokens(tokens) == 56);
    store.CheckAccounts(/*idle=*/false);
  }
}

TEST_CASE("a drop that cannot be written is reported, and leaves a usable cache") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(60, 1);
  store.StorePrompt(tokens);
  store.faults().FailNth(StorageCall::kPut, 1, Code::kIo);
  CHECK(base::CodeOf(store.cache().DropNamespace(store.space())) == Code::kIo);
  store.CheckAccounts();
  store.StorePrompt(tokens);
  CHECK(store.RestoredTokens(tokens) == 56);
  store.CheckAccounts();
}

TEST_CASE("a drop whose flush fails is reported, holds now, and is never half undone after a loss of power") {
  const Tokens tokens = MakeTokens(61, 1);
  Rng rng(TestSeed("drop", 20260323));
  uint64_t undone = 0, done = 0, neither = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    Store store(RowsLayout());
    store.capabilities = store.memory().capabilities();
    store.capabilities->durable_sync = true;
    store.Open();
    store.StorePrompt(tokens);
    const Records before = RecordsOf(store.memory());
    const auto life = store.space()->life;
    store.faults().FailNth(StorageCall::kSync, 1, Code::kIo);
    REQUIRE(base::CodeOf(store.cache().DropNamespace(store.space())) == Code::kIo);
    // In this open the drop has happened: nothing of the old life is found, and what is stored now is.
    CHECK(store.space()->life != life);
    CHECK(BlocksOf(store, tokens) == 0);
    store.StorePrompt(Prefix(tokens, 21));
    CHECK(store.RestoredTokens(tokens) == 20);
    store.CheckAccounts();
    const auto new_life = store.space()->life;
    store.Close();
    // The power fails. Each record may be there as it was, as it is, or not at all.
    Records records = RecordsOf(store.memory());
    for (const auto& [key, stored] : before) records.emplace(key, stored);
    for (auto at = records.begin(); at != records.end();) {
      const auto old = before.find(at->first);
      const bool block = at->second.identity.kind == format::RecordKind::kBlock;
      if (old != before.end() && rng.Chance(round % 2 == 0 ? 90 : 40)) at->second = old->second;
      const bool lost = rng.Chance(block ? 5 : 10);
      at = lost ? records.erase(at) : std::next(at);
    }
    for (const auto& [key, stored] : RecordsOf(store.memory())) REQUIRE(store.memory().Remove(key).ok());
    for (const auto& [key, stored] : records) {
      REQUIRE(PutNow(store.memory(), key, stored.payload, stored.meta).status.ok());
    }
    store.Open();
    const uint64_t expected = BlocksIn(records, 4);
    REQUIRE(BlocksOf(store, tokens) == expected);
    REQUIRE(store.RestoredTokens(tokens) == expected * 4);
    store.CheckAccounts();
    const auto found = store.space()->life;
    (found == life ? undone : found == new_life ? done : neither) += 1;
    // Done again it is durable.
    REQUIRE(store.cache().DropNamespace(store.space()).ok());
    CHECK(BlocksOf(store, tokens) == 0);
    store.Reopen();
    CHECK(BlocksOf(store, tokens) == 0);
  }
  CHECK(undone > 0);
  CHECK(done > 0);
  CHECK(neither > 0);
}

TEST_CASE("namespaces that no handle uses can be purged, with exact accounts") {
  Store store(RowsLayout());
  store.Open();
  store.StorePrompt(MakeTokens(16, 1));
  const uint64_t before = store.stats().held_bytes;
  bool existed = true;
  const auto other = store.cache().OpenNamespace(TestIdentity(HybridLayout()), HybridLayout(), false, &existed).value();
  CHECK_FALSE(existed);
  CHECK(store.cache().PurgeForeign().value() == 0);  // a handle uses it
  engine::NamespaceInfo info = store.cache().DescribeNamespace(*store.space());
  CHECK(info.nearest_difference.find("block_tokens") != std::string::npos);
  const absl::Status missing =
      store.cache().OpenNamespace(TestIdentity(OpaqueLayout()), OpaqueLayout(), true, &existed).status();
  CHECK(base::CodeOf(missing) == Code::kLayoutMismatch);
  store.cache().CloseNamespace(other.get());
  const uint64_t with_other = store.stats().held_bytes;
  {
    // The handle has gone, a user of the namespace has not.
    CHECK(store.cache().PurgeForeign().value() == 0);
  }
  std::weak_ptr<NameSpace> watch = other;
  const_cast<std::shared_ptr<NameSpace>&>(other).reset();
  CHECK(store.cache().PurgeForeign().value() == with_other - before);
  CHECK(watch.expired());
  CHECK(store.stats().held_bytes == before);
  CHECK(BlocksOf(store, MakeTokens(16, 1)) == 4);
  store.CheckAccounts();
}

TEST_CASE("extra keys keep equal tokens apart") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(17, 1);
  const auto lookup = [&](std::vector<engine::ExtraKey> keys) {
    engine::Prompt prompt;
    REQUIRE(prompt.Append(tokens, std::move(keys)).ok());
    return Match::Lookup(store.cache_handle(), store.space(), std::move(prompt), {}).value();
  };
  const auto writer = store.Begin();
  std::vector<std::byte> rows[2];
  for (uint32_t stream = 0; stream < 2; ++stream) {
    for (uint64_t row = 0; row < 16; ++row) {
      const auto bytes = ExpectedRow(store.layout(), stream, tokens, row, 0);
      rows[stream].insert(rows[stream].end(), bytes.begin(), bytes.end());
    }
    REQUIRE(writer->SetSource(LinearBuffer(stream, rows[stream])).ok());
  }
  REQUIRE(writer->Advance(Prefix(tokens, 16), {{5, 1, "cat"}, {9, 1, "dog"}}, 16).ok());
  REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
  CHECK(lookup({})->plan().usable_tokens == 4);
  CHECK(lookup({{5, 1, "cat"}})->plan().usable_tokens == 8);
  CHECK(lookup({{5, 1, "cow"}, {9, 1, "dog"}})->plan().usable_tokens == 4);
  CHECK(lookup({{4, 1, "cat"}, {9, 1, "dog"}})->plan().usable_tokens == 4);
  const auto match = lookup({{5, 1, "cat"}, {9, 1, "dog"}});
  CHECK(match->plan().usable_tokens == 16);
  CHECK(store.Restore(*match, tokens).result.state == RestoreState::kComplete);
}
