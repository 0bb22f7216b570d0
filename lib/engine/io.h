// SPDX-License-Identifier: Apache-2.0
// Waiting for asynchronous storage requests: one request in flight, with the memory it uses.
//
// Thread rule: an IoOperation is shared between the thread that waits and the storage's completion.
//
// Invariant:
//   I1  The staging memory and everything the request points to lives until the completion has run, whether or not
//       anybody still waits: a deadline that passed never leaves a storage writing into freed memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "lib/engine/staging.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::engine {

using Deadline = std::chrono::steady_clock::time_point;

// A waiting time as a caller gives it: one that no clock can express (a century and more) means for ever.
inline std::chrono::nanoseconds Patience(uint64_t ms) {
  return std::chrono::milliseconds(std::min<uint64_t>(ms, INT64_MAX / 2'000'000));
}
inline Deadline DeadlineAfterMs(uint64_t ms) { return base::DeadlineAfter(Patience(ms)); }

// Submits, and while the storage's queue is full tries again every millisecond until `deadline` (kTimeout then).
absl::Status SubmitPatiently(storage::Storage& storage, const storage::Request& request, Deadline deadline);

// One ranged read into staging memory that it owns. Its bytes lie in the buffer as they lie in a page of the record, if
// there is room for that: a storage that reads past the page cache then needs no copy of its own.
class ReadOperation : public std::enable_shared_from_this<ReadOperation> {
 public:
  // What `staging` must have for `bytes` from `offset` on, if there is as much; `bytes` will do.
  static uint64_t RoomFor(uint64_t offset, uint64_t bytes) { return offset % kPageBytes + bytes; }

  // The last `scratch_bytes` of the memory are not the read's.
  ReadOperation(storage::Key key, uint64_t offset, uint64_t bytes, StagingBuffer staging, uint64_t scratch_bytes = 0)
      : key_(key),
        offset_(offset),
        bytes_(bytes),
        begin_(staging.size() - scratch_bytes < RoomFor(offset, bytes) ? 0 : offset % kPageBytes),
        scratch_bytes_(scratch_bytes),
        staging_(std::move(staging)) {}

  // Of a record that the storage holds in memory: there is nothing to submit, and nothing is copied. `scratch` is all
  // the memory that the operation has.
  ReadOperation(std::shared_ptr<storage::HeldRecord> held, uint64_t offset, uint64_t bytes, StagingBuffer scratch);

  absl::Status Submit(storage::Storage& storage, Deadline deadline);
  // The status of the read; kTimeout when it has not completed by `deadline`: wait again, or abandon it.
  absl::Status Wait(Deadline deadline);
  bool done() const {
    base::MutexLock lock(mutex_);
    return done_;
  }
  // Nobody will wait any more. Memory of a read that still runs is counted as stuck until it completes; staging() must
  // not be touched.
  void Abandon();
  StagingBuffer& staging() { return staging_; }
  // Of a read that has ended well.
  bool from_memory() const {
    base::MutexLock lock(mutex_);
    return from_memory_;
  }
  bool is_held() const { return held_ != nullptr; }
  base::ByteView bytes() const {
    const base::ByteView memory = is_held() ? held_->payload() : staging_.view();
    return memory.subspan(begin_, bytes_);
  }
  base::MutableBytes scratch() { return staging_.bytes().last(scratch_bytes_); }

 private:
  static constexpr uint64_t kPageBytes = 4096;

  static void Complete(void* user, const storage::Result& result);

  const storage::Key key_;
  const std::shared_ptr<storage::HeldRecord> held_;
  const uint64_t offset_;
  const uint64_t bytes_;
  const uint64_t begin_;  // in the staging memory, or in the held record
  const uint64_t scratch_bytes_;
  StagingBuffer staging_;
  mutable base::Mutex mutex_;
  base::CondVar done_changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool from_memory_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::engine
