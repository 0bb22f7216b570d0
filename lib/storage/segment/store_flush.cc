// SPDX-License-Identifier: Apache-2.0
// Making a segment store durable: flushes, and the checkpoints that end its journals.
#include <algorithm>
#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/storage/segment/store.h"

namespace kvstrata::core::storage {
namespace {

// Each opening begins a journal of its own, and each journal keeps a descriptor.
constexpr size_t kMaxJournals = 8;
// Records copied with the lock held, so that a checkpoint keeps nobody waiting.
constexpr uint32_t kCheckpointStep = 512;
constexpr uint64_t kCheckpointBuffer = 1u << 20;

}  // namespace

absl::Status SegmentStore::Flush() {
  if (read_only_) return absl::OkStatus();
  base::MutexLock lock(flush_mutex_);
  return FlushLocked();
}

absl::Status SegmentStore::FlushSince(uint64_t flushes) {
  base::MutexLock lock(flush_mutex_);
  {
    base::MutexLock counts(mutex_);
    if (stats_.flushes > flushes) return absl::OkStatus();
  }
  return FlushLocked();
}

// Two at one time both tell: each compares with what was told when it began.
absl::Status SegmentStore::Sync() {
  uint64_t told = 0;
  {
    base::MutexLock lock(mutex_);
    told = told_losses_;
  }
  absl::Status status = Flush();
  base::MutexLock lock(mutex_);
  if (status.ok() && lost_flushes_ > told) status = last_loss_;
  told_losses_ = lost_flushes_;
  return status;
}

absl::Status SegmentStore::FlushLocked() {
  {
    base::MutexLock lock(mutex_);
    if (!broken_.ok()) return broken_;
  }
  Batch batch = TakeBatch();
  absl::Status status = data_->Sync();
  if (status.ok() && !batch.items.empty()) status = WriteBatch(&batch);
  if (!status.ok()) {
    DropUnsynced(status);
    return status;
  }
  CommitBatch(batch);
  DropImages();
  // The journals do as well, only longer: a checkpoint that cannot be written is tried again at the next flush.
  if (CheckpointDue()) static_cast<void>(WriteCheckpoint());
  return absl::OkStatus();
}

// What is true now of every key that has changed. Nothing is changed but the records' state, last.
SegmentStore::Batch SegmentStore::TakeBatch() {
  Batch batch;
  base::MutexLock lock(mutex_);
  batch.items.reserve(changes_.size());
  for (auto at = changes_.begin(); at != changes_.end();) {
    const auto here = at++;
    const auto& [key, change] = *here;
    BatchItem item;
    item.change = change.number;
    item.entry.key = key.bytes;
    item.id = table_.Find(key);
    if (item.id.has_value()) {
      const RecordTable::Unlogged* const unlogged = table_.UnloggedOf(*item.id);
      // Another key's of the same hash (record_table.h): its entry ends what the journals know of this one, too.
      if (unlogged == nullptr || unlogged->key != key) continue;
      const RecordPlace place = table_.PlaceOf(*item.id);
      item.entry.sequence = unlogged->sequence;
      item.entry.payload_bytes = table_.Get(*item.id).payload_bytes;
      item.entry.extents.assign(place.begin(), place.end());
      item.entry.meta = unlogged->meta;
    } else {
      if (!change.durable) {  // put and gone again: no journal knows of it
        changes_.erase(here);
        continue;
      }
      item.entry.kind = format::EntryKind::kRemove;
      item.entry.sequence = NextSequence();
    }
    batch.items.push_back(std::move(item));
  }
  // In the order in which they were put, as they lie.
  std::sort(batch.items.begin(), batch.items.end(),
            [](const BatchItem& a, const BatchItem& b) { return a.entry.sequence < b.entry.sequence; });
  for (const BatchItem& item : batch.items) {
    if (item.id.has_value()) table_.SetState(*item.id, RecordState::kFlushing);
  }
  batch.quarantined = quarantine_.size();
  unflushed_bytes_ = 0;
  return batch;
}

absl::Status SegmentStore::WriteBatch(Batch* batch) {
  if (journal_ == nullptr) {
    if (absl::Status status = StartJournal(&journal_, &journal_slot_); !status.ok()) return status;
  }
  journal_->StartBlock();
  for (BatchItem& item : batch->items) item.offset = journal_->Append(item.entry);
  // On a full disk the journal is as it was, and the store goes on.
  if (absl::Status status = journal_->Reserve(); !status.ok()) {
    journal_->Forget();
    return status;
  }
  absl::Status status = journal_->Write();
  if (status.ok()) status = journal_->Sync();
  if (status.ok()) return status;
  base::MutexLock lock(mutex_);
  broken_ = status;
  return status;
}

void SegmentStore::CommitBatch(const Batch& batch) {
  base::MutexLock lock(mutex_);
  for (const BatchItem& item : batch.items) {
    const auto change = changes_.find(Key{item.entry.key});
    if (item.id.has_value()) {
      // One that was replaced meanwhile is in quarantine, and keeps its number until the next flush.
      table_.SetState(*item.id, RecordState::kDurable);
      table_.SetLog(*item.id, journal_slot_, item.offset);
    }
    if (change->second.number == item.change) {
      changes_.erase(change);
    } else {
      change->second.durable = item.id.has_value();
    }
  }
  const auto end = quarantine_.begin() + static_cast<ptrdiff_t>(batch.quarantined);
  for (auto at = quarantine_.begin(); at != end; ++at) {
    table_.SetQuarantined(*at, false);
    quarantined_units_ -= UnitsOf(table_.Get(*at).payload_bytes);
    ReleaseIfUnused(*at);
  }
  quarantine_.erase(quarantine_.begin(), end);
  ++stats_.flushes;
}

// What is not durable now never will be. Records that no journal has named give their units back at once; with a broken
// journal nobody asks for units any more.
void SegmentStore::DropUnsynced(const absl::Status& why) {
  base::MutexLock lock(mutex_);
  ++lost_flushes_;
  last_loss_ = why;
  for (auto& [key, change] : changes_) {
    const std::optional<Id> id = table_.Find(key);
    if (!id.has_value()) continue;
    table_.SetState(*id, RecordState::kPending);
    change.number = ++change_number_;
    Retire(*id, &change);
    ++stats_.dropped_by_sync;
  }
}

format::LogHeader SegmentStore::NewHeader(format::LogKind kind, uint64_t number) {
  format::LogHeader header;
  header.kind = kind;
  header.store = super_.store;
  header.epoch = super_.epoch;
  header.number = number;
  header.salt = base::Checksum(super_.store, NextSequence());
  return header;
}

absl::Status SegmentStore::StartJournal(std::unique_ptr<LogWriter>* journal, uint16_t* slot) {
  const uint64_t number = next_journal_++;
  const absl::StatusOr<Log> log =
      MakeLog(directory_, JournalName(number), NewHeader(format::LogKind::kJournal, number));
  if (!log.ok()) return log.status();
  *slot = AddLog(*log);
  *journal = std::make_unique<LogWriter>(directory_, *log, format::kLogBodyOffset);
  journals_.push_back(number);
  return absl::OkStatus();
}

uint16_t SegmentStore::AddLog(Log log) {
  base::MutexLock lock(mutex_);
  size_t slot = 1;
  while (slot < logs_.size() && logs_[slot] != nullptr) ++slot;
  if (slot == logs_.size()) logs_.emplace_back();
  logs_[slot] = std::move(log);
  return static_cast<uint16_t>(slot);
}

// ---- Checkpoints ---------------------------------------------------------------------------------------------------

bool SegmentStore::CheckpointDue() const {
  if (journals_.size() > kMaxJournals) return true;
  const uint64_t current = journal_ != nullptr ? journal_->end() - format::kLogBodyOffset : 0;
  return older_journal_bytes_ + current > std::max(journal_bytes_, checkpoint_bytes_);
}

// No flush runs meanwhile, so what is durable stays so: the records of the table that are, and those in quarantine.
absl::Status SegmentStore::WriteCheckpoint() {
  const std::string name = CheckpointName(next_copy_);
  // A new file, since a listing may still read the old one.
  const int gone = os_.UnlinkAt(root_, name.c_str());
  if (gone < 0 && gone != -ENOENT) return WriteError(directory_, "remove", name.c_str(), gone);
  const absl::StatusOr<Log> log = MakeLog(directory_, name, NewHeader(format::LogKind::kCheckpoint, next_journal_));
  if (!log.ok()) return log.status();
  LogWriter writer(directory_, *log, format::kLogBodyOffset);
  std::vector<Moved> moved;
  absl::Status status = WriteCheckpointBody(&writer, &moved);
  if (status.ok()) status = writer.Sync();
  if (status.ok()) status = SyncFolder(directory_);
  std::unique_ptr<LogWriter> journal;
  uint16_t slot = 0;
  if (status.ok()) status = StartJournal(&journal, &slot);
  if (!status.ok()) {
    os_.UnlinkAt(root_, name.c_str());
    return status;
  }
  format::LogHeader header = (*log)->header;
  header.entries = moved.size();
  header.body_bytes = writer.end() - format::kLogBodyOffset;
  // Whether the header reaches the disk or not: from here on, entries go to the new journal, which both readings find.
  if (journal_ != nullptr) older_journal_bytes_ += journal_->end() - format::kLogBodyOffset;
  journal_ = std::move(journal);
  journal_slot_ = slot;
  status = FinishCheckpoint(directory_, **log, header);
  if (status.ok()) AdoptCheckpoint(*log, moved, header.body_bytes);
  return status;
}

absl::Status SegmentStore::WriteCheckpointBody(LogWriter* writer, std::vector<Moved>* moved) {
  struct Copied {
    Id id;
    uint64_t kept_hash;
    uint16_t slot;
    Log log;
    uint64_t offset;
  };
  std::optional<LogReader> reader;
  for (Id next = 0;;) {
    std::vector<Copied> copied;
    {
      base::MutexLock lock(mutex_);
      if (next >= table_.end()) break;
      for (const Id end = std::min(table_.end(), next + kCheckpointStep); next < end; ++next) {
        const Record record = table_.Get(next);
        if (record.state != RecordState::kDurable || (!record.linked && !record.quarantined)) continue;
        if (logs_[record.log] == nullptr) continue;
        copied.push_back({next, record.kept_hash, record.log, logs_[record.log], record.log_offset});
      }
    }
    for (const Copied& record : copied) {
      if (!reader.has_value() || reader->log() != record.log) reader.emplace(directory_, record.log);
      format::LogEntryView entry;
      const absl::StatusOr<bool> read = reader->ReadAt(record.offset, &entry);
      if (!read.ok()) return read.status();
      // One whose entry is damaged now is not carried on: it would be lost at the next opening all the same.
      if (!*read || !IsEntryOf(record.kept_hash, entry)) continue;
      moved->push_back({record.id, record.slot, record.offset, writer->Append(entry)});
    }
    if (writer->buffered() < kCheckpointBuffer) continue;
    if (absl::Status status = writer->Write(); !status.ok()) return status;
  }
  return writer->Write();
}

void SegmentStore::AdoptCheckpoint(const Log& log, const std::vector<Moved>& moved, uint64_t body_bytes) {
  const uint16_t slot = AddLog(log);
  for (size_t i = 0; i < moved.size();) {
    base::MutexLock lock(mutex_);
    for (const size_t end = std::min(moved.size(), i + kCheckpointStep); i < end; ++i) {
      if (moved[i].id >= table_.end()) continue;
      const Record record = table_.Get(moved[i].id);
      if (record.log != moved[i].old_log || record.log_offset != moved[i].old_offset) continue;
      table_.SetLog(moved[i].id, slot, moved[i].offset);
    }
  }
  {
    base::MutexLock lock(mutex_);
    for (size_t i = 1; i < logs_.size(); ++i) {
      if (i != slot && i != journal_slot_) logs_[i] = nullptr;
    }
    ++stats_.checkpoints;
  }
  for (const uint64_t number : journals_) {
    // One that stays is passed over by every reader, and removed by the next checkpoint's opener.
    if (number < log->header.number) os_.UnlinkAt(root_, JournalName(number).c_str());
  }
  std::erase_if(journals_, [&](uint64_t number) { return number < log->header.number; });
  older_journal_bytes_ = 0;
  checkpoint_bytes_ = body_bytes;
  next_copy_ = 1 - next_copy_;
}

}  // namespace kvstrata::core::storage
