// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/micro/plain_chain.h"

#include <algorithm>
#include <limits>

#include "benchmarks/ratio.h"

namespace kvstrata::benchmarks {

#if defined(__x86_64__)
XXH128_hash_t PlainChainAvx2(std::span<const int32_t> tokens, uint64_t block_tokens);
XXH128_hash_t PlainChainAvx512(std::span<const int32_t> tokens, uint64_t block_tokens);
#endif

namespace {

// At least one: the library's own build.
std::vector<PlainChain> PlainChains() {
  std::vector<PlainChain> chains = {[](std::span<const int32_t> tokens, uint64_t block_tokens) {
    return ChainOf(tokens, block_tokens, [](const void* bytes, size_t size) { return XXH3_128bits(bytes, size); });
  }};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) chains.push_back(PlainChainAvx2);
  if (__builtin_cpu_supports("avx512f") != 0) chains.push_back(PlainChainAvx512);
#endif
  return chains;
}

}  // namespace

PlainChain FastestPlainChain(std::span<const int32_t> tokens, uint64_t block_tokens) {
  const std::vector<PlainChain> chains = PlainChains();
  PlainChain fastest = chains.front();
  double least = std::numeric_limits<double>::max();
  for (int round = 0; round < kPairs; ++round) {
    for (const PlainChain chain : chains) {
      const double seconds = SecondsOf([&] {
        const volatile uint64_t kept = chain(tokens, block_tokens).low64;
        static_cast<void>(kept);
      });
      if (seconds < least) fastest = chain;
      least = std::min(least, seconds);
    }
  }
  return fastest;
}

}  // namespace kvstrata::benchmarks
