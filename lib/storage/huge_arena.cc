// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/huge_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <optional>

namespace kvstrata::core::storage {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = 2u << 20;
// 2^31 pages: as many as SpaceMap's tree can number.
constexpr uint64_t kMaxBytes = uint64_t{1} << 43;

uint64_t PagesOf(uint64_t bytes) { return bytes / kPageBytes + (bytes % kPageBytes != 0 ? 1 : 0); }

uint32_t KeptPages(uint64_t bytes, uint32_t all) {
  return static_cast<uint32_t>(std::min<uint64_t>(all, bytes / kHugePageBytes * (kHugePageBytes / kPageBytes)));
}

}  // namespace

HugeArena::HugeArena(uint64_t bytes, uint64_t keep_bytes)
    : pages_(static_cast<uint32_t>(PagesOf(std::min(bytes, kMaxBytes)))),
      kept_pages_(KeptPages(keep_bytes, pages_)),
      free_(pages_) {
  base::MutexLock lock(mutex_);
  free_.Give(0, pages_);
}

HugeArena::~HugeArena() {
  base::MutexLock lock(mutex_);
  Unmap();
}

bool HugeArena::Map() {
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

void HugeArena::Unmap() {
  if (mapping_ == nullptr) return;
  munmap(mapping_, pages_ * kPageBytes + kHugePageBytes);
  mapping_ = nullptr;
  begin_ = nullptr;
  touched_ = 0;
}

void HugeArena::Trim(uint32_t kept_pages) {
  if (kept_pages == 0) return Unmap();
  if (touched_ > kept_pages) {
    madvise(begin_ + kept_pages * kPageBytes, (touched_ - kept_pages) * kPageBytes, MADV_DONTNEED);
  }
  touched_ = std::min(touched_, kept_pages);
}

bool HugeArena::Shrink(uint64_t keep_bytes) {
  base::MutexLock lock(mutex_);
  if (free_.free_units() != pages_) return false;
  if (mapping_ != nullptr) Trim(KeptPages(keep_bytes, pages_));
  return true;
}

std::byte* HugeArena::Take(uint64_t bytes) {
  const uint64_t pages = PagesOf(bytes);
  if (pages == 0 || pages > pages_) return nullptr;
  base::MutexLock lock(mutex_);
  if (!Map()) return nullptr;
  // The lowest, so that few huge pages are ever touched.
  const std::optional<uint32_t> first = free_.Find(static_cast<uint32_t>(pages), 0);
  if (!first.has_value()) return nullptr;
  free_.Take(*first, static_cast<uint32_t>(pages));
  touched_ = std::max(touched_, *first + static_cast<uint32_t>(pages));
  return begin_ + *first * kPageBytes;
}

bool HugeArena::Give(std::byte* memory, uint64_t bytes) {
  base::MutexLock lock(mutex_);
  if (mapping_ == nullptr || memory < begin_ || memory >= begin_ + pages_ * kPageBytes) return false;
  free_.Give(static_cast<uint32_t>(static_cast<uint64_t>(memory - begin_) / kPageBytes),
             static_cast<uint32_t>(PagesOf(bytes)));
  if (free_.free_units() == pages_) Trim(kept_pages_);
  return true;
}

}  // namespace kvstrata::core::storage
