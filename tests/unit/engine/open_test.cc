// SPDX-License-Identifier: Apache-2.0
// What an open asks of its storage, and in which order it writes to it.
#include <string>

#include "lib/base/status.h"
#include "lib/storage/tiered.h"
#include "tests/support/bad_block_os.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.h"
#include "tests/unit/engine/lane_store.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using base::Code;

TEST_CASE("a storage that cannot read ranges is refused before anything is written to it") {
  for (const bool read_only : {false, true}) {
    CAPTURE(read_only);
    Store store(RowsLayout());
    store.options.read_only = read_only;
    store.capabilities = storage::Capabilities{};
    store.capabilities->range_reads = false;
    const absl::Status refused = store.TryOpen();
    CHECK(base::CodeOf(refused) == Code::kUnsupported);
    CHECK(base::FieldOf(refused) == "storage.range_reads");
    CHECK(store.faults().calls(StorageCall::kAny) == 0);
    CHECK(store.memory().UsedBytes() == 0);
    store.Abandon();
  }
}

TEST_CASE("a storage that is full to its limit is trimmed before the epoch is written") {
  Store store(RowsLayout(), 8'000);  // the storage itself holds 4,096 bytes more
  store.Open();
  const Tokens tokens = MakeTokens(48, 1);
  store.StorePrompt(tokens);
  const uint64_t blocks = BlocksOf(store, tokens);
  store.Close();
  // Somebody else's record takes all that is left: the epoch's record, which is put beside the older one before it
  // takes its place, has no room unless blocks go first.
  const uint64_t left = 8'000 + 4'096 - store.memory().UsedBytes();
  const uint64_t overhead = store.memory().StoredBytes(0, 0);
  REQUIRE(PutNow(store.memory(), storage::Key{}, std::string(left - overhead, 'x')).status.ok());
  REQUIRE(store.memory().UsedBytes() == 8'000 + 4'096);
  store.Open();
  CHECK(store.stats().held_bytes <= store.stats().capacity_bytes);
  const uint64_t kept = BlocksOf(store, tokens);
  CHECK(kept < blocks);
  CHECK(kept > 0);
  CHECK(store.RestoredTokens(tokens) == kept * 4);
  store.CheckAccounts();
}

TEST_CASE("an open that ends between its trim and its epoch leaves a store that opens again") {
  const Tokens a = MakeTokens(48, 1), b = Join(Prefix(a, 20), MakeTokens(30, 2));
  uint64_t nth = 1, failed = 0;
  for (;; ++nth) {
    CAPTURE(nth);
    Store store(RowsLayout());
    store.Open();
    store.StorePrompt(a);
    store.StorePrompt(b);
    const uint64_t used = store.memory().UsedBytes();
    store.Close();
    store.options.capacity_bytes = used / 2;
    // A removal of the trim fails, or the epoch's put after it.
    store.FailNextOpen(nth);
    const bool opened = store.TryOpen().ok();
    if (opened && store.faults().faults() == 0) break;
    failed += opened ? 0 : 1;
    const bool trimmed = store.faults().calls(StorageCall::kRemove) > 0;
    store.Abandon();
    store.FailNextOpen(0);
    if (trimmed) CHECK(store.memory().UsedBytes() < used);
    store.Open();
    CHECK(store.stats().held_bytes <= store.stats().capacity_bytes);
    CHECK(store.RestoredTokens(a) == BlocksOf(store, a) * 4);
    CHECK(store.RestoredTokens(b) == BlocksOf(store, b) * 4);
    CHECK(BlocksOf(store, a) + BlocksOf(store, b) > 0);
    store.StorePrompt(MakeTokens(9, 3));
    CHECK(store.RestoredTokens(MakeTokens(9, 3)) == 8);
    store.CheckAccounts();
  }
  CHECK(failed > 2);
  CHECK(nth > 5);
}

TEST_CASE("after a flush has failed nothing is called durable until the next open") {
  enum class Failing { kCommit, kSync, kDrop };
  for (const Failing failing : {Failing::kCommit, Failing::kSync, Failing::kDrop}) {
    CAPTURE(static_cast<int>(failing));
    Store store(RowsLayout());
    store.capabilities = store.memory().capabilities();
    store.capabilities->durable_sync = true;
    store.Open();
    const auto commit = [&](uint64_t seed) {
      const auto writer = store.Begin();
      REQUIRE(store.Step(*writer, MakeTokens(9, seed), 0, 9).ok());
      return base::CodeOf(writer->Commit(/*durable=*/true, false, 60'000, nullptr));
    };
    CHECK(commit(1) == Code::kOk);
    store.faults().FailNth(StorageCall::kSync, 1, Code::kIo);
    // A storage drops what it could not flush: parents of blocks to come, the namespace's own record.
    if (failing == Failing::kCommit) CHECK(commit(2) == Code::kIo);
    if (failing == Failing::kSync) CHECK(base::CodeOf(store.cache().Sync()) == Code::kIo);
    if (failing == Failing::kDrop) CHECK(base::CodeOf(store.cache().DropNamespace(store.space())) == Code::kIo);
    // The storage works again, but what is stored now may hang on something that has gone.
    CHECK(commit(3) == Code::kIo);
    CHECK(base::CodeOf(store.cache().Sync()) == Code::kIo);
    CHECK(store.RestoredTokens(MakeTokens(9, 3)) == 8);
    store.Reopen();
    CHECK(commit(4) == Code::kOk);
    CHECK(store.cache().Sync().ok());
  }
}

TEST_CASE("a store whose log has a block that cannot be read opens without what is in it, and says so") {
  TempDir directory(TempDir::Place::kMemory);
  std::vector<Tokens> prompts;
  for (uint64_t i = 0; i < 40; ++i) prompts.push_back(MakeTokens(70, 100 + i));
  BadBlockOs os;
  LaneStore store(directory.path(), 0);
  for (const Tokens& tokens : prompts) store.StoreDurably(tokens);
  const uint64_t whole = store.RestoredTokens(prompts[0]);
  REQUIRE(whole >= 64);
  CHECK(store.stats().unreadable_blocks == 0);
  store.Close();
  // A flush is a block here, and the first ones are the store's and the namespace's own.
  os.Refuse("journal-0001.log", 20);
  store.open_storage = [&] {
    storage::SegmentOptions given;
    given.path = directory.path();
    given.capacity_bytes = 4 << 20;
    given.flush_ms = 0;
    given.os = &os;
    auto lanes = storage::LaneStorage::Open(given, 0);
    REQUIRE(lanes.ok());
    storage::TieredOptions tiers;
    tiers.lower = *std::move(lanes);
    tiers.memory_bytes = 1 << 20;
    return std::shared_ptr<storage::Storage>(storage::TieredStorage::Open(std::move(tiers)).value());
  };
  store.Open();
  CHECK(store.stats().unreadable_blocks == 1);
  size_t found = 0;
  for (const Tokens& tokens : prompts) {
    const uint64_t restored = store.RestoredTokens(tokens);  // every byte of it is compared
    CHECK((restored == whole || restored == 0));
    found += restored == whole ? 1 : 0;
  }
  CHECK(found == prompts.size() - 1);
  for (const Tokens& tokens : prompts) store.StorePrompt(tokens);
  for (const Tokens& tokens : prompts) CHECK(store.RestoredTokens(tokens) == whole);
}
