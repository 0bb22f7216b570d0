// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/staging_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <optional>

namespace kvstrata::core::engine {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = 2u << 20;
// A huge page is cleared as a whole when it is first touched (about 50 us): too much for a buffer that a drive fills in
// less time than that whatever its pages are.
constexpr uint64_t kSmallBytes = 64 * 1024;
// Whoever allows more staging memory than this has more than what is read into at one time.
constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 30;

uint32_t Pages(uint64_t bytes) { return static_cast<uint32_t>((bytes + kPageBytes - 1) / kPageBytes); }

}  // namespace

StagingArena::StagingArena(uint64_t bytes) : pages_(Pages(std::min(bytes, kMaxArenaBytes))), free_(pages_) {
  base::MutexLock lock(mutex_);
  free_.Give(0, pages_);
}

StagingArena::~StagingArena() {
  base::MutexLock lock(mutex_);
  Unmap();
}

bool StagingArena::Map() {
  if (mapping_ != nullptr) return true;
  // Room to begin at a huge page's boundary.
  void* const mapping = mmap(nullptr, pages_ * kPageBytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return false;
  mapping_ = mapping;
  const uint64_t beyond = reinterpret_cast<uintptr_t>(mapping) % kHugePageBytes;
  begin_ = static_cast<std::byte*>(mapping) + (kHugePageBytes - beyond) % kHugePageBytes;
  madvise(begin_, pages_ * kPageBytes, MADV_HUGEPAGE);
  return true;
}

void StagingArena::Unmap() {
  if (mapping_ == nullptr) return;
  munmap(mapping_, pages_ * kPageBytes + kHugePageBytes);
  mapping_ = nullptr;
  begin_ = nullptr;
}

std::byte* StagingArena::Place(uint64_t bytes) {
  if (bytes < kSmallBytes || bytes > pages_ * kPageBytes) return nullptr;
  const uint32_t pages = Pages(bytes);
  base::MutexLock lock(mutex_);
  if (!Map()) return nullptr;
  // The lowest, so that few huge pages are ever touched.
  const std::optional<uint32_t> first = free_.Find(pages, 0);
  if (!first.has_value()) return nullptr;
  free_.Take(*first, pages);
  return begin_ + *first * kPageBytes;
}

std::byte* StagingArena::Allocate(uint64_t bytes, uint64_t alignment) {
  std::byte* const placed = alignment <= kPageBytes ? Place(bytes) : nullptr;
  return placed != nullptr ? placed : DefaultAllocator().Allocate(bytes, alignment);
}

void StagingArena::Release(std::byte* memory, uint64_t bytes, uint64_t alignment) {
  {
    base::MutexLock lock(mutex_);
    if (mapping_ != nullptr && memory >= begin_ && memory < begin_ + pages_ * kPageBytes) {
      free_.Give(static_cast<uint32_t>(static_cast<uint64_t>(memory - begin_) / kPageBytes), Pages(bytes));
      if (free_.free_units() == pages_) Unmap();
      return;
    }
  }
  DefaultAllocator().Release(memory, bytes, alignment);
}

}  // namespace kvstrata::core::engine
