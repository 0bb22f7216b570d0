// SPDX-License-Identifier: Apache-2.0
// The trie's eviction order: a binary heap of the live, unpinned leaves, coldest at the top. A leaf has no children,
// so its position in the heap stands where an inner node keeps its first child.
#include <utility>

#include "lib/trie/trie.h"

namespace kvstrata::core::trie {

bool Trie::Colder(uint32_t a, uint32_t b) const {
  const Node& left = nodes_[a];
  const Node& right = nodes_[b];
  if (left.heat != right.heat) return left.heat < right.heat;
  return left.sequence() < right.sequence();
}

void Trie::HeapPlace(uint32_t position, uint32_t index) {
  heap_[position] = index;
  nodes_[index].child_or_heap = position;
}

void Trie::HeapSiftUp(uint32_t position) {
  const uint32_t index = heap_[position];
  while (position > 0) {
    const uint32_t above = (position - 1) / 2;
    if (!Colder(index, heap_[above])) break;
    HeapPlace(position, heap_[above]);
    position = above;
  }
  HeapPlace(position, index);
}

void Trie::HeapSiftDown(uint32_t position) {
  const uint32_t index = heap_[position];
  for (;;) {
    uint64_t below = uint64_t{2} * position + 1;  // 64 bits: there may be 2^32 - 2 leaves
    if (below >= heap_size_) break;
    if (below + 1 < heap_size_ && Colder(heap_[below + 1], heap_[below])) ++below;
    if (!Colder(heap_[below], index)) break;
    HeapPlace(position, heap_[below]);
    position = static_cast<uint32_t>(below);
  }
  HeapPlace(position, index);
}

// Children come behind their parents, since none of the slots had been used before.
void Trie::EndBulk() {
  if (!std::exchange(in_bulk_, false)) return;
  hash_.EndBulk();
  nodes_.Expect(0);
  for (uint64_t i = node_count_ - 1; i > 0; --i) {
    const Node& node = nodes_[i];
    Node& above = nodes_[node.up()];
    if (above.heat < node.heat) above.heat = node.heat;
    if (!node.has_children() && !node.pinned()) HeapPlace(heap_size_++, static_cast<uint32_t>(i));
  }
  for (uint32_t position = heap_size_ / 2; position > 0; --position) HeapSiftDown(position - 1);
}

void Trie::HeapUpdate(uint32_t index) {
  Node& node = nodes_[index];
  if (index == 0 || node.has_children() || in_bulk_) return;
  if (node.state() != kLive || node.pinned()) {
    HeapErase(index);
    return;
  }
  if (node.child_or_heap == kNone) HeapPlace(heap_size_++, index);
  HeapSiftUp(node.child_or_heap);
  HeapSiftDown(node.child_or_heap);
}

void Trie::HeapErase(uint32_t index) {
  Node& node = nodes_[index];
  if (index == 0 || node.has_children() || node.child_or_heap == kNone) return;
  const uint32_t position = std::exchange(node.child_or_heap, kNone);
  const uint32_t last = heap_[--heap_size_];
  if (last == index) return;
  HeapPlace(position, last);
  HeapSiftUp(position);
  HeapSiftDown(nodes_[last].child_or_heap);
}

// The place of a leaf that goes is its parent's, if that has become one: it is about as cold (I3), and mostly stays
// where it is. To take the one out and to add the other costs two ways through the heap.
void Trie::HeapHandOn(uint32_t index) {
  const uint32_t position = nodes_[index].child_or_heap;
  const uint32_t heir = nodes_[index].up();
  const Node& above = nodes_[heir];
  if (position == kNone || heir == 0 || above.has_children() || above.state() != kLive || above.pinned()) return;
  nodes_[index].child_or_heap = kNone;
  HeapPlace(position, heir);
  HeapSiftUp(position);
  HeapSiftDown(above.child_or_heap);
}

}  // namespace kvstrata::core::trie
