// SPDX-License-Identifier: Apache-2.0
// Counters and gauges of one cache; the C ABI documents each (kvstrata_stats has the same members in the same order).
//
// Thread rule: a value; the cache keeps its own under its lock.
#pragma once

#include <array>
#include <cstdint>

namespace kvstrata::core::engine {

inline constexpr size_t kReasonCount = 16;

struct Stats {
  uint64_t lookups = 0, hits = 0, misses = 0;
  uint64_t requested_tokens = 0, matched_tokens = 0, usable_tokens = 0, replayed_tokens = 0;
  std::array<uint64_t, kReasonCount> reasons{};
  uint64_t unleased_matches = 0;
  uint64_t peeks = 0;
  uint64_t restores = 0, restores_complete = 0, restores_shortened = 0, restores_cancelled = 0, restores_failed = 0;
  uint64_t restored_bytes = 0;
  uint64_t reads_corrupt = 0, reads_absent = 0, reads_foreign = 0, reads_stale = 0, reads_failed = 0, reads_timeout = 0;
  uint64_t blocks_stored = 0, blocks_deduplicated = 0, blocks_dropped = 0, snapshots_stored = 0, snapshots_dropped = 0;
  uint64_t blocks_evicted = 0, snapshots_evicted = 0, blocks_removed = 0, snapshots_removed = 0;
  uint64_t bytes_in = 0, bytes_out = 0;
  uint64_t held_bytes = 0, held_row_bytes = 0, held_snapshot_bytes = 0, capacity_bytes = 0, snapshot_capacity_bytes = 0;
  uint64_t held_blocks = 0, held_snapshots = 0;
  uint64_t leased_bytes = 0, lease_capacity_bytes = 0;
  uint64_t staging_bytes = 0, staging_capacity_bytes = 0, staging_peak_bytes = 0, stuck_staging_bytes = 0;
  uint64_t index_bytes = 0;
  uint64_t namespaces = 0;
  uint64_t recovered_blocks = 0, recovered_snapshots = 0;
  uint64_t skipped_corrupt = 0, skipped_orphans = 0, skipped_foreign = 0, skipped_too_new = 0;
  uint64_t foreign_layout_bytes = 0;
  uint64_t inexact_dropped = 0;
  uint64_t blocks_expired = 0, blocks_not_admitted = 0;
  uint64_t unfreed_bytes = 0;  // of blocks that are gone, in records that are kept for the blocks before them
  uint64_t restored_memory_bytes = 0;
  uint64_t memory_capacity_bytes = 0, memory_bytes = 0, memory_dirty_bytes = 0;
  uint64_t pinned_bytes = 0, pin_capacity_bytes = 0;
  uint64_t memory_gets = 0, memory_get_bytes = 0, storage_gets = 0, storage_get_bytes = 0;
  uint64_t memory_promotions = 0, memory_promoted_bytes = 0, memory_evictions = 0, memory_evicted_bytes = 0;
  uint64_t memory_bypasses = 0, memory_lost = 0;
  uint64_t compressed_from_bytes = 0, compressed_to_bytes = 0;
  uint64_t packed_slices = 0, off_grid_slices = 0;
  uint64_t unreadable_blocks = 0;
};

}  // namespace kvstrata::core::engine
