// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/copy.h"
#include "lib/base/status.h"

namespace kvstrata::core::engine {
namespace {

// How much is gathered before its checksums are computed: what a core's second cache holds beside other things.
constexpr uint64_t kSummedBytes = 128u << 10;

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

// --- sources -----------------------------------------------------------------------------------------------------

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

// --- growing -----------------------------------------------------------------------------------------------------

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

// While decoding: stores what the periodic policy wants, and holds the newest state on the restart grid for the end
// of the output. With every position a restart, the end itself will do and nothing need be held.
void Writer::DecodeSnapshot() {
  if (options_.no_snapshots || !name_space_->facts.has_state || !IsAdmitted(computed_)) return;
  const auto wants = [&](const plan::SnapshotPolicy& policy) {
    return plan::IsDecodeSnapshotPosition(policy, name_space_->facts, options_.restart_multiple, computed_);
  };
  if (policy_.every_tokens > 0 && wants(plan::SnapshotPolicy::Periodic(policy_.every_tokens))) {
    return StoreSnapshot(computed_);
  }
  if (!policy_.at_output_end || options_.restart_multiple <= 1 || !wants({.at_output_end = true})) return;
  held_ = {};
  if (SnapshotKnown(computed_)) return;
  absl::StatusOr<Captured> captured = CaptureSnapshot(computed_, /*to_hold=*/true);
  if (captured.ok()) held_ = *std::move(captured);
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

// How many of the first `blocks` blocks are in the index or on their way.
uint64_t Writer::StoredPrefix(uint64_t blocks) {
  BoundaryKey(blocks);
  base::MutexLock lock(cache_->mutex());
  // Presence is monotone along a chain, and the writer's last block is usually still there.
  uint64_t prefix = std::min(stored_blocks_, blocks);
  while (prefix > 0 && !IsThere(keys_[prefix - 1])) --prefix;
  while (prefix < blocks && (IsThere(keys_[prefix]) || cache_->FindOrAdopt(*name_space_, keys_[prefix]).has_value())) {
    if (prefix >= stored_blocks_) {
      cache_->counters().blocks_deduplicated += 1;
      progress_->blocks_deduplicated += 1;
    }
    ++prefix;
  }
  if (prefix > 0) {
    if (const auto node = name_space_->trie.Find(keys_[prefix - 1]); node.has_value()) {
      // Not counted as a use: the lookup of this sequence was one. What had expired is stored again by being there.
      name_space_->trie.RaisePriority(*node, options_.priority);
      name_space_->trie.ExtendExpiry(*node, ExpiresAt());
      name_space_->trie.Keep(*node, cache_->NextTick());
    }
  }
  return prefix;
}

uint32_t Writer::ExpiresAt() const {
  if (options_.ttl_seconds == 0) return 0;
  const uint64_t at = uint64_t{cache_->NowSeconds()} + options_.ttl_seconds;
  return at >= UINT32_MAX ? 0 : static_cast<uint32_t>(at);  // in 2106
}

// How many of the first `blocks` blocks may be stored, `stored` of which are. Each key counts as seen by this writer
// once, and only for others: a sequence that grows does not see its own blocks a second time. A key covers its whole
// prefix, so who has seen a block has seen all before it, whatever else has been forgotten.
uint64_t Writer::AdmittedBlocks(uint64_t stored, uint64_t blocks) {
  if (!cache_->options().second_sight) return blocks;
  const uint64_t first = std::max(judged_blocks_, stored);
  admitted_blocks_ = std::max(admitted_blocks_, stored);
  base::MutexLock lock(cache_->mutex());
  trie::GhostTable& ghosts = cache_->ghosts();
  for (uint64_t block = blocks; block > first; --block) {
    if (!ghosts.Recall(keys_[block - 1]).has_value()) continue;
    admitted_blocks_ = std::max(admitted_blocks_, block);
    break;
  }
  judged_blocks_ = std::max(judged_blocks_, blocks);
  for (uint64_t block = std::max(first, admitted_blocks_); block < blocks; ++block) {
    ghosts.Remember(keys_[block], 1);
    cache_->counters().blocks_not_admitted += 1;
  }
  return std::min(blocks, admitted_blocks_);
}

// A snapshot goes with the block that it hangs on.
bool Writer::IsAdmitted(uint64_t position) const {
  return !cache_->options().second_sight || position / name_space_->facts.block_tokens <= admitted_blocks_;
}

void Writer::StoreBlocks(uint64_t blocks) {
  // One try each time that a block is complete, not one each token.
  if (blocks <= tried_blocks_) return;
  tried_blocks_ = blocks;
  const uint64_t stored = StoredPrefix(blocks);
  const uint64_t admitted = AdmittedBlocks(stored, blocks);
  for (uint64_t block = stored; block < admitted;) {
    const absl::StatusOr<uint64_t> there = StoreRun(block, std::min(admitted - block, MostRunBlocks()));
    if (!there.ok()) {
      // Children of a block that is not there cannot be stored: the rest waits for the next block, which tries again.
      Drop(RecordClass::kRows, there.status());
      stored_blocks_ = std::min(stored_blocks_, block);
      return;
    }
    block += *there;
  }
  stored_blocks_ = admitted;
}

// `end`: of the tokens that a record describes.
absl::Status Writer::CheckExact(uint64_t end) const {
  if (end <= exact_end_) return absl::OkStatus();
  return base::MakeStatus(base::Code::kUnsupported, "exact", "follows from a bounded replay, which is not exact");
}

void Writer::Drop(RecordClass record_class, const absl::Status& status) {
  base::MutexLock lock(cache_->mutex());
  if (base::FieldOf(status) == "exact") cache_->counters().inexact_dropped += 1;
  const bool snapshot = record_class == RecordClass::kSnapshot;
  (snapshot ? cache_->counters().snapshots_dropped : cache_->counters().blocks_dropped) += 1;
  (snapshot ? progress_->snapshots_dropped : progress_->blocks_dropped) += 1;
  progress_->drop_reason = base::CodeOf(status);
}

// --- blocks ------------------------------------------------------------------------------------------------------

// Four runs fit the staging memory, so that one is copied while others are on their way; and a run is a small part of
// the budget.
uint64_t Writer::MostRunBlocks() const {
  const uint64_t payload = layout().BlockBytes(/*include_draft=*/true);
  const uint64_t head = format::HeadBytes(layout().block_tokens(), 0, layout().streams().size());
  const uint64_t block_bytes = cache_->storage().StoredBytes(head + payload, format::kMetaBytes);
  const uint64_t most_bytes =
      std::min({cache_->staging()->capacity() / 4, cache_->options().capacity_bytes / kMaxRunShare,
                cache_->storage().capabilities().max_payload_bytes, trie::Trie::kMaxBlockBytes});
  return std::clamp<uint64_t>(most_bytes / std::max<uint64_t>(block_bytes, 1), 1, format::kMaxRunBlocks);
}

// Stores up to `count` blocks from `block` on in one record, fewer where there is no room for so many. How many of them
// are there now, or on their way: at least one.
absl::StatusOr<uint64_t> Writer::StoreRun(uint64_t block, uint64_t count) {
  Deadline deadline = WaitDeadline();
  while (true) {
    absl::StatusOr<std::shared_ptr<Put>> put = CaptureRun(block, count, deadline);
    absl::Status status = put.status();
    if (put.ok()) {
      const absl::StatusOr<uint64_t> there = Launch(*put, block, deadline);
      if (there.ok()) return *there > 0 ? *there : count;
      status = there.status();
    }
    switch (base::CodeOf(status)) {
      // Fewer blocks need less space and staging memory, fewer rows of the sources, and meet fewer puts of others.
      case base::Code::kNoSpace:
      case base::Code::kTooLarge:
      case base::Code::kTimeout:
      case base::Code::kInvalidArgument:
      case base::Code::kUnsupported:
      case base::Code::kBusy: break;
      default: return status;
    }
    if (count == 1) return status;
    count /= 2;
    // Staging memory comes back as what is on its way is stored: as for blocks one by one, each try may wait for it.
    if (base::CodeOf(status) == base::Code::kTimeout) deadline = WaitDeadline();
  }
}

absl::StatusOr<format::RecordHead> Writer::RunHead(uint64_t block, uint64_t count) {
  const uint64_t block_tokens = name_space_->facts.block_tokens;
  format::RecordHead head;
  head.identity.kind = format::RecordKind::kBlock;
  head.identity.position = (block + 1) * block_tokens;
  head.identity.parent = BoundaryKey(block);
  head.identity.key = BoundaryKey(block + 1);
  for (uint64_t i = 1; i < count; ++i) head.more.push_back(BoundaryKey(block + i + 1));
  const auto tokens = prompt_.Slice(block * block_tokens, count * block_tokens);
  head.tokens.assign(tokens.begin(), tokens.end());
  head.extra = prompt_.Extra(block * block_tokens, count * block_tokens);
  if (head.extra.size() > format::kMaxExtraBytes) {
    return base::MakeStatus(base::Code::kTooLarge, "extra_keys", std::to_string(head.extra.size()) + " bytes");
  }
  for (const uint32_t i : RowStreams(layout())) {
    const bool absent = !sources_[i].has_value();
    if (absent && (layout().stream(i).flags & layout::kOptional) == 0) {
      return base::InvalidArgument("sources", "none for stream " + std::to_string(i));
    }
    head.slices.push_back({i, absent, absent ? 0 : layout().StreamBlockBytes(i)});
  }
  return head;
}

absl::StatusOr<std::shared_ptr<Put>> Writer::CaptureRun(uint64_t block, uint64_t count, Deadline deadline) {
  if (absl::Status status = CheckExact(name_space_->BlockEnd(block + count)); !status.ok()) return status;
  absl::StatusOr<format::RecordHead> head = RunHead(block, count);
  if (!head.ok()) return head.status();
  const Room room = RoomOf(*head);
  absl::StatusOr<StagingBuffer> staging = cache_->staging()->Acquire(room.bytes(), PinnedDevice(), deadline);
  if (!staging.ok()) return staging.status();
  auto put = std::make_shared<Put>();
  put->staging = *std::move(staging);
  // What is not stored as it was gathered, or is gathered behind this thread's back, gets its checksums later.
  const bool sums = room.coding == 0 && PinnedDevice() < 0 &&
                    std::ranges::none_of(head->slices, [](const format::Slice& slice) { return slice.absent; });
  if (sums) Identify(&*head);
  std::vector<Part> parts;
  for (const format::Slice& slice : head->slices) {
    const uint64_t rows = layout().BlockRows(slice.stream);
    const uint64_t step = sums ? 1 + kSummedBytes / std::max<uint64_t>(slice.bytes, 1) : count;
    for (uint64_t at = 0; at < count && !slice.absent; at += step) {
      const uint64_t blocks = std::min(step, count - at);
      parts.push_back({slice.stream, {(block + at) * rows, blocks * rows, 0}, slice.bytes * blocks, blocks});
    }
  }
  absl::Status gathered = Gather(parts, room.head, &put->staging, sums ? &*head : nullptr);
  if (!gathered.ok()) return gathered;
  Seal(put.get(), *std::move(head), room);
  return put;
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

absl::Status Writer::LaunchSnapshot(Captured captured) {
  const uint64_t depth = captured.head.identity.position / name_space_->facts.block_tokens;
  Seal(captured.put.get(), std::move(captured.head), captured.room);
  return Launch(captured.put, depth, WaitDeadline()).status();
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

std::optional<trie::SnapshotRef> Writer::FindSnapshot(const base::BlockDigest& boundary, uint64_t position,
                                                      const base::Digest128& tail) const {
  const NameSpace& space = *name_space_;
  const std::optional<trie::NodeRef> node =
      position < space.facts.block_tokens ? std::optional(space.trie.root()) : space.trie.Find(boundary);
  if (!node.has_value()) return std::nullopt;
  for (const trie::SnapshotInfo& known : space.snapshots.FindOnPath(*node, position)) {
    if (known.position < position) break;
    if (known.tail_digest == tail) return known.snapshot;
  }
  return std::nullopt;
}

// --- snapshots ---------------------------------------------------------------------------------------------------

absl::Status Writer::Snapshot() {
  if (absl::Status status = cache_->CheckUsable(); !status.ok()) return status;
  const uint32_t multiple = options_.restart_multiple == 0 ? 1 : options_.restart_multiple;
  if (computed_ == 0 || computed_ % multiple != 0) {
    return base::MakeStatus(base::Code::kInvalidState, "computed_length",
                            std::to_string(computed_) + " is no position of the restart grid");
  }
  if (options_.no_admit || options_.no_snapshots) return absl::OkStatus();
  StoreBlocks(computed_ / name_space_->facts.block_tokens);
  StoreSnapshot(computed_);
  return absl::OkStatus();
}

bool Writer::SnapshotKnown(uint64_t position) {
  const uint64_t depth = position / name_space_->facts.block_tokens;
  const base::BlockDigest boundary = BoundaryKey(depth);
  const uint64_t first = name_space_->BlockEnd(depth);
  const base::Digest128 tail = TailOf(prompt_, boundary, first, position);
  const storage::Key key{
      format::MakeRecordKey(format::RecordKind::kSnapshot, format::SnapshotKey(boundary, position, tail))};
  base::MutexLock lock(cache_->mutex());
  if (cache_->FindPut(key) != nullptr) return true;
  const std::optional<trie::SnapshotRef> known = FindSnapshot(boundary, position, tail);
  if (known.has_value()) name_space_->snapshots.Touch(*known, cache_->NextTick());
  return known.has_value();
}

void Writer::StoreSnapshot(uint64_t position) {
  if (options_.no_snapshots || !name_space_->facts.has_state || !IsAdmitted(position)) return;
  if (SnapshotKnown(position)) {
    base::MutexLock lock(cache_->mutex());
    progress_->snapshots_deduplicated += 1;
    return;
  }
  absl::StatusOr<Captured> captured = CaptureSnapshot(position, /*to_hold=*/false);
  const absl::Status status = captured.ok() ? LaunchSnapshot(*std::move(captured)) : captured.status();
  if (!status.ok()) Drop(RecordClass::kSnapshot, status);
}

// The head without its placement, and which rows each of its slices has.
absl::StatusOr<format::RecordHead> Writer::SnapshotHead(uint64_t position, std::vector<RowRange>* ranges) {
  const uint64_t depth = position / name_space_->facts.block_tokens;
  const uint64_t first = name_space_->BlockEnd(depth);
  format::RecordHead head;
  for (uint32_t i = 0; i < layout().streams().size(); ++i) {
    const layout::Stream& stream = layout().stream(i);
    const bool is_rows = stream.kind == layout::StreamKind::kRows;
    const RowRange open_rows{depth * layout().BlockRows(i), layout().OpenBlockRows(i, position), 0};
    const RowRange range = is_rows ? open_rows : StateRows(layout(), i, position);
    const bool given = sources_[i].has_value(), optional = (stream.flags & layout::kOptional) != 0;
    const uint64_t row_bytes = stream.is_variable() && given ? sources_[i]->row_bytes() : stream.row_bytes;
    if (!given && !optional && range.count > 0) {
      return base::InvalidArgument("sources", "none for stream " + std::to_string(i));
    }
    // A stream without rows at this position is empty, not absent.
    head.slices.push_back({i, !given && optional, given ? range.count * row_bytes : 0});
    ranges->push_back(range);
  }
  head.identity.kind = format::RecordKind::kSnapshot;
  head.identity.position = position;
  head.identity.key = BoundaryKey(depth);
  const auto tokens = prompt_.Slice(first, position - first);
  head.tokens.assign(tokens.begin(), tokens.end());
  head.extra = prompt_.Extra(first, position - first);
  head.identity.tail = TailOf(prompt_, head.identity.key, first, position);
  return head;
}

absl::StatusOr<Writer::Captured> Writer::CaptureSnapshot(uint64_t position, bool to_hold) {
  if (absl::Status status = CheckExact(kNoPosition); !status.ok()) return status;
  std::vector<RowRange> ranges;
  absl::StatusOr<format::RecordHead> head = SnapshotHead(position, &ranges);
  if (!head.ok()) return head.status();
  const Room room = RoomOf(*head);
  // A state that is held for long must leave the staging memory to others: it gets only what is free, up to half.
  StagingPool& pool = *cache_->staging();
  if (to_hold && pool.usage().used + room.bytes() > pool.capacity() / 2) {
    return base::MakeStatus(base::Code::kBusy, "staging_bytes", "half of it is in use");
  }
  absl::StatusOr<StagingBuffer> staging =
      to_hold ? pool.TryAcquire(room.bytes(), PinnedDevice())
              : pool.Acquire(room.bytes(), PinnedDevice(), WaitDeadline());
  if (!staging.ok()) return staging.status();
  auto put = std::make_shared<Put>();
  put->staging = *std::move(staging);
  std::vector<Part> parts;
  for (const format::Slice& slice : head->slices) {
    if (slice.bytes != 0) parts.push_back({slice.stream, ranges[slice.stream], slice.bytes});
  }
  if (absl::Status status = Gather(parts, room.head, &put->staging, nullptr); !status.ok()) return status;
  cache_->SettleStaging();  // it may be held for long, or never be put
  return Captured{std::move(put), *std::move(head), room};
}

absl::StatusOr<std::vector<uint64_t>> Writer::SnapshotPositions(const Prompt& prompt) {
  if (absl::Status status = cache_->CheckUsable(); !status.ok()) return status;
  const bool inexact = exact_end_ != kNoPosition;
  if (options_.no_snapshots || options_.no_admit || inexact || !name_space_->facts.has_state) {
    wanted_.clear();
    return wanted_;
  }
  std::vector<uint64_t> existing;
  const std::vector<uint64_t> common = CommonPrefixes(prompt, &existing);
  plan::SnapshotQuery query;
  query.prompt_tokens = prompt.size();
  // The state at the start is exact after a full replay, and worth a snapshot; after any other restart one is there.
  query.from = computed_ == rebuilt_at_ ? computed_ - 1 : computed_;
  query.restart_multiple = options_.restart_multiple;
  query.common_prefixes = common;
  query.existing = existing;
  wanted_ = plan::SnapshotPositions(policy_, name_space_->facts, query);
  prompt_end_ = prompt.size();
  return wanted_;
}

// Where stored chains part from the prompt, and the positions on its path that have a snapshot already.
std::vector<uint64_t> Writer::CommonPrefixes(const Prompt& prompt, std::vector<uint64_t>* existing) {
  NameSpace& space = *name_space_;
  trie::KeySequence keys = KeysOf(prompt, space.trie.root_key(), space.facts.block_tokens);
  std::vector<uint64_t> out;
  base::MutexLock lock(cache_->mutex());
  const trie::MatchResult match =
      space.trie.Match(keys, prompt.size() / space.facts.block_tokens, cache_->NowSeconds());
  if (match.blocks > 0 && space.trie.FirstChild(match.node).valid() && space.BlockEnd(match.blocks) < prompt.size()) {
    out.push_back(space.BlockEnd(match.blocks));
  }
  for (const trie::SnapshotInfo& snapshot : space.snapshots.FindOnPath(match.node, prompt.size())) {
    if (snapshot.position % space.facts.block_tokens == 0) existing->push_back(snapshot.position);
  }
  return out;
}

// --- ending ------------------------------------------------------------------------------------------------------

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
