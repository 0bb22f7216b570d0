// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/bounce_pool.h"

#include <sys/mman.h>

namespace kvstrata::core::storage {
namespace {

constexpr size_t kHugePageBytes = 2u << 20;

}  // namespace

BouncePool::~BouncePool() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

bool BouncePool::Allocate() {
  // Room to begin at a huge page's boundary.
  mapping_bytes_ = buffers_ * kBufferBytes + kHugePageBytes;
  void* const mapping =
      mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return false;
  mapping_ = mapping;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(mapping) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  auto* const memory = reinterpret_cast<std::byte*>(begin);
  // Advice only: without it the buffers work as well, more slowly.
  madvise(memory, buffers_ * kBufferBytes, MADV_HUGEPAGE);
  base::MutexLock lock(mutex_);
  for (uint32_t i = buffers_; i > 0; --i) free_.push_back(memory + (i - 1) * kBufferBytes);
  return true;
}

std::byte* BouncePool::Take() {
  base::MutexLock lock(mutex_);
  while (free_.empty()) given_.Wait(mutex_);
  // The one that was given last, so that an idle store touches few.
  std::byte* const memory = free_.back();
  free_.pop_back();
  return memory;
}

void BouncePool::Give(std::byte* memory) {
  base::MutexLock lock(mutex_);
  free_.push_back(memory);
  given_.NotifyOne();
}

}  // namespace kvstrata::core::storage
