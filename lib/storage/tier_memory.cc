// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/tier_memory.h"

#include <algorithm>
#include <new>
#include <utility>

#include "lib/base/checked.h"

namespace kvstrata::core::storage {
namespace {

// A page: what direct I/O lands in, and the unit of the arena.
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kSmallAlignment = 64;  // a cache line
// Record, map entry, list entry and the heap's rounding, as in the store in memory (memory.cc).
constexpr uint64_t kOverheadBytes = 256;

// What is smaller than a page comes from operator new: a page for each of them would be mostly air.
uint64_t Rounded(uint64_t bytes) {
  if (bytes < kPageBytes) return std::max<uint64_t>(bytes, 1);
  return bytes > UINT64_MAX - kPageBytes ? UINT64_MAX : (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

TierRecord::TierRecord(std::shared_ptr<TierMemory> memory, std::byte* payload, uint64_t bytes, base::ByteView meta)
    : memory_(std::move(memory)),
      payload_(payload),
      bytes_(bytes),
      meta_(meta.begin(), meta.end()),
      part_(payload, bytes) {}

TierRecord::~TierRecord() {
  memory_->Give(payload_, bytes_);
  memory_->used_bytes_ -= TierMemory::Cost(bytes_, meta_.size());
}

TierMemory::TierMemory(uint64_t capacity_bytes, std::shared_ptr<base::Allocator> allocator)
    : capacity_bytes_(capacity_bytes), allocator_(std::move(allocator)) {
  if (allocator_ == nullptr) arena_.emplace(capacity_bytes);
}

uint64_t TierMemory::Cost(uint64_t bytes, uint64_t meta_bytes) {
  const std::optional<uint64_t> both = base::CheckedAdd(Rounded(bytes), meta_bytes);
  if (!both.has_value()) return UINT64_MAX;
  return base::CheckedAdd(*both, kOverheadBytes).value_or(UINT64_MAX);
}

std::shared_ptr<TierRecord> TierMemory::Make(uint64_t bytes, base::ByteView meta) {
  const uint64_t cost = Cost(bytes, meta.size());
  if (!Count(cost)) return nullptr;
  std::byte* const memory = Take(bytes);
  if (memory != nullptr) {
    try {
      return std::make_shared<TierRecord>(shared_from_this(), memory, bytes, meta);
    } catch (const std::bad_alloc&) {
      Give(memory, bytes);
    }
  }
  used_bytes_ -= cost;
  return nullptr;
}

bool TierMemory::Count(uint64_t cost) {
  uint64_t used = used_bytes_;
  do {
    if (cost > capacity_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + cost));
  return true;
}

std::byte* TierMemory::Take(uint64_t bytes) {
  if (bytes < kPageBytes) return base::DefaultAllocator().Allocate(Rounded(bytes), kSmallAlignment);
  return arena_.has_value() ? arena_->Take(bytes) : allocator_->Allocate(Rounded(bytes), kPageBytes);
}

void TierMemory::Give(std::byte* memory, uint64_t bytes) {
  if (bytes < kPageBytes) {
    base::DefaultAllocator().Release(memory, Rounded(bytes), kSmallAlignment);
  } else if (arena_.has_value()) {
    arena_->Give(memory, bytes);
  } else {
    allocator_->Release(memory, Rounded(bytes), kPageBytes);
  }
}

}  // namespace kvstrata::core::storage
