// SPDX-License-Identifier: Apache-2.0
// What an engine pays for a whole lookup of a prompt of 1,048,576 tokens, from the call to the match and its end,
// against a chain of XXH3-128 over the same blocks: the prompt that is stored, one that is not at all, and one that
// parts from it after a sixteenth. And for storing it in memory, with rows so small that it is the blocks that count.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/micro/plain_chain.h"
#include "benchmarks/ratio.h"
#include "kvstrata/kvstrata.hpp"

namespace {

using kvstrata::benchmarks::PlainChain;

constexpr std::uint64_t kTokens = std::uint64_t{1} << 20;
constexpr std::uint32_t kRowBytes = 64;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "lookup: %s\n", what);
  std::exit(1);
}

template <typename T>
T Must(kvstrata::result<T> result) {
  if (!result) Fail(result.error().c_str());
  return std::move(result).value();
}

std::int32_t TokenAt(std::uint64_t i, std::uint64_t prompt) {
  return static_cast<std::int32_t>(((i + 1) * 2654435761u + prompt * 40503u) % 129'280);
}

std::vector<std::int32_t> StoredPrompt() {
  std::vector<std::int32_t> tokens(kTokens + 1);
  for (std::uint64_t i = 0; i <= kTokens; ++i) tokens[i] = TokenAt(i, 0);
  return tokens;
}

// A store in memory that holds one prompt.
class Store {
 public:
  explicit Store(std::uint32_t block_tokens) : block_tokens_(block_tokens) {
    kvstrata::cache_options options;
    options.capacity_bytes = std::uint64_t{1} << 30;
    cache_ = Must(kvstrata::cache::open(options));
    const auto layout = Must(kvstrata::layout::mla(1, kRowBytes, block_tokens));
    kvstrata::identity who;
    for (const char* name : {"model.weights", "model.quantization", "rope", "packing", "adapter",
                             "engine.state_version", "kernel.numerics", "tenant"}) {
      who.set(name, "lookup");
    }
    space_ = Must(cache_.open_namespace(layout, who));
    static std::vector<unsigned char> rows(kTokens * kRowBytes);
    auto writer = Must(space_.open_writer());
    if (!writer.set_source(kvstrata::buffer::linear(0, {rows.data(), rows.size()}))) Fail("no source");
    for (std::uint64_t at = 0; at < kTokens; at += 8192) {
      if (!writer.advance({Stored().data() + at, 8192}, at + 8192)) Fail("no advance");
      if (!writer.commit()) Fail("no commit");
    }
  }

  static const std::vector<std::int32_t>& Stored() {
    static const std::vector<std::int32_t> tokens = StoredPrompt();
    return tokens;
  }

  void Lookup(const std::vector<std::int32_t>& prompt, std::uint64_t expected) const {
    const auto match = Must(space_.lookup({prompt.data(), prompt.size()}));
    if (Must(match.info()).matched_tokens != expected) Fail("another match than expected");
  }

  void HashChain(PlainChain chain) const {
    const XXH128_hash_t hash = chain({Stored().data(), kTokens}, block_tokens_);
    if (hash.low64 == 0 && hash.high64 == 0) Fail("the chain's digest is zero");
  }

  void Print() const {
    const std::string name = "lookup_1m_" + std::to_string(block_tokens_);
    const PlainChain chain = kvstrata::benchmarks::FastestPlainChain({Stored().data(), kTokens}, block_tokens_);
    const auto print = [&](const char* what, std::uint64_t common) {
      std::vector<std::int32_t> prompt = Stored();
      for (std::uint64_t i = common; i < prompt.size(); ++i) prompt[i] = TokenAt(i, 1);
      const std::uint64_t expected = std::min(common, kTokens);
      kvstrata::benchmarks::PrintRatio(
          (name + what + "_vs_hash_chain").c_str(), "none", [&] { Lookup(prompt, expected); },
          [&] { HashChain(chain); });
    };
    print("_whole", kTokens + 1);
    print("_sixteenth", kTokens / 16);
    print("_miss", 0);
    kvstrata::benchmarks::PrintRatio(
        ("store_1m_" + std::to_string(block_tokens_) + "_vs_hash_chain").c_str(), "none",
        [&] { const Store another(block_tokens_); }, [&] { HashChain(chain); });
  }

 private:
  std::uint32_t block_tokens_;
  kvstrata::cache cache_;
  kvstrata::name_space space_;
};

}  // namespace

int main() {
  for (const std::uint32_t block_tokens : {64, 128}) Store(block_tokens).Print();
  return 0;
}
