// SPDX-License-Identifier: Apache-2.0
#include "lib/trie/siblings.h"

namespace kvstrata::core::trie {

// Of those that are unused there may be enough; but a chunk more costs little.
bool Siblings::Reserve(uint64_t more) { return by_node_.Prepare() && entries_.Reserve(used_ + more); }

uint32_t Siblings::TakeEntry() {
  ++used_;
  if (unused_ == kNone) return static_cast<uint32_t>(entry_count_++);
  const uint32_t entry = unused_;
  unused_ = entries_[entry].chain;
  return entry;
}

void Siblings::Fill(uint32_t entry, uint32_t node) {
  entries_[entry] = {node, kNone, kNone, kNone};
  by_node_.Insert(entry, used_);
}

void Siblings::FreeEntry(uint32_t entry) {
  by_node_.Erase(entry);
  entries_[entry].chain = unused_;
  unused_ = entry;
  --used_;
}

void Siblings::AddBefore(uint32_t first, uint32_t node) {
  const uint32_t behind = EntryOf(first);
  const uint32_t entry = TakeEntry();
  Fill(entry, node);
  entries_[entry].next = behind;
  entries_[behind].previous = entry;
}

Siblings::Left Siblings::Remove(uint32_t node) {
  const uint32_t entry = EntryOf(node);
  const Entry gone = entries_[entry];
  Left left;
  left.next = NodeOf(gone.next);
  if (gone.next != kNone) entries_[gone.next].previous = gone.previous;
  if (gone.previous != kNone) entries_[gone.previous].next = gone.next;
  FreeEntry(entry);
  const uint32_t near = gone.next != kNone ? gone.next : gone.previous;
  if (entries_[near].next == kNone && entries_[near].previous == kNone) {
    left.alone = entries_[near].node;
    FreeEntry(near);
  }
  return left;
}

}  // namespace kvstrata::core::trie
