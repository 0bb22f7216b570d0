// SPDX-License-Identifier: Apache-2.0
// A store in memory, bounded by bytes. Lost with the process. Requests complete inside Submit.
//
// Thread rule: as storage.h.
//
// Invariants:
//   I1. UsedBytes() <= capacity_bytes at every moment: the bytes of a put are reserved before they are copied, and
//       those of the record that it replaces are released only afterwards.
//   I2. A record is never changed after it was published; readers hold it by reference count, outside the lock. Its
//       bytes are released with its last holder.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/storage/gate.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

struct MemoryOptions {
  // What StoredBytes() of all records may add up to. A put beyond it completes with kNoSpace, one that could never fit
  // with kTooLarge.
  uint64_t capacity_bytes = 0;
};

class MemoryStorage final : public Storage {
 public:
  explicit MemoryStorage(const MemoryOptions& options);
  ~MemoryStorage() override = default;

  absl::Status Submit(std::span<const Request> requests) override;
  absl::StatusOr<std::optional<uint64_t>> Stat(const Key& key) override;
  absl::Status Remove(const Key& key) override;
  absl::Status Sync() override;
  absl::Status List(const Cursor& cursor, uint64_t limit, ListPage* page) override;
  Capabilities capabilities() const override;
  uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const override;
  uint64_t UsedBytes() const override;
  std::shared_ptr<HeldRecord> Hold(const Key& key) override;
  absl::Status Close(std::chrono::nanoseconds patience) override;

 private:
  using Used = std::atomic<uint64_t>;
  class Record;

  Result DoPut(const Put& put);
  Result DoGet(const Get& get);
  absl::Status Reserve(uint64_t bytes);

  const MemoryOptions options_;
  Gate gate_;
  mutable base::Mutex mutex_;
  // Ordered, so that a cursor is simply the last key returned.
  std::map<Key, std::shared_ptr<Record>> records_ ABSL_GUARDED_BY(mutex_);
  // Shared with the records, which may outlive the store.
  const std::shared_ptr<Used> used_bytes_ = std::make_shared<Used>(0);
};

}  // namespace kvstrata::core::storage
