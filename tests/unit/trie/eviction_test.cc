// SPDX-License-Identifier: Apache-2.0
// The order of eviction: the numbers in the head of lib/trie/eviction.h, worked out by hand, and what
// follows from them.
#include "lib/trie/eviction.h"

#include <cmath>
#include <memory>
#include <vector>

#include "lib/trie/trie.h"
#include "tests/support/catch.hpp"
#include "tests/unit/trie/trie_keys.h"

namespace {

using namespace kvstrata::core::trie;  // NOLINT: the test is about all of it
using kvstrata::test::ChildKey;
using kvstrata::test::TestRoot;

struct Cache {
  explicit Cache(EvictionPolicy policy, uint64_t capacity_in = 0)
      : order(std::make_shared<EvictionOrder>(policy)), trie(TestRoot(), {.order = order}), capacity(capacity_in) {}

  // Makes room as the engine does, and inserts.
  NodeRef Add(NodeRef parent, int32_t token, const BlockWorth& worth = {}, uint32_t expires_at = 0) {
    while (capacity != 0 && trie.block_count() >= capacity) Evict();
    ++tick;
    const auto added = trie.Insert(parent, ChildKey(trie.Get(parent)->key, token), tick, 10, tick, expires_at, worth);
    REQUIRE(added.ok());
    return added->node;
  }
  NodeRef Evict() {
    const auto coldest = trie.ColdestLeaf();
    REQUIRE(coldest.has_value());
    const auto removed = trie.Remove(*coldest);
    REQUIRE(removed.ok());
    order->Evicted(removed->heat, tick);
    return *coldest;
  }

  std::shared_ptr<EvictionOrder> order;
  Trie trie;
  uint64_t capacity;
  uint64_t tick = 0;
};

}  // namespace

TEST_CASE("heat is the tick of the last use under LRU, wherever the frontier is") {
  EvictionOrder order(EvictionPolicy::kLru);
  for (const uint64_t frontier : {0, 40, 100}) {
    order.Evicted(frontier, 1000);
    for (const uint64_t tick : {1, 40, 41, 99, 100, 101, 1000}) {
      CHECK(order.Heat({.tick = tick, .uses = 50, .cost = 3, .bytes = 1}) == tick);
    }
  }
  CHECK(order.Heat({.tick = UINT64_MAX}) == EvictionOrder::kMaxHeat);
}

TEST_CASE("uses, worth and priority stretch the time that a block stays") {
  EvictionOrder order(EvictionPolicy::kFrequency);
  order.Evicted(1000, 1500);
  CHECK(order.frontier() == 1000);
  CHECK(order.Heat({.tick = 1100, .uses = 1}) == 1100);
  CHECK(order.Heat({.tick = 1100, .uses = 2}) == 1200);
  CHECK(order.Heat({.tick = 1100, .uses = 8}) == 1400);
  CHECK(order.Heat({.tick = 1100, .uses = 3}) == 1250);  // log2 is linear between 2 and 4
  CHECK(order.Heat({.tick = 1100, .uses = 1, .priority = Priority::kLow}) == 1025);
  CHECK(order.Heat({.tick = 1100, .uses = 1, .priority = Priority::kHigh}) == 1400);
  CHECK(order.Heat({.tick = 900, .uses = 8}) == 900);
  // All blocks: 30 tokens in 100 bytes, so 10 in 50 are worth 2/3 of the mean and 10 in 5 would be worth 6 2/3.
  order.Add(20, 50);
  order.Add(10, 50);
  CHECK(order.Heat({.tick = 1256, .uses = 1, .cost = 10, .bytes = 50}) == 1000 + 170);  // 256 * 2/3 rounded down
  CHECK(order.Heat({.tick = 1256, .uses = 1, .cost = 10, .bytes = 5}) == 1000 + 1706);
  CHECK(order.Heat({.tick = 1256, .uses = 1, .cost = 10, .bytes = 1}) == 1000 + 8 * 256);
  CHECK(order.Heat({.tick = 1256, .uses = 1, .cost = 1, .bytes = 1000}) == 1000 + 32);
}

TEST_CASE("the frontier follows evictions, never back and never past the present") {
  EvictionOrder order(EvictionPolicy::kFrequency);
  order.Evicted(50, 100);
  order.Evicted(30, 101);
  CHECK(order.frontier() == 50);
  order.Evicted(400, 102);
  CHECK(order.frontier() == 102);
}

TEST_CASE("the logarithm is exact at powers of two and near in between; no product overflows") {
  CHECK(EvictionOrder::Log2(0) == 0);
  for (uint32_t value = 1; value <= 65536; ++value) {
    const double exact = std::log2(value) * 256;
    const auto got = static_cast<double>(EvictionOrder::Log2(value));
    REQUIRE(got <= exact + 1e-9);
    REQUIRE(got >= exact - 0.0861 * 256 - 1);
  }
  EvictionOrder order(EvictionPolicy::kFrequency);
  order.Add(1, uint64_t{1} << 60);
  const BlockUse most{EvictionOrder::kMaxHeat, 65536, Priority::kHigh, 1000, 1};
  CHECK(order.Heat(most) == EvictionOrder::kMaxHeat);
}

TEST_CASE("E08: a system prompt under 500 sessions outlives 8 budgets of one-off prompts by its frequency") {
  const auto policy = GENERATE(EvictionPolicy::kLru, EvictionPolicy::kFrequency);
  constexpr uint64_t kBudget = 200;
  Cache cache(policy, kBudget);
  std::vector<NodeRef> anchor = {cache.trie.root()};
  for (int32_t i = 0; i < 16; ++i) anchor.push_back(cache.Add(anchor.back(), i));
  for (int32_t session = 0; session < 500; ++session) {
    cache.trie.Touch(anchor.back(), ++cache.tick);
    cache.Add(anchor.back(), 1000 + session);
  }
  for (int32_t i = 0; i < static_cast<int32_t>(8 * kBudget); ++i) cache.Add(cache.trie.root(), 10'000 + i);
  CHECK(cache.trie.IsLive(anchor.back()) == (policy == EvictionPolicy::kFrequency));
  // But it does not stay for ever. A turnover took 2 * 184 ticks under the sessions (a use and an insert each), and
  // 1 + log2(501) = 9.97 of those after its last use, which is 18.3 budgets of one tick a block, it is as cold as any.
  for (int32_t i = 0; i < static_cast<int32_t>(11 * kBudget); ++i) cache.Add(cache.trie.root(), 50'000 + i);
  CHECK_FALSE(cache.trie.IsLive(anchor.back()));
  CHECK(cache.trie.Validate().ok());
}

TEST_CASE("a remembered frequency makes a block that comes back as hot as it was") {
  Cache cache(EvictionPolicy::kFrequency);
  const NodeRef back = cache.Add(cache.trie.root(), 1, {.frequency = 7});
  const NodeRef fresh = cache.Add(cache.trie.root(), 2);
  CHECK(cache.trie.Get(back)->frequency == 7);
  CHECK(cache.trie.Get(back)->heat == 1 + 3);  // 8 uses: 1 + log2(8) times the one tick since the frontier
  CHECK(cache.Evict() == fresh);
}

TEST_CASE("priority: low goes first, high last, also under LRU, and a parent is no colder than its child") {
  const auto policy = GENERATE(EvictionPolicy::kLru, EvictionPolicy::kFrequency);
  Cache cache(policy);
  cache.tick = 100;
  const NodeRef high = cache.Add(cache.trie.root(), 1, {.priority = Priority::kHigh});
  const NodeRef normal = cache.Add(cache.trie.root(), 2);
  const NodeRef low = cache.Add(cache.trie.root(), 3, {.priority = Priority::kLow});
  const NodeRef low_parent = cache.Add(cache.trie.root(), 4, {.priority = Priority::kLow});
  const NodeRef high_child = cache.Add(low_parent, 5, {.priority = Priority::kHigh});
  CHECK(cache.trie.Validate().ok());
  CHECK(cache.trie.Get(low_parent)->heat == cache.trie.Get(high_child)->heat);
  REQUIRE(cache.trie.RaisePriority(high_child, Priority::kNormal));
  CHECK(cache.trie.Get(high_child)->priority == Priority::kHigh);
  CHECK(cache.trie.Get(low_parent)->priority == Priority::kNormal);
  CHECK(cache.Evict() == low);
  CHECK(cache.Evict() == normal);
  CHECK(cache.Evict() == high);
  CHECK(cache.Evict() == high_child);
  CHECK(cache.Evict() == low_parent);
  CHECK_FALSE(cache.trie.RaisePriority(low, Priority::kHigh));
}

TEST_CASE("keeping a block warm is no use of it") {
  Cache cache(EvictionPolicy::kFrequency);
  const NodeRef a = cache.Add(cache.trie.root(), 1);
  REQUIRE(cache.trie.Keep(a, 50));
  CHECK(cache.trie.Get(a)->frequency == 0);
  CHECK(cache.trie.Get(a)->heat == 50);
  REQUIRE(cache.trie.Touch(a, 50));
  CHECK(cache.trie.Get(a)->frequency == 1);
  CHECK(cache.trie.Get(a)->heat == 100);
}

TEST_CASE("a sweep leaves what is leased, finds it later, and costs nothing before anything can expire") {
  Cache cache(EvictionPolicy::kLru);
  const NodeRef a = cache.Add(cache.trie.root(), 1, {}, 10);
  const NodeRef b = cache.Add(a, 2, {}, 10);
  cache.Add(b, 3, {}, 5);
  cache.Add(cache.trie.root(), 4);
  CHECK(cache.trie.next_expiry() == 5);
  CHECK(cache.trie.SweepExpired(4, UINT64_MAX) == 0);
  REQUIRE(cache.trie.Lease(a).ok());
  CHECK(cache.trie.SweepExpired(20, UINT64_MAX) == 2);
  CHECK(cache.trie.IsLive(a));
  CHECK(cache.trie.Validate().ok());
  REQUIRE(cache.trie.Release(a).ok());
  CHECK(cache.trie.SweepExpired(20, UINT64_MAX) == 1);
  CHECK(cache.trie.SweepExpired(20, UINT64_MAX) == 0);
  CHECK(cache.trie.next_expiry() == 0);
  CHECK(cache.trie.block_count() == 1);
}

TEST_CASE("tries that share an order share its frontier and its mean worth") {
  auto order = std::make_shared<EvictionOrder>(EvictionPolicy::kFrequency);
  Trie dense(TestRoot(), {.order = order, .block_cost = 64});
  Trie bulky(TestRoot(), {.order = order, .block_cost = 64});
  for (int32_t i = 0; i < 9; ++i) REQUIRE(dense.Insert(dense.root(), ChildKey(TestRoot(), i), 1, 100, 1).ok());
  const auto big = bulky.Insert(bulky.root(), ChildKey(TestRoot(), 1), 1, 900, 100);
  REQUIRE(big.ok());
  // 640 tokens in 1,800 bytes; the big block has 64 in 900: a fifth of the mean.
  CHECK(bulky.Get(big->node)->heat == 100 * (256 / 5) / 256);
  {
    Trie passing(TestRoot(), {.order = order, .block_cost = 64});
    REQUIRE(passing.Insert(passing.root(), ChildKey(TestRoot(), 1), 1, 100'000, 1).ok());
  }
  // What has gone with its trie counts no more.
  REQUIRE(bulky.Touch(big->node, 200));
  CHECK(bulky.Get(big->node)->heat == 200 * 2 * (256 / 5) / 256);
}
