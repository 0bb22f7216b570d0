// SPDX-License-Identifier: Apache-2.0
// The end of an opening: what the records of the table take of the segments, and which of them have no place there.
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "lib/base/status.h"
#include "lib/storage/segment/store.h"

namespace kvstrata::core::storage {

// Units of all records are taken; where two want the same, or a segment ends before, something was damaged, and the
// later record is believed. Only then does the order of claiming matter.
absl::Status SegmentStore::ClaimAll() {
  std::vector<Id> ids, misplaced;
  {
    base::MutexLock lock(mutex_);
    ids.reserve(table_.size());
    for (Id id = 0; id < table_.end(); ++id) {
      const Record record = table_.Get(id);
      if (!record.linked) continue;
      ids.push_back(id);
      used_bytes_ += StoredBytes(record.payload_bytes, record.meta_bytes);
    }
    misplaced = ClaimEach(ids);
  }
  if (!misplaced.empty()) {
    SortNewestFirst(&ids);
    base::MutexLock lock(mutex_);
    data_->FreeAll();
    misplaced = ClaimEach(ids);
  }
  {
    base::MutexLock lock(mutex_);
    data_->EndClaims();
    for (const Id id : misplaced) {
      const Record record = table_.Get(id);
      used_bytes_ -= StoredBytes(record.payload_bytes, record.meta_bytes);
    }
  }
  for (const Id id : misplaced) {
    if (absl::Status status = DropAtOpen(id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// By the sequence numbers in their entries, which are read again in the order in which they lie; last, what cannot be
// read any more.
void SegmentStore::SortNewestFirst(std::vector<Id>* ids) {
  struct Placed {
    uint16_t slot;
    uint64_t offset;
    Id id;
    auto operator<=>(const Placed&) const = default;
  };
  std::vector<Placed> placed;
  std::vector<Log> logs;
  Images images;
  {
    base::MutexLock lock(mutex_);
    logs = logs_;
    images = images_;
    images.resize(logs.size());
    for (const Id id : *ids) placed.push_back({table_.Get(id).log, table_.Get(id).log_offset, id});
  }
  std::ranges::sort(placed);
  std::vector<std::pair<uint64_t, Id>> by_sequence;
  std::optional<LogReader> reader;
  for (const auto& [slot, offset, id] : placed) {
    if (!reader.has_value() || reader->log() != logs[slot]) reader.emplace(directory_, logs[slot], images[slot]);
    format::LogEntryView entry;
    const absl::StatusOr<bool> read = reader->ReadAt(offset, &entry);
    by_sequence.emplace_back(read.ok() && *read ? entry.sequence : 0, id);
  }
  std::ranges::sort(by_sequence, std::greater<>());
  std::ranges::transform(by_sequence, ids->begin(), &std::pair<uint64_t, Id>::second);
}

// In this order; those that could not claim theirs.
std::vector<RecordTable::Id> SegmentStore::ClaimEach(std::span<const Id> ids) {
  std::vector<Id> misplaced;
  for (const Id id : ids) {
    const RecordPlace place = table_.PlaceOf(id);
    size_t claimed = 0;
    while (claimed < place.size() && data_->Claim(place[claimed])) ++claimed;
    if (claimed == place.size()) continue;
    for (size_t i = 0; i < claimed; ++i) data_->Unclaim(place[i]);
    misplaced.push_back(id);
  }
  return misplaced;
}

// The next flush writes the removal of its key, which its entry tells. Where that is damaged by now, there is nothing
// to end: the next opening will find no record there.
absl::Status SegmentStore::DropAtOpen(Id id) {
  Log log;
  uint64_t offset = 0;
  {
    base::MutexLock lock(mutex_);
    const Record record = table_.Get(id);
    log = logs_[record.log];
    offset = record.log_offset;
  }
  LogReader reader(directory_, log);
  format::LogEntryView entry;
  const absl::StatusOr<bool> read = reader.ReadAt(offset, &entry);
  if (!read.ok()) return read.status();
  base::MutexLock lock(mutex_);
  if (*read) {
    Change& change = changes_[Key{entry.key}];
    change.durable = true;
    change.number = ++change_number_;
  }
  table_.Unlink(id);
  table_.Free(id);
  ++stats_.dropped_at_open;
  return absl::OkStatus();
}

}  // namespace kvstrata::core::storage
