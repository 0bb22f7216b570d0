// SPDX-License-Identifier: Apache-2.0
// The SSD backend: payload in a few large files, a journal for the rest. SegmentStore holds what makes it safe; this
// adds the threads, the ring, the bounds and the manners that storage.h asks for.
//
// A put is visible when it completes, and durable after the next flush: within flush_ms, with Sync, or with Close. A
// process that is killed loses what was not flushed, whole records always.
//
// Thread rule: as storage.h.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/random.h"
#include "lib/storage/os.h"
#include "lib/storage/segment/store.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

struct SegmentOptions {
  // Made when missing, with missing folders above it (mode 0700), unless `read_only`: then kNotFound.
  std::string path;
  // Takes no lock and changes nothing; any number of readers beside one writer. Sees what was durable when it opened,
  // and after each Follow what has become so since.
  bool read_only = false;
  // How much the store is to hold: 1 or more, unless it is read-only. A new store's files are laid out for it; segments
  // grow with what is put, up to this and a 16th and 1 MiB more.
  uint64_t capacity_bytes = 0;
  // 1 to 64. Each carries out a get, or the puts of one write (RequestQueue), at a time: eight keep a drive busy at
  // 256 KiB. A buffer of 1 MiB each.
  uint32_t io_threads = 8;
  // Gets that land straight in their destination go through io_uring where it can be had. False: through the threads.
  bool ring = true;
  // Requests accepted and not completed: 1 to 65,536.
  uint64_t max_requests = 1024;
  // How long a put may wait for its flush; 0: until a Sync, a Close, or a lack of space.
  uint32_t flush_ms = 1000;
  // So much payload does not wait.
  uint64_t flush_bytes = 256u << 20;
  // Of the file system: segments do not grow into it.
  uint64_t keep_free_bytes = 0;
  // 0: as the capacity has them. Tests make them small.
  uint64_t segment_bytes = 0;
  uint64_t journal_bytes = 0;
  // Replaced by tests. They outlive the store.
  Os* os = &SystemOs();
  base::Random* random = &base::SystemRandom();
};

class SegmentStorage final : public Storage {
 public:
  // Reads the table (no payload), then starts the threads. kLocked when another opener writes, kReadOnly when the
  // directory, or the one that it would be made in, cannot be written to, kCorrupt when its superblock is damaged. What
  // the drive refuses to read of logs costs the records told of there (SegmentStats::unreadable_blocks); kIo with its
  // errno where nothing at all can be read, or too much cannot.
  static absl::StatusOr<std::unique_ptr<SegmentStorage>> Open(const SegmentOptions& options);
  ~SegmentStorage() override;

  absl::Status Submit(std::span<const Request> requests) override;
  absl::StatusOr<std::optional<uint64_t>> Stat(const Key& key) override;
  absl::Status Remove(const Key& key) override;
  absl::Status Sync() override;
  absl::Status List(const Cursor& cursor, uint64_t limit, ListPage* page) override;
  absl::Status Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped) override;
  absl::Status Follow(uint64_t limit, FeedPage* page) override;
  absl::Status VisitOthers(absl::FunctionRef<void(const RecordView& record)> visit) override;
  // As a listing would tell it.
  absl::StatusOr<std::optional<ListEntry>> Find(const Key& key);
  // False of a folder in which no writer has begun a store yet.
  bool made() const;
  Capabilities capabilities() const override;
  uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const override;
  uint64_t UsedBytes() const override;
  uint64_t UnreadableBlocks() const override;
  // Flushes as well. Once it has succeeded, another writer may open the directory.
  absl::Status Close(std::chrono::nanoseconds patience) override;

  SegmentStats stats() const;

 private:
  // Apart, so that a forked child can leave it alone as a whole: its threads are not there, and its locks may be held.
  struct State;
  explicit SegmentStorage(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvstrata::core::storage
