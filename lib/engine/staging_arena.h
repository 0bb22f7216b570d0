// SPDX-License-Identifier: Apache-2.0
// Where staging memory comes from when the caller gives no allocator: one stretch of huge pages, by advice, that large
// buffers share. A drive reads into 2 MiB pages two to three times as fast as into 4 KiB pages on the machines measured
// (lib/storage/segment/bounce_pool.h), and a buffer of one record is far smaller than such a page.
//
// Invariants:
//   I1. It holds memory only while a buffer lives in it (huge_arena.h).
//   I2. What is in it never exceeds its size; what finds no room there, and what is small, comes from operator new.
//   I3. Buffers in it begin at a page's boundary, and no page of 4 KiB belongs to two of them.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/engine/staging.h"
#include "lib/storage/huge_arena.h"

namespace kvstrata::core::engine {

class StagingArena final : public Allocator {
 public:
  // What one restore reads into. Stays while nothing lies in it: to have it cleared anew took a restore of 230 MB a
  // twentieth of its time.
  static constexpr uint64_t kKeptBytes = 16u << 20;

  // Room for buffers of `bytes` together.
  explicit StagingArena(uint64_t bytes);

  std::byte* Allocate(uint64_t bytes, uint64_t alignment) override;
  void Release(std::byte* memory, uint64_t bytes, uint64_t alignment) override;

 private:
  storage::HugeArena arena_;
};

}  // namespace kvstrata::core::engine
