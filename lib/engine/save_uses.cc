// SPDX-License-Identifier: Apache-2.0
// Recency, frequency, priority and time to live, kept across restarts: all that the indexes know of the use of blocks
// and snapshots is written down in a few records of the storage ("Uses" in FORMAT.md), part by part, and read by the
// next open. What is written may be a little old by then; it orders evictions and promises nothing.
//
// Written at a close, at a sync, and by a worker, each when so many uses have come to pass that the writing is a small
// part of theirs. What could not be written is due still: it is tried again after a pause that grows with each failure,
// and at the close. In lanes, each writer writes of what is its own.
#include <algorithm>
#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/engine/cache.h"
#include "lib/engine/io.h"

namespace kvstrata::core::engine {
namespace {

// Of a part's table, which a reader relies on: a million blocks, each used in its own way, are 23 MiB in all.
constexpr uint64_t kPartBytes = 1u << 20;
constexpr uint64_t kStagingShare = 4;
// Looked at with the lock held.
constexpr uint64_t kSlotsAStep = 4096;
// So many make a worker write them down.
constexpr uint64_t kUsesToSave = 1024;
// A close waits for the workers: none may hang on a storage that does.
constexpr uint64_t kUsesPatienceMs = 1000;
// The pause after a failure, doubled so many times at most.
constexpr uint64_t kUsesPauseNs = 1'000'000'000;
constexpr uint32_t kMaxDoublings = 6;
// More than the 2^32 blocks of an index take.
constexpr uint64_t kMaxParts = uint64_t{1} << 17;
// Uses between two writings: a 64th of the blocks, so that each use pays for the entries of 64.
constexpr uint64_t kBlocksAUse = 64;
// What all parts may take of the capacity: blocks that are smaller than 64 entries are no model's.
constexpr uint64_t kCapacityShare = 64;

base::BlockDigest PartKey(uint64_t part) { return {{part, 0}, 0}; }

bool UsedAlike(const format::BlockUses& before, const format::BlockUses& next) {
  return before.sequence == next.sequence && before.first + uint32_t{1} + before.more == next.first &&
         before.heat == next.heat && before.frequency == next.frequency && before.expires_at == next.expires_at &&
         before.priority == next.priority;
}

void Append(const trie::BlockInfo& block, std::vector<format::BlockUses>* blocks) {
  format::BlockUses uses;
  uses.sequence = block.sequence;
  uses.heat = block.heat;
  uses.frequency = static_cast<uint16_t>(block.frequency);
  uses.expires_at = block.expires_at;
  uses.first = static_cast<uint8_t>(block.run.index);
  uses.priority = static_cast<uint8_t>(block.priority);
  // Blocks of a run that came together lie in slots next to each other.
  if (!blocks->empty() && UsedAlike(blocks->back(), uses)) {
    ++blocks->back().more;
  } else {
    blocks->push_back(uses);
  }
}

}  // namespace

// How far one writing has come.
struct Cache::UsesCursor {
  std::vector<std::shared_ptr<NameSpace>> spaces;
  size_t space = 0;
  bool snapshots = false;  // the space's blocks have been told
  uint64_t slot = 0;
  bool done() const { return space == spaces.size(); }
};

bool Cache::UsesAreDue(uint64_t least) const {
  if (options_.read_only || flush_failed_ || !options_.storage->capabilities().persistent) return false;
  if (NowNs() < uses_retry_ns_) return false;
  const uint64_t blocks = BlockCount();
  if (blocks * format::kBlockUsesBytes > options_.capacity_bytes / kCapacityShare) return false;
  return tick_ - saved_tick_ >= std::max(least, blocks / kBlocksAUse);
}

void Cache::SaveUses(uint64_t least, std::chrono::steady_clock::time_point deadline) {
  UsesCursor cursor;
  uint64_t saved_before = 0;
  base::MutexLock saving(uses_mutex_);
  {
    base::MutexLock lock(mutex_);
    if (!UsesAreDue(least)) return;
    saved_before = std::exchange(saved_tick_, tick_);
    for (const auto& [root, space] : namespaces_) cursor.spaces.push_back(space);
  }
  const bool saved = WriteAllUses(&cursor, deadline);
  base::MutexLock lock(mutex_);
  uses_retry_ns_ = saved ? 0 : NowNs() + (kUsesPauseNs << std::min(uses_failures_, kMaxDoublings));
  uses_failures_ = saved ? 0 : uses_failures_ + 1;
  if (!saved) saved_tick_ = saved_before;
}

bool Cache::WriteAllUses(UsesCursor* cursor, std::chrono::steady_clock::time_point deadline) {
  uint64_t part = 0;
  for (; !cursor->done() && part < kMaxParts; ++part) {
    if (!WriteUses(part, CollectUses(cursor), deadline)) return false;
  }
  for (; uses_bytes_.size() > part; uses_bytes_.pop_back()) {
    const storage::Key key{format::MakeRecordKey(format::RecordKind::kUses, PartKey(uses_bytes_.size() - 1))};
    if (!options_.storage->Remove(key).ok()) return false;
    base::MutexLock lock(mutex_);
    other_bytes_ -= uses_bytes_.back();
    stats_.bytes_out += uses_bytes_.back();
  }
  return true;
}

// By a worker. The others go on with restores while one of them writes.
void Cache::SaveUsesBetweenJobs() {
  {
    base::MutexLock lock(mutex_);
    if (!UsesAreDue(kUsesToSave)) return;
  }
  SaveUses(kUsesToSave, DeadlineAfterMs(kUsesPatienceMs));
}

// One part's worth.
format::Uses Cache::CollectUses(UsesCursor* cursor) {
  const uint64_t storage_bytes = options_.storage->capabilities().max_payload_bytes / kStagingShare;
  const uint64_t bytes = std::min({kPartBytes, options_.staging_bytes / kStagingShare, storage_bytes});
  const uint64_t room = bytes > format::kUsesHeadBytes ? bytes - format::kUsesHeadBytes : 0;
  const uint64_t most = std::max<uint64_t>(room / format::kBlockUsesBytes, 1);
  static_assert(format::kBlockUsesBytes == format::kSnapshotUsesBytes);
  format::Uses uses;
  while (!cursor->done() && uses.blocks.size() + uses.snapshots.size() < most) {
    const uint64_t step = std::min(kSlotsAStep, most - uses.blocks.size() - uses.snapshots.size());
    base::MutexLock lock(mutex_);
    uses.tick = tick_;
    uses.frontier = order_->frontier();
    NameSpace& space = *cursor->spaces[cursor->space];
    if (cursor->snapshots) {
      cursor->slot = space.snapshots.VisitSlots(cursor->slot, step, [&](const trie::SnapshotInfo& snapshot) {
        if (IsOtherSnapshot(space, snapshot)) return;
        uses.snapshots.push_back({snapshot.sequence, snapshot.last_use, snapshot.frequency});
      });
    } else {
      std::vector<trie::BlockInfo> found;  // looked at behind the visit, which may not call the trie
      cursor->slot =
          space.trie.VisitSlots(cursor->slot, step, [&](const trie::BlockInfo& block) { found.push_back(block); });
      for (const trie::BlockInfo& block : found) {
        if (!IsOtherBlock(space, block)) Append(block, &uses.blocks);
      }
    }
    if (cursor->slot > 0) continue;
    if (cursor->snapshots) ++cursor->space;
    cursor->snapshots = !cursor->snapshots;
  }
  return uses;
}

// A part takes its place in the byte budget as the store's own records do. False: it could not be written.
bool Cache::WriteUses(uint64_t part, const format::Uses& uses, std::chrono::steady_clock::time_point deadline) {
  const std::vector<std::byte> table = format::EncodeUses(uses);
  format::RecordHead head;
  head.identity.kind = format::RecordKind::kUses;
  head.identity.key = PartKey(part);
  {
    base::MutexLock lock(mutex_);
    head.identity.sequence = NextSequence();
  }
  head.slices = {{0, false, table.size()}};
  head.checksums = {base::Checksum(table, head.identity.sequence)};
  std::vector<std::byte> payload = format::EncodeHead(head);
  payload.insert(payload.end(), table.begin(), table.end());
  const std::vector<std::byte> meta = format::EncodeRecordMeta({head.identity, payload.size(), {}});
  const uint64_t bytes = options_.storage->StoredBytes(payload.size(), meta.size());
  if (part == uses_bytes_.size()) uses_bytes_.push_back(0);
  const uint64_t before = uses_bytes_[part];
  const uint64_t growth = bytes > before ? bytes - before : 0;
  if (growth > 0 && !MakeRoomForUses(growth)) return false;
  const absl::Status written = PutAndWait(KeyOfRecord(head.identity), payload, meta, deadline);
  base::MutexLock lock(mutex_);
  if (growth > 0) Unreserve(RecordClass::kRows, growth);
  // One that is stuck may come to pass yet, and takes its place then.
  const bool stuck = base::CodeOf(written) == base::Code::kTimeout;
  if (!written.ok() && !stuck) return false;
  uses_bytes_[part] = stuck ? before + growth : bytes;
  other_bytes_ += uses_bytes_[part] - before;
  stats_.bytes_in += uses_bytes_[part] - before;
  return !stuck;
}

bool Cache::MakeRoomForUses(uint64_t bytes) {
  MakingRoom room;
  while (true) {
    std::vector<Removal> removals;
    {
      base::MutexLock lock(mutex_);
      const absl::StatusOr<bool> reserved = TryReserve(RecordClass::kRows, bytes, std::nullopt, &room, &removals);
      if (!reserved.ok()) return false;
      if (*reserved) return true;
      if (removals.empty() && !room.evicted) return false;
    }
    RunRemovals(removals);
  }
}

// ---- Reading -------------------------------------------------------------------------------------------------------

// A part that is damaged or lost is not known: it is written anew in time. Errors are those of this process, not of the
// medium.
absl::Status Cache::ReadUses(std::vector<format::RecordMeta> metas, SavedUses* saved) {
  // As they were written; a writer that was stopped has left older parts beside newer ones.
  std::ranges::sort(metas, {}, [](const format::RecordMeta& meta) { return meta.identity.sequence; });
  for (const format::RecordMeta& meta : metas) {
    const uint64_t bytes = options_.storage->StoredBytes(meta.payload_bytes, format::MetaBytes(meta.blocks()));
    other_bytes_ += bytes;
    stats_.bytes_in += bytes;
    const uint64_t part = meta.identity.key.digest.lo;
    if (part < kMaxParts) {
      uses_bytes_.resize(std::max<size_t>(uses_bytes_.size(), part + 1));
      uses_bytes_[part] = bytes;
    }
    absl::StatusOr<std::vector<std::byte>> table = ReadOnlySlice(meta, kPartBytes + format::HeadBytes(0, 0, 1));
    const absl::StatusOr<format::Uses> uses =
        table.ok() ? format::DecodeUses(*table) : absl::StatusOr<format::Uses>(table.status());
    const base::Code code = base::CodeOf(uses.status());
    const bool lost = code == base::Code::kCorrupt || code == base::Code::kFormatTooNew ||
                      code == base::Code::kNotFound || code == base::Code::kIo || code == base::Code::kTooLarge;
    if (!uses.ok() && !lost) return uses.status();
    if (uses.ok()) saved->Add(*uses);
    stats_.skipped_corrupt += lost ? 1 : 0;
  }
  saved->Prepare();
  order_->GoOnFrom(saved->frontier());
  return absl::OkStatus();
}

}  // namespace kvstrata::core::engine
