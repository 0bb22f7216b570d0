// SPDX-License-Identifier: Apache-2.0
// Byte budgets, eviction, removals and leases of a cache.
//
// Rows may use all of the capacity that snapshots do not use; snapshots have a bound of their own inside it, and may
// push out rows only below that bound. So window churn can never cost more rows than the snapshot share.
#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/cache.h"
#include "lib/engine/put.h"

namespace kvstrata::core::engine {

uint64_t Cache::HeldBytes() const {
  return row_bytes_ + snapshot_bytes_ + removing_row_bytes_ + removing_snapshot_bytes_ + other_bytes_;
}

uint64_t Cache::BlockCount() const {
  uint64_t count = 0;
  for (const auto& [root, space] : namespaces_) count += space->trie.block_count();
  return count;
}

bool Cache::Fits(RecordClass record_class, uint64_t bytes) const {
  const uint64_t total = HeldBytes() + pending_row_bytes_ + pending_snapshot_bytes_;
  if (total > options_.capacity_bytes || bytes > options_.capacity_bytes - total) return false;
  if (record_class == RecordClass::kRows) return BlockCount() + puts_.size() < options_.max_blocks;
  const uint64_t snapshots = snapshot_bytes_ + pending_snapshot_bytes_ + removing_snapshot_bytes_;
  return snapshots <= options_.snapshot_bytes && bytes <= options_.snapshot_bytes - snapshots;
}

absl::Status Cache::Reserve(RecordClass record_class, uint64_t bytes, std::chrono::steady_clock::time_point deadline) {
  const uint64_t bound = record_class == RecordClass::kSnapshot ? options_.snapshot_bytes : options_.capacity_bytes;
  if (bytes > bound) {
    return base::MakeStatus(base::Code::kTooLarge,
                            record_class == RecordClass::kSnapshot ? "snapshot_bytes" : "capacity_bytes",
                            "one record of " + std::to_string(bytes) + " bytes, the bound is " + std::to_string(bound));
  }
  while (true) {
    std::vector<Removal> removals;
    {
      base::MutexLock lock(mutex_);
      if (closed_) return base::MakeStatus(base::Code::kInvalidState, "cache", "closed");
      if (Fits(record_class, bytes)) {
        (record_class == RecordClass::kSnapshot ? pending_snapshot_bytes_ : pending_row_bytes_) += bytes;
        return absl::OkStatus();
      }
      if (!EvictOne(record_class, bytes, &removals)) {
        // Space that others are freeing, and puts that can be evicted once they have ended, may still make room.
        const bool hope = !removing_.empty() || !puts_.empty();
        if (!hope || !changed_.WaitUntil(mutex_, deadline)) {
          return base::MakeStatus(base::Code::kNoSpace, "capacity_bytes", "full, and nothing can be evicted");
        }
      }
    }
    RunRemovals(removals);
  }
}

void Cache::Unreserve(RecordClass record_class, uint64_t bytes) {
  (record_class == RecordClass::kSnapshot ? pending_snapshot_bytes_ : pending_row_bytes_) -= bytes;
  changed_.NotifyAll();
}

// For a snapshot of `bytes`: within the snapshots' own share it is rows that give way, beyond it another snapshot.
bool Cache::EvictOne(RecordClass record_class, uint64_t bytes, std::vector<Removal>* removals) {
  const uint64_t snapshots = snapshot_bytes_ + pending_snapshot_bytes_ + removing_snapshot_bytes_;
  const bool in_share = snapshots <= options_.snapshot_bytes && bytes <= options_.snapshot_bytes - snapshots;
  for (const bool after_expiry : {false, true}) {
    if (after_expiry) ExpireLeases();
    if (record_class == RecordClass::kRows || in_share) {
      if (EvictBlock(removals)) return true;
    }
    if (record_class == RecordClass::kSnapshot && EvictSnapshot(removals)) return true;
  }
  return false;
}

bool Cache::EvictBlock(std::vector<Removal>* removals) {
  NameSpace* coldest_space = nullptr;
  trie::BlockInfo coldest;
  for (const auto& [root, space] : namespaces_) {
    const std::optional<trie::NodeRef> leaf = space->trie.ColdestLeaf();
    if (!leaf.has_value()) continue;
    const std::optional<trie::BlockInfo> info = space->trie.Get(*leaf);
    if (!info.has_value()) continue;
    if (coldest_space == nullptr || info->heat < coldest.heat) {
      coldest_space = space.get();
      coldest = *info;
    }
  }
  if (coldest_space == nullptr) return false;
  stats_.blocks_evicted += 1;
  stats_.blocks_removed -= 1;  // DetachBlock counts it as removed: an eviction is counted apart
  const uint64_t removed_before = stats_.snapshots_removed;
  DetachBlock(*coldest_space, coldest.node, removals);
  stats_.snapshots_evicted += stats_.snapshots_removed - removed_before;
  stats_.snapshots_removed = removed_before;
  return true;
}

bool Cache::EvictSnapshot(std::vector<Removal>* removals) {
  NameSpace* coldest_space = nullptr;
  trie::SnapshotInfo coldest;
  for (const auto& [root, space] : namespaces_) {
    const std::optional<trie::SnapshotRef> found = space->snapshots.ColdestUnleased();
    if (!found.has_value()) continue;
    const std::optional<trie::SnapshotInfo> info = space->snapshots.Get(*found);
    if (!info.has_value()) continue;
    if (coldest_space == nullptr || info->last_use < coldest.last_use) {
      coldest_space = space.get();
      coldest = *info;
    }
  }
  if (coldest_space == nullptr) return false;
  DetachSnapshot(*coldest_space, coldest.snapshot, removals);
  stats_.snapshots_removed -= 1;
  stats_.snapshots_evicted += 1;
  return true;
}

void Cache::CountRemoval(RecordClass record_class, const storage::Key& key, uint64_t bytes,
                         std::vector<Removal>* removals) {
  if (record_class == RecordClass::kSnapshot) {
    snapshot_bytes_ -= bytes;
    removing_snapshot_bytes_ += bytes;
  } else {
    row_bytes_ -= bytes;
    removing_row_bytes_ += bytes;
  }
  removing_.insert(key);
  removals->push_back({key, bytes, record_class});
}

void Cache::DetachBlock(NameSpace& name_space, trie::NodeRef node, std::vector<Removal>* removals) {
  const auto on_snapshot = [&](const base::BlockDigest& boundary, const trie::SnapshotInfo& snapshot) {
    const base::BlockDigest key = format::SnapshotKey(boundary, snapshot.position, snapshot.tail_digest);
    CountRemoval(RecordClass::kSnapshot, {format::MakeRecordKey(format::RecordKind::kSnapshot, key)}, snapshot.bytes,
                 removals);
    stats_.snapshots_removed += 1;
    events_.Add({EventKind::kSnapshotRemoved, 0, name_space.life, boundary.digest, snapshot.position, snapshot.bytes});
  };
  const auto on_block = [&](const trie::BlockInfo& block) {
    name_space.snapshots.RemoveAt(block.node,
                                  [&](const trie::SnapshotInfo& snapshot) { on_snapshot(block.key, snapshot); });
    CountRemoval(RecordClass::kRows, {format::MakeRecordKey(format::RecordKind::kBlock, block.key)}, block.bytes,
                 removals);
    stats_.blocks_removed += 1;
    events_.Add({EventKind::kBlockRemoved, 0, name_space.life, block.key.digest, name_space.BlockEnd(block.depth),
                 block.bytes});
  };
  // The root is no block, but what hangs on it goes with it.
  if (node == name_space.trie.root()) {
    name_space.snapshots.RemoveAt(
        node, [&](const trie::SnapshotInfo& snapshot) { on_snapshot(name_space.trie.root_key(), snapshot); });
  }
  name_space.trie.DetachSubtree(node, on_block).status().IgnoreError();
}

void Cache::DetachSnapshot(NameSpace& name_space, trie::SnapshotRef snapshot, std::vector<Removal>* removals) {
  const std::optional<trie::SnapshotInfo> before = name_space.snapshots.Get(snapshot);
  if (!before.has_value() || before->dead) return;
  base::BlockDigest boundary = name_space.trie.root_key();
  if (before->node != name_space.trie.root()) {
    const std::optional<trie::BlockInfo> block = name_space.trie.Get(before->node);
    if (!block.has_value()) return;
    boundary = block->key;
  }
  const absl::StatusOr<trie::SnapshotInfo> info = name_space.snapshots.Detach(snapshot);
  if (!info.ok()) return;
  const base::BlockDigest key = format::SnapshotKey(boundary, info->position, info->tail_digest);
  CountRemoval(RecordClass::kSnapshot, {format::MakeRecordKey(format::RecordKind::kSnapshot, key)}, info->bytes,
               removals);
  stats_.snapshots_removed += 1;
  events_.Add({EventKind::kSnapshotRemoved, 0, name_space.life, boundary.digest, info->position, info->bytes});
}

void Cache::RunRemovals(const std::vector<Removal>& removals) {
  for (const Removal& removal : removals) {
    const absl::Status status = options_.storage->Remove(removal.key);
    base::MutexLock lock(mutex_);
    removing_.erase(removal.key);
    (removal.record_class == RecordClass::kSnapshot ? removing_snapshot_bytes_ : removing_row_bytes_) -= removal.bytes;
    // What could not be removed still takes its place on the disk, until the next open finds it again.
    if (status.ok()) {
      stats_.bytes_out += removal.bytes;
    } else {
      other_bytes_ += removal.bytes;
    }
    changed_.NotifyAll();
  }
}

absl::StatusOr<uint64_t> Cache::Trim(uint64_t target_bytes) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (options_.read_only) return base::MakeStatus(base::Code::kReadOnly, "cache", "opened read-only");
  while (true) {
    std::vector<Removal> removals;
    {
      base::MutexLock lock(mutex_);
      if (HeldBytes() <= target_bytes || !EvictOne(RecordClass::kRows, 0, &removals)) {
        if (HeldBytes() <= target_bytes || !EvictSnapshot(&removals)) return HeldBytes();
      }
    }
    RunRemovals(removals);
  }
}

uint64_t Cache::LeasedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [root, space] : namespaces_) bytes += space->trie.LeasedBytes() + space->snapshots.LeasedBytes();
  return bytes;
}

std::shared_ptr<Lease> Cache::TakeLease(const std::shared_ptr<NameSpace>& name_space, trie::NodeRef node,
                                        trie::SnapshotRef snapshot, uint64_t lease_ms) {
  ExpireLeases();
  auto lease = std::make_shared<Lease>();
  lease->name_space = name_space;
  if (!name_space->trie.Lease(node).ok()) return nullptr;
  lease->node = node;
  lease->active = true;
  if (snapshot.valid() ? !AddToLease(lease.get(), snapshot) : LeasedBytes() > options_.lease_bytes) {
    ReleaseLease(lease.get());
    return nullptr;
  }
  RenewLease(lease.get(), lease_ms);
  leases_.push_back(lease);
  return lease;
}

bool Cache::AddToLease(Lease* lease, trie::SnapshotRef snapshot) {
  if (!lease->active) return false;
  if (std::ranges::find(lease->snapshots, snapshot) != lease->snapshots.end()) return true;
  const bool pinned = lease->name_space->snapshots.Lease(snapshot).ok();
  if (pinned) lease->snapshots.push_back(snapshot);
  if (pinned && LeasedBytes() <= options_.lease_bytes) return true;
  ReleaseLease(lease);
  return false;
}

bool Cache::RenewLease(Lease* lease, uint64_t lease_ms) {
  if (!lease->active) return false;
  const uint64_t now = NowNs();
  if (lease->deadline_ns != 0 && lease->deadline_ns <= now) {
    ReleaseLease(lease);
    return false;
  }
  // A lease of longer than a century would overflow the clock; nobody means it.
  constexpr uint64_t kMaxLeaseMs = uint64_t{100} * 365 * 24 * 3600 * 1000;
  const uint64_t ms = std::min(lease_ms == 0 ? options_.lease_ms : lease_ms, kMaxLeaseMs);
  lease->deadline_ns = now + ms * 1'000'000;
  return true;
}

void Cache::EndLease(const std::shared_ptr<Lease>& lease) {
  base::MutexLock lock(mutex_);
  ReleaseLease(lease.get());
  leases_.remove(lease);
  changed_.NotifyAll();
}

// Records of what was detached while leased have left the storage already: nothing more to free here.
void Cache::ReleaseLease(Lease* lease) {
  if (!lease->active) return;
  lease->active = false;
  lease->name_space->trie.Release(lease->node).IgnoreError();
  for (const trie::SnapshotRef snapshot : lease->snapshots) {
    lease->name_space->snapshots.Release(snapshot).IgnoreError();
  }
}

void Cache::ExpireLeases() {
  const uint64_t now = NowNs();
  for (auto it = leases_.begin(); it != leases_.end();) {
    if ((*it)->deadline_ns <= now) {
      ReleaseLease(it->get());
      it = leases_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace kvstrata::core::engine
