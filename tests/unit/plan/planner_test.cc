// SPDX-License-Identifier: Apache-2.0
#include "lib/plan/planner.h"

#include "tests/support/catch.hpp"

namespace plan = kvstrata::core::plan;

TEST_CASE("modes and reasons have names") {
  CHECK(plan::ModeName(plan::Mode::kSnapshotReplay) == "snapshot_replay");
  CHECK(plan::ReasonName(plan::Reason::kNotWorthIt) == "not_worth_it");
}

TEST_CASE("a snapshot at the matched length is used as it is") {
  const plan::SnapshotCandidate snapshots[] = {{.position = 896, .bytes = 10, .id = 7}};
  const plan::LayoutFacts layout{.block_tokens = 128, .has_rows = true, .has_state = true, .block_bytes = 3};
  const plan::Plan got = plan::MakePlan(layout, {.prompt_tokens = 1000, .matched_tokens = 896, .snapshots = snapshots});
  CHECK(got.mode == plan::Mode::kSnapshot);
  CHECK(got.reason == plan::Reason::kNone);
  CHECK(got.usable_tokens == 896);
  CHECK(got.replay_from == 896);
  CHECK(got.snapshot->id == 7);
  CHECK(got.bytes_to_read == 7 * 3 + 10);
  CHECK(got.recomputed_tokens == 104);
}
