// SPDX-License-Identifier: Apache-2.0
// Checks of the trie's invariants, for tests.
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/trie/trie.h"

namespace kvstrata::core::trie {
namespace {

absl::Status Broken(std::string_view invariant, uint64_t node) {
  return base::MakeStatus(base::Code::kInternal, invariant, "does not hold at node " + std::to_string(node));
}

}  // namespace

absl::Status Trie::Validate() const {
  if (node_count_ == 0) return absl::OkStatus();  // not even memory for the root yet
  for (uint64_t i = 0; i < node_count_; ++i) {
    if (nodes_[i].state() == kFree) continue;
    if (absl::Status status = ValidateNode(static_cast<uint32_t>(i)); !status.ok()) return status;
  }
  for (uint32_t position = 1; position < heap_size_; ++position) {
    if (Colder(heap_[position], heap_[(position - 1) / 2])) return Broken("I6 order", heap_[position]);
  }
  return ValidateTotals();
}

absl::Status Trie::ValidateNode(uint32_t index) const {
  const Node& node = nodes_[index];
  const bool live = node.state() == kLive;
  if (index != 0) {
    const Node& parent = nodes_[node.up()];
    if (parent.state() == kFree || (live && parent.state() != kLive)) return Broken("I1 parent", index);
    if (node.depth() != parent.depth() + 1) return Broken("I1 depth", index);
    if ((FindIndex(KeyOf(node)) == index) != live) return Broken("I2", index);
    if (live && parent.heat < node.heat) return Broken("I3", index);
    const bool outlives = ExpiryOf(node.up()) != 0 && (ExpiryOf(index) == 0 || ExpiryOf(index) > ExpiryOf(node.up()));
    if (live && outlives) return Broken("I4", index);
    const bool continues = parent.sequence() == node.sequence() && parent.run_index() + 1 == node.run_index() &&
                           parent.run_more() == node.run_more() && node.up() != 0 && node.bytes() == 0;
    if (node.run_index() > node.run_more() || (node.run_index() > 0 && !continues)) return Broken("I10", index);
    const bool due = ExpiryOf(index) != 0 && (next_expiry_ == 0 || ExpiryOf(index) < next_expiry_);
    if (live && due) return Broken("I9", index);
    const bool in_heap = !node.has_children() && node.child_or_heap != kNone;
    if (in_heap != (live && !node.pinned() && !node.has_children())) return Broken("I6 membership", index);
    if (in_heap && (node.child_or_heap >= heap_size_ || heap_[node.child_or_heap] != index)) {
      return Broken("I6 position", index);
    }
  }
  if (!live && (node.has_children() || !node.pinned())) return Broken("I7", index);
  uint32_t before = kNone;
  for (uint32_t child = node.has_children() ? node.child_or_heap : kNone; child != kNone;) {
    const bool linked = nodes_[child].has_siblings();
    if (nodes_[child].state() != kLive || nodes_[child].up() != index ||
        (linked ? siblings_.Previous(child) : kNone) != before) {
      return Broken("I1 children", child);
    }
    before = child;
    child = linked ? siblings_.Next(child) : kNone;
    if (linked && before == node.child_or_heap && child == kNone) return Broken("I1 siblings", before);
  }
  return absl::OkStatus();
}

absl::Status Trie::ValidateTotals() const {
  std::vector<uint64_t> pins(node_count_);
  for (const auto& [index, count] : leases_) {
    if (index >= node_count_ || nodes_[index].state() == kFree) return Broken("I5 lease", index);
    pins[index] += count;
  }
  uint64_t live = 0, dead = 0, live_bytes = 0, dead_bytes = 0, leased_bytes = 0, leaves = 0, childless = 0,
           children = 0;
  for (uint64_t i = 0; i < node_count_; ++i) {
    const Node& node = nodes_[i];
    if (node.state() == kFree) continue;
    if (node.pinned()) leased_bytes += node.bytes();
    for (NodeRef child = FirstChild(RefOf(static_cast<uint32_t>(i))); child.valid(); child = NextSibling(child)) {
      ++children;
    }
    if (i == 0) continue;
    if (node.pinned()) ++pins[node.up()];
    (node.state() == kLive ? live : dead) += 1;
    (node.state() == kLive ? live_bytes : dead_bytes) += node.bytes();
    if (node.state() == kLive && !node.has_children()) ++childless;
    if (node.state() == kLive && !node.has_children() && !node.pinned()) ++leaves;
  }
  for (uint64_t i = 0; i < node_count_; ++i) {
    if (nodes_[i].state() != kFree && PinsOf(static_cast<uint32_t>(i)) != pins[i]) return Broken("I5", i);
  }
  uint64_t hashed = 0;
  hash_.ForEach([&](uint32_t) { ++hashed; });
  if (children != live) return Broken("I1 reachable", children);
  if (hashed != live) return Broken("I2 hashed", hashed);
  if (leaves != heap_size_) return Broken("I6 size", heap_size_);
  if (childless != leaf_count_) return Broken("I8 leaves", leaf_count_);
  if (live != live_count_ || dead != dead_count_) return Broken("I8 blocks", live);
  if (live_bytes != live_bytes_ || dead_bytes != dead_bytes_) return Broken("I8 bytes", live_bytes);
  if (leased_bytes != leased_bytes_) return Broken("I8 leased bytes", leased_bytes);
  return absl::OkStatus();
}

}  // namespace kvstrata::core::trie
