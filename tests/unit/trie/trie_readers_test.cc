// SPDX-License-Identifier: Apache-2.0
// Lookups beside a writer that inserts, evicts, detaches and lets the index grow: what is always there is always found,
// what is found and still there is what the writer sees, and no thread waits for another.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/base/hash.h"
#include "lib/trie/trie.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"

namespace {

using namespace kvstrata::core::trie;  // NOLINT: the test is about all of it
using kvstrata::core::base::ChainBlock;
using kvstrata::core::base::RootDigest;
using kvstrata::test::Rng;

constexpr uint64_t kStayBlocks = 37;  // of the chain that is never removed
constexpr uint64_t kTailBlocks = 29;  // of what comes and goes behind it
constexpr int32_t kTails = 24;
constexpr uint64_t kWriterSteps = 6000;  // some tenths of a second

BlockKey RootKey() { return RootDigest({}); }

// Block i of the prompt that ends in tail number `tail`; the first kStayBlocks are the same for all.
KeySequence KeysOf(int32_t tail) {
  return KeySequence(RootKey(), [tail](uint64_t index, const BlockKey& parent) {
    const int32_t token = index < kStayBlocks ? 1000 : tail;
    return ChainBlock(parent, std::span(&token, 1));
  });
}

struct World {
  Trie trie{RootKey()};
  std::mutex mutex;  // of the writer, and of readers that prove what they found
  std::atomic<bool> done{false};
  std::atomic<uint64_t> proven{0};
  std::atomic<uint64_t> gone{0};
  std::atomic<uint64_t> wrong{0};
};

// Under the world's lock.
void Extend(World& world, int32_t tail, uint64_t blocks, uint64_t* sequence) {
  KeySequence keys = KeysOf(tail);
  NodeRef parent = world.trie.root();
  for (uint64_t i = 0; i < blocks; ++i) {
    const auto added = world.trie.Insert(parent, keys.At(i), *sequence, 10, *sequence);
    if (!added.ok()) return;
    *sequence += 1;
    parent = added->node;
  }
}

void Write(World& world, uint64_t seed) {
  Rng random(seed);
  uint64_t sequence = 1'000'000;
  for (uint64_t step = 0; step < kWriterSteps; ++step) {
    const auto tail = static_cast<int32_t>(random.Below(kTails));
    const std::lock_guard<std::mutex> lock(world.mutex);
    const uint64_t what = random.Below(3);
    if (what == 0) {
      KeySequence keys = KeysOf(tail);
      const MatchResult match = world.trie.Match(keys, kStayBlocks + kTailBlocks);
      if (match.blocks <= kStayBlocks) continue;
      // All of the tail, or a part of it: the slots go to whoever comes next.
      const auto from = world.trie.Find(keys.At(kStayBlocks + random.Below(match.blocks - kStayBlocks)));
      if (from.has_value()) world.trie.DetachSubtree(*from).status().IgnoreError();
    } else {
      Extend(world, tail, kStayBlocks + random.Between(1, kTailBlocks), &sequence);
    }
    // Others, so that buckets are split meanwhile.
    if (step % 4 == 0) {
      const int32_t token = -1 - static_cast<int32_t>(step);
      if (!world.trie.Insert(world.trie.root(), ChainBlock(RootKey(), std::span(&token, 1)), step, 1, step).ok()) break;
    }
  }
  world.done = true;
}

bool SamePath(const Trie& trie, const MatchResult& match, const std::vector<PathBlock>& path) {
  const std::vector<NodeRef> nodes = trie.Path(match.node);
  if (nodes.size() != match.blocks || path.size() != nodes.size()) return false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto info = trie.Get(nodes[i]);
    if (!info.has_value() || info->node != path[i].node || info->sequence != path[i].sequence) return false;
  }
  return true;
}

void Read(World& world, uint64_t seed) {
  Rng random(seed);
  std::vector<PathBlock> path;
  while (!world.done) {
    KeySequence keys = KeysOf(static_cast<int32_t>(random.Below(kTails)));
    const std::optional<MatchResult> match = world.trie.TryMatch(keys, kStayBlocks + kTailBlocks);
    if (!match.has_value()) continue;
    if (match->blocks < kStayBlocks) ++world.wrong;
    const bool whole = world.trie.TryPath(*match, &path);
    const std::lock_guard<std::mutex> lock(world.mutex);
    if (!world.trie.IsLive(match->node)) {
      ++world.gone;
      continue;
    }
    ++world.proven;
    if (!whole || !SamePath(world.trie, *match, path)) ++world.wrong;
  }
}

}  // namespace

TEST_CASE("trie: lookups beside a writer find what stays, and nothing that is not so") {
  World world;
  uint64_t sequence = 1;
  Extend(world, 0, kStayBlocks, &sequence);
  std::vector<std::thread> readers;
  for (uint64_t i = 0; i < 2; ++i) readers.emplace_back([&world, i] { Read(world, 77 + i); });
  Write(world, 20261130);
  for (std::thread& reader : readers) reader.join();
  CHECK(world.wrong == 0);
  CHECK(world.proven > 0);
  CHECK(world.trie.Validate().ok());
}

TEST_CASE("trie: an empty one may go while others that share its order are at work") {
  TrieOptions options;
  options.order = std::make_shared<EvictionOrder>(EvictionPolicy::kFrequency);
  Trie busy(RootKey(), options);
  constexpr int32_t kBlocks = 2000;
  std::thread writer([&busy] {
    for (int32_t token = 0; token < kBlocks; ++token) {
      busy.Insert(busy.root(), ChainBlock(RootKey(), std::span(&token, 1)), 1, 10, 1).status().IgnoreError();
    }
  });
  for (int i = 0; i < kBlocks; ++i) Trie(RootKey(), options);
  writer.join();
  CHECK(busy.block_count() == kBlocks);
  CHECK(busy.Validate().ok());
}

TEST_CASE("trie: without a writer, a lookup beside it is the lookup") {
  World world;
  uint64_t sequence = 1;
  std::vector<PathBlock> path;
  for (uint64_t blocks = 0; blocks <= kStayBlocks + kTailBlocks; ++blocks) {
    Extend(world, 5, blocks, &sequence);
    KeySequence keys = KeysOf(5), again = KeysOf(5);
    const std::optional<MatchResult> match = world.trie.TryMatch(keys, UINT64_MAX);
    REQUIRE(match.has_value());
    REQUIRE(match->blocks == blocks);
    REQUIRE(match->node == world.trie.Match(again, UINT64_MAX).node);
    REQUIRE(world.trie.TryPath(*match, &path));
    REQUIRE(SamePath(world.trie, *match, path));
    REQUIRE(keys.computed() == again.computed());
  }
}

TEST_CASE("trie: a miss in the first block hashes one block, of any prompt") {
  World world;
  uint64_t sequence = 1;
  Extend(world, 5, kStayBlocks, &sequence);
  KeySequence other(RootKey(), [](uint64_t, const BlockKey& parent) {
    const int32_t token = 77;
    return ChainBlock(parent, std::span(&token, 1));
  });
  const std::optional<MatchResult> match = world.trie.TryMatch(other, 1'000'000);
  REQUIRE(match.has_value());
  CHECK(match->blocks == 0);
  CHECK(match->node == world.trie.root());
  CHECK(other.computed() == 1);
}

TEST_CASE("trie: a path from a block that has gone is not believed") {
  World world;
  uint64_t sequence = 1;
  Extend(world, 5, 3, &sequence);
  KeySequence keys = KeysOf(5);
  const MatchResult match = world.trie.Match(keys, 3);
  REQUIRE(match.blocks == 3);
  REQUIRE(world.trie.DetachSubtree(match.node).ok());
  // Its slot goes to a block of another chain.
  const int32_t token = 9;
  REQUIRE(world.trie.Insert(world.trie.root(), ChainBlock(RootKey(), std::span(&token, 1)), 50, 1, 50).ok());
  std::vector<PathBlock> path;
  CHECK_FALSE(world.trie.TryPath(match, &path));
  CHECK_FALSE(world.trie.IsLive(match.node));
}
