// SPDX-License-Identifier: Apache-2.0
// What is known of the use of blocks and snapshots, as bytes, so that recency, frequency, priority and time to live
// outlive the process. FORMAT.md ("Uses") is the specification. Says nothing of what is stored: an entry whose record
// is not there is passed over by the reader, and a record without an entry counts as new.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"

namespace kvstrata::core::format {

// Of consecutive blocks of one run that were used alike.
struct BlockUses {
  uint64_t sequence = 0;  // of the run's record
  uint64_t heat = 0;      // below 2^48
  uint16_t frequency = 0;
  uint32_t expires_at = 0;
  uint8_t first = 0;     // the first one's place in the run
  uint8_t more = 0;      // how many come after it
  uint8_t priority = 0;  // 0 normal, 1 low, 2 high

  friend bool operator==(const BlockUses&, const BlockUses&) = default;
};

struct SnapshotUses {
  uint64_t sequence = 0;
  uint64_t last_use = 0;
  uint32_t frequency = 0;

  friend bool operator==(const SnapshotUses&, const SnapshotUses&) = default;
};

// One record of kind kUses has one of these.
struct Uses {
  uint64_t tick = 0;      // uses so far
  uint64_t frontier = 0;  // heat of the hottest block that was evicted; at most `tick`
  std::vector<BlockUses> blocks;
  std::vector<SnapshotUses> snapshots;
};

inline constexpr size_t kUsesHeadBytes = 24;
inline constexpr size_t kBlockUsesBytes = 24;
inline constexpr size_t kSnapshotUsesBytes = 24;

std::vector<std::byte> EncodeUses(const Uses& uses);
// kCorrupt naming the field.
absl::StatusOr<Uses> DecodeUses(base::ByteView bytes);

}  // namespace kvstrata::core::format
