// SPDX-License-Identifier: Apache-2.0
// The life of a writer: opening, growing, ending. Blocks are in writer_blocks.cc, snapshots in writer_snapshots.cc, and
// what both need in writer_records.cc.
#include "lib/engine/writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {
namespace {

// Where in a match's prompt a writer begins, and how the engine got there.
struct Beginning {
  const MatchState* match = nullptr;
  uint64_t tokens = 0;
  plan::Mode mode = plan::Mode::kNone;
  uint64_t write_floor = 0;
};

absl::StatusOr<Beginning> BeginningOf(const Match* match, const RestorePlan* restored, uint64_t start_tokens) {
  if (restored != nullptr) {
    if (match != nullptr && match->state() != restored->match()) {
      return base::InvalidArgument("options.plan", "was made from another match");
    }
    if (start_tokens > 0) return base::InvalidArgument("options.start_tokens", "excludes options.plan");
    const RestoreResult result = restored->Poll();
    if (result.state == RestoreState::kCreated || result.state == RestoreState::kRunning) {
      return base::MakeStatus(base::Code::kInvalidState, "options.plan", "has not ended");
    }
    return Beginning{restored->match().get(), result.plan.usable_tokens, result.plan.mode, result.plan.write_floor};
  }
  if (match == nullptr) {
    if (start_tokens > 0) return base::InvalidArgument("options.start_tokens", "needs a match");
    return Beginning{};
  }
  const uint64_t tokens = start_tokens == 0 ? match->plan().usable_tokens : start_tokens;
  const uint64_t most = match->state()->prompt.size();
  if (tokens > most) {
    return base::InvalidArgument("options.start_tokens",
                                 std::to_string(tokens) + " > the prompt's " + std::to_string(most));
  }
  const plan::Mode mode = match->state()->ended_inexact ? plan::Mode::kBoundedReplay : match->plan().mode;
  return Beginning{match->state().get(), tokens, mode, match->plan().write_floor};
}

// A block that is larger than all staging memory would be dropped each time, and all behind it.
absl::Status CheckBlockFits(const layout::Layout& layout, uint64_t staging_bytes) {
  const std::vector<uint32_t> streams = RowStreams(layout);
  uint64_t bytes = format::HeadBytes(layout.block_tokens(), 0, streams.size());
  for (const uint32_t i : streams) {
    if ((layout.stream(i).flags & layout::kOptional) == 0) bytes += layout.StreamBlockBytes(i);
  }
  if (bytes <= staging_bytes) return absl::OkStatus();
  return base::MakeStatus(
      base::Code::kTooLarge, "staging_bytes",
      "a block of " + std::to_string(bytes) + " bytes with its head, the bound is " + std::to_string(staging_bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Writer>> Writer::Open(const std::shared_ptr<Cache>& cache,
                                                     const std::shared_ptr<NameSpace>& name_space,
                                                     const plan::SnapshotPolicy& policy, const Match* match,
                                                     const RestorePlan* restored, const WriterOptions& options) {
  if (absl::Status status = cache->CheckUsable(); !status.ok()) return status;
  const absl::StatusOr<Beginning> begin = BeginningOf(match, restored, options.start_tokens);
  if (!begin.ok()) return begin.status();
  std::unique_ptr<Writer> writer(new Writer());
  writer->cache_ = cache;
  writer->name_space_ = name_space;
  writer->policy_ = policy;
  writer->options_ = options;
  writer->progress_ = std::make_shared<WriterProgress>();
  writer->sources_.resize(name_space->layout.streams().size());
  if (cache->options().read_only) writer->options_.no_admit = true;
  if (!writer->options_.no_admit) {
    const absl::Status fits = CheckBlockFits(name_space->layout, cache->staging()->capacity());
    if (!fits.ok()) return fits;
  }
  if (begin->match == nullptr) return writer;
  const MatchState& state = *begin->match;
  if (state.name_space != name_space) {
    return base::InvalidArgument(restored == nullptr ? "match" : "options.plan", "is of another namespace");
  }
  writer->prompt_ = state.prompt;
  writer->prompt_.Truncate(begin->tokens);
  writer->computed_ = begin->tokens;
  writer->reached_ = begin->tokens;
  if (begin->mode == plan::Mode::kFullReplay && begin->tokens > 0) writer->rebuilt_at_ = begin->tokens;
  if (begin->mode == plan::Mode::kBoundedReplay && begin->tokens > 0 && !options.admit_inexact) {
    writer->exact_end_ = std::min(begin->tokens, begin->write_floor);
  }
  writer->stored_blocks_ = std::min(begin->tokens / name_space->facts.block_tokens, state.matched_blocks);
  for (uint64_t i = 0; i < writer->stored_blocks_; ++i) writer->keys_.push_back(state.blocks[i].key);
  return writer;
}

Deadline Writer::WaitDeadline() const { return DeadlineAfterMs(options_.wait_ms == 0 ? 1'000 : options_.wait_ms); }

base::BlockDigest Writer::BoundaryKey(uint64_t depth) {
  const uint32_t block_tokens = name_space_->facts.block_tokens;
  while (keys_.size() < depth) {
    const uint64_t first = keys_.size() * block_tokens;
    const base::BlockDigest& parent = keys_.empty() ? name_space_->trie.root_key() : keys_.back();
    keys_.push_back(base::ChainBlock(parent, prompt_.Slice(first, block_tokens), prompt_.Extra(first, block_tokens)));
  }
  return depth == 0 ? name_space_->trie.root_key() : keys_[depth - 1];
}

uint32_t Writer::ExpiresAt() const {
  if (options_.ttl_seconds == 0) return 0;
  const uint64_t at = uint64_t{cache_->NowSeconds()} + options_.ttl_seconds;
  return at >= UINT32_MAX ? 0 : static_cast<uint32_t>(at);  // in 2106
}

void Writer::Drop(RecordClass record_class, const absl::Status& status) {
  base::MutexLock lock(cache_->mutex());
  if (base::FieldOf(status) == "exact") cache_->counters().inexact_dropped += 1;
  const bool snapshot = record_class == RecordClass::kSnapshot;
  (snapshot ? cache_->counters().snapshots_dropped : cache_->counters().blocks_dropped) += 1;
  (snapshot ? progress_->snapshots_dropped : progress_->blocks_dropped) += 1;
  progress_->drop_reason = base::CodeOf(status);
}

absl::Status Writer::SetSource(BufferDesc desc) {
  if (absl::Status status = cache_->CheckUsable(); !status.ok()) return status;
  const uint32_t stream = desc.stream;
  if (stream >= sources_.size()) {
    return base::InvalidArgument("source.stream", std::to_string(stream) + " is no stream of this layout");
  }
  if (desc.memory == MemoryKind::kDevice && cache_->device() == nullptr) {
    return base::MakeStatus(base::Code::kUnsupported, "source.memory", "the cache was opened without a device");
  }
  absl::StatusOr<Buffer> buffer = Buffer::Create(layout().stream(stream), std::move(desc));
  if (!buffer.ok()) return buffer.status();
  sources_[stream] = *std::move(buffer);
  return absl::OkStatus();
}

absl::Status Writer::Advance(std::span<const int32_t> ids, std::vector<ExtraKey> keys, uint64_t computed_length) {
  if (absl::Status status = cache_->CheckUsable(); !status.ok()) return status;
  const uint64_t length = prompt_.size() + ids.size();
  if (computed_length < computed_ || computed_length > length) {
    return base::InvalidArgument("computed_length", std::to_string(computed_length) + " is not in [" +
                                                        std::to_string(computed_) + ", " + std::to_string(length) +
                                                        "]");
  }
  if (absl::Status status = prompt_.Append(ids, std::move(keys)); !status.ok()) return status;
  computed_ = computed_length;
  reached_ = std::max(reached_, computed_);
  if (options_.no_admit) return absl::OkStatus();
  StoreBlocks(computed_ / name_space_->facts.block_tokens);
  if (std::ranges::binary_search(wanted_, computed_)) {
    StoreSnapshot(computed_);
  } else if (computed_ > prompt_end_) {
    DecodeSnapshot();
  }
  return absl::OkStatus();
}

absl::Status Writer::Truncate(uint64_t length) {
  if (length > prompt_.size()) {
    return base::InvalidArgument("length", std::to_string(length) + " > " + std::to_string(prompt_.size()));
  }
  prompt_.Truncate(length);
  computed_ = std::min(computed_, length);
  const uint64_t blocks = length / name_space_->facts.block_tokens;
  if (keys_.size() > blocks) keys_.resize(blocks);
  stored_blocks_ = std::min(stored_blocks_, blocks);
  tried_blocks_ = std::min(tried_blocks_, blocks);
  judged_blocks_ = std::min(judged_blocks_, blocks);
  admitted_blocks_ = std::min(admitted_blocks_, blocks);
  if (held_.head.identity.position > length) held_ = {};
  // What was restored stays exact; a sequence that begins anew is.
  if (exact_end_ != kNoPosition) exact_end_ = length == 0 ? kNoPosition : std::min(exact_end_, length);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Writer>> Writer::Fork() const {
  if (absl::Status status = cache_->CheckUsable(); !status.ok()) return status;
  std::unique_ptr<Writer> fork(new Writer(*this));
  fork->progress_ = std::make_shared<WriterProgress>();
  fork->held_ = {};
  return fork;
}

absl::Status Writer::Commit(bool durable, bool output_end, uint64_t timeout_ms, CommitInfo* info) {
  if (absl::Status status = cache_->CheckUsable(); !status.ok()) return status;
  if (durable && !cache_->storage().capabilities().durable_sync) {
    return base::MakeStatus(base::Code::kUnsupported, "flags", "this storage cannot make a commit durable");
  }
  if (output_end && policy_.at_output_end && !options_.no_admit && !options_.no_snapshots) {
    const uint32_t multiple = options_.restart_multiple == 0 ? 1 : options_.restart_multiple;
    // The state at the very end, where the engine can restart there; else the newest one held.
    if (computed_ > 0 && computed_ % multiple == 0) {
      StoreSnapshot(computed_);
    } else if (held_.put != nullptr) {
      const absl::Status status = LaunchSnapshot(std::move(held_));
      if (!status.ok()) Drop(RecordClass::kSnapshot, status);
    }
    held_ = {};
  }
  const Deadline deadline = DeadlineAfterMs(timeout_ms == 0 ? 30'000 : timeout_ms);
  {
    base::MutexLock lock(cache_->mutex());
    while (progress_->pending > 0) {
      if (!cache_->changed().WaitUntil(cache_->mutex(), deadline) && progress_->pending > 0) {
        return base::MakeStatus(base::Code::kTimeout, "timeout_ms", "not all accepted records have been stored");
      }
    }
  }
  if (durable) {
    if (absl::Status status = cache_->Sync(); !status.ok()) return status;
  }
  if (info != nullptr) {
    base::MutexLock lock(cache_->mutex());
    info->durable = durable;
    info->sequence_tokens = prompt_.size();
    info->computed_tokens = computed_;
    info->progress = *progress_;
  }
  return absl::OkStatus();
}

}  // namespace kvstrata::core::engine
