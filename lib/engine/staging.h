// SPDX-License-Identifier: Apache-2.0
// Staging memory: what the library reads into and writes from, never the caller's memory. Owns the bound on it.
//
// Thread rule: all member functions on any thread at once. A StagingBuffer belongs to one thread at a time.
//
// Invariants:
//   I1  The sizes of all live buffers add up to at most `capacity`.
//   I2  Memory of an allocator is held only while a buffer lives; of its own, an idle cache holds 16 MiB at most, once
//       Settle has been called twice.
// Rule for users, which keeps the pool free of deadlock: block in Acquire only while holding no other buffer of the
// pool; with one in hand, TryAcquire.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/allocator.h"
#include "lib/base/bytes.h"
#include "lib/base/mutex.h"
#include "lib/engine/device.h"
#include "lib/engine/staging_arena.h"

namespace kvstrata::core::engine {

// Where staging memory on the host comes from.
using base::Allocator;
using base::DefaultAllocator;

class StagingPool;

class StagingBuffer {
 public:
  StagingBuffer() = default;
  ~StagingBuffer() { Reset(); }
  StagingBuffer(StagingBuffer&& other) noexcept { *this = std::move(other); }
  StagingBuffer& operator=(StagingBuffer&& other) noexcept;

  std::byte* data() { return memory_; }
  base::MutableBytes bytes() { return {memory_, size_}; }
  base::ByteView view() const { return {memory_, size_}; }
  uint64_t size() const { return size_; }
  void Reset();
  // Counts the buffer as stuck until it is released: its reader has gone, its read has not.
  void MarkStuck();
  // Lets go of memory that a device may still use: it counts as used and stuck, and is released with the pool only.
  void Forfeit();

 private:
  friend class StagingPool;
  std::shared_ptr<StagingPool> pool_;
  std::byte* memory_ = nullptr;
  uint64_t size_ = 0;
  int32_t device_id_ = -1;  // >= 0: pinned memory of that device
  bool stuck_ = false;
};

class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // `device` (may be null) must outlive every buffer, as must `allocator`, which `keep_alive` may see to: a buffer
  // whose read is stuck outlives the cache. Without an allocator: huge pages of its own.
  StagingPool(uint64_t capacity, Allocator* allocator, Device* device, std::shared_ptr<void> keep_alive = nullptr);
  ~StagingPool();

  // device_id >= 0: pinned for that device. Errors: kTooLarge (more than the capacity), kTimeout, kOutOfMemory.
  absl::StatusOr<StagingBuffer> Acquire(uint64_t bytes, int32_t device_id,
                                        std::chrono::steady_clock::time_point deadline);
  // kBusy instead of waiting.
  absl::StatusOr<StagingBuffer> TryAcquire(uint64_t bytes, int32_t device_id);

  uint64_t capacity() const { return capacity_; }
  struct Usage {
    uint64_t used = 0, peak = 0, stuck = 0;
  };
  Usage usage() const;
  // As those of StagingArena.
  bool unsettled() const { return own_ != nullptr && own_->unsettled(); }
  void Settle() {
    if (own_ != nullptr) own_->Settle();
  }

 private:
  friend class StagingBuffer;
  absl::StatusOr<StagingBuffer> Allocate(uint64_t bytes, int32_t device_id);
  void Release(StagingBuffer* buffer);
  void ReleaseMemory(std::byte* memory, uint64_t bytes, int32_t device_id);

  struct Forfeited {
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
    int32_t device_id = -1;
  };

  const uint64_t capacity_;
  const std::unique_ptr<StagingArena> own_;
  Allocator* const allocator_;
  Device* const device_;
  const std::shared_ptr<void> keep_alive_;
  mutable base::Mutex mutex_;
  base::CondVar freed_;
  Usage usage_ ABSL_GUARDED_BY(mutex_);
  std::vector<Forfeited> forfeited_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::engine
