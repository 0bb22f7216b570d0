// SPDX-License-Identifier: Apache-2.0
// When snapshots are written: one policy with four switches, and the positions that follow from it. Owns the rule
// that a snapshot wanted by policy lies where a later prompt can use it.
//
// A prefill cannot be interrupted between chunks, so the writer names the positions before it starts and the engine
// cuts its chunks there. While decoding, the engine keeps the newest snapshot in memory, replaces it, and stores it
// at commit: see IsDecodeSnapshotPosition.
//
// Thread rule: pure functions, no I/O, no state.
//
// Invariants of SnapshotPositions (tests/unit/plan):
//   I1  strictly ascending, each in (from, n), each a multiple of r, none of them existing, at most
//       kMaxSnapshotPositions; of more than that the last ones.
//   I2  with a prompt-end policy and any legal position in (from, n-1], the same prompt again can restart there.
//   I3  the work is bounded by kMaxSnapshotPositions and the arguments' sizes, whatever n is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/plan/planner.h"

namespace kvstrata::core::plan {

struct SnapshotPolicy {
  bool at_prompt_end = false;
  bool at_output_end = false;
  bool at_common_prefix = false;  // where a stored chain and a new sequence part
  uint64_t every_tokens = 0;      // 0: not periodic

  // The default of a namespace: both ends and common prefixes.
  static constexpr SnapshotPolicy Ends() { return {true, true, true, 0}; }
  // The reference's three strategies (section 8.1). Full keeps the state of every block boundary: with W = B the
  // window rows of every token. Zero keeps none and lives from replay.
  static constexpr SnapshotPolicy Full(const LayoutFacts& layout) { return Periodic(layout.block_tokens); }
  static constexpr SnapshotPolicy Periodic(uint64_t every_tokens) { return {false, false, false, every_tokens}; }
  static constexpr SnapshotPolicy Zero() { return {}; }

  friend bool operator==(const SnapshotPolicy&, const SnapshotPolicy&) = default;
};

// More cuts than this would hurt any prefill; also the bound of an answer's size.
inline constexpr size_t kMaxSnapshotPositions = 4096;

struct SnapshotQuery {
  uint64_t prompt_tokens = 0;                   // n
  uint64_t from = 0;                            // nothing at or below; SnapshotFloor of the plan, or 0
  uint32_t restart_multiple = 0;                // r; 0 means 1
  std::span<const uint64_t> common_prefixes{};  // lengths at which stored chains part from this sequence; any order
  std::span<const uint64_t> existing{};         // positions already stored for this sequence; any order
};

// The positions at which the writer wants snapshots during prefill.
//  * prompt end: the largest position on the restart grid (lcm(B, r), or r without rows) that is at most n-1, so
//    that the same prompt, capped at n-1, can use it. If the grid has none, the largest multiple of r: a snapshot
//    inside the first block, which carries its open-block rows.
//  * every N: each multiple of N below n, rounded down to the restart grid.
//  * common prefix: each length given, rounded down to the restart grid.
std::vector<uint64_t> SnapshotPositions(const SnapshotPolicy& policy, const LayoutFacts& layout,
                                        const SnapshotQuery& query);

// The `from` of a sequence that starts with this plan: the highest position at which a new snapshot is of no use or
// would not be exact. The state is exact from the snapshot on, or, rebuilt by a replay, from the usable length on.
uint64_t SnapshotFloor(const Plan& plan);

// True if the writer wants a snapshot when a decoding sequence has reached `position`: on the restart grid, for the
// output end (replacing the one held) or for the periodic policy.
bool IsDecodeSnapshotPosition(const SnapshotPolicy& policy, const LayoutFacts& layout, uint32_t restart_multiple,
                              uint64_t position);

// Stored snapshot bytes per token of a long sequence under the periodic part of the policy; the ends depend on the
// traffic and are not in it. `snapshot_bytes` is one snapshot at a block boundary.
double PeriodicBytesPerToken(const SnapshotPolicy& policy, const LayoutFacts& layout, uint32_t restart_multiple,
                             uint64_t snapshot_bytes);

}  // namespace kvstrata::core::plan
