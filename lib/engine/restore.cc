// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/restore.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {

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

// --- signals and the end -----------------------------------------------------------------------------------------

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
