// SPDX-License-Identifier: Apache-2.0
// In order: sizes; the end of a record; getting and removing; listing. Opening is in store_open.cc, putting in
// store_put.cc, flushing in store_flush.cc.
#include "lib/storage/segment/store.h"

#include <algorithm>
#include <utility>

#include "lib/base/checked.h"
#include "lib/base/status.h"
#include "lib/storage/request_check.h"

namespace kvstrata::core::storage {
namespace {

using format::kUnitBytes;

// An entry may be in the journal, in a checkpoint, and in the one that is being written; and the journal may hold as
// much again of what is no longer true before a checkpoint is due.
constexpr uint64_t kEntryCopies = 4;
constexpr uint64_t kMinJournalBytes = 256 * 1024;
constexpr uint64_t kMaxJournalBytes = 16u << 20;
// Numbers looked at with the lock held, so that a listing of a large store keeps nobody waiting.
constexpr uint32_t kListStep = 4096;

}  // namespace

SegmentStore::SegmentStore(const SegmentStoreOptions& options)
    : os_(*options.os),
      random_(*options.random),
      path_(options.path),
      read_only_(options.read_only),
      capacity_bytes_(options.capacity_bytes),
      keep_free_bytes_(options.keep_free_bytes),
      segment_bytes_(options.segment_bytes != 0 ? options.segment_bytes : SegmentBytesFor(options.capacity_bytes)),
      journal_bytes_(options.journal_bytes != 0
                         ? options.journal_bytes
                         : std::clamp(options.capacity_bytes / 64, kMinJournalBytes, kMaxJournalBytes)),
      io_threads_(options.io_threads),
      directory_{*options.os, -1, path_},
      logs_(1) {}

SegmentStore::~SegmentStore() { CloseDirectory(); }

uint64_t SegmentStore::StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) {
  const uint64_t units = UnitsOf(payload_bytes);
  const std::optional<uint64_t> entry = base::CheckedAdd<uint64_t>(meta_bytes, format::kPutHeadBytes + 2 * 12);
  if (!entry.has_value() || *entry > UINT64_MAX / kEntryCopies || units > UINT64_MAX / kUnitBytes) return UINT64_MAX;
  return base::CheckedAdd(units * kUnitBytes, *entry * kEntryCopies).value_or(UINT64_MAX);
}

uint64_t SegmentStore::MaxPayloadBytes() const { return format::kMaxExtents * super_.segment_bytes; }

SegmentStats SegmentStore::stats() {
  base::MutexLock lock(mutex_);
  SegmentStats stats = stats_;
  stats.segment_bytes = data_->ready_units() * kUnitBytes;
  stats.free_bytes = data_->free_units() * kUnitBytes;
  stats.direct = data_->direct() ? 1 : 0;
  return stats;
}

// ---- The end of a record -------------------------------------------------------------------------------------------

void SegmentStore::ReserveQuarantine() {
  if (quarantine_.size() == quarantine_.capacity()) quarantine_.reserve(2 * quarantine_.size() + 64);
}

// Room in quarantine_ has been reserved, so that nothing here can fail.
void SegmentStore::Retire(Id id, Change* change) {
  const Record record = table_.Get(id);
  used_bytes_ -= StoredBytes(record.payload_bytes, record.meta_bytes);
  table_.Unlink(id);
  if (record.state != RecordState::kPending) {
    change->durable = true;
    table_.SetQuarantined(id, true);
    quarantine_.push_back(id);
    quarantined_units_ += UnitsOf(record.payload_bytes);
  }
  ReleaseIfUnused(id);
}

void SegmentStore::ReleaseIfUnused(Id id) {
  const Record record = table_.Get(id);
  if (record.linked || record.quarantined || record.being_read) return;
  if (!read_only_) {  // space is its writer's affair
    for (const format::Extent& extent : table_.PlaceOf(id)) data_->Free(extent);
  }
  table_.Free(id);
}

// ---- Getting and removing ------------------------------------------------------------------------------------------

Result SegmentStore::DoGet(const Get& get) {
  Pin pin;
  if (absl::Status status = BeginGet(get, &pin); !status.ok()) return {std::move(status), 0};
  const absl::Status status = data_->Read(pin.extents, get.offset, get.destination);
  EndGet(pin);
  return {status, status.ok() ? get.destination.size() : 0};
}

absl::Status SegmentStore::BeginGet(const Get& get, Pin* pin) {
  base::MutexLock lock(mutex_);
  const std::optional<Id> found = table_.Find(get.key);
  if (!found.has_value()) return base::MakeStatus(base::Code::kNotFound, "key", "no such record");
  const uint64_t payload_bytes = table_.Get(*found).payload_bytes;
  if (absl::Status status = CheckRange(get.offset, get.destination.size(), payload_bytes); !status.ok()) {
    return status;
  }
  const RecordPlace place = table_.PlaceOf(*found);
  pin->id = *found;
  pin->extents.assign(place.begin(), place.end());
  table_.AddReader(*found);
  return absl::OkStatus();
}

DataFiles::Part SegmentStore::PartOf(const Pin& pin, uint64_t offset, uint64_t bytes) const {
  return data_->PartOf(pin.extents, offset, bytes);
}

void SegmentStore::EndGet(const Pin& pin) {
  base::MutexLock lock(mutex_);
  table_.DropReader(pin.id);
  ReleaseIfUnused(pin.id);
}

absl::StatusOr<std::optional<uint64_t>> SegmentStore::Stat(const Key& key) {
  base::MutexLock lock(mutex_);
  const std::optional<Id> found = table_.Find(key);
  if (!found.has_value()) return std::optional<uint64_t>();
  return std::optional<uint64_t>(table_.Get(*found).payload_bytes);
}

absl::Status SegmentStore::Remove(const Key& key) {
  if (read_only_) return base::MakeStatus(base::Code::kReadOnly, "remove", "the store is open for reading only");
  base::MutexLock lock(mutex_);
  const std::optional<Id> found = table_.Find(key);
  if (!found.has_value()) return absl::OkStatus();
  Change& change = changes_[key];
  ReserveQuarantine();
  change.number = ++change_number_;
  Retire(*found, &change);
  return absl::OkStatus();
}

// ---- Listing -------------------------------------------------------------------------------------------------------

absl::Status SegmentStore::List(const Cursor& cursor, uint64_t limit, ListPage* page) {
  const absl::StatusOr<Position> position = PositionOf(cursor);
  if (!position.ok()) return position.status();
  if (position->after.has_value()) return base::InvalidArgument("cursor", "was not made by this store");
  if (limit == 0) return base::InvalidArgument("limit", "is 0");
  std::vector<MetaPlace> places;
  ListPage result;
  {
    base::MutexLock lock(mutex_);
    Id id = position->group;
    const Id end = table_.end() - std::min(table_.end(), id) > kListStep ? id + kListStep : table_.end();
    for (; id < end && result.entries.size() < limit; ++id) {
      const Record record = table_.Get(id);
      if (!record.linked) continue;
      result.entries.push_back(EntryOf(id, &places, result.entries.size()));
    }
    result.done = id >= table_.end();
    result.next = CursorAt(id);
  }
  if (absl::Status status = ReadMetas(places, &result); !status.ok()) return status;
  if (result.done) DropImages();
  *page = std::move(result);
  return absl::OkStatus();
}

absl::Status SegmentStore::Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped) {
  *skipped = 0;
  std::vector<Visited> visited;
  std::vector<Log> logs;
  Images images;
  std::optional<LogReader> reader;
  for (Id next = 0; TakeVisits(&next, &visited, &logs, &images);) {
    for (const Visited& record : visited) {
      if (record.log == 0) {
        visit({record.unlogged.key, record.payload_bytes, record.stored_bytes, record.unlogged.meta});
        continue;
      }
      const Log& log = logs[record.log];
      format::LogEntryView entry;
      absl::StatusOr<bool> read = false;
      if (log != nullptr) {  // else its entry was found damaged when a checkpoint was written
        if (!reader.has_value() || reader->log() != log) reader.emplace(directory_, log, images[record.log]);
        read = reader->ReadAgain(record.log_offset, &entry);
        if (!read.ok()) return read.status();
      }
      if (*read && IsEntryOf(record.kept_hash, entry)) {
        visit({Key{entry.key}, record.payload_bytes, record.stored_bytes, entry.meta});
      } else {
        ++*skipped;
      }
    }
  }
  DropImages();
  base::MutexLock lock(mutex_);
  stats_.corrupt_metas += *skipped;
  return absl::OkStatus();
}

// The records of the next numbers from `*next` on, and the logs that they are in. False when there are no more.
bool SegmentStore::TakeVisits(Id* next, std::vector<Visited>* visited, std::vector<Log>* logs, Images* images) {
  visited->clear();
  base::MutexLock lock(mutex_);
  if (*next >= table_.end()) return false;
  *logs = logs_;
  *images = images_;
  images->resize(logs->size());
  for (const Id end = table_.end() - *next > kListStep ? *next + kListStep : table_.end(); *next < end; ++*next) {
    const Record record = table_.Get(*next);
    if (!record.linked) continue;
    const uint64_t stored_bytes = StoredBytes(record.payload_bytes, record.meta_bytes);
    visited->push_back({record.payload_bytes, stored_bytes, record.kept_hash, record.log_offset, record.log, {}});
    if (record.log == 0) visited->back().unlogged = *table_.UnloggedOf(*next);
  }
  return true;
}

void SegmentStore::DropImages() {
  Images dropped;  // let go of without the lock
  base::MutexLock lock(mutex_);
  dropped.swap(images_);
}

// Without key and meta where those are in a log: their place is then added to `places`, for entry number `index`.
ListEntry SegmentStore::EntryOf(Id id, std::vector<MetaPlace>* places, size_t index) {
  const Record record = table_.Get(id);
  ListEntry entry{{}, record.payload_bytes, StoredBytes(record.payload_bytes, record.meta_bytes), {}};
  if (const RecordTable::Unlogged* unlogged = table_.UnloggedOf(id); unlogged != nullptr) {
    entry.key = unlogged->key;
    entry.meta = unlogged->meta;
  } else {
    std::shared_ptr<LogImage> image = record.log < images_.size() ? images_[record.log] : nullptr;
    places->push_back({index, logs_[record.log], std::move(image), record.log_offset, record.kept_hash});
  }
  return entry;
}

// Puts keys and metas that are in logs into their entries, and takes those entries away that are not there any more.
absl::Status SegmentStore::ReadMetas(const std::vector<MetaPlace>& places, ListPage* page) {
  std::optional<LogReader> reader;
  std::vector<size_t> unreadable;
  for (const MetaPlace& place : places) {
    format::LogEntryView entry;
    absl::StatusOr<bool> read = false;
    if (place.log != nullptr) {  // else its entry was found damaged when a checkpoint was written
      if (!reader.has_value() || reader->log() != place.log) reader.emplace(directory_, place.log, place.image);
      read = reader->ReadAt(place.offset, &entry);
      if (!read.ok()) return read.status();
    }
    ListEntry& listed = page->entries[place.index];
    if (*read && IsEntryOf(place.kept_hash, entry)) {
      listed.key = Key{entry.key};
      listed.meta.assign(entry.meta.begin(), entry.meta.end());
    } else {
      unreadable.push_back(place.index);
    }
  }
  for (auto at = unreadable.rbegin(); at != unreadable.rend(); ++at) {
    page->entries.erase(page->entries.begin() + static_cast<ptrdiff_t>(*at));
  }
  page->skipped = unreadable.size();
  base::MutexLock lock(mutex_);
  stats_.corrupt_metas += unreadable.size();
  return absl::OkStatus();
}

}  // namespace kvstrata::core::storage
