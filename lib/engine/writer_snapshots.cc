// SPDX-License-Identifier: Apache-2.0
// A writer's snapshots: where they are wanted, and what they are made of.
#include "lib/engine/writer.h"

#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {

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

absl::Status Writer::LaunchSnapshot(Captured captured) {
  const uint64_t depth = captured.head.identity.position / name_space_->facts.block_tokens;
  Seal(captured.put.get(), std::move(captured.head), captured.room);
  return Launch(captured.put, depth, WaitDeadline()).status();
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

}  // namespace kvstrata::core::engine
