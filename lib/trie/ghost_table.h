// SPDX-License-Identifier: Apache-2.0
// Which blocks were there, or were asked for, not long ago: keys that have no block, with the uses they had. For
// admission on second sight, and so that a block that comes back is not taken for a new one (the ghost entries of 2Q,
// Johnson and Shasha 1994).
//
// Memory is bounded and taken at once: sets of 8 entries of 8 bytes, 48 bits of a key and 16 of a count. A set drops
// its oldest entry for a new one. Two keys are taken for each other once in 2^45 look-ups: it costs a needless put, or
// a block that stays too long.
//
// Thread rule: externally synchronised.
// Invariants: I1 within a set, entries stand newest first and no tag twice. I2 an entry of 0 is empty, and so are those
// after it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/hash.h"

namespace kvstrata::core::trie {

class GhostTable {
 public:
  static constexpr uint64_t kWays = 8;
  static constexpr uint64_t kSetBytes = kWays * sizeof(uint64_t);

  // As many whole sets as `bytes` hold; with less than one set nothing is ever remembered.
  explicit GhostTable(uint64_t bytes) : sets_(bytes / kSetBytes) {}

  // The newest entry of its set is now this key, with `uses` (counted to 65535).
  void Remember(const base::BlockDigest& key, uint32_t uses);
  // The uses it was remembered with, or nothing.
  std::optional<uint32_t> Recall(const base::BlockDigest& key) const;

  uint64_t capacity() const { return sets_.size() * kWays; }
  uint64_t MemoryBytes() const { return sets_.size() * kSetBytes; }

 private:
  using Set = std::array<uint64_t, kWays>;

  static uint64_t TagOf(const base::BlockDigest& key);

  std::vector<Set> sets_;
};

}  // namespace kvstrata::core::trie
