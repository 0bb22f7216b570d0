// SPDX-License-Identifier: Apache-2.0
// A token sequence with the extra keys of its positions. Owns the canonical form of extra keys: what is hashed with a
// block and stored in its record.
//
// Canonical form of the keys of positions [first, first + count), little-endian: per key u32 position - first, u32
// type, u64 size, bytes. Relative positions, since the chain of parents already says where the block is.
//
// Thread rule: a value; one thread at a time while it changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/hash.h"

namespace kvstrata::core::engine {

struct ExtraKey {
  uint64_t position = 0;
  uint32_t type = 0;
  std::string bytes;

  friend bool operator==(const ExtraKey&, const ExtraKey&) = default;
};

inline constexpr uint64_t kMaxExtraKeyBytes = 1024;
// So that a block's keys stay within what a record's head may carry: 768 * 8 * 1,040 B < 2^24 B.
inline constexpr uint64_t kMaxExtraKeysPerPosition = 8;
// 2^31 blocks of one token would still fit the trie's depth; sequences beyond 2^31 tokens are refused.
inline constexpr uint64_t kMaxTokens = uint64_t{1} << 31;

class Prompt {
 public:
  // Appends tokens, and keys whose positions are absolute, ascending and inside the whole sequence. kInvalidArgument
  // names the key; nothing is appended then.
  absl::Status Append(std::span<const int32_t> ids, std::vector<ExtraKey> keys);
  void Truncate(uint64_t length);

  std::span<const int32_t> ids() const { return ids_; }
  uint64_t size() const { return ids_.size(); }
  std::span<const int32_t> Slice(uint64_t first, uint64_t count) const {
    return std::span<const int32_t>(ids_).subspan(first, count);
  }
  std::vector<std::byte> Extra(uint64_t first, uint64_t count) const;
  bool HasExtra(uint64_t first, uint64_t count) const;
  friend bool operator==(const Prompt&, const Prompt&) = default;

 private:
  // The first one at `position` or behind it.
  std::vector<ExtraKey>::const_iterator KeyFrom(uint64_t position) const;

  std::vector<int32_t> ids_;
  std::vector<ExtraKey> keys_;  // ascending positions
};

// The digest of the tokens [boundary, position) after the block whose key is `boundary_key`; zero at the boundary
// itself, where there are none.
base::Digest128 TailOf(const Prompt& prompt, const base::BlockDigest& boundary_key, uint64_t boundary,
                       uint64_t position);

}  // namespace kvstrata::core::engine
