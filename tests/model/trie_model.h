// SPDX-License-Identifier: Apache-2.0
// What the trie and the snapshot index should do, said as naively as possible: a map of all stored prefixes. A lease
// is the list of blocks it promised; a block or snapshot may be freed once it is in no lease's list.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "lib/trie/eviction.h"
#include "lib/trie/snapshot_index.h"
#include "lib/trie/trie.h"

namespace kvstrata::test {

using Prefix = std::vector<int32_t>;  // one token per block

struct ModelSnapshot {
  core::trie::SnapshotRef ref;
  uint64_t position = 0;
  uint64_t tail = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  uint64_t last_use = 0;
  uint64_t frequency = 0;
  uint64_t leases = 0;
  bool live = true;
};

struct ModelBlock {
  core::trie::NodeRef ref;
  Prefix prefix;
  core::trie::BlockKey key;
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  uint64_t heat = 0;
  uint64_t frequency = 0;
  core::trie::Priority priority = core::trie::Priority::kNormal;
  uint32_t expires_at = 0;
  uint64_t promises = 0;  // leases whose list holds this block
  bool live = true;
  std::vector<std::shared_ptr<ModelSnapshot>> snapshots;

  bool ExpiredAt(uint32_t now) const { return expires_at != 0 && expires_at <= now; }
};

using Block = std::shared_ptr<ModelBlock>;
using Snapshot = std::shared_ptr<ModelSnapshot>;

class TrieModel {
 public:
  std::map<Prefix, Block> live;            // ordered: a prefix stands before all that begin with it
  std::vector<std::vector<Block>> leases;  // each: the blocks of its path, the leased one last
  std::vector<Snapshot> snapshot_leases;
  bool by_frequency = false;
  uint64_t frontier = 0;  // heat of the hottest block evicted

  std::vector<Block> PathOf(const Prefix& prefix) const {
    std::vector<Block> path;
    for (size_t length = 1; length <= prefix.size(); ++length) {
      path.push_back(live.at(Prefix(prefix.begin(), prefix.begin() + static_cast<std::ptrdiff_t>(length))));
    }
    return path;
  }

  // The longest stored and unexpired prefix of `tokens` with at most `limit` blocks, shortest first.
  std::vector<Block> Match(const Prefix& tokens, uint64_t limit, uint32_t now) const {
    std::vector<Block> path;
    Prefix prefix;
    while (prefix.size() < tokens.size() && prefix.size() < limit) {
      prefix.push_back(tokens[prefix.size()]);
      const auto block = live.find(prefix);
      if (block == live.end() || block->second->ExpiredAt(now)) break;
      path.push_back(block->second);
    }
    return path;
  }

  bool HasChildren(const Prefix& prefix) const { return HasChildren(live.upper_bound(prefix), prefix); }
  // `next` is what follows the prefix in the map.
  bool HasChildren(std::map<Prefix, Block>::const_iterator next, const Prefix& prefix) const {
    return next != live.end() && next->first.size() > prefix.size() &&
           std::equal(prefix.begin(), prefix.end(), next->first.begin());
  }

  // What the head of lib/trie/eviction.h says, in words of its own: how many 1/256 of the store's present turnover a
  // block lives from `tick` on. All blocks cost the same to compute again.
  uint64_t HeatOf(const ModelBlock& block, uint64_t tick) const {
    if (tick <= frontier) return tick;
    uint64_t life = tick - frontier;
    if (by_frequency) {
      uint64_t whole = 0;
      for (uint64_t uses = block.frequency + 1; uses > 1; uses /= 2) ++whole;
      const uint64_t power = uint64_t{1} << whole;
      life = life * (256 + 256 * whole + (block.frequency + 1 - power) * 256 / power) / 256;
      uint64_t all = 0;
      for (const auto& [prefix, other] : live) all += other->bytes;
      const uint64_t worth = all * 256 / (live.size() * block.bytes);
      life = life * std::min<uint64_t>(8 * 256, std::max<uint64_t>(256 / 8, worth)) / 256;
    }
    if (block.priority == core::trie::Priority::kLow) life /= 4;
    if (block.priority == core::trie::Priority::kHigh) life *= 4;
    return frontier + life;
  }

  // The block that should go next: a leaf in no lease, coldest, then placed first. Null: none.
  Block Coldest() const {
    Block coldest;
    for (auto at = live.begin(); at != live.end(); ++at) {
      const Block& block = at->second;
      if (block->promises > 0 || HasChildren(std::next(at), at->first)) continue;
      if (!coldest || std::pair(block->heat, block->sequence) < std::pair(coldest->heat, coldest->sequence)) {
        coldest = block;
      }
    }
    return coldest;
  }

  // Takes the block and all below it out of the map, with their snapshots; returns them.
  std::vector<Block> Remove(const Prefix& top) {
    std::vector<Block> removed;
    for (auto at = live.lower_bound(top);
         at != live.end() && at->first.size() >= top.size() && std::equal(top.begin(), top.end(), at->first.begin());) {
      at->second->live = false;
      for (const Snapshot& snapshot : at->second->snapshots) snapshot->live = false;
      removed.push_back(at->second);
      at = live.erase(at);
    }
    return removed;
  }

  void Lease(const std::vector<Block>& path) {
    for (const Block& block : path) ++block->promises;
    leases.push_back(path);
  }

  // Ends a lease; returns the dead blocks that no lease promises any more.
  std::vector<Block> Release(size_t which) {
    std::vector<Block> freed;
    for (const Block& block : leases[which]) {
      if (--block->promises == 0 && !block->live) freed.push_back(block);
    }
    leases.erase(leases.begin() + static_cast<std::ptrdiff_t>(which));
    return freed;
  }

  uint64_t LeasedBytes() const {
    std::set<Block> promised;
    for (const auto& path : leases) promised.insert(path.begin(), path.end());
    uint64_t bytes = 0;
    for (const Block& block : promised) bytes += block->bytes;
    return bytes;
  }

  uint64_t DeadBytes() const {
    std::set<Block> dead;
    for (const auto& path : leases) {
      for (const Block& block : path) {
        if (!block->live) dead.insert(block);
      }
    }
    uint64_t bytes = 0;
    for (const Block& block : dead) bytes += block->bytes;
    return bytes;
  }

  std::vector<Snapshot> Snapshots() const {
    std::vector<Snapshot> all;
    for (const auto& [prefix, block] : live) all.insert(all.end(), block->snapshots.begin(), block->snapshots.end());
    return all;
  }

  Snapshot ColdestSnapshot() const {
    Snapshot coldest;
    for (const Snapshot& snapshot : Snapshots()) {
      if (snapshot->leases > 0) continue;
      if (!coldest ||
          std::pair(snapshot->last_use, snapshot->sequence) < std::pair(coldest->last_use, coldest->sequence)) {
        coldest = snapshot;
      }
    }
    return coldest;
  }
};

}  // namespace kvstrata::test
