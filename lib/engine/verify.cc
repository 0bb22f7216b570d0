// SPDX-License-Identifier: Apache-2.0
// Checking every stored record against its own head and checksums.
#include <algorithm>
#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/engine/cache.h"

namespace kvstrata::core::engine {
namespace {

constexpr uint64_t kPageEntries = 64;

// A record is checked in pieces of this size, or of one slice where that is larger: a run may be larger than all
// staging memory.
constexpr uint64_t kPieceBytes = 1u << 20;

}  // namespace

// OK when head, slices and checksums of a whole record agree with its meta. `replaced`: the head is that of another
// placement, as when the record was stored anew since it was listed. `good_blocks`: where slices of a run are damaged,
// how many blocks come before the first that has one.
absl::Status Cache::CheckRecord(const storage::ListEntry& entry, const format::RecordMeta& meta, bool* replaced,
                                uint64_t* good_blocks) {
  std::vector<std::byte> piece;
  uint64_t begin = 0;
  const auto read = [&](uint64_t offset, uint64_t bytes) -> absl::StatusOr<base::ByteView> {
    if (offset > entry.payload_bytes || bytes > entry.payload_bytes - offset) return base::Corrupt("record", "cut off");
    if (offset < begin || offset + bytes > begin + piece.size()) {
      const uint64_t more = std::max(bytes, std::min(kPieceBytes, entry.payload_bytes - offset));
      absl::StatusOr<std::vector<std::byte>> got = GetAndWait(entry.key, offset, more);
      if (!got.ok()) return got.status();
      piece = *std::move(got);
      begin = offset;
    }
    return base::ByteView(piece).subspan(offset - begin, bytes);
  };
  const absl::StatusOr<base::ByteView> prefix = read(0, format::kHeadPrefixBytes);
  if (!prefix.ok()) return prefix.status();
  const absl::StatusOr<uint64_t> head_bytes = format::PeekHeadBytes(*prefix);
  if (!head_bytes.ok()) return head_bytes.status();
  const absl::StatusOr<base::ByteView> head_view = read(0, *head_bytes);
  if (!head_view.ok()) return head_view.status();
  const absl::StatusOr<format::RecordHead> head = format::DecodeHead(*head_view);
  if (!head.ok()) return head.status();
  *replaced = head->identity.sequence != meta.identity.sequence;
  if (head->identity != meta.identity || head->more != meta.more || head->coded() != meta.coded) {
    return base::Corrupt("identity", "head and meta differ");
  }
  uint64_t offset = *head_bytes, good = head->blocks();
  for (size_t i = 0; i < head->checksums.size(); ++i) {
    const format::Slice& slice = head->slices[i / head->blocks()];
    const uint64_t stored = head->StoredBytes(i / head->blocks(), i % head->blocks());
    const absl::StatusOr<base::ByteView> bytes = read(offset, stored);
    if (!bytes.ok()) return bytes.status();
    const bool intact = slice.absent || base::Checksum(*bytes, head->identity.sequence) == head->checksums[i];
    if (!intact) good = std::min(good, i % head->blocks());
    offset += stored;
  }
  if (offset != entry.payload_bytes) return base::Corrupt("payload", "longer than its slices");
  if (good == head->blocks()) return absl::OkStatus();
  *good_blocks = good;
  return base::Corrupt("slice", "checksum differs");
}

absl::StatusOr<VerifyInfo> Cache::Verify(const Progress& progress) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  VerifyInfo info;
  uint64_t total = 0;
  {
    base::MutexLock lock(mutex_);
    total = HeldBytes();
  }
  storage::ListPage page;
  for (storage::Cursor cursor; !page.done; cursor = page.next) {
    if (absl::Status status = options_.storage->List(cursor, kPageEntries, &page); !status.ok()) return status;
    info.corrupt += page.skipped;
    for (const storage::ListEntry& entry : page.entries) {
      VerifyEntry(entry, &info);
      if (progress && !progress(info.bytes, total)) {
        return base::MakeStatus(base::Code::kCancelled, "verify", "stopped by the progress callback");
      }
    }
  }
  return info;
}

void Cache::VerifyEntry(const storage::ListEntry& entry, VerifyInfo* info) {
  info->records += 1;
  info->bytes += entry.stored_bytes;
  const absl::StatusOr<format::RecordMeta> meta = format::DecodeRecordMeta(entry.meta);
  if (!meta.ok()) {
    info->corrupt += 1;
    return;
  }
  bool replaced = false;
  uint64_t good_blocks = 0;
  const absl::Status status = CheckRecord(entry, *meta, &replaced, &good_blocks);
  if (status.ok()) return;
  const base::Code code = base::CodeOf(status);
  // A head of a later version behind a meta of this one is damage, too.
  const bool gone = replaced || code == base::Code::kNotFound;
  if (code != base::Code::kCorrupt && code != base::Code::kFormatTooNew && !gone) {
    info->unreadable += 1;
    return;
  }
  std::vector<Removal> removals;
  bool detached = false;
  if (!options_.read_only) {
    base::MutexLock lock(mutex_);
    const uint64_t before = stats_.blocks_removed + stats_.snapshots_removed;
    detached = DetachByMeta(*meta, good_blocks, &removals);
    info->removed += stats_.blocks_removed + stats_.snapshots_removed - before;
  }
  RunRemovals(removals);
  if (!detached && gone) {
    info->records -= 1;  // evicted or stored anew since it was listed; it would be lost if the index still promised it
    return;
  }
  if (!detached && WasReplaced(entry, *meta)) {
    info->records -= 1;
    return;
  }
  // The damaged end of a run of which nobody is promised more than the beginning has been found before.
  if (!detached && good_blocks > 0 && !options_.read_only) return;
  info->corrupt += 1;
}

// A record that was stored anew while its pieces were read looks damaged: what is there now says so.
bool Cache::WasReplaced(const storage::ListEntry& entry, const format::RecordMeta& meta) {
  const absl::StatusOr<std::optional<uint64_t>> bytes = options_.storage->Stat(entry.key);
  if (!bytes.ok()) return false;
  if (!bytes->has_value() || **bytes != entry.payload_bytes) return true;
  bool replaced = false;
  uint64_t good_blocks = 0;
  const absl::Status again = CheckRecord(entry, meta, &replaced, &good_blocks);
  return again.ok() || replaced || base::CodeOf(again) == base::Code::kNotFound;
}

// Only if the index still holds this very placement: the record may have been replaced since it was listed. Of a run,
// its blocks from `good_blocks` on.
bool Cache::DetachByMeta(const format::RecordMeta& meta, uint64_t good_blocks, std::vector<Removal>* removals) {
  for (const auto& [root, space] : namespaces_) {
    if (space->life != meta.identity.name_space) continue;
    const bool at_root = meta.identity.key == space->trie.root_key();
    const base::BlockDigest& key = good_blocks == 0 ? meta.identity.key : meta.more[good_blocks - 1];
    const std::optional<trie::NodeRef> node = at_root ? std::optional(space->trie.root()) : space->trie.Find(key);
    if (!node.has_value()) return false;
    if (meta.identity.kind == format::RecordKind::kBlock && !at_root) {
      const std::optional<trie::BlockInfo> info = space->trie.Get(*node);
      if (!info.has_value() || info->sequence != meta.identity.sequence) return false;
      DetachBlock(*space, *node, removals);
      return true;
    }
    if (meta.identity.kind != format::RecordKind::kSnapshot) return false;
    for (const trie::SnapshotInfo& snapshot : space->snapshots.FindOnPath(*node, meta.identity.position)) {
      if (snapshot.sequence == meta.identity.sequence) {
        DetachSnapshot(*space, snapshot.snapshot, removals);
        return true;
      }
    }
    return false;
  }
  return false;
}

}  // namespace kvstrata::core::engine
