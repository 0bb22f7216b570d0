// SPDX-License-Identifier: Apache-2.0
// The checks of a batch and the cursor encoding that every backend of ours shares.
//
// Thread rule: pure functions.
#pragma once

#include <optional>

#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

// The sum of a put's parts, or nothing when it does not fit in 64 bits.
std::optional<uint64_t> PayloadBytes(const Put& put);

// Refuses a batch that could never be accepted: too many requests, a missing completion, a meta or payload above its
// limit, a get whose range does not fit in 64 bits, a put to a read-only store.
absl::Status CheckBatch(std::span<const Request> requests, const Capabilities& capabilities);

// kCorrupt when [offset, offset + size) does not lie within the payload.
absl::Status CheckRange(uint64_t offset, uint64_t size, uint64_t payload_bytes);

// A cursor that goes on after `key` within `group` (a shard, or 0).
Cursor CursorAfter(uint32_t group, const Key& key);
struct Position {
  uint32_t group = 0;
  // Nothing: from the group's beginning.
  std::optional<Key> after;
};
// kInvalidArgument for a cursor that CursorAfter or CursorAt did not make.
absl::StatusOr<Position> PositionOf(const Cursor& cursor);
Cursor CursorAt(uint32_t group);

}  // namespace kvstrata::core::storage
