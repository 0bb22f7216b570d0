// SPDX-License-Identifier: Apache-2.0
// Random operations on the trie and the snapshot index, each done on the naive model too and compared after it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/trie/snapshot_index.h"
#include "lib/trie/trie.h"
#include "tests/model/trie_model.h"
#include "tests/support/catch.hpp"

namespace {

using namespace kvstrata::core::trie;  // NOLINT: the test is about all of it
using kvstrata::core::base::ChainBlock;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::core::base::Digest128;
using kvstrata::core::base::RootDigest;
using kvstrata::core::base::SeededRandom;
using kvstrata::test::Block;
using kvstrata::test::ModelBlock;
using kvstrata::test::ModelSnapshot;
using kvstrata::test::Prefix;
using kvstrata::test::Snapshot;
using kvstrata::test::TrieModel;

constexpr uint64_t kBlockTokens = 4;  // of a snapshot's position; the trie's own blocks have one token each
constexpr uint64_t kAlphabet = 3;     // few tokens, so that chains meet
constexpr uint64_t kDepthMax = 12;
constexpr size_t kBlocksMax = 120;  // above it, evictions are likelier than inserts
constexpr size_t kLeasesMax = 8;
constexpr uint64_t kFullCheckEvery = 16;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

BlockKey KeyOf(const Prefix& prefix) {
  BlockKey key = RootDigest({});
  for (const int32_t& token : prefix) key = ChainBlock(key, std::span(&token, 1));
  return key;
}

class Driver {
 public:
  Driver(uint64_t seed, EvictionPolicy policy)
      : random_(seed), order_(std::make_shared<EvictionOrder>(policy)), trie_(RootDigest({}), {.order = order_}) {
    model_.by_frequency = policy == EvictionPolicy::kFrequency;
  }

  void Step() {
    ++step_;
    if (random_.Below(3) == 0) ++tick_;  // several uses share a tick
    if (random_.Below(40) == 0) ++now_;
    const bool crowded = model_.live.size() > kBlocksMax;
    switch (random_.Below(16)) {
      case 0:
      case 1:
      case 2:
      case 3: crowded ? Evict() : Insert(); break;
      case 4: Match(); break;
      case 5: Prefer(); break;
      case 6: Touch(); break;
      case 7: Lease(); break;
      case 8: Release(); break;
      case 9: Evict(); break;
      case 10: random_.Below(crowded ? 2 : 8) == 0 ? Detach() : Extend(); break;
      case 11: Sweep(); break;
      case 12: AddSnapshot(); break;
      case 13: UseSnapshot(); break;
      case 14: DropSnapshot(); break;
      case 15: Refuse(); break;
    }
    CompareTotals();
    if (step_ % kFullCheckEvery == 0) CompareAll();
  }

  void Finish() {
    while (!model_.leases.empty()) Release();
    while (!model_.snapshot_leases.empty()) ReleaseSnapshot();
    CompareAll();
    REQUIRE(trie_.LeasedBytes() == 0);
    REQUIRE(trie_.dead_count() == 0);
    while (!model_.live.empty()) Evict();
    CompareAll();
    REQUIRE(index_.count() == 0);
    REQUIRE(trie_.bytes() == 0);
  }

 private:
  // ---- Random things ----

  // Mostly a stored prefix, cut and continued; so that inserts and matches share beginnings.
  Prefix RandomTokens() {
    Prefix tokens;
    if (!model_.live.empty() && random_.Below(4) != 0) {
      tokens = RandomBlock()->prefix;
      tokens.resize(random_.Below(tokens.size() + 1));
    }
    const uint64_t length = tokens.size() + random_.Below(kDepthMax - std::min(kDepthMax, tokens.size()) + 1);
    while (tokens.size() < length) tokens.push_back(static_cast<int32_t>(random_.Below(kAlphabet)));
    return tokens;
  }

  Block RandomBlock() {
    auto at = model_.live.begin();
    std::advance(at, random_.Below(model_.live.size()));
    return at->second;
  }

  Priority RandomPriority() {
    const uint64_t draw = random_.Below(8);
    return draw == 0 ? Priority::kLow : draw == 1 ? Priority::kHigh : Priority::kNormal;
  }

  NodeRef RefOf(const std::vector<Block>& path) const { return path.empty() ? trie_.root() : path.back()->ref; }

  // ---- Operations ----

  void Insert() {
    const Prefix tokens = RandomTokens();
    const uint32_t expires_at = random_.Below(3) == 0 ? now_ + 1 + static_cast<uint32_t>(random_.Below(20)) : 0;
    NodeRef parent = trie_.root();
    for (size_t length = 1; length <= tokens.size(); ++length) {
      const Prefix prefix(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length));
      const uint64_t bytes = 1 + random_.Below(1000);
      const BlockWorth worth{RandomPriority(), static_cast<uint32_t>(random_.Below(4) == 0 ? random_.Below(5) : 0)};
      const auto added = trie_.Insert(parent, KeyOf(prefix), ++sequence_, bytes, tick_, expires_at, worth);
      REQUIRE(added.ok());
      const auto known = model_.live.find(prefix);
      REQUIRE(added->inserted == (known == model_.live.end()));
      if (added->inserted) {
        ModelInsert(prefix, added->node, bytes, expires_at, worth);
      } else {
        REQUIRE(added->node == known->second->ref);
      }
      parent = added->node;
    }
  }

  void ModelInsert(const Prefix& prefix, NodeRef ref, uint64_t bytes, uint32_t expires_at, const BlockWorth& worth) {
    auto block = std::make_shared<ModelBlock>();
    block->ref = ref;
    block->prefix = prefix;
    block->key = KeyOf(prefix);
    block->sequence = sequence_;
    block->bytes = bytes;
    block->expires_at = expires_at;
    block->priority = worth.priority;
    block->frequency = worth.frequency;
    model_.live[prefix] = block;
    block->heat = model_.HeatOf(*block, tick_);
    for (const Block& at : model_.PathOf(prefix)) {
      at->heat = std::max(at->heat, block->heat);
      if (at->expires_at != 0 && (block->expires_at == 0 || block->expires_at > at->expires_at)) {
        block->expires_at = at->expires_at;
      }
    }
  }

  // The match of random tokens, compared with the model's.
  std::vector<Block> Match() {
    const Prefix tokens = RandomTokens();
    const uint64_t limit = random_.Below(3) == 0 ? random_.Below(tokens.size() + 1) : tokens.size();
    KeySequence keys(RootDigest({}), [&](uint64_t i, const BlockKey& parent) {
      return ChainBlock(parent, std::span(tokens).subspan(i, 1));
    });
    const MatchResult match = trie_.Match(keys, limit, now_);
    const std::vector<Block> expected = model_.Match(tokens, limit, now_);
    REQUIRE(match.blocks == expected.size());
    REQUIRE(match.node == RefOf(expected));
    REQUIRE(keys.computed() <= std::max<uint64_t>(1, 2 * match.blocks));
    const std::vector<NodeRef> path = trie_.Path(match.node);
    REQUIRE(path.size() == expected.size());
    for (size_t i = 0; i < path.size(); ++i) REQUIRE(path[i] == expected[i]->ref);
    CompareSnapshots(expected);
    return expected;
  }

  // The snapshots on a path up to a random limit, as a search without tails sees them, and one with a tail that depends
  // on the position.
  void CompareSnapshots(const std::vector<Block>& path) {
    const uint64_t limit = random_.Below((path.size() + 1) * kBlockTokens + 1);
    const uint64_t odd = random_.Below(2);
    const auto tail_at = [&](uint64_t position) { return (position + odd) % 2; };
    std::vector<Snapshot> all, fitting;
    for (const Block& block : path) {
      for (const Snapshot& snapshot : block->snapshots) {
        if (snapshot->position > limit) continue;
        all.push_back(snapshot);
        if (snapshot->position % kBlockTokens == 0 || snapshot->tail == tail_at(snapshot->position)) {
          fitting.push_back(snapshot);
        }
      }
    }
    const NodeRef deepest = RefOf(path);
    CompareFound(index_.FindOnPath(deepest, limit), all);
    const auto tail_of = [&](NodeRef, uint64_t position) { return Digest128{tail_at(position), 0}; };
    CompareFound(index_.FindOnPath(deepest, limit, 3, tail_of), fitting, 3);
  }

  void CompareFound(const std::vector<SnapshotInfo>& found, std::vector<Snapshot> expected,
                    size_t max_count = SIZE_MAX) {
    std::sort(expected.begin(), expected.end(), [](const Snapshot& a, const Snapshot& b) {
      return std::pair(a->position, a->sequence) > std::pair(b->position, b->sequence);
    });
    expected.resize(std::min(expected.size(), max_count));
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) REQUIRE(found[i].snapshot == expected[i]->ref);
  }

  void Touch() {
    const std::vector<Block> path = Match();
    // Now and then with a tick from the past, as a late caller would.
    const uint64_t tick = random_.Below(8) == 0 ? random_.Below(tick_) : tick_;
    const bool counts = random_.Below(3) != 0;
    REQUIRE((counts ? trie_.Touch(RefOf(path), tick) : trie_.Keep(RefOf(path), tick)));
    uint64_t below = 0;
    for (size_t i = path.size(); i-- > 0;) {
      path[i]->frequency += counts ? 1 : 0;
      below = path[i]->heat = std::max({path[i]->heat, below, model_.HeatOf(*path[i], tick)});
    }
  }

  void Prefer() {
    const std::vector<Block> path = Match();
    const Priority priority = RandomPriority();
    REQUIRE(trie_.RaisePriority(RefOf(path), priority));
    for (const Block& block : path) {
      const bool raises = priority == Priority::kHigh || block->priority == Priority::kLow;
      if (raises) block->priority = priority;
    }
  }

  void Lease() {
    if (model_.leases.size() >= kLeasesMax) return Release();
    const std::vector<Block> path = Match();
    REQUIRE(trie_.Lease(RefOf(path), now_).ok());
    if (path.empty()) {
      REQUIRE(trie_.Release(trie_.root()).ok());
    } else {
      model_.Lease(path);
    }
  }

  void Release() {
    if (model_.leases.empty()) return;
    const size_t which = random_.Below(model_.leases.size());
    const NodeRef ref = model_.leases[which].back()->ref;
    std::vector<Block> expected = model_.Release(which);
    std::reverse(expected.begin(), expected.end());  // deepest first
    size_t freed = 0;
    REQUIRE(trie_
                .Release(ref,
                         [&](const BlockInfo& info) {
                           REQUIRE(freed < expected.size());
                           CompareRemoved(info, *expected[freed++]);
                         })
                .ok());
    REQUIRE(freed == expected.size());
    for (const Block& block : expected) gone_.push_back(block->ref);
  }

  void Evict() {
    const Block coldest = model_.Coldest();
    const auto leaf = trie_.ColdestLeaf();
    REQUIRE(leaf.has_value() == (coldest != nullptr));
    if (!leaf) return;
    REQUIRE(*leaf == coldest->ref);
    const auto removed = trie_.Remove(*leaf);
    REQUIRE(removed.ok());
    CompareRemoved(*removed, *coldest);
    order_->Evicted(removed->heat, tick_);
    model_.frontier = std::max(model_.frontier, std::min(coldest->heat, tick_));
    DropSnapshotsOf(*coldest);
    model_.Remove(coldest->prefix);
    gone_.push_back(*leaf);
  }

  void Detach() {
    if (model_.live.empty()) return;
    const Prefix top = random_.Below(200) == 0 ? Prefix() : RandomBlock()->prefix;
    const NodeRef node = top.empty() ? trie_.root() : model_.live.at(top)->ref;
    std::vector<NodeRef> removed;
    const auto count = trie_.DetachSubtree(node, [&](const BlockInfo& info) { OnRemoved(info, &removed); });
    REQUIRE(count.ok());
    REQUIRE(*count == removed.size());
    ModelRemove(top, removed.size());
  }

  // A block that the trie reports as removed must be one of the model's live ones, with the same facts.
  void OnRemoved(const BlockInfo& info, std::vector<NodeRef>* removed) {
    const auto block = std::find_if(model_.live.begin(), model_.live.end(),
                                    [&](const auto& entry) { return entry.second->ref == info.node; });
    REQUIRE(block != model_.live.end());
    REQUIRE(std::find(removed->begin(), removed->end(), info.node) == removed->end());
    CompareRemoved(info, *block->second);
    REQUIRE(info.dead == (block->second->promises > 0));
    removed->push_back(info.node);
    DropSnapshotsOf(*block->second);
  }

  void ModelRemove(const Prefix& top, size_t expected) {
    const std::vector<Block> removed = model_.Remove(top);
    REQUIRE(removed.size() == expected);
    for (const Block& block : removed) {
      if (block->promises == 0) gone_.push_back(block->ref);
    }
  }

  void CompareRemoved(const BlockInfo& info, const ModelBlock& block) {
    REQUIRE(info.node == block.ref);
    REQUIRE(info.key == block.key);
    REQUIRE(info.sequence == block.sequence);
    REQUIRE(info.bytes == block.bytes);
  }

  void Extend() {
    const std::vector<Block> path = Match();
    const uint32_t expires_at = random_.Below(10) == 0 ? 0 : now_ + static_cast<uint32_t>(random_.Below(30)) + 1;
    REQUIRE(trie_.ExtendExpiry(RefOf(path), expires_at));
    for (const Block& block : path) {
      if (expires_at == 0) block->expires_at = 0;
      if (block->expires_at != 0) block->expires_at = std::max(block->expires_at, expires_at);
    }
  }

  // A whole round, so that exactly the expired blocks go, but for those that are promised.
  void Sweep() {
    std::vector<NodeRef> removed;
    trie_.SweepExpired(now_, UINT64_MAX, [&](const BlockInfo& info) { OnRemoved(info, &removed); });
    size_t expected = 0;
    for (bool again = true; again;) {
      again = false;
      for (const auto& [prefix, block] : model_.live) {
        if (!block->ExpiredAt(now_) || block->promises > 0) continue;
        const Prefix top = prefix;
        for (const Block& gone : model_.Remove(top)) {
          ++expected;
          REQUIRE(gone->ExpiredAt(now_));
          gone_.push_back(gone->ref);
        }
        again = true;
        break;
      }
    }
    REQUIRE(removed.size() == expected);
  }

  // Everything that must be refused is, and changes nothing (the comparison after the step sees to that).
  void Refuse() {
    if (!gone_.empty()) {
      const NodeRef stale = gone_[random_.Below(gone_.size())];
      REQUIRE_FALSE(trie_.Get(stale).has_value());
      REQUIRE_FALSE(trie_.Touch(stale, tick_));
      REQUIRE(CodeOf(trie_.Lease(stale)) == Code::kNotFound);
      REQUIRE(CodeOf(trie_.Remove(stale).status()) == Code::kNotFound);
      REQUIRE(CodeOf(trie_.DetachSubtree(stale).status()) == Code::kNotFound);
      REQUIRE(CodeOf(trie_.Insert(stale, KeyOf({77}), 1, 1, tick_).status()) == Code::kNotFound);
      REQUIRE(CodeOf(index_.Add(stale, 4, {}, 1, 1, tick_).status()) == Code::kNotFound);
    }
    if (model_.live.empty()) return;
    const Block block = RandomBlock();
    if (model_.HasChildren(block->prefix)) {
      REQUIRE(CodeOf(trie_.Remove(block->ref).status()) == Code::kInvalidState);
    } else if (block->promises > 0) {
      REQUIRE(CodeOf(trie_.Remove(block->ref).status()) == Code::kBusy);
    }
  }

  // ---- Snapshots ----

  void AddSnapshot() {
    if (model_.live.empty()) return;
    const Block block = RandomBlock();
    const uint64_t position = block->prefix.size() * kBlockTokens + random_.Below(kBlockTokens);
    const uint64_t tail = position % kBlockTokens == 0 ? 0 : random_.Below(2);
    const uint64_t bytes = 1 + random_.Below(1000);
    const auto added = index_.Add(block->ref, position, Digest128{tail, 0}, ++sequence_, bytes, tick_);
    REQUIRE(added.ok());
    const auto known = std::find_if(block->snapshots.begin(), block->snapshots.end(), [&](const Snapshot& snapshot) {
      return snapshot->position == position && snapshot->tail == tail;
    });
    REQUIRE(added->inserted == (known == block->snapshots.end()));
    if (!added->inserted) {
      REQUIRE(added->snapshot == (*known)->ref);
      return;
    }
    auto snapshot = std::make_shared<ModelSnapshot>();
    snapshot->ref = added->snapshot;
    snapshot->position = position;
    snapshot->tail = tail;
    snapshot->sequence = sequence_;
    snapshot->bytes = bytes;
    snapshot->last_use = tick_;
    block->snapshots.push_back(snapshot);
  }

  void UseSnapshot() {
    const std::vector<Snapshot> all = model_.Snapshots();
    if (all.empty()) return;
    const Snapshot snapshot = all[random_.Below(all.size())];
    switch (random_.Below(3)) {
      case 0:
        REQUIRE(index_.Touch(snapshot->ref, tick_));
        snapshot->last_use = tick_;
        ++snapshot->frequency;
        break;
      case 1:
        if (model_.snapshot_leases.size() >= kLeasesMax) return ReleaseSnapshot();
        REQUIRE(index_.Lease(snapshot->ref).ok());
        ++snapshot->leases;
        model_.snapshot_leases.push_back(snapshot);
        break;
      case 2: ReleaseSnapshot(); break;
    }
  }

  void ReleaseSnapshot() {
    if (model_.snapshot_leases.empty()) return;
    const size_t which = random_.Below(model_.snapshot_leases.size());
    const Snapshot snapshot = model_.snapshot_leases[which];
    model_.snapshot_leases.erase(model_.snapshot_leases.begin() + static_cast<std::ptrdiff_t>(which));
    const bool frees = --snapshot->leases == 0 && !snapshot->live;
    bool freed = false;
    REQUIRE(index_
                .Release(snapshot->ref,
                         [&](const SnapshotInfo& info) {
                           freed = true;
                           REQUIRE(info.sequence == snapshot->sequence);
                         })
                .ok());
    REQUIRE(freed == frees);
  }

  void DropSnapshot() {
    const Snapshot coldest = model_.ColdestSnapshot();
    const auto found = index_.ColdestUnleased();
    REQUIRE(found.has_value() == (coldest != nullptr));
    if (!found) return;
    REQUIRE(*found == coldest->ref);
    const auto removed = index_.Remove(*found);
    REQUIRE(removed.ok());
    REQUIRE(removed->sequence == coldest->sequence);
    coldest->live = false;
    for (const auto& [prefix, block] : model_.live) {
      std::erase(block->snapshots, coldest);
    }
  }

  // The index's side of a block's removal; the model's is in TrieModel::Remove.
  void DropSnapshotsOf(const ModelBlock& block) {
    std::vector<SnapshotInfo> removed;
    index_.RemoveAt(block.ref, [&](const SnapshotInfo& info) { removed.push_back(info); });
    CompareFound(removed, block.snapshots);
  }

  // ---- Comparison ----

  void CompareTotals() {
    uint64_t bytes = 0, snapshot_bytes = 0;
    for (const auto& [prefix, block] : model_.live) bytes += block->bytes;
    const std::vector<Snapshot> snapshots = model_.Snapshots();
    for (const Snapshot& snapshot : snapshots) snapshot_bytes += snapshot->bytes;
    REQUIRE(trie_.block_count() == model_.live.size());
    REQUIRE(trie_.bytes() == bytes);
    REQUIRE(trie_.LeasedBytes() == model_.LeasedBytes());
    REQUIRE(trie_.dead_bytes() == model_.DeadBytes());
    REQUIRE(index_.count() == snapshots.size());
    REQUIRE(index_.bytes() == snapshot_bytes);
    const Block coldest = model_.Coldest();
    REQUIRE(trie_.ColdestLeaf() == (coldest ? std::optional(coldest->ref) : std::nullopt));
  }

  void CompareAll() {
    const absl::Status trie_status = trie_.Validate();
    INFO(std::string(trie_status.message()));
    REQUIRE(trie_status.ok());
    const absl::Status index_status = index_.Validate();
    INFO(std::string(index_status.message()));
    REQUIRE(index_status.ok());
    for (const auto& [prefix, block] : model_.live) CompareBlock(*block);
    for (const Snapshot& snapshot : model_.Snapshots()) {
      const auto info = index_.Get(snapshot->ref);
      REQUIRE(info.has_value());
      REQUIRE(info->last_use == snapshot->last_use);
      REQUIRE(info->frequency == snapshot->frequency);
      REQUIRE(info->leases == snapshot->leases);
    }
  }

  void CompareBlock(const ModelBlock& block) {
    const auto info = trie_.Get(block.ref);
    REQUIRE(info.has_value());
    CompareRemoved(*info, block);
    REQUIRE_FALSE(info->dead);
    REQUIRE(info->depth == block.prefix.size());
    REQUIRE(info->heat == block.heat);
    REQUIRE(info->frequency == block.frequency);
    REQUIRE(info->priority == block.priority);
    REQUIRE(info->expires_at == block.expires_at);
    REQUIRE((info->pins > 0) == (block.promises > 0));
    REQUIRE(info->has_children == model_.HasChildren(block.prefix));
    const Prefix above(block.prefix.begin(), block.prefix.end() - 1);
    REQUIRE(info->parent == (above.empty() ? trie_.root() : model_.live.at(above)->ref));
    REQUIRE(trie_.Find(info->key) == block.ref);
  }

  SeededRandom random_;
  std::shared_ptr<EvictionOrder> order_;
  Trie trie_;
  SnapshotIndex index_{&trie_, kBlockTokens};
  TrieModel model_;
  std::vector<NodeRef> gone_;
  uint64_t step_ = 0;
  uint64_t tick_ = 1;
  uint64_t sequence_ = 0;
  uint32_t now_ = 1;
};

}  // namespace

TEST_CASE("trie and snapshot index agree with a map of all prefixes under random operations") {
  const uint64_t seed = FromEnvironment("KVSTRATA_SEED", std::random_device()());
  const uint64_t operations = FromEnvironment("KVSTRATA_MODEL_OPS", 100'000);
  std::printf("trie_model_test: KVSTRATA_SEED=%llu KVSTRATA_MODEL_OPS=%llu\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(operations));
  std::fflush(stdout);
  const auto policy = GENERATE(EvictionPolicy::kLru, EvictionPolicy::kFrequency);
  Driver driver(seed, policy);
  for (uint64_t i = 0; i < operations; ++i) {
    INFO("seed " << seed << ", operation " << i);
    driver.Step();
  }
  driver.Finish();
}
