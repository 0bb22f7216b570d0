// SPDX-License-Identifier: Apache-2.0
// How a put ends: into the index, in the order of its chain, or out of the storage again.
#include "lib/engine/put.h"

#include <utility>

#include "lib/base/status.h"
#include "lib/engine/io.h"

namespace kvstrata::core::engine {
namespace {

// Once would do for a put that is alone: what it evicts may go to others, which are on their way at the same time.
constexpr uint32_t kPutRetries = 8;

// Owns itself until the storage has answered.
void CompletePut(void* user, const storage::Result& result) {
  const std::unique_ptr<std::shared_ptr<Put>> reference(static_cast<std::shared_ptr<Put>*>(user));
  const std::shared_ptr<Put> put = *reference;
  const std::shared_ptr<Cache> cache = put->cache;
  cache->FinishPut(put, result.status);
}

}  // namespace

std::shared_ptr<Put> Cache::FindPut(const storage::Key& key) const {
  const auto found = puts_.find(key);
  return found == puts_.end() ? nullptr : found->second;
}

void Cache::AddPut(const std::shared_ptr<Put>& put) {
  puts_.emplace(put->key, put);
  for (const base::BlockDigest& key : put->more) {
    puts_.emplace(storage::Key{format::MakeRecordKey(format::RecordKind::kBlock, key)}, put);
  }
  put->progress->pending += 1;
}

absl::Status Cache::SubmitPut(const std::shared_ptr<Put>& put, Deadline deadline) {
  auto* reference = new std::shared_ptr<Put>(put);
  const storage::Request request{storage::Put{put->key, {&put->record, 1}, put->meta}, {&CompletePut, reference}};
  absl::Status status = SubmitPatiently(storage(), request, deadline);
  if (!status.ok()) delete reference;
  return status;
}

// The medium has less room than the budget says: as much as the put needs is evicted, and it is tried again. On a
// thread of the storage, which is not to be kept waiting: a queue that is full ends the put.
bool Cache::RetryPut(const std::shared_ptr<Put>& put) {
  if (put->retries++ >= kPutRetries) return false;
  std::vector<Removal> removals;
  {
    base::MutexLock lock(mutex_);
    if (closed_ || !EvictBytes(put->record_class, 0, put->stored_bytes, &removals)) return false;
  }
  RunRemovals(removals);
  return SubmitPut(put, Deadline::min()).ok();
}

void Cache::FinishPut(const std::shared_ptr<Put>& put, absl::Status status) {
  if (base::CodeOf(status) == base::Code::kNoSpace && RetryPut(put)) return;
  std::vector<Removal> removals;
  // Given back before the lock is taken: the allocator may be the caller's.
  put->staging.Reset();
  SettleStaging();
  {
    base::MutexLock lock(mutex_);
    put->io_done = true;
    put->io_status = std::move(status);
    ResolvePut(put, &removals);
    changed_.NotifyAll();
  }
  RunRemovals(removals);
}

// Iterative: a chain of small blocks may have thousands of puts that wait for each other.
void Cache::ResolvePut(const std::shared_ptr<Put>& first, std::vector<Removal>* removals) {
  std::vector<std::shared_ptr<Put>> ready = {first};
  while (!ready.empty()) {
    const std::shared_ptr<Put> put = std::move(ready.back());
    ready.pop_back();
    if (!put->io_done || put->resolved) continue;
    if (put->parent != nullptr && !put->parent->resolved) continue;
    put->resolved = true;
    put->stored = put->io_status.ok() && EnterIndex(*put);
    if (!put->stored) FailPut(*put, removals);
    FinishOpenPut(*put);
    for (std::shared_ptr<Put>& next : put->waiting) {
      PinParent(*next);
      ready.push_back(std::move(next));
    }
    put->waiting.clear();
  }
}

// The parent has come; it stays until its child has come, too. False when it is not there.
bool Cache::PinParent(Put& put) {
  trie::Trie& trie = put.name_space->trie;
  const std::optional<trie::NodeRef> node =
      put.parent->stored ? trie.Find(put.boundary()) : std::optional<trie::NodeRef>();
  if (!node.has_value() || !trie.Lease(*node).ok()) return false;
  put.pinned = *node;
  return true;
}

bool Cache::EnterIndex(Put& put) {
  NameSpace& space = *put.name_space;
  if (!space.is_usable() || space.life != put.identity.name_space) return false;
  if (put.parent != nullptr && !put.parent->stored) return false;
  if (put.coded) space.has_coded = true;
  const uint64_t depth = put.identity.position / space.facts.block_tokens;
  if (put.is_snapshot()) {
    const std::optional<trie::NodeRef> node =
        depth == 0 ? std::optional(space.trie.root()) : space.trie.Find(put.identity.key);
    if (!node.has_value()) return false;
    const auto added = space.snapshots.Add(*node, put.identity.position, put.identity.tail, put.identity.sequence,
                                           put.stored_bytes, NextTick());
    if (!added.ok() || !added->inserted) return false;
    pending_snapshot_bytes_ -= put.stored_bytes;
    snapshot_bytes_ += put.stored_bytes;
    stats_.snapshots_stored += 1;
    put.progress->snapshots_stored += 1;
    events_.Add({EventKind::kSnapshotStored, 0, put.identity.name_space, put.identity.key.digest, put.identity.position,
                 put.stored_bytes});
  } else {
    const std::optional<trie::NodeRef> parent =
        depth == 1 ? std::optional(space.trie.root()) : space.trie.Find(put.identity.parent);
    if (!parent.has_value() || !EnterRun(put, *parent)) return false;
    pending_row_bytes_ -= put.stored_bytes;
    row_bytes_ += put.stored_bytes;
  }
  stats_.bytes_in += put.stored_bytes;
  stats_.compressed_from_bytes += put.compressed_from;
  stats_.compressed_to_bytes += put.compressed_to;
  stats_.packed_slices += put.packed_slices;
  stats_.off_grid_slices += put.off_grid_slices;
  put.progress->stored_bytes += put.stored_bytes;
  return true;
}

// Block by block; where the index has no room for more, the run is cut there.
bool Cache::EnterRun(Put& put, trie::NodeRef parent) {
  NameSpace& space = *put.name_space;
  const auto blocks = static_cast<uint32_t>(put.blocks());
  const uint64_t tick = NextTickOfRun(blocks);
  uint32_t entered = 0;
  for (; entered < blocks; ++entered) {
    const base::BlockDigest& key = put.BlockKey(entered);
    const trie::BlockWorth worth{put.priority, ghosts_.Recall(key).value_or(0)};
    const auto inserted = space.trie.Insert(parent, key, put.identity.sequence, entered == 0 ? put.stored_bytes : 0,
                                            tick, put.expires_at, worth, {entered, blocks});
    if (!inserted.ok() || !inserted->inserted) break;
    parent = inserted->node;
    events_.Add({EventKind::kBlockStored, 0, put.identity.name_space, key.digest,
                 put.identity.position + space.BlockEnd(entered), trie::RunShare(put.stored_bytes, {entered, blocks})});
  }
  if (entered == 0) return false;
  CountCutRun(space, put.identity.key, blocks - entered);
  stats_.blocks_stored += entered;
  put.progress->blocks_stored += entered;
  if (entered < blocks) DropBlocks(put, blocks - entered, base::Code::kNoSpace);
  return true;
}

void Cache::DropBlocks(Put& put, uint64_t blocks, base::Code reason) {
  stats_.blocks_dropped += blocks;
  put.progress->blocks_dropped += blocks;
  put.progress->drop_reason = reason;
}

void Cache::FailPut(Put& put, std::vector<Removal>* removals) {
  (put.is_snapshot() ? pending_snapshot_bytes_ : pending_row_bytes_) -= put.stored_bytes;
  if (put.io_status.ok()) {
    // The record is in the storage, but nothing may ever find it: take it out again. It counts as come and gone.
    stats_.bytes_in += put.stored_bytes;
    (put.is_snapshot() ? removing_snapshot_bytes_ : removing_row_bytes_) += put.stored_bytes;
    removing_.insert(put.key);
    removals->push_back({put.key, put.stored_bytes, put.record_class});
  }
  DropBlocks(put, put.blocks(), put.io_status.ok() ? base::Code::kNotFound : base::CodeOf(put.io_status));
  if (!put.is_snapshot()) return;
  stats_.snapshots_dropped += 1;
  put.progress->snapshots_dropped += 1;
}

void Cache::FinishOpenPut(Put& put) {
  if (put.pinned.valid()) put.name_space->trie.Release(put.pinned).IgnoreError();
  put.pinned = {};
  put.parent = nullptr;
  put.progress->pending -= 1;
  puts_.erase(put.key);
  for (const base::BlockDigest& key : put.more) {
    puts_.erase(storage::Key{format::MakeRecordKey(format::RecordKind::kBlock, key)});
  }
}

}  // namespace kvstrata::core::engine
