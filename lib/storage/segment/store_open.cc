// SPDX-License-Identifier: Apache-2.0
// Opening a segment store: folders and lock, the superblock and its epoch, then the table out of the newest checkpoint
// and the journals behind it. Payload is not read.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lib/base/checked.h"
#include "lib/base/status.h"
#include "lib/storage/descriptor.h"
#include "lib/storage/segment/store.h"

namespace kvstrata::core::storage {
namespace {

constexpr char kSuperFile[] = "super";
constexpr uint64_t kCopyBytes = 4096;
// The folder and two above it, the lock file, the superblock's two copies; and the end of a journal that is reserved
// ahead.
constexpr uint64_t kFixedBytes = 6 * 4096 + 256 * 1024;
// 2^24 openings, 2^40 placements in each.
constexpr uint64_t kEpochShift = 40;
// A reader that finds a checkpoint replaced under it begins again.
constexpr int kReadAttempts = 5;
// Files grow in steps of a 64th of the capacity, so that a small store stays small on the disk. A file system waits for
// all writes to a file before it makes it longer, and the drive with it: a millisecond or two each time, in which 2 MiB
// would have been written.
constexpr uint64_t kMinGrowBytes = 64 * 1024;
constexpr uint64_t kMaxGrowBytes = 64u << 20;
// What segments leave to the logs of a file system that fills up: a journal and what the next one grows to while a
// checkpoint is written; and checkpoints, whose entries are a 500th and less of records of 64 KiB and more, two copies.
constexpr uint64_t kJournalsKept = 2;
constexpr uint64_t kLogShare = 256;

// Entries that are taken into the table at one time, once it has been told of all of them: memory that is far comes
// meanwhile.
constexpr size_t kApplyAtOnce = 64;

absl::Status NoMemory() { return base::MakeStatus(base::Code::kOutOfMemory, "open", "no memory for the table"); }

bool IsData(std::string_view name) { return name.starts_with("data-") || name.starts_with("checkpoint-"); }

// The drive refused a block. Where an open fails it is the file system that is at fault.
bool IsUnreadable(const absl::Status& status) {
  return base::NativeCodeOf(status) == EIO && base::FieldOf(status) == "read";
}

bool IsBlank(base::ByteView bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentStore>> SegmentStore::Open(const SegmentStoreOptions& options) {
  if (options.path.empty() || options.path.find('\0') != std::string::npos) {
    return base::InvalidArgument("path", "is empty or holds a NUL");
  }
  std::unique_ptr<SegmentStore> store(new SegmentStore(options));
  absl::Status status = store->OpenRoot();
  if (status.ok()) status = store->OpenSuperblock();
  if (status.ok() && !options.read_only) status = store->SyncMadeFolders();
  if (status.ok()) status = store->ReadTable();
  if (!status.ok()) return status;
  return store;
}

void SegmentStore::CloseDirectory() {
  if (data_ != nullptr) data_->Close();
  {
    base::MutexLock flush_lock(flush_mutex_);
    journal_.reset();
    base::MutexLock lock(mutex_);
    logs_.clear();
  }
  lock_ = DirectoryLock();
  if (root_ >= 0) os_.Close(std::exchange(root_, -1));
}

absl::Status SegmentStore::OpenRoot() {
  absl::Status status = read_only_ ? absl::OkStatus() : MakeFolders(os_, path_, &made_above_);
  if (!status.ok()) return status;
  root_ = os_.OpenAt(AT_FDCWD, path_.c_str(), O_RDONLY | O_DIRECTORY, 0);
  if (root_ < 0) return read_only_ ? base::IoError("open", path_, -root_) : PlaceError("open", path_, -root_);
  directory_.root = root_;
  used_bytes_ = kFixedBytes + journal_bytes_;
  if (read_only_) return absl::OkStatus();
  absl::StatusOr<DirectoryLock> lock = DirectoryLock::Acquire(os_, root_, path_);
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

// ---- The superblock ------------------------------------------------------------------------------------------------

absl::Status SegmentStore::OpenSuperblock() {
  Descriptor file(os_, os_.OpenAt(root_, kSuperFile, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0));
  if (file.get() == -ENOENT) return MakeSuperblock();
  if (!file.ok()) return ReadError(directory_, "open", kSuperFile, file.get());
  bool blank = true;
  absl::Status unreadable;
  absl::Status refusal = base::Corrupt("super", "neither copy is intact");
  for (uint64_t copy = 0; copy < 2; ++copy) {
    std::array<std::byte, format::kSuperblockBytes> bytes{};
    absl::Status status = ReadFully(directory_, file.get(), kSuperFile, bytes, copy * kCopyBytes);
    if (base::CodeOf(status) == base::Code::kCorrupt) continue;  // it ends before
    if (IsUnreadable(status) && unreadable.ok()) {
      unreadable = status;
      continue;
    }
    if (!status.ok()) return status;
    blank = blank && IsBlank(bytes);
    const absl::StatusOr<format::Superblock> super = format::DecodeSuperblock(bytes);
    if (super.ok() && super->epoch > super_.epoch) super_ = *super;
    if (base::CodeOf(super.status()) == base::Code::kFormatTooNew) refusal = super.status();
  }
  if (base::CodeOf(refusal) == base::Code::kFormatTooNew) return refusal;
  if (super_.epoch == 0 && !unreadable.ok()) return unreadable;
  // Not written to yet: an opening ended before it had made the store.
  if (super_.epoch == 0 && blank) return MakeSuperblock();
  if (super_.epoch == 0) return refusal;
  unreadable_copies_ = unreadable.ok() ? 0 : 1;
  if (read_only_) return absl::OkStatus();
  // The copy that could not be read may have had the next epoch. It is this copy that is written now.
  super_.epoch += unreadable.ok() ? 1 : 3;
  return WriteSuperblock();
}

absl::Status SegmentStore::MakeSuperblock() {
  bool empty = true;
  const int read = os_.ReadDirectory(root_, ".", [&](std::string_view name) {
    if (IsData(name) || JournalOfName(name).has_value()) empty = false;
  });
  if (read < 0) return ReadError(directory_, "read", ".", read);
  // A store without its superblock is not begun anew over what it holds.
  if (!empty) return base::Corrupt("super", path_ + " has records and no superblock");
  super_.segment_bytes = segment_bytes_;
  if (read_only_) return absl::OkStatus();  // an empty folder: nothing to read
  if (absl::Status status = random_.Fill(super_.store); !status.ok()) return status;
  super_.epoch = 1;
  return WriteSuperblock();
}

absl::Status SegmentStore::WriteSuperblock() {
  if (super_.epoch >> (64 - kEpochShift) != 0) return base::MakeStatus(base::Code::kInternal, "epoch", "all are used");
  Descriptor file(os_, os_.OpenAt(root_, kSuperFile, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK, kFileMode));
  if (!file.ok()) return WriteError(directory_, "open", kSuperFile, file.get());
  if (const int result = os_.Fchmod(file.get(), kFileMode); result < 0) {
    return WriteError(directory_, "set the mode of", kSuperFile, result);
  }
  const auto bytes = format::EncodeSuperblock(super_);
  const base::ByteView piece = bytes;
  Gather gather({&piece, 1});
  uint64_t offset = super_.epoch % 2 * kCopyBytes;
  absl::Status status = WritePieces(directory_, file.get(), kSuperFile, piece.size(), &gather, &offset);
  if (!status.ok()) return status;
  const int result = os_.Fsync(file.get());
  if (result < 0) return WriteError(directory_, "flush", kSuperFile, result);
  next_sequence_ = super_.epoch << kEpochShift;
  return absl::OkStatus();
}

// The names of what was made, from the inside out; those in the folder at every opening, since an earlier one may have
// been stopped before it came here.
absl::Status SegmentStore::SyncMadeFolders() {
  std::vector<std::string> names = {"."};
  std::string above = "..";
  for (uint32_t i = 0; i < made_above_; ++i, above += "/..") names.push_back(above);
  for (const std::string& name : names) {
    Descriptor folder(os_, os_.OpenAt(root_, name.c_str(), O_RDONLY | O_DIRECTORY, 0));
    const int result = folder.ok() ? os_.Fsync(folder.get()) : folder.get();
    if (result < 0) return WriteError(directory_, "flush", name.c_str(), result);
  }
  return absl::OkStatus();
}

// ---- The table -----------------------------------------------------------------------------------------------------

absl::Status SegmentStore::ReadTable() {
  DataFiles::Bounds bounds;
  bounds.segment_bytes = super_.segment_bytes;
  bounds.limit_bytes = base::CheckedAdd(capacity_bytes_, SlackBytes()).value_or(UINT64_MAX);
  bounds.grow_bytes = std::clamp(capacity_bytes_ / 64, kMinGrowBytes, kMaxGrowBytes);
  bounds.keep_bytes = std::max({kJournalsKept * journal_bytes_, capacity_bytes_ / kLogShare, keep_free_bytes_});
  bounds.io_threads = io_threads_;
  data_ = std::make_unique<DataFiles>(directory_, bounds, read_only_);
  absl::Status status;
  base::MutexLock flush_lock(flush_mutex_);
  for (int attempt = 1;; ++attempt) {
    std::vector<Log> logs;
    bool moved = false;
    status = OpenLogs(&logs, &moved);
    if (!status.ok()) return status;
    // Beside a writer, journals may have gone since the folder was read. Those that are open stay readable.
    if (read_only_ && moved && attempt < kReadAttempts) continue;
    for (const Log& log : logs) {
      if (status = ReadLog(log); !status.ok()) return status;
    }
    break;
  }
  {
    base::MutexLock lock(mutex_);
    table_.EndBulk();
  }
  // A drive that reads nothing has no bad blocks.
  if (newest_sequence_ == 0 && !unreadable_.ok()) return unreadable_;
  // As after a superblock that was brought back from an older copy of the directory.
  if (!read_only_ && newest_sequence_ >> kEpochShift >= super_.epoch) {
    super_.epoch = (newest_sequence_ >> kEpochShift) + 1;
    if (status = WriteSuperblock(); !status.ok()) return status;
  }
  if (status = data_->Open(); !status.ok()) return status;
  return ClaimAll();
}

// The newest checkpoint and the journals behind it, in order. `*moved` when one of them was not there.
absl::Status SegmentStore::OpenLogs(std::vector<Log>* logs, bool* moved) {
  unreadable_ = absl::OkStatus();
  {
    base::MutexLock lock(mutex_);
    stats_.unreadable_blocks = unreadable_copies_;
  }
  std::vector<uint64_t> journals;
  if (absl::Status status = ScanFolder(&journals); !status.ok()) return status;
  const absl::StatusOr<Log> checkpoint = NewestCheckpoint();
  if (!checkpoint.ok()) return checkpoint.status();
  const uint64_t first = *checkpoint == nullptr ? 1 : (*checkpoint)->header.number;
  if (*checkpoint != nullptr) {
    if (absl::Status status = MakeDurable(**checkpoint); !status.ok()) return status;
    logs->push_back(*checkpoint);
  }
  *moved = *checkpoint != nullptr && !std::binary_search(journals.begin(), journals.end(), first);
  uint64_t torn = 0;
  journals_.clear();
  for (const uint64_t number : journals) {
    if (number < first) {
      // Of a checkpoint whose writer was stopped before it had removed them.
      if (!read_only_) os_.UnlinkAt(root_, JournalName(number).c_str());
      continue;
    }
    const absl::StatusOr<Log> log = OpenLog(directory_, JournalName(number), format::LogKind::kJournal, super_.store);
    const base::Code code = base::CodeOf(log.status());
    const bool unreadable = IsUnreadable(log.status());
    if (!log.ok() && code != base::Code::kCorrupt && code != base::Code::kNotFound && !unreadable) return log.status();
    if (unreadable) CountUnreadable(1, log.status());
    journals_.push_back(number);
    if (log.ok()) {
      if (absl::Status status = MakeDurable(**log); !status.ok()) return status;
      logs->push_back(*log);
    }
    *moved = *moved || code == base::Code::kNotFound;
    // Made when the power went, and not written to; or damaged, and without its salt nothing in it can be proven.
    torn += code == base::Code::kCorrupt || unreadable ? 1 : 0;
  }
  base::MutexLock lock(mutex_);
  stats_.torn_logs = torn;
  return absl::OkStatus();
}

// A writer that was stopped between a write and its flush leaves a log that can be read and may be lost yet. Who goes
// on from it removes older logs, and gives units to other records.
absl::Status SegmentStore::MakeDurable(const LogFile& log) {
  if (read_only_) return absl::OkStatus();
  const int result = os_.Fdatasync(log.descriptor.get());
  return result < 0 ? WriteError(directory_, "flush", log.name.c_str(), result) : absl::OkStatus();
}

absl::Status SegmentStore::ScanFolder(std::vector<uint64_t>* journals) {
  uint64_t foreign = 0;
  const int result = os_.ReadDirectory(root_, ".", [&](std::string_view name) {
    if (const std::optional<uint64_t> number = JournalOfName(name); number.has_value()) {
      journals->push_back(*number);
    } else if (!IsData(name) && name != kSuperFile && name != DirectoryLock::kFile) {
      ++foreign;
    }
  });
  if (result < 0) return ReadError(directory_, "read", ".", result);
  std::sort(journals->begin(), journals->end());
  if (!journals->empty()) next_journal_ = journals->back() + 1;
  base::MutexLock lock(mutex_);
  stats_.foreign_entries = foreign;
  return absl::OkStatus();
}

absl::StatusOr<Log> SegmentStore::NewestCheckpoint() {
  Log newest;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    absl::StatusOr<Log> log = OpenLog(directory_, CheckpointName(copy), format::LogKind::kCheckpoint, super_.store);
    const base::Code code = base::CodeOf(log.status());
    if (code == base::Code::kNotFound || code == base::Code::kCorrupt) continue;
    if (IsUnreadable(log.status())) {
      CountUnreadable(1, log.status());
      continue;
    }
    if (!log.ok()) return log.status();
    if (newest != nullptr && newest->header.number >= (*log)->header.number) continue;
    newest = *std::move(log);
    next_copy_ = 1 - copy;
  }
  if (newest != nullptr) {
    checkpoint_bytes_ = newest->header.body_bytes;
    next_journal_ = std::max(next_journal_, newest->header.number);
  }
  return newest;
}

// Into the table. A reader's view of a journal that is being written is no image: it may have been written to since.
absl::Status SegmentStore::ReadLog(const Log& log) {
  const uint16_t slot = AddLog(log);
  const bool checkpoint = log->header.kind == format::LogKind::kCheckpoint;
  const std::shared_ptr<LogImage> image = checkpoint || !read_only_ ? LogImage::Read(directory_, log) : nullptr;
  {
    base::MutexLock lock(mutex_);
    if (images_.size() <= slot) images_.resize(size_t{slot} + 1);
    images_[slot] = image;
    if (checkpoint && image != nullptr && table_.end() == 0) {
      table_.BeginBulk(std::min(log->header.entries, image->file_bytes() / format::kPutHeadBytes));
    }
  }
  std::vector<ReadEntry> entries;
  entries.reserve(kApplyAtOnce);
  const auto apply = [&](const format::LogEntryView& entry, uint64_t offset) {
    newest_sequence_ = std::max(newest_sequence_, entry.sequence);
    entries.push_back({RecordTable::TagOf(Key{entry.key}), RecordOf(entry, slot, offset), RecordPlace(entry.extents()),
                       entry.kind == format::EntryKind::kPut});
    return entries.size() < kApplyAtOnce || Apply(&entries);
  };
  absl::Status status = Replay(log, image, apply);
  if (status.ok() && !Apply(&entries)) status = NoMemory();
  if (image != nullptr) image->Stop();
  followed_.slot = slot;
  return status;
}

absl::Status SegmentStore::Replay(const Log& log, const std::shared_ptr<LogImage>& image, ApplyEntry apply) {
  LogReader reader(directory_, log, image);
  reader.GiveUpUnreadable();
  const format::LogHeader& header = log->header;
  const bool counted = header.kind == format::LogKind::kCheckpoint;
  // No other is written to any more.
  const bool live = read_only_ && !journals_.empty() && header.number == journals_.back();
  uint64_t offset = format::kLogBodyOffset;
  uint64_t entries = 0;
  bool torn = false;
  format::LogEntryView entry;
  while (!counted || entries < header.entries) {
    uint64_t at = offset;
    const absl::StatusOr<bool> read = reader.Next(live, &offset, &at, &torn, &entry);
    if (!read.ok()) return read.status();
    if (!*read) break;
    if (!apply(entry, at)) return NoMemory();
    ++entries;
  }
  if (!counted) {
    older_journal_bytes_ += offset - format::kLogBodyOffset;
    followed_.journal = log;
    followed_.offset = offset;
  }
  if (log->bad->count() > 0) CountUnreadable(log->bad->count(), ReadError(directory_, "read", log->name.c_str(), -EIO));
  base::MutexLock lock(mutex_);
  if (torn) ++stats_.torn_logs;
  return absl::OkStatus();
}

void SegmentStore::CountUnreadable(uint64_t blocks, const absl::Status& why) {
  if (unreadable_.ok()) unreadable_ = why;
  base::MutexLock lock(mutex_);
  stats_.unreadable_blocks += blocks;
}

// Takes all of them, in the order in which they were written: of a key's entries the last one counts. False: no memory.
bool SegmentStore::Apply(std::vector<ReadEntry>* entries) {
  base::MutexLock lock(mutex_);
  for (const ReadEntry& entry : *entries) table_.PrefetchBucket(entry.tag);
  for (size_t i = 0; i < entries->size(); ++i) {
    const ReadEntry& entry = (*entries)[i];
    const std::optional<Id> old = table_.Find(entry.tag);
    if (old.has_value()) {
      table_.Unlink(*old);
      table_.Free(*old);
    }
    if (!entry.put) continue;
    const std::span<const format::Extent> extents(entry.place.begin(), entry.place.size());
    if (!table_.AddLogged(entry.tag, entry.record, extents).has_value()) return false;
  }
  entries->clear();
  return true;
}

Record SegmentStore::RecordOf(const format::LogEntryView& entry, uint16_t log, uint64_t offset) {
  Record record;
  record.sequence = entry.sequence;
  record.payload_bytes = entry.payload_bytes;
  record.meta_bytes = static_cast<uint16_t>(entry.meta.size());
  record.log = log;
  record.log_offset = offset;
  record.state = RecordState::kDurable;
  return record;
}

}  // namespace kvstrata::core::storage
