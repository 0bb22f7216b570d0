// SPDX-License-Identifier: Apache-2.0
// Which units of one segment are free, and where a run of them begins: a bitmap with a tree over it that knows, for
// every power-of-two stretch, the longest free run inside it and at its two ends. Runs have any length, so a record
// wastes less than a unit, and freed neighbours are one run again at once.
//
// A buddy allocator would be smaller, but it can place a record of 33 units only where 64 begin: with records of one
// size, the usual case, it leaves up to half of a segment in pieces. Here a hole is as good as the record that left it.
//
// Memory: 1 bit a unit and 24 bytes for 64 units, about 0.5 bytes a unit: 128 KiB for each GiB of 4 KiB units.
//
// Invariants:
//   I1. A unit is free or taken; Take is called on free units only, Give on taken ones only.
//   I2. Find returns the lowest place at or after `from`, and finds one whenever there is one.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kvstrata::core::storage {

class SpaceMap {
 public:
  // All units are taken at first.
  explicit SpaceMap(uint32_t units);

  uint32_t units() const { return units_; }
  uint32_t free_units() const { return free_; }
  // The longest free run; 0 when there is none.
  uint32_t longest() const { return nodes_[1].longest; }

  // Where the first `run` (at least 1) free units in a row begin, at or after `from`.
  std::optional<uint32_t> Find(uint32_t run, uint32_t from) const;
  bool AllFree(uint32_t first, uint32_t count) const;
  void Take(uint32_t first, uint32_t count);
  void Give(uint32_t first, uint32_t count);

  // For many changes at once, as while a store is opened: the tree is not repaired for each, but in the end. Until
  // EndBulk only these and AllFree are asked for. The first makes the first `units` free and all others taken.
  void BeginBulk(uint32_t units);
  // False, and nothing changed, where they are not all there and free.
  bool TakeInBulk(uint32_t first, uint32_t count);
  void GiveInBulk(uint32_t first, uint32_t count);
  void EndBulk();

 private:
  static constexpr uint32_t kLeafUnits = 64;  // one word of the bitmap

  struct Node {
    uint32_t left = 0;     // free units at its beginning
    uint32_t right = 0;    // at its end
    uint32_t longest = 0;  // in a row, anywhere in it
  };
  struct Search;

  static Node LeafOf(uint64_t word);
  void SetBits(uint32_t first, uint32_t count, bool free);
  // Sets or clears the bits, then repairs the tree above them.
  void Change(uint32_t first, uint32_t count, bool free);
  void Repair(uint32_t first_leaf, uint32_t last_leaf);
  std::optional<uint32_t> FindBelow(Search& search, uint32_t node, uint32_t begin, uint32_t size) const;
  std::optional<uint32_t> FindInLeaf(Search& search, uint64_t word, uint32_t begin) const;

  const uint32_t units_;
  uint32_t leaves_ = 1;  // a power of two
  uint32_t free_ = 0;
  std::vector<uint64_t> words_;  // 1: free
  std::vector<Node> nodes_;      // 1 is the root, the leaves begin at leaves_
};

}  // namespace kvstrata::core::storage
