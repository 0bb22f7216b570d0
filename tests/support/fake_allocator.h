// SPDX-License-Identifier: Apache-2.0
// A kvstrata_allocator that counts, checks that what comes back is what was given, and fails once where asked to.
//
// Thread rule: all member functions on any thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "kvstrata/c_api.h"

namespace kvstrata::test {

class CountingAllocator {
 public:
  CountingAllocator() {
    table_.struct_size = sizeof table_;
    table_.ctx = this;
    table_.allocate = Allocate;
    table_.release = Release;
  }
  ~CountingAllocator() {
    for (const auto& [memory, request] : live_) std::free(memory);
  }
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  const kvstrata_allocator* table() const { return &table_; }
  // The n-th allocation from now on fails; 0: none.
  void FailNth(uint64_t n) {
    const std::lock_guard lock(mutex_);
    countdown_ = n;
    failed_ = false;
  }
  bool failed() const {
    const std::lock_guard lock(mutex_);
    return failed_;
  }
  uint64_t live() const {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }
  uint64_t allocations() const {
    const std::lock_guard lock(mutex_);
    return allocations_;
  }
  // Releases of what was never given, or with another size or alignment.
  uint64_t mismatches() const {
    const std::lock_guard lock(mutex_);
    return mismatches_;
  }
  uint64_t peak_bytes() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  static void* Allocate(void* ctx, uint64_t size, uint64_t alignment) {
    auto& self = *static_cast<CountingAllocator*>(ctx);
    const std::lock_guard lock(self.mutex_);
    if (self.countdown_ != 0 && --self.countdown_ == 0) {
      self.failed_ = true;
      return nullptr;
    }
    void* memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (memory == nullptr) return nullptr;
    self.live_[memory] = {size, alignment};
    self.allocations_ += 1;
    self.bytes_ += size;
    self.peak_ = self.bytes_ > self.peak_ ? self.bytes_ : self.peak_;
    return memory;
  }
  static void Release(void* ctx, void* memory, uint64_t size, uint64_t alignment) {
    auto& self = *static_cast<CountingAllocator*>(ctx);
    const std::lock_guard lock(self.mutex_);
    const auto found = self.live_.find(memory);
    if (found == self.live_.end() || found->second != std::pair(size, alignment)) {
      self.mismatches_ += 1;
      return;
    }
    self.bytes_ -= size;
    self.live_.erase(found);
    std::free(memory);
  }

  kvstrata_allocator table_{};
  mutable std::mutex mutex_;
  std::map<void*, std::pair<uint64_t, uint64_t>> live_;
  uint64_t countdown_ = 0;
  uint64_t allocations_ = 0;
  uint64_t mismatches_ = 0;
  uint64_t bytes_ = 0;
  uint64_t peak_ = 0;
  bool failed_ = false;
};

}  // namespace kvstrata::test
