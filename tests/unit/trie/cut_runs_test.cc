// SPDX-License-Identifier: Apache-2.0
// The order in which runs that have lost blocks go, against a search through all of them.
#include "lib/trie/cut_runs.h"

#include <algorithm>
#include <map>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/trie/trie_keys.h"

using namespace kvstrata::core::trie;
using kvstrata::test::Rng;
using kvstrata::test::TestSeed;

namespace {

constexpr uint64_t kRoot = 1;

// A run of `blocks` blocks below the root.
BlockInfo AddRun(Trie& trie, uint64_t number, uint32_t blocks, uint64_t tick) {
  NodeRef parent = trie.root();
  NodeRef first;
  for (uint32_t i = 0; i < blocks; ++i) {
    const BlockKey key{{number, i + 1}, number ^ i};
    parent = trie.Insert(parent, key, number, i == 0 ? 1000 : 0, tick, 0, {}, {i, blocks}).value().node;
    if (i == 0) first = parent;
  }
  return trie.Get(first).value();
}

}  // namespace

TEST_CASE("cut runs: the coldest one that is not pinned comes first, as uses, leases and removals change it") {
  Rng rng(TestSeed("cut runs", 20261130));
  Trie trie(BlockKey{{kRoot, kRoot}, kRoot});
  CutRuns runs;
  std::map<uint64_t, NodeRef> live;  // by number
  std::map<uint64_t, int> leases;
  for (uint64_t step = 1; step < 20'000; ++step) {
    CAPTURE(step);
    const auto any = [&] { return std::next(live.begin(), static_cast<std::ptrdiff_t>(rng.Below(live.size()))); };
    switch (live.empty() ? 0 : rng.Below(5)) {
      case 0: {
        const BlockInfo first = AddRun(trie, step, 2, step);
        live[step] = first.node;
        REQUIRE(trie.Remove(trie.FirstChild(first.node)).ok());
        runs.Add(trie, first);
        break;
      }
      case 1: REQUIRE(trie.Touch(any()->second, step)); break;
      case 2: {
        const auto at = any();
        REQUIRE(trie.Lease(at->second).ok());
        ++leases[at->first];
        break;
      }
      case 3: {
        if (leases.empty()) break;
        const auto at = leases.begin();
        REQUIRE(trie.Release(live.at(at->first)).ok());
        if (--at->second == 0) leases.erase(at);
        break;
      }
      default: {
        const auto at = any();
        if (leases.contains(at->first)) break;
        REQUIRE(trie.Remove(at->second).ok());
        runs.Remove();
        live.erase(at);
      }
    }
    std::optional<uint64_t> expected;
    for (const auto& [number, node] : live) {
      const BlockInfo info = trie.Get(node).value();
      if (info.pins == 0) expected = std::min(expected.value_or(UINT64_MAX), info.heat);
    }
    const std::optional<BlockInfo> coldest = runs.Coldest(trie);
    // Behind so many pinned ones it need not look.
    if (!coldest.has_value() && leases.size() >= 64) continue;
    REQUIRE(coldest.has_value() == expected.has_value());
    if (coldest.has_value()) CHECK(coldest->heat == *expected);
    CHECK(runs.count() == live.size());
  }
}

TEST_CASE("cut runs: what has gone takes no memory for long") {
  Trie trie(BlockKey{{kRoot, kRoot}, kRoot});
  CutRuns runs;
  for (uint64_t number = 1; number <= 10'000; ++number) {
    const BlockInfo first = AddRun(trie, number, 2, number);
    REQUIRE(trie.Remove(trie.FirstChild(first.node)).ok());
    runs.Add(trie, first);
    REQUIRE(trie.Remove(first.node).ok());
    runs.Remove();
  }
  CHECK(runs.count() == 0);
  CHECK(runs.MemoryBytes() <= 128 * 16);
}
