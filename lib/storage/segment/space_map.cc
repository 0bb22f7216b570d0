// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/space_map.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace kvstrata::core::storage {
namespace {

// `count` ones (1 to 64) from bit `first` on.
uint64_t Mask(uint32_t first, uint32_t count) { return (~uint64_t{0} >> (64 - count)) << first; }

}  // namespace

// A walk from left to right. `carry` is how many free units lie directly before the place that it has reached.
struct SpaceMap::Search {
  uint32_t run;
  uint32_t from;
  uint32_t carry = 0;
};

SpaceMap::SpaceMap(uint32_t units) : units_(units) {
  const uint32_t words = units / kLeafUnits + (units % kLeafUnits != 0 ? 1 : 0);
  leaves_ = std::bit_ceil(std::max<uint32_t>(words, 1));
  words_.resize(leaves_);
  nodes_.resize(size_t{2} * leaves_);
}

SpaceMap::Node SpaceMap::LeafOf(uint64_t word) {
  // As most words are.
  if (word == 0) return {};
  if (word == ~uint64_t{0}) return {kLeafUnits, kLeafUnits, kLeafUnits};
  Node node;
  node.left = static_cast<uint32_t>(std::countr_one(word));
  node.right = static_cast<uint32_t>(std::countl_one(word));
  // Each step takes one from the length of every run.
  for (uint64_t rest = word; rest != 0; rest &= rest << 1) ++node.longest;
  return node;
}

void SpaceMap::Take(uint32_t first, uint32_t count) {
  assert(AllFree(first, count));
  Change(first, count, false);
  free_ -= count;
}

void SpaceMap::Give(uint32_t first, uint32_t count) {
  assert(first + count <= units_);
  Change(first, count, true);
  free_ += count;
}

bool SpaceMap::AllFree(uint32_t first, uint32_t count) const {
  if (first > units_ || count > units_ - first) return false;
  for (uint32_t at = first; at < first + count;) {
    const uint32_t bit = at % kLeafUnits;
    const uint32_t here = std::min(kLeafUnits - bit, first + count - at);
    if ((~words_[at / kLeafUnits] & Mask(bit, here)) != 0) return false;
    at += here;
  }
  return true;
}

void SpaceMap::BeginBulk(uint32_t units) {
  assert(units <= units_);
  std::fill(words_.begin(), words_.end(), 0);
  SetBits(0, units, true);
  free_ = units;
}

bool SpaceMap::TakeInBulk(uint32_t first, uint32_t count) {
  if (!AllFree(first, count)) return false;
  SetBits(first, count, false);
  free_ -= count;
  return true;
}

void SpaceMap::GiveInBulk(uint32_t first, uint32_t count) {
  SetBits(first, count, true);
  free_ += count;
}

void SpaceMap::EndBulk() { Repair(0, leaves_ - 1); }

void SpaceMap::SetBits(uint32_t first, uint32_t count, bool free) {
  for (uint32_t at = first; at < first + count;) {
    const uint32_t bit = at % kLeafUnits;
    const uint32_t here = std::min(kLeafUnits - bit, first + count - at);
    uint64_t& word = words_[at / kLeafUnits];
    assert((word & Mask(bit, here)) == (free ? 0 : Mask(bit, here)));
    word = free ? word | Mask(bit, here) : word & ~Mask(bit, here);
    at += here;
  }
}

void SpaceMap::Change(uint32_t first, uint32_t count, bool free) {
  if (count == 0) return;
  SetBits(first, count, free);
  Repair(first / kLeafUnits, (first + count - 1) / kLeafUnits);
}

void SpaceMap::Repair(uint32_t first_leaf, uint32_t last_leaf) {
  for (uint32_t leaf = first_leaf; leaf <= last_leaf; ++leaf) nodes_[leaves_ + leaf] = LeafOf(words_[leaf]);
  uint32_t first = leaves_ + first_leaf, last = leaves_ + last_leaf;
  for (uint32_t half = kLeafUnits; first > 1; half *= 2) {
    first /= 2;
    last /= 2;
    for (uint32_t i = first; i <= last; ++i) {
      const Node &a = nodes_[size_t{2} * i], &b = nodes_[size_t{2} * i + 1];
      nodes_[i].left = a.left == half ? half + b.left : a.left;
      nodes_[i].right = b.right == half ? half + a.right : b.right;
      nodes_[i].longest = std::max({a.longest, b.longest, a.right + b.left});
    }
  }
}

std::optional<uint32_t> SpaceMap::Find(uint32_t run, uint32_t from) const {
  assert(run > 0);
  if (run > longest()) return std::nullopt;
  Search search{run, from};
  return FindBelow(search, 1, 0, leaves_ * kLeafUnits);
}

std::optional<uint32_t> SpaceMap::FindBelow(Search& search, uint32_t node, uint32_t begin, uint32_t size) const {
  if (begin + size <= search.from) return std::nullopt;
  const Node& here = nodes_[node];
  if (begin >= search.from) {
    if (search.carry + here.left >= search.run) return begin - search.carry;
    if (here.longest < search.run) {
      search.carry = here.left == size ? search.carry + size : here.right;
      return std::nullopt;
    }
  }
  if (size == kLeafUnits) return FindInLeaf(search, words_[begin / kLeafUnits], begin);
  const uint32_t half = size / 2;
  const std::optional<uint32_t> found = FindBelow(search, 2 * node, begin, half);
  return found.has_value() ? found : FindBelow(search, 2 * node + 1, begin + half, half);
}

// The run does not begin before this leaf, or begins in the part of it that is before `from`.
std::optional<uint32_t> SpaceMap::FindInLeaf(Search& search, uint64_t word, uint32_t begin) const {
  if (begin < search.from) word &= ~uint64_t{0} << (search.from - begin);
  search.carry = static_cast<uint32_t>(std::countl_one(word));
  if (search.run > kLeafUnits) return std::nullopt;
  // Bit i stays set while units i to i + length - 1 are free.
  uint64_t starts = word;
  for (uint32_t length = 1; length < search.run && starts != 0; ++length) starts &= starts >> 1;
  if (starts == 0) return std::nullopt;
  return begin + static_cast<uint32_t>(std::countr_zero(starts));
}

}  // namespace kvstrata::core::storage
