// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/restore.h"

#include <algorithm>
#include <deque>
#include <new>
#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {
namespace {

// Reads in flight of one restore. Eight keep a drive busy at these sizes (limits: queue depth 8 reaches its rate).
constexpr size_t kReadsInFlight = 8;
// How soon a cancel or a close ends a restore whose storage does not answer.
constexpr std::chrono::milliseconds kStopCheck(20);

// A record that is not what it should be, as opposed to a destination that does not work.
bool IsRecordFault(const absl::Status& status) {
  switch (base::CodeOf(status)) {
    case base::Code::kCorrupt:
    case base::Code::kFormatTooNew:
    case base::Code::kIdentityMismatch:
    case base::Code::kInvalidState:
    case base::Code::kNotFound: return true;
    default: return false;
  }
}

// May the index still promise a record whose read ended so? Not if the bytes are wrong or gone; yes if the storage was
// only slow or failing.
bool MustForget(const absl::Status& status) {
  return IsRecordFault(status) || base::CodeOf(status) == base::Code::kInvalidArgument;
}

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

// Codes by which the proofs below tell what is wrong with a record. From a storage they say that it failed, no more.
absl::Status StorageFailure(const absl::Status& status) {
  const base::Code code = base::CodeOf(status);
  if (code != base::Code::kInvalidState && code != base::Code::kIdentityMismatch) return status;
  return base::MakeStatus(base::Code::kIo, "storage", std::string(status.message()));
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
      row_streams_(RowStreams(match_->name_space->layout)),
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
    if (match_->name_space->dropping || match_->name_space->life != match_->life) {
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
    LayersReady(0);
  }
  LayersReady(layers_.size());
  {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const uint64_t bytes = Poll().bytes_read;
    base::MutexLock lock(match_->cache->mutex());
    match_->cache->RecordRead(bytes, seconds.count());
    match_->cache->counters().restored_bytes += bytes;
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
  const layout::Layout& layout = match_->name_space->layout;
  // A block with optional rows streams has no size of its own, so it cannot be read in one piece.
  const bool sizes_known =
      std::ranges::none_of(row_streams_, [&](uint32_t i) { return (layout.stream(i).flags & layout::kOptional) != 0; });
  return options_.early_release || !sizes_known ? AttemptByLayers() : AttemptByBlocks();
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
    return Failure{plan_.snapshot.has_value() ? Failure::Kind::kUncovered : Failure::Kind::kStopped, 0,
                   std::move(status)};
  }
  return std::nullopt;
}

std::optional<RestorePlan::Failure> RestorePlan::AttemptByBlocks() {
  const layout::Layout& layout = match_->name_space->layout;
  const uint64_t first = std::max(plan_.read_blocks_from, proven_blocks_);
  const uint64_t count = plan_.read_blocks_to > first ? plan_.read_blocks_to - first : 0;
  const auto make = [&](size_t i) {
    Read read;
    read.block = first + i;
    read.key = {format::MakeRecordKey(format::RecordKind::kBlock, match_->blocks[read.block].key)};
    read.bytes = BlockHeadBytes(*match_, read.block) + layout.BlockBytes(/*include_draft=*/true);
    read.use = [this, block = read.block](base::MutableBytes bytes) -> absl::Status {
      SliceTable table;
      if (absl::Status status = ProveBlockHead(*match_, block, bytes.first(BlockHeadBytes(*match_, block)), &table);
          !status.ok()) {
        return status;
      }
      for (size_t slice = 0; slice < row_streams_.size(); ++slice) {
        const RowRange range = BlockRange(row_streams_[slice], block, 1);
        const base::MutableBytes rows = bytes.subspan(table.offsets[slice], table.slices[slice].bytes);
        if (absl::Status status = UseSlice(table, slice, rows, range); !status.ok()) return status;
      }
      proven_blocks_ = block + 1;
      return absl::OkStatus();
    };
    return read;
  };
  if (auto failure = RunReads(count, make); failure.has_value()) return failure;
  std::vector<uint32_t> streams;
  for (uint32_t i = 0; i < layout.streams().size(); ++i) {
    if (Selected(i)) streams.push_back(i);
  }
  return RestoreSnapshot(streams);
}

std::optional<RestorePlan::Failure> RestorePlan::AttemptByLayers() {
  const layout::Layout& layout = match_->name_space->layout;
  const uint64_t first = plan_.read_blocks_from;
  const uint64_t count = plan_.read_blocks_to > first ? plan_.read_blocks_to - first : 0;
  std::vector<SliceTable> tables(count);
  const auto make_head = [&](size_t i) {
    Read read;
    read.block = first + i;
    read.key = {format::MakeRecordKey(format::RecordKind::kBlock, match_->blocks[read.block].key)};
    read.bytes = BlockHeadBytes(*match_, read.block);
    read.use = [this, block = read.block, table = &tables[i]](base::MutableBytes bytes) {
      return ProveBlockHead(*match_, block, bytes, table);
    };
    return read;
  };
  if (auto failure = RunReads(count, make_head); failure.has_value()) return failure;
  for (size_t ready = 0; ready < layers_.size(); ++ready) {
    std::vector<uint32_t> streams;
    for (uint32_t i = 0; i < layout.streams().size(); ++i) {
      if (Selected(i) && layout.stream(i).layer == layers_[ready]) streams.push_back(i);
    }
    for (size_t slice = 0; slice < row_streams_.size(); ++slice) {
      const uint32_t stream = row_streams_[slice];
      if (std::ranges::find(streams, stream) == streams.end() || !destinations_.Has(stream)) continue;
      const auto make_slice = [&](size_t i) {
        Read read;
        read.block = first + i;
        read.key = {format::MakeRecordKey(format::RecordKind::kBlock, match_->blocks[read.block].key)};
        read.offset = tables[i].offsets[slice];
        read.bytes = tables[i].slices[slice].bytes;
        read.use = [this, slice, block = read.block, table = &tables[i]](base::MutableBytes bytes) {
          return UseSlice(*table, slice, bytes, BlockRange(row_streams_[slice], block, 1));
        };
        return read;
      };
      if (auto failure = RunReads(count, make_slice); failure.has_value()) return failure;
    }
    if (auto failure = RestoreSnapshot(streams); failure.has_value()) return failure;
    if (options_.early_release && ready + 1 < layers_.size()) LayersReady(ready + 1);
  }
  return std::nullopt;
}

std::optional<RestorePlan::Failure> RestorePlan::ReadSnapshotHead() {
  const trie::SnapshotInfo& snapshot = match_->snapshots[plan_.snapshot->id];
  const uint64_t depth = snapshot.position / match_->name_space->facts.block_tokens;
  const auto make = [&](size_t) {
    Read read;
    read.snapshot = true;
    read.key = {format::MakeRecordKey(
        format::RecordKind::kSnapshot,
        format::SnapshotKey(match_->BoundaryKey(depth), snapshot.position, snapshot.tail_digest))};
    read.bytes = SnapshotHeadBytes(*match_, snapshot);
    read.use = [&](base::MutableBytes bytes) { return ProveSnapshotHead(*match_, snapshot, bytes, &snapshot_table_); };
    return read;
  };
  return RunReads(1, make);
}

std::optional<RestorePlan::Failure> RestorePlan::RestoreSnapshot(const std::vector<uint32_t>& streams) {
  if (!plan_.snapshot.has_value()) return std::nullopt;
  const layout::Layout& layout = match_->name_space->layout;
  const trie::SnapshotInfo& snapshot = match_->snapshots[plan_.snapshot->id];
  const uint64_t depth = snapshot.position / layout.block_tokens();
  std::vector<uint32_t> wanted;
  for (const uint32_t stream : streams) {
    const bool is_rows = layout.stream(stream).kind == layout::StreamKind::kRows;
    // Below a later block's rows, those of the snapshot's open block are in place already.
    if (is_rows && depth != plan_.read_blocks_to) continue;
    const format::Slice& slice = snapshot_table_.slices[stream];
    if (destinations_.Has(stream) && !slice.absent && (slice.bytes > 0 || layout.stream(stream).is_variable())) {
      wanted.push_back(stream);
    }
  }
  const auto make = [&](size_t i) {
    const uint32_t stream = wanted[i];
    Read read;
    read.snapshot = true;
    read.key = {format::MakeRecordKey(
        format::RecordKind::kSnapshot,
        format::SnapshotKey(match_->BoundaryKey(depth), snapshot.position, snapshot.tail_digest))};
    read.offset = snapshot_table_.offsets[stream];
    read.bytes = snapshot_table_.slices[stream].bytes;
    const RowRange range = layout.stream(stream).kind == layout::StreamKind::kRows
                               ? OpenRange(stream, snapshot.position)
                               : StateRange(stream, snapshot.position);
    read.use = [this, stream, range](base::MutableBytes bytes) {
      return UseSlice(snapshot_table_, stream, bytes, range);
    };
    return read;
  };
  return RunReads(wanted.size(), make);
}

// Proves a slice, and moves it where its stream has a destination.
absl::Status RestorePlan::UseSlice(const SliceTable& table, size_t slice, base::MutableBytes bytes,
                                   const RowRange& range) {
  const format::Slice& entry = table.slices[slice];
  if (entry.absent) return absl::OkStatus();
  if (absl::Status status = ProveSlice(table, slice, bytes); !status.ok()) return status;
  if (!Selected(entry.stream) || !destinations_.Has(entry.stream)) return absl::OkStatus();
  return destinations_.Write(entry.stream, range, bytes);
}

// Waits in short pieces, so that a cancel or a close is noticed while a storage is stuck.
template <typename Step>
auto RestorePlan::InPieces(Deadline deadline, const Step& step) {
  while (true) {
    const Deadline piece = std::min(deadline, base::DeadlineAfter(kStopCheck));
    auto result = step(piece);
    const Deadline now = std::chrono::steady_clock::now();
    if (result.ok() || now < piece || now >= deadline || CheckStopped().has_value()) return result;
  }
}

// kBusy when it would have to wait for staging memory and `may_wait` is false.
absl::StatusOr<std::shared_ptr<ReadOperation>> RestorePlan::BeginRead(const Read& read, bool may_wait,
                                                                      Deadline deadline) {
  Cache& cache = *match_->cache;
  StagingPool& pool = *cache.staging();
  absl::StatusOr<StagingBuffer> staging =
      may_wait
          ? InPieces(deadline, [&](Deadline piece) { return pool.Acquire(read.bytes, destinations_.device(), piece); })
          : pool.TryAcquire(read.bytes, destinations_.device());
  if (!staging.ok()) return staging.status();
  auto operation = std::make_shared<ReadOperation>(read.key, read.offset, *std::move(staging));
  const absl::Status status =
      InPieces(deadline, [&](Deadline piece) { return operation->Submit(cache.storage(), piece); });
  if (!status.ok()) return StorageFailure(status);
  return operation;
}

std::optional<RestorePlan::Failure> RestorePlan::RunReads(size_t count, const std::function<Read(size_t)>& make) {
  struct InFlight {
    Read read;
    std::shared_ptr<ReadOperation> operation;
    Deadline deadline;
  };
  struct Reads : std::deque<InFlight> {
    ~Reads() {
      for (InFlight& left : *this) left.operation->Abandon();
    }
  } in_flight;
  const auto fail = [this](const Read& read, absl::Status status) {
    if (auto stopped = CheckStopped(); stopped.has_value()) return *stopped;
    return Failure{read.snapshot ? Failure::Kind::kSnapshot : Failure::Kind::kBlock, read.block, std::move(status)};
  };
  const uint64_t io_timeout_ms = match_->cache->options().io_timeout_ms;
  for (size_t next = 0; next < count || !in_flight.empty();) {
    if (auto stopped = CheckStopped(); stopped.has_value()) return stopped;
    while (next < count && in_flight.size() < kReadsInFlight) {
      Read read = make(next);
      const Deadline deadline = std::min(deadline_, DeadlineAfterMs(io_timeout_ms));
      absl::StatusOr<std::shared_ptr<ReadOperation>> operation = BeginRead(read, in_flight.empty(), deadline);
      // What is in flight gives its memory back first.
      if (base::CodeOf(operation.status()) == base::Code::kBusy && !in_flight.empty()) break;
      if (!operation.ok()) return fail(read, operation.status());
      in_flight.push_back({std::move(read), *std::move(operation), deadline});
      ++next;
    }
    const Read& read = in_flight.front().read;
    ReadOperation& operation = *in_flight.front().operation;
    const Deadline deadline = in_flight.front().deadline;
    const absl::Status waited = InPieces(deadline, [&](Deadline piece) { return operation.Wait(piece); });
    if (!waited.ok()) return fail(read, StorageFailure(waited));
    {
      base::MutexLock lock(mutex_);
      result_.bytes_read += read.bytes;
    }
    absl::Status status = read.use(operation.staging().bytes());
    if (destinations_.unfinished()) operation.staging().Forfeit();
    if (!status.ok()) {
      if (IsRecordFault(status)) return fail(read, status);
      return Failure{Failure::Kind::kStopped, 0, status};
    }
    in_flight.pop_front();
  }
  return std::nullopt;
}

std::optional<RestorePlan::Failure> RestorePlan::CheckStopped() {
  bool stopped = false;
  {
    base::MutexLock lock(mutex_);
    stopped = cancelled_;
  }
  if (!stopped && match_->cache->CheckUsable().ok()) return std::nullopt;
  return Failure{Failure::Kind::kStopped, 0, base::MakeStatus(base::Code::kCancelled, "plan", "cancelled or closed")};
}

// Makes the plan anew without what failed.
void RestorePlan::Shorten(const Failure& failure) {
  plan::Reason reason = plan_.reason;
  if (failure.kind != Failure::Kind::kUncovered) {
    // Whatever then limits the plan, what made it shorter is the record that failed.
    reason = ReasonOf(failure.status);
    usable_limit_ = plan_.usable_tokens;
    CountFailure(failure.status);
    Forget(failure);
  }
  if (failure.kind == Failure::Kind::kBlock) {
    usable_blocks_ = std::min(usable_blocks_, failure.block);
    proven_blocks_ = std::min(proven_blocks_, failure.block);
  } else {
    unusable_snapshots_[plan_.snapshot->id] = true;
  }
  plan_ = match_->MakePlan(usable_blocks_, usable_limit_, unusable_snapshots_, reason);
  plan_.reason = reason;
  shortened_ = true;
}

// Takes a record that is not what it should be out of the index.
void RestorePlan::Forget(const Failure& failure) {
  if (!MustForget(failure.status)) return;
  std::vector<Removal> removals;
  {
    base::MutexLock lock(match_->cache->mutex());
    NameSpace& space = *match_->name_space;
    if (failure.kind == Failure::Kind::kBlock) {
      const MatchedBlock& block = match_->blocks[failure.block];
      const std::optional<trie::BlockInfo> info = space.trie.Get(block.node);
      if (info.has_value() && !info->dead && info->sequence == block.sequence) {
        match_->cache->DetachBlock(space, block.node, &removals);
      }
    } else {
      match_->cache->DetachSnapshot(space, match_->snapshots[plan_.snapshot->id].snapshot, &removals);
    }
  }
  match_->cache->RunRemovals(removals);
}

void RestorePlan::CountFailure(const absl::Status& status) {
  base::MutexLock lock(match_->cache->mutex());
  Stats& stats = match_->cache->counters();
  switch (base::CodeOf(status)) {
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
  destinations_.Close();
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
    result_.quiesced = true;
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
