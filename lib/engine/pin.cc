// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/pin.h"

#include <algorithm>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {

// What was found out about a record's bytes, checksums included. Kept with them (HeldRecord::note).
struct Pin::ProvenRun {
  format::RecordHead head;
  SliceTable table;
};

Pin::Pin(std::shared_ptr<MatchState> match)
    : match_(std::move(match)), row_streams_(RowStreams(match_->name_space->layout)) {}

Pin::~Pin() {
  parts_.clear();
  match_->cache->UncountPinned(held_bytes_);
}

absl::StatusOr<std::unique_ptr<Pin>> Pin::Create(const Match& match) {
  if (absl::Status status = match.state()->cache->CheckUsable(); !status.ok()) return status;
  std::unique_ptr<Pin> pin(new Pin(match.state()));
  const MatchState& state = *pin->match_;
  const plan::Plan& plan = match.plan();
  pin->first_block_ = pin->end_block_ = plan.read_blocks_from;
  {
    base::MutexLock lock(state.cache->mutex());
    if (!state.name_space->is_usable() || state.name_space->life != state.life) return pin;
  }
  while (pin->end_block_ < plan.read_blocks_to) {
    if (!pin->Add(RunOf(state, pin->end_block_), plan.read_blocks_to)) break;
  }
  return pin;
}

// False: the run is not in memory, or coded, or not what it should be, or there is no more that pins may hold.
bool Pin::Add(const MatchedRun& run, uint64_t end_block) {
  Cache& cache = *match_->cache;
  const base::BlockDigest& key = match_->blocks[run.first].key;
  std::shared_ptr<storage::HeldRecord> record =
      cache.storage().Hold({format::MakeRecordKey(format::RecordKind::kBlock, key)});
  if (record == nullptr) return false;
  std::shared_ptr<const ProvenRun> proven = Prove(run, *record);
  if (proven == nullptr) return false;
  const uint64_t bytes = record->payload().size();
  if (!cache.CountPinned(bytes)) return false;
  held_bytes_ += bytes;
  const uint64_t end = std::min(run.end, end_block);
  parts_.push_back({std::move(record), std::move(proven), run.first, end_block_, end});
  end_block_ = end;
  return true;
}

// Null when the bytes are not those that the match promises. A restore finds out why, and does what has to be done.
std::shared_ptr<const Pin::ProvenRun> Pin::Prove(const MatchedRun& run, storage::HeldRecord& record) const {
  if (auto known = std::static_pointer_cast<const ProvenRun>(record.note()); known != nullptr) {
    return CheckRunHead(*match_, run, known->head).ok() ? known : nullptr;
  }
  const base::ByteView payload = record.payload();
  if (payload.size() < format::kHeadPrefixBytes) return nullptr;
  const absl::StatusOr<uint64_t> head_bytes = format::PeekHeadBytes(payload.first(format::kHeadPrefixBytes));
  if (!head_bytes.ok() || *head_bytes > payload.size()) return nullptr;
  absl::StatusOr<format::RecordHead> head = format::DecodeHead(payload.first(*head_bytes));
  if (!head.ok() || !CheckRunHead(*match_, run, *head).ok()) return nullptr;
  if (head->coded()) return nullptr;  // its rows do not lie in memory
  auto proven = std::make_shared<ProvenRun>();
  if (!PlaceSlices(*match_, *head, *head_bytes, &proven->table).ok()) return nullptr;
  proven->head = *std::move(head);
  const SliceTable& table = proven->table;
  for (size_t slice = 0; slice < table.slices.size(); ++slice) {
    const uint64_t bytes = table.slices[slice].bytes;
    if (table.slices[slice].absent) continue;
    for (uint64_t block = 0; block < table.blocks; ++block) {
      const uint64_t offset = table.Start(slice, block);
      if (offset > payload.size() || bytes > payload.size() - offset) return nullptr;
      if (!ProveSlice(table, slice, block, payload.subspan(offset, bytes)).ok()) return nullptr;
    }
  }
  record.set_note(proven);
  return proven;
}

Pin::Range Pin::range(uint64_t index) const {
  const Part& part = parts_[index / row_streams_.size()];
  const size_t slice = index % row_streams_.size();
  const SliceTable& table = part.run->table;
  Range range;
  range.stream = row_streams_[slice];
  const uint64_t block_rows = match_->name_space->layout.BlockRows(range.stream);
  range.rows.first = part.first * block_rows;
  if (table.slices[slice].absent) return range;
  const uint64_t blocks = part.end - part.first;
  range.rows.count = blocks * block_rows;
  range.bytes = part.record->payload().subspan(table.Start(slice, part.first - part.run_first),
                                               blocks * table.slices[slice].bytes);
  return range;
}

}  // namespace kvstrata::core::engine
