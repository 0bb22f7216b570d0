// SPDX-License-Identifier: Apache-2.0
// The snapshot policy against its definition, the reference's byte table, and the prompts it exists for.
#include "lib/plan/snapshot_policy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"

namespace plan = kvstrata::core::plan;

namespace {

constexpr uint64_t kPackedRow = 584;  // bytes of one packed window row
constexpr uint64_t kWindow = 128;     // rows of a window snapshot

plan::LayoutFacts V4() { return {.block_tokens = 128, .has_rows = true, .has_state = true}; }
plan::LayoutFacts Opaque() { return {.block_tokens = 128, .has_rows = false, .has_state = true}; }

using Positions = std::vector<uint64_t>;

Positions Ask(const plan::SnapshotPolicy& policy, const plan::LayoutFacts& layout, uint64_t prompt, uint32_t r = 1) {
  return plan::SnapshotPositions(policy, layout, {.prompt_tokens = prompt, .restart_multiple = r});
}

}  // namespace

TEST_CASE("the prompt's end is the last grid position that the same prompt can use") {
  const plan::SnapshotPolicy policy{.at_prompt_end = true};
  CHECK(Ask(policy, V4(), 1000) == Positions{896});
  // At 1,024 tokens the cap at n-1 makes the last complete block unusable for the same prompt.
  CHECK(Ask(policy, V4(), 1024) == Positions{896});
  CHECK(Ask(policy, V4(), 1025) == Positions{1024});
  // Below one block: inside the first block, with its open rows.
  CHECK(Ask(policy, V4(), 100) == Positions{99});
  CHECK(Ask(policy, V4(), 128) == Positions{127});
  CHECK(Ask(policy, V4(), 2) == Positions{1});
  CHECK(Ask(policy, V4(), 1).empty());
  CHECK(Ask(policy, V4(), 0).empty());
}

TEST_CASE("nothing is wanted at or below the restart, nor where a snapshot exists") {
  const plan::SnapshotPolicy policy{.at_prompt_end = true};
  CHECK(plan::SnapshotPositions(policy, V4(), {.prompt_tokens = 1000, .from = 896}).empty());
  CHECK(plan::SnapshotPositions(policy, V4(), {.prompt_tokens = 1000, .from = 895}) == Positions{896});
  const Positions existing{896, 128};
  CHECK(plan::SnapshotPositions(policy, V4(), {.prompt_tokens = 1000, .existing = existing}).empty());
}

TEST_CASE("a restart multiple moves snapshots to the common grid") {
  const plan::SnapshotPolicy policy{.at_prompt_end = true};
  CHECK(Ask(policy, V4(), 5000, 2048) == Positions{4096});
  // lcm(128, 200) = 3,200; below it only the restart multiple holds.
  CHECK(Ask(policy, V4(), 5000, 200) == Positions{3200});
  CHECK(Ask(policy, V4(), 3000, 200) == Positions{2800});
  CHECK(Ask(policy, V4(), 1500, 2048).empty());
  // Without rows the block grid does not count.
  CHECK(Ask(policy, Opaque(), 5000) == Positions{4999});
  CHECK(Ask(policy, Opaque(), 5000, 200) == Positions{4800});
}

TEST_CASE("periodic positions are multiples of N rounded down to the grid") {
  CHECK(Ask(plan::SnapshotPolicy::Periodic(1000), V4(), 4001) == Positions{896, 1920, 2944, 3968});
  CHECK(plan::SnapshotPositions(plan::SnapshotPolicy::Periodic(1000), V4(), {.prompt_tokens = 4000, .from = 896}) ==
        Positions{1920, 2944});
  CHECK(Ask(plan::SnapshotPolicy::Full(V4()), V4(), 512) == Positions{128, 256, 384});
  // A period below the grid cannot give more than the grid.
  CHECK(Ask(plan::SnapshotPolicy::Periodic(1), V4(), 513) == Positions{128, 256, 384, 512});
  CHECK(Ask(plan::SnapshotPolicy::Zero(), V4(), 100000).empty());
}

TEST_CASE("positions of several causes are merged, and a layout without state wants none") {
  plan::SnapshotPolicy policy = plan::SnapshotPolicy::Ends();
  policy.every_tokens = 512;
  const Positions prefixes{700, 640, 128, 5000};
  CHECK(plan::SnapshotPositions(policy, V4(), {.prompt_tokens = 1500, .from = 128, .common_prefixes = prefixes}) ==
        Positions{512, 640, 1024, 1408});
  plan::LayoutFacts stateless = V4();
  stateless.has_state = false;
  CHECK(Ask(policy, stateless, 1500).empty());
}

TEST_CASE("a detected common prefix makes the third request hit") {
  // A + B is stored with a snapshot at its end only; A + C parts from it at 1,000 tokens.
  const Positions part{1000};
  const Positions wanted =
      plan::SnapshotPositions(plan::SnapshotPolicy::Ends(), V4(), {.prompt_tokens = 2000, .common_prefixes = part});
  REQUIRE(wanted == Positions{896, 1920});
  std::vector<plan::SnapshotCandidate> stored;
  for (const uint64_t position : wanted) stored.push_back({.position = position, .bytes = 1});
  // A + D shares A's blocks and so can reach the first snapshot only.
  const plan::Plan third = plan::MakePlan(
      V4(), {.prompt_tokens = 3000, .matched_tokens = 896, .match_end = plan::Reason::kDiverged, .snapshots = stored});
  CHECK(third.mode == plan::Mode::kSnapshot);
  CHECK(third.usable_tokens == 896);
  CHECK(third.reason == plan::Reason::kDiverged);
}

TEST_CASE("an answer is bounded and keeps the last positions, without walking the whole prompt") {
  const uint64_t prompt = uint64_t{1} << 40;
  const Positions positions = Ask(plan::SnapshotPolicy::Periodic(1), V4(), prompt + 1);
  REQUIRE(positions.size() == plan::kMaxSnapshotPositions);
  CHECK(positions.back() == prompt);
  CHECK(positions.front() == prompt - 128 * (plan::kMaxSnapshotPositions - 1));
}

namespace {

// The policy's definition, one position at a time.
struct Definition {
  plan::LayoutFacts layout;
  uint64_t r;

  bool OnGrid(uint64_t p) const { return p % r == 0 && (!layout.has_rows || p % layout.block_tokens == 0); }
  uint64_t Rounded(uint64_t p) const {
    while (p > 0 && !OnGrid(p)) --p;
    return p;
  }
  uint64_t PromptEnd(uint64_t n) const {
    const uint64_t on_grid = n == 0 ? 0 : Rounded(n - 1);
    if (on_grid > 0) return on_grid;
    uint64_t last = 0;
    for (uint64_t p = 1; p < n; ++p) {
      if (p % r == 0) last = p;
    }
    return last;
  }
  Positions Wanted(const plan::SnapshotPolicy& policy, const plan::SnapshotQuery& query) const {
    std::set<uint64_t> all;
    if (policy.every_tokens > 0) {
      for (uint64_t p = policy.every_tokens; p < query.prompt_tokens; p += policy.every_tokens) all.insert(Rounded(p));
    }
    if (policy.at_common_prefix) {
      for (const uint64_t p : query.common_prefixes) all.insert(Rounded(p));
    }
    if (policy.at_prompt_end) all.insert(PromptEnd(query.prompt_tokens));
    Positions list;
    for (const uint64_t p : all) {
      const bool exists = std::count(query.existing.begin(), query.existing.end(), p) != 0;
      if (p > query.from && p < query.prompt_tokens && !exists) list.push_back(p);
    }
    return list;
  }
};

}  // namespace

TEST_CASE("random policies agree with their definition") {
  const uint32_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto up_to = [&](uint64_t limit) { return random() % (limit + 1); };
  for (int round = 0; round < 3000; ++round) {
    plan::LayoutFacts layout = up_to(3) == 0 ? Opaque() : V4();
    layout.block_tokens = static_cast<uint32_t>(1 + up_to(16));
    const uint32_t r = static_cast<uint32_t>(1 + up_to(12));
    const plan::SnapshotPolicy policy{
        .at_prompt_end = up_to(1) == 1, .at_common_prefix = up_to(1) == 1, .every_tokens = up_to(40)};
    Positions prefixes;
    Positions existing;
    for (uint64_t i = up_to(3); i > 0; --i) prefixes.push_back(up_to(400));
    for (uint64_t i = up_to(9); i > 0; --i) existing.push_back(up_to(300));
    const plan::SnapshotQuery query{.prompt_tokens = up_to(300),
                                    .from = up_to(1) * up_to(200),
                                    .restart_multiple = r,
                                    .common_prefixes = prefixes,
                                    .existing = existing};
    const Definition definition{layout, r};
    CAPTURE(round, query.prompt_tokens, query.from, r, layout.block_tokens, layout.has_rows, policy.every_tokens);
    REQUIRE(plan::SnapshotPositions(policy, layout, query) == definition.Wanted(policy, query));

    // A decoding sequence, which comes by each position, finds the same periodic ones.
    if (policy.every_tokens == 0) continue;
    const uint64_t position = 1 + up_to(300);
    bool named = false;
    for (uint64_t m = policy.every_tokens; m <= position + 500; m += policy.every_tokens) {
      named = named || definition.Rounded(m) == position;
    }
    CAPTURE(position);
    REQUIRE(plan::IsDecodeSnapshotPosition(plan::SnapshotPolicy::Periodic(policy.every_tokens), layout, r, position) ==
            named);
  }
}

TEST_CASE("the output's end wants each grid position in turn while decoding") {
  const plan::SnapshotPolicy policy = plan::SnapshotPolicy::Ends();
  CHECK(plan::IsDecodeSnapshotPosition(policy, V4(), 0, 1024));
  CHECK_FALSE(plan::IsDecodeSnapshotPosition(policy, V4(), 0, 1000));
  CHECK_FALSE(plan::IsDecodeSnapshotPosition(policy, V4(), 0, 0));
  CHECK_FALSE(plan::IsDecodeSnapshotPosition(policy, V4(), 2048, 1024));
  CHECK(plan::IsDecodeSnapshotPosition(policy, V4(), 2048, 4096));
  CHECK(plan::IsDecodeSnapshotPosition(policy, Opaque(), 0, 1001));
  CHECK_FALSE(plan::IsDecodeSnapshotPosition(plan::SnapshotPolicy::Zero(), V4(), 0, 1024));
}

TEST_CASE("stored bytes per token are those of the report's strategies") {
  // Reference 8.1: V4-Flash (43 layers) and V4-Pro (61 layers), packed rows.
  struct Row {
    uint64_t period;
    double flash;
    double pro;
  };
  const Row rows[] = {{1024, 3139, 4453}, {4096, 785, 1113}, {8192, 392, 557}, {32768, 98, 139}};
  const auto rounded = [](uint64_t layers, const plan::SnapshotPolicy& policy) {
    return std::round(plan::PeriodicBytesPerToken(policy, V4(), 1, kWindow * layers * kPackedRow));
  };
  for (const Row& row : rows) {
    CAPTURE(row.period);
    CHECK(rounded(43, plan::SnapshotPolicy::Periodic(row.period)) == row.flash);
    CHECK(rounded(61, plan::SnapshotPolicy::Periodic(row.period)) == row.pro);
  }
  CHECK(rounded(43, plan::SnapshotPolicy::Full(V4())) == 25112);
  CHECK(rounded(61, plan::SnapshotPolicy::Full(V4())) == 35624);
  CHECK(rounded(43, plan::SnapshotPolicy::Zero()) == 0);
}

TEST_CASE("stored bytes per token are what the positions of a long prompt weigh") {
  constexpr uint64_t kSnapshotBytes = 1000;
  constexpr uint64_t kPrompt = 128 * 2000;
  for (const uint64_t every : Positions{100, 128, 1000, 1024}) {
    for (const uint32_t r : {1u, 256u}) {
      const plan::SnapshotPolicy policy = plan::SnapshotPolicy::Periodic(every);
      const double count = static_cast<double>(Ask(policy, V4(), kPrompt, r).size());
      const double measured = count * kSnapshotBytes / kPrompt;
      const double told = plan::PeriodicBytesPerToken(policy, V4(), r, kSnapshotBytes);
      CAPTURE(every, r, measured, told);
      CHECK(std::abs(measured - told) <= 0.01 * told);
    }
  }
}

TEST_CASE("new snapshots start where the restored state is exact") {
  plan::Plan restored;
  CHECK(plan::SnapshotFloor(restored) == 0);
  restored.mode = plan::Mode::kSnapshot;
  restored.usable_tokens = 1024;
  restored.replay_from = 1024;
  CHECK(plan::SnapshotFloor(restored) == 1024);
  restored.mode = plan::Mode::kSnapshotReplay;
  restored.replay_from = 256;
  CHECK(plan::SnapshotFloor(restored) == 256);
  // A full replay is exact at its end, so a snapshot may be taken there and not before.
  restored.mode = plan::Mode::kFullReplay;
  CHECK(plan::SnapshotFloor(restored) == 1023);
  restored.mode = plan::Mode::kBoundedReplay;
  CHECK(plan::SnapshotFloor(restored) == 1024);
}
