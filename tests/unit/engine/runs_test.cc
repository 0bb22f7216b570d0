// SPDX-License-Identifier: Apache-2.0
// Runs: blocks that are complete at one time lie in one record. What is read of it, what its end may lose, and that no
// block of it is ever promised that is not there.
#include <algorithm>
#include <set>
#include <vector>

#include "lib/base/status.h"
#include "lib/engine/restore_reads.h"
#include "lib/layout/presets.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace format = kvstrata::core::format;
namespace layout = kvstrata::core::layout;
namespace storage = kvstrata::core::storage;
namespace trie = kvstrata::core::trie;
using base::Code;

namespace {

struct Run {
  storage::Key key;
  format::RecordMeta meta;
  std::string payload, meta_bytes;
};

// All runs in the storage, by the position of their first block.
std::vector<Run> RunsOf(Store& store) {
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(store.memory(), 100, &entries).ok());
  std::vector<Run> runs;
  for (const storage::ListEntry& entry : entries) {
    const auto meta = format::DecodeRecordMeta(entry.meta);
    if (!meta.ok() || meta->identity.kind != format::RecordKind::kBlock) continue;
    runs.push_back(
        {entry.key, *meta, ReadNow(store.memory(), entry.key).value(), std::string(base::AsText(entry.meta))});
  }
  std::ranges::sort(runs, {}, [](const Run& run) { return run.meta.identity.position; });
  return runs;
}

std::vector<uint64_t> SizesOf(Store& store) {
  std::vector<uint64_t> sizes;
  for (const Run& run : RunsOf(store)) sizes.push_back(run.meta.blocks());
  return sizes;
}

// All tokens computed in one step.
CommitInfo StoreAtOnce(Store& store, const Tokens& tokens, uint64_t from = 0, Writer* writer = nullptr) {
  std::unique_ptr<Writer> own;
  if (writer == nullptr) {
    own = store.Begin();
    writer = own.get();
  }
  const absl::Status status = store.Step(*writer, tokens, from, tokens.size());
  INFO(status.ToString());
  REQUIRE(status.ok());
  CommitInfo info;
  REQUIRE(writer->Commit(false, false, 60'000, &info).ok());
  return info;
}

uint64_t RestoredEarly(Store& store, const Tokens& tokens, bool early) {
  RestoreOptions options;
  options.early_release = early;
  return store.Restore(*store.Lookup(tokens), tokens, options).result.plan.usable_tokens;
}

}  // namespace

// ---- Storing -------------------------------------------------------------------------------------------------------

TEST_CASE("blocks that are complete at one time lie in few records of equal length, up to 64 in each") {
  Store store(RowsLayout(), 4 << 20);
  store.Open();
  const Tokens tokens = MakeTokens(4 * 140 + 1, 1);
  CHECK(StoreAtOnce(store, Prefix(tokens, 4 * 6 + 1)).progress.blocks_stored == 6);
  CHECK(SizesOf(store) == std::vector<uint64_t>{6});
  CHECK(StoreAtOnce(store, tokens).progress.blocks_stored == 134);
  CHECK(SizesOf(store) == std::vector<uint64_t>{6, 45, 45, 44});
  const Stats stats = store.stats();
  CHECK(stats.held_blocks == 140);
  CHECK(stats.blocks_stored == 140);
  // Two streams of 24 bytes a block, and of 62 blocks head and meta once.
  uint64_t rows = 0;
  for (const Run& run : RunsOf(store)) {
    const uint64_t blocks = run.meta.blocks();
    const uint64_t head = 136 + 16 * blocks + 24 * (blocks - 1) + 2 * (16 + 8 * blocks);
    CHECK(run.payload.size() == head + 48 * blocks);
    CHECK(run.meta_bytes.size() == 128 + 24 * (blocks - 1));
    rows += run.payload.size() + run.meta_bytes.size() + 256;
  }
  CHECK(stats.held_row_bytes == rows);
  for (const bool early : {false, true}) CHECK(RestoredEarly(store, tokens, early) == 4 * 140);
  store.CheckAccounts();
  store.Reopen();
  CHECK(store.stats().recovered_blocks == 140);
  CHECK(store.stats().held_row_bytes == rows);
  CHECK(store.RestoredTokens(tokens) == 4 * 140);
  store.CheckAccounts();
}

TEST_CASE("a run is no larger than a quarter of the staging memory, nor than a 64th of the budget") {
  {
    Store store(RowsLayout());
    store.options.staging_bytes = 16 * kRowsBlock;
    store.Open();
    StoreAtOnce(store, MakeTokens(40, 1));
    CHECK(SizesOf(store) == std::vector<uint64_t>{4, 3, 3});
  }
  Store store(RowsLayout(), 64 * 3 * kRowsBlock);
  store.Open();
  StoreAtOnce(store, MakeTokens(40, 1));
  CHECK(SizesOf(store) == std::vector<uint64_t>{3, 3, 2, 2});
  CHECK(store.RestoredTokens(MakeTokens(41, 1)) == 40);
}

TEST_CASE("with little staging memory runs are as short as they must be, down to a block that fills all of it") {
  // What a block has in staging memory: head, and rows of two streams.
  constexpr uint64_t kBlockInStaging = 136 + 16 + 48 + 48;
  const Tokens tokens = MakeTokens(4 * 12 + 1, 1);
  for (uint64_t bytes = kBlockInStaging; bytes < 4 * kBlockInStaging; bytes += 31) {
    CAPTURE(bytes);
    Store store(RowsLayout());
    store.options.staging_bytes = bytes;
    store.Open();
    CHECK(StoreAtOnce(store, tokens).progress.blocks_stored == 12);
    CHECK(store.RestoredTokens(tokens) == 4 * 12);
    CHECK(store.stats().staging_peak_bytes <= bytes);
    store.CheckAccounts();
  }
  Store store(RowsLayout());
  store.options.staging_bytes = kBlockInStaging - 1;
  store.Open();
  const auto open = [&](const WriterOptions& options) {
    return Writer::Open(store.cache_handle(), store.space(), store.policy, nullptr, nullptr, options).status();
  };
  CHECK(base::CodeOf(open({})) == Code::kTooLarge);
  CHECK(base::FieldOf(open({})) == "staging_bytes");
  CHECK(std::string(open({}).message()).find("248 bytes with its head, the bound is 247") != std::string::npos);
  CHECK(open({.no_admit = true}).ok());
}

TEST_CASE("a branch begins a run of its own, and both ways are restored") {
  Store store(HybridLayout(), 1 << 20, kvstrata::core::plan::SnapshotPolicy::Zero());
  store.Open();
  const Tokens a = MakeTokens(8 * 20 + 1, 1);
  StoreAtOnce(store, a);
  for (uint64_t at = 1; at < 20; at += 3) {
    const Tokens b = Join(Prefix(a, 8 * at), MakeTokens(8 * 5 + 1, 100 + at));
    StoreAtOnce(store, b);
    CHECK(RestoredEarly(store, b, false) == 0);  // no snapshot
    CHECK(store.RestoredTokens(b) == 8 * (at + 5));
    CHECK(store.RestoredTokens(a) == 8 * 20);
  }
  CHECK(SizesOf(store) == std::vector<uint64_t>{20, 5, 5, 5, 5, 5, 5, 5});
  store.CheckAccounts();
  store.Reopen();
  CHECK(store.stats().recovered_blocks == 20 + 7 * 5);
  CHECK(store.RestoredTokens(Join(Prefix(a, 8 * 4), MakeTokens(8 * 5 + 1, 104))) == 8 * 9);
}

TEST_CASE("writers whose runs overlap store each block once") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(4 * 12 + 1, 1);
  const auto a = store.Begin(), b = store.Begin();
  store.faults().Stick();
  REQUIRE(store.Step(*a, Prefix(tokens, 4 * 5), 0, 4 * 5).ok());
  REQUIRE(store.Step(*b, tokens, 0, tokens.size()).ok());
  REQUIRE(store.Step(*a, tokens, 4 * 5, tokens.size()).ok());
  CHECK(store.faults().withheld() == 2);
  CHECK(BlocksOf(store, tokens) == 0);
  store.faults().CompleteAtRandom(true);
  store.faults().Release();
  CommitInfo of_a, of_b;
  REQUIRE(a->Commit(false, false, 60'000, &of_a).ok());
  REQUIRE(b->Commit(false, false, 60'000, &of_b).ok());
  CHECK(of_a.progress.blocks_stored == 5);
  CHECK(of_a.progress.blocks_deduplicated == 7);
  CHECK(of_b.progress.blocks_stored == 7);
  CHECK(of_b.progress.blocks_deduplicated == 5);
  CHECK(store.RestoredTokens(tokens) == 4 * 12);
  store.CheckAccounts();
}

TEST_CASE("a run that cannot be put is dropped as a whole, with what hangs on it") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(4 * 12 + 1, 1);
  const auto writer = store.Begin();
  store.faults().Stick();
  store.faults().FailNth(StorageCall::kPut, 1, Code::kIo);
  REQUIRE(store.Step(*writer, Prefix(tokens, 4 * 5), 0, 4 * 5).ok());
  REQUIRE(store.Step(*writer, Prefix(tokens, 4 * 9), 4 * 5, 4 * 9).ok());
  store.faults().Release();
  CommitInfo info;
  REQUIRE(writer->Commit(false, false, 60'000, &info).ok());
  CHECK(info.progress.blocks_stored == 0);
  CHECK(info.progress.blocks_dropped == 9);
  // The one that was put, and hangs on the other, is removed a moment after the commit.
  Await([&] { return RunsOf(store).empty(); });
  store.CheckAccounts();
  // The next block that is complete tries all of them again.
  CHECK(StoreAtOnce(store, tokens, 4 * 9, writer.get()).progress.blocks_stored == 12);
  CHECK(SizesOf(store) == std::vector<uint64_t>{12});
  store.CheckAccounts();
}

TEST_CASE("where the index is full a run is cut, and its record counts what is in it for nobody") {
  Store store(RowsLayout());
  store.options.max_blocks = 7;
  store.Open();
  const Tokens tokens = MakeTokens(4 * 10 + 1, 1);
  const CommitInfo info = StoreAtOnce(store, tokens);
  CHECK(info.progress.blocks_stored == 7);
  CHECK(info.progress.blocks_dropped == 3);
  CHECK(info.progress.drop_reason == Code::kNoSpace);
  const Stats stats = store.stats();
  CHECK(stats.unfreed_bytes == stats.held_row_bytes / 10 * 3);
  CHECK(store.RestoredTokens(tokens) == 4 * 7);
  store.CheckAccounts();
  // With room in the index all of it is there.
  store.options.max_blocks = 0;
  store.Reopen();
  CHECK(store.stats().recovered_blocks == 10);
  CHECK(store.stats().unfreed_bytes == 0);
  CHECK(store.RestoredTokens(tokens) == 4 * 10);
  REQUIRE(store.cache().Trim(0).ok());
  CHECK(store.stats().held_row_bytes == 0);
}

// ---- Reading -------------------------------------------------------------------------------------------------------

TEST_CASE("any part of a run is restored: its beginning, its end, and what is between") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(4 * 9 + 1, 1);
  StoreAtOnce(store, tokens);
  for (const bool early : {false, true}) {
    for (uint64_t matched = 1; matched <= 9; ++matched) {
      // Another prompt from here on.
      const Tokens query = Join(Prefix(tokens, 4 * matched), MakeTokens(6, 50 + matched));
      for (uint64_t held = 0; held < matched; ++held) {
        CAPTURE(early, matched, held);
        RestoreOptions options;
        options.early_release = early;
        const auto match = store.Lookup(query, {.held_tokens = 4 * held});
        REQUIRE(match->plan().usable_tokens == 4 * matched);
        const uint64_t gets = store.faults().calls(StorageCall::kGet);
        const Restored restored = store.Restore(*match, query, options);
        CHECK(restored.result.state == RestoreState::kComplete);
        // Head and rows are read at once: what was matched of each stream, which is one piece where that is all.
        if (held == 0) CHECK(store.faults().calls(StorageCall::kGet) - gets == (matched == 9 ? 1 : 2));
        const uint64_t head = 136 + 16 * 9 + 24 * 8 + 2 * (16 + 8 * 9);
        CHECK(restored.result.bytes_read == head + (matched - held) * 48);
      }
    }
  }
  store.CheckAccounts();
}

TEST_CASE("blocks behind the match may have extra keys: the head is larger than the prompt can tell") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(4 * 9 + 1, 1);
  const auto keys = [&](uint64_t before) {
    std::vector<engine::ExtraKey> out;
    for (const uint64_t position : {2u, 9u, 30u}) {
      if (position < before) out.push_back({position, 1, std::string(700, 'x')});
    }
    return out;
  };
  std::vector<std::byte> rows[2];
  const auto writer = store.Begin();
  for (uint32_t stream = 0; stream < 2; ++stream) {
    for (uint64_t row = 0; row < 36; ++row) {
      const auto bytes = ExpectedRow(store.layout(), stream, tokens, row, 0);
      rows[stream].insert(rows[stream].end(), bytes.begin(), bytes.end());
    }
    REQUIRE(writer->SetSource(LinearBuffer(stream, rows[stream])).ok());
  }
  REQUIRE(writer->Advance(tokens, keys(100), 36).ok());
  REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
  REQUIRE(SizesOf(store) == std::vector<uint64_t>{9});
  for (const bool early : {false, true}) {
    for (const uint64_t matched : {1u, 2u, 5u, 7u, 8u, 9u}) {
      CAPTURE(early, matched);
      const Tokens query = Join(Prefix(tokens, 4 * matched), MakeTokens(3, 2));
      engine::Prompt prompt;
      REQUIRE(prompt.Append(query, keys(4 * matched)).ok());
      const auto match = Match::Lookup(store.cache_handle(), store.space(), std::move(prompt), {}).value();
      REQUIRE(match->plan().usable_tokens == 4 * matched);
      RestoreOptions options;
      options.early_release = early;
      CHECK(store.Restore(*match, query, options).result.state == RestoreState::kComplete);
    }
  }
  // With another run behind the one that was matched in part: its reads are in flight when the head turns out larger.
  const Tokens branch = Join(Prefix(tokens, 20), MakeTokens(17, 3));
  const auto find = [&] {
    engine::Prompt prompt;
    REQUIRE(prompt.Append(branch, keys(20)).ok());
    return Match::Lookup(store.cache_handle(), store.space(), std::move(prompt), {}).value();
  };
  const auto other = store.Begin(find().get());
  for (uint32_t stream = 0; stream < 2; ++stream) {
    rows[stream].clear();
    for (uint64_t row = 0; row < 36; ++row) {
      const auto bytes = ExpectedRow(store.layout(), stream, branch, row, 0);
      rows[stream].insert(rows[stream].end(), bytes.begin(), bytes.end());
    }
    REQUIRE(other->SetSource(LinearBuffer(stream, rows[stream])).ok());
  }
  REQUIRE(other->Advance(std::span(branch).subspan(20), {}, 36).ok());
  REQUIRE(other->Commit(false, false, 0, nullptr).ok());
  REQUIRE(SizesOf(store) == std::vector<uint64_t>{9, 4});
  for (const bool early : {false, true}) {
    const auto match = find();
    REQUIRE(match->plan().usable_tokens == 36);
    RestoreOptions options;
    options.early_release = early;
    CHECK(store.Restore(*match, branch, options).result.state == RestoreState::kComplete);
  }
  CHECK(store.stats().reads_corrupt == 0);
  // Other keys are other blocks.
  engine::Prompt prompt;
  REQUIRE(prompt.Append(tokens, {{2, 1, "y"}}).ok());
  CHECK(Match::Lookup(store.cache_handle(), store.space(), std::move(prompt), {}).value()->plan().usable_tokens == 0);
  CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
  store.CheckAccounts();
}

TEST_CASE("a damaged slice costs its block and those behind it, and the record stays for those before") {
  const Tokens tokens = MakeTokens(4 * 5 + 1, 1);
  const uint64_t head = 136 + 16 * 5 + 24 * 4 + 2 * (16 + 8 * 5);
  enum class Finder { kRestore, kEarlyRestore, kVerify };
  for (const Finder finder : {Finder::kRestore, Finder::kEarlyRestore, Finder::kVerify}) {
    for (uint64_t stream = 0; stream < 2; ++stream) {
      for (uint64_t block = 0; block < 5; ++block) {
        CAPTURE(static_cast<int>(finder), stream, block);
        Store store(RowsLayout());
        store.Open();
        StoreAtOnce(store, tokens);
        Run run = RunsOf(store).at(0);
        REQUIRE(run.payload.size() == head + 5 * 48);
        run.payload[head + (stream * 5 + block) * 24 + block] ^= 4;
        REQUIRE(PutNow(store.memory(), run.key, run.payload, run.meta_bytes).status.ok());
        if (finder == Finder::kVerify) {
          const engine::VerifyInfo info = store.cache().Verify(nullptr).value();
          CHECK(info.corrupt == 1);
          CHECK(info.removed == 5 - block);
          // What nobody is promised any more is no new damage.
          CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
        } else {
          CHECK(RestoredEarly(store, tokens, finder == Finder::kEarlyRestore) == 4 * block);
          CHECK(store.stats().reads_corrupt == 1);
        }
        CHECK(store.stats().blocks_removed == 5 - block);
        CHECK(RunsOf(store).size() == (block == 0 ? 0 : 1));
        CHECK(store.RestoredTokens(tokens) == 4 * block);
        CHECK(store.stats().unfreed_bytes == (block == 0 ? 0 : store.stats().held_row_bytes / 5 * (5 - block)));
        // Stored anew behind what was left, and found again by the next open.
        StoreAtOnce(store, tokens);
        CHECK(store.RestoredTokens(tokens) == 4 * 5);
        store.CheckAccounts();
        store.Reopen();
        CHECK(store.stats().recovered_blocks == 5);
        CHECK(store.RestoredTokens(tokens) == 4 * 5);
        store.CheckAccounts();
      }
    }
  }
}

TEST_CASE("a run whose record is gone, or whose head is damaged, is forgotten from its first block on") {
  const Tokens tokens = MakeTokens(4 * 9 + 1, 1);
  for (const bool gone : {false, true}) {
    for (const uint64_t held : {0u, 4u, 24u}) {  // the second run has blocks 5 to 9
      CAPTURE(gone, held);
      Store store(RowsLayout());
      store.Open();
      const auto writer = store.Begin();
      StoreAtOnce(store, Prefix(tokens, 17), 0, writer.get());
      StoreAtOnce(store, tokens, 17, writer.get());
      std::vector<Run> runs = RunsOf(store);
      REQUIRE(runs.size() == 2);
      const auto match = store.Lookup(tokens, {.held_tokens = held});
      if (gone) {
        REQUIRE(store.memory().Remove(runs[1].key).ok());
      } else {
        runs[1].payload[140] ^= 1;  // a token id
        REQUIRE(PutNow(store.memory(), runs[1].key, runs[1].payload, runs[1].meta_bytes).status.ok());
      }
      const Restored restored = store.Restore(*match, tokens);
      CHECK(restored.result.state == RestoreState::kShortened);
      // Nothing is gained where the caller holds as much itself.
      CHECK(restored.result.plan.usable_tokens == (held < 16 ? 16 : 0));
      CHECK(BlocksOf(store, tokens) == 4);
      CHECK(store.stats().unfreed_bytes == 0);
      store.CheckAccounts(/*idle=*/false);
    }
  }
}

TEST_CASE("a run of which the beginning was matched, and whose head is damaged, its size included, is forgotten") {
  const Tokens tokens = MakeTokens(4 * 9 + 1, 1);
  const Tokens query = Join(Prefix(tokens, 4 * 5), MakeTokens(6, 50));
  for (const bool early : {false, true}) {
    for (size_t bit = 0; bit < 8 * format::kHeadPrefixBytes; ++bit) {
      CAPTURE(early, bit);
      Store store(RowsLayout());
      store.Open();
      StoreAtOnce(store, tokens);
      Run run = RunsOf(store).at(0);
      run.payload[bit / 8] ^= static_cast<char>(1 << bit % 8);
      REQUIRE(PutNow(store.memory(), run.key, run.payload, run.meta_bytes).status.ok());
      CHECK(RestoredEarly(store, query, early) == 0);
      CHECK(store.stats().reads_corrupt == 1);
      CHECK(BlocksOf(store, tokens) == 0);
      store.CheckAccounts(/*idle=*/false);
    }
  }
}

TEST_CASE("a run that was stored anew in other pieces since the match is stale, not damaged") {
  const Tokens tokens = MakeTokens(4 * 9 + 1, 1);
  for (const bool early : {false, true}) {
    for (const uint64_t first : {1u, 2u, 12u}) {  // blocks of the new run: smaller, and larger
      CAPTURE(early, first);
      Store store(RowsLayout());
      store.Open();
      StoreAtOnce(store, tokens);
      const auto match = store.Lookup(tokens, {.no_lease = true});
      REQUIRE(store.cache().Trim(0).ok());
      const Tokens longer = Join(tokens, MakeTokens(12, 3));
      StoreAtOnce(store, Prefix(longer, 4 * first));
      RestoreOptions options;
      options.early_release = early;
      const Restored restored = store.Restore(*match, tokens, options);
      CHECK(restored.result.state == RestoreState::kShortened);
      CHECK(restored.result.plan.usable_tokens == 0);
      const Stats stats = store.stats();
      CHECK(stats.reads_stale == 1);
      CHECK(stats.reads_corrupt == 0);
      CHECK(BlocksOf(store, longer) == first);  // the new one stays
      store.CheckAccounts();
    }
  }
}

// ---- Evicting ------------------------------------------------------------------------------------------------------

TEST_CASE("the end of a run is evicted while its beginning is leased, and its bytes come back with the beginning") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(4 * 9 + 1, 1);
  StoreAtOnce(store, tokens);
  const uint64_t bytes = store.stats().held_row_bytes;
  {
    const auto match = store.Lookup(Join(Prefix(tokens, 4 * 4), {1}));
    REQUIRE(match->leased());
    CHECK(store.stats().leased_bytes == bytes);  // none of it can be freed
    REQUIRE(store.cache().Trim(0).ok());
    CHECK(BlocksOf(store, tokens) == 4);
    CHECK(store.stats().blocks_evicted == 5);
    CHECK(store.stats().held_row_bytes == bytes);
    CHECK(store.stats().unfreed_bytes == bytes / 9 * 5);
    CHECK(store.Restore(*match, tokens).result.state == RestoreState::kComplete);
    store.CheckAccounts(/*idle=*/false);
  }
  // What is left of it is a prefix like any other.
  CHECK(store.RestoredTokens(tokens) == 4 * 4);
  REQUIRE(store.cache().Trim(0).ok());
  CHECK(store.stats().held_row_bytes == 0);
  CHECK(store.stats().unfreed_bytes == 0);
  CHECK(RunsOf(store).empty());
  store.CheckAccounts();
}

TEST_CASE("what was evicted of a run comes back with the next open, or is stored anew and is then the newer run's") {
  const Tokens tokens = MakeTokens(4 * 9 + 1, 1);
  for (const bool anew : {false, true}) {
    CAPTURE(anew);
    Store store(RowsLayout());
    store.Open();
    StoreAtOnce(store, tokens);
    {
      const auto match = store.Lookup(Join(Prefix(tokens, 4 * 4), {1}));
      REQUIRE(store.cache().Trim(0).ok());
    }
    REQUIRE(BlocksOf(store, tokens) == 4);
    if (anew) {
      CHECK(StoreAtOnce(store, Join(tokens, MakeTokens(12, 3))).progress.blocks_stored == 8);
      CHECK(SizesOf(store) == std::vector<uint64_t>{9, 8});
    }
    const Stats before = store.stats();
    store.Reopen();
    const Stats after = store.stats();
    CHECK(after.recovered_blocks == (anew ? 12 : 9));
    CHECK(after.skipped_orphans == 0);
    CHECK(after.held_row_bytes == before.held_row_bytes);
    CHECK(after.unfreed_bytes == (anew ? before.unfreed_bytes : 0));
    CHECK(store.RestoredTokens(tokens) == 4 * 9);
    CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
    store.CheckAccounts();
    REQUIRE(store.cache().Trim(0).ok());
    CHECK(store.stats().held_row_bytes == 0);
    CHECK(store.stats().unfreed_bytes == 0);
  }
}

TEST_CASE("a run that an older one holds the first block of, and an overlap that cannot be, are misses and no more") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(4 * 6 + 1, 1);
  StoreAtOnce(store, tokens);
  const Run whole = RunsOf(store).at(0);
  REQUIRE(store.cache().Trim(0).ok());
  StoreAtOnce(store, Prefix(tokens, 4 * 3 + 1));
  StoreAtOnce(store, tokens);
  CHECK(SizesOf(store) == std::vector<uint64_t>{3, 3});
  store.Close();
  // The older record lies where the newer run's is: an end that both have, of which nobody is the first block.
  REQUIRE(PutNow(store.memory(), whole.key, whole.payload, whole.meta_bytes).status.ok());
  store.Open();
  CHECK(store.stats().recovered_blocks == 6);
  CHECK(store.RestoredTokens(tokens) == 4 * 6);
  CHECK(store.stats().restores_shortened == 0);
  store.CheckAccounts();
}

TEST_CASE("a meta that says other keys than the head is found out when it is read") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(4 * 6 + 1, 1);
  StoreAtOnce(store, tokens);
  Run run = RunsOf(store).at(0);
  store.Close();
  // The key of a block that its tokens do not give.
  format::RecordMeta meta = run.meta;
  meta.more[2].check ^= 1;
  REQUIRE(PutNow(store.memory(), run.key, run.payload, std::string(base::AsText(format::EncodeRecordMeta(meta))))
              .status.ok());
  store.Open();
  CHECK(store.stats().recovered_blocks == 6);
  CHECK(BlocksOf(store, tokens) == 3);  // the chain does not go on there
  CHECK(store.RestoredTokens(tokens) == 4 * 3);
  CHECK(store.cache().Verify(nullptr).value().corrupt == 1);
  CHECK(store.stats().held_blocks == 0);
  store.CheckAccounts();
}

TEST_CASE("random work in runs: the budget holds, every byte is right, also after opening again") {
  Rng rng(TestSeed("runs", 20261130));
  Store store(HybridLayout(), 200'000);
  store.options.eviction_policy = rng.Chance(50) ? trie::EvictionPolicy::kFrequency : trie::EvictionPolicy::kLru;
  store.Open();
  std::vector<Tokens> prompts;
  uint64_t longest = 0, unfreed = 0;
  for (int i = 0; i < 250; ++i) {
    CAPTURE(i);
    store.faults().CompleteAtRandom(rng.Chance(50));
    Tokens tokens = MakeTokens(rng.Between(1, 150), rng.Next());
    if (!prompts.empty() && rng.Chance(60)) {
      const Tokens& old = prompts[rng.Below(prompts.size())];
      tokens = Join(Prefix(old, rng.Below(old.size() + 1)), tokens);
    }
    tokens.resize(std::min<size_t>(tokens.size(), 250));
    StoreOptions options;
    options.chunk = rng.Between(1, 200);
    options.output_end = rng.Chance(50);
    store.StorePrompt(tokens, options);
    prompts.push_back(tokens);
    for (const uint64_t size : SizesOf(store)) longest = std::max(longest, size);
    unfreed = std::max(unfreed, store.stats().unfreed_bytes);
    const Tokens& again = prompts[rng.Below(prompts.size())];
    RestoreOptions restore;
    restore.early_release = rng.Chance(50);
    const auto match = store.Lookup(again, {.held_tokens = rng.Below(20), .allowed_modes = kAllModes});
    if (match->plan().mode != Mode::kNone) {
      REQUIRE(store.Restore(*match, again, restore).result.state == RestoreState::kComplete);
    }
    store.CheckAccounts(/*idle=*/false);
    if (rng.Chance(5)) store.Reopen();
  }
  CHECK(longest >= 4);
  CHECK(unfreed > 0);
  CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
}

// ---- Real geometry -------------------------------------------------------------------------------------------------

TEST_CASE("DeepSeek-V4: a run of eight blocks and more costs at most one hundredth beyond its rows") {
  for (const std::string_view name : {"deepseek-v4-flash", "deepseek-v4-pro"}) {
    const layout::Layout layout = layout::Preset(name).value();
    const uint64_t slices = engine::RowStreams(layout).size();
    for (const uint64_t blocks : {8u, 16u, 32u, 64u}) {
      CAPTURE(std::string(name), blocks);
      const uint64_t rows = layout.BlockBytes() * blocks;
      const uint64_t payload = format::HeadBytes(blocks * layout.block_tokens(), 0, slices, blocks) + rows;
      // Whole units of the segment store, and the meta in its log twice: in a journal and a checkpoint.
      const uint64_t stored = (payload + 4095) / 4096 * 4096 + 2 * format::MetaBytes(blocks);
      CHECK(static_cast<double>(stored) <= 1.01 * static_cast<double>(rows));
    }
  }
}

TEST_CASE("DeepSeek-V4: reads are large, have every slice once, and bring the first layer in the first tenth") {
  for (const std::string_view name : {"deepseek-v4-flash", "deepseek-v4-pro"}) {
    const layout::Layout layout = layout::Preset(name).value();
    const std::vector<uint32_t> streams = engine::RowStreams(layout);
    for (const bool early : {false, true}) {
      CAPTURE(std::string(name), early);
      std::vector<engine::SourceRecord> records(8);
      std::vector<engine::WantedSlice> wanted;
      std::vector<engine::RecordRead> reads;
      for (uint32_t i = 0; i < streams.size(); ++i) wanted.push_back({i, layout.stream(streams[i]).layer});
      CHECK(std::ranges::is_sorted(wanted, {}, &engine::WantedSlice::layer));
      uint64_t all = 0;
      for (size_t r = 0; r < records.size(); ++r) {
        engine::SourceRecord& record = records[r];
        record.run = {64 * r, 64 * r + 64, 64};
        record.from = record.run.first;
        record.to = record.run.end;
        record.head_bytes = format::HeadBytes(64 * 128, 0, streams.size(), 64);
        record.table.blocks = 64;
        uint64_t offset = record.head_bytes;
        for (const uint32_t stream : streams) {
          record.table.slices.push_back({stream, false, layout.StreamBlockBytes(stream)});
          for (int block = 0; block < 64; ++block, offset += layout.StreamBlockBytes(stream)) {
            record.table.starts.push_back(offset);
          }
        }
        record.table.starts.push_back(offset);
        all += offset;
        engine::AddReads(r, record, wanted, {early, engine::kReadBytes}, &reads);
      }
      if (early) engine::OrderForEarlyRelease(&reads);
      std::set<std::tuple<size_t, uint32_t, uint64_t>> seen;
      std::vector<bool> proven(records.size(), false);
      uint64_t bytes = 0, first_layer = 0;
      for (const engine::RecordRead& read : reads) {
        CHECK(read.bytes <= engine::kReadBytes);
        if (read.has_head) proven[read.record] = true;
        CHECK(proven[read.record]);
        const engine::SliceTable& table = records[read.record].table;
        uint64_t at = read.has_head ? records[read.record].head_bytes : 0;
        for (const engine::ReadPart& part : read.parts) {
          CHECK(part.offset == at);
          CHECK(read.offset + at == table.Start(part.slice, part.from));
          at += (part.to - part.from) * table.slices[part.slice].bytes;
          for (uint64_t b = part.from; b < part.to; ++b) CHECK(seen.emplace(read.record, part.slice, b).second);
        }
        CHECK(at == read.bytes);
        bytes += read.bytes;
        if (read.layer == wanted.front().layer) first_layer = bytes;
      }
      CHECK(bytes == all);
      CHECK(seen.size() == 8 * 64 * streams.size());
      // Half a MiB in the mean: what a drive reads at more than nine tenths of its rate.
      CHECK(bytes / reads.size() >= 512u << 10);
      if (early) CHECK(first_layer * 10 <= all);
    }
  }
}
