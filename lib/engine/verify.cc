// SPDX-License-Identifier: Apache-2.0
// Checking every stored record against its own head and checksums.
#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/engine/cache.h"

namespace kvstrata::core::engine {
namespace {

constexpr uint64_t kPageEntries = 64;

// OK when head, slices and checksums of a whole record agree with its meta. `replaced`: the head is that of another
// placement, as when the record was stored anew since it was listed.
absl::Status CheckRecord(base::ByteView record, const format::RecordMeta& meta, bool* replaced) {
  if (record.size() < format::kHeadPrefixBytes) return base::Corrupt("head", "cut off");
  const absl::StatusOr<uint64_t> head_bytes = format::PeekHeadBytes(record.first(format::kHeadPrefixBytes));
  if (!head_bytes.ok()) return head_bytes.status();
  if (*head_bytes > record.size()) return base::Corrupt("head", "longer than the record");
  const absl::StatusOr<format::RecordHead> head = format::DecodeHead(record.first(*head_bytes));
  if (!head.ok()) return head.status();
  *replaced = head->identity.sequence != meta.identity.sequence;
  if (head->identity != meta.identity) return base::Corrupt("identity", "head and meta differ");
  uint64_t offset = *head_bytes;
  for (size_t i = 0; i < head->checksums.size(); ++i) {
    const format::Slice& slice = head->slices[i / head->blocks()];
    if (slice.bytes > record.size() - offset) return base::Corrupt("slice", "longer than the record");
    if (!slice.absent &&
        base::Checksum(record.subspan(offset, slice.bytes), head->identity.sequence) != head->checksums[i]) {
      return base::Corrupt("slice", "checksum differs");
    }
    offset += slice.bytes;
  }
  return offset == record.size() ? absl::OkStatus() : base::Corrupt("payload", "longer than its slices");
}

}  // namespace

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
  const absl::StatusOr<std::vector<std::byte>> bytes = GetAndWait(entry.key, 0, entry.payload_bytes);
  bool replaced = false;
  absl::Status status = bytes.ok() ? CheckRecord(*bytes, *meta, &replaced) : bytes.status();
  if (status.ok()) return;
  const base::Code code = base::CodeOf(status);
  // A head of a later version behind a meta of this one is damage, too.
  const bool gone = replaced || code == base::Code::kNotFound;
  if (code != base::Code::kCorrupt && code != base::Code::kFormatTooNew && !gone) {
    info->unreadable += 1;
    return;
  }
  std::vector<Removal> removals;
  if (!options_.read_only) {
    base::MutexLock lock(mutex_);
    DetachByMeta(*meta, &removals);
  }
  if (gone && removals.empty()) {
    info->records -= 1;  // evicted or stored anew since it was listed; it would be lost if the index still promised it
    return;
  }
  info->corrupt += 1;
  info->removed += removals.size();
  RunRemovals(removals);
}

// Only if the index still holds this very placement: the record may have been replaced since it was listed.
void Cache::DetachByMeta(const format::RecordMeta& meta, std::vector<Removal>* removals) {
  for (const auto& [root, space] : namespaces_) {
    if (space->life != meta.identity.name_space) continue;
    const bool at_root = meta.identity.key == space->trie.root_key();
    const std::optional<trie::NodeRef> node =
        at_root ? std::optional(space->trie.root()) : space->trie.Find(meta.identity.key);
    if (!node.has_value()) return;
    if (meta.identity.kind == format::RecordKind::kBlock && !at_root) {
      const std::optional<trie::BlockInfo> info = space->trie.Get(*node);
      if (info.has_value() && info->sequence == meta.identity.sequence) DetachBlock(*space, *node, removals);
      return;
    }
    if (meta.identity.kind != format::RecordKind::kSnapshot) return;
    for (const trie::SnapshotInfo& snapshot : space->snapshots.FindOnPath(*node, meta.identity.position)) {
      if (snapshot.sequence == meta.identity.sequence) {
        DetachSnapshot(*space, snapshot.snapshot, removals);
        return;
      }
    }
    return;
  }
}

}  // namespace kvstrata::core::engine
