// SPDX-License-Identifier: Apache-2.0
// Writers that go on after a bounded replay, however they begin: what follows from it is declared not exact, and is
// stored only for those who accept that.
#include <memory>
#include <vector>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace plan = kvstrata::core::plan;
using base::Code;

namespace {

constexpr uint32_t kModes = ModeBit(Mode::kSnapshot) | ModeBit(Mode::kBoundedReplay);

// Ways to come to a writer at 40 tokens after a bounded replay.
enum class Way {
  kMatch,                // the match promises it
  kMatchAndLength,       // and its length is given
  kPlan,                 // a restore has done it
  kShortenedPlan,        // the match promised a snapshot, whose read failed
  kMatchAfterShortened,  // as before, but the writer is given the match and a length
};
constexpr Way kWays[] = {Way::kMatch, Way::kMatchAndLength, Way::kPlan, Way::kShortenedPlan, Way::kMatchAfterShortened};

// A store that holds the first 40 of `tokens`, with a snapshot there if a shortening needs one.
struct Scene {
  Scene(Way way_in, uint64_t tokens)
      : store(HybridLayout(/*bounded_replay=*/true), 1 << 20, plan::SnapshotPolicy::Zero()) {
    way = way_in;
    store.Open();
    prompt = MakeTokens(tokens, 1);
    const bool shortened = way == Way::kShortenedPlan || way == Way::kMatchAfterShortened;
    StoreWithSnapshots(store, Prefix(prompt, 40), shortened ? std::vector<uint64_t>{40} : std::vector<uint64_t>{});
    match = store.Lookup(prompt, {.allowed_modes = kModes});
    REQUIRE(match->plan().mode == (shortened ? Mode::kSnapshot : Mode::kBoundedReplay));
    REQUIRE(match->plan().usable_tokens == 40);
    if (way == Way::kMatch || way == Way::kMatchAndLength) return;
    restore = RestorePlan::Create(*match, {}).value();
    if (shortened) store.faults().FailNth(StorageCall::kGet, 1, Code::kIo);
    std::vector<engine::BufferDesc> descs;
    for (uint32_t i = 0; i < 6; ++i) descs.push_back(LinearBuffer(i, memory[i]));
    REQUIRE(restore->Start(std::move(descs)).ok());
    RestoreResult result;
    REQUIRE(restore->Wait(60'000, &result).ok());
    REQUIRE(result.state == (shortened ? RestoreState::kShortened : RestoreState::kComplete));
    REQUIRE(result.plan.mode == Mode::kBoundedReplay);
    REQUIRE(result.plan.usable_tokens == 40);
    store.faults().FailNothing();
  }

  std::unique_ptr<Writer> Begin(bool admit_inexact) {
    WriterOptions options;
    options.admit_inexact = admit_inexact;
    if (way == Way::kMatchAndLength || way == Way::kMatchAfterShortened) options.start_tokens = 40;
    const bool by_plan = way == Way::kPlan || way == Way::kShortenedPlan;
    auto writer = Writer::Open(store.cache_handle(), store.space(), store.policy, by_plan ? nullptr : match.get(),
                               by_plan ? restore.get() : nullptr, options);
    REQUIRE(writer.ok());
    return *std::move(writer);
  }
  // Lets go of both handles, as kvstrata_plan_destroy and kvstrata_match_destroy do: the lease ends with them, though a
  // worker may still hold the plan.
  void End() {
    if (restore != nullptr) restore->Release();
    restore = nullptr;
    match = nullptr;
  }
  uint64_t StoredTokens(const Tokens& tokens) {
    return store.Lookup(Join(tokens, {1}), {.peek = true, .allowed_modes = kAllModes})->state()->matched_blocks * 8;
  }

  Way way;
  Store store;
  Tokens prompt;
  std::unique_ptr<Match> match;
  std::shared_ptr<RestorePlan> restore;
  std::vector<std::vector<std::byte>> memory = std::vector<std::vector<std::byte>>(6, std::vector<std::byte>(4096));
};

CommitInfo Commit(Writer& writer) {
  CommitInfo info;
  REQUIRE(writer.Commit(false, /*output_end=*/true, 60'000, &info).ok());
  return info;
}

}  // namespace

TEST_CASE("what follows from a bounded replay is dropped and counted, or stored where that is accepted") {
  for (const Way way : kWays) {
    for (const bool admit : {false, true}) {
      CAPTURE(static_cast<int>(way), admit);
      Scene scene(way, 71);
      const uint64_t snapshots = scene.store.stats().held_snapshots;
      const auto writer = scene.Begin(admit);
      REQUIRE(scene.store.Step(*writer, Prefix(scene.prompt, 60), 40, 60).ok());
      REQUIRE(writer->Snapshot().ok());
      REQUIRE(scene.store.Step(*writer, scene.prompt, 60, 71).ok());
      const auto fork = writer->Fork().value();
      REQUIRE(scene.store.Step(*fork, Join(scene.prompt, MakeTokens(9, 7)), 71, 80).ok());
      const CommitInfo info = Commit(*writer), forked = Commit(*fork);
      const Stats stats = scene.store.stats();
      if (admit) {
        CHECK(info.progress.blocks_stored == 3);  // 40 .. 48, 56, 64; the fork brings two more
        CHECK(forked.progress.blocks_stored == 2);
        CHECK(info.progress.blocks_dropped + info.progress.snapshots_dropped == 0);
        CHECK(stats.inexact_dropped == 0);
        CHECK(stats.held_snapshots == snapshots + 1);
        CHECK(scene.StoredTokens(scene.prompt) == 64);
      } else {
        CHECK(info.progress.blocks_stored + info.progress.snapshots_stored == 0);
        CHECK(forked.progress.blocks_stored + forked.progress.snapshots_stored == 0);
        // One try each time that blocks were complete, and the snapshot that was asked for.
        CHECK(info.progress.blocks_dropped == 2);
        CHECK(info.progress.snapshots_dropped == 1);
        CHECK(info.progress.drop_reason == Code::kUnsupported);
        CHECK(stats.inexact_dropped == 4);
        CHECK(stats.blocks_dropped + stats.snapshots_dropped == 4);
        CHECK(stats.held_snapshots == snapshots);
        CHECK(scene.StoredTokens(scene.prompt) == 40);
      }
      scene.End();
      scene.store.CheckAccounts();
    }
  }
}

TEST_CASE("no snapshots are wanted where none would be stored") {
  for (const bool admit : {false, true}) {
    Scene scene(Way::kPlan, 71);
    scene.store.policy = plan::SnapshotPolicy::Ends();
    const auto writer = scene.Begin(admit);
    engine::Prompt whole;
    REQUIRE(whole.Append(scene.prompt, {}).ok());
    CHECK(writer->SnapshotPositions(whole).value().empty() == !admit);
  }
}

TEST_CASE("rows that were restored are exact, and stored again where they were evicted meanwhile") {
  for (const Way way : kWays) {
    CAPTURE(static_cast<int>(way));
    Scene scene(way, 71);
    const auto writer = scene.Begin(false);
    scene.End();
    REQUIRE(scene.store.cache().Trim(0).ok());
    REQUIRE(scene.StoredTokens(scene.prompt) == 0);
    REQUIRE(scene.store.Step(*writer, scene.prompt, 40, 71).ok());
    const CommitInfo info = Commit(*writer);
    CHECK(info.progress.blocks_stored == 5);
    CHECK(info.progress.blocks_dropped == 1);
    CHECK(scene.StoredTokens(scene.prompt) == 40);
    scene.store.CheckAccounts();
  }
}

TEST_CASE("tokens taken back take their exactness along, and a sequence that begins anew is exact") {
  for (const uint64_t length : {0u, 8u, 20u, 39u, 40u, 60u}) {
    CAPTURE(length);
    Scene scene(Way::kPlan, 71);
    const auto writer = scene.Begin(false);
    REQUIRE(scene.store.Step(*writer, scene.prompt, 40, 71).ok());
    REQUIRE(writer->Truncate(length).ok());
    const Tokens other = Join(Prefix(scene.prompt, length), MakeTokens(30, 9));
    REQUIRE(scene.store.Step(*writer, other, length, other.size()).ok());
    REQUIRE(writer->Snapshot().ok());
    const CommitInfo info = Commit(*writer);
    CHECK(scene.StoredTokens(other) == (length == 0 ? 24 : length / 8 * 8 < 40 ? length / 8 * 8 : 40));
    CHECK(info.progress.snapshots_stored == (length == 0 ? 1 : 0));
  }
}
