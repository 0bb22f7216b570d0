// SPDX-License-Identifier: Apache-2.0
// One attempt at a restore's plan: which records it reads, in which pieces, and what is done with a piece that has
// come: proven, decoded where it is coded, and only then written to its destination.
#include <algorithm>
#include <memory>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/restore.h"
#include "lib/engine/slice_coding.h"

namespace kvstrata::core::engine {
namespace {

// How much is proven before it is moved: what a core's second cache holds beside other things.
constexpr uint64_t kProvenBytes = 128u << 10;

}  // namespace

std::optional<RestorePlan::Failure> RestorePlan::Attempt() {
  if (plan_.mode == plan::Mode::kNone) return std::nullopt;
  snapshot_table_ = {};
  if (plan_.snapshot.has_value()) {
    if (auto failure = ReadSnapshotHead(); failure.has_value()) return failure;
  }
  if (auto failure = CheckDestinations(); failure.has_value()) return failure;
  std::optional<Failure> failure = ReadPlanned();
  if (!failure.has_value() || !failure->fault.larger_head) return failure;
  partial_heads_first_ = true;
  return ReadPlanned();
}

std::optional<RestorePlan::Failure> RestorePlan::ReadPlanned() {
  std::vector<SourceRecord> records = RunRecords();
  if (auto failure = ReadUncertainHeads(&records); failure.has_value()) return failure;
  if (plan_.snapshot.has_value()) records.push_back(SnapshotRecord());
  // A fourth of a small staging memory, so that there is more than one read at a time.
  const uint64_t most_bytes = std::clamp<uint64_t>(match_->cache->staging()->capacity() / 4, 1, kReadBytes);
  const ReadShape shape{options_.early_release, most_bytes};
  std::vector<RecordRead> reads;
  for (size_t i = 0; i < records.size(); ++i) AddReads(i, records[i], WantedOf(records[i]), shape, &reads);
  if (options_.early_release) OrderForEarlyRelease(&reads);
  const auto make = [&](size_t i) {
    Read read = ReadOf(records[reads[i].record]);
    read.offset = reads[i].offset;
    read.bytes = reads[i].bytes;
    read.scratch_bytes = reads[i].decode_bytes;
    read.use = [this, planned = &reads[i], record = &records[reads[i].record]](
                   base::ByteView bytes, base::MutableBytes scratch, Fault* fault) {
      return UseRead(*planned, record, bytes, scratch, fault);
    };
    return read;
  };
  return RunReads(reads.size(), make, [&](size_t i) { ReadUsed(records, reads, i); });
}

// The destinations were checked against the plan that they were made for. One made anew for a shorter length may need
// what they lack: another snapshot's rows have other numbers, or its opaque state is larger. (Block rows of a shorter
// plan are among the longer one's.)
std::optional<RestorePlan::Failure> RestorePlan::CheckDestinations() const {
  if (!shortened_) return std::nullopt;
  for (uint32_t i = 0; i < match_->name_space->layout.streams().size(); ++i) {
    const std::optional<Segment> segment = Selected(i) ? SegmentOf(i) : std::nullopt;
    if (!segment.has_value()) continue;
    absl::Status status = destinations_.CheckCovered(*segment);
    if (status.ok()) continue;
    return Failure{
        plan_.snapshot.has_value() ? Failure::Kind::kUncovered : Failure::Kind::kStopped, {}, std::move(status)};
  }
  return std::nullopt;
}

// The runs of the plan's blocks. Where everything has its place in a run, its head is read with its first rows.
std::vector<SourceRecord> RestorePlan::RunRecords() const {
  std::vector<SourceRecord> records;
  const uint64_t proven = options_.early_release ? 0 : proven_blocks_;
  for (uint64_t block = std::max(plan_.read_blocks_from, proven); block < plan_.read_blocks_to;) {
    SourceRecord record;
    record.run = RunOf(*match_, block);
    record.key = {format::MakeRecordKey(format::RecordKind::kBlock, match_->blocks[record.run.first].key)};
    record.from = block;
    record.to = std::min(record.run.end, plan_.read_blocks_to);
    record.head_bytes = RunHeadBytes(*match_, record.run);
    record.table = ExpectedSlices(*match_, record.run);
    block = record.to;
    records.push_back(std::move(record));
  }
  return records;
}

SourceRecord RestorePlan::SnapshotRecord() const {
  const trie::SnapshotInfo& snapshot = match_->snapshots[plan_.snapshot->id];
  const uint64_t depth = snapshot.position / match_->name_space->facts.block_tokens;
  SourceRecord record;
  record.snapshot = true;
  record.key = {
      format::MakeRecordKey(format::RecordKind::kSnapshot,
                            format::SnapshotKey(match_->BoundaryKey(depth), snapshot.position, snapshot.tail_digest))};
  record.table = snapshot_table_;
  return record;
}

std::vector<WantedSlice> RestorePlan::WantedOf(const SourceRecord& record) const {
  const layout::Layout& layout = match_->name_space->layout;
  std::vector<WantedSlice> wanted;
  for (uint32_t i = 0; i < record.table.slices.size(); ++i) {
    const format::Slice& slice = record.table.slices[i];
    const layout::Stream& stream = layout.stream(slice.stream);
    if (slice.absent || !Selected(slice.stream) || !destinations_.Has(slice.stream)) continue;
    if (record.snapshot) {
      // Below a later block's rows, those of the snapshot's open block are in place already.
      const bool is_rows = stream.kind == layout::StreamKind::kRows;
      if (is_rows && plan_.snapshot->position / layout.block_tokens() != plan_.read_blocks_to) continue;
      if (slice.bytes == 0 && !stream.is_variable()) continue;
    }
    wanted.push_back({i, stream.layer});
  }
  return wanted;
}

RestorePlan::Read RestorePlan::ReadOf(const SourceRecord& record) const {
  Read read;
  read.key = record.key;
  read.snapshot = record.snapshot;
  read.fault = {record.from, record.run.first};
  return read;
}

// Read again where it turns out to be that of a record with coded slices, which is larger.
std::optional<RestorePlan::Failure> RestorePlan::ReadSnapshotHead() {
  const trie::SnapshotInfo& snapshot = match_->snapshots[plan_.snapshot->id];
  bool coded = false;
  const auto make = [&](size_t) {
    Read read = ReadOf(SnapshotRecord());
    read.bytes = SnapshotHeadBytes(*match_, snapshot, coded);
    read.use = [&](base::ByteView bytes, base::MutableBytes, Fault*) -> absl::Status {
      const absl::StatusOr<uint64_t> size = format::PeekHeadBytes(bytes.first(format::kHeadPrefixBytes));
      coded = !coded && size.ok() && *size == SnapshotHeadBytes(*match_, snapshot, /*coded=*/true);
      return coded ? absl::OkStatus() : ProveSnapshotHead(*match_, snapshot, bytes, &snapshot_table_);
    };
    return read;
  };
  std::optional<Failure> failure = RunReads(1, make, nullptr);
  if (!failure.has_value() && coded) failure = RunReads(1, make, nullptr);
  return failure;
}

// Heads of runs whose slices may lie elsewhere than expected: some optional stream may be absent, or slices are coded,
// which makes the head larger. So do extra keys of blocks that were not matched, but few prompts have any, and the
// drive would have nothing to do while a head is on its way: those are read first only once one has turned out larger.
std::optional<RestorePlan::Failure> RestorePlan::ReadUncertainHeads(std::vector<SourceRecord>* records) {
  std::vector<SourceRecord*> left, larger;
  for (SourceRecord& record : *records) {
    if (!sizes_known_ || (partial_heads_first_ && !record.run.is_whole())) left.push_back(&record);
  }
  for (const bool again : {false, true}) {
    const auto make = [&](size_t i) {
      Read read = ReadOf(*left[i]);
      read.bytes = left[i]->head_bytes;
      read.use = [&, record = left[i]](base::ByteView bytes, base::MutableBytes, Fault*) -> absl::Status {
        const absl::StatusOr<uint64_t> size = format::PeekHeadBytes(bytes.first(format::kHeadPrefixBytes));
        if (!size.ok()) return size.status();
        if (*size > bytes.size()) {
          if (again) return base::Corrupt("head_bytes", "another one than before");
          record->head_bytes = *size;
          larger.push_back(record);
          return absl::OkStatus();
        }
        record->head_bytes = 0;
        return ProveRunHead(*match_, record->run, bytes.first(*size), &record->table);
      };
      return read;
    };
    if (auto failure = RunReads(left.size(), make, nullptr); failure.has_value()) return failure;
    left = std::move(larger);
    larger.clear();
  }
  return std::nullopt;
}

absl::Status RestorePlan::UseRead(const RecordRead& planned, SourceRecord* record, base::ByteView bytes,
                                  base::MutableBytes scratch, Fault* fault) {
  if (planned.has_head) {
    const base::ByteView head = bytes.first(record->head_bytes);
    if (!record->run.is_whole()) {
      const absl::StatusOr<uint64_t> size = format::PeekHeadBytes(head.first(format::kHeadPrefixBytes));
      fault->larger_head = size.ok() && *size > head.size();
      if (fault->larger_head) return base::Corrupt("head_bytes", "more than what was matched needs");
    }
    if (absl::Status status = ProveRunHead(*match_, record->run, head, &record->table); !status.ok()) return status;
  }
  for (const ReadPart& part : planned.parts) {
    const uint64_t part_bytes = record->table.StoredBytes(part.slice, part.from, part.to);
    absl::Status status = UsePart(*record, part, bytes.subspan(part.offset, part_bytes), scratch, fault);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Some blocks of one stream at a time, so that they are moved out of the cache that their checksums have brought them
// into; to a device in one piece.
absl::Status RestorePlan::UsePart(const SourceRecord& record, const ReadPart& part, base::ByteView bytes,
                                  base::MutableBytes scratch, Fault* fault) {
  const SliceTable& table = record.table;
  const uint64_t block_bytes = std::max<uint64_t>(1, table.slices[part.slice].bytes);
  const uint64_t step = destinations_.device() >= 0 ? part.to - part.from : 1 + kProvenBytes / block_bytes;
  for (uint64_t from = part.from; from < part.to; from += step) {
    const ReadPart piece{part.slice, from, std::min(part.to, from + step), 0};
    const base::ByteView stored = bytes.subspan(table.StoredBytes(part.slice, part.from, from),
                                                    table.StoredBytes(part.slice, piece.from, piece.to));
    if (absl::Status status = UsePiece(record, piece, stored, scratch, fault); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Proves what one stream has of each block, decodes it where it is coded, then moves all of it to its destination.
absl::Status RestorePlan::UsePiece(const SourceRecord& record, const ReadPart& part, base::ByteView bytes,
                                   base::MutableBytes scratch, Fault* fault) {
  const SliceTable& table = record.table;
  const auto at_fault = [&](uint64_t block, absl::Status status) {
    // The record stays, for the blocks before it.
    *fault = {record.run.first + block, record.run.first + block};
    return status;
  };
  for (uint64_t block = part.from; block < part.to; ++block) {
    const base::ByteView stored =
        bytes.subspan(table.StoredBytes(part.slice, part.from, block), table.StoredBytes(part.slice, block, block + 1));
    absl::Status status = ProveSlice(table, part.slice, block, stored);
    if (!status.ok()) return at_fault(block, std::move(status));
  }
  const CodedPart coded{part.slice, part.from, part.to};
  if (DecodeBytes(table, coded) == 0) return WritePart(record, part, bytes);
  if (decoder_ == nullptr) decoder_ = std::make_unique<codec::SliceDecoder>(match_->cache->options().find_packer);
  const format::Slice& slice = table.slices[part.slice];
  // A device may still be reading what the part before was decoded to.
  if (absl::Status status = destinations_.WaitQueued(); !status.ok()) return status;
  uint64_t bad_block = part.from;
  absl::Status status = DecodePart(table, coded, match_->name_space->layout.stream(slice.stream), bytes, scratch,
                                   decoder_.get(), &bad_block);
  if (!status.ok()) return at_fault(bad_block, std::move(status));
  return WritePart(record, part, scratch.first((part.to - part.from) * slice.bytes));
}

absl::Status RestorePlan::WritePart(const SourceRecord& record, const ReadPart& part, base::ByteView rows) {
  const uint32_t stream = record.table.slices[part.slice].stream;
  if (!record.snapshot) {
    return destinations_.Write(stream, BlockRange(stream, record.run.first + part.from, part.to - part.from), rows);
  }
  const uint64_t position = plan_.snapshot->position;
  const bool is_rows = match_->name_space->layout.stream(stream).kind == layout::StreamKind::kRows;
  return destinations_.Write(stream, is_rows ? OpenRange(stream, position) : StateRange(stream, position), rows);
}

// Reads are used in order: what comes next tells what is complete.
void RestorePlan::ReadUsed(const std::vector<SourceRecord>& records, const std::vector<RecordRead>& reads,
                           size_t used) {
  const RecordRead* next = used + 1 < reads.size() ? &reads[used + 1] : nullptr;
  if (!options_.early_release) {
    const SourceRecord& record = records[reads[used].record];
    if (!record.snapshot && (next == nullptr || next->record != reads[used].record)) proven_blocks_ = record.to;
    return;
  }
  // Each is told of, also where several come at once; the last one with the restore itself.
  const auto behind = next == nullptr ? layers_.end() : std::ranges::lower_bound(layers_, next->layer);
  const auto ready = std::min<uint64_t>(static_cast<uint64_t>(behind - layers_.begin()), layers_.size() - 1);
  while (layers_told_ < ready) LayersReady(++layers_told_);
}

}  // namespace kvstrata::core::engine
