// SPDX-License-Identifier: Apache-2.0
// The block-aligned prefix trie of one namespace: which blocks are stored, under which parent, and which of them
// should go next. Owns no payload and no tokens; a node is one stored block, found by the chained key of its prefix.
//
// Memory: nodes of 64 bytes, a line of the cache each, in chunks; hash chains inside the nodes with a bucket array that
// grows by splitting one bucket at a time (lib/base/chain_index.h); and a heap of the leaves. About 67 bytes per live
// block in all, growth included, where most blocks are their parent's only child; what is rare stands beside the nodes:
// 18 bytes for each block that has siblings, 4 for every block once one may expire, pins beyond 62. At most 96 in every
// shape, without expiry. Memory is kept for reuse after an eviction.
//
// Thread rule: externally synchronised (the engine holds its lock around every call, const ones included with
// respect to writers), but for TryMatch and TryPath, which any thread may call at any time. They read shared words
// only: nodes never move nor go away, a probe of the hash that finds nothing is taken again when the writer has changed
// a chain meanwhile, and a block that is live before and after is the same block with the same ancestors (I1,
// generations).
// An empty trie may also go while others that share its EvictionOrder are at work: it leaves what they share alone.
// No I/O, no threads, no clock: time comes in as an argument.
//
// Two clocks, both the caller's. A *tick* orders uses: any counter below 2^48 (larger values count as 2^48 - 1), shared
// by all tries whose leaves are compared with each other, as is the EvictionOrder, which turns ticks into heat.
// `expires_at` and `now` are in the caller's unit of expiry (the engine: seconds); 0 means never.
//
// Invariants (Validate checks them all):
//   I1  No orphan: every live block's parent is live, or the root; depth is the parent's plus 1.
//   I2  Presence is monotone: a block is found by its key exactly while it is live, so along one chain of keys all
//       blocks up to some depth are found, and none after it.
//   I3  A parent is never colder than its child: heat(parent) >= heat(child).
//   I4  A parent never expires before its child.
//   I5  pins(block) = leases on it + children (dead ones included) with pins > 0; thus a lease pins all ancestors.
//   I6  The eviction heap holds exactly the live, unpinned leaves, coldest at the top.
//   I7  A dead block (detached while pinned) is not found, has no live child, and its slot lives until its pins
//       are 0.
//   I8  The totals (blocks, bytes, leased bytes, dead bytes) equal the sums over the nodes.
//   I9  No live block expires before next_expiry().
//   I10 The blocks of one run (consecutive blocks of a chain that lie in one record) hang on one another from its first
//       block on, without a gap: as leaves go first, what is left of a run is its beginning, and its record's bytes
//       count at its first block, which goes last.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/chain_index.h"
#include "lib/base/chunked_array.h"
#include "lib/base/hash.h"
#include "lib/base/shared_word.h"
#include "lib/trie/eviction.h"
#include "lib/trie/siblings.h"

namespace kvstrata::core::trie {

using BlockKey = base::BlockDigest;

// Names one node in one life of its slot. A reference to a block that has gone is detected by its generation; every
// call accepts it and answers "not found". Default-constructed: no node.
struct NodeRef {
  uint32_t index = UINT32_MAX;
  uint32_t generation = 0;

  bool valid() const { return index != UINT32_MAX; }
  friend bool operator==(const NodeRef&, const NodeRef&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const NodeRef& ref) {
    return H::combine(std::move(state), ref.index, ref.generation);
  }
};

// Where a block is in its run.
struct RunPlace {
  uint32_t index = 0;   // 0: the run's first block
  uint32_t blocks = 1;  // of the whole run as it was stored; at most 64

  friend bool operator==(const RunPlace&, const RunPlace&) = default;
};

// What a block of a run has of its record's bytes; the first one has what does not divide.
constexpr uint64_t RunShare(uint64_t bytes, const RunPlace& run) {
  const uint64_t share = bytes / run.blocks;
  return run.index == 0 ? bytes - share * (run.blocks - 1) : share;
}

// A copy of what the trie knows of one block.
struct BlockInfo {
  NodeRef node;
  BlockKey key;
  NodeRef parent;         // the root for a first block; no node for the root
  uint32_t depth = 0;     // number of blocks up to and including this one; 0 for the root
  uint64_t sequence = 0;  // of its run's placement in storage
  uint64_t bytes = 0;     // of the run in storage, at its first block; 0 at the others
  RunPlace run;
  uint64_t heat = 0;       // place in the order of eviction (eviction.h); plain LRU: the tick of the last use
  uint32_t frequency = 0;  // uses counted by Touch, and those known at the insert, saturating at 65535
  Priority priority = Priority::kNormal;
  uint32_t expires_at = 0;  // 0: never
  uint32_t pins = 0;        // > 0: must not lose its payload yet
  bool has_children = false;
  bool dead = false;  // detached, waiting for its last lease
};

// The keys of a token sequence's blocks, computed in order, lazily, each at most once. Kept by the caller, so that
// the writer of the same sequence need not hash again.
class KeySequence {
 public:
  // Computes the keys of the blocks from `index` on, as many as `out` has, the first one from its parent's key. Called
  // with ascending indexes, once for each block.
  using ComputeMany = std::function<void(uint64_t index, const BlockKey& parent, std::span<BlockKey> out)>;
  // The same for one block a call.
  using Compute = std::function<BlockKey(uint64_t index, const BlockKey& parent)>;

  KeySequence(const BlockKey& root, ComputeMany compute) : root_(root), compute_(std::move(compute)) {}
  KeySequence(const BlockKey& root, Compute compute)
      : KeySequence(root, [compute = std::move(compute)](uint64_t index, BlockKey parent, std::span<BlockKey> out) {
          for (BlockKey& key : out) parent = key = compute(index++, parent);
        }) {}

  const BlockKey& root() const { return root_; }
  const BlockKey& At(uint64_t index) {
    const uint64_t known = keys_.size();
    if (known <= index) {
      keys_.resize(index + 1);
      compute_(known, known == 0 ? root_ : keys_[known - 1], std::span(keys_).subspan(known));
    }
    return keys_[index];
  }
  uint64_t computed() const { return keys_.size(); }
  // As many are likely to be asked for: none is moved until there are more. Only addresses, where they are many.
  void Expect(uint64_t count) { keys_.reserve(count); }

 private:
  BlockKey root_;
  ComputeMany compute_;
  std::vector<BlockKey> keys_;
};

// The cap of a match: an engine must compute at least one token itself, so n tokens match at most
// floor((n - 1) / block_tokens) blocks; 0 for n = 0 or block_tokens = 0.
constexpr uint64_t MaxMatchBlocks(uint64_t token_count, uint64_t block_tokens) {
  return token_count == 0 || block_tokens == 0 ? 0 : (token_count - 1) / block_tokens;
}

// Number of leading tokens that are equal: the offset of the first difference, or the shorter length if there is
// none. With it the engine finds the first differing token of a prompt against the stored children of the match.
uint64_t FirstDifference(std::span<const int32_t> query, std::span<const int32_t> stored);

struct TrieOptions {
  // Most nodes at once, dead ones included, root not counted. 32-bit links allow 2^32 - 2.
  uint64_t max_blocks = UINT32_MAX - uint64_t{1};
  // Shared with the tries whose leaves compete with this one's; null: one of its own, LRU.
  std::shared_ptr<EvictionOrder> order = nullptr;
  uint64_t block_cost = 1;  // of computing one block again (BlockUse::cost)
};

// What is known of a block that is new to the trie.
struct BlockWorth {
  Priority priority = Priority::kNormal;
  uint32_t frequency = 0;  // uses before this insert, as far as anybody remembers
  // As an earlier trie had it of the block; without it, that of a use at the insert's tick.
  std::optional<uint64_t> heat = std::nullopt;
};

struct MatchResult {
  NodeRef node;         // the deepest block found, or the root
  uint64_t blocks = 0;  // its depth
};

// What stays as it is in one life of a block.
struct PathBlock {
  NodeRef node;
  uint64_t sequence = 0;
  RunPlace run;
};

struct InsertResult {
  NodeRef node;
  bool inserted = false;  // false: the same block was there already and is unchanged
};

class Trie {
 public:
  using Visitor = std::function<void(const BlockInfo&)>;  // may look into the trie, and must not change it

  static constexpr uint64_t kMaxTick = EvictionOrder::kMaxHeat;
  static constexpr uint64_t kMaxBlockBytes = (uint64_t{1} << 34) - 1;  // 16 GiB: of one record
  static constexpr uint32_t kMaxRunBlocks = 64;
  static constexpr uint32_t kMaxDepth = (uint32_t{1} << 24) - 1;
  static constexpr uint64_t kMaxSequence = (uint64_t{1} << 56) - 1;

  explicit Trie(const BlockKey& root_key, const TrieOptions& options = {});
  ~Trie();
  Trie(const Trie&) = delete;
  Trie& operator=(const Trie&) = delete;

  NodeRef root() const;
  const BlockKey& root_key() const { return root_key_; }

  // Adds a block below `parent`, as used at `tick`; ancestors that were colder get its heat, their frequencies do not
  // change. `expires_at` is cut to the parent's. Same key under the same parent: the existing block,
  // an expired one included (ExtendExpiry revives it).
  // Errors: kNotFound (field "parent": gone, dead), kNoSpace ("max_blocks": evict first), kOutOfMemory,
  // kTooLarge ("sequence", "bytes", "depth"), kInvalidState ("key": already there under another parent; "run": I10).
  absl::StatusOr<InsertResult> Insert(NodeRef parent, const BlockKey& key, uint64_t sequence, uint64_t bytes,
                                      uint64_t tick, uint32_t expires_at = 0, const BlockWorth& worth = {},
                                      const RunPlace& run = {});

  // For an empty trie that is about to get many blocks, as an index is built anew: makes room for `blocks`, as far as
  // memory allows, and keeps no order of eviction (I3, I6) until EndBulk. In between blocks are inserted and found, and
  // nothing else.
  void BeginBulk(uint64_t blocks);
  void EndBulk();
  // Brings nearer what an insert or find of `key` will look at: first the bucket, and some other keys later its chain.
  void PrefetchBucket(const BlockKey& key) const { hash_.PrefetchBucket(key.digest.lo); }
  void PrefetchChain(const BlockKey& key) const { hash_.PrefetchChain(key.digest.lo); }

  // The live block with this key; expiry is not looked at.
  std::optional<NodeRef> Find(const BlockKey& key) const;

  // The longest stored, unexpired prefix of `keys`, at most `max_blocks` long: exponential, then binary search over
  // the depth. Computes no key beyond twice the match's length (one key if the first block is absent). Every hit is
  // verified by digest, check and depth. Changes nothing: this is the peek; follow it with Touch for a use.
  MatchResult Match(KeySequence& keys, uint64_t max_blocks, uint32_t now = 0) const;
  // The same beside a writer. What was found may have gone again by now: it counts when IsLive (or a Lease) says so
  // later, without the writer, and so does what TryPath gave after it. Nothing when the writer disturbed it too often.
  std::optional<MatchResult> TryMatch(KeySequence& keys, uint64_t max_blocks, uint32_t now = 0) const;
  // The blocks from depth 1 to `match.node`, beside a writer. False where the node was seen to be gone.
  bool TryPath(const MatchResult& match, std::vector<PathBlock>* path) const;

  // A use at `tick`: the block and all its ancestors get frequency + 1 and become at least as hot as that makes them.
  // False: gone or dead.
  bool Touch(NodeRef node, uint64_t tick) { return Warm(node, tick, 1); }
  // The same without counting it as a use: who has just used the block goes on with it.
  bool Keep(NodeRef node, uint64_t tick) { return Warm(node, tick, 0); }
  // Block and ancestors have at least this priority from their next use on. False: gone or dead.
  bool RaisePriority(NodeRef node, Priority priority);
  // Lets the block and its ancestors live at least until `expires_at` (0: forever). False: gone or dead.
  bool ExtendExpiry(NodeRef node, uint32_t expires_at);

  // Pins the block and, through it, all ancestors: none is evicted, and after a detach none loses its slot until
  // the release. Leases count. The root may be leased. Errors: kNotFound (gone, dead, expired by `now`: look
  // lower and try again), kBusy (too many leases); nothing is pinned then.
  absl::Status Lease(NodeRef node, uint32_t now = 0);
  // Ends one lease. Blocks that were dead and have now lost their last pin are freed and told to `on_freed`,
  // deepest first: only now may their space be used again. Errors: kNotFound, kInvalidState (not leased).
  absl::Status Release(NodeRef node, const Visitor& on_freed = nullptr);

  // The coldest live, unpinned leaf: least heat, then least sequence. None: all is pinned, or empty.
  std::optional<NodeRef> ColdestLeaf() const;
  // Removes a leaf; returns what it was. Errors: kNotFound (gone, dead), kInvalidState (root, or has children),
  // kBusy (pinned).
  absl::StatusOr<BlockInfo> Remove(NodeRef leaf);
  // Removes a block with all descendants at once (the root: everything below it). Children come before their parents.
  // on_removed sees each; those with pins > 0 are dead from now on, and Release will tell when their space is free.
  // Removes `most` of them at most: what is left is a subtree still. Returns the number of blocks removed. Error:
  // kNotFound (gone or dead).
  absl::StatusOr<uint64_t> DetachSubtree(NodeRef node, const Visitor& on_removed = nullptr, uint64_t most = UINT64_MAX);
  // Looks at up to `max_slots` slots, going round from call to call, and detaches what has expired by `now`, with its
  // descendants; not what is pinned. Costs nothing while nothing can have expired. Returns the number of blocks
  // removed.
  uint64_t SweepExpired(uint32_t now, uint64_t max_slots, const Visitor& on_removed = nullptr);
  // The earliest time at which a sweep may find something; 0: never.
  uint32_t next_expiry() const { return next_expiry_; }

  // Live or dead; nothing when the reference is stale.
  std::optional<BlockInfo> Get(NodeRef node) const;
  // The first block of `block`'s run, itself perhaps; also for one that a visitor has just been told of.
  BlockInfo FirstOfRun(const BlockInfo& block) const;
  bool IsLive(NodeRef node) const;
  // No node for the root, or for a stale reference. A dead block still knows its parent.
  NodeRef Parent(NodeRef node) const;
  // References of the blocks from depth 1 to `node`, in this order; empty for the root and for a stale reference.
  std::vector<NodeRef> Path(NodeRef node) const;
  // Children, newest first: for (c = FirstChild(n); c.valid(); c = NextSibling(c)).
  NodeRef FirstChild(NodeRef node) const;
  NodeRef NextSibling(NodeRef node) const;

  // Tells of the live blocks among the next `count` slots from `slot` on. Where to go on; 0 at the end. From 0 to 0
  // every block is told of that is there all the while. `visit` may not call back into the trie.
  uint64_t VisitSlots(uint64_t slot, uint64_t count, const Visitor& visit) const;

  // A bit per node that its owner (the snapshot index) sets and clears: this node has snapshots.
  void SetMark(NodeRef node, bool marked);
  bool IsMarked(NodeRef node) const;

  uint64_t block_count() const { return live_count_; }    // live blocks
  uint64_t bytes() const { return live_bytes_; }          // payload bytes of live blocks
  uint64_t LeasedBytes() const { return leased_bytes_; }  // of pinned blocks, ancestors and dead ones included
  uint64_t dead_bytes() const { return dead_bytes_; }     // payload bytes of dead blocks
  uint64_t dead_count() const { return dead_count_; }
  uint64_t MemoryBytes() const;  // what the trie itself takes, this object included

  // Checks I1 to I10; the message names the invariant and the node. For tests: visits everything.
  absl::Status Validate() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  enum State : uint64_t { kFree = 0, kLive = 1, kDead = 2 };

  // 64 bytes: one line of the cache for each step of a hash chain or of a walk to the root. Shared words are what
  // TryMatch and TryPath read beside a writer. They change while the slot is free, but for the links of the hash and
  // for what shares a word with what a reader wants: flags and pins, with which the writer stores the rest anew.
  struct Extent {
    uint64_t bytes : 34;
    uint64_t depth : 24;
    uint64_t run_more : 6;  // blocks of its run after the first
  };
  struct Place {
    uint64_t sequence : 56;
    uint64_t state : 2;  // State
    uint64_t has_children : 1;
    uint64_t has_siblings : 1;  // its links are in siblings_
    uint64_t expires : 1;       // when is in expiries_
    uint64_t marked : 1;
    uint64_t priority : 2;  // Priority
  };
  struct Life {
    uint32_t generation : 20;
    uint32_t run_index : 6;
    uint32_t pins : 6;  // kPinsBeside: how many is in many_pins_
  };
  struct alignas(64) Node {
    base::SharedWord<uint64_t> digest_lo;
    base::SharedWord<uint64_t> digest_hi;
    base::SharedWord<uint64_t> check;
    base::SharedWord<Extent> extent;
    base::SharedWord<Place> place;
    uint64_t heat : 48;
    uint64_t frequency : 16;
    base::SharedWord<Life> life;
    base::SharedWord<uint32_t> hash_next;
    base::SharedWord<uint32_t> parent;  // free slot: next free slot
    uint32_t child_or_heap;             // has children: the newest; else position in the heap, or kNone

    uint64_t bytes() const { return extent.Get().bytes; }
    uint32_t depth() const { return static_cast<uint32_t>(extent.Get().depth); }
    uint32_t run_more() const { return static_cast<uint32_t>(extent.Get().run_more); }
    uint32_t run_index() const { return life.Get().run_index; }
    uint32_t generation() const { return life.Get().generation; }
    uint32_t up() const { return parent.Get(); }
    uint64_t sequence() const { return place.Get().sequence; }
    State state() const { return static_cast<State>(place.Get().state); }
    bool has_children() const { return place.Get().has_children != 0; }
    bool has_siblings() const { return place.Get().has_siblings != 0; }
    bool marked() const { return place.Get().marked != 0; }
    Priority priority() const { return static_cast<Priority>(place.Get().priority); }
    bool pinned() const { return life.Get().pins != 0; }

    // The writer's changes of one field.
    template <typename Word, typename Edit>
    static void Change(base::SharedWord<Word>* word, Edit&& edit) {
      Word value = word->Get();
      edit(value);
      word->Set(value);
    }
    void SetState(State to) {
      Change(&place, [&](Place& at) { at.state = to & 3; });
    }
    void SetHasChildren(bool has) {
      Change(&place, [&](Place& at) { at.has_children = has; });
    }
    void SetHasSiblings(bool has) {
      Change(&place, [&](Place& at) { at.has_siblings = has; });
    }
    void SetExpires(bool expires) {
      Change(&place, [&](Place& at) { at.expires = expires; });
    }
    void SetMarked(bool marked) {
      Change(&place, [&](Place& at) { at.marked = marked; });
    }
    void SetPriority(Priority priority) {
      Change(&place, [&](Place& at) { at.priority = static_cast<uint32_t>(priority) & 3; });
    }
    // All but life and links: of a block that has just got this slot.
    void Renew(const BlockKey& key, uint64_t sequence, const Extent& extent_in, Priority priority);
  };
  static_assert(sizeof(Node) == 64);

  static constexpr uint32_t kMaxPins = (uint32_t{1} << 24) - 1;
  static constexpr uint32_t kPinsBeside = 63;
  static constexpr uint32_t kMaxGeneration = (uint32_t{1} << 20) - 1;

  struct HashLinks {
    uint64_t HashOf(uint32_t index) const { return (*nodes)[index].digest_lo.Get(); }  // uniform: it is a digest
    uint32_t NextOf(uint32_t index) const { return (*nodes)[index].hash_next.Get(); }
    void SetNext(uint32_t index, uint32_t next) const { (*nodes)[index].hash_next.Set(next); }
    void Prefetch(uint32_t index) const { __builtin_prefetch(&(*nodes)[index]); }
    base::ChunkedArray<Node, 6>* nodes;
  };

  bool Exists(NodeRef ref) const;
  NodeRef RefOf(uint32_t index) const;
  BlockInfo InfoOf(uint32_t index) const;
  BlockKey KeyOf(const Node& node) const;
  uint32_t FindIndex(const BlockKey& key) const;
  enum class Probe { kAbsent, kFound, kDisturbed };
  Probe FindAtDepth(const BlockKey& key, uint64_t depth, uint32_t now, bool beside, NodeRef* found) const;
  std::optional<MatchResult> Gallop(KeySequence& keys, uint64_t max_blocks, uint32_t now, bool beside) const;
  absl::Status CheckInsert(NodeRef parent, uint64_t sequence, uint64_t bytes, const RunPlace& run) const;
  bool EnsureRoot();

  uint32_t TakeSlot();
  void FreeSlot(uint32_t index);
  bool ReserveOne(bool expires);

  // As a reader beside the writer may read it, too.
  uint32_t ExpiryOf(uint32_t index) const { return nodes_[index].place.Get().expires ? expiries_[index].Get() : 0; }
  void SetExpiry(uint32_t index, uint32_t expires_at);
  static bool HasExpired(uint32_t expires_at, uint32_t now) { return expires_at != 0 && expires_at <= now; }
  static uint32_t EarlierExpiry(uint32_t a, uint32_t b);  // 0 is never
  static absl::Status Gone(std::string_view field);
  uint32_t PinsOf(uint32_t index) const;
  void SetPins(uint32_t index, uint32_t pins);

  void LinkChild(uint32_t parent, uint32_t child);
  void UnlinkChild(uint32_t child);

  bool Warm(NodeRef node, uint64_t tick, uint32_t uses);
  uint64_t HeatOf(const Node& node, uint64_t tick) const;
  void NoteExpiry(uint32_t expires_at);

  bool Colder(uint32_t a, uint32_t b) const;
  void HeapPlace(uint32_t position, uint32_t index);
  void HeapSiftUp(uint32_t position);
  void HeapSiftDown(uint32_t position);
  void HeapUpdate(uint32_t index);  // adds, removes or reorders `index` as I6 wants it
  void HeapErase(uint32_t index);
  void HeapHandOn(uint32_t index);

  void DropNode(uint32_t index, bool is_last, const Visitor& on_removed);
  uint64_t DetachOne(uint32_t top, uint64_t most, const Visitor& on_removed);
  void Unpin(uint32_t index, const Visitor& on_freed);

  absl::Status ValidateNode(uint32_t index) const;
  absl::Status ValidateTotals() const;

  BlockKey root_key_;
  TrieOptions options_;
  base::ChunkedArray<Node, 6> nodes_;  // 64 nodes a chunk: at 1,000 blocks a half-empty one is 2.6 bytes a block
  base::ChainIndex<HashLinks> hash_{HashLinks{&nodes_}};
  Siblings siblings_;                                            // reserved for two more: a link cannot fail
  base::ChunkedArray<base::SharedWord<uint32_t>, 10> expiries_;  // by node; as long as nodes_ once one may expire
  base::ChunkedArray<uint32_t, 6> heap_;                         // reserved for leaf_count_ entries: a push cannot fail
  absl::flat_hash_map<uint32_t, uint32_t> leases_;     // leases taken on the node itself; few: one a held match
  absl::flat_hash_map<uint32_t, uint32_t> many_pins_;  // of nodes whose count is kPinsBeside
  uint64_t node_count_ = 0;                            // slots ever used, the root's included
  uint32_t heap_size_ = 0;
  uint64_t leaf_count_ = 0;  // live blocks without children: as many as the heap ever holds
  uint32_t free_head_ = kNone;
  bool in_bulk_ = false;
  uint64_t sweep_cursor_ = 1;
  uint32_t next_expiry_ = 0;   // I9; 0: never
  uint32_t round_expiry_ = 0;  // the same, of what this round of the sweep has left
  uint64_t live_count_ = 0;
  uint64_t live_bytes_ = 0;
  uint64_t leased_bytes_ = 0;
  uint64_t dead_bytes_ = 0;
  uint64_t dead_count_ = 0;
};

}  // namespace kvstrata::core::trie
