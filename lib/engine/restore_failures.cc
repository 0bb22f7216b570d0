// SPDX-License-Identifier: Apache-2.0
// What a restore does when a record cannot be read or proven: the plan is made anew for what lies before it, the index
// forgets what it must not promise any more, and the failure is counted by its reason.
#include <algorithm>
#include <vector>

#include "lib/base/status.h"
#include "lib/engine/restore.h"

namespace kvstrata::core::engine {
namespace {

plan::Reason ReasonOf(const absl::Status& status) {
  switch (base::CodeOf(status)) {
    case base::Code::kNotFound: return plan::Reason::kEvicted;
    case base::Code::kCorrupt:
    case base::Code::kFormatTooNew:
    case base::Code::kInvalidArgument: return plan::Reason::kCorrupt;
    case base::Code::kIdentityMismatch:
    case base::Code::kInvalidState: return plan::Reason::kForeign;
    default: return plan::Reason::kUnreadable;
  }
}

}  // namespace

// Makes the plan anew without what failed.
void RestorePlan::Shorten(const Failure& failure) {
  plan::Reason reason = plan_.reason;
  if (failure.kind != Failure::Kind::kUncovered) {
    // Whatever then limits the plan, what made it shorter is the record that failed.
    reason = ReasonOf(failure.status);
    usable_limit_ = plan_.usable_tokens;
    CountFailure(failure);
    Forget(failure);
  }
  if (failure.kind == Failure::Kind::kBlock) {
    usable_blocks_ = std::min(usable_blocks_, failure.fault.block);
    proven_blocks_ = std::min(proven_blocks_, failure.fault.block);
  } else {
    unusable_snapshots_[plan_.snapshot->id] = true;
  }
  plan_ = match_->MakePlan(usable_blocks_, usable_limit_, unusable_snapshots_, reason);
  plan_.reason = reason;
  shortened_ = true;
}

// Takes a record that is not what it should be out of the index.
void RestorePlan::Forget(const Failure& failure) {
  // The index may not promise any more what is wrong or gone; it may where the storage was only slow or failing.
  if (!IsRecordFault(failure.status) && base::CodeOf(failure.status) != base::Code::kInvalidArgument) return;
  std::vector<Removal> removals;
  {
    base::MutexLock lock(match_->cache->mutex());
    NameSpace& space = *match_->name_space;
    if (failure.kind == Failure::Kind::kBlock) {
      const MatchedBlock& block = match_->blocks[failure.fault.forget];
      if (IsIndexed(block)) match_->cache->DetachDamaged(space, block.node, &removals);
    } else {
      match_->cache->DetachSnapshot(space, match_->snapshots[plan_.snapshot->id].snapshot, &removals);
    }
  }
  match_->cache->RunRemovals(removals);
}

// Is what was matched still what the index promises? Locked (the cache's lock).
bool RestorePlan::IsIndexed(const MatchedBlock& block) const {
  const std::optional<trie::BlockInfo> info = match_->name_space->trie.Get(block.node);
  return info.has_value() && !info->dead && info->sequence == block.sequence;
}

void RestorePlan::CountFailure(const Failure& failure) {
  base::MutexLock lock(match_->cache->mutex());
  Stats& stats = match_->cache->counters();
  base::Code code = base::CodeOf(failure.status);
  // Without a lease a record may have gone, and another of its key have come, of other blocks and another size: whole,
  // but not what was matched.
  const bool damaged = code == base::Code::kCorrupt || code == base::Code::kInvalidArgument;
  if (damaged && failure.kind == Failure::Kind::kBlock && !IsIndexed(match_->blocks[failure.fault.forget])) {
    code = base::Code::kInvalidState;
  }
  switch (code) {
    case base::Code::kNotFound: stats.reads_absent += 1; break;
    case base::Code::kCorrupt:
    case base::Code::kFormatTooNew:
    case base::Code::kInvalidArgument: stats.reads_corrupt += 1; break;
    case base::Code::kIdentityMismatch: stats.reads_foreign += 1; break;
    case base::Code::kInvalidState: stats.reads_stale += 1; break;
    case base::Code::kTimeout: stats.reads_timeout += 1; break;
    default: stats.reads_failed += 1; break;
  }
}

}  // namespace kvstrata::core::engine
