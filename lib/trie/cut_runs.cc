// SPDX-License-Identifier: Apache-2.0
#include "lib/trie/cut_runs.h"

#include <algorithm>

namespace kvstrata::core::trie {
namespace {

// What is pinned was used just now, so few of the coldest are.
constexpr size_t kMostPinned = 64;
constexpr uint64_t kSlack = 64;

}  // namespace

void CutRuns::Add(const Trie& trie, const BlockInfo& first) {
  ++count_;
  if (entries_.size() >= 2 * count_ + kSlack) {
    std::erase_if(entries_, [&](const Entry& entry) { return !trie.IsLive(entry.first); });
    std::ranges::make_heap(entries_, Hotter);
  }
  Push({first.heat, first.node});
}

std::optional<BlockInfo> CutRuns::Coldest(const Trie& trie) {
  std::vector<Entry> pinned;
  std::optional<BlockInfo> coldest;
  while (!entries_.empty() && !coldest.has_value() && pinned.size() < kMostPinned) {
    const Entry top = Pop();
    const std::optional<BlockInfo> first = trie.Get(top.first);
    if (!first.has_value() || first->dead) continue;
    if (first->heat == top.heat && first->pins > 0) {
      pinned.push_back(top);
      continue;
    }
    Push({first->heat, top.first});
    if (first->heat == top.heat) coldest = first;
  }
  for (const Entry& entry : pinned) Push(entry);
  return coldest;
}

CutRuns::Entry CutRuns::Pop() {
  std::ranges::pop_heap(entries_, Hotter);
  const Entry entry = entries_.back();
  entries_.pop_back();
  return entry;
}

void CutRuns::Push(const Entry& entry) {
  entries_.push_back(entry);
  std::ranges::push_heap(entries_, Hotter);
}

}  // namespace kvstrata::core::trie
