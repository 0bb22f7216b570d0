// SPDX-License-Identifier: Apache-2.0
// The segment store (lib/format/FORMAT.md, "Segment store"): the blocking half of the SSD backend. Payload goes into
// segments, what is where into a table in memory; a flush makes both durable, payload first.
//
// Invariants (as FORMAT.md's order of writing):
//   I1. An entry is written to a journal only after the payload that it names is durable.
//   I2. Units that a durable entry may name hold what it says until an entry that ends it is durable: a replaced or
//       removed record is in quarantine until then, and until its last reader has gone.
//   I3. After a failed flush of payload every record that is not durable is dropped. After a failed write to a journal
//       nothing is written any more: broken_ says why.
//   I4. UsedBytes() counts a put from before its first byte is written.
//
// Locks: flush_mutex_ before mutex_. mutex_ is never held over input or output.
//
// Thread rule: all functions on any thread at once, Open and the destructor excepted.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/base/mutex.h"
#include "lib/base/random.h"
#include "lib/storage/directory.h"
#include "lib/storage/directory_lock.h"
#include "lib/storage/segment/data_files.h"
#include "lib/storage/segment/log_files.h"
#include "lib/storage/segment/log_image.h"
#include "lib/storage/segment/record_table.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

// What was found and done since the store was opened.
struct SegmentStats {
  // Entries of the folder that are not ours.
  uint64_t foreign_entries = 0;
  // Journals or checkpoints that ended in something that is no entry: a write cut short, or damage.
  uint64_t torn_logs = 0;
  // Of 4096 bytes each, of logs and of the superblock: the drive refused to read them when they were opened, and what
  // was in them counts as damaged.
  uint64_t unreadable_blocks = 0;
  // Records whose place was not free or not there when the store was opened.
  uint64_t dropped_at_open = 0;
  // Records that could not be made durable.
  uint64_t dropped_by_sync = 0;
  // Metas that could not be read back.
  uint64_t corrupt_metas = 0;
  uint64_t flushes = 0;
  uint64_t checkpoints = 0;
  // What the segments have now, and what of it no record and no quarantine holds.
  uint64_t segment_bytes = 0;
  uint64_t free_bytes = 0;
  // 1: payload is read and written past the page cache.
  uint64_t direct = 0;
  // 1: gets that may go straight into their destination are read through io_uring. How many were.
  uint64_t ring = 0;
  uint64_t ring_gets = 0;
};

struct SegmentStoreOptions {
  std::string path;
  bool read_only = false;
  // At least 1 when the store may be written to.
  uint64_t capacity_bytes = 0;
  // Of the file system: segments do not grow into it.
  uint64_t keep_free_bytes = 0;
  // 0: as the capacity has it.
  uint64_t segment_bytes = 0;
  uint64_t journal_bytes = 0;
  // How many puts and gets run at one time.
  uint32_t io_threads = 1;
  Os* os = &SystemOs();
  base::Random* random = &base::SystemRandom();
};

class SegmentStore {
 public:
  // Makes the directory (and missing ones above it) unless read-only; takes the writer's lock; reads the table.
  static absl::StatusOr<std::unique_ptr<SegmentStore>> Open(const SegmentStoreOptions& options);
  ~SegmentStore();
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  // One result for each request, which are puts: what lies together is written together.
  void DoPuts(std::span<const Request> requests, std::span<std::optional<Result>> results);
  Result DoGet(const Get& get);
  // A get in three parts, for who reads by other means. Its record keeps its place from BeginGet, where that is OK, to
  // EndGet.
  struct Pin {
    RecordTable::Id id = 0;
    DataFiles::Extents extents;
  };
  absl::Status BeginGet(const Get& get, Pin* pin);
  DataFiles::Part PartOf(const Pin& pin, uint64_t offset, uint64_t bytes) const;
  void EndGet(const Pin& pin);
  bool direct() const { return data_->direct(); }
  absl::StatusOr<std::optional<uint64_t>> Stat(const Key& key);
  absl::Status Remove(const Key& key);
  // Makes all that was put and removed before the call durable; begins a new checkpoint when the journals have grown.
  absl::Status Flush();
  // Flushes, and fails as well where an earlier flush has failed that no Sync has told of: what had completed is gone.
  absl::Status Sync();
  absl::Status List(const Cursor& cursor, uint64_t limit, ListPage* page);
  // As Storage::Visit.
  absl::Status Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped);
  // As Storage::Follow and VisitOthers, of a store that is open for reading only (store_follow.cc).
  absl::Status Follow(uint64_t limit, FeedPage* page);
  absl::Status VisitOthers(absl::FunctionRef<void(const RecordView& record)> visit);
  // As a listing would tell it.
  absl::StatusOr<std::optional<ListEntry>> Find(const Key& key);
  // Whether its writer has begun it: of what has not been, nothing is ever read.
  bool made() const { return super_.epoch > 0; }
  static uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes);
  uint64_t UsedBytes() const { return used_bytes_.load(); }
  uint64_t MaxPayloadBytes() const;
  // Payload that a flush would make durable.
  uint64_t UnflushedBytes() const { return unflushed_bytes_.load(); }
  // Whether so much of the space waits for a flush that puts will soon have to wait for it, too.
  bool SpaceWaits() const { return quarantined_units_.load() * format::kUnitBytes >= SlackBytes() / 2; }
  SegmentStats stats();
  // Lets go of all files and the lock; afterwards only the functions that return sizes and stats may be called.
  void CloseDirectory();

 private:
  using Id = RecordTable::Id;

  static constexpr uint64_t kSlackShare = 16;
  static constexpr uint64_t kMinSlackBytes = 1u << 20;

  // What is in memory otherwise than in the journals: a key whose record was put, replaced or removed.
  struct Change {
    // The journals may know a record of the key.
    bool durable = false;
    // Which change of the store was its last.
    uint64_t number = 0;
  };
  struct BatchItem {
    format::LogEntry entry;
    // Of a put.
    std::optional<Id> id;
    uint64_t change = 0;
    uint64_t offset = 0;
  };
  struct Batch {
    std::vector<BatchItem> items;
    // So many of quarantine_ end with this batch.
    size_t quarantined = 0;
  };
  class Reservation;
  // Where the checkpoint has put a record's entry.
  struct Moved {
    Id id = 0;
    // Where it was: no other record that gets this number meanwhile can be there.
    uint16_t old_log = 0;
    uint64_t old_offset = 0;
    uint64_t offset = 0;
  };

  // By the number of the log; null where there is none.
  using Images = std::vector<std::shared_ptr<LogImage>>;
  // Where the meta of a page's entry is.
  struct MetaPlace {
    size_t index = 0;
    Log log;
    std::shared_ptr<LogImage> image;
    uint64_t offset = 0;
    uint64_t kept_hash = 0;
  };

  // How far a reader has come in its writer's journals.
  struct Followed {
    Log journal;
    uint16_t slot = 0;
    uint64_t offset = 0;
    // All that was there at opening has been told; up to where.
    bool listed = false;
    Cursor cursor;
    // What has changed since and is to be told, in this order.
    std::deque<Key> changed;
    // Nothing more had been written when it was looked at last.
    bool at_end = false;
  };

  explicit SegmentStore(const SegmentStoreOptions& options);

  // Opening (store_open.cc).
  absl::Status OpenRoot();
  absl::Status OpenSuperblock();
  absl::Status MakeSuperblock();
  absl::Status WriteSuperblock();
  absl::Status SyncMadeFolders();
  absl::Status ReadTable();
  absl::Status OpenLogs(std::vector<Log>* logs, bool* moved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::Status MakeDurable(const LogFile& log);
  absl::Status ScanFolder(std::vector<uint64_t>* journals) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::StatusOr<Log> NewestCheckpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  using ApplyEntry = absl::FunctionRef<bool(const format::LogEntryView& entry, uint64_t offset)>;
  absl::Status Replay(const Log& log, const std::shared_ptr<LogImage>& image, ApplyEntry apply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::Status ReadLog(const Log& log) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  void CountUnreadable(uint64_t blocks, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  // What the table takes of an entry.
  struct ReadEntry {
    RecordTable::Tag tag;
    Record record;
    RecordPlace place;
    bool put = false;
  };
  bool Apply(std::vector<ReadEntry>* entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  static Record RecordOf(const format::LogEntryView& entry, uint16_t log, uint64_t offset);
  // Its end (store_claim.cc).
  absl::Status ClaimAll();
  void SortNewestFirst(std::vector<Id>* ids);
  std::vector<Id> ClaimEach(std::span<const Id> ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DropAtOpen(Id id);

  // Putting (store_put.cc).
  absl::Status Writable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PlaceTogether(std::deque<Reservation>* puts);
  absl::Status Place(Reservation* put);
  // In pieces where `least_piece` is less than all: each has as many units at least, but for the last.
  std::optional<DataFiles::Extents> TryPlace(uint64_t units, uint64_t least_piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Publish(Reservation* reservation);
  void Retire(Id id, Change* change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseIfUnused(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReserveQuarantine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Whether an entry can be a record's, as far as its key tells: one that was damaged when a checkpoint was written
  // keeps the number of its log, which goes to another.
  static bool IsEntryOf(uint64_t kept_hash, const format::LogEntryView& entry) {
    return entry.kind == format::EntryKind::kPut && RecordTable::IsOf(kept_hash, Key{entry.key});
  }
  absl::Status ReadMetas(const std::vector<MetaPlace>& places, ListPage* page);
  // Of one step of Visit: a record, and where its entry is when a log holds it.
  struct Visited {
    uint64_t payload_bytes = 0;
    uint64_t stored_bytes = 0;
    uint64_t kept_hash = 0;
    uint64_t log_offset = 0;
    uint16_t log = 0;
    RecordTable::Unlogged unlogged;
  };
  bool TakeVisits(Id* next, std::vector<Visited>* visited, std::vector<Log>* logs, Images* images);
  void DropImages();

  // Following (store_follow.cc).
  absl::Status ReadOn(uint64_t limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::Status ReadJournal(uint64_t limit, bool live, uint64_t* read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::Status ReadAnew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  // What a reading anew has found of one key.
  struct Seen {
    Record record;
    RecordPlace place;
  };
  using SeenByKey = absl::flat_hash_map<Key, Seen>;
  bool IsStill(Id id, const Seen& seen) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MergeSeen(const SeenByKey& seen, std::vector<bool>* kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::Status LeaveOthers(const std::vector<bool>& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  bool TakeOver(const Key& key, const Record& record, std::span<const format::Extent> extents)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_, mutex_);
  void Leave(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_, mutex_);
  absl::Status Tell(uint64_t limit, FeedPage* page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  ListEntry EntryOf(Id id, std::vector<MetaPlace>* places, size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Flushing (store_flush.cc).
  // Flushes, unless a flush has ended since there had been so many: then what was quarantined may be free.
  absl::Status FlushSince(uint64_t flushes);
  absl::Status FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  Batch TakeBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::Status WriteBatch(Batch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  void CommitBatch(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  void DropUnsynced(const absl::Status& why);
  absl::Status StartJournal(std::unique_ptr<LogWriter>* journal, uint16_t* slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  uint16_t AddLog(Log log);
  bool CheckpointDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::Status WriteCheckpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  absl::Status WriteCheckpointBody(LogWriter* writer, std::vector<Moved>* moved)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  void AdoptCheckpoint(const Log& log, const std::vector<Moved>& moved, uint64_t body_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);

  format::LogHeader NewHeader(format::LogKind kind, uint64_t number);
  // Beyond the capacity: room for what is replaced or removed and waits for a flush, and for runs that do not fit in
  // what is left.
  uint64_t SlackBytes() const { return capacity_bytes_ / kSlackShare + kMinSlackBytes; }
  uint64_t NextSequence() { return next_sequence_.fetch_add(1); }

  Os& os_;
  base::Random& random_;
  const std::string path_;
  const bool read_only_;
  const uint64_t capacity_bytes_;
  const uint64_t keep_free_bytes_;
  // Of a store that is made.
  const uint64_t segment_bytes_;
  // A checkpoint is due when the journals are longer than this, and than the last checkpoint.
  const uint64_t journal_bytes_;
  const uint32_t io_threads_;
  int root_ = -1;
  Directory directory_;
  DirectoryLock lock_;
  format::Superblock super_;
  uint32_t made_above_ = 0;
  std::unique_ptr<DataFiles> data_;
  std::atomic<uint64_t> next_sequence_{0};
  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<uint64_t> unflushed_bytes_{0};

  base::Mutex flush_mutex_;
  std::unique_ptr<LogWriter> journal_ ABSL_GUARDED_BY(flush_mutex_);
  uint16_t journal_slot_ ABSL_GUARDED_BY(flush_mutex_) = 0;
  uint64_t next_journal_ ABSL_GUARDED_BY(flush_mutex_) = 1;
  // Those that the next checkpoint replaces, the current one included, and their bytes.
  std::vector<uint64_t> journals_ ABSL_GUARDED_BY(flush_mutex_);
  uint64_t older_journal_bytes_ ABSL_GUARDED_BY(flush_mutex_) = 0;
  uint64_t checkpoint_bytes_ ABSL_GUARDED_BY(flush_mutex_) = 0;
  // That any entry had which was read at opening.
  uint64_t newest_sequence_ ABSL_GUARDED_BY(flush_mutex_) = 0;
  // Why the first block of the logs could not be read that has been taken for damage; of the superblock, how many.
  absl::Status unreadable_ ABSL_GUARDED_BY(flush_mutex_);
  uint64_t unreadable_copies_ = 0;
  Followed followed_ ABSL_GUARDED_BY(flush_mutex_);
  // The copy that the next checkpoint goes to.
  uint32_t next_copy_ ABSL_GUARDED_BY(flush_mutex_) = 0;

  base::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  RecordTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Key, Change> changes_ ABSL_GUARDED_BY(mutex_);
  uint64_t change_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // Records whose end is not durable, in the order in which they ended.
  std::vector<Id> quarantine_ ABSL_GUARDED_BY(mutex_);
  // Changed under mutex_.
  std::atomic<uint64_t> quarantined_units_{0};
  // Flushes of payload that failed: a put that had begun before cannot know whether its bytes were among the lost.
  uint64_t lost_flushes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status last_loss_ ABSL_GUARDED_BY(mutex_);
  // How many of them a Sync that has returned knew of.
  uint64_t told_losses_ ABSL_GUARDED_BY(mutex_) = 0;
  // By number; 0 is none.
  std::vector<Log> logs_ ABSL_GUARDED_BY(mutex_);
  // Of the logs that were read at opening, until a listing has come to its end, or a flush.
  Images images_ ABSL_GUARDED_BY(mutex_);
  SegmentStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::storage
