// SPDX-License-Identifier: Apache-2.0
// One lookup's result: the matched chain, the snapshots that could serve, the plan made from both, and the lease that
// keeps its promise.
//
// Thread rule: externally synchronised. A restore that was made from a match shares what was found, and the lease.
//
// Invariants:
//   I1  blocks[i] is what the index knew of block i at the time of the lookup; what is read later is compared with it.
//   I2  While the lease is active, nothing that the plan reads is evicted.
//   I3  The lease ends with the last that holds it: the match, or a restore that its caller has not let go of. A worker
//       that is still busy with a restore does not hold it.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "lib/engine/cache.h"
#include "lib/engine/prompt.h"
#include "lib/plan/planner.h"

namespace kvstrata::core::engine {

inline constexpr uint64_t kNoPosition = std::numeric_limits<uint64_t>::max();

struct LookupOptions {
  bool peek = false;
  bool no_lease = false;
  uint64_t held_tokens = 0;
  uint32_t allowed_modes = 0;
  uint32_t restart_multiple = 0;
  uint64_t min_gain_tokens = 0;
  double prefill_tokens_per_second = 0;
  double storage_bytes_per_second = 0;
  uint64_t lease_ms = 0;
};

struct MatchedBlock {
  trie::NodeRef node;
  base::BlockDigest key;
  uint64_t sequence = 0;
  trie::RunPlace run;  // its record is that of the run's first block, `run.index` blocks before it
};

// Ends a lease when the last holder lets go.
struct LeaseHold {
  explicit LeaseHold(std::shared_ptr<Cache> cache_in) : cache(std::move(cache_in)) {}
  ~LeaseHold();
  LeaseHold(const LeaseHold&) = delete;
  LeaseHold& operator=(const LeaseHold&) = delete;

  const std::shared_ptr<Cache> cache;
  std::shared_ptr<Lease> lease;  // null: none was given
};

// All that a restore needs of a lookup; immutable once shared, but for the one atomic.
struct MatchState {
  std::shared_ptr<Cache> cache;
  std::shared_ptr<NameSpace> name_space;
  format::NamespaceId life{};
  Prompt prompt;
  LookupOptions options;
  uint64_t matched_blocks = 0;
  std::vector<MatchedBlock> blocks;
  // Set when a restore has ended in a bounded replay: who goes on from the match then may be going on from that.
  std::atomic<bool> ended_inexact{false};
  std::vector<trie::SnapshotInfo> snapshots;  // candidates, newest position first, tails equal by digest
  plan::Reason match_end = plan::Reason::kAbsent;

  base::BlockDigest BoundaryKey(uint64_t depth) const {
    return depth == 0 ? name_space->trie.root_key() : blocks[depth - 1].key;
  }
  // Plans a restart from the first `max_blocks` blocks and the snapshots that `usable` marks (all when empty).
  plan::Plan MakePlan(uint64_t max_blocks, uint64_t usable_limit, const std::vector<bool>& unusable,
                      plan::Reason match_end_reason) const;
};

class Match {
 public:
  static absl::StatusOr<std::unique_ptr<Match>> Lookup(const std::shared_ptr<Cache>& cache,
                                                       const std::shared_ptr<NameSpace>& name_space, Prompt prompt,
                                                       const LookupOptions& options);

  const std::shared_ptr<MatchState>& state() const { return state_; }
  const plan::Plan& plan() const { return plan_; }
  const std::shared_ptr<LeaseHold>& hold() const { return hold_; }
  bool leased() const;
  absl::Status Renew(uint64_t lease_ms);
  absl::Status Limit(uint64_t max_usable_tokens);
  uint64_t usable_limit() const { return usable_limit_; }
  // kNoPosition when no stored continuation differs.
  absl::StatusOr<uint64_t> FirstDifference() const;

 private:
  std::shared_ptr<MatchState> state_;
  plan::Plan plan_;
  std::shared_ptr<LeaseHold> hold_;
  uint64_t usable_limit_ = kNoPosition;
};

// Limits all matches (of one prompt) to the largest usable length that every one of them reaches.
absl::StatusOr<uint64_t> Agree(std::span<Match* const> matches);

// A pure function of a sequence: its blocks' keys, made lazily. `prompt` must outlive the result.
trie::KeySequence KeysOf(const Prompt& prompt, const base::BlockDigest& root, uint32_t block_tokens);

}  // namespace kvstrata::core::engine
