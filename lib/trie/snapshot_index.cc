// SPDX-License-Identifier: Apache-2.0
#include "lib/trie/snapshot_index.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::trie {
namespace {

absl::Status Gone() { return base::MakeStatus(base::Code::kNotFound, "snapshot", "the snapshot has been removed"); }

absl::Status Broken(std::string_view invariant, uint64_t index) {
  return base::MakeStatus(base::Code::kInternal, invariant, "does not hold at snapshot " + std::to_string(index));
}

}  // namespace

// ---- Slots ----

bool SnapshotIndex::Exists(SnapshotRef ref) const {
  return ref.index < entries_.size() && entries_[ref.index].state != State::kFree &&
         entries_[ref.index].generation == ref.generation;
}

bool SnapshotIndex::IsLive(SnapshotRef ref) const { return Exists(ref) && entries_[ref.index].state == State::kLive; }

SnapshotInfo SnapshotIndex::InfoOf(uint32_t index) const {
  const Entry& entry = entries_[index];
  SnapshotInfo info;
  info.snapshot = {index, entry.generation};
  info.node = entry.node;
  info.position = entry.position;
  info.tail_digest = entry.tail_digest;
  info.sequence = entry.sequence;
  info.bytes = entry.bytes;
  info.last_use = entry.last_use;
  info.frequency = entry.frequency;
  info.leases = entry.leases;
  info.dead = entry.state == State::kDead;
  return info;
}

SnapshotIndex::Order SnapshotIndex::OrderOf(uint32_t index) const {
  return {entries_[index].last_use, entries_[index].sequence, index};
}

// kNone when all indices are in use.
uint32_t SnapshotIndex::TakeSlot() {
  if (free_head_ != kNone) return std::exchange(free_head_, entries_[free_head_].next);
  if (entries_.size() >= kNone) return kNone;
  entries_.emplace_back();
  entries_.back().generation = 1;
  return static_cast<uint32_t>(entries_.size() - 1);
}

void SnapshotIndex::FreeSlot(uint32_t index) {
  Entry& entry = entries_[index];
  entry.state = State::kFree;
  // A slot whose generations are used up is left out for good: a stale reference must never fit again.
  if (entry.generation == UINT32_MAX) return;
  ++entry.generation;
  entry.next = std::exchange(free_head_, index);
}

// ---- The list at a node ----

bool SnapshotIndex::NewerPosition(uint32_t a, uint32_t b) const {
  const Entry& left = entries_[a];
  const Entry& right = entries_[b];
  return std::pair(left.position, left.sequence) > std::pair(right.position, right.sequence);
}

void SnapshotIndex::Link(uint32_t index) {
  const auto [head, fresh] = heads_.try_emplace(entries_[index].node, kNone);
  uint32_t* link = &head->second;
  while (*link != kNone && NewerPosition(*link, index)) link = &entries_[*link].next;
  entries_[index].next = *link;
  *link = index;
  if (fresh) trie_->SetMark(entries_[index].node, true);
}

void SnapshotIndex::Unlink(uint32_t index) {
  const auto head = heads_.find(entries_[index].node);
  uint32_t* link = &head->second;
  while (*link != index) link = &entries_[*link].next;
  *link = entries_[index].next;
  entries_[index].next = kNone;
  if (head->second != kNone) return;
  trie_->SetMark(entries_[index].node, false);
  heads_.erase(head);
}

uint32_t SnapshotIndex::FindEntry(NodeRef node, uint64_t position, const base::Digest128& tail_digest) const {
  const auto head = heads_.find(node);
  if (head == heads_.end()) return kNone;
  uint32_t index = head->second;
  while (index != kNone && (entries_[index].position != position || entries_[index].tail_digest != tail_digest)) {
    index = entries_[index].next;
  }
  return index;
}

// ---- Add and find ----

absl::StatusOr<SnapshotInsertResult> SnapshotIndex::Add(NodeRef node, uint64_t position,
                                                        const base::Digest128& tail_digest, uint64_t sequence,
                                                        uint64_t bytes, uint64_t tick,
                                                        uint32_t frequency) {
  if (!trie_->IsLive(node)) return base::MakeStatus(base::Code::kNotFound, "node", "the block has been removed");
  const uint64_t depth = trie_->Get(node)->depth;
  if (position / block_tokens_ != depth) {
    return base::InvalidArgument("position", std::to_string(position) + " is not within the block after the " +
                                                 std::to_string(depth) + " blocks of the node");
  }
  const bool aligned = position % block_tokens_ == 0;
  const base::Digest128 tail = aligned ? base::Digest128{} : tail_digest;
  if (const uint32_t existing = FindEntry(node, position, tail); existing != kNone) {
    return SnapshotInsertResult{{existing, entries_[existing].generation}, false};
  }
  const uint32_t index = TakeSlot();
  if (index == kNone) return base::MakeStatus(base::Code::kTooLarge, "snapshots", "the index holds 2^32 - 1 already");
  Entry& entry = entries_[index];
  entry.tail_digest = tail;
  entry.position = position;
  entry.sequence = sequence;
  entry.bytes = bytes;
  entry.last_use = std::min(tick, Trie::kMaxTick);
  entry.node = node;
  entry.frequency = frequency;
  entry.leases = 0;
  entry.state = State::kLive;
  Link(index);
  order_.insert(OrderOf(index));
  ++live_count_;
  live_bytes_ += bytes;
  return SnapshotInsertResult{{index, entry.generation}, true};
}

std::vector<SnapshotInfo> SnapshotIndex::FindOnPath(NodeRef deepest, uint64_t limit, uint64_t max_count,
                                                    const TailOf& tail_of) const {
  std::vector<SnapshotInfo> found;
  if (live_count_ == 0) return found;
  // A node's snapshots lie before its children's, so going up the path keeps the order.
  for (NodeRef node = deepest; node.valid() && found.size() < max_count; node = trie_->Parent(node)) {
    if (trie_->IsMarked(node)) CollectAt(node, limit, max_count, tail_of, &found);
  }
  return found;
}

void SnapshotIndex::CollectAt(NodeRef node, uint64_t limit, uint64_t max_count, const TailOf& tail_of,
                              std::vector<SnapshotInfo>* found) const {
  const auto head = heads_.find(node);
  if (head == heads_.end()) return;
  std::optional<uint64_t> tail_position;
  base::Digest128 tail;
  for (uint32_t i = head->second; i != kNone && found->size() < max_count; i = entries_[i].next) {
    const Entry& entry = entries_[i];
    if (entry.position > limit) continue;
    if (tail_of && entry.position % block_tokens_ != 0) {
      if (tail_position != entry.position) {
        tail = tail_of(node, entry.position);
        tail_position = entry.position;
      }
      if (tail != entry.tail_digest) continue;
    }
    found->push_back(InfoOf(i));
  }
}

// ---- Use and leases ----

bool SnapshotIndex::Touch(SnapshotRef snapshot, uint64_t tick) {
  if (!IsLive(snapshot)) return false;
  Entry& entry = entries_[snapshot.index];
  const bool ordered = entry.leases == 0;
  if (ordered) order_.erase(OrderOf(snapshot.index));
  entry.last_use = std::max(entry.last_use, std::min(tick, Trie::kMaxTick));
  if (entry.frequency < UINT32_MAX) ++entry.frequency;
  if (ordered) order_.insert(OrderOf(snapshot.index));
  return true;
}

absl::Status SnapshotIndex::Lease(SnapshotRef snapshot) {
  if (!IsLive(snapshot)) return Gone();
  Entry& entry = entries_[snapshot.index];
  if (entry.leases == UINT32_MAX) return base::MakeStatus(base::Code::kBusy, "snapshot", "too many leases");
  if (entry.leases++ == 0) {
    leased_bytes_ += entry.bytes;
    order_.erase(OrderOf(snapshot.index));
  }
  return absl::OkStatus();
}

absl::Status SnapshotIndex::Release(SnapshotRef snapshot, const Visitor& on_freed) {
  if (!Exists(snapshot)) return Gone();
  Entry& entry = entries_[snapshot.index];
  if (entry.leases == 0) return base::MakeStatus(base::Code::kInvalidState, "snapshot", "the snapshot is not leased");
  if (--entry.leases > 0) return absl::OkStatus();
  leased_bytes_ -= entry.bytes;
  if (entry.state == State::kLive) {
    order_.insert(OrderOf(snapshot.index));
    return absl::OkStatus();
  }
  dead_bytes_ -= entry.bytes;
  const SnapshotInfo info = InfoOf(snapshot.index);
  FreeSlot(snapshot.index);
  if (on_freed) on_freed(info);
  return absl::OkStatus();
}

// ---- Removal ----

std::optional<SnapshotRef> SnapshotIndex::ColdestUnleased() const {
  if (order_.empty()) return std::nullopt;
  const uint32_t index = order_.begin()->index;
  return SnapshotRef{index, entries_[index].generation};
}

absl::StatusOr<SnapshotInfo> SnapshotIndex::Remove(SnapshotRef snapshot) {
  if (!IsLive(snapshot)) return Gone();
  if (entries_[snapshot.index].leases > 0) {
    return base::MakeStatus(base::Code::kBusy, "snapshot", "the snapshot is leased");
  }
  return Detach(snapshot);
}

absl::StatusOr<SnapshotInfo> SnapshotIndex::Detach(SnapshotRef snapshot) {
  if (!IsLive(snapshot)) return Gone();
  Unlink(snapshot.index);
  return Drop(snapshot.index);
}

uint64_t SnapshotIndex::RemoveAt(NodeRef node, const Visitor& on_removed) {
  const auto head = heads_.find(node);
  if (head == heads_.end()) return 0;
  uint32_t index = head->second;
  heads_.erase(head);
  uint64_t removed = 0;
  while (index != kNone) {
    const uint32_t next = entries_[index].next;
    const SnapshotInfo info = Drop(index);
    ++removed;
    if (on_removed) on_removed(info);
    index = next;
  }
  return removed;
}

// Ends an unlinked snapshot's life: it is dead while leased, else its slot is free. Returns what it was.
SnapshotInfo SnapshotIndex::Drop(uint32_t index) {
  Entry& entry = entries_[index];
  --live_count_;
  live_bytes_ -= entry.bytes;
  if (entry.leases > 0) {
    entry.state = State::kDead;
    dead_bytes_ += entry.bytes;
    return InfoOf(index);
  }
  order_.erase(OrderOf(index));
  const SnapshotInfo info = InfoOf(index);
  FreeSlot(index);
  return info;
}

std::optional<SnapshotInfo> SnapshotIndex::Get(SnapshotRef snapshot) const {
  if (!Exists(snapshot)) return std::nullopt;
  return InfoOf(snapshot.index);
}

uint64_t SnapshotIndex::VisitSlots(uint64_t slot, uint64_t count, const Visitor& visit) const {
  if (slot >= entries_.size()) return 0;
  const uint64_t end = slot + std::min<uint64_t>(count, entries_.size() - slot);
  for (uint64_t i = slot; i < end; ++i) {
    if (entries_[i].state == State::kLive) visit(InfoOf(static_cast<uint32_t>(i)));
  }
  return end == entries_.size() ? 0 : end;
}

uint64_t SnapshotIndex::MemoryBytes() const {
  // A hash map slot has its pair and a control byte; a B-tree node is at least half full.
  return sizeof(*this) + entries_.capacity() * sizeof(Entry) +
         heads_.capacity() * (sizeof(std::pair<NodeRef, uint32_t>) + 1) + 2 * order_.size() * sizeof(Order);
}

// ---- Invariants ----

absl::Status SnapshotIndex::Validate() const {
  uint64_t live = 0, live_bytes = 0, leased_bytes = 0, dead_bytes = 0, linked = 0, ordered = 0;
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.state == State::kFree) continue;
    if (entry.leases > 0) leased_bytes += entry.bytes;
    if (entry.state == State::kDead) {
      if (entry.leases == 0) return Broken("I5", i);
      dead_bytes += entry.bytes;
      continue;
    }
    if (absl::Status status = ValidateEntry(i); !status.ok()) return status;
    ++live;
    live_bytes += entry.bytes;
    if (entry.leases == 0) ++ordered;
  }
  for (const auto& [node, head] : heads_) {
    if (head == kNone) return Broken("I3 empty list", node.index);
    for (uint32_t i = head; i != kNone; i = entries_[i].next) ++linked;
  }
  if (linked != live) return Broken("I3 linked", linked);
  if (ordered != order_.size()) return Broken("I4 size", ordered);
  if (live != live_count_ || live_bytes != live_bytes_) return Broken("I6 live", live);
  if (leased_bytes != leased_bytes_ || dead_bytes != dead_bytes_) return Broken("I6 leased or dead", leased_bytes);
  return absl::OkStatus();
}

absl::Status SnapshotIndex::ValidateEntry(uint32_t index) const {
  const Entry& entry = entries_[index];
  if (!trie_->IsLive(entry.node) || !trie_->IsMarked(entry.node)) return Broken("I1", index);
  if (entry.position / block_tokens_ != trie_->Get(entry.node)->depth) return Broken("I2 position", index);
  if (FindEntry(entry.node, entry.position, entry.tail_digest) != index) return Broken("I2 unique", index);
  if (entry.next != kNone && !NewerPosition(index, entry.next)) return Broken("I3 order", index);
  if (order_.contains(OrderOf(index)) != (entry.leases == 0)) return Broken("I4", index);
  return absl::OkStatus();
}

}  // namespace kvstrata::core::trie
