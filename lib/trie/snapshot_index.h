// SPDX-License-Identifier: Apache-2.0
// The snapshots of one namespace: at which positions state is stored, and which should go next. Owns no payload. A
// snapshot hangs on the node of its last complete block (the root if there is none) and may lie up to
// block_tokens - 1 tokens after that block's end; it then carries the digest of those tail tokens.
//
// Snapshots have their own bytes, recency and leases, apart from the blocks': window churn cannot push out rows. But
// they need their rows, so a snapshot never outlives its node: whoever removes nodes calls RemoveAt for each, from the
// trie's on_removed.
//
// Thread rule: externally synchronised, under the same lock as its trie.
// Ticks are the trie's.
//
// Invariants (Validate checks them all):
//   I1  A live snapshot's node is live in the trie, or the root, and marked there.
//   I2  floor(position / block_tokens) is the node's depth; no two live snapshots share node, position and tail.
//   I3  A node's snapshots are linked newest position first.
//   I4  The eviction order holds exactly the live snapshots without leases.
//   I5  A dead snapshot (removed while leased) is not found; its slot lives until its last release.
//   I6  The totals equal the sums over the snapshots.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/hash.h"
#include "lib/trie/trie.h"

namespace kvstrata::core::trie {

// As NodeRef: names one snapshot in one life of its slot.
struct SnapshotRef {
  uint32_t index = UINT32_MAX;
  uint32_t generation = 0;

  bool valid() const { return index != UINT32_MAX; }
  friend bool operator==(const SnapshotRef&, const SnapshotRef&) = default;
};

struct SnapshotInfo {
  SnapshotRef snapshot;
  NodeRef node;                 // of the last complete block at or before the position; the root if there is none
  uint64_t position = 0;        // tokens
  base::Digest128 tail_digest;  // base::TailDigest of the tokens between the node's end and the position; 0 if none
  uint64_t sequence = 0;        // of its placement in storage
  uint64_t bytes = 0;
  uint64_t last_use = 0;
  uint32_t frequency = 0;  // saturating
  uint32_t leases = 0;
  bool dead = false;  // removed, waiting for its last lease
};

struct SnapshotInsertResult {
  SnapshotRef snapshot;
  bool inserted = false;  // false: the same snapshot was there already and is unchanged
};

class SnapshotIndex {
 public:
  using Visitor = std::function<void(const SnapshotInfo&)>;  // must not call back into index or trie

  // `trie` must outlive the index. block_tokens > 0.
  SnapshotIndex(Trie* trie, uint64_t block_tokens) : trie_(trie), block_tokens_(block_tokens) {}

  // At a block boundary there is no tail, and tail_digest is ignored.
  // Errors: kNotFound ("node": gone or dead), kInvalidArgument ("position": not within the node's next block),
  // kTooLarge ("snapshots": 2^32 - 2 at most).
  absl::StatusOr<SnapshotInsertResult> Add(NodeRef node, uint64_t position, const base::Digest128& tail_digest,
                                           uint64_t sequence, uint64_t bytes, uint64_t tick,
                                           uint32_t frequency = 0);

  // The snapshots on the path from the root to `deepest` with position <= limit, newest position first (then newest
  // sequence), at most max_count. Those inside a block (position % block_tokens != 0) are given only if their tail
  // digest equals tail_of(position), the caller's own; without tail_of they are candidates, for the caller to compare.
  // tail_of is called at most once per position and node.
  using TailOf = std::function<base::Digest128(NodeRef boundary, uint64_t position)>;
  std::vector<SnapshotInfo> FindOnPath(NodeRef deepest, uint64_t limit, uint64_t max_count = UINT64_MAX,
                                       const TailOf& tail_of = nullptr) const;

  bool Touch(SnapshotRef snapshot, uint64_t tick);

  // A lease on a snapshot pins its state only; lease its node too. Errors: kNotFound (gone or dead).
  absl::Status Lease(SnapshotRef snapshot);
  // Errors: kNotFound, kInvalidState (not leased). on_freed is told if the snapshot was dead and this was its last
  // lease: only now may its space be used again.
  absl::Status Release(SnapshotRef snapshot, const Visitor& on_freed = nullptr);

  // Least last_use, then least sequence.
  std::optional<SnapshotRef> ColdestUnleased() const;
  // Errors: kNotFound (gone or dead), kBusy (leased).
  absl::StatusOr<SnapshotInfo> Remove(SnapshotRef snapshot);
  // Removes the snapshot now, leased or not (a read found it corrupt); a leased one is dead until its last release.
  absl::StatusOr<SnapshotInfo> Detach(SnapshotRef snapshot);
  // Detaches all snapshots of a node that is being removed; may be called from the trie's on_removed.
  uint64_t RemoveAt(NodeRef node, const Visitor& on_removed = nullptr);

  std::optional<SnapshotInfo> Get(SnapshotRef snapshot) const;  // live or dead
  // As Trie::VisitSlots.
  uint64_t VisitSlots(uint64_t slot, uint64_t count, const Visitor& visit) const;

  uint64_t count() const { return live_count_; }
  uint64_t bytes() const { return live_bytes_; }
  uint64_t LeasedBytes() const { return leased_bytes_; }  // dead ones included
  uint64_t dead_bytes() const { return dead_bytes_; }
  uint64_t MemoryBytes() const;

  absl::Status Validate() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  enum class State : uint8_t { kFree, kLive, kDead };

  struct Entry {
    base::Digest128 tail_digest;
    uint64_t position;
    uint64_t sequence;
    uint64_t bytes;
    uint64_t last_use;
    NodeRef node;
    uint32_t generation;
    uint32_t frequency;
    uint32_t leases;
    uint32_t next;  // at the same node, older position; free slot: next free slot
    State state;
  };

  // Eviction order: coldest first; the sequence breaks ties, the index keeps entries apart.
  struct Order {
    uint64_t last_use;
    uint64_t sequence;
    uint32_t index;
    friend auto operator<=>(const Order&, const Order&) = default;
  };

  bool Exists(SnapshotRef ref) const;
  bool IsLive(SnapshotRef ref) const;
  SnapshotInfo InfoOf(uint32_t index) const;
  Order OrderOf(uint32_t index) const;
  uint32_t TakeSlot();
  void FreeSlot(uint32_t index);
  uint32_t FindEntry(NodeRef node, uint64_t position, const base::Digest128& tail_digest) const;
  bool NewerPosition(uint32_t a, uint32_t b) const;
  void Link(uint32_t index);
  void Unlink(uint32_t index);
  void CollectAt(NodeRef node, uint64_t limit, uint64_t max_count, const TailOf& tail_of,
                 std::vector<SnapshotInfo>* found) const;
  SnapshotInfo Drop(uint32_t index);
  absl::Status ValidateEntry(uint32_t index) const;

  Trie* trie_;
  uint64_t block_tokens_;
  std::vector<Entry> entries_;
  absl::flat_hash_map<NodeRef, uint32_t> heads_;
  absl::btree_set<Order> order_;
  uint32_t free_head_ = kNone;
  uint64_t live_count_ = 0;
  uint64_t live_bytes_ = 0;
  uint64_t leased_bytes_ = 0;
  uint64_t dead_bytes_ = 0;
};

}  // namespace kvstrata::core::trie
