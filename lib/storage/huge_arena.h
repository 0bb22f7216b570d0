// SPDX-License-Identifier: Apache-2.0
// One stretch of memory in huge pages, by advice, that buffers of any size share: an address range that is only taken
// from the system where it is touched.
//
// Invariants:
//   I1. While nothing lies in it, it holds at most what it was told to keep, less once it has been told to shrink, and
//       a map of half a byte for each page of 4 KiB.
//   I2. What lies in it never exceeds its size.
//   I3. Places begin at a page's boundary, and no page of 4 KiB belongs to two of them.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/mutex.h"
#include "lib/storage/segment/space_map.h"

namespace kvstrata::core::storage {

class HugeArena {
 public:
  // Room for `bytes`, rounded up to a page of 4 KiB and down to 8 TiB. Its first `keep_bytes`, rounded down to a huge
  // page, stay once they have been touched: the system clears a huge page each time that it gives one out.
  explicit HugeArena(uint64_t bytes, uint64_t keep_bytes = 0);
  ~HugeArena();
  HugeArena(const HugeArena&) = delete;
  HugeArena& operator=(const HugeArena&) = delete;

  // A place of `bytes` (at least 1) in one piece, or null where there is none.
  std::byte* Take(uint64_t bytes);
  // Gives back what Take gave for `bytes`. False: that memory is not from here.
  bool Give(std::byte* memory, uint64_t bytes);
  // Gives back to the system what is beyond its first `keep_bytes`, once: what it was told to keep stays as it was.
  // False where something lies in it.
  bool Shrink(uint64_t keep_bytes);

 private:
  bool Map() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unmap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives back to the system what is not kept.
  void Trim(uint32_t kept_pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t pages_;
  const uint32_t kept_pages_;
  base::Mutex mutex_;
  void* mapping_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // Its first huge page's beginning.
  std::byte* begin_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // Behind the last page that may have been touched.
  uint32_t touched_ ABSL_GUARDED_BY(mutex_) = 0;
  SpaceMap free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::storage
