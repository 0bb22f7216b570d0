// SPDX-License-Identifier: Apache-2.0
// How a writer makes a record of rows that it copies from the sources, and launches it.
#include "lib/engine/writer.h"

#include <algorithm>
#include <string>

#include "lib/base/checksum.h"
#include "lib/base/copy.h"
#include "lib/base/status.h"

namespace kvstrata::core::engine {

int32_t Writer::PinnedDevice() const {
  for (const std::optional<Buffer>& source : sources_) {
    if (source.has_value() && source->on_device()) return source->desc().device_id;
  }
  return -1;
}

absl::Status Writer::Gather(std::span<const Part> parts, uint64_t offset, StagingBuffer* staging,
                            format::RecordHead* summed) {
  DeviceCopies copies(cache_->device(), options_.stream, cache_->options().io_timeout_ms);
  absl::Status status;
  for (const Part& part : parts) {
    status = Gather(part, staging->bytes().subspan(offset, part.bytes), &copies, summed);
    if (!status.ok()) break;
    offset += part.bytes;
  }
  // Once for all of them. Also behind a failure: some copies may be under way.
  absl::Status copied = copies.WaitQueued();
  if (copies.lost()) staging->Forfeit();
  return status.ok() ? copied : status;
}

absl::Status Writer::Gather(const Part& part, base::MutableBytes rows, DeviceCopies* copies,
                            format::RecordHead* summed) {
  const uint32_t stream = part.stream;
  RowRange range = part.range;
  const Buffer& source = *sources_[stream];
  const layout::Stream& description = layout().stream(stream);
  if (description.kind == layout::StreamKind::kRows) {
    range.element_zero = source.desc().first_row;
    // A ring keeps the newest rows: where an older one was, another's bytes are now.
    const uint64_t capacity = source.desc().capacity_rows, rows_made = reached_ / description.ratio;
    if (source.desc().form == BufferForm::kRing && rows_made > capacity && range.first < rows_made - capacity) {
      return base::InvalidArgument("source.capacity_rows", "row " + std::to_string(range.first) + " of stream " +
                                                               std::to_string(stream) + " has been overwritten");
    }
  }
  if (source.HasSkips(range)) {
    return base::InvalidArgument("source.page_ids", "rows of stream " + std::to_string(stream) + " have no page");
  }
  if (!source.on_device()) return GatherHost(part, range, rows, summed);
  const absl::StatusOr<std::vector<CopyRun>> runs = source.Runs(range, 0);
  if (!runs.ok()) return runs.status();
  return copies->Queue(source.desc(), CopyDirection::kFromDevice, rows.data(), *runs);
}

// Rows that lie in one piece are moved out of the cache that their checksums have brought them into, and past it:
// nobody but the drive wants them next.
absl::Status Writer::GatherHost(const Part& part, const RowRange& range, base::MutableBytes rows,
                                format::RecordHead* summed) {
  const Buffer& source = *sources_[part.stream];
  const base::ByteView whole = summed == nullptr ? base::ByteView() : source.InOnePiece(range);
  if (whole.empty()) {
    if (absl::Status status = source.Gather(range, rows.data()); !status.ok()) return status;
  }
  if (summed == nullptr) return absl::OkStatus();
  const uint64_t block_bytes = part.bytes / part.blocks;
  for (uint64_t i = 0; i < part.blocks; ++i) {
    const base::ByteView block = (whole.empty() ? base::ByteView(rows) : whole).subspan(i * block_bytes, block_bytes);
    summed->checksums.push_back(base::Checksum(block, summed->identity.sequence));
  }
  if (!whole.empty()) base::CopyPastCaches(rows.data(), whole.data(), whole.size());
  return absl::OkStatus();
}

// `end`: of the tokens that a record describes.
absl::Status Writer::CheckExact(uint64_t end) const {
  if (end <= exact_end_) return absl::OkStatus();
  return base::MakeStatus(base::Code::kUnsupported, "exact", "follows from a bounded replay, which is not exact");
}

void Writer::Identify(format::RecordHead* head) {
  base::MutexLock lock(cache_->mutex());
  head->identity.sequence = cache_->NextSequence();
  head->identity.name_space = name_space_->life;
}

// What leaves no room for coding is stored as it is.
Writer::Room Writer::RoomOf(const format::RecordHead& head) const {
  Room room;
  for (const format::Slice& slice : head.slices) room.rows += slice.bytes * head.blocks();
  const auto head_bytes = [&](bool coded) {
    return format::HeadBytes(head.tokens.size(), head.extra.size(), head.slices.size(), head.blocks(), coded);
  };
  room.coding = Coding().ScratchBytes(head);
  room.head = head_bytes(room.coding > 0);
  if (room.coding > 0 && room.bytes() > cache_->staging()->capacity()) room = {head_bytes(false), room.rows, 0};
  return room;
}

// Codes slices where that was asked for, and fills in what the record's placement decides and is not there yet:
// sequence, checksums, head and meta.
void Writer::Seal(Put* put, format::RecordHead head, const Room& room) {
  const base::MutableBytes rows = put->staging.bytes().subspan(room.head);
  uint64_t payload_bytes = room.rows;
  if (room.coding > 0) {
    const SliceCoding::Result coded = Coding().Code(rows, &head);
    payload_bytes = coded.payload_bytes;
    put->compressed_from = coded.rows_bytes;
    put->compressed_to = coded.stored_bytes;
    put->packed_slices = coded.packed_slices;
    put->off_grid_slices = coded.off_grid_slices;
  }
  if (head.checksums.empty()) {
    Identify(&head);
    uint64_t offset = 0;
    for (size_t i = 0; i < head.slices.size(); ++i) {
      for (uint64_t block = 0; block < head.blocks(); ++block) {
        const base::ByteView bytes = rows.subspan(offset, head.StoredBytes(i, block));
        head.checksums.push_back(base::Checksum(bytes, head.identity.sequence));
        offset += bytes.size();
      }
    }
  }
  const bool snapshot = head.identity.kind == format::RecordKind::kSnapshot;
  put->record_class = snapshot ? RecordClass::kSnapshot : RecordClass::kRows;
  put->cache = cache_;
  put->name_space = name_space_;
  put->progress = progress_;
  put->identity = head.identity;
  put->coded = head.coded();
  put->more = head.more;
  put->priority = options_.priority;
  put->expires_at = ExpiresAt();
  const base::BlockDigest key =
      snapshot ? format::SnapshotKey(head.identity.key, head.identity.position, head.identity.tail) : head.identity.key;
  put->key = {format::MakeRecordKey(head.identity.kind, key)};
  // Before the rows, in one piece with them: a storage can write what begins at a page from where it lies. The head of
  // a record that was to be coded, and is not, does not fill its room.
  const std::vector<std::byte> encoded = format::EncodeHead(head);
  std::ranges::copy(encoded, rows.data() - encoded.size());
  const uint64_t record_bytes = encoded.size() + payload_bytes;
  put->record = put->staging.view().subspan(room.head - encoded.size(), record_bytes);
  put->meta = format::EncodeRecordMeta({head.identity, record_bytes, head.more, head.coded()});
  put->stored_bytes = cache_->storage().StoredBytes(record_bytes, put->meta.size());
}

// Makes room and submits; then 0. `boundary_depth` blocks of the chain must be there or on their way. Where another
// writer has stored the same meanwhile nothing is submitted: how many of the run's blocks are there; for a snapshot 1.
absl::StatusOr<uint64_t> Writer::Launch(const std::shared_ptr<Put>& put, uint64_t boundary_depth, Deadline deadline) {
  NameSpace& space = *name_space_;
  const base::BlockDigest boundary = BoundaryKey(boundary_depth);
  {
    base::MutexLock lock(cache_->mutex());
    // Pinned before room is made, so that making room cannot take the parent away.
    put->parent =
        boundary_depth == 0 ? nullptr : cache_->FindPut({format::MakeRecordKey(format::RecordKind::kBlock, boundary)});
    if (put->parent == nullptr) {
      const std::optional<trie::NodeRef> node =
          boundary_depth == 0 ? std::optional(space.trie.root()) : space.trie.Find(boundary);
      if (!node.has_value()) return base::MakeStatus(base::Code::kNotFound, "parent", "evicted meanwhile");
      if (absl::Status status = space.trie.Lease(*node); !status.ok()) return status;
      put->pinned = *node;
    }
  }
  const auto unpin = [&]() {
    if (put->pinned.valid()) space.trie.Release(put->pinned).IgnoreError();
    put->pinned = {};
  };
  if (absl::Status status = cache_->Reserve(put->record_class, put->stored_bytes, deadline); !status.ok()) {
    base::MutexLock lock(cache_->mutex());
    unpin();
    return status;
  }
  {
    base::MutexLock lock(cache_->mutex());
    while (cache_->IsRemoving(put->key) && cache_->changed().WaitUntil(cache_->mutex(), deadline)) {
    }
    // Another writer may have stored the same meanwhile, and no put may cross another one, or a remove, of its key.
    const bool removing = cache_->IsRemoving(put->key);
    const absl::StatusOr<uint64_t> there = BlocksThere(*put);
    const bool orphan = put->parent != nullptr && put->parent->resolved && !cache_->PinParent(*put);
    if (removing || !there.ok() || *there > 0 || orphan) {
      cache_->Unreserve(put->record_class, put->stored_bytes);
      unpin();
      if (removing) return base::MakeStatus(base::Code::kBusy, "key", "its older record is still being removed");
      if (!there.ok()) return there.status();
      if (*there == 0) return base::MakeStatus(base::Code::kNotFound, "parent", "could not be stored");
      (put->is_snapshot() ? progress_->snapshots_deduplicated : progress_->blocks_deduplicated) += *there;
      return *there;
    }
    if (put->parent != nullptr && !put->parent->resolved) put->parent->waiting.push_back(put);
    cache_->AddPut(put);
  }
  if (absl::Status status = cache_->SubmitPut(put, deadline); !status.ok()) {
    // Ends it like a failed put, which also counts the drop.
    cache_->FinishPut(put, status);
  }
  return 0;
}

// In the index or on its way.
bool Writer::IsThere(const base::BlockDigest& block) const {
  const storage::Key key{format::MakeRecordKey(format::RecordKind::kBlock, block)};
  return name_space_->trie.Find(block).has_value() || cache_->FindPut(key) != nullptr;
}

// Overwriting a record that the index knows would take away what it promises.
bool Writer::IsThere(const Put& snapshot) const {
  return cache_->FindPut(snapshot.key) != nullptr ||
         FindSnapshot(snapshot.identity.key, snapshot.identity.position, snapshot.identity.tail).has_value();
}

// How many of a put's first blocks are there. kBusy where a later one is and the first is not: it belongs to a put that
// will fail, since its parent is gone, and so may the same blocks of this one.
absl::StatusOr<uint64_t> Writer::BlocksThere(const Put& put) const {
  if (put.is_snapshot()) return IsThere(put) ? 1 : 0;
  uint64_t there = 0;
  while (there < put.blocks() && IsThere(put.BlockKey(there))) ++there;
  for (uint64_t i = 1; there == 0 && i < put.blocks(); ++i) {
    if (IsThere(put.BlockKey(i))) return base::MakeStatus(base::Code::kBusy, "key", "a block is on its way already");
  }
  return there;
}

}  // namespace kvstrata::core::engine
