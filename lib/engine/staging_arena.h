// SPDX-License-Identifier: Apache-2.0
// Where staging memory comes from when the caller gives no allocator: one stretch of huge pages, by advice, that large
// buffers share. A drive reads into 2 MiB pages two to three times as fast as into 4 KiB pages on the machines measured
// (lib/storage/segment/bounce_pool.h), and a buffer of one record is far smaller than such a page.
//
// Invariants:
//   I1. While no buffer lives in it, it holds what was touched until Settle takes it back, then kKeptBytes at most.
//   I2. What is in it never exceeds its size; what finds no room there, and what is small, comes from operator new.
//   I3. Buffers in it begin at a page's boundary, and no page of 4 KiB belongs to two of them.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/allocator.h"
#include "lib/storage/huge_arena.h"

namespace kvstrata::core::engine {

class StagingArena final : public base::Allocator {
 public:
  // What one restore reads into. Stays for good: to have it cleared anew took a restore of 230 MB a twentieth of its
  // time. What a writer copies to is more and stays as long as there is one that writes: that took a third of a put.
  static constexpr uint64_t kKeptBytes = 16u << 20;

  // Room for buffers of `bytes` together.
  explicit StagingArena(uint64_t bytes);

  std::byte* Allocate(uint64_t bytes, uint64_t alignment) override;
  void Release(std::byte* memory, uint64_t bytes, uint64_t alignment) override;

  // There is something that Settle is to look after.
  bool unsettled() const { return unsettled_; }
  // Gives back what is not kept, if nothing has been allocated since the last call and no buffer lives. To be called
  // now and then while there is something to settle.
  void Settle();

 private:
  storage::HugeArena arena_;
  std::atomic<bool> used_{false};  // since the last call of Settle
  std::atomic<bool> unsettled_{false};
};

}  // namespace kvstrata::core::engine
