// SPDX-License-Identifier: Apache-2.0
#include "lib/trie/ghost_table.h"

#include <algorithm>

namespace kvstrata::core::trie {
namespace {

constexpr uint32_t kCountBits = 16;
constexpr uint64_t kCountMax = (uint64_t{1} << kCountBits) - 1;

}  // namespace

// The upper 48 bits, never 0 (I2). The set comes from another part of the key.
uint64_t GhostTable::TagOf(const base::BlockDigest& key) {
  return std::max<uint64_t>(key.check >> kCountBits, 1) << kCountBits;
}

void GhostTable::Remember(const base::BlockDigest& key, uint32_t uses) {
  if (sets_.empty()) return;
  Set& set = sets_[key.digest.hi % sets_.size()];
  const uint64_t tag = TagOf(key);
  auto place = std::find_if(set.begin(), set.end() - 1,
                            [&](uint64_t entry) { return (entry & ~kCountMax) == tag || entry == 0; });
  std::move_backward(set.begin(), place, place + 1);
  set.front() = tag | std::min<uint64_t>(uses, kCountMax);
}

std::optional<uint32_t> GhostTable::Recall(const base::BlockDigest& key) const {
  if (sets_.empty()) return std::nullopt;
  const Set& set = sets_[key.digest.hi % sets_.size()];
  const uint64_t tag = TagOf(key);
  for (const uint64_t entry : set) {
    if ((entry & ~kCountMax) == tag) return static_cast<uint32_t>(entry & kCountMax);
  }
  return std::nullopt;
}

}  // namespace kvstrata::core::trie
