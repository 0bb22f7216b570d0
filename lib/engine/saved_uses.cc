// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/saved_uses.h"

#include <algorithm>
#include <utility>

namespace kvstrata::core::engine {
namespace {

std::pair<uint64_t, uint32_t> PlaceOf(const format::BlockUses& block) { return {block.sequence, block.first}; }

}  // namespace

void SavedUses::Add(const format::Uses& part) {
  tick_ = std::max(tick_, part.tick);
  frontier_ = std::max(frontier_, part.frontier);
  blocks_.insert(blocks_.end(), part.blocks.begin(), part.blocks.end());
  snapshots_.insert(snapshots_.end(), part.snapshots.begin(), part.snapshots.end());
}

// As blocks came into the index, they are mostly in order.
void SavedUses::Prepare() {
  if (!std::ranges::is_sorted(blocks_, {}, PlaceOf)) std::ranges::stable_sort(blocks_, {}, PlaceOf);
  std::ranges::stable_sort(snapshots_, {}, &format::SnapshotUses::sequence);
}

const format::BlockUses* SavedUses::Block(uint64_t sequence, uint32_t index) const {
  const std::pair<uint64_t, uint32_t> wanted(sequence, index);
  // The last entry that is not behind it.
  const auto is_last = [&](size_t at) {
    return at < blocks_.size() && PlaceOf(blocks_[at]) <= wanted &&
           (at + 1 == blocks_.size() || PlaceOf(blocks_[at + 1]) > wanted);
  };
  if (is_last(asked_ + 1)) ++asked_;
  if (!is_last(asked_)) {
    const auto behind = std::ranges::upper_bound(blocks_, wanted, {}, PlaceOf);
    if (behind == blocks_.begin()) return nullptr;
    asked_ = static_cast<size_t>(std::prev(behind) - blocks_.begin());
  }
  const format::BlockUses& found = blocks_[asked_];
  return found.sequence == sequence && index <= found.first + uint32_t{found.more} ? &found : nullptr;
}

const format::SnapshotUses* SavedUses::Snapshot(uint64_t sequence) const {
  const auto behind = std::ranges::upper_bound(snapshots_, sequence, {}, &format::SnapshotUses::sequence);
  if (behind == snapshots_.begin()) return nullptr;
  return std::prev(behind)->sequence == sequence ? &*std::prev(behind) : nullptr;
}

}  // namespace kvstrata::core::engine
