// SPDX-License-Identifier: Apache-2.0
// Which runs of one trie have lost blocks and keep the space of these, since their record goes with its first block;
// and which of them should go next.
//
// A heap by the heat of the runs' first blocks, which nothing below is hotter than (trie.h, I3): the whole subtree of
// the coldest is colder than whatever else could be given up for space of this kind. Heat only ever grows and first
// blocks go without being told to the heap, so that both are found out when an entry comes to the top.
//
// Memory: 16 bytes an entry, at most two entries and 64 for each run that is cut.
//
// Thread rule: externally synchronised, with its trie. Pure: no I/O, no threads, no clock.
// Invariants: I1 every run that was added and whose first block is live has an entry, no hotter than that block.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/trie/trie.h"

namespace kvstrata::core::trie {

class CutRuns {
 public:
  // A run has lost its last block, or never had it; `first` is its first one, which is live. Once for each run.
  void Add(const Trie& trie, const BlockInfo& first);
  // The first block of a run that was added is being removed.
  void Remove() { --count_; }

  // The run whose first block is coldest and not pinned. Looks at a bounded number of pinned ones.
  std::optional<BlockInfo> Coldest(const Trie& trie);

  uint64_t count() const { return count_; }
  uint64_t MemoryBytes() const { return entries_.capacity() * sizeof(Entry); }

 private:
  struct Entry {
    uint64_t heat = 0;
    NodeRef first;
  };
  static bool Hotter(const Entry& a, const Entry& b) { return a.heat > b.heat; }
  Entry Pop();
  void Push(const Entry& entry);

  std::vector<Entry> entries_;  // a heap, coldest first
  uint64_t count_ = 0;
};

}  // namespace kvstrata::core::trie
