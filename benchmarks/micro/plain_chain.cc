// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/micro/plain_chain.h"

namespace kvstrata::benchmarks {

#if defined(__x86_64__)
XXH128_hash_t PlainChainAvx2(std::span<const int32_t> tokens, uint64_t block_tokens);
XXH128_hash_t PlainChainAvx512(std::span<const int32_t> tokens, uint64_t block_tokens);
#endif

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

}  // namespace kvstrata::benchmarks
