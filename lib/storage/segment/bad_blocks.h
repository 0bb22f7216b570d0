// SPDX-License-Identifier: Apache-2.0
// The blocks of a log that the drive refused to read (EIO) when it was opened. They count as damage as long as the log
// is open, and nobody asks for them again: a drive may take seconds to refuse, and what an opening has given up must
// not stand in the way of a checkpoint.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/storage/descriptor.h"

namespace kvstrata::core::storage {

class BadBlocks {
 public:
  explicit BadBlocks(uint64_t most) : most_(most) {}

  // Takes no lock, so that a log without any costs nothing.
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  bool Has(uint64_t block) const { return HasWithin(block, block); }
  bool HasWithin(uint64_t first, uint64_t last) const {
    if (count() == 0) return false;
    base::MutexLock lock(mutex_);
    const auto at = std::ranges::lower_bound(blocks_, first);
    return at != blocks_.end() && *at <= last;
  }
  // The log past the page cache, which may read more than is asked for and refuse all of it. Nothing where that cannot
  // be had. Set before the first Add.
  const std::optional<Descriptor>& direct() const { return direct_; }
  void SetDirect(Descriptor direct) { direct_.emplace(std::move(direct)); }
  // False where there are as many as may be given up.
  bool Add(uint64_t block) {
    base::MutexLock lock(mutex_);
    const auto at = std::ranges::lower_bound(blocks_, block);
    if (at != blocks_.end() && *at == block) return true;
    if (blocks_.size() >= most_) return false;
    blocks_.insert(at, block);
    count_.store(blocks_.size(), std::memory_order_release);
    return true;
  }

 private:
  const uint64_t most_;
  std::optional<Descriptor> direct_;
  std::atomic<uint64_t> count_{0};
  mutable base::Mutex mutex_;
  std::vector<uint64_t> blocks_ ABSL_GUARDED_BY(mutex_);  // ascending
};

}  // namespace kvstrata::core::storage
