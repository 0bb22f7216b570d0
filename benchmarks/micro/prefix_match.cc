// SPDX-License-Identifier: Apache-2.0
// The longest prefix match of a long prompt, keys and walk together, against the bare XXH3-128 chain over the same
// tokens: what any content-addressed index must pay. Ours computes a second, independent check hash beside each digest.
#include <benchmark/benchmark.h>
#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "benchmarks/ratio.h"
#include "lib/base/hash.h"
#include "lib/trie/trie.h"

namespace {

using kvstrata::core::base::BlockDigest;
using kvstrata::core::base::ChainBlock;
using kvstrata::core::base::RootDigest;
using kvstrata::core::trie::KeySequence;
using kvstrata::core::trie::Trie;

constexpr uint64_t kBlockTokens = 128;
constexpr uint64_t kPromptBlocks = 1024;  // a prompt of 131,072 tokens
constexpr uint64_t kOtherBlocks = 65536;  // blocks of other sequences in the same index

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "prefix_match: %s\n", what);
  std::exit(1);
}

struct World {
  std::vector<int32_t> prompt;
  BlockDigest root = RootDigest({});
  Trie trie{root};

  World() : prompt(kPromptBlocks * kBlockTokens) {
    for (uint64_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((i * 2654435761u) % 129280);
    auto keys = Keys();
    auto parent = trie.root();
    for (uint64_t block = 0; block < kPromptBlocks; ++block) parent = Add(parent, keys.At(block), block + 1);
    // Chains of 64 blocks each, beside the prompt's.
    BlockDigest key = root;
    for (uint64_t block = 0; block < kOtherBlocks; ++block) {
      const bool first = block % 64 == 0;
      const auto token = static_cast<int32_t>(block);
      key = ChainBlock(first ? root : key, std::span(&token, 1));
      parent = Add(first ? trie.root() : parent, key, kPromptBlocks + block + 1);
    }
  }

  kvstrata::core::trie::NodeRef Add(kvstrata::core::trie::NodeRef parent, const BlockDigest& key, uint64_t sequence) {
    auto added = trie.Insert(parent, key, sequence, 1, sequence);
    if (!added.ok()) Fail("an insert failed");
    return added->node;
  }

  KeySequence Keys() const {
    return KeySequence(root, [this](uint64_t index, const BlockDigest& parent) {
      return ChainBlock(parent, std::span(prompt).subspan(index * kBlockTokens, kBlockTokens));
    });
  }

  void Match() const {
    auto keys = Keys();
    if (trie.Match(keys, kPromptBlocks).blocks != kPromptBlocks) Fail("the match is not the whole prompt");
  }

  void HashChain() const {
    XXH128_hash_t hash{};
    for (uint64_t block = 0; block < kPromptBlocks; ++block) {
      hash = XXH3_128bits_withSeed(&prompt[block * kBlockTokens], kBlockTokens * sizeof(int32_t), hash.low64);
    }
    if (hash.low64 == 0 && hash.high64 == 0) Fail("the chain's digest is zero");
  }
};

const World& TheWorld() {
  static const World world;
  return world;
}

void PrefixMatch(benchmark::State& state) {
  for (auto _ : state) TheWorld().Match();
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kPromptBlocks * kBlockTokens));
}
BENCHMARK(PrefixMatch)->Unit(benchmark::kMicrosecond);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  kvstrata::benchmarks::PrintRatio(
      "prefix_match_vs_hash_chain", "<=2.0", [] { TheWorld().Match(); }, [] { TheWorld().HashChain(); });
  return 0;
}
