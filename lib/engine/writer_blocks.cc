// SPDX-License-Identifier: Apache-2.0
// Which blocks of a writer's sequence are there, which may be stored, and the runs that they go in.
#include "lib/engine/writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {
namespace {

// How much is gathered before its checksums are computed: what a core's second cache holds beside other things.
constexpr uint64_t kSummedBytes = 128u << 10;

}  // namespace

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
    const absl::StatusOr<uint64_t> there = StoreRun(block, NextRunBlocks(admitted - block));
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

// Of `left` blocks: as few runs as possible, and these as long as each other. Staging memory that one of them has left
// then fits the next.
uint64_t Writer::NextRunBlocks(uint64_t left) const {
  const uint64_t most = MostRunBlocks();
  const uint64_t runs = (left + most - 1) / most;
  return (left + runs - 1) / runs;
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

}  // namespace kvstrata::core::engine
