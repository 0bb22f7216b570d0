// SPDX-License-Identifier: Apache-2.0
// A reader's view of a lane that another process writes: reads on in its journals, and begins anew with a checkpoint
// where it has missed one. Changes happen here only, so what Follow has told is what gets find.
//
// A journal is never written to once a later one exists, and a checkpoint names the first journal that comes after it
// (FORMAT.md, "Order of writing"). So a reader that holds journal n goes on to n + 1 when that is there and n has been
// read to its end; in every other case it reads the newest checkpoint and what comes after it, and compares.
#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "lib/storage/segment/store.h"

namespace kvstrata::core::storage {
namespace {

// A journal takes a descriptor until the next reading from a checkpoint on. More than a writer keeps.
constexpr size_t kMaxOpenLogs = 16;
// Records looked at with the lock held, so that a get waits for no more than these.
constexpr uint32_t kMergeStep = 512;

}  // namespace

absl::Status SegmentStore::Follow(uint64_t limit, FeedPage* page) {
  if (!read_only_) return base::MakeStatus(base::Code::kUnsupported, "follow", "this process is the only writer");
  if (limit == 0) return base::InvalidArgument("limit", "is 0");
  base::MutexLock flush_lock(flush_mutex_);
  FeedPage result;
  if (!followed_.listed) {
    ListPage listed;
    if (absl::Status status = List(followed_.cursor, limit, &listed); !status.ok()) return status;
    for (ListEntry& entry : listed.entries) result.entries.push_back({std::move(entry), false});
    followed_.cursor = listed.next;
    followed_.listed = listed.done;
    *page = std::move(result);
    return absl::OkStatus();
  }
  if (followed_.changed.empty()) {
    if (absl::Status status = ReadOn(limit); !status.ok()) return status;
  }
  return Tell(limit, page);
}

absl::Status SegmentStore::VisitOthers(absl::FunctionRef<void(const RecordView& record)> visit) {
  base::MutexLock flush_lock(flush_mutex_);
  if (!read_only_ || followed_.listed || followed_.cursor.bytes != Cursor{}.bytes) return absl::OkStatus();
  uint64_t skipped = 0;
  absl::Status status = Visit(visit, &skipped);
  followed_.listed = status.ok();
  return status;
}

absl::StatusOr<std::optional<ListEntry>> SegmentStore::Find(const Key& key) {
  ListPage page;
  std::vector<MetaPlace> places;
  {
    base::MutexLock lock(mutex_);
    const std::optional<Id> found = table_.Find(key);
    if (!found.has_value()) return std::optional<ListEntry>();
    page.entries.push_back(EntryOf(*found, &places, 0));
  }
  if (absl::Status status = ReadMetas(places, &page); !status.ok()) return status;
  if (page.entries.empty()) return std::optional<ListEntry>();
  return std::optional<ListEntry>(std::move(page.entries.front()));
}

absl::Status SegmentStore::Tell(uint64_t limit, FeedPage* page) {
  FeedPage result;
  while (!followed_.changed.empty() && result.entries.size() < limit) {
    const Key key = followed_.changed.front();
    absl::StatusOr<std::optional<ListEntry>> found = Find(key);
    if (!found.ok()) return found.status();
    if (found->has_value()) {
      result.entries.push_back({**std::move(found), false});
    } else {
      result.entries.push_back({{key, 0, 0, {}}, true});
    }
    followed_.changed.pop_front();
  }
  result.done = followed_.changed.empty() && followed_.at_end;
  *page = std::move(result);
  return absl::OkStatus();
}

// Up to `limit` entries; where a checkpoint has come between, all that is different.
absl::Status SegmentStore::ReadOn(uint64_t limit) {
  for (uint64_t read = 0;;) {
    // Looked at first: what is read of a journal afterwards is all of it, when a later one was there.
    std::vector<uint64_t> journals;
    if (absl::Status status = ScanFolder(&journals); !status.ok()) return status;
    followed_.at_end = true;
    if (followed_.journal == nullptr) return journals.empty() ? absl::OkStatus() : ReadAnew();
    const uint64_t number = followed_.journal->header.number;
    if (!std::binary_search(journals.begin(), journals.end(), number)) return ReadAnew();
    const auto later = std::upper_bound(journals.begin(), journals.end(), number);
    if (absl::Status status = ReadJournal(limit, later == journals.end(), &read); !status.ok()) return status;
    followed_.at_end = read < limit && later == journals.end();
    if (read >= limit || later == journals.end()) return absl::OkStatus();
    if (*later != number + 1) return ReadAnew();
    const absl::StatusOr<Log> next = OpenLog(directory_, JournalName(*later), format::LogKind::kJournal, super_.store);
    if (base::CodeOf(next.status()) == base::Code::kCorrupt && later + 1 == journals.end()) {
      followed_.at_end = true;  // its header is being written, or was when the power went: its writer makes another
      return absl::OkStatus();
    }
    if (!next.ok()) return ReadAnew();
    followed_.journal = *next;
    followed_.slot = AddLog(*next);
    followed_.offset = format::kLogBodyOffset;
    base::MutexLock lock(mutex_);
    if (logs_.size() > kMaxOpenLogs) break;
  }
  return ReadAnew();
}

absl::Status SegmentStore::ReadJournal(uint64_t limit, bool live, uint64_t* read) {
  LogReader reader(directory_, followed_.journal);
  format::LogEntryView entry;
  for (bool torn = false; *read < limit; ++*read) {
    uint64_t at = 0;
    const absl::StatusOr<bool> found = reader.Next(live, &followed_.offset, &at, &torn, &entry);
    if (!found.ok()) return found.status();
    if (!*found) break;
    const Key key{entry.key};
    const bool put = entry.kind == format::EntryKind::kPut;
    if (put && !data_->Reaches(entry.extents())) {
      if (absl::Status status = data_->OpenLater(); !status.ok()) return status;
    }
    base::MutexLock lock(mutex_);
    const std::optional<Id> old = table_.Find(key);
    if (old.has_value()) Leave(*old);
    const bool taken = put && TakeOver(key, RecordOf(entry, followed_.slot, at), entry.extents());
    if (taken || old.has_value()) followed_.changed.push_back(key);
  }
  return absl::OkStatus();
}

absl::Status SegmentStore::ReadAnew() {
  std::vector<Log> logs;
  bool moved = false;
  if (absl::Status status = OpenLogs(&logs, &moved); !status.ok()) return status;
  if (moved) return absl::OkStatus();  // the writer was faster: next time
  SeenByKey seen;
  std::vector<uint16_t> slots;
  followed_.journal = nullptr;
  for (const Log& log : logs) {
    const uint16_t slot = AddLog(log);
    slots.push_back(slot);
    absl::Status status = Replay(log, nullptr, [&](const format::LogEntryView& entry, uint64_t offset) {
      const auto found = seen.find(Key{entry.key});
      if (entry.kind == format::EntryKind::kPut) {
        seen[Key{entry.key}] = {RecordOf(entry, slot, offset), RecordPlace(entry.extents())};
      } else if (found != seen.end()) {
        seen.erase(found);
      }
      return true;
    });
    if (!status.ok()) {
      followed_.journal = nullptr;  // to be read again
      return status;
    }
    followed_.slot = slot;
  }
  if (seen.empty() && !unreadable_.ok()) {
    followed_.journal = nullptr;
    return unreadable_;
  }
  if (absl::Status status = data_->OpenLater(); !status.ok()) return status;
  std::vector<bool> kept;
  MergeSeen(seen, &kept);
  if (absl::Status status = LeaveOthers(kept); !status.ok()) return status;
  base::MutexLock lock(mutex_);
  for (size_t slot = 1; slot < logs_.size(); ++slot) {
    if (std::find(slots.begin(), slots.end(), slot) == slots.end()) logs_[slot] = nullptr;
  }
  while (logs_.size() > 1 && logs_.back() == nullptr) logs_.pop_back();
  return absl::OkStatus();
}

// Whether it is the record that was read under its key. One that was put again with as many bytes at the very same
// place passes for it once in 256 times: nobody is told of the change, and who reads it finds other bytes than were
// looked for, a miss.
bool SegmentStore::IsStill(Id id, const Seen& seen) const {
  const Record record = table_.Get(id);
  return record.writing == RecordTable::WritingOf(seen.record.sequence) &&
         record.payload_bytes == seen.record.payload_bytes && std::ranges::equal(table_.PlaceOf(id), seen.place);
}

// Takes over what was read, under those that look into the table. `*kept`: by number, what is now in it.
void SegmentStore::MergeSeen(const SeenByKey& seen, std::vector<bool>* kept) {
  const auto keep = [&](Id id) {
    if (kept->size() <= id) kept->resize(size_t{id} + 1);
    (*kept)[id] = true;
  };
  for (auto at = seen.begin(); at != seen.end();) {
    base::MutexLock lock(mutex_);
    for (uint32_t step = 0; step < kMergeStep && at != seen.end(); ++step, ++at) {
      const auto& [key, now] = *at;
      const std::optional<Id> old = table_.Find(key);
      if (old.has_value() && IsStill(*old, now)) {
        table_.SetLog(*old, now.record.log, now.record.log_offset);
        keep(*old);
        continue;
      }
      if (old.has_value()) Leave(*old);
      TakeOver(key, now.record, {now.place.begin(), now.place.size()});
      if (const std::optional<Id> id = table_.Find(key); id.has_value()) keep(*id);
      followed_.changed.push_back(key);
    }
  }
}

// Records that were not read again have gone. Their keys are in the logs that they were read from.
absl::Status SegmentStore::LeaveOthers(const std::vector<bool>& kept) {
  std::vector<Id> others;
  ListPage page;
  std::vector<MetaPlace> places;
  {
    base::MutexLock lock(mutex_);
    for (Id id = 0; id < table_.end(); ++id) {
      if (!table_.Get(id).linked || (id < kept.size() && kept[id])) continue;
      others.push_back(id);
      page.entries.push_back(EntryOf(id, &places, page.entries.size()));
    }
  }
  if (absl::Status status = ReadMetas(places, &page); !status.ok()) return status;
  for (const ListEntry& entry : page.entries) followed_.changed.push_back(entry.key);
  base::MutexLock lock(mutex_);
  for (const Id id : others) Leave(id);
  return absl::OkStatus();
}

// False for a place outside the segments, which only damage can name, and where there is no memory.
bool SegmentStore::TakeOver(const Key& key, const Record& record, std::span<const format::Extent> extents) {
  if (!data_->Reaches(extents) || !table_.Add(key, record, extents, {}).has_value()) return false;
  used_bytes_ += StoredBytes(record.payload_bytes, record.meta_bytes);
  return true;
}

void SegmentStore::Leave(Id id) {
  const Record record = table_.Get(id);
  used_bytes_ -= StoredBytes(record.payload_bytes, record.meta_bytes);
  table_.Unlink(id);
  ReleaseIfUnused(id);
}

}  // namespace kvstrata::core::storage
