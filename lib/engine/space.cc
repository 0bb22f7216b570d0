// SPDX-License-Identifier: Apache-2.0
// Byte budgets, eviction, removals and leases of a cache.
//
// Rows may use all of the capacity that snapshots do not use; snapshots have a bound of their own inside it, and may
// push out rows only below that bound. So window churn can never cost more rows than the snapshot share.
//
// Blocks are evicted one by one, and a run's record goes with its first block, which goes last. The blocks of a run
// were used together as a rule, so they are equally cold and go together; where the first ones are hotter than the
// others, what the others had stays taken until they go, too (unfreed_bytes). When that has become more than a small
// share of the budget, what goes next is not the coldest leaf but what is left of the run whose first block is coldest,
// with all below it, which is no hotter. That frees whole records instead of parts of them: nothing is ever moved or
// written for it. Records whose blocks are leased must wait.
//
// Room is made by whoever needs it. With watermarks, the put that does not fit below the high one evicts down to the
// low one and no further; without, just what it needs. The medium's floor (keep_free_bytes) is asked for before each
// put.
#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/cache.h"
#include "lib/engine/put.h"

namespace kvstrata::core::engine {
namespace {

// Evicted under one hold of the lock: lookups wait for tens of microseconds at most.
constexpr int kEvictionBatch = 64;
constexpr uint64_t kSweepSlots = 16'384;
// Of the capacity: what unfreed bytes may be before cut runs go first. With the one run that is on its way out, at most
// kMaxRunShare (put.h), that is a twentieth (I7).
constexpr uint64_t kUnfreedShare = 32;

}  // namespace

trie::TrieOptions Cache::OptionsOfTrie(const layout::Layout& layout) const {
  trie::TrieOptions options;
  options.max_blocks = options_.max_blocks;
  options.order = order_;
  options.block_cost = layout.block_tokens();
  return options;
}

uint32_t Cache::NowSeconds() const {
  return static_cast<uint32_t>(std::min<uint64_t>(options_.clock->WallNs() / 1'000'000'000, UINT32_MAX - 1));
}

uint64_t Cache::HeldBytes() const {
  return row_bytes_ + snapshot_bytes_ + removing_row_bytes_ + removing_snapshot_bytes_ + other_bytes_;
}

uint64_t Cache::BlockCount() const {
  uint64_t count = 0;
  for (const auto& [root, space] : namespaces_) count += space->trie.block_count();
  return count;
}

uint64_t Cache::PercentOfCapacity(uint32_t percent) const {
  return options_.capacity_bytes / 100 * percent + options_.capacity_bytes % 100 * percent / 100;
}

// Below the high watermark, when `leaving_bytes` of what is being removed have gone.
bool Cache::Fits(RecordClass record_class, uint64_t bytes, uint64_t leaving_bytes) const {
  const uint64_t total = HeldBytes() + pending_row_bytes_ + pending_snapshot_bytes_ - leaving_bytes;
  const uint64_t most = PercentOfCapacity(options_.high_percent);
  if (total > most || bytes > most - total) return false;
  if (record_class == RecordClass::kRows) return BlockCount() + puts_.size() < options_.max_blocks;
  const uint64_t snapshots =
      snapshot_bytes_ + pending_snapshot_bytes_ + (leaving_bytes > 0 ? 0 : removing_snapshot_bytes_);
  return snapshots <= options_.snapshot_bytes && bytes <= options_.snapshot_bytes - snapshots;
}

// How much must be removed before a put of `bytes` leaves the medium what it is to keep. What is on its way has not
// taken its place yet, or is taking it just now.
uint64_t Cache::MissingFree(std::optional<uint64_t> free, uint64_t bytes) const {
  if (!free.has_value()) return 0;
  const uint64_t wanted = options_.keep_free_bytes + pending_row_bytes_ + pending_snapshot_bytes_ + bytes;
  return wanted > *free ? wanted - *free : 0;
}

absl::Status Cache::Reserve(RecordClass record_class, uint64_t bytes, std::chrono::steady_clock::time_point deadline) {
  const bool snapshot = record_class == RecordClass::kSnapshot;
  const uint64_t most = PercentOfCapacity(options_.high_percent);
  const uint64_t bound = snapshot ? std::min(options_.snapshot_bytes, most) : most;
  if (bytes > bound) {
    return base::MakeStatus(base::Code::kTooLarge, snapshot ? "snapshot_bytes" : "capacity_bytes",
                            "one record of " + std::to_string(bytes) + " bytes, the bound is " + std::to_string(bound));
  }
  MakingRoom room;
  while (true) {
    std::optional<uint64_t> free;
    if (options_.keep_free_bytes > 0) free = options_.storage->FreeBytes();
    std::vector<Removal> removals;
    {
      base::MutexLock lock(mutex_);
      if (closed_) return base::MakeStatus(base::Code::kInvalidState, "cache", "closed");
      const absl::StatusOr<bool> reserved = TryReserve(record_class, bytes, free, &room, &removals);
      if (!reserved.ok() || *reserved) return reserved.status();
      if (removals.empty() && !room.evicted) {
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

// True: counted as pending. False: try again after the removals, or when something has changed if there are none.
absl::StatusOr<bool> Cache::TryReserve(RecordClass record_class, uint64_t bytes, std::optional<uint64_t> free,
                                       MakingRoom* room, std::vector<Removal>* removals) {
  room->evicted = false;
  const uint64_t live = HeldBytes() - LeavingBytes() + pending_row_bytes_ + pending_snapshot_bytes_ + bytes;
  room->draining = room->draining || live > PercentOfCapacity(options_.high_percent);
  const uint64_t low = PercentOfCapacity(options_.low_percent);
  const uint64_t above_low = room->draining && live > low ? live - low : 0;
  const uint64_t missing = MissingFree(free, bytes);
  if (missing > 0 && !room->floor_budget.has_value()) room->floor_budget = missing;
  const uint64_t for_floor = std::min(missing, room->floor_budget.value_or(0));
  if (missing > 0 && for_floor == 0) {
    return base::MakeStatus(base::Code::kNoSpace, "keep_free_bytes",
                            std::to_string(missing) + " bytes of the floor are missing");
  }
  const bool fits = missing == 0 && Fits(record_class, bytes, 0);
  const auto reserve = [&] {
    (record_class == RecordClass::kSnapshot ? pending_snapshot_bytes_ : pending_row_bytes_) += bytes;
    return true;
  };
  if (fits && above_low == 0) return reserve();
  // Where what is leaving makes room enough, evicting more would only overshoot.
  if (above_low == 0 && missing == 0 && Fits(record_class, bytes, LeavingBytes())) return false;
  room->evicted = EvictBytes(record_class, bytes, std::max(above_low, for_floor), removals);
  for (const Removal& removal : *removals) {
    if (room->floor_budget.has_value()) *room->floor_budget -= std::min(*room->floor_budget, removal.bytes);
  }
  // What is left above the low watermark is leased.
  if (!room->evicted && fits) return reserve();
  return false;
}

void Cache::Unreserve(RecordClass record_class, uint64_t bytes) {
  (record_class == RecordClass::kSnapshot ? pending_snapshot_bytes_ : pending_row_bytes_) -= bytes;
  changed_.NotifyAll();
}

// A batch of blocks, or fewer when a record and at least `goal` bytes are leaving. False: nothing can be evicted.
bool Cache::EvictBytes(RecordClass record_class, uint64_t bytes, uint64_t goal, std::vector<Removal>* removals) {
  const uint64_t leaving_before = LeavingBytes();
  bool evicted = false;
  for (int i = 0; i < kEvictionBatch; ++i) {
    if (!EvictOne(record_class, bytes, removals)) break;
    evicted = true;
    if (!removals->empty() && LeavingBytes() - leaving_before >= goal) break;
  }
  return evicted;
}

// For a snapshot of `bytes`: within the snapshots' own share it is rows that give way, beyond it another snapshot.
bool Cache::EvictOne(RecordClass record_class, uint64_t bytes, std::vector<Removal>* removals) {
  const uint64_t snapshots = snapshot_bytes_ + pending_snapshot_bytes_ + removing_snapshot_bytes_;
  const bool in_share = snapshots <= options_.snapshot_bytes && bytes <= options_.snapshot_bytes - snapshots;
  for (const bool after_expiry : {false, true}) {
    if (after_expiry) ExpireLeases();
    if (record_class == RecordClass::kRows || in_share) {
      if (EvictExpired(removals) || EvictBlock(removals)) return true;
    }
    if (record_class == RecordClass::kSnapshot && EvictSnapshot(removals)) return true;
  }
  return false;
}

// What has expired goes before anything else. Looks at a bounded number of blocks: in a store with more, an expired one
// may be found some evictions later.
bool Cache::EvictExpired(std::vector<Removal>* removals) {
  const uint32_t now = NowSeconds();
  const uint64_t blocks_before = stats_.blocks_removed, snapshots_before = stats_.snapshots_removed;
  uint64_t removed = 0;
  for (const auto& [root, space] : namespaces_) {
    NameSpace& name_space = *space;
    removed += name_space.trie.SweepExpired(
        now, kSweepSlots, [&](const trie::BlockInfo& block) { ForgetBlock(name_space, block, removals); });
  }
  stats_.blocks_expired += removed;
  CountAsEvicted(blocks_before, snapshots_before);
  return removed > 0;
}

// ForgetBlock counts what goes as removed: an eviction is counted apart.
void Cache::CountAsEvicted(uint64_t blocks_removed_before, uint64_t snapshots_removed_before) {
  stats_.blocks_evicted += stats_.blocks_removed - blocks_removed_before;
  stats_.blocks_removed = blocks_removed_before;
  stats_.snapshots_evicted += stats_.snapshots_removed - snapshots_removed_before;
  stats_.snapshots_removed = snapshots_removed_before;
}

bool Cache::EvictBlock(std::vector<Removal>* removals) {
  if (unfreed_bytes_ > options_.capacity_bytes / kUnfreedShare && EvictOfCutRun(removals)) return true;
  while (true) {
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
    // Another's takes no room here: it only leaves the index, until it is asked for again.
    const bool others = IsOtherBlock(*coldest_space, coldest);
    if (!others) order_->Evicted(coldest.heat, tick_);
    EvictLeafBelow(*coldest_space, coldest.node, removals);
    if (!others) return true;
  }
}

// One block of what hangs on the coldest cut run, that run included. The frontier of heat stays where it is: this says
// nothing of how long the store can keep what is not cut.
bool Cache::EvictOfCutRun(std::vector<Removal>* removals) {
  NameSpace* coldest_space = nullptr;
  trie::BlockInfo coldest;
  for (const auto& [root, space] : namespaces_) {
    const std::optional<trie::BlockInfo> first = space->cut_runs.Coldest(space->trie);
    if (!first.has_value()) continue;
    if (coldest_space == nullptr || first->heat < coldest.heat) {
      coldest_space = space.get();
      coldest = *first;
    }
  }
  if (coldest_space == nullptr) return false;
  EvictLeafBelow(*coldest_space, coldest.node, removals);
  return true;
}

// `top` itself, if it is one.
void Cache::EvictLeafBelow(NameSpace& name_space, trie::NodeRef top, std::vector<Removal>* removals) {
  const uint64_t blocks_before = stats_.blocks_removed, snapshots_before = stats_.snapshots_removed;
  const auto on_block = [&](const trie::BlockInfo& block) {
    if (!IsOtherBlock(name_space, block)) ghosts_.Remember(block.key, block.frequency + 1);
    ForgetBlock(name_space, block, removals);
  };
  name_space.trie.DetachSubtree(top, on_block, 1).status().IgnoreError();
  CountAsEvicted(blocks_before, snapshots_before);
}

bool Cache::EvictSnapshot(std::vector<Removal>* removals) {
  // Those of others that are passed over are then the hottest: each is met once.
  for (uint64_t left = others_.count() + 1; left > 0; --left) {
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
    if (SpareOtherSnapshot(*coldest_space, coldest)) continue;
    DetachSnapshot(*coldest_space, coldest.snapshot, removals);
    stats_.snapshots_removed -= 1;
    stats_.snapshots_evicted += 1;
    return true;
  }
  return false;
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

void Cache::ForgetSnapshot(NameSpace& name_space, const base::BlockDigest& boundary, const trie::SnapshotInfo& snapshot,
                           std::vector<Removal>* removals) {
  const base::BlockDigest digest = format::SnapshotKey(boundary, snapshot.position, snapshot.tail_digest);
  const storage::Key key{format::MakeRecordKey(format::RecordKind::kSnapshot, digest)};
  if (ForgetOtherSnapshot(key, snapshot.bytes)) return;
  CountRemoval(RecordClass::kSnapshot, key, snapshot.bytes, removals);
  stats_.snapshots_removed += 1;
  events_.Add(
      {EventKind::kSnapshotRemoved, 0, name_space.LifeOfBlocks(), boundary.digest, snapshot.position, snapshot.bytes});
}

// A block that has left the trie leaves the storage, too, with its snapshots; of a run, with the first block.
void Cache::ForgetBlock(NameSpace& name_space, const trie::BlockInfo& block, std::vector<Removal>* removals) {
  name_space.snapshots.RemoveAt(block.node, [&](const trie::SnapshotInfo& snapshot) {
    ForgetSnapshot(name_space, block.key, snapshot, removals);
  });
  if (ForgetOtherBlock(name_space, block)) return;
  const trie::BlockInfo first = name_space.trie.FirstOfRun(block);
  const uint64_t share = trie::RunShare(first.bytes, block.run);
  if (block.run.index > 0) {
    unfreed_bytes_ += share;
    if (block.run.index + 1 == block.run.blocks) name_space.cut_runs.Add(name_space.trie, first);
  } else {
    unfreed_bytes_ -= first.bytes - share;
    if (block.run.blocks > 1) name_space.cut_runs.Remove();
    CountRemoval(RecordClass::kRows, {format::MakeRecordKey(format::RecordKind::kBlock, block.key)}, first.bytes,
                 removals);
  }
  stats_.blocks_removed += 1;
  events_.Add({EventKind::kBlockRemoved, 0, name_space.LifeOfBlocks(), block.key.digest,
               name_space.BlockEnd(block.depth), share});
}

// Of a run that has just come into the index, without its last `missing` blocks.
void Cache::CountCutRun(NameSpace& name_space, const base::BlockDigest& first, uint32_t missing) {
  if (missing == 0) return;  // nearly always
  const std::optional<trie::NodeRef> node = name_space.trie.Find(first);
  if (!node.has_value()) return;
  const trie::BlockInfo info = *name_space.trie.Get(*node);
  unfreed_bytes_ += trie::RunShare(info.bytes, {1, info.run.blocks}) * missing;
  name_space.cut_runs.Add(name_space.trie, info);
}

void Cache::DetachBlock(NameSpace& name_space, trie::NodeRef node, std::vector<Removal>* removals, uint64_t most) {
  // The root is no block, but what hangs on it goes with it.
  if (node == name_space.trie.root()) {
    name_space.snapshots.RemoveAt(node, [&](const trie::SnapshotInfo& snapshot) {
      ForgetSnapshot(name_space, name_space.trie.root_key(), snapshot, removals);
    });
  }
  const auto on_block = [&](const trie::BlockInfo& block) { ForgetBlock(name_space, block, removals); };
  name_space.trie.DetachSubtree(node, on_block, most).status().IgnoreError();
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
  ForgetSnapshot(name_space, boundary, *info, removals);
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
  // What is too much now: others may store as fast as this evicts.
  std::optional<uint64_t> left;
  while (true) {
    std::vector<Removal> removals;
    {
      base::MutexLock lock(mutex_);
      const uint64_t above = HeldBytes() - std::min(HeldBytes(), target_bytes);
      if (!left.has_value()) left = above;
      if (above == 0 || *left == 0) return HeldBytes();
      if (!EvictOne(RecordClass::kRows, 0, &removals) && !EvictSnapshot(&removals)) return HeldBytes();
    }
    for (const Removal& removal : removals) *left -= std::min(*left, removal.bytes);
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
