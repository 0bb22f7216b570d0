// SPDX-License-Identifier: Apache-2.0
// How the trie's blocks hang on one another, and what it tells of them.
#include <algorithm>
#include <utility>

#include "lib/trie/trie.h"

namespace kvstrata::core::trie {

void Trie::LinkChild(uint32_t parent, uint32_t child) {
  HeapErase(parent);
  Node& above = nodes_[parent];
  nodes_[child].parent.Set(parent);
  if (above.has_children()) {
    Node& older = nodes_[above.child_or_heap];
    if (!older.has_siblings()) siblings_.Begin(above.child_or_heap);
    siblings_.AddBefore(above.child_or_heap, child);
    older.SetHasSiblings(true);
    nodes_[child].SetHasSiblings(true);
  }
  if (parent == 0 || above.has_children()) ++leaf_count_;  // else it takes its parent's place as a leaf
  above.SetHasChildren(true);
  above.child_or_heap = child;
}

void Trie::UnlinkChild(uint32_t child) {
  Node& node = nodes_[child];
  Node& above = nodes_[node.up()];
  if (node.has_siblings()) {
    const Siblings::Left left = siblings_.Remove(child);
    node.SetHasSiblings(false);
    if (left.alone != kNone) nodes_[left.alone].SetHasSiblings(false);
    if (above.child_or_heap == child) above.child_or_heap = left.next;
  } else {
    above.child_or_heap = kNone;
    above.SetHasChildren(false);
  }
  if (node.up() == 0 || above.has_children()) --leaf_count_;
}

std::optional<BlockInfo> Trie::Get(NodeRef node) const {
  if (!Exists(node)) return std::nullopt;
  return InfoOf(node.index);
}

BlockInfo Trie::FirstOfRun(const BlockInfo& block) const {
  if (block.run.index == 0) return block;
  uint32_t i = block.parent.index;
  for (uint32_t steps = block.run.index - 1; steps > 0; --steps) i = nodes_[i].up();
  return InfoOf(i);
}

NodeRef Trie::Parent(NodeRef node) const { return Exists(node) ? RefOf(nodes_[node.index].up()) : NodeRef{}; }

std::vector<NodeRef> Trie::Path(NodeRef node) const {
  std::vector<NodeRef> path;
  if (!Exists(node)) return path;
  path.resize(nodes_[node.index].depth());
  uint32_t i = node.index;
  for (size_t k = path.size(); k > 0; --k) {
    path[k - 1] = RefOf(i);
    i = nodes_[i].up();
  }
  return path;
}

NodeRef Trie::FirstChild(NodeRef node) const {
  return Exists(node) && nodes_[node.index].has_children() ? RefOf(nodes_[node.index].child_or_heap) : NodeRef{};
}

NodeRef Trie::NextSibling(NodeRef node) const {
  return IsLive(node) && nodes_[node.index].has_siblings() ? RefOf(siblings_.Next(node.index)) : NodeRef{};
}

uint64_t Trie::VisitSlots(uint64_t slot, uint64_t count, const Visitor& visit) const {
  const uint64_t first = std::max<uint64_t>(slot, 1);  // 0 is the root's
  if (first >= node_count_) return 0;
  const uint64_t end = first + std::min(count, node_count_ - first);
  for (uint64_t i = first; i < end; ++i) {
    if (nodes_[i].state() == kLive) visit(InfoOf(static_cast<uint32_t>(i)));
  }
  return end == node_count_ ? 0 : end;
}

void Trie::SetMark(NodeRef node, bool marked) {
  if (Exists(node)) nodes_[node.index].SetMarked(marked);
}

bool Trie::IsMarked(NodeRef node) const { return Exists(node) && nodes_[node.index].marked(); }

}  // namespace kvstrata::core::trie
