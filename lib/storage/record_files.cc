// SPDX-License-Identifier: Apache-2.0
// In order: opening and the scan; putting, removing, getting; listing; syncing; sizes.
#include "lib/storage/record_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lib/base/checked.h"
#include "lib/base/checksum.h"
#include "lib/base/status.h"

namespace kvstrata::core::storage {
namespace {

constexpr uint64_t kMinBlockBytes = 4096;
constexpr uint64_t kMaxBlockBytes = 64 * 1024;
// A name of 68 bytes takes 76 in an ext4 folder, whose blocks are half full after they have split: 152, and room for
// other file systems.
constexpr uint64_t kFolderEntryBytes = 256;
// The root, staging, records, sixteen shards and the lock file, a block each.
constexpr uint64_t kFixedBlocks = 20;
// Past this many unflushed records in a shard (16 times 2,048 keys of 32 bytes: 1 MiB in all) a put flushes its own.
constexpr size_t kMaxUnsynced = 2048;

// A shortage of this process, not a fault of the record: an index without it would be wrong until the next open.
bool IsShortage(const absl::Status& status) {
  const int64_t error = base::NativeCodeOf(status);
  return error == EMFILE || error == ENFILE || error == ENOMEM || base::CodeOf(status) == base::Code::kOutOfMemory;
}

}  // namespace

// A file being written, counted as used from before its first byte; gone at the end unless it was published.
class RecordFiles::StagedFile {
 public:
  StagedFile(RecordFiles& files, uint64_t sequence, uint64_t bytes)
      : files_(files), name_(StagingName(files.opener_, sequence)), bytes_(bytes) {
    files_.used_bytes_ += bytes_;
  }
  ~StagedFile() {
    if (published_) return;
    const int result = files_.os_.UnlinkAt(files_.root_, name());
    // One that cannot be unlinked stays counted; the next writer to open removes it.
    if (result >= 0 || result == -ENOENT) files_.used_bytes_ -= bytes_;
  }
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  const char* name() const { return name_.data(); }
  void SetPublished() { published_ = true; }

 private:
  RecordFiles& files_;
  const Name name_;
  const uint64_t bytes_;
  bool published_ = false;
};

// ---- Opening -------------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<RecordFiles>> RecordFiles::Open(Os& os, base::Random& random, const std::string& path,
                                                               bool read_only) {
  if (path.empty() || path.find('\0') != std::string::npos)
    return base::InvalidArgument("path", "is empty or holds a NUL");
  std::unique_ptr<RecordFiles> files(new RecordFiles(os, path, read_only));
  absl::Status status = files->OpenRoot();
  if (status.ok() && !read_only) status = files->Prepare(random);
  if (status.ok()) status = files->Scan();
  if (!status.ok()) return status;
  return files;
}

RecordFiles::~RecordFiles() { CloseDirectory(); }

void RecordFiles::CloseDirectory() {
  lock_ = DirectoryLock();
  if (root_ >= 0) os_.Close(std::exchange(root_, -1));
}

absl::Status RecordFiles::OpenRoot() {
  if (absl::Status status = read_only_ ? absl::OkStatus() : MakeFolders(os_, path_, &made_above_); !status.ok())
    return status;
  root_ = os_.OpenAt(AT_FDCWD, path_.c_str(), O_RDONLY | O_DIRECTORY, 0);
  if (root_ < 0) return read_only_ ? base::IoError("open", path_, -root_) : PlaceError("open", path_, -root_);
  const int64_t block = os_.BlockBytes(root_);
  block_bytes_ = std::clamp(block > 0 ? static_cast<uint64_t>(block) : kMinBlockBytes, kMinBlockBytes, kMaxBlockBytes);
  used_bytes_ = kFixedBlocks * block_bytes_;
  return absl::OkStatus();
}

absl::Status RecordFiles::Prepare(base::Random& random) {
  absl::StatusOr<DirectoryLock> lock = DirectoryLock::Acquire(os_, root_, path_);
  if (!lock.ok()) return lock.status();
  lock_ = std::move(*lock);
  // Random beginnings give names and sequence numbers that no earlier opener used, without a note of what it used.
  const absl::StatusOr<uint64_t> opener = random.Next();
  if (!opener.ok()) return opener.status();
  const absl::StatusOr<uint64_t> sequence = random.Next();
  if (!sequence.ok()) return sequence.status();
  opener_ = *opener;
  next_sequence_ = *sequence;
  absl::Status status = MakeFolder(kStagingFolder);
  if (status.ok()) status = MakeFolder(kRecordsFolder);
  for (uint32_t shard = 0; status.ok() && shard < kShards; ++shard) status = MakeFolder(ShardFolder(shard).data());
  return status.ok() ? CleanStaging() : status;
}

absl::Status RecordFiles::MakeFolder(const char* name) {
  int result = os_.MkdirAt(root_, name, kFolderMode);
  if (result == -EEXIST) return absl::OkStatus();
  made_below_ = true;
  if (result >= 0) result = os_.ChmodAt(root_, name, kFolderMode);
  return result < 0 ? WriteError(directory(), "make", name, result) : absl::OkStatus();
}

absl::Status RecordFiles::CleanStaging() {
  std::vector<std::string> left;
  const int result = os_.ReadDirectory(root_, kStagingFolder, [&](std::string_view name) {
    if (IsStagingName(name)) {
      left.push_back(std::string(kStagingFolder) + "/" + std::string(name));
    } else {
      ++foreign_entries_;
    }
  });
  if (result < 0) return WriteError(directory(), "read", kStagingFolder, result);
  for (const std::string& name : left) {
    const int gone = os_.UnlinkAt(root_, name.c_str());
    if (gone < 0) return WriteError(directory(), "remove", name.c_str(), gone);
    ++removed_staging_;
  }
  return absl::OkStatus();
}

absl::Status RecordFiles::Scan() {
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    const absl::StatusOr<std::vector<Key>> keys = SortedKeys(shard, &foreign_entries_);
    if (!keys.ok()) return keys.status();
    for (const Key& key : *keys) {
      if (absl::Status status = ScanRecord(key); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status RecordFiles::ScanRecord(const Key& key) {
  const Name name = RecordName(key);
  const absl::StatusOr<uint64_t> stored = StoredNow(name.data());
  if (!stored.ok()) return stored.status();
  used_bytes_ += *stored;
  if (*stored == 0) {  // not a file, or gone since its name was read
    ++foreign_entries_;
    return absl::OkStatus();
  }
  const absl::StatusOr<OpenRecord> record = Open(key);
  const absl::Status status = record.ok() ? ReadMeta(*record).status() : record.status();
  if (status.ok() || IsShortage(status)) return status;
  // A file that could not be read may be readable next time, and one of a later version belongs to a later build. The
  // rest is broken, or reached by nobody under this name.
  const base::Code code = base::CodeOf(status);
  if (read_only_ || (code != base::Code::kCorrupt && code != base::Code::kNotFound)) return absl::OkStatus();
  const int gone = os_.UnlinkAt(root_, name.data());
  if (gone < 0) return WriteError(directory(), "remove", name.data(), gone);
  used_bytes_ -= *stored;
  ++removed_at_open_;
  return absl::OkStatus();
}

// ---- Putting, removing, getting ------------------------------------------------------------------------------------

RecordFiles::Shard& RecordFiles::ShardFor(const Key& key) { return shards_[ShardOf(key)]; }

Result RecordFiles::DoPut(const Put& put) {
  format::FileRecordHeader header;
  header.key = put.key.bytes;
  header.payload_bytes = PayloadBytes(put).value_or(UINT64_MAX);
  header.meta_bytes = static_cast<uint32_t>(put.meta.size());
  header.sequence = next_sequence_++;
  base::Checksummer payload(header.sequence);
  for (const base::ByteView part : put.parts) payload.Update(part);
  header.payload_checksum = payload.Finish();
  header.meta_checksum = base::Checksum(put.meta, header.sequence);

  bool sync = false;
  {
    Shard& shard = ShardFor(put.key);
    base::MutexLock lock(shard.mutex);
    sync = shard.unsynced.size() >= kMaxUnsynced;
  }
  StagedFile staged(*this, header.sequence, StoredBytes(header.payload_bytes, header.meta_bytes));
  absl::Status status = WriteRecordFile(directory(), staged.name(), put, header, sync);
  if (status.ok()) status = Publish(staged.name(), put.key, sync);
  if (!status.ok()) return {std::move(status), 0};
  staged.SetPublished();
  return {absl::OkStatus(), header.payload_bytes};
}

absl::Status RecordFiles::Publish(const char* staging, const Key& key, bool synced) {
  const Name name = RecordName(key);
  Shard& shard = ShardFor(key);
  base::MutexLock lock(shard.mutex);
  const absl::StatusOr<uint64_t> old = StoredNow(name.data());
  if (!old.ok()) return old.status();
  // Noted before the rename, so that no failure leaves a new name unknown to Sync; a key too many does no harm.
  if (!synced) shard.unsynced.insert(key);
  shard.changed = true;
  const int renamed = os_.RenameAt(root_, staging, name.data());
  if (renamed < 0) return WriteError(directory(), "rename to", name.data(), renamed);
  used_bytes_ -= *old;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RecordFiles::StoredNow(const char* name) {
  struct stat info {};
  const int result = os_.StatAt(root_, name, &info);
  if (result == -ENOENT) return 0;
  if (result < 0) return ReadError(directory(), "stat", name, result);
  return S_ISREG(info.st_mode) ? StoredFileBytes(static_cast<uint64_t>(info.st_size)) : 0;
}

absl::Status RecordFiles::Unlink(Shard& shard, const Key& key) {
  const Name name = RecordName(key);
  const absl::StatusOr<uint64_t> stored = StoredNow(name.data());
  if (!stored.ok()) return stored.status();
  shard.changed = true;
  const int result = os_.UnlinkAt(root_, name.data());
  if (result < 0 && result != -ENOENT) return WriteError(directory(), "remove", name.data(), result);
  shard.unsynced.erase(key);
  if (result >= 0) used_bytes_ -= *stored;
  return absl::OkStatus();
}

absl::Status RecordFiles::Remove(const Key& key) {
  if (read_only_) return base::MakeStatus(base::Code::kReadOnly, "remove", "the store is open for reading only");
  Shard& shard = ShardFor(key);
  base::MutexLock lock(shard.mutex);
  return Unlink(shard, key);
}

absl::StatusOr<OpenRecord> RecordFiles::Open(const Key& key) {
  absl::StatusOr<OpenRecord> record = OpenRecordFile(directory(), key);
  CountIfCorrupt(record.status());
  return record;
}

void RecordFiles::CountIfCorrupt(const absl::Status& status) {
  if (base::CodeOf(status) == base::Code::kCorrupt) ++corrupt_records_;
}

absl::StatusOr<std::vector<std::byte>> RecordFiles::ReadMeta(const OpenRecord& record) {
  absl::StatusOr<std::vector<std::byte>> meta = storage::ReadMeta(directory(), record);
  CountIfCorrupt(meta.status());
  return meta;
}

Result RecordFiles::DoGet(const Get& get) {
  const absl::StatusOr<OpenRecord> record = Open(get.key);
  if (!record.ok()) return {record.status(), 0};
  absl::Status status = ReadPayload(directory(), *record, get.offset, get.destination);
  CountIfCorrupt(status);
  return {status, status.ok() ? get.destination.size() : 0};
}

absl::StatusOr<std::optional<uint64_t>> RecordFiles::Stat(const Key& key) {
  const absl::StatusOr<OpenRecord> record = Open(key);
  if (record.ok()) return std::optional<uint64_t>(record->header.payload_bytes);
  if (base::CodeOf(record.status()) == base::Code::kNotFound) return std::optional<uint64_t>();
  return record.status();
}

// ---- Listing -------------------------------------------------------------------------------------------------------

absl::StatusOr<std::vector<Key>> RecordFiles::SortedKeys(uint32_t shard, uint64_t* foreign) {
  std::vector<Key> keys;
  const Name folder = ShardFolder(shard);
  const int result = os_.ReadDirectory(root_, folder.data(), [&](std::string_view name) {
    const std::optional<Key> key = KeyOfRecordName(name);
    if (key.has_value() && ShardOf(*key) == shard) {
      keys.push_back(*key);
    } else {
      ++*foreign;
    }
  });
  // A directory that no writer has prepared holds no records.
  if (result < 0 && !(read_only_ && result == -ENOENT)) return ReadError(directory(), "read", folder.data(), result);
  std::sort(keys.begin(), keys.end());
  return keys;
}

absl::Status RecordFiles::List(const Cursor& cursor, uint64_t limit, ListPage* page) {
  const absl::StatusOr<Position> start = PositionOf(cursor);
  if (!start.ok()) return start.status();
  if (start->group >= kShards) return base::InvalidArgument("cursor", "was not made by this store");
  if (limit == 0) return base::InvalidArgument("limit", "is 0");
  ListPage result;
  base::MutexLock lock(list_mutex_);
  for (Position at = *start; at.group < kShards && result.entries.size() < limit; at = {at.group + 1, std::nullopt}) {
    if (absl::Status status = ListShard(at, limit, &result); !status.ok()) return status;
  }
  if (result.done) {
    listed_shard_.reset();
    listed_keys_ = {};
  }
  *page = std::move(result);
  return absl::OkStatus();
}

absl::Status RecordFiles::ListShard(const Position& from, uint64_t limit, ListPage* page) {
  // Names read when a listing came to this folder serve all its pages: what exists during the whole listing is there.
  if (!from.after.has_value() || listed_shard_ != from.group) {
    absl::StatusOr<std::vector<Key>> keys = SortedKeys(from.group, &page->skipped);
    if (!keys.ok()) return keys.status();
    listed_shard_ = from.group;
    listed_keys_ = std::move(*keys);
  }
  auto at = from.after.has_value() ? std::upper_bound(listed_keys_.begin(), listed_keys_.end(), *from.after)
                                   : listed_keys_.begin();
  for (; at != listed_keys_.end() && page->entries.size() < limit; ++at) {
    if (absl::Status status = ListRecord(*at, page); !status.ok()) return status;
    page->next = CursorAfter(from.group, *at);
  }
  if (at != listed_keys_.end()) return absl::OkStatus();
  page->done = from.group + 1 == kShards;
  if (!page->done) page->next = CursorAt(from.group + 1);
  return absl::OkStatus();
}

absl::Status RecordFiles::ListRecord(const Key& key, ListPage* page) {
  const absl::StatusOr<OpenRecord> record = Open(key);
  absl::Status status = record.status();
  if (record.ok()) {
    absl::StatusOr<std::vector<std::byte>> meta = ReadMeta(*record);
    status = meta.status();
    if (meta.ok()) {
      const uint64_t payload_bytes = record->header.payload_bytes;
      page->entries.push_back({key, payload_bytes, StoredBytes(payload_bytes, meta->size()), std::move(*meta)});
    }
  }
  if (status.ok() || IsShortage(status)) return status;
  ++page->skipped;
  return absl::OkStatus();
}

// ---- Syncing -------------------------------------------------------------------------------------------------------

absl::Status RecordFiles::Sync() {
  if (read_only_) return absl::OkStatus();
  base::MutexLock lock(sync_mutex_);
  if (folders_.ok()) folders_ = SyncMadeFolders();
  absl::Status first = folders_;
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    absl::Status status = SyncShard(shard, folders_);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

absl::Status RecordFiles::SyncMadeFolders() {
  if (std::exchange(made_below_, false)) {
    if (absl::Status status = SyncFolder(kRecordsFolder); !status.ok()) return status;
    if (absl::Status status = SyncFolder("."); !status.ok()) return status;
  }
  for (std::string above = ".."; made_above_ > 0; --made_above_, above += "/..") {
    const absl::Status status = SyncFolder(above.c_str());
    // One that may be passed through but not read cannot be flushed by us.
    if (!status.ok() && base::NativeCodeOf(status) != EACCES) return status;
  }
  return absl::OkStatus();
}

absl::Status RecordFiles::SyncShard(uint32_t number, const absl::Status& above) {
  Shard& shard = shards_[number];
  absl::flat_hash_set<Key> keys;
  {
    base::MutexLock lock(shard.mutex);
    if (!shard.changed) return absl::OkStatus();
    keys.swap(shard.unsynced);
    shard.changed = false;
  }
  absl::Status first = above;
  for (const Key& key : keys) {
    absl::Status status = above.ok() ? SyncRecord(key) : above;
    if (status.ok()) continue;
    DropUnsynced(shard, key);
    if (first.ok()) first = std::move(status);
  }
  if (!above.ok()) return above;
  absl::Status folder = SyncFolder(ShardFolder(number).data());
  if (folder.ok()) return first;
  for (const Key& key : keys) DropUnsynced(shard, key);
  return first.ok() ? folder : first;
}

absl::Status RecordFiles::SyncRecord(const Key& key) {
  const Name name = RecordName(key);
  Descriptor file(os_, os_.OpenAt(root_, name.data(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0));
  if (file.get() == -ENOENT) return absl::OkStatus();  // removed since
  const int result = file.ok() ? os_.Fsync(file.get()) : file.get();
  return result < 0 ? WriteError(directory(), "flush", name.data(), result) : absl::OkStatus();
}

absl::Status RecordFiles::SyncFolder(const char* name) {
  Descriptor folder(os_, os_.OpenAt(root_, name, O_RDONLY | O_DIRECTORY, 0));
  const int result = folder.ok() ? os_.Fsync(folder.get()) : folder.get();
  return result < 0 ? WriteError(directory(), "flush", name, result) : absl::OkStatus();
}

void RecordFiles::DropUnsynced(Shard& shard, const Key& key) {
  // A put that came after the failed flush may be dropped with it: a miss too many, never a wrong byte.
  base::MutexLock lock(shard.mutex);
  if (Unlink(shard, key).ok()) ++dropped_by_sync_;
}

// ---- Sizes ---------------------------------------------------------------------------------------------------------

uint64_t RecordFiles::StoredFileBytes(uint64_t file_bytes) const {
  const std::optional<uint64_t> blocks = base::CheckedRoundUp(file_bytes, block_bytes_);
  if (!blocks.has_value()) return UINT64_MAX;
  return base::CheckedAdd(*blocks, kFolderEntryBytes).value_or(UINT64_MAX);
}

uint64_t RecordFiles::StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const {
  const std::optional<uint64_t> data = base::CheckedAdd(payload_bytes, meta_bytes);
  if (!data.has_value()) return UINT64_MAX;
  const std::optional<uint64_t> file = base::CheckedAdd<uint64_t>(*data, format::kFileRecordHeaderBytes);
  return file.has_value() ? StoredFileBytes(*file) : UINT64_MAX;
}

FileStats RecordFiles::stats() const {
  return {foreign_entries_, corrupt_records_.load(), removed_at_open_, removed_staging_, dropped_by_sync_.load()};
}

std::optional<uint64_t> RecordFiles::FreeBytes() const {
  const int64_t bytes = os_.FreeBytes(root_);
  if (bytes < 0) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

}  // namespace kvstrata::core::storage
