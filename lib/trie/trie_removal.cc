// SPDX-License-Identifier: Apache-2.0
// How blocks leave the trie: leases that keep them, removal of leaves and subtrees, and the sweep of what has expired.
#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "lib/trie/trie.h"

namespace kvstrata::core::trie {

// ---- Leases ----

absl::Status Trie::Lease(NodeRef node, uint32_t now) {
  if (!IsLive(node) || HasExpired(ExpiryOf(node.index), now)) return Gone("node");
  // The one that is pinned already: only there may the count be a large one.
  uint32_t last = node.index;
  while (last != kNone && !nodes_[last].pinned()) last = nodes_[last].up();
  if (last != kNone) {
    if (PinsOf(last) == kMaxPins) return base::MakeStatus(base::Code::kBusy, "node", "too many leases on one block");
    many_pins_.reserve(many_pins_.size() + 1);
  }
  ++leases_[node.index];
  for (uint32_t i = node.index; i != kNone; i = nodes_[i].up()) {
    SetPins(i, PinsOf(i) + 1);
    if (i == last) break;  // I5: its ancestors are pinned already
    leased_bytes_ += nodes_[i].bytes();
    HeapUpdate(i);
  }
  return absl::OkStatus();
}

absl::Status Trie::Release(NodeRef node, const Visitor& on_freed) {
  if (!Exists(node)) return Gone("node");
  const auto lease = leases_.find(node.index);
  if (lease == leases_.end()) return base::MakeStatus(base::Code::kInvalidState, "node", "the block is not leased");
  if (--lease->second == 0) leases_.erase(lease);
  Unpin(node.index, on_freed);
  return absl::OkStatus();
}

// Takes one pin off `index`, and off its ancestors as far as they lose their last. Dead ones are freed then.
void Trie::Unpin(uint32_t index, const Visitor& on_freed) {
  for (uint32_t i = index; i != kNone;) {
    Node& node = nodes_[i];
    SetPins(i, PinsOf(i) - 1);
    if (node.pinned()) return;
    leased_bytes_ -= node.bytes();
    const uint32_t parent = node.up();
    if (node.state() == kLive) {
      HeapUpdate(i);
    } else {
      const BlockInfo info = InfoOf(i);
      dead_bytes_ -= node.bytes();
      --dead_count_;
      FreeSlot(i);
      if (on_freed) on_freed(info);
    }
    i = parent;
  }
}

// ---- Removal ----

std::optional<NodeRef> Trie::ColdestLeaf() const {
  if (heap_size_ == 0) return std::nullopt;
  return RefOf(heap_[0]);
}

absl::StatusOr<BlockInfo> Trie::Remove(NodeRef leaf) {
  if (!IsLive(leaf)) return Gone("leaf");
  const Node& node = nodes_[leaf.index];
  if (leaf == root()) return base::MakeStatus(base::Code::kInvalidState, "leaf", "the root is no block");
  if (node.has_children()) return base::MakeStatus(base::Code::kInvalidState, "leaf", "the block has children");
  if (node.pinned()) return base::MakeStatus(base::Code::kBusy, "leaf", "the block is leased");
  const BlockInfo info = InfoOf(leaf.index);
  DropNode(leaf.index, /*is_last=*/true, nullptr);
  HeapUpdate(info.parent.index);
  return info;
}

absl::StatusOr<uint64_t> Trie::DetachSubtree(NodeRef node, const Visitor& on_removed, uint64_t most) {
  if (!IsLive(node)) return Gone("node");
  if (node == root()) {
    uint64_t removed = 0;
    while (nodes_[0].has_children() && removed < most) {
      removed += DetachOne(nodes_[0].child_or_heap, most - removed, on_removed);
    }
    return removed;
  }
  return DetachOne(node.index, most, on_removed);
}

// Post-order without a stack: go down to a leaf, drop it, go on from its parent, which may then be a leaf.
uint64_t Trie::DetachOne(uint32_t top, uint64_t most, const Visitor& on_removed) {
  const uint32_t above = nodes_[top].up();
  uint64_t removed = 0;
  uint32_t i = top;
  while (removed < most && i != above) {
    while (nodes_[i].has_children()) i = nodes_[i].child_or_heap;
    const uint32_t parent = nodes_[i].up();
    DropNode(i, i == top || removed + 1 == most, on_removed);
    ++removed;
    i = parent;
  }
  HeapUpdate(i);
  return removed;
}

// Takes a childless block out of hash, heap, child list and totals; frees its slot unless it is pinned. A dead block
// keeps its parent link, since its pins hold the ancestors that the same lease promised. The parent may have become
// a leaf: the caller updates the heap for it, once this was the last that it drops.
void Trie::DropNode(uint32_t index, bool is_last, const Visitor& on_removed) {
  Node& node = nodes_[index];
  hash_.Erase(index);
  UnlinkChild(index);
  if (is_last) HeapHandOn(index);
  HeapErase(index);
  --live_count_;
  live_bytes_ -= node.bytes();
  options_.order->Remove(options_.block_cost, node.bytes());
  const bool pinned = node.pinned();
  if (pinned) {
    node.SetState(kDead);
    ++dead_count_;
    dead_bytes_ += node.bytes();
  }
  const BlockInfo info = InfoOf(index);
  if (!pinned) FreeSlot(index);
  if (on_removed) on_removed(info);
}

void Trie::NoteExpiry(uint32_t expires_at) {
  next_expiry_ = EarlierExpiry(next_expiry_, expires_at);
  round_expiry_ = EarlierExpiry(round_expiry_, expires_at);
}

uint64_t Trie::SweepExpired(uint32_t now, uint64_t max_slots, const Visitor& on_removed) {
  uint64_t removed = 0;
  for (uint64_t visits = std::min(max_slots, node_count_); visits > 0 && HasExpired(next_expiry_, now); --visits) {
    if (sweep_cursor_ >= node_count_) {
      // A round has ended: what it left is all there is.
      sweep_cursor_ = 1;
      next_expiry_ = std::exchange(round_expiry_, 0);
      continue;
    }
    const auto index = static_cast<uint32_t>(sweep_cursor_++);
    const Node& node = nodes_[index];
    if (node.state() != kLive) continue;
    if (HasExpired(ExpiryOf(index), now) && !node.pinned()) {
      removed += DetachOne(index, UINT64_MAX, on_removed);  // I5: nothing below it is pinned
    } else {
      round_expiry_ = EarlierExpiry(round_expiry_, ExpiryOf(index));
    }
  }
  return removed;
}

}  // namespace kvstrata::core::trie
