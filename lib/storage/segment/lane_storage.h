// SPDX-License-Identifier: Apache-2.0
// A root with lanes: stores side by side, each written by one process and read by all (FORMAT.md). Puts and removes go
// to the own lane, gets to the one that has the record. What the others write, Follow tells.
//
// Invariants:
//   I1. A key that several lanes have is one record: the own lane's, else that of the lowest lane. Gets and Follow
//       agree on which.
//   I2. Nothing of another's lane is ever changed, and its lock file is never opened (directory_lock.h, I1).
//
// Thread rule: as storage.h.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/storage/mark_file.h"
#include "lib/storage/segment/segment_storage.h"

namespace kvstrata::core::storage {

// Of 1,024 descriptors, the usual limit, a lane takes a dozen.
inline constexpr uint32_t kMaxLanes = 64;
// The lowest lane that nobody writes to.
inline constexpr uint32_t kAnyLane = UINT32_MAX;

class LaneStorage final : public Storage {
 public:
  // `options` are the own lane's, and the path is the root's. As SegmentStorage::Open; kLocked names the lane. A reader
  // has no lane of its own.
  static absl::StatusOr<std::unique_ptr<LaneStorage>> Open(const SegmentOptions& options, uint32_t lane);
  ~LaneStorage() override;

  absl::Status Submit(std::span<const Request> requests) override;
  absl::StatusOr<std::optional<uint64_t>> Stat(const Key& key) override;
  absl::Status Remove(const Key& key) override;
  absl::Status Sync() override;
  // The own lane's records; a reader's are those of all lanes.
  absl::Status List(const Cursor& cursor, uint64_t limit, ListPage* page) override;
  absl::Status Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped) override;
  absl::Status Follow(uint64_t limit, FeedPage* page) override;
  absl::Status VisitOthers(absl::FunctionRef<void(const RecordView& record)> visit) override;
  Marks* marks() override { return &marks_; }
  Capabilities capabilities() const override { return limits_; }
  uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const override;
  // The own lane's; a reader's is the sum of all.
  uint64_t UsedBytes() const override;
  // Of all lanes.
  uint64_t UnreadableBlocks() const override;
  absl::Status Close(std::chrono::nanoseconds patience) override;

  // Nothing for a reader.
  std::optional<uint32_t> lane() const { return lane_; }

 private:
  struct Other {
    uint32_t lane = 0;
    std::shared_ptr<SegmentStorage> store;
  };
  // Ascending; replaced as a whole when a lane is found.
  using Others = std::vector<Other>;

  LaneStorage(const SegmentOptions& options, int root);

  absl::Status OpenOwn(uint32_t lane);
  absl::Status SyncFolders(uint32_t made);
  std::string PathOf(uint32_t lane) const;
  absl::Status CheckUsable() const;
  std::shared_ptr<const Others> others() const;
  absl::StatusOr<bool> HasSpareDescriptors();
  absl::Status FindLanes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(follow_mutex_);
  absl::Status Settle(const Others& others, size_t from, FeedEntry entry, FeedPage* page);
  absl::StatusOr<SegmentStorage*> HolderOf(const Others& others, const Key& key);

  const SegmentOptions options_;
  const pid_t owner_;
  const Directory directory_;
  MarkFile marks_;
  Capabilities limits_;
  std::optional<uint32_t> lane_;
  std::unique_ptr<SegmentStorage> own_;
  std::atomic<bool> closed_{false};

  base::Mutex follow_mutex_;
  // The next lane to be asked, by its place in others_.
  size_t turn_ ABSL_GUARDED_BY(follow_mutex_) = 0;
  bool followed_ ABSL_GUARDED_BY(follow_mutex_) = false;  // Follow has been called
  // Lanes that cannot be read: a later version's, or damaged.
  std::set<uint32_t> refused_ ABSL_GUARDED_BY(follow_mutex_);

  mutable base::Mutex mutex_;
  std::shared_ptr<const Others> others_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::storage
