// SPDX-License-Identifier: Apache-2.0
// The planner's rules on the real layouts' numbers: modes, replay lengths, grids, costs, and each reason.
#include "lib/plan/planner.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "tests/support/catch.hpp"

namespace plan = kvstrata::core::plan;
using plan::Mode;
using plan::Reason;

namespace {

// Reference sections 6.1, 6.2 and 8.1.
constexpr uint64_t kFlashReplay = 5461;
constexpr uint64_t kProReplay = 7747;
constexpr uint64_t kFlashBlockBytes = 449824;
constexpr uint64_t kFlashSnapshotBytes = 3644416;

plan::LayoutFacts Flash() {
  return {.block_tokens = 128,
          .has_rows = true,
          .has_state = true,
          .replay = plan::ReplayRule::kFull,
          .exact_replay_tokens = kFlashReplay,
          .block_bytes = kFlashBlockBytes};
}

// V4.1: 40 layers, window 128, so (128-1)*40 = 5,080 for an exact replay.
plan::LayoutFacts FlashV41() {
  return {.block_tokens = 128,
          .has_rows = true,
          .has_state = true,
          .replay = plan::ReplayRule::kBounded,
          .exact_replay_tokens = 5080,
          .bounded_replay_tokens = 128,
          .block_bytes = 890 * 128};
}

plan::LayoutFacts Gqa() { return {.block_tokens = 128, .has_rows = true, .has_state = false, .block_bytes = 1000}; }
plan::LayoutFacts Opaque() { return {.block_tokens = 128, .has_rows = false, .has_state = true}; }

using Snapshots = std::vector<plan::SnapshotCandidate>;

Snapshots At(const std::vector<uint64_t>& positions) {
  Snapshots list;
  for (const uint64_t position : positions) {
    list.push_back({.position = position, .bytes = kFlashSnapshotBytes, .id = static_cast<uint32_t>(list.size())});
  }
  return list;
}

constexpr uint32_t kAll = plan::ModeBit(Mode::kSnapshot) | plan::ModeBit(Mode::kSnapshotReplay) |
                          plan::ModeBit(Mode::kFullReplay) | plan::ModeBit(Mode::kBoundedReplay);
constexpr uint32_t kFullOnly = plan::ModeBit(Mode::kFullReplay);
constexpr uint32_t kBoundedOnly = plan::ModeBit(Mode::kBoundedReplay);

}  // namespace

TEST_CASE("a snapshot at the matched length: nothing but the tail runs") {
  const Snapshots snapshots = At({896});
  const plan::Plan got = MakePlan(Flash(), {.prompt_tokens = 1000, .matched_tokens = 896, .snapshots = snapshots});
  CHECK(got.mode == Mode::kSnapshot);
  CHECK(got.reason == Reason::kNone);
  CHECK(got.usable_tokens == 896);
  CHECK(got.replay_from == 896);
  CHECK(got.write_floor == 896);
  CHECK(got.snapshot->position == 896);
  CHECK(got.reused_tokens == 896);
  CHECK(got.replayed_tokens == 0);
  CHECK(got.recomputed_tokens == 104);
  CHECK(got.read_blocks_from == 0);
  CHECK(got.read_blocks_to == 7);
  CHECK(got.bytes_to_read == 7 * kFlashBlockBytes + kFlashSnapshotBytes);
}

TEST_CASE("rows beyond the newest snapshot: replay where allowed, else the snapshot's own position") {
  const Snapshots snapshots = At({256, 512});
  plan::Request request{.prompt_tokens = 1000, .matched_tokens = 896, .snapshots = snapshots};
  plan::Plan got = MakePlan(Flash(), request);
  CHECK(got.mode == Mode::kSnapshot);
  CHECK(got.usable_tokens == 512);
  CHECK(got.read_blocks_to == 4);
  CHECK(got.reason == Reason::kNoSnapshot);

  request.allowed_modes = kAll;
  got = MakePlan(Flash(), request);
  CHECK(got.mode == Mode::kSnapshotReplay);
  CHECK(got.usable_tokens == 896);
  CHECK(got.replay_from == 512);
  CHECK(got.write_floor == 896);
  CHECK(got.snapshot->id == 1);
  CHECK(got.replayed_tokens == 384);
  CHECK(got.read_blocks_to == 7);
}

TEST_CASE("zero stored state: the replay starts (W-1)*L before the matched length") {
  const auto replay_from = [](uint64_t exact, uint32_t block_tokens, uint64_t matched) {
    plan::LayoutFacts layout = Flash();
    layout.exact_replay_tokens = exact;
    layout.block_tokens = block_tokens;
    const plan::Plan got =
        MakePlan(layout, {.prompt_tokens = matched + 1, .matched_tokens = matched, .allowed_modes = kFullOnly});
    if (got.mode == Mode::kNone) {
      CHECK(got.reason == Reason::kReplayTooLong);
    } else {
      CHECK(got.mode == Mode::kFullReplay);
      CHECK(got.usable_tokens == matched);
      CHECK(got.write_floor == matched);
      CHECK_FALSE(got.snapshot.has_value());
    }
    return got.replay_from;
  };
  // To the token, on a grid of one: a replay that starts at 0 is a prefill, and no gain.
  for (const uint64_t exact : {kFlashReplay, kProReplay}) {
    CHECK(replay_from(exact, 1, exact - 1) == 0);
    CHECK(replay_from(exact, 1, exact) == 0);
    CHECK(replay_from(exact, 1, exact + 1) == 1);
    CHECK(replay_from(exact, 1, exact + 2) == 2);
  }
  // On V4's grid: 42 and 43 blocks for Flash, 60 and 61 for Pro.
  CHECK(replay_from(kFlashReplay, 128, 5376) == 0);
  CHECK(replay_from(kFlashReplay, 128, 5504) == 43);
  CHECK(replay_from(kProReplay, 128, 7680) == 0);
  CHECK(replay_from(kProReplay, 128, 7808) == 61);
}

TEST_CASE("losing all snapshots costs a replay, not the reuse") {
  const plan::Plan got = MakePlan(Flash(), {.prompt_tokens = 100000, .matched_tokens = 99968, .allowed_modes = kAll});
  CHECK(got.mode == Mode::kFullReplay);
  CHECK(got.usable_tokens == 99968);
  CHECK(got.replayed_tokens == kFlashReplay);
}

TEST_CASE("the nearer of snapshot and full replay is taken") {
  for (const uint64_t snapshot : {9984 - kFlashReplay - 1, 9984 - kFlashReplay + 1}) {
    const Snapshots snapshots = At({snapshot});
    const plan::Plan got = MakePlan(
        Flash(), {.prompt_tokens = 10000, .matched_tokens = 9984, .snapshots = snapshots, .allowed_modes = kAll});
    CHECK(got.mode == (snapshot < 9984 - kFlashReplay ? Mode::kFullReplay : Mode::kSnapshotReplay));
  }
}

TEST_CASE("bounded replay: the last W tokens, only where trained for, and never instead of an exact way as cheap") {
  plan::Request request{.prompt_tokens = 1000, .matched_tokens = 896, .allowed_modes = kBoundedOnly};
  plan::Plan got = MakePlan(FlashV41(), request);
  CHECK(got.mode == Mode::kBoundedReplay);
  CHECK(got.usable_tokens == 896);
  CHECK(got.replay_from == 768);
  CHECK(MakePlan(Flash(), request).mode == Mode::kNone);
  CHECK(MakePlan(Flash(), request).reason == Reason::kModeNotAllowed);
  // The hit must be longer than the window.
  request.matched_tokens = 128;
  CHECK(MakePlan(FlashV41(), request).reason == Reason::kReplayTooLong);
  request.matched_tokens = 256;
  CHECK(MakePlan(FlashV41(), request).replay_from == 128);

  // The snapshot at 768 runs as many tokens as the bounded replay does: the exact way it is.
  request.matched_tokens = 896;
  request.allowed_modes = kAll;
  const Snapshots equal = At({768});
  request.snapshots = equal;
  CHECK(MakePlan(FlashV41(), request).mode == Mode::kSnapshotReplay);
  const Snapshots earlier = At({767});
  request.snapshots = earlier;
  CHECK(MakePlan(FlashV41(), request).mode == Mode::kBoundedReplay);
}

TEST_CASE("a layout without state needs no snapshot") {
  const plan::Plan got = MakePlan(Gqa(), {.prompt_tokens = 1000, .matched_tokens = 512});
  CHECK(got.mode == Mode::kSnapshot);
  CHECK(got.usable_tokens == 512);
  CHECK(got.replay_from == 512);
  CHECK_FALSE(got.snapshot.has_value());
  CHECK(got.bytes_to_read == 4000);
  CHECK(got.reason == Reason::kAbsent);
}

TEST_CASE("a layout without rows is usable up to its newest snapshot") {
  const Snapshots snapshots = At({300, 777, 100});
  const plan::Plan got = MakePlan(Opaque(), {.prompt_tokens = 1000, .matched_tokens = 768, .snapshots = snapshots});
  CHECK(got.mode == Mode::kSnapshot);
  CHECK(got.usable_tokens == 777);
  CHECK(got.bytes_to_read == kFlashSnapshotBytes);
  CHECK(got.read_blocks_to == 0);
  CHECK(got.reason == Reason::kNoSnapshot);
}

TEST_CASE("a snapshot at any position carries the open block, and needs the blocks before it") {
  const Snapshots snapshots = At({950});
  plan::Request request{.prompt_tokens = 1000, .matched_tokens = 896, .snapshots = snapshots};
  plan::Plan got = MakePlan(Flash(), request);
  CHECK(got.usable_tokens == 950);
  CHECK(got.read_blocks_to == 7);
  CHECK(got.write_floor == 950);
  request.matched_tokens = 768;
  got = MakePlan(Flash(), request);
  CHECK(got.mode == Mode::kNone);
  // Inside the first block it needs no stored block at all.
  const Snapshots first = At({99});
  got = MakePlan(Flash(), {.prompt_tokens = 100, .matched_tokens = 0, .snapshots = first});
  CHECK(got.usable_tokens == 99);
  CHECK(got.reason == Reason::kCapped);
  CHECK(got.bytes_to_read == kFlashSnapshotBytes);
}

TEST_CASE("at least one token is left to compute, and a limit agreed between ranks holds") {
  const Snapshots snapshots = At({896, 1024});
  plan::Request request{.prompt_tokens = 1024, .matched_tokens = 1024, .snapshots = snapshots};
  plan::Plan got = MakePlan(Flash(), request);
  CHECK(got.usable_tokens == 896);
  CHECK(got.reason == Reason::kCapped);
  request.prompt_tokens = 1025;
  got = MakePlan(Flash(), request);
  CHECK(got.usable_tokens == 1024);
  request.usable_limit = 1000;
  got = MakePlan(Flash(), request);
  CHECK(got.usable_tokens == 896);
  CHECK(got.reason == Reason::kCapped);
}

TEST_CASE("a restart grid of 2,048 tokens") {
  const Snapshots snapshots = At({4096, 5120});
  plan::Request request{
      .prompt_tokens = 10000, .matched_tokens = 9984, .snapshots = snapshots, .restart_multiple = 2048};
  plan::Plan got = MakePlan(Flash(), request);
  CHECK(got.mode == Mode::kSnapshot);
  CHECK(got.usable_tokens == 4096);
  request.allowed_modes = kFullOnly;
  got = MakePlan(Flash(), request);
  CHECK(got.mode == Mode::kFullReplay);
  CHECK(got.usable_tokens == 8192);
  // 8,192 - 5,461 = 2,731, rounded down: longer than needed, never shorter.
  CHECK(got.replay_from == 2048);
  CHECK(got.reason == Reason::kRestartGrid);
  // lcm(128, 200) = 3,200 for rows; a snapshot needs the 200 alone.
  const Snapshots odd = At({4800, 4900});
  request = {.prompt_tokens = 5000, .matched_tokens = 4992, .snapshots = odd, .restart_multiple = 200};
  got = MakePlan(Flash(), request);
  CHECK(got.usable_tokens == 4800);
  CHECK(MakePlan(Gqa(), request).usable_tokens == 3200);
}

TEST_CASE("repeated short prompts hit, whatever other group sizes are") {
  for (const uint64_t n : {512u, 1024u, 4095u}) {
    const uint64_t end = plan::RoundDown(n - 1, 128);
    const Snapshots snapshots = At({end});
    const plan::Plan got =
        MakePlan(Flash(), {.prompt_tokens = n, .matched_tokens = plan::RoundDown(n, 128), .snapshots = snapshots});
    CHECK(got.usable_tokens == end);
  }
}

TEST_CASE("what the caller holds counts as no gain and is not read") {
  const Snapshots snapshots = At({896});
  plan::Request request{.prompt_tokens = 1000, .matched_tokens = 896, .snapshots = snapshots, .held_tokens = 300};
  plan::Plan got = MakePlan(Flash(), request);
  CHECK(got.usable_tokens == 896);
  CHECK(got.read_blocks_from == 2);  // token 300 lies in block 2
  CHECK(got.read_blocks_to == 7);
  CHECK(got.bytes_to_read == 5 * kFlashBlockBytes + kFlashSnapshotBytes);

  request.held_tokens = 896;
  CHECK(MakePlan(Flash(), request).reason == Reason::kHeld);
  request.held_tokens = 5000;
  CHECK(MakePlan(Flash(), request).reason == Reason::kHeld);
  request.held_tokens = 800;
  request.min_gain_tokens = 96;
  CHECK(MakePlan(Flash(), request).mode == Mode::kSnapshot);
  request.min_gain_tokens = 97;
  CHECK(MakePlan(Flash(), request).reason == Reason::kMinGain);
}

TEST_CASE("the minimal gain counts tokens that need not run, not tokens matched") {
  plan::Request request{.prompt_tokens = 6000, .matched_tokens = 5888, .allowed_modes = kFullOnly};
  request.min_gain_tokens = 5888 - kFlashReplay;
  CHECK(MakePlan(Flash(), request).mode == Mode::kFullReplay);
  request.min_gain_tokens += 1;
  CHECK(MakePlan(Flash(), request).reason == Reason::kMinGain);
}

TEST_CASE("a restore that is slower than prefill is refused") {
  // 0.9 s of prefill against 40 s of reading at 20 MB/s.
  plan::LayoutFacts layout = Gqa();
  layout.block_bytes = 10'000'000;
  plan::Request request{.prompt_tokens = 10241, .matched_tokens = 10240};
  request.costs = {.prefill_tokens_per_second = 11379, .storage_bytes_per_second = 20e6};
  plan::Plan got = MakePlan(layout, request);
  CHECK(got.mode == Mode::kNone);
  CHECK(got.reason == Reason::kNotWorthIt);
  CHECK(got.usable_tokens == 0);
  CHECK(got.recomputed_tokens == 10241);

  request.costs.storage_bytes_per_second = 10e9;  // 80 ms
  got = MakePlan(layout, request);
  CHECK(got.mode == Mode::kSnapshot);
  CHECK(got.restore_seconds > 0.079);
  CHECK(got.restore_seconds < 0.081);
  // The latency of a restore counts: a second of it makes 0.9 s of prefill the better way.
  request.costs.fixed_seconds = 1;
  CHECK(MakePlan(layout, request).reason == Reason::kNotWorthIt);
  // A rate that is unknown refuses nothing.
  request.costs.prefill_tokens_per_second = 0;
  CHECK(MakePlan(layout, request).mode == Mode::kSnapshot);
}

TEST_CASE("known rates weigh bytes against tokens") {
  // The newer snapshot saves 128 tokens and weighs 3.6 MB more than the older one.
  const Snapshots snapshots{{.position = 768, .bytes = 1000, .id = 0},
                            {.position = 896, .bytes = kFlashSnapshotBytes, .id = 1}};
  plan::Request request{.prompt_tokens = 1000, .matched_tokens = 896, .snapshots = snapshots};
  request.costs = {.prefill_tokens_per_second = 1000, .storage_bytes_per_second = 1e9};
  CHECK(MakePlan(Flash(), request).usable_tokens == 896);
  request.costs = {.prefill_tokens_per_second = 1000, .storage_bytes_per_second = 20e6};
  const plan::Plan got = MakePlan(Flash(), request);
  CHECK(got.usable_tokens == 768);
  CHECK(got.reason == Reason::kNotWorthIt);
}

TEST_CASE("a miss says why") {
  const auto reason = [](const plan::LayoutFacts& layout, const plan::Request& request) {
    const plan::Plan got = MakePlan(layout, request);
    CHECK(got.mode == Mode::kNone);
    CHECK(got.usable_tokens == 0);
    return got.reason;
  };
  CHECK(reason(Flash(), {.prompt_tokens = 0}) == Reason::kCapped);
  CHECK(reason(Gqa(), {.prompt_tokens = 1}) == Reason::kCapped);
  CHECK(reason(Gqa(), {.prompt_tokens = 127}) == Reason::kShorterThanBlock);
  CHECK(reason(Gqa(), {.prompt_tokens = 128, .matched_tokens = 128}) == Reason::kCapped);
  CHECK(reason(Gqa(), {.prompt_tokens = 129}) == Reason::kAbsent);
  for (const Reason end : {Reason::kDiverged, Reason::kForeign, Reason::kCorrupt, Reason::kEvicted}) {
    CHECK(reason(Gqa(), {.prompt_tokens = 1000, .match_end = end}) == end);
    CHECK(reason(Flash(), {.prompt_tokens = 1000, .match_end = end, .allowed_modes = kAll}) == end);
    CHECK(reason(Opaque(), {.prompt_tokens = 1000, .match_end = end}) == end);
  }
  CHECK(reason(Gqa(), {.prompt_tokens = 1000, .match_end = Reason::kNone}) == Reason::kAbsent);
  // A record without state is no success with length 0.
  CHECK(reason(Flash(), {.prompt_tokens = 1000, .matched_tokens = 896}) == Reason::kNoSnapshot);
  CHECK(reason(Opaque(), {.prompt_tokens = 1000, .matched_tokens = 896}) == Reason::kNoSnapshot);
  CHECK(reason(Flash(), {.prompt_tokens = 1000, .matched_tokens = 896, .allowed_modes = kAll}) ==
        Reason::kReplayTooLong);
  CHECK(reason(Gqa(), {.prompt_tokens = 1000, .matched_tokens = 896, .allowed_modes = kFullOnly}) ==
        Reason::kModeNotAllowed);
  CHECK(reason(Gqa(), {.prompt_tokens = 1000, .matched_tokens = 896, .restart_multiple = 2048}) ==
        Reason::kRestartGrid);
  const Snapshots snapshots = At({896});
  CHECK(reason(Flash(), {.prompt_tokens = 1000,
                         .matched_tokens = 896,
                         .snapshots = snapshots,
                         .allowed_modes = plan::ModeBit(Mode::kSnapshotReplay)}) == Reason::kModeNotAllowed);
  CHECK(reason(Flash(),
               {.prompt_tokens = 1000, .matched_tokens = 896, .snapshots = snapshots, .restart_multiple = 512}) ==
        Reason::kRestartGrid);
}

TEST_CASE("numbers at the edge of 64 bits do not wrap") {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  plan::LayoutFacts layout = Flash();
  layout.block_bytes = kMax;
  const Snapshots snapshots{{.position = kMax - 127, .bytes = kMax}, {.position = kMax, .bytes = kMax}};
  plan::Request request{.prompt_tokens = kMax,
                        .matched_tokens = kMax,
                        .snapshots = snapshots,
                        .allowed_modes = kAll,
                        .restart_multiple = std::numeric_limits<uint32_t>::max()};
  plan::Plan got = MakePlan(layout, request);
  CHECK(got.usable_tokens < kMax);
  CHECK(got.bytes_to_read == kMax);
  CHECK(got.reused_tokens + got.replayed_tokens + got.recomputed_tokens == kMax);
  request.restart_multiple = 1;
  got = MakePlan(layout, request);
  CHECK(got.usable_tokens == kMax - 127);
  request.costs = {.prefill_tokens_per_second = 1e9, .storage_bytes_per_second = 1e4};
  CHECK(MakePlan(layout, request).reason == Reason::kNotWorthIt);
}

TEST_CASE("modes and reasons have names") {
  CHECK(plan::ModeName(Mode::kSnapshotReplay) == "snapshot_replay");
  CHECK(plan::ReasonName(Reason::kNotWorthIt) == "not_worth_it");
  CHECK(plan::ReasonName(static_cast<Reason>(999)) == "unknown");
}
