// SPDX-License-Identifier: Apache-2.0
// One record on its way into the storage, from the copy of its rows to its entry in the index: a run of blocks or a
// snapshot.
//
// Thread rule: filled by one writer before it is submitted; after that guarded by the cache's lock.
//
// Invariants:
//   I1  Exactly one of "stored" and "failed" happens, after the put's I/O has ended and its parent put is resolved.
//   I2  A put enters the index after its parent has; if the parent fails, so does it. Thus no orphan is ever visible.
//   I3  A block is in at most one put on its way.
#pragma once

#include <memory>
#include <vector>

#include "lib/base/hash.h"
#include "lib/base/status.h"
#include "lib/engine/cache.h"
#include "lib/engine/staging.h"
#include "lib/format/record.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::engine {

// Of the budget: the most that one run takes. What is evicted at a time is then a small part of it, and so is what a
// run keeps that has lost all but its first block.
inline constexpr uint64_t kMaxRunShare = 64;

// What became of a writer's records; shared with its puts, guarded by the cache's lock.
struct WriterProgress {
  uint64_t pending = 0;  // puts
  uint64_t blocks_stored = 0, blocks_deduplicated = 0, blocks_dropped = 0;
  uint64_t snapshots_stored = 0, snapshots_deduplicated = 0, snapshots_dropped = 0;
  uint64_t stored_bytes = 0;
  base::Code drop_reason = base::Code::kOk;
};

struct Put {
  std::shared_ptr<Cache> cache;
  std::shared_ptr<NameSpace> name_space;
  std::shared_ptr<WriterProgress> progress;
  format::RecordIdentity identity;
  std::vector<base::BlockDigest> more;  // of a run: the keys of its blocks after the first
  storage::Key key;
  RecordClass record_class = RecordClass::kRows;
  bool coded = false;            // some slice is
  uint64_t compressed_from = 0;  // bytes of the slices that were to be compressed
  uint64_t compressed_to = 0;    // that these take
  uint64_t packed_slices = 0;
  uint64_t off_grid_slices = 0;  // that could not be packed
  uint64_t stored_bytes = 0;
  trie::Priority priority = trie::Priority::kNormal;
  uint32_t expires_at = 0;  // 0: never
  // The put that has the parent block (of a snapshot: its boundary block), when that was on its way too; else the block
  // is pinned in the index until this put is resolved.
  std::shared_ptr<Put> parent;
  trie::NodeRef pinned;

  std::vector<std::byte> meta;
  StagingBuffer staging;
  base::ByteView record;  // in it: head and rows

  // How often the storage had no room for it.
  uint32_t retries = 0;
  bool io_done = false;
  absl::Status io_status;
  bool resolved = false;
  bool stored = false;
  std::vector<std::shared_ptr<Put>> waiting;  // for this put to be resolved

  bool is_snapshot() const { return record_class == RecordClass::kSnapshot; }
  uint64_t blocks() const { return is_snapshot() ? 0 : 1 + more.size(); }
  const base::BlockDigest& BlockKey(uint64_t i) const { return i == 0 ? identity.key : more[i - 1]; }
  // The block that it hangs on.
  const base::BlockDigest& boundary() const { return is_snapshot() ? identity.key : identity.parent; }
};

}  // namespace kvstrata::core::engine
