// SPDX-License-Identifier: Apache-2.0
// The memory of a tier: records of any size under one hard bound, in huge pages or in memory of the caller's.
//
// Invariants:
//   I1. What all living records take never exceeds the capacity, whoever holds them: bytes are counted before memory is
//       taken, and given back when the last holder lets go.
//
// Thread rule: all functions on any thread at once. A record's bytes are written by the one that made it, before others
// see it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/allocator.h"
#include "lib/storage/huge_arena.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

class TierMemory;

class TierRecord final : public HeldRecord {
 public:
  TierRecord(std::shared_ptr<TierMemory> memory, std::byte* payload, uint64_t bytes, base::ByteView meta);
  ~TierRecord() override;

  base::ByteView payload() const override { return {payload_, bytes_}; }
  base::MutableBytes room() { return {payload_, bytes_}; }
  const base::ByteView* part() const { return &part_; }  // the payload as one part of a put
  base::ByteView meta() const { return meta_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<TierMemory> memory_;
  std::byte* const payload_;
  const uint64_t bytes_;
  const std::vector<std::byte> meta_;
  const base::ByteView part_;
};

class TierMemory : public std::enable_shared_from_this<TierMemory> {
 public:
  // Without an allocator: huge pages, taken from the system where they are touched.
  TierMemory(uint64_t capacity_bytes, std::shared_ptr<base::Allocator> allocator);

  // A record with room for `bytes` of payload; null where there is none, in bytes or in one piece.
  std::shared_ptr<TierRecord> Make(uint64_t bytes, base::ByteView meta);
  // What such a record takes of the capacity. UINT64_MAX when that does not fit in 64 bits.
  static uint64_t Cost(uint64_t bytes, uint64_t meta_bytes);

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }

 private:
  friend class TierRecord;
  std::byte* Take(uint64_t bytes);
  void Give(std::byte* memory, uint64_t bytes);
  bool Count(uint64_t cost);

  const uint64_t capacity_bytes_;
  const std::shared_ptr<base::Allocator> allocator_;
  std::optional<HugeArena> arena_;
  std::atomic<uint64_t> used_bytes_{0};
};

}  // namespace kvstrata::core::storage
