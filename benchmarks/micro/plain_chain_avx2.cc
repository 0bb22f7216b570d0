// SPDX-License-Identifier: Apache-2.0
// xxHash built into this file for AVX2, as a program would that is compiled for one processor.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <span>
#include <vector>

#pragma GCC push_options
#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include "benchmarks/micro/plain_chain.h"

namespace kvstrata::benchmarks {

XXH128_hash_t PlainChainAvx2(std::span<const int32_t> tokens, uint64_t block_tokens);

XXH128_hash_t PlainChainAvx2(std::span<const int32_t> tokens, uint64_t block_tokens) {
  return ChainOf(tokens, block_tokens, [](const void* bytes, size_t size) { return XXH3_128bits(bytes, size); });
}

}  // namespace kvstrata::benchmarks
#pragma GCC pop_options
#endif
