// SPDX-License-Identifier: Apache-2.0
// Buffers for I/O past the page cache: direct I/O wants aligned memory, places and sizes, and callers have none of
// these to promise. On huge pages by advice: on the machines measured, reads into 2 MiB pages went two to three times
// as fast as into 4 KiB pages, which pays for the copy many times over.
//
// Thread rule: all functions on any thread at once; a Lease on one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/mutex.h"

namespace kvstrata::core::storage {

class BouncePool {
 public:
  // Large enough that a drive transfers at its full rate, small enough that eight of them are little.
  static constexpr size_t kBufferBytes = 1u << 20;

  explicit BouncePool(uint32_t buffers) : buffers_(buffers) {}
  ~BouncePool();
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;
  // False when there is no memory for them.
  bool Allocate();

  // One buffer, for as long as this lives; waits until one is free. A thread holds one at a time.
  class Lease {
   public:
    explicit Lease(BouncePool& pool) : pool_(pool), memory_(pool.Take()) {}
    ~Lease() { pool_.Give(memory_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    base::MutableBytes bytes() const { return {memory_, kBufferBytes}; }

   private:
    BouncePool& pool_;
    std::byte* const memory_;
  };

 private:
  std::byte* Take();
  void Give(std::byte* memory);

  const uint32_t buffers_;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  base::Mutex mutex_;
  base::CondVar given_;
  std::vector<std::byte*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::storage
