// SPDX-License-Identifier: Apache-2.0
#include "lib/plan/snapshot_policy.h"

#include <algorithm>

namespace kvstrata::core::plan {
namespace {

// Collects wanted positions within (from, n) that are not stored yet.
class Positions {
 public:
  explicit Positions(const SnapshotQuery& query)
      : from_(query.from), end_(query.prompt_tokens), existing_(query.existing.begin(), query.existing.end()) {
    std::sort(existing_.begin(), existing_.end());
  }

  bool Add(uint64_t position) {
    if (position <= from_ || position >= end_) return false;
    if (std::binary_search(existing_.begin(), existing_.end(), position)) return false;
    wanted_.push_back(position);
    return true;
  }

  std::vector<uint64_t> Take() {
    std::sort(wanted_.begin(), wanted_.end());
    wanted_.erase(std::unique(wanted_.begin(), wanted_.end()), wanted_.end());
    if (wanted_.size() > kMaxSnapshotPositions) {
      wanted_.erase(wanted_.begin(), wanted_.end() - kMaxSnapshotPositions);
    }
    return std::move(wanted_);
  }

 private:
  const uint64_t from_;
  const uint64_t end_;
  std::vector<uint64_t> existing_;
  std::vector<uint64_t> wanted_;
};

// From the end backwards, so that the bound keeps the last ones. After position p the next one down is that of the
// largest multiple of `every` below p: each step gives a new position or one that is stored already.
void AddPeriodic(uint64_t every, uint64_t grid, const SnapshotQuery& query, Positions& positions) {
  uint64_t below = query.prompt_tokens;
  for (size_t count = 0; count < kMaxSnapshotPositions && below > 0;) {
    const uint64_t position = RoundDown(RoundDown(below - 1, every), grid);
    if (position <= query.from) return;
    if (positions.Add(position)) ++count;
    below = position;
  }
}

}  // namespace

std::vector<uint64_t> SnapshotPositions(const SnapshotPolicy& policy, const LayoutFacts& layout,
                                        const SnapshotQuery& query) {
  if (!layout.has_state || query.prompt_tokens < 2) return {};
  const uint64_t grid = RestartGrid(layout, query.restart_multiple);
  Positions positions(query);
  if (policy.every_tokens > 0) AddPeriodic(policy.every_tokens, grid, query, positions);
  if (policy.at_common_prefix) {
    for (const uint64_t length : query.common_prefixes) positions.Add(RoundDown(length, grid));
  }
  if (policy.at_prompt_end) {
    const uint64_t last = query.prompt_tokens - 1;
    const uint64_t on_grid = RoundDown(last, grid);
    positions.Add(on_grid > 0 ? on_grid : RoundDown(last, query.restart_multiple));
  }
  return positions.Take();
}

uint64_t SnapshotFloor(const Plan& plan) {
  switch (plan.mode) {
    case Mode::kNone: return 0;
    case Mode::kSnapshot: return plan.usable_tokens;
    case Mode::kSnapshotReplay: return plan.replay_from;
    // Between replay_from and the usable length the state is still wrong; at the usable length it is right.
    case Mode::kFullReplay: return plan.usable_tokens - 1;
    // Declared not exact: a snapshot at the usable length would hand the approximation on to others.
    case Mode::kBoundedReplay: return plan.usable_tokens;
  }
  return plan.usable_tokens;
}

bool IsDecodeSnapshotPosition(const SnapshotPolicy& policy, const LayoutFacts& layout, uint32_t restart_multiple,
                              uint64_t position) {
  const uint64_t grid = RestartGrid(layout, restart_multiple);
  if (!layout.has_state || position == 0 || position % grid != 0) return false;
  if (policy.at_output_end) return true;
  // A multiple of N lies in [position, position + grid), so it rounds down to this position.
  return policy.every_tokens > 0 && (position + grid - 1) / policy.every_tokens != (position - 1) / policy.every_tokens;
}

double PeriodicBytesPerToken(const SnapshotPolicy& policy, const LayoutFacts& layout, uint32_t restart_multiple,
                             uint64_t snapshot_bytes) {
  if (policy.every_tokens == 0 || !layout.has_state) return 0;
  const uint64_t interval = std::max(policy.every_tokens, RestartGrid(layout, restart_multiple));
  return static_cast<double>(snapshot_bytes) / static_cast<double>(interval);
}

}  // namespace kvstrata::core::plan
