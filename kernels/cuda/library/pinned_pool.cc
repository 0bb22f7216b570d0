// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/library/pinned_pool.h"

#include <algorithm>
#include <iterator>

namespace kvstrata::kernels::cuda {
namespace {

constexpr uint64_t kSlabBytes = uint64_t{16} << 20;
// Pieces begin and end on pages: two of them never share one, whatever a device or a drive does with its ends.
constexpr uint64_t kPageBytes = 4096;

uint64_t RoundUp(uint64_t bytes, uint64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

}  // namespace

PinnedPool::~PinnedPool() {
  for (const auto& [memory, device] : slabs_) runtime_.ReleasePinned(device, memory);
}

void* PinnedPool::Allocate(int32_t device, uint64_t bytes, uint64_t alignment) {
  if (bytes == 0 || bytes > capacity_ || alignment == 0 || (alignment & (alignment - 1)) != 0) return nullptr;
  const uint64_t wanted = RoundUp(bytes, kPageBytes);
  const uint64_t aligned = std::max(alignment, kPageBytes);
  const std::lock_guard lock(mutex_);
  if (void* memory = TakeFree(wanted, aligned); memory != nullptr) return memory;
  // Slabs are aligned to pages: a larger alignment may need as much more.
  const uint64_t least = wanted + aligned - kPageBytes;
  if (!AddSlab(device, std::max(kSlabBytes, least)) && !AddSlab(device, least)) return nullptr;
  return TakeFree(wanted, aligned);
}

// The first piece that is large enough. Locked, as all below.
void* PinnedPool::TakeFree(uint64_t bytes, uint64_t alignment) {
  for (const auto& [begin, size] : free_) {
    const uint64_t skip = RoundUp(reinterpret_cast<uintptr_t>(begin), alignment) - reinterpret_cast<uintptr_t>(begin);
    if (size < skip || size - skip < bytes) continue;
    std::byte* const piece = begin + skip;
    const uint64_t behind = size - skip - bytes;
    // The map's nodes are made before anything is changed: memory may run out.
    taken_[piece] = bytes;
    if (behind > 0) free_[piece + bytes] = behind;
    std::byte* const first = begin;
    if (skip > 0) {
      free_[first] = skip;
    } else {
      free_.erase(first);
    }
    return piece;
  }
  return nullptr;
}

bool PinnedPool::AddSlab(int32_t device, uint64_t bytes) {
  if (bytes > capacity_ - held_) return false;
  void* memory = nullptr;
  if (runtime_.AllocatePinned(device, bytes, &memory) != kSuccess) return false;
  auto* const slab = static_cast<std::byte*>(memory);
  slabs_[slab] = device;
  free_[slab] = bytes;
  held_ += bytes;
  return true;
}

void PinnedPool::Release(void* memory) {
  const std::lock_guard lock(mutex_);
  auto node = taken_.extract(static_cast<std::byte*>(memory));
  if (node.empty()) return;
  std::byte* const begin = node.key();
  // Joined with its free neighbours of the same slab. Nothing is allocated: giving back cannot fail.
  const auto behind = free_.find(begin + node.mapped());
  if (behind != free_.end() && !slabs_.contains(behind->first)) {
    node.mapped() += behind->second;
    free_.erase(behind);
  }
  const auto next = free_.upper_bound(begin);
  if (next != free_.begin() && !slabs_.contains(begin)) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += node.mapped();
      return;
    }
  }
  free_.insert(std::move(node));
}

uint64_t PinnedPool::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace kvstrata::kernels::cuda
