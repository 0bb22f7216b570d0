// SPDX-License-Identifier: Apache-2.0
#include "lib/trie/trie.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::trie {
namespace {

// How often a probe is taken again before the reader gives up: some microseconds, where a change of a chain takes a
// tenth of one. Who changes it has been put to sleep by then.
constexpr int kMaxProbes = 4096;
// Blocks: who has so many of a prompt has often all of it. A power of two, as gallops probe.
constexpr uint64_t kLongMatch = 64;

uint32_t Rank(Priority priority) { return priority == Priority::kLow ? 0 : priority == Priority::kNormal ? 1 : 2; }

absl::Status OutOfMemory() { return base::MakeStatus(base::Code::kOutOfMemory, "trie", "no memory for a node"); }

}  // namespace

uint32_t Trie::EarlierExpiry(uint32_t a, uint32_t b) {
  if (a == 0) return b;
  if (b == 0) return a;
  return std::min(a, b);
}

absl::Status Trie::Gone(std::string_view field) {
  return base::MakeStatus(base::Code::kNotFound, field, "the block has been removed");
}

uint64_t FirstDifference(std::span<const int32_t> query, std::span<const int32_t> stored) {
  const size_t shorter = std::min(query.size(), stored.size());
  return static_cast<uint64_t>(std::mismatch(query.begin(), query.begin() + shorter, stored.begin()).first -
                               query.begin());
}

Trie::Trie(const BlockKey& root_key, const TrieOptions& options) : root_key_(root_key), options_(options) {
  // Index 0 is the root's and 2^32 - 1 means none.
  options_.max_blocks = std::min<uint64_t>(options_.max_blocks, kNone - 1);
  if (options_.order == nullptr) options_.order = std::make_shared<EvictionOrder>();
  EnsureRoot();  // if memory is short now, Insert tries again; until then every call finds an empty trie
}

Trie::~Trie() {
  if (live_count_ > 0) options_.order->Remove(options_.block_cost * live_count_, live_bytes_);
}

void Trie::Node::Renew(const BlockKey& key, uint64_t sequence, const Extent& extent_in, Priority priority) {
  digest_lo.Set(key.digest.lo);
  digest_hi.Set(key.digest.hi);
  check.Set(key.check);
  extent.Set(extent_in);
  Place fresh{};
  fresh.sequence = sequence & kMaxSequence;
  fresh.state = kLive;
  fresh.priority = static_cast<uint32_t>(priority) & 3;
  place.Set(fresh);
  heat = 0;
  frequency = 0;
}

bool Trie::EnsureRoot() {
  if (node_count_ != 0) return true;
  if (!nodes_.Reserve(1) || !hash_.Prepare()) return false;
  Node& root = nodes_[0];
  root.Renew(root_key_, 0, Extent{}, Priority::kNormal);
  root.life.Set({1, 0, 0});
  root.parent.Set(kNone);
  root.hash_next.Set(kNone);
  root.child_or_heap = kNone;
  node_count_ = 1;
  return true;
}

NodeRef Trie::root() const { return {0, 1}; }

// ---- Slots ----

bool Trie::Exists(NodeRef ref) const {
  return ref.index < node_count_ && nodes_[ref.index].state() != kFree &&
         nodes_[ref.index].generation() == ref.generation;
}

bool Trie::IsLive(NodeRef node) const { return Exists(node) && nodes_[node.index].state() == kLive; }

NodeRef Trie::RefOf(uint32_t index) const {
  return index == kNone ? NodeRef{} : NodeRef{index, nodes_[index].generation()};
}

BlockKey Trie::KeyOf(const Node& node) const {
  return {{node.digest_lo.Get(), node.digest_hi.Get()}, node.check.Get()};
}

BlockInfo Trie::InfoOf(uint32_t index) const {
  const Node& node = nodes_[index];
  BlockInfo info;
  info.node = RefOf(index);
  info.key = KeyOf(node);
  info.parent = RefOf(node.up());
  info.depth = node.depth();
  info.sequence = node.sequence();
  info.bytes = node.bytes();
  info.run = {node.run_index(), node.run_more() + 1};
  info.heat = node.heat;
  info.frequency = static_cast<uint32_t>(node.frequency);
  info.priority = node.priority();
  info.expires_at = ExpiryOf(index);
  info.pins = PinsOf(index);
  info.has_children = node.has_children();
  info.dead = node.state() == kDead;
  return info;
}

// A free slot with a generation of its own, or kNone when memory runs out.
uint32_t Trie::TakeSlot() {
  if (free_head_ != kNone) {
    const uint32_t index = free_head_;
    free_head_ = nodes_[index].up();
    return index;
  }
  if (node_count_ >= kNone || !nodes_.Reserve(node_count_ + 1)) return kNone;
  const auto index = static_cast<uint32_t>(node_count_++);
  nodes_[index].life.Set({1, 0, 0});
  return index;
}

void Trie::FreeSlot(uint32_t index) {
  Node& node = nodes_[index];
  node.SetState(kFree);
  // A slot whose generations are used up is left out for good: a stale reference must never fit again.
  if (node.generation() == kMaxGeneration) return;
  node.life.Set({(node.generation() + 1) & kMaxGeneration, 0, 0});
  node.parent.Set(free_head_);
  free_head_ = index;
}

// Room for one more block: what is done with it afterwards cannot fail.
bool Trie::ReserveOne(bool expires) {
  return heap_.Reserve(leaf_count_ + 1) && siblings_.Reserve(2) && (!expires || expiries_.Reserve(node_count_ + 1));
}

void Trie::SetExpiry(uint32_t index, uint32_t expires_at) {
  if (expires_at != 0) expiries_[index].Set(expires_at);
  nodes_[index].SetExpires(expires_at != 0);
}

uint32_t Trie::PinsOf(uint32_t index) const {
  const uint32_t pins = nodes_[index].life.Get().pins;
  return pins < kPinsBeside ? pins : many_pins_.at(index);
}

// Beside the node only when the count has come from kPinsBeside - 1: Lease has made room for it.
void Trie::SetPins(uint32_t index, uint32_t pins) {
  if (pins >= kPinsBeside) {
    many_pins_[index] = pins;
  } else if (nodes_[index].life.Get().pins == kPinsBeside) {
    many_pins_.erase(index);
  }
  Node::Change(&nodes_[index].life, [&](Life& at) { at.pins = std::min(pins, kPinsBeside) & kPinsBeside; });
}

// ---- Insert, find, match ----

absl::Status Trie::CheckInsert(NodeRef parent, uint64_t sequence, uint64_t bytes, const RunPlace& run) const {
  if (!IsLive(parent)) return Gone("parent");
  if (sequence > kMaxSequence) {
    return base::MakeStatus(base::Code::kTooLarge, "sequence", std::to_string(sequence) + " is above 2^56 - 1");
  }
  if (bytes > kMaxBlockBytes) {
    return base::MakeStatus(base::Code::kTooLarge, "bytes",
                            "a record of " + std::to_string(bytes) + " bytes is above the limit of 2^34 - 1");
  }
  if (nodes_[parent.index].depth() >= kMaxDepth) {
    return base::MakeStatus(base::Code::kTooLarge, "depth", "a chain has at most 2^24 - 1 blocks");
  }
  const Node& above = nodes_[parent.index];
  const bool continues = above.sequence() == sequence && above.run_index() + uint64_t{1} == run.index &&
                         above.run_more() + uint64_t{1} == run.blocks && parent.index != 0;
  if (run.blocks == 0 || run.blocks > kMaxRunBlocks || run.index >= run.blocks || (run.index > 0 && !continues)) {
    return base::MakeStatus(base::Code::kInvalidState, "run", "does not go on from the parent's");
  }
  return absl::OkStatus();
}

absl::StatusOr<InsertResult> Trie::Insert(NodeRef parent, const BlockKey& key, uint64_t sequence, uint64_t bytes,
                                          uint64_t tick, uint32_t expires_at, const BlockWorth& worth,
                                          const RunPlace& run) {
  if (!EnsureRoot()) return OutOfMemory();
  if (absl::Status status = CheckInsert(parent, sequence, bytes, run); !status.ok()) return status;
  if (const uint32_t existing = FindIndex(key); existing != kNone) {
    if (nodes_[existing].up() == parent.index) return InsertResult{RefOf(existing), false};
    return base::MakeStatus(base::Code::kInvalidState, "key", "already stored under another parent");
  }
  if (live_count_ + dead_count_ >= options_.max_blocks) {
    return base::MakeStatus(base::Code::kNoSpace, "max_blocks",
                            "the index is full with " + std::to_string(options_.max_blocks) + " blocks");
  }
  const uint32_t expiry = EarlierExpiry(expires_at, ExpiryOf(parent.index));
  if (!ReserveOne(expiry != 0)) return OutOfMemory();
  const uint32_t index = TakeSlot();
  if (index == kNone) return OutOfMemory();

  Node& node = nodes_[index];
  node.Renew(key, sequence,
             {bytes & kMaxBlockBytes, (nodes_[parent.index].depth() + uint64_t{1}) & kMaxDepth,
              (run.blocks - 1) & (kMaxRunBlocks - 1)},
             worth.priority);
  node.life.Set({node.generation() & kMaxGeneration, run.index & (kMaxRunBlocks - 1), 0});
  node.frequency = std::min(worth.frequency, uint32_t{UINT16_MAX}) & UINT16_MAX;
  SetExpiry(index, expiry);
  node.child_or_heap = kNone;
  ++live_count_;
  live_bytes_ += bytes;
  options_.order->Add(options_.block_cost, bytes);
  node.heat = (worth.heat.has_value() ? std::min(*worth.heat, kMaxTick) : HeatOf(node, tick)) & kMaxTick;
  NoteExpiry(expiry);
  LinkChild(parent.index, index);
  HeapUpdate(index);
  hash_.Insert(index, live_count_);  // last: from here on it is found
  if (in_bulk_) return InsertResult{RefOf(index), true};
  // I3. Ancestors are at least as warm as their descendants, so the first warm one ends the walk.
  for (uint32_t i = parent.index; i != kNone && nodes_[i].heat < node.heat; i = nodes_[i].up()) {
    nodes_[i].heat = node.heat;
  }
  return InsertResult{RefOf(index), true};
}

void Trie::BeginBulk(uint64_t blocks) {
  if (!EnsureRoot() || node_count_ != 1) return;
  blocks = std::min(blocks, options_.max_blocks);
  in_bulk_ = true;
  nodes_.Expect(blocks + 1);
  hash_.BeginBulk(blocks);
}

uint32_t Trie::FindIndex(const BlockKey& key) const {
  if (in_bulk_) {
    // Most blocks come right behind their parents; and most that come are new.
    const auto newest = static_cast<uint32_t>(node_count_ - 1);
    if (newest != 0 && KeyOf(nodes_[newest]) == key) return newest;
    if (!hash_.MayHaveMet(key.digest.lo)) return kNone;
  }
  return hash_.Find(key.digest.lo, [&](uint32_t at) { return KeyOf(nodes_[at]) == key; });
}

std::optional<NodeRef> Trie::Find(const BlockKey& key) const {
  const uint32_t index = FindIndex(key);
  if (index == kNone) return std::nullopt;
  return RefOf(index);
}

Trie::Probe Trie::FindAtDepth(const BlockKey& key, uint64_t depth, uint32_t now, bool beside, NodeRef* found) const {
  uint32_t generation = 0;
  bool fits = false;
  const auto same = [&](uint32_t at) {
    const Node& node = nodes_[at];
    generation = node.generation();
    // Beside a writer the slot may get another block just now; then its generation is another one first.
    if (KeyOf(node) != key || node.generation() != generation) return false;
    fits = node.depth() == depth && !HasExpired(ExpiryOf(at), now);
    return true;
  };
  uint32_t index = kNone;
  if (!beside) {
    index = hash_.Find(key.digest.lo, same);
  } else {
    int probes = 0;
    while (!hash_.TryFind(key.digest.lo, same, &index)) {
      if (++probes == kMaxProbes) return Probe::kDisturbed;
    }
  }
  if (index == kNone || !fits) return Probe::kAbsent;
  *found = {index, generation};
  return Probe::kFound;
}

std::optional<MatchResult> Trie::Gallop(KeySequence& keys, uint64_t max_blocks, uint32_t now, bool beside) const {
  MatchResult result{root(), 0};
  max_blocks = std::min<uint64_t>(max_blocks, kMaxDepth);
  // Present up to result.blocks, absent from `absent` on (I2, I4).
  uint64_t absent = max_blocks + 1;
  bool galloping = true;
  while (absent - result.blocks > 1) {
    uint64_t probe = result.blocks + (absent - result.blocks) / 2;
    if (galloping) probe = std::min(max_blocks, result.blocks == 0 ? 1 : 2 * result.blocks);
    const Probe found = FindAtDepth(keys.At(probe - 1), probe, now, beside, &result.node);
    if (found == Probe::kDisturbed) return std::nullopt;
    if (found == Probe::kFound) {
      result.blocks = probe;
      // Keys that double again and again would be most of a long match's page faults.
      if (probe == kLongMatch) keys.Expect(max_blocks);
    } else {
      absent = probe;
      galloping = false;
    }
  }
  return result;
}

MatchResult Trie::Match(KeySequence& keys, uint64_t max_blocks, uint32_t now) const {
  return *Gallop(keys, max_blocks, now, false);
}

std::optional<MatchResult> Trie::TryMatch(KeySequence& keys, uint64_t max_blocks, uint32_t now) const {
  return Gallop(keys, max_blocks, now, true);
}

bool Trie::TryPath(const MatchResult& match, std::vector<PathBlock>* path) const {
  path->resize(match.blocks);
  uint32_t i = match.node.index;
  for (size_t k = path->size(); k > 0; --k) {
    if (i == kNone || i == 0) return false;
    const Node& node = nodes_[i];
    (*path)[k - 1] = {{i, node.generation()}, node.sequence(), {node.run_index(), node.run_more() + 1}};
    i = node.up();
  }
  return i == 0;
}

// ---- Use and expiry ----

// The insert counts as the first use. A run's first block has the bytes of all; the others are worth what blocks of
// this trie are worth in the mean, since all are of one layout.
uint64_t Trie::HeatOf(const Node& node, uint64_t tick) const {
  const bool first = node.run_index() == 0;
  const uint64_t cost = first ? options_.block_cost * (node.run_more() + uint64_t{1}) : options_.block_cost;
  const uint64_t bytes = first ? node.bytes() : live_bytes_ / live_count_;
  return options_.order->Heat(
      {tick, static_cast<uint32_t>(node.frequency) + 1, node.priority(), cost, bytes});
}

bool Trie::Warm(NodeRef node, uint64_t tick, uint32_t uses) {
  if (!IsLive(node)) return false;
  uint64_t below = 0;
  for (uint32_t i = node.index; i != kNone; i = nodes_[i].up()) {
    Node& at = nodes_[i];
    if (at.frequency + uses <= UINT16_MAX) at.frequency = (at.frequency + uses) & UINT16_MAX;
    // I3, also where the priority or the worth of what lies below is larger.
    below = std::max({uint64_t{at.heat}, below, HeatOf(at, tick)});
    at.heat = below & kMaxTick;
  }
  HeapUpdate(node.index);  // the only one on the path that can be a leaf
  return true;
}

bool Trie::RaisePriority(NodeRef node, Priority priority) {
  if (!IsLive(node)) return false;
  for (uint32_t i = node.index; i != kNone; i = nodes_[i].up()) {
    if (Rank(nodes_[i].priority()) < Rank(priority)) nodes_[i].SetPriority(priority);
  }
  return true;
}

bool Trie::ExtendExpiry(NodeRef node, uint32_t expires_at) {
  if (!IsLive(node)) return false;
  for (uint32_t i = node.index; i != kNone; i = nodes_[i].up()) {
    // I4: whoever lives long enough has ancestors that do, too.
    const uint32_t current = ExpiryOf(i);
    if (current == 0 || (expires_at != 0 && current >= expires_at)) break;
    SetExpiry(i, expires_at);
    NoteExpiry(expires_at);
  }
  return true;
}

// ---- Memory ----

uint64_t Trie::MemoryBytes() const {
  // A hash map slot has its pair and one control byte.
  const uint64_t leases = (leases_.capacity() + many_pins_.capacity()) * (sizeof(std::pair<uint32_t, uint32_t>) + 1);
  return sizeof(*this) + nodes_.MemoryBytes() + hash_.MemoryBytes() + siblings_.MemoryBytes() +
         expiries_.MemoryBytes() + heap_.MemoryBytes() + leases;
}

}  // namespace kvstrata::core::trie
