// SPDX-License-Identifier: Apache-2.0
#include "lib/trie/ghost_table.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "lib/base/random.h"
#include "tests/support/catch.hpp"

namespace {

using kvstrata::core::base::BlockDigest;
using kvstrata::core::base::SeededRandom;
using kvstrata::core::trie::GhostTable;

// `tag` in the bits that tell entries of one set apart.
BlockDigest KeyOf(uint64_t set, uint64_t tag) { return {{0, set}, tag << 16}; }

}  // namespace

TEST_CASE("a ghost table of less than one set remembers nothing") {
  GhostTable none(0), small(63);
  none.Remember(KeyOf(1, 1), 3);
  small.Remember(KeyOf(1, 1), 3);
  CHECK_FALSE(none.Recall(KeyOf(1, 1)).has_value());
  CHECK_FALSE(small.Recall(KeyOf(1, 1)).has_value());
  CHECK(small.MemoryBytes() == 0);
}

TEST_CASE("a ghost table takes what it was given, and counts saturate") {
  GhostTable table(1000);
  CHECK(table.capacity() == 15 * 8);
  CHECK(table.MemoryBytes() == 960);
  table.Remember(KeyOf(4, 9), 70'000);
  CHECK(table.Recall(KeyOf(4, 9)) == 65535u);
  table.Remember(KeyOf(4, 9), 2);
  CHECK(table.Recall(KeyOf(4, 9)) == 2u);
  CHECK_FALSE(table.Recall(KeyOf(5, 9)).has_value());
  // A key whose 48 bits are zero is no empty entry.
  CHECK_FALSE(table.Recall(KeyOf(3, 0)).has_value());
  table.Remember(KeyOf(3, 0), 0);
  CHECK(table.Recall(KeyOf(3, 0)) == 0u);
}

TEST_CASE("each set of a ghost table keeps the eight keys remembered last, like a list") {
  GhostTable table(2 * GhostTable::kSetBytes);
  std::deque<std::pair<uint64_t, uint32_t>> lists[2];  // newest first
  SeededRandom random(7);
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t set = random.Below(2), tag = 1 + random.Below(14);
    auto& list = lists[set];
    const auto known = std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.first == tag; });
    REQUIRE(table.Recall(KeyOf(set, tag)).has_value() == (known != list.end()));
    if (known != list.end()) {
      REQUIRE(table.Recall(KeyOf(set, tag)) == known->second);
      list.erase(known);
    }
    const auto uses = static_cast<uint32_t>(random.Below(100));
    table.Remember(KeyOf(set, tag), uses);
    list.emplace_front(tag, uses);
    if (list.size() > 8) list.pop_back();
  }
}
