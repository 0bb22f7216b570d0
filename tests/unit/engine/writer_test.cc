// SPDX-License-Identifier: Apache-2.0
// Writers: what they store, in which order and where they begin; and the snapshots that the policies want.
#include <algorithm>
#include <set>
#include <vector>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace plan = kvstrata::core::plan;
using base::Code;

// ---- Writers --------------------------------------------------------------------------------------------------------

TEST_CASE("a prompt is stored once, however its chunks are cut and however many writers bring it") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(61, 1);
  const CommitInfo first = store.StorePrompt(tokens);
  CHECK(first.sequence_tokens == 61);
  CHECK(first.computed_tokens == 61);
  CHECK(first.progress.blocks_stored == 7);
  CHECK(first.progress.snapshots_stored == 1);
  CHECK(first.progress.stored_bytes > 0);
  const uint64_t held = store.stats().held_bytes;
  for (const uint64_t chunk : {1u, 3u, 8u, 61u}) {
    StoreOptions options;
    options.chunk = chunk;
    const CommitInfo again = store.StorePrompt(tokens, options);
    CHECK(again.progress.blocks_stored == 0);
    CHECK(again.progress.blocks_deduplicated == 7);
    CHECK(again.progress.snapshots_stored == 0);
    CHECK(store.stats().held_bytes == held);
  }
  CHECK(store.RestoredTokens(tokens) == 56);
  store.CheckAccounts();
}

TEST_CASE("a worker gives staging memory back that is not used any more") {
  Store store(HybridLayout());
  store.Open();
  engine::StagingPool& staging = *store.cache().staging();
  // Large enough to lie on pages of its own; what looks after it comes with a put.
  REQUIRE(staging.TryAcquire(512 << 10, -1).ok());
  REQUIRE(staging.unsettled());
  store.StorePrompt(MakeTokens(61, 1));
  Await([&] { return !staging.unsettled(); });
}

TEST_CASE("two writers of one prompt, in turns, store each block once") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(48, 1);
  const auto a = store.Begin(), b = store.Begin();
  for (uint64_t at = 0; at < 48; at += 4) {
    REQUIRE(store.Step(*a, Prefix(tokens, at + 4), at, at + 4).ok());
    REQUIRE(store.Step(*b, Prefix(tokens, at + 4), at, at + 4).ok());
  }
  CommitInfo of_a, of_b;
  REQUIRE(a->Commit(false, false, 0, &of_a).ok());
  REQUIRE(b->Commit(false, false, 0, &of_b).ok());
  CHECK(of_a.progress.blocks_stored == 6);
  CHECK(of_b.progress.blocks_deduplicated == 6);
  store.CheckAccounts();
}

TEST_CASE("puts that are on their way count as there, and the chain waits for its parents") {
  Store store(HybridLayout(), kNoRuns);
  store.Open();
  store.faults().Stick();
  const Tokens tokens = MakeTokens(48, 1);
  const auto a = store.Begin(), b = store.Begin();
  REQUIRE(store.Step(*a, tokens, 0, 48).ok());
  REQUIRE(store.Step(*b, tokens, 0, 48).ok());
  CHECK(store.faults().withheld() == 6);
  CHECK(BlocksOf(store, tokens) == 0);
  CHECK(base::CodeOf(a->Commit(false, false, 1, nullptr)) == Code::kTimeout);
  // Completions come in random order; no block is entered before its parent.
  store.faults().CompleteAtRandom(true);
  store.faults().Release();
  CommitInfo info;
  REQUIRE(a->Commit(false, false, 60'000, &info).ok());
  CHECK(info.progress.blocks_stored == 6);
  REQUIRE(b->Commit(false, false, 0, &info).ok());
  CHECK(info.progress.blocks_deduplicated == 6);
  CHECK(BlocksOf(store, tokens) == 6);
  store.CheckAccounts();
}

TEST_CASE("a put that fails takes the chain behind it along, and the next block tries again") {
  for (const StorageCall call : {StorageCall::kPut, StorageCall::kSubmit}) {
    for (uint64_t nth = 1; nth <= 6; ++nth) {
      CAPTURE(static_cast<int>(call), nth);
      Store store(HybridLayout(), kNoRuns);
      store.Open();
      const Tokens tokens = MakeTokens(56, 1);
      store.faults().Stick();  // so that all are on their way when one fails
      store.faults().FailNth(call, nth, Code::kIo);
      const auto writer = store.Begin();
      REQUIRE(store.Step(*writer, Prefix(tokens, 48), 0, 48).ok());
      store.faults().Release();
      CommitInfo info;
      REQUIRE(writer->Commit(false, false, 60'000, &info).ok());
      CHECK(info.progress.blocks_stored == nth - 1);
      CHECK(info.progress.blocks_stored + info.progress.blocks_dropped <= 6);
      CHECK(BlocksOf(store, tokens) == nth - 1);
      store.CheckAccounts();
      REQUIRE(store.Step(*writer, tokens, 48, 56).ok());
      REQUIRE(writer->Commit(false, false, 60'000, &info).ok());
      CHECK(BlocksOf(store, tokens) == 7);
      CHECK(info.progress.pending == 0);
      store.CheckAccounts();
    }
  }
}

TEST_CASE("a fork goes its own way from where it left") {
  Store store(HybridLayout());
  store.Open();
  const Tokens common = MakeTokens(20, 1);
  const Tokens left = Join(common, MakeTokens(21, 2)), right = Join(common, MakeTokens(21, 3));
  const auto writer = store.Begin();
  REQUIRE(store.Step(*writer, common, 0, 20).ok());
  const auto fork = writer->Fork().value();
  REQUIRE(store.Step(*writer, left, 20, 41).ok());
  REQUIRE(writer->Snapshot().ok());
  REQUIRE(store.Step(*fork, right, 20, 41).ok());
  REQUIRE(fork->Snapshot().ok());
  CommitInfo info;
  REQUIRE(fork->Commit(false, false, 0, &info).ok());
  CHECK(info.progress.blocks_stored == 3);  // 16 to 40; what is before is the writer's
  CHECK(info.sequence_tokens == 41);
  REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
  CHECK(store.RestoredTokens(Join(left, {1})) == 41);
  CHECK(store.RestoredTokens(Join(right, {1})) == 41);
  CHECK(store.Lookup(Join(common, {9, 9, 9, 9, 9, 9}))->state()->matched_blocks == 2);
  store.CheckAccounts();
}

TEST_CASE("tokens taken back are never stored under the wrong prefix") {
  const uint64_t seed = TestSeed("truncate", 20260320);
  Rng rng(seed);
  Store store(HybridLayout());
  store.Open();
  for (int round = 0; round < 20; ++round) {
    const auto writer = store.Begin();
    Tokens tokens;
    for (int step = 0; step < 30; ++step) {
      const uint64_t before = tokens.size();
      tokens = Join(tokens, MakeTokens(rng.Between(1, 9), rng.Next()));
      REQUIRE(store.Step(*writer, tokens, before, tokens.size()).ok());
      if (rng.Chance(40)) {
        tokens.resize(rng.Between(before, tokens.size()));
        REQUIRE(writer->Truncate(tokens.size()).ok());
      }
    }
    CHECK(base::CodeOf(writer->Truncate(tokens.size() + 1)) == Code::kInvalidArgument);
    CommitInfo info;
    REQUIRE(writer->Commit(false, false, 0, &info).ok());
    CHECK(info.sequence_tokens == tokens.size());
    tokens.push_back(1);
    // The whole chain of what remained; every byte is compared.
    const uint64_t end = (tokens.size() - 1) / 8 * 8;
    CHECK(store.RestoredTokens(tokens, ModeBit(Mode::kFullReplay)) == (end > 10 ? end : 0));
  }
  store.CheckAccounts();
}

TEST_CASE("advance refuses lengths that cannot be, and changes nothing then") {
  Store store(RowsLayout());
  store.Open();
  const auto writer = store.Begin();
  const Tokens tokens = MakeTokens(10, 1);
  CHECK(base::FieldOf(store.Step(*writer, tokens, 0, 11)) == "computed_length");
  REQUIRE(store.Step(*writer, tokens, 0, 9).ok());
  CHECK(base::FieldOf(writer->Advance({}, {}, 8)) == "computed_length");
  CHECK(base::FieldOf(writer->Advance(MakeTokens(1, 2), {{3, 0, ""}}, 9)) == "tokens.extra_keys[0]");
  CHECK(base::FieldOf(writer->Advance({}, {}, UINT64_MAX)) == "computed_length");
  CommitInfo info;
  REQUIRE(writer->Commit(false, false, 0, &info).ok());
  CHECK(info.sequence_tokens == 10);
  CHECK(info.computed_tokens == 9);
  CHECK(base::CodeOf(writer->Commit(/*durable=*/true, false, 0, nullptr)) == Code::kUnsupported);
}

TEST_CASE("a writer that goes on from a match stores only what is new") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(40, 1), longer = Join(tokens, MakeTokens(30, 2));
  store.StorePrompt(tokens);
  const auto match = store.Lookup(longer);
  REQUIRE(match->plan().usable_tokens == 32);
  const auto writer = store.Begin(match.get());
  REQUIRE(store.Step(*writer, longer, 32, 70).ok());
  CommitInfo info;
  REQUIRE(writer->Commit(false, false, 0, &info).ok());
  CHECK(info.progress.blocks_stored == 3);
  CHECK(info.sequence_tokens == 70);
  CHECK(BlocksOf(store, longer) == 8);
  WriterOptions options;
  options.start_tokens = 71;
  for (const Match* from : {static_cast<const Match*>(match.get()), static_cast<const Match*>(nullptr)}) {
    const auto refused = Writer::Open(store.cache_handle(), store.space(), store.policy, from, nullptr, options);
    CHECK(base::FieldOf(refused.status()) == "options.start_tokens");
  }
}

TEST_CASE("rows of a hit that was evicted meanwhile are stored again, and only while the sources still hold them") {
  for (const bool ring : {false, true}) {
    CAPTURE(ring);
    Store store(RowsLayout());
    store.Open();
    const Tokens tokens = MakeTokens(40, 1);
    std::vector<std::byte> memory[2];
    const auto writer = store.Begin();
    uint64_t at = 0;
    const auto advance = [&](uint64_t to) {
      // A ring of 12 rows, as an engine with a sliding window might have, or all rows.
      const uint64_t capacity = ring ? 12 : 40;
      for (uint32_t stream = 0; stream < 2; ++stream) {
        memory[stream].assign(capacity * 6, std::byte{0});
        for (uint64_t row = to < capacity ? 0 : to - capacity; row < to; ++row) {
          const auto bytes = ExpectedRow(store.layout(), stream, tokens, row, to);
          std::ranges::copy(bytes, memory[stream].begin() + static_cast<std::ptrdiff_t>(row % capacity * 6));
        }
        engine::BufferDesc desc = LinearBuffer(stream, memory[stream]);
        if (ring) {
          desc.form = engine::BufferForm::kRing;
          desc.capacity_rows = capacity;
        }
        REQUIRE(writer->SetSource(desc).ok());
      }
      REQUIRE(writer->Advance(std::span(tokens).subspan(at, to - at), {}, to).ok());
      at = to;
    };
    for (uint64_t to = 4; to <= 24; to += 4) advance(to);
    REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
    REQUIRE(BlocksOf(store, tokens) == 6);
    REQUIRE(store.cache().Trim(store.stats().held_bytes - 6 * kRowsBlock).ok());
    REQUIRE(BlocksOf(store, tokens) == 0);
    for (uint64_t to = 28; to <= 40; to += 4) advance(to);
    REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
    // The ring has overwritten the first blocks' rows: nothing may be stored under their keys.
    CHECK(BlocksOf(store, tokens) == (ring ? 0 : 10));
    CHECK(store.RestoredTokens(Join(tokens, {1})) == (ring ? 0 : 40));
    store.CheckAccounts();
  }
}

TEST_CASE("a reader's writer admits nothing") {
  Store store(HybridLayout());
  store.Open();
  StoreOptions options;
  options.writer.no_admit = true;
  options.output_end = true;
  const CommitInfo info = store.StorePrompt(MakeTokens(60, 1), options);
  CHECK(info.sequence_tokens == 60);
  CHECK(info.progress.blocks_stored + info.progress.snapshots_stored + info.progress.blocks_dropped == 0);
  CHECK(store.stats().held_blocks == 0);
  options.writer.no_admit = false;
  options.writer.no_snapshots = true;
  CHECK(store.StorePrompt(MakeTokens(60, 1), options).progress.snapshots_stored == 0);
  CHECK(store.stats().held_blocks == 7);
  store.CheckAccounts();
}

// ---- Snapshots by policy --------------------------------------------------------------------------------------------

TEST_CASE("snapshots are wanted at the prompt's end and where stored chains part") {
  Store store(HybridLayout());
  store.Open();
  const Tokens common = MakeTokens(24, 1);
  const Tokens first = Join(common, MakeTokens(40, 2)), second = Join(common, MakeTokens(40, 3));
  const auto positions = [&](const Tokens& tokens, uint32_t multiple = 0) {
    WriterOptions options;
    options.restart_multiple = multiple;
    return store.Begin(nullptr, options)->SnapshotPositions(PromptOf(tokens)).value();
  };
  CHECK(positions(first) == std::vector<uint64_t>{56});
  store.StorePrompt(first);
  CHECK(positions(first).empty());  // there already
  CHECK(positions(second) == std::vector<uint64_t>{24, 56});
  CHECK(positions(second, 16) == std::vector<uint64_t>{16, 48});
  CHECK(positions(Prefix(common, 5)) == std::vector<uint64_t>{4});
  store.StorePrompt(second);
  CHECK(store.RestoredTokens(Join(common, MakeTokens(20, 4)), ModeBit(Mode::kSnapshot)) == 24);
  CHECK(store.RestoredTokens(second, ModeBit(Mode::kSnapshot)) == 56);
  store.CheckAccounts();
}

TEST_CASE("periodic snapshots, while prefilling and while decoding") {
  Store store(HybridLayout(), 1 << 20, plan::SnapshotPolicy::Periodic(16));
  store.Open();
  const Tokens tokens = MakeTokens(81, 1);
  const auto writer = store.Begin();
  CHECK(writer->SnapshotPositions(PromptOf(Prefix(tokens, 40))).value() == std::vector<uint64_t>{16, 32});
  for (const uint64_t to : {16u, 32u, 40u}) {
    const uint64_t from = to == 16 ? 0 : to == 32 ? 16 : 32;
    REQUIRE(store.Step(*writer, Prefix(tokens, to), from, to).ok());
  }
  for (uint64_t to = 41; to <= 81; ++to) REQUIRE(store.Step(*writer, Prefix(tokens, to), to - 1, to).ok());
  REQUIRE(writer->Commit(false, true, 0, nullptr).ok());
  std::set<uint64_t> at;
  const auto match = store.Lookup(Join(tokens, {1}));
  for (const auto& snapshot : match->state()->snapshots) at.insert(snapshot.position);
  CHECK(at == std::set<uint64_t>{16, 32, 48, 64, 80});
}

TEST_CASE("the newest state on the restart grid is held while decoding, and stored at the output's end") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 1);
  WriterOptions options;
  options.restart_multiple = 16;
  const auto writer = store.Begin(nullptr, options);
  REQUIRE(writer->SnapshotPositions(PromptOf(Prefix(tokens, 20))).value() == std::vector<uint64_t>{16});
  REQUIRE(store.Step(*writer, Prefix(tokens, 16), 0, 16).ok());
  REQUIRE(store.Step(*writer, Prefix(tokens, 20), 16, 20).ok());
  for (uint64_t to = 21; to <= 45; ++to) REQUIRE(store.Step(*writer, Prefix(tokens, to), to - 1, to).ok());
  CHECK(store.stats().held_snapshots == 1);
  CHECK(store.stats().staging_bytes > 0);                          // the state at 32
  CHECK(base::CodeOf(writer->Snapshot()) == Code::kInvalidState);  // 45 is off the grid
  REQUIRE(writer->Commit(false, /*output_end=*/true, 0, nullptr).ok());
  CHECK(store.stats().held_snapshots == 2);
  const auto match = store.Lookup(Join(tokens, {1}), {.restart_multiple = 16});
  CHECK(match->plan().usable_tokens == 32);
  CHECK(store.Restore(*match, tokens).result.state == RestoreState::kComplete);
  store.CheckAccounts(/*idle=*/false);
}

TEST_CASE("a held state is given up when its tokens are taken back or its writer goes") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(40, 1);
  WriterOptions options;
  options.restart_multiple = 16;
  auto writer = store.Begin(nullptr, options);
  for (uint64_t to = 1; to <= 32; ++to) REQUIRE(store.Step(*writer, Prefix(tokens, to), to - 1, to).ok());
  CHECK(store.stats().staging_bytes > 0);
  REQUIRE(writer->Truncate(31).ok());
  CHECK(store.stats().staging_bytes == 0);
  REQUIRE(writer->Commit(false, true, 0, nullptr).ok());
  CHECK(store.stats().held_snapshots == 0);
  REQUIRE(store.Step(*writer, Prefix(tokens, 32), 31, 32).ok());
  CHECK(store.stats().staging_bytes > 0);
  writer.reset();
  CHECK(store.stats().staging_bytes == 0);
  store.CheckAccounts();
}

TEST_CASE("a held state that another writer has stored meanwhile does no harm") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(40, 1);
  WriterOptions options;
  options.restart_multiple = 16;
  const auto holder = store.Begin(nullptr, options);
  for (uint64_t to = 1; to <= 35; ++to) REQUIRE(store.Step(*holder, Prefix(tokens, to), to - 1, to).ok());
  const auto other = store.Begin();
  REQUIRE(store.Step(*other, Prefix(tokens, 32), 0, 32).ok());
  REQUIRE(other->Snapshot().ok());
  REQUIRE(other->Commit(false, false, 0, nullptr).ok());
  REQUIRE(holder->Commit(false, true, 0, nullptr).ok());
  CHECK(store.stats().held_snapshots == 1);
  CHECK(store.RestoredTokens(tokens, ModeBit(Mode::kSnapshot)) == 32);
  CHECK(store.stats().restores_shortened == 0);
  store.CheckAccounts();
}

TEST_CASE("after a full replay the state at the start is worth a snapshot") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(41, 1);
  StoreOptions without;
  without.writer.no_snapshots = true;
  store.StorePrompt(tokens, without);
  const auto match = store.Lookup(tokens, {.allowed_modes = kAllModes});
  REQUIRE(match->plan().mode == Mode::kFullReplay);
  REQUIRE(match->plan().usable_tokens == 40);
  const auto writer = store.Begin(match.get());
  REQUIRE(writer->SnapshotPositions(PromptOf(tokens)).value() == std::vector<uint64_t>{40});
  REQUIRE(store.Step(*writer, Prefix(tokens, 40), 40, 40).ok());  // no token
  REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
  CHECK(store.RestoredTokens(tokens, ModeBit(Mode::kSnapshot)) == 40);
}
