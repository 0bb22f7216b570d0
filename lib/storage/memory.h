// SPDX-License-Identifier: Apache-2.0
// A store in memory, bounded by bytes. Lost with the process. Requests complete inside Submit.
//
// Thread rule: as storage.h.
//
// Invariants:
//   I1. UsedBytes() <= capacity_bytes at every moment: the bytes of a put are reserved before they are copied, and
//       those of the record that it replaces are released only afterwards.
//   I2. A record is never changed after it was published; readers hold it by reference count, outside the lock.
#pragma once

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
  absl::Status Close(std::chrono::nanoseconds patience) override;

 private:
  struct Record {
    std::vector<std::byte> payload;
    std::vector<std::byte> meta;
  };

  Result DoPut(const Put& put);
  Result DoGet(const Get& get);
  absl::Status Reserve(uint64_t bytes);
  void Release(uint64_t bytes);

  const MemoryOptions options_;
  Gate gate_;
  mutable base::Mutex mutex_;
  // Ordered, so that a cursor is simply the last key returned.
  std::map<Key, std::shared_ptr<const Record>> records_ ABSL_GUARDED_BY(mutex_);
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvstrata::core::storage
