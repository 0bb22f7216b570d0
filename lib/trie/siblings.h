// SPDX-License-Identifier: Apache-2.0
// The links between the children of one parent, where it has more than one: most blocks of a trie are their parent's
// only child, and need none. Numbers are those of the trie's nodes; which nodes are in here is the trie's to know.
//
// Memory: 16 bytes a node that has siblings and 2 of a hash's buckets, growth included; kept for reuse.
//
// Thread rule: externally synchronised, with its trie.
// Invariants: I1 a node is in here exactly while it has a sibling. I2 lists are linked both ways, newest first.
#pragma once

#include <cstdint>

#include "lib/base/chain_index.h"
#include "lib/base/chunked_array.h"

namespace kvstrata::core::trie {

class Siblings {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  Siblings() : by_node_(Links{&entries_}) {}

  // Room for `more` nodes. False: no memory; nothing has changed.
  bool Reserve(uint64_t more);
  // An only child, which gets a sibling now.
  void Begin(uint32_t node) { Fill(TakeEntry(), node); }
  // `node` is the newest now, before `first`, which was until now.
  void AddBefore(uint32_t first, uint32_t node);

  struct Left {
    uint32_t next = kNone;   // what followed the node
    uint32_t alone = kNone;  // the sibling that has none any more, and is in here no longer
  };
  Left Remove(uint32_t node);

  // kNone at the end, and at the beginning.
  uint32_t Next(uint32_t node) const { return NodeOf(entries_[EntryOf(node)].next); }
  uint32_t Previous(uint32_t node) const { return NodeOf(entries_[EntryOf(node)].previous); }

  uint64_t MemoryBytes() const { return entries_.MemoryBytes() + by_node_.MemoryBytes(); }

 private:
  // Links lead from entry to entry.
  struct Entry {
    uint32_t node = kNone;
    uint32_t next = kNone;
    uint32_t previous = kNone;
    uint32_t chain = kNone;  // of the hash; unused: the next unused one
  };

  // Numbers of siblings are often regular, as where each has a chain of 64 below it.
  static uint64_t HashOfNode(uint32_t node) { return node * uint64_t{0x9e3779b97f4a7c15} >> 32; }

  struct Links {
    uint64_t HashOf(uint32_t entry) const { return HashOfNode((*entries)[entry].node); }
    uint32_t NextOf(uint32_t entry) const { return (*entries)[entry].chain; }
    void SetNext(uint32_t entry, uint32_t next) const { (*entries)[entry].chain = next; }
    void Prefetch(uint32_t entry) const { __builtin_prefetch(&(*entries)[entry]); }
    base::ChunkedArray<Entry, 6>* entries;
  };

  uint32_t TakeEntry();
  void Fill(uint32_t entry, uint32_t node);
  void FreeEntry(uint32_t entry);
  uint32_t EntryOf(uint32_t node) const {
    return by_node_.Find(HashOfNode(node), [&](uint32_t at) { return entries_[at].node == node; });
  }
  uint32_t NodeOf(uint32_t entry) const { return entry == kNone ? kNone : entries_[entry].node; }

  base::ChunkedArray<Entry, 6> entries_;
  base::ChainIndex<Links> by_node_;
  uint64_t entry_count_ = 0;  // ever used
  uint64_t used_ = 0;
  uint32_t unused_ = kNone;
};

}  // namespace kvstrata::core::trie
