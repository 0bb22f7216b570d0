// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/restore.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/slice_coding.h"

namespace kvstrata::core::engine {
namespace {

// How much is proven before it is moved: what a core's second cache holds beside other things.
constexpr uint64_t kProvenBytes = 128u << 10;

plan::Reason ReasonOf(const absl::Status& status) {
  switch (base::CodeOf(status)) {
    case base::Code::kNotFound: return plan::Reason::kEvicted;
    case base::Code::kCorrupt:
    case base::Code::kFormatTooNew:
    case base::Code::kInvalidArgument: return plan::Reason::kCorrupt;
    case base::Code::kIdentityMismatch:
    case base::Code::kInvalidState: return plan::Reason::kForeign;
    default: return plan::Reason::kUnreadable;
  }
}

}  // namespace

// --- what is to be restored --------------------------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<RestorePlan>> RestorePlan::Create(const Match& match, RestoreOptions options) {
  std::shared_ptr<RestorePlan> restore(new RestorePlan(match.state(), std::move(options)));
  restore->plan_ = match.plan();
  restore->usable_blocks_ = match.state()->matched_blocks;
  restore->unusable_snapshots_.assign(match.state()->snapshots.size(), false);
  const layout::Layout& layout = match.state()->name_space->layout;
  if (absl::Status status = match.state()->cache->CheckUsable(); !status.ok()) return status;
  for (const uint32_t stream : restore->options_.streams) {
    if (stream >= layout.streams().size()) {
      return base::InvalidArgument("streams", std::to_string(stream) + " is no stream of this layout");
    }
  }
  for (uint32_t i = 0; i < layout.streams().size(); ++i) {
    if (restore->Selected(i)) restore->layers_.push_back(layout.stream(i).layer);
  }
  std::ranges::sort(restore->layers_);
  restore->layers_.erase(std::unique(restore->layers_.begin(), restore->layers_.end()), restore->layers_.end());
  if (absl::Status status = restore->MakeSegments(); !status.ok()) return status;
  base::MutexLock lock(restore->mutex_);
  restore->hold_ = match.hold();
  restore->result_.plan = restore->plan_;
  restore->result_.layers_total = restore->layers_.size();
  return restore;
}

RestorePlan::RestorePlan(std::shared_ptr<MatchState> match, RestoreOptions options)
    : match_(std::move(match)),
      options_(std::move(options)),
      sizes_known_(!match_->name_space->has_coded &&
                   std::ranges::none_of(match_->name_space->layout.streams(),
                                        [](const layout::Stream& stream) {
                                          return stream.kind == layout::StreamKind::kRows &&
                                                 (stream.flags & layout::kOptional) != 0;
                                        })),
      destinations_(match_, options_.stream) {}

RestorePlan::~RestorePlan() { Cancel(); }

bool RestorePlan::Selected(uint32_t stream) const {
  return options_.streams.empty() || std::ranges::find(options_.streams, stream) != options_.streams.end();
}

RowRange RestorePlan::BlockRange(uint32_t stream, uint64_t block, uint64_t blocks) const {
  const uint64_t rows = match_->name_space->layout.BlockRows(stream);
  return {block * rows, blocks * rows, 0};
}

// The rows that only a snapshot inside a block carries.
RowRange RestorePlan::OpenRange(uint32_t stream, uint64_t position) const {
  const layout::Layout& layout = match_->name_space->layout;
  const uint64_t boundary = position / layout.block_tokens() * layout.BlockRows(stream);
  return {boundary, layout.OpenBlockRows(stream, position), 0};
}

RowRange RestorePlan::StateRange(uint32_t stream, uint64_t position) const {
  return StateRows(match_->name_space->layout, stream, position);
}

std::optional<Segment> RestorePlan::SegmentOf(uint32_t stream) const {
  const layout::Layout& layout = match_->name_space->layout;
  const layout::Stream& s = layout.stream(stream);
  Segment segment{stream, s.layer, {}, 0};
  if (s.kind == layout::StreamKind::kRows) {
    segment.rows = BlockRange(stream, plan_.read_blocks_from, plan_.read_blocks_to - plan_.read_blocks_from);
    if (plan_.snapshot.has_value() && plan_.snapshot->position / layout.block_tokens() == plan_.read_blocks_to) {
      segment.rows.count += OpenRange(stream, plan_.snapshot->position).count;
    }
    segment.bytes = segment.rows.count * s.row_bytes;
  } else if (plan_.snapshot.has_value()) {
    segment.rows = StateRange(stream, plan_.snapshot->position);
    const format::Slice* slice = stream < snapshot_table_.slices.size() ? &snapshot_table_.slices[stream] : nullptr;
    segment.bytes = !s.is_variable() ? segment.rows.count * s.row_bytes : slice == nullptr ? 0 : slice->bytes;
  }
  if (segment.rows.count == 0) return std::nullopt;
  return segment;
}

// A state of varying size is known by its record's head only, so that is read here: the caller must know the size.
absl::Status RestorePlan::MakeSegments() {
  const layout::Layout& layout = match_->name_space->layout;
  while (plan_.snapshot.has_value() && layout.has_variable_state()) {
    const std::optional<Failure> failure = ReadSnapshotHead();
    if (!failure.has_value()) break;
    if (failure->kind == Failure::Kind::kStopped) return failure->status;
    Shorten(*failure);
  }
  segments_.clear();
  for (uint32_t i = 0; i < layout.streams().size(); ++i) {
    if (!Selected(i)) continue;
    if (const std::optional<Segment> segment = SegmentOf(i); segment.has_value()) segments_.push_back(*segment);
  }
  std::ranges::stable_sort(segments_, {}, &Segment::layer);
  return absl::OkStatus();
}

absl::Status RestorePlan::Start(std::vector<BufferDesc> destinations) {
  {
    base::MutexLock lock(mutex_);
    if (result_.state != RestoreState::kCreated) {
      return base::MakeStatus(base::Code::kInvalidState, "plan", "started before, or cancelled");
    }
  }
  if (absl::Status status = match_->cache->CheckUsable(); !status.ok()) return status;
  absl::Status taken =
      destinations_.Take(std::move(destinations), segments_, [this](uint32_t stream) { return Selected(stream); });
  if (!taken.ok()) return taken;
  deadline_ = options_.timeout_ms == 0 ? Deadline::max() : DeadlineAfterMs(options_.timeout_ms);
  {
    base::MutexLock lock(mutex_);
    result_.state = RestoreState::kRunning;
    result_.quiesced = false;
  }
  absl::Status status = match_->cache->Enqueue([self = shared_from_this()] { self->RunSafely(); });
  base::MutexLock lock(mutex_);
  if (!status.ok()) {
    result_.state = RestoreState::kCreated;
    result_.quiesced = true;
  }
  return status;
}

// --- the caller's view -------------------------------------------------------------------------------------------

RestoreResult RestorePlan::Poll() const {
  base::MutexLock lock(mutex_);
  return result_;
}

absl::Status RestorePlan::WaitLayers(uint64_t layers, uint64_t timeout_ms, RestoreResult* result) {
  const Deadline deadline = DeadlineAfterMs(timeout_ms);
  base::MutexLock lock(mutex_);
  if (result_.state == RestoreState::kCreated) {
    return base::MakeStatus(base::Code::kInvalidState, "plan", "not started");
  }
  while (MustWait(layers)) {
    if (!changed_.WaitUntil(mutex_, deadline) && MustWait(layers)) {
      return base::MakeStatus(base::Code::kTimeout, "timeout_ms", "the restore is still running");
    }
  }
  if (result != nullptr) *result = result_;
  return absl::OkStatus();
}

// An end counts once its signal has been given: the caller may then free what the signal uses.
bool RestorePlan::MustWait(uint64_t layers) const {
  return result_.state == RestoreState::kRunning ? result_.layers_ready < layers : signalling_;
}

absl::Status RestorePlan::Wait(uint64_t timeout_ms, RestoreResult* result) {
  return WaitLayers(UINT64_MAX, timeout_ms, result);
}

void RestorePlan::Cancel() {
  {
    base::MutexLock lock(mutex_);
    cancelled_ = true;
    if (result_.state == RestoreState::kCreated) {
      result_.state = RestoreState::kCancelled;
      result_.plan = {};
      result_.status = base::MakeStatus(base::Code::kCancelled, "plan", "cancelled before it started");
    }
  }
  Finish(RestoreState::kCancelled, base::MakeStatus(base::Code::kCancelled, "plan", "cancelled"));
}

void RestorePlan::Release() {
  Cancel();
  std::shared_ptr<LeaseHold> hold;  // let go of without the lock
  base::MutexLock lock(mutex_);
  hold.swap(hold_);
}

// --- the work ----------------------------------------------------------------------------------------------------

// A worker has nobody above it who could catch.
void RestorePlan::RunSafely() {
  try {
    Run();
  } catch (const std::bad_alloc&) {
    Finish(RestoreState::kFailed, absl::ResourceExhaustedError("restore"));
  }
}

void RestorePlan::Run() {
  const auto begin = std::chrono::steady_clock::now();
  {
    base::MutexLock lock(match_->cache->mutex());
    if (!match_->name_space->is_usable() || match_->name_space->life != match_->life) {
      usable_blocks_ = 0;
      unusable_snapshots_.assign(unusable_snapshots_.size(), true);
      plan_ = match_->MakePlan(0, 0, unusable_snapshots_, plan::Reason::kEvicted);
      plan_.reason = plan::Reason::kEvicted;
      shortened_ = true;
    }
  }
  while (true) {
    const std::optional<Failure> failure = Attempt();
    if (!failure.has_value()) break;
    if (failure->kind == Failure::Kind::kStopped) {
      const bool cancelled = base::CodeOf(failure->status) == base::Code::kCancelled;
      return Finish(cancelled ? RestoreState::kCancelled : RestoreState::kFailed, failure->status);
    }
    Shorten(*failure);
    layers_told_ = 0;
    LayersReady(0);
  }
  LayersReady(layers_.size());
  {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const uint64_t bytes = Poll().bytes_read;
    base::MutexLock lock(match_->cache->mutex());
    match_->cache->RecordRead(bytes, seconds.count());
    match_->cache->counters().restored_bytes += bytes;
    match_->cache->counters().restored_memory_bytes += memory_bytes_read_;
  }
  Finish(shortened_ ? RestoreState::kShortened : RestoreState::kComplete, absl::OkStatus());
}

std::optional<RestorePlan::Failure> RestorePlan::Attempt() {
  if (plan_.mode == plan::Mode::kNone) return std::nullopt;
  snapshot_table_ = {};
  if (plan_.snapshot.has_value()) {
    if (auto failure = ReadSnapshotHead(); failure.has_value()) return failure;
  }
  if (auto failure = CheckDestinations(); failure.has_value()) return failure;
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

// The runs of the plan's blocks. Where everything has its place in a run that was matched whole, its head is read with
// its first rows.
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

// Heads of runs whose slices may lie elsewhere than expected: some optional stream may be absent, blocks that were not
// matched have extra keys, which make the head larger, or slices are coded, which makes it larger, too.
std::optional<RestorePlan::Failure> RestorePlan::ReadUncertainHeads(std::vector<SourceRecord>* records) {
  std::vector<SourceRecord*> left, larger;
  for (SourceRecord& record : *records) {
    if (!sizes_known_ || !record.run.is_whole()) left.push_back(&record);
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

// Makes the plan anew without what failed.
void RestorePlan::Shorten(const Failure& failure) {
  plan::Reason reason = plan_.reason;
  if (failure.kind != Failure::Kind::kUncovered) {
    // Whatever then limits the plan, what made it shorter is the record that failed.
    reason = ReasonOf(failure.status);
    usable_limit_ = plan_.usable_tokens;
    CountFailure(failure);
    Forget(failure);
  }
  if (failure.kind == Failure::Kind::kBlock) {
    usable_blocks_ = std::min(usable_blocks_, failure.fault.block);
    proven_blocks_ = std::min(proven_blocks_, failure.fault.block);
  } else {
    unusable_snapshots_[plan_.snapshot->id] = true;
  }
  plan_ = match_->MakePlan(usable_blocks_, usable_limit_, unusable_snapshots_, reason);
  plan_.reason = reason;
  shortened_ = true;
}

// Takes a record that is not what it should be out of the index.
void RestorePlan::Forget(const Failure& failure) {
  // The index may not promise any more what is wrong or gone; it may where the storage was only slow or failing.
  if (!IsRecordFault(failure.status) && base::CodeOf(failure.status) != base::Code::kInvalidArgument) return;
  std::vector<Removal> removals;
  {
    base::MutexLock lock(match_->cache->mutex());
    NameSpace& space = *match_->name_space;
    if (failure.kind == Failure::Kind::kBlock) {
      const MatchedBlock& block = match_->blocks[failure.fault.forget];
      if (IsIndexed(block)) match_->cache->DetachDamaged(space, block.node, &removals);
    } else {
      match_->cache->DetachSnapshot(space, match_->snapshots[plan_.snapshot->id].snapshot, &removals);
    }
  }
  match_->cache->RunRemovals(removals);
}

// Is what was matched still what the index promises? Locked (the cache's lock).
bool RestorePlan::IsIndexed(const MatchedBlock& block) const {
  const std::optional<trie::BlockInfo> info = match_->name_space->trie.Get(block.node);
  return info.has_value() && !info->dead && info->sequence == block.sequence;
}

void RestorePlan::CountFailure(const Failure& failure) {
  base::MutexLock lock(match_->cache->mutex());
  Stats& stats = match_->cache->counters();
  base::Code code = base::CodeOf(failure.status);
  // Without a lease a record may have gone, and another of its key have come, of other blocks and another size: whole,
  // but not what was matched.
  const bool damaged = code == base::Code::kCorrupt || code == base::Code::kInvalidArgument;
  if (damaged && failure.kind == Failure::Kind::kBlock && !IsIndexed(match_->blocks[failure.fault.forget])) {
    code = base::Code::kInvalidState;
  }
  switch (code) {
    case base::Code::kNotFound: stats.reads_absent += 1; break;
    case base::Code::kCorrupt:
    case base::Code::kFormatTooNew:
    case base::Code::kInvalidArgument: stats.reads_corrupt += 1; break;
    case base::Code::kIdentityMismatch: stats.reads_foreign += 1; break;
    case base::Code::kInvalidState: stats.reads_stale += 1; break;
    case base::Code::kTimeout: stats.reads_timeout += 1; break;
    default: stats.reads_failed += 1; break;
  }
}

void RestorePlan::LayersReady(uint64_t layers) {
  {
    base::MutexLock lock(mutex_);
    if (result_.state != RestoreState::kRunning) return;
    result_.layers_ready = layers;
    result_.plan = plan_;
    signalling_ = options_.notify && layers != 0 && layers != layers_.size();
    changed_.NotifyAll();
    if (!signalling_) return;
  }
  const bool go_on = options_.notify(layers, RestoreState::kRunning);
  SignalGiven();
  if (!go_on) Cancel();
}

void RestorePlan::SignalGiven() {
  base::MutexLock lock(mutex_);
  signalling_ = false;
  changed_.NotifyAll();
}

void RestorePlan::Finish(RestoreState state, absl::Status status) {
  const bool quiesced = destinations_.Close();
  uint64_t layers = 0;
  {
    base::MutexLock lock(mutex_);
    while (signalling_) changed_.Wait(mutex_);
    if (result_.state != RestoreState::kRunning) return;
    const bool usable = state == RestoreState::kComplete || state == RestoreState::kShortened;
    if (usable && plan_.mode == plan::Mode::kBoundedReplay) match_->ended_inexact = true;
    result_.plan = usable ? plan_ : plan::Plan{};
    if (!usable) result_.layers_ready = 0;
    result_.state = state;
    result_.status = std::move(status);
    result_.quiesced = quiesced;
    layers = result_.layers_ready;
    signalling_ = true;
    changed_.NotifyAll();
  }
  {
    base::MutexLock lock(match_->cache->mutex());
    // Counted with its end, so that the kinds of ends always add up.
    Stats& stats = match_->cache->counters();
    stats.restores += 1;
    switch (state) {
      case RestoreState::kComplete: stats.restores_complete += 1; break;
      case RestoreState::kShortened: stats.restores_shortened += 1; break;
      case RestoreState::kCancelled: stats.restores_cancelled += 1; break;
      default: stats.restores_failed += 1; break;
    }
  }
  if (options_.notify) options_.notify(layers, state);
  SignalGiven();
}

}  // namespace kvstrata::core::engine
