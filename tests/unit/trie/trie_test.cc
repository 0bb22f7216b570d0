// SPDX-License-Identifier: Apache-2.0
#include "lib/trie/trie.h"

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/unit/trie/trie_keys.h"

namespace {

using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::core::base::FieldOf;
using kvstrata::core::trie::BlockInfo;
using kvstrata::core::trie::BlockKey;
using kvstrata::core::trie::FirstDifference;
using kvstrata::core::trie::KeySequence;
using kvstrata::core::trie::MaxMatchBlocks;
using kvstrata::core::trie::NodeRef;
using kvstrata::core::trie::Trie;
using kvstrata::core::trie::TrieOptions;
using kvstrata::test::ChildKey;
using kvstrata::test::KeysOf;
using kvstrata::test::TestRoot;

// A trie with blocks of one token and 10 bytes; sequence numbers count up.
struct Fixture {
  Trie trie{TestRoot()};
  uint64_t sequence = 0;

  NodeRef Add(NodeRef parent, int32_t token, uint64_t tick = 1, uint32_t expires_at = 0) {
    const auto added =
        trie.Insert(parent, ChildKey(trie.Get(parent)->key, token), ++sequence, 10, tick, expires_at);
    REQUIRE(added.ok());
    CHECK(added->inserted);
    return added->node;
  }
  std::vector<NodeRef> AddChain(NodeRef parent, int32_t first, int32_t count, uint64_t tick = 1) {
    std::vector<NodeRef> chain;
    for (int32_t i = 0; i < count; ++i) chain.push_back(parent = Add(parent, first + i, tick));
    return chain;
  }
};

std::vector<int32_t> Range(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace

TEST_CASE("an empty trie matches nothing, hashes one block, has nothing to evict") {
  Fixture f;
  KeySequence keys = KeysOf(Range(0, 1000));
  const auto match = f.trie.Match(keys, 1000);
  CHECK(match.blocks == 0);
  CHECK(match.node == f.trie.root());
  CHECK(keys.computed() == 1);
  CHECK_FALSE(f.trie.ColdestLeaf().has_value());
  CHECK(f.trie.block_count() == 0);
  CHECK(f.trie.Get(f.trie.root())->depth == 0);
  CHECK(f.trie.Path(f.trie.root()).empty());
  KeySequence none = KeysOf({});
  CHECK(f.trie.Match(none, 0).blocks == 0);
  CHECK(none.computed() == 0);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("a long match makes room for its keys once, and a short one hashes no more for it") {
  constexpr int32_t kBlocks = 3000, kShared = 5;
  Fixture f;
  f.AddChain(f.trie.root(), 0, kBlocks);
  // The address of the first block's key, as each call has it.
  std::vector<uintptr_t> begins;
  const auto keys_like = [&](uint64_t shared) {
    return KeySequence(TestRoot(), [&begins, shared](uint64_t index, BlockKey parent, std::span<BlockKey> out) {
      begins.push_back(reinterpret_cast<uintptr_t>(out.data()) - index * sizeof(BlockKey));
      for (BlockKey& key : out) {
        key = parent = ChildKey(parent, static_cast<int32_t>(index < shared ? index : index + kBlocks));
        ++index;
      }
    });
  };
  KeySequence whole = keys_like(kBlocks);
  REQUIRE(f.trie.Match(whole, kBlocks).blocks == kBlocks);
  // 1, 2, 4, ..., 64: what comes then is made room for.
  REQUIRE(begins.size() > 9);
  for (size_t call = 8; call < begins.size(); ++call) CHECK(begins[call] == begins[7]);
  KeySequence parting = keys_like(kShared);
  REQUIRE(f.trie.Match(parting, kBlocks).blocks == kShared);
  CHECK(parting.computed() <= 2 * kShared);
}

TEST_CASE("a match is the longest stored prefix, for every stored and every asked length") {
  for (int32_t stored = 0; stored <= 40; ++stored) {
    Fixture f;
    const auto chain = f.AddChain(f.trie.root(), 0, stored);
    for (int32_t asked = 0; asked <= 44; ++asked) {
      KeySequence keys = KeysOf(Range(0, 44));
      const auto match = f.trie.Match(keys, static_cast<uint64_t>(asked));
      const auto expected = static_cast<uint64_t>(std::min(stored, asked));
      REQUIRE(match.blocks == expected);
      REQUIRE(match.node == (expected == 0 ? f.trie.root() : chain[expected - 1]));
      REQUIRE(keys.computed() <= std::max<uint64_t>(2 * expected, 1));
    }
  }
}

TEST_CASE("a match ends where two chains part, and the path leads there") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 10);
  const auto branch = f.AddChain(chain[4], 100, 3);
  KeySequence keys = KeysOf({0, 1, 2, 3, 4, 100, 101, 7, 8});
  const auto match = f.trie.Match(keys, 9);
  CHECK(match.blocks == 7);
  CHECK(match.node == branch[1]);
  std::vector<NodeRef> expected(chain.begin(), chain.begin() + 5);
  expected.insert(expected.end(), {branch[0], branch[1]});
  CHECK(f.trie.Path(match.node) == expected);
  CHECK(f.trie.Parent(branch[0]) == chain[4]);
  CHECK(f.trie.Parent(chain[0]) == f.trie.root());
  CHECK_FALSE(f.trie.Parent(f.trie.root()).valid());
}

TEST_CASE("a block counts only with the right check hash and at its own depth") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 2);
  BlockKey other_check = f.trie.Get(chain[0])->key;
  ++other_check.check;
  CHECK_FALSE(f.trie.Find(other_check).has_value());
  KeySequence wrong_check(TestRoot(), [&](uint64_t, const BlockKey&) { return other_check; });
  CHECK(f.trie.Match(wrong_check, 1).blocks == 0);
  KeySequence wrong_depth(TestRoot(), [&](uint64_t, const BlockKey&) { return f.trie.Get(chain[1])->key; });
  CHECK(f.trie.Match(wrong_depth, 1).blocks == 0);

  // A digest collision is a second block of its own, told apart by the check.
  const auto collided = f.trie.Insert(f.trie.root(), other_check, 99, 10, 1);
  REQUIRE(collided.ok());
  CHECK(collided->inserted);
  CHECK(f.trie.Find(other_check) == collided->node);
  CHECK(f.trie.Find(f.trie.Get(chain[0])->key) == chain[0]);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("a prompt is matched up to its last token but one, on the block grid") {
  CHECK(MaxMatchBlocks(0, 128) == 0);
  CHECK(MaxMatchBlocks(1, 128) == 0);
  CHECK(MaxMatchBlocks(128, 128) == 0);
  CHECK(MaxMatchBlocks(129, 128) == 1);
  CHECK(MaxMatchBlocks(256, 128) == 1);
  CHECK(MaxMatchBlocks(257, 128) == 2);
  CHECK(MaxMatchBlocks(5, 1) == 4);
  CHECK(MaxMatchBlocks(5, 0) == 0);
  CHECK(MaxMatchBlocks(UINT64_MAX, 1) == UINT64_MAX - 1);
}

TEST_CASE("the first differing token is found") {
  const std::vector<int32_t> stored = {1, 2, 3, 4};
  CHECK(FirstDifference(std::vector<int32_t>{1, 2, 3, 4}, stored) == 4);
  CHECK(FirstDifference(std::vector<int32_t>{1, 2, 9, 4}, stored) == 2);
  CHECK(FirstDifference(std::vector<int32_t>{9}, stored) == 0);
  CHECK(FirstDifference(std::vector<int32_t>{1, 2}, stored) == 2);
  CHECK(FirstDifference({}, stored) == 0);
}

TEST_CASE("insert refuses what would be an orphan, a duplicate elsewhere, or out of range") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 3);
  const BlockKey key = ChildKey(f.trie.Get(chain[2])->key, 3);

  const auto again = f.trie.Insert(chain[1], f.trie.Get(chain[2])->key, 77, 5, 9);
  REQUIRE(again.ok());
  CHECK_FALSE(again->inserted);
  CHECK(again->node == chain[2]);
  CHECK(f.trie.Get(chain[2])->sequence == 3);
  CHECK(CodeOf(f.trie.Insert(chain[0], f.trie.Get(chain[2])->key, 77, 5, 9).status()) == Code::kInvalidState);

  CHECK(FieldOf(f.trie.Insert(chain[2], key, 4, Trie::kMaxBlockBytes + 1, 1).status()) == "bytes");
  REQUIRE(f.trie.Insert(chain[2], key, 4, Trie::kMaxBlockBytes, 1).ok());
  CHECK(f.trie.bytes() == 30 + Trie::kMaxBlockBytes);
  REQUIRE(f.trie.Remove(*f.trie.Find(key)).ok());
  CHECK(FieldOf(f.trie.Insert(chain[2], key, Trie::kMaxSequence + 1, 10, 1).status()) == "sequence");
  const auto last = f.trie.Insert(chain[2], key, Trie::kMaxSequence, 10, 1);
  REQUIRE(last.ok());
  CHECK(f.trie.Get(last->node)->sequence == Trie::kMaxSequence);
  REQUIRE(f.trie.Remove(last->node).ok());

  REQUIRE(f.trie.Remove(chain[2]).ok());
  const auto orphan = f.trie.Insert(chain[2], key, 4, 10, 1);
  CHECK(CodeOf(orphan.status()) == Code::kNotFound);
  CHECK(FieldOf(orphan.status()) == "parent");
  CHECK(CodeOf(f.trie.Insert(NodeRef{}, key, 4, 10, 1).status()) == Code::kNotFound);
  CHECK(CodeOf(f.trie.Insert(NodeRef{1000, 1}, key, 4, 10, 1).status()) == Code::kNotFound);
  CHECK(f.trie.block_count() == 2);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("a full index says so and goes on after an eviction") {
  TrieOptions options;
  options.max_blocks = 1000;
  Trie trie(TestRoot(), options);
  uint64_t refused = 0;
  const auto insert = [&](int32_t i) {
    const auto at = static_cast<uint64_t>(i);
    return trie.Insert(trie.root(), ChildKey(TestRoot(), i), at, 1, at);
  };
  for (int32_t i = 0; i < 5000; ++i) {
    auto added = insert(i);
    if (!added.ok()) {
      ++refused;
      REQUIRE(CodeOf(added.status()) == Code::kNoSpace);
      REQUIRE(FieldOf(added.status()) == "max_blocks");
      REQUIRE(trie.Remove(*trie.ColdestLeaf()).ok());
      added = insert(i);
    }
    REQUIRE(added.ok());
  }
  CHECK(refused == 4000);
  CHECK(trie.block_count() == 1000);
  // The oldest went first.
  CHECK_FALSE(trie.Find(ChildKey(TestRoot(), 3999)).has_value());
  CHECK(trie.Find(ChildKey(TestRoot(), 4000)).has_value());
  CHECK(trie.Validate().ok());
}

TEST_CASE("a reference to a block that has gone is detected, also when its slot is used again") {
  Fixture f;
  const NodeRef old = f.Add(f.trie.root(), 1);
  REQUIRE(f.trie.Remove(old).ok());
  const NodeRef fresh = f.Add(f.trie.root(), 2);
  CHECK(fresh.index == old.index);
  CHECK(fresh != old);
  CHECK_FALSE(f.trie.IsLive(old));
  CHECK_FALSE(f.trie.Get(old).has_value());
  CHECK_FALSE(f.trie.Touch(old, 5));
  CHECK_FALSE(f.trie.ExtendExpiry(old, 5));
  CHECK_FALSE(f.trie.Parent(old).valid());
  CHECK_FALSE(f.trie.FirstChild(old).valid());
  CHECK_FALSE(f.trie.NextSibling(old).valid());
  CHECK(f.trie.Path(old).empty());
  CHECK(CodeOf(f.trie.Lease(old)) == Code::kNotFound);
  CHECK(CodeOf(f.trie.Release(old)) == Code::kNotFound);
  CHECK(CodeOf(f.trie.Remove(old).status()) == Code::kNotFound);
  CHECK(CodeOf(f.trie.DetachSubtree(old).status()) == Code::kNotFound);
  f.trie.SetMark(old, true);
  CHECK_FALSE(f.trie.IsMarked(old));
  CHECK_FALSE(f.trie.IsMarked(fresh));
}

TEST_CASE("eviction is leaf first, coldest first, and a use warms the whole path") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 3, 5);
  const NodeRef sibling = f.Add(chain[0], 100, 7);
  CHECK(f.trie.Get(chain[0])->heat == 7);
  CHECK(f.trie.Get(chain[1])->heat == 5);
  CHECK(f.trie.ColdestLeaf() == chain[2]);

  REQUIRE(f.trie.Touch(chain[2], 9));
  CHECK(f.trie.ColdestLeaf() == sibling);
  for (const NodeRef node : chain) {
    CHECK(f.trie.Get(node)->heat == 9);
    CHECK(f.trie.Get(node)->frequency == 1);
  }
  CHECK(f.trie.Get(sibling)->frequency == 0);
  // An old tick cools nothing.
  REQUIRE(f.trie.Touch(chain[2], 2));
  CHECK(f.trie.Get(chain[2])->heat == 9);
  CHECK(f.trie.Get(chain[2])->frequency == 2);

  CHECK(CodeOf(f.trie.Remove(chain[0]).status()) == Code::kInvalidState);
  CHECK(CodeOf(f.trie.Remove(f.trie.root()).status()) == Code::kInvalidState);
  std::vector<NodeRef> order;
  while (const auto leaf = f.trie.ColdestLeaf()) {
    order.push_back(*leaf);
    const auto removed = f.trie.Remove(*leaf);
    REQUIRE(removed.ok());
    CHECK(removed->node == *leaf);
    CHECK(f.trie.Validate().ok());
  }
  CHECK(order == std::vector<NodeRef>{sibling, chain[2], chain[1], chain[0]});
  CHECK(f.trie.bytes() == 0);
}

TEST_CASE("an anchor shared by many outlives them all") {
  Fixture f;
  const auto anchor = f.AddChain(f.trie.root(), 0, 16);
  uint64_t tick = 2;
  for (int32_t session = 0; session < 5000; ++session, ++tick) {
    f.Add(anchor.back(), 1000 + session, tick);
    if (f.trie.block_count() > 516) REQUIRE(f.trie.Remove(*f.trie.ColdestLeaf()).ok());
  }
  for (const NodeRef node : anchor) CHECK(f.trie.IsLive(node));
  CHECK(f.trie.block_count() == 516);
}

TEST_CASE("matching does not touch; ticks and frequencies saturate") {
  Fixture f;
  const NodeRef a = f.Add(f.trie.root(), 1, 1);
  f.Add(f.trie.root(), 2, 2);
  KeySequence keys = KeysOf({1});
  CHECK(f.trie.Match(keys, 1).node == a);
  CHECK(f.trie.Get(a)->heat == 1);
  CHECK(f.trie.Get(a)->frequency == 0);
  CHECK(f.trie.ColdestLeaf() == a);
  for (int i = 0; i < 70000; ++i) f.trie.Touch(a, UINT64_MAX);
  CHECK(f.trie.Get(a)->frequency == 65535);
  CHECK(f.trie.Get(a)->heat == Trie::kMaxTick);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("a lease keeps a block and its ancestors while everything else goes") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 4);
  f.AddChain(f.trie.root(), 50, 3);
  REQUIRE(f.trie.Lease(chain[2]).ok());
  REQUIRE(f.trie.Lease(chain[2]).ok());
  CHECK(f.trie.LeasedBytes() == 30);
  CHECK(f.trie.Get(chain[0])->pins == 1);
  CHECK(f.trie.Get(chain[3])->pins == 0);
  while (const auto leaf = f.trie.ColdestLeaf()) REQUIRE(f.trie.Remove(*leaf).ok());
  CHECK(f.trie.block_count() == 3);
  CHECK(CodeOf(f.trie.Remove(chain[2]).status()) == Code::kBusy);
  CHECK(f.trie.Validate().ok());

  REQUIRE(f.trie.Release(chain[2]).ok());
  CHECK(f.trie.LeasedBytes() == 30);
  CHECK_FALSE(f.trie.ColdestLeaf().has_value());
  REQUIRE(f.trie.Release(chain[2]).ok());
  CHECK(f.trie.LeasedBytes() == 0);
  CHECK(CodeOf(f.trie.Release(chain[2])) == Code::kInvalidState);
  CHECK(f.trie.ColdestLeaf() == chain[2]);
}

TEST_CASE("pins count beyond what a node has room for, and end one by one") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 2);
  std::vector<NodeRef> leaves;
  for (int32_t i = 0; i < 100; ++i) leaves.push_back(f.Add(chain[1], 1000 + i));
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    REQUIRE(f.trie.Lease(leaves[i]).ok());
    REQUIRE(f.trie.Get(chain[1])->pins == i + 1);
    REQUIRE(f.trie.Lease(leaves[0]).ok());
    REQUIRE(f.trie.Get(leaves[0])->pins == i + 2);
  }
  CHECK(f.trie.Get(chain[0])->pins == 1);
  CHECK(f.trie.Validate().ok());
  for (uint32_t left = 100; left > 0; --left) REQUIRE(f.trie.Release(leaves[0]).ok());
  CHECK(f.trie.Get(leaves[0])->pins == 1);
  for (uint32_t left = 100; left > 0; --left) {
    REQUIRE(f.trie.Get(chain[1])->pins == left);
    REQUIRE(CodeOf(f.trie.Remove(leaves[left - 1]).status()) == Code::kBusy);
    REQUIRE(f.trie.Release(leaves[left - 1]).ok());
    REQUIRE(f.trie.Remove(leaves[left - 1]).ok());
    REQUIRE(f.trie.Validate().ok());
  }
  CHECK(f.trie.LeasedBytes() == 0);
}

TEST_CASE("one block that expires among many that do not") {
  Fixture f;
  std::vector<NodeRef> roots;
  for (int32_t i = 0; i < 3000; ++i) roots.push_back(f.Add(f.trie.root(), i));
  CHECK(f.trie.next_expiry() == 0);
  const NodeRef mortal = f.Add(roots[7], 5000, 1, 100);
  CHECK(f.trie.Get(mortal)->expires_at == 100);
  CHECK(f.trie.Get(roots[7])->expires_at == 0);
  REQUIRE(f.trie.ExtendExpiry(mortal, 0));
  CHECK(f.trie.Get(mortal)->expires_at == 0);
  REQUIRE(f.trie.Remove(mortal).ok());
  // The slot is used again, by one that lives for ever.
  CHECK(f.trie.Get(f.Add(roots[8], 5001))->expires_at == 0);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("an ancestor's lease cannot be ended in a descendant's name") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 2);
  REQUIRE(f.trie.Lease(chain[1]).ok());
  CHECK(CodeOf(f.trie.Release(chain[0])) == Code::kInvalidState);
  CHECK(f.trie.Get(chain[0])->pins == 1);
  REQUIRE(f.trie.Lease(f.trie.root()).ok());
  REQUIRE(f.trie.Release(f.trie.root()).ok());
  REQUIRE(f.trie.Release(chain[1]).ok());
  CHECK(f.trie.LeasedBytes() == 0);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("detaching drops the subtree at once and tells children before parents") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 4);
  f.AddChain(chain[1], 100, 2);
  std::vector<BlockInfo> removed;
  const auto count = f.trie.DetachSubtree(chain[1], [&](const BlockInfo& info) { removed.push_back(info); });
  REQUIRE(count.ok());
  CHECK(*count == 5);
  REQUIRE(removed.size() == 5);
  CHECK(removed.back().node == chain[1]);
  for (size_t i = 1; i < removed.size(); ++i) {
    CHECK_FALSE(removed[i].dead);
    for (size_t k = 0; k < i; ++k) CHECK(removed[i].parent != removed[k].node);
  }
  CHECK(f.trie.block_count() == 1);
  CHECK(f.trie.ColdestLeaf() == chain[0]);
  KeySequence keys = KeysOf({0, 1, 2});
  CHECK(f.trie.Match(keys, 3).blocks == 1);
  CHECK(f.trie.Validate().ok());

  f.AddChain(f.trie.root(), 200, 3);
  CHECK(*f.trie.DetachSubtree(f.trie.root()) == 4);
  CHECK(f.trie.block_count() == 0);
  CHECK(f.trie.IsLive(f.trie.root()));
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("a subtree that is detached in parts is a subtree after each, and its new leaves can be evicted") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 6);
  f.AddChain(chain[2], 100, 5);
  f.AddChain(f.trie.root(), 200, 3);
  REQUIRE(f.trie.Lease(chain[3]).ok());
  uint64_t left = 14;
  for (const uint64_t most : {0u, 1u, 4u, 3u, 5u}) {
    CAPTURE(most);
    CHECK(*f.trie.DetachSubtree(f.trie.root(), nullptr, most) == most);
    left -= most;
    CHECK(f.trie.block_count() == left);
    CHECK(f.trie.ColdestLeaf().has_value() == (left > 1));  // the last one is above the leased one
    CHECK(f.trie.Validate().ok());
  }
  CHECK(*f.trie.DetachSubtree(f.trie.root(), nullptr, 5) == 1);
  REQUIRE(f.trie.Release(chain[3]).ok());
  CHECK(f.trie.dead_count() == 0);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("a leased block that is detached is dead until its release, and its ancestors stay pinned") {
  Fixture f;
  const auto chain = f.AddChain(f.trie.root(), 0, 4);
  REQUIRE(f.trie.Lease(chain[2]).ok());
  std::vector<bool> dead;
  REQUIRE(f.trie.DetachSubtree(chain[1], [&](const BlockInfo& info) { dead.push_back(info.dead); }).ok());
  CHECK(dead == std::vector<bool>{false, true, true});
  CHECK(f.trie.dead_count() == 2);
  CHECK(f.trie.dead_bytes() == 20);
  CHECK(f.trie.bytes() == 10);
  CHECK(f.trie.LeasedBytes() == 30);
  CHECK(f.trie.Validate().ok());

  CHECK_FALSE(f.trie.IsLive(chain[2]));
  CHECK(f.trie.Get(chain[2])->dead);
  CHECK(f.trie.Path(chain[2]) == std::vector<NodeRef>{chain[0], chain[1], chain[2]});
  CHECK_FALSE(f.trie.ColdestLeaf().has_value());
  CHECK(CodeOf(f.trie.Lease(chain[2])) == Code::kNotFound);
  CHECK(CodeOf(f.trie.Insert(chain[2], ChildKey(TestRoot(), 9), 9, 1, 1).status()) == Code::kNotFound);

  // The same prefix stored again is a new block beside the dead one.
  const NodeRef again = f.Add(chain[0], 1);
  CHECK(again != chain[1]);
  CHECK(f.trie.Validate().ok());

  std::vector<NodeRef> freed;
  REQUIRE(f.trie.Release(chain[2], [&](const BlockInfo& info) { freed.push_back(info.node); }).ok());
  CHECK(freed == std::vector<NodeRef>{chain[2], chain[1]});
  CHECK(f.trie.dead_count() == 0);
  CHECK(f.trie.LeasedBytes() == 0);
  CHECK_FALSE(f.trie.Get(chain[2]).has_value());
  CHECK(f.trie.ColdestLeaf() == again);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("a time to live never outlasts the parent's, and an expired block ends the match") {
  Fixture f;
  const NodeRef a = f.Add(f.trie.root(), 0, 1, 100);
  const NodeRef b = f.Add(a, 1, 1, 200);
  const NodeRef c = f.Add(b, 2, 1, 0);
  const NodeRef d = f.Add(c, 3, 1, 50);
  CHECK(f.trie.Get(b)->expires_at == 100);
  CHECK(f.trie.Get(c)->expires_at == 100);
  CHECK(f.trie.Get(d)->expires_at == 50);
  const auto match_at = [&](uint32_t now) {
    KeySequence keys = KeysOf({0, 1, 2, 3});
    return f.trie.Match(keys, 4, now).blocks;
  };
  CHECK(match_at(0) == 4);
  CHECK(match_at(49) == 4);
  CHECK(match_at(50) == 3);
  CHECK(match_at(100) == 0);
  CHECK(f.trie.Lease(c, 99).ok());
  CHECK(CodeOf(f.trie.Lease(c, 100)) == Code::kNotFound);
  REQUIRE(f.trie.Release(c).ok());

  REQUIRE(f.trie.ExtendExpiry(b, 150));
  CHECK(f.trie.Get(a)->expires_at == 150);
  CHECK(f.trie.Get(c)->expires_at == 100);
  CHECK(match_at(120) == 2);
  REQUIRE(f.trie.ExtendExpiry(b, 120));
  CHECK(f.trie.Get(b)->expires_at == 150);
  REQUIRE(f.trie.ExtendExpiry(a, 0));
  CHECK(f.trie.Get(a)->expires_at == 0);
  CHECK(f.trie.Validate().ok());

  CHECK(f.trie.SweepExpired(40, 100) == 0);
  CHECK(f.trie.SweepExpired(120, 100) == 2);
  CHECK(f.trie.block_count() == 2);
  CHECK(f.trie.SweepExpired(UINT32_MAX, 100) == 1);
  CHECK(f.trie.IsLive(a));
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("an expiry sweep goes round in small steps") {
  Fixture f;
  for (int32_t i = 0; i < 100; ++i) f.Add(f.trie.root(), i, 1, i % 2 == 0 ? 10 : 0);
  uint64_t removed = 0;
  for (int step = 0; step < 11; ++step) removed += f.trie.SweepExpired(10, 10);
  CHECK(removed == 50);
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("children can be walked, newest first, and a removal closes the gap") {
  Fixture f;
  std::vector<NodeRef> children;
  for (int32_t i = 0; i < 5; ++i) children.push_back(f.Add(f.trie.root(), i));
  const auto walk = [&] {
    std::vector<NodeRef> seen;
    for (NodeRef c = f.trie.FirstChild(f.trie.root()); c.valid(); c = f.trie.NextSibling(c)) seen.push_back(c);
    return seen;
  };
  CHECK(walk() == std::vector<NodeRef>{children[4], children[3], children[2], children[1], children[0]});
  for (const size_t gone : {size_t{2}, size_t{4}, size_t{0}}) REQUIRE(f.trie.Remove(children[gone]).ok());
  CHECK(walk() == std::vector<NodeRef>{children[3], children[1]});
  CHECK(f.trie.Validate().ok());
}

TEST_CASE("keys are computed in order and once, whatever is asked") {
  uint64_t calls = 0;
  KeySequence keys(TestRoot(), [&](uint64_t i, const BlockKey& parent) {
    CHECK(i == calls++);
    return ChildKey(parent, static_cast<int32_t>(i));
  });
  const BlockKey fifth = keys.At(4);
  CHECK(keys.At(2) == ChildKey(keys.At(1), 2));
  CHECK(keys.At(4) == fifth);
  CHECK(calls == 5);
}

TEST_CASE("a trie that was built in bulk is the one that was built block by block") {
  constexpr int32_t kChains = 60;
  Trie singly{TestRoot()}, bulk{TestRoot()};
  bulk.BeginBulk(kChains * 4);  // fewer than there will be
  for (Trie* const trie : {&singly, &bulk}) {
    uint64_t sequence = 0;
    for (int32_t chain = 0; chain < kChains; ++chain) {
      NodeRef node = trie->root();
      BlockKey key = TestRoot();
      for (int32_t i = 0; i < 1 + chain % 9; ++i) {
        // Chains share their beginnings; ticks go up and down.
        key = ChildKey(key, i < 3 ? i : 100 * chain + i);
        ++sequence;
        const auto added = trie->Insert(node, key, sequence, 10, 1 + sequence * 7919 % 101);
        REQUIRE(added.ok());
        CHECK(trie->Find(key) == added->node);
        node = added->node;
      }
    }
  }
  CHECK_FALSE(bulk.ColdestLeaf().has_value());
  for (int32_t i = 0; i < 1000; ++i) CHECK_FALSE(bulk.Find(ChildKey(TestRoot(), 5000 + i)).has_value());
  CHECK_FALSE(bulk.Find(TestRoot()).has_value());
  // A key that is there, under another parent.
  const BlockKey first = ChildKey(TestRoot(), 0);
  const auto misplaced = bulk.Insert(*bulk.Find(first), first, 2000, 10, 1);
  CHECK(CodeOf(misplaced.status()) == Code::kInvalidState);
  bulk.EndBulk();
  REQUIRE(bulk.Validate().ok());
  CHECK(bulk.block_count() == singly.block_count());
  CHECK(bulk.bytes() == singly.bytes());
  // The same order of eviction, to the last one.
  while (const std::optional<NodeRef> coldest = singly.ColdestLeaf()) {
    const auto other = bulk.ColdestLeaf();
    REQUIRE(other.has_value());
    REQUIRE(bulk.Get(*other)->key == singly.Get(*coldest)->key);
    REQUIRE(bulk.Get(*other)->heat == singly.Get(*coldest)->heat);
    REQUIRE(singly.Remove(*coldest).ok());
    REQUIRE(bulk.Remove(*other).ok());
  }
  CHECK(bulk.block_count() == 0);
  // Not for one that has had blocks.
  bulk.BeginBulk(10);
  REQUIRE(bulk.Insert(bulk.root(), ChildKey(TestRoot(), 1), 1000, 10, 5).ok());
  CHECK(bulk.ColdestLeaf().has_value());
}
