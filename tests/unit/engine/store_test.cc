// SPDX-License-Identifier: Apache-2.0
// Writers, budgets, eviction, leases and namespaces of one cache.
#include <algorithm>
#include <set>

#include "lib/base/status.h"
#include "lib/engine/prompt.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace layout = kvstrata::core::layout;
namespace plan = kvstrata::core::plan;
using base::Code;

namespace {

engine::Prompt PromptOf(const Tokens& tokens) {
  engine::Prompt prompt;
  REQUIRE(prompt.Append(tokens, {}).ok());
  return prompt;
}

// What one block of RowsLayout takes in the storage: head 136 + 4 * 4 tokens + 2 * 24 slices, 48 bytes of rows, meta
// 128, and the memory store's 256.
constexpr uint64_t kRowsBlock = 136 + 16 + 48 + 48 + 128 + 256;

uint64_t BlocksOf(Store& store, const Tokens& tokens) {
  LookupOptions peek;
  peek.peek = true;
  Tokens longer = tokens;
  longer.push_back(-1);
  return store.Lookup(longer, peek)->state()->matched_blocks;
}

// A cache that has room for `blocks` blocks of RowsLayout, its own records apart.
void OpenForBlocks(Store& store, uint64_t blocks) {
  store.Open();
  const uint64_t own = store.stats().held_bytes;
  store.Close();
  store.options.capacity_bytes = own + blocks * kRowsBlock;
  store.Open();
}

}  // namespace

// ---- Writers -------------------------------------------------------------------------------------------------------

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
  Store store(HybridLayout());
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
      Store store(HybridLayout());
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

// ---- Snapshots by policy -------------------------------------------------------------------------------------------

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

// ---- Budgets and eviction ------------------------------------------------------------------------------------------

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

TEST_CASE("a failed removal keeps its bytes in the account") {
  Store store(RowsLayout());
  store.Open();
  store.StorePrompt(MakeTokens(16, 1));
  store.faults().FailNth(StorageCall::kRemove, 1, Code::kIo, /*and_all_after=*/true);
  const uint64_t held = store.stats().held_bytes;
  REQUIRE(store.cache().Trim(held - kRowsBlock).ok());
  const Stats stats = store.stats();
  CHECK(stats.held_blocks == 0);
  CHECK(stats.held_bytes == held);  // nothing has left the storage
  CHECK(stats.held_bytes == store.memory().UsedBytes());
  store.CheckAccounts(/*idle=*/false);
}

// ---- Leases --------------------------------------------------------------------------------------------------------

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

// ---- Namespaces ----------------------------------------------------------------------------------------------------

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
  Store store(HybridLayout());
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
