// SPDX-License-Identifier: Apache-2.0
// Pinned host memory, made in slabs when it is first wanted and kept: pinning and unpinning cost more than the copies
// that use it, and unpinning waits for the device.
//
// Thread rule: all functions on any thread at once.
//
// Invariants:
//   I1  All slabs together never exceed `capacity`.
//   I2  Pieces given out do not overlap, and what was given back is given out again before a new slab is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "kernels/cuda/library/runtime.h"

namespace kvstrata::kernels::cuda {

class PinnedPool {
 public:
  PinnedPool(Runtime& runtime, uint64_t capacity) : runtime_(runtime), capacity_(capacity) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // `alignment` is a power of two. Null: over the capacity, or the driver refused.
  void* Allocate(int32_t device, uint64_t bytes, uint64_t alignment);
  void Release(void* memory);

  uint64_t held_bytes() const;  // in slabs

 private:
  void* TakeFree(uint64_t bytes, uint64_t alignment);
  bool AddSlab(int32_t device, uint64_t bytes);

  Runtime& runtime_;
  const uint64_t capacity_;
  mutable std::mutex mutex_;
  std::map<std::byte*, int32_t> slabs_;  // and the device that each was made for
  std::map<std::byte*, uint64_t> free_;
  std::map<std::byte*, uint64_t> taken_;
  uint64_t held_ = 0;
};

}  // namespace kvstrata::kernels::cuda
