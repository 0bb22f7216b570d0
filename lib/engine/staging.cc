// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/staging.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {
namespace {

constexpr uint64_t kAlignment = 4096;  // a page: what direct I/O and pinned copies want

}  // namespace

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::move(other.pool_);
  memory_ = std::exchange(other.memory_, nullptr);
  size_ = std::exchange(other.size_, 0);
  device_id_ = std::exchange(other.device_id_, -1);
  stuck_ = std::exchange(other.stuck_, false);
  return *this;
}

void StagingBuffer::Reset() {
  if (pool_ == nullptr) return;
  pool_->Release(this);
  pool_ = nullptr;
  memory_ = nullptr;
  size_ = 0;
  stuck_ = false;
}

void StagingBuffer::MarkStuck() {
  if (pool_ == nullptr || stuck_) return;
  stuck_ = true;
  base::MutexLock lock(pool_->mutex_);
  pool_->usage_.stuck += size_;
}

void StagingBuffer::Forfeit() {
  if (pool_ == nullptr) return;
  MarkStuck();
  {
    base::MutexLock lock(pool_->mutex_);
    pool_->forfeited_.push_back({memory_, size_, device_id_});
  }
  pool_ = nullptr;
  memory_ = nullptr;
  size_ = 0;
  stuck_ = false;
}

absl::StatusOr<StagingBuffer> StagingPool::Acquire(uint64_t bytes, int32_t device_id,
                                                   std::chrono::steady_clock::time_point deadline) {
  if (bytes > capacity_) {
    return base::MakeStatus(base::Code::kTooLarge, "staging_bytes",
                            std::to_string(bytes) + " bytes wanted, the bound is " + std::to_string(capacity_));
  }
  {
    base::MutexLock lock(mutex_);
    while (usage_.used > capacity_ - bytes) {
      if (!freed_.WaitUntil(mutex_, deadline) && usage_.used > capacity_ - bytes) {
        return base::MakeStatus(base::Code::kTimeout, "staging_bytes", "no staging memory became free in time");
      }
    }
    usage_.used += bytes;
    usage_.peak = std::max(usage_.peak, usage_.used);
  }
  return Allocate(bytes, device_id);
}

absl::StatusOr<StagingBuffer> StagingPool::TryAcquire(uint64_t bytes, int32_t device_id) {
  {
    base::MutexLock lock(mutex_);
    if (bytes > capacity_ || usage_.used > capacity_ - bytes) {
      return base::MakeStatus(base::Code::kBusy, "staging_bytes", "all staging memory is in use");
    }
    usage_.used += bytes;
    usage_.peak = std::max(usage_.peak, usage_.used);
  }
  return Allocate(bytes, device_id);
}

// The bytes are already counted; a failure gives them back.
absl::StatusOr<StagingBuffer> StagingPool::Allocate(uint64_t bytes, int32_t device_id) {
  StagingBuffer buffer;
  buffer.pool_ = shared_from_this();
  buffer.size_ = bytes;
  buffer.device_id_ = device_id;
  // Empty records are legal: give them an address all the same.
  const uint64_t size = std::max<uint64_t>(bytes, 1);
  buffer.memory_ = device_id >= 0 && device_ != nullptr ? device_->AllocatePinned(device_id, size, kAlignment)
                                                        : allocator_->Allocate(size, kAlignment);
  if (buffer.memory_ == nullptr) {
    return base::MakeStatus(base::Code::kOutOfMemory, "staging", std::to_string(bytes) + " bytes");
  }
  return buffer;
}

StagingPool::StagingPool(uint64_t capacity, Allocator* allocator, Device* device, std::shared_ptr<void> keep_alive)
    : capacity_(capacity),
      own_(allocator == nullptr ? std::make_unique<StagingArena>(capacity) : nullptr),
      allocator_(allocator == nullptr ? own_.get() : allocator),
      device_(device),
      keep_alive_(std::move(keep_alive)) {}

StagingPool::~StagingPool() {
  for (const Forfeited& left : forfeited_) ReleaseMemory(left.memory, left.bytes, left.device_id);
}

void StagingPool::ReleaseMemory(std::byte* memory, uint64_t bytes, int32_t device_id) {
  const uint64_t size = std::max<uint64_t>(bytes, 1);  // as Allocate
  if (device_id >= 0 && device_ != nullptr) {
    device_->ReleasePinned(device_id, memory, size);
  } else {
    allocator_->Release(memory, size, kAlignment);
  }
}

void StagingPool::Release(StagingBuffer* buffer) {
  if (buffer->memory_ != nullptr) ReleaseMemory(buffer->memory_, buffer->size_, buffer->device_id_);
  base::MutexLock lock(mutex_);
  usage_.used -= buffer->size_;
  if (buffer->stuck_) usage_.stuck -= buffer->size_;
  freed_.NotifyAll();
}

StagingPool::Usage StagingPool::usage() const {
  base::MutexLock lock(mutex_);
  return usage_;
}

}  // namespace kvstrata::core::engine
