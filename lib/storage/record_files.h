// SPDX-License-Identifier: Apache-2.0
// Records as files of a directory (lib/format/FORMAT.md, "Record files"): the blocking half of the file backend. Never
// maps a file, so a full disk or a file cut short under a reader is an error, not a signal.
//
// Invariants:
//   I1. A record file is complete before it gets its name, and a name changes from one complete file to another.
//   I2. UsedBytes() counts a file from before its first byte is written until after it is unlinked.
//   I3. What was put or removed since the last Sync is known (unsynced keys, changed folders) or already durable.
//   I4. At most one descriptor is open for each running call, beside the directory's and the lock's.
//
// Thread rule: all functions on any thread at once, Open and the destructor excepted.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "lib/base/mutex.h"
#include "lib/base/random.h"
#include "lib/storage/directory_lock.h"
#include "lib/storage/os.h"
#include "lib/storage/record_io.h"
#include "lib/storage/record_names.h"
#include "lib/storage/request_check.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

// What was found and done since the store was opened.
struct FileStats {
  // Entries that were not ours, by name or by kind of file, when the store was opened.
  uint64_t foreign_entries = 0;
  // Times that a record file failed a check, at open, in a listing or in a get.
  uint64_t corrupt_records = 0;
  // Broken record files that open removed.
  uint64_t removed_at_open = 0;
  // Files of unfinished puts that open removed.
  uint64_t removed_staging = 0;
  // Records removed because they could not be flushed.
  uint64_t dropped_by_sync = 0;
};

class RecordFiles {
 public:
  // Makes the directory (and missing ones above it) unless `read_only`; takes the writer's lock; removes what is left
  // of unfinished puts; reads each record's header and meta, never payload, and removes broken ones.
  static absl::StatusOr<std::unique_ptr<RecordFiles>> Open(Os& os, base::Random& random, const std::string& path,
                                                           bool read_only);
  ~RecordFiles();
  RecordFiles(const RecordFiles&) = delete;
  RecordFiles& operator=(const RecordFiles&) = delete;

  Result DoPut(const Put& put);
  Result DoGet(const Get& get);
  absl::StatusOr<std::optional<uint64_t>> Stat(const Key& key);
  absl::Status Remove(const Key& key);
  absl::Status Sync();
  absl::Status List(const Cursor& cursor, uint64_t limit, ListPage* page);
  uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const;
  uint64_t UsedBytes() const { return used_bytes_.load(); }
  // Of the file system; nothing when it does not say.
  std::optional<uint64_t> FreeBytes() const;
  FileStats stats() const;
  // Lets go of the directory and its lock; afterwards only the functions that return sizes and stats may be called.
  void CloseDirectory();

 private:
  // Sixteen folders keep each one small without costing a small budget much.
  static constexpr uint32_t kShards = 16;
  // A folder's mutex orders the changes of its names, and what is noted about them here; bytes are written and read
  // outside it.
  struct Shard {
    base::Mutex mutex;
    absl::flat_hash_set<Key> unsynced ABSL_GUARDED_BY(mutex);
    bool changed ABSL_GUARDED_BY(mutex) = false;
  };
  class StagedFile;

  RecordFiles(Os& os, const std::string& path, bool read_only) : os_(os), path_(path), read_only_(read_only) {}
  Directory directory() const { return {os_, root_, path_}; }
  Shard& ShardFor(const Key& key);

  absl::Status OpenRoot();
  absl::Status Prepare(base::Random& random);
  absl::Status MakeFolder(const char* name);
  absl::Status CleanStaging();
  absl::Status Scan();
  absl::Status ScanRecord(const Key& key);

  absl::Status Publish(const char* staging, const Key& key, bool synced);
  // 0 when there is no such file.
  absl::StatusOr<uint64_t> StoredNow(const char* name);
  absl::Status Unlink(Shard& shard, const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);
  absl::StatusOr<OpenRecord> Open(const Key& key);
  absl::StatusOr<std::vector<std::byte>> ReadMeta(const OpenRecord& record);
  void CountIfCorrupt(const absl::Status& status);

  absl::StatusOr<std::vector<Key>> SortedKeys(uint32_t shard, uint64_t* foreign);
  absl::Status ListShard(const Position& from, uint64_t limit, ListPage* page)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(list_mutex_);
  absl::Status ListRecord(const Key& key, ListPage* page);

  absl::Status SyncMadeFolders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mutex_);
  // `above` is how the flush of the folders above went: on failure what is unsynced is dropped unflushed.
  absl::Status SyncShard(uint32_t number, const absl::Status& above);
  absl::Status SyncRecord(const Key& key);
  absl::Status SyncFolder(const char* name);
  void DropUnsynced(Shard& shard, const Key& key);

  uint64_t StoredFileBytes(uint64_t file_bytes) const;

  Os& os_;
  const std::string path_;
  const bool read_only_;
  int root_ = -1;
  uint64_t block_bytes_ = 0;
  DirectoryLock lock_;
  // Names staging files together with the sequence number; of this opener alone.
  uint64_t opener_ = 0;
  std::atomic<uint64_t> next_sequence_{0};
  std::atomic<uint64_t> used_bytes_{0};
  std::array<Shard, kShards> shards_;

  // One Sync at a time: a second one must not return while the first still flushes what it took over.
  base::Mutex sync_mutex_;
  // Folders made by Open and not flushed yet: inside the directory, and how many from it upwards.
  bool made_below_ = false;
  uint32_t made_above_ = 0;
  // How their flush went. After a failure nothing in them is known to be durable, ever.
  absl::Status folders_ ABSL_GUARDED_BY(sync_mutex_);

  // The names of the folder that a listing is in, so that its next page does not read the folder again.
  base::Mutex list_mutex_;
  std::optional<uint32_t> listed_shard_ ABSL_GUARDED_BY(list_mutex_);
  std::vector<Key> listed_keys_ ABSL_GUARDED_BY(list_mutex_);

  uint64_t foreign_entries_ = 0;
  uint64_t removed_at_open_ = 0;
  uint64_t removed_staging_ = 0;
  std::atomic<uint64_t> corrupt_records_{0};
  std::atomic<uint64_t> dropped_by_sync_{0};
};

}  // namespace kvstrata::core::storage
