// SPDX-License-Identifier: Apache-2.0
// xxHash built into this file for AVX-512, as a program would that is compiled for one processor.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <span>
#include <vector>

// GCC 12 takes the deliberately undefined operands within its own intrinsics for a mistake (its bug 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC push_options
#pragma GCC target("avx512f")
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX512
#include "benchmarks/micro/plain_chain.h"

namespace kvstrata::benchmarks {

XXH128_hash_t PlainChainAvx512(std::span<const int32_t> tokens, uint64_t block_tokens);

XXH128_hash_t PlainChainAvx512(std::span<const int32_t> tokens, uint64_t block_tokens) {
  return ChainOf(tokens, block_tokens, [](const void* bytes, size_t size) { return XXH3_128bits(bytes, size); });
}

}  // namespace kvstrata::benchmarks
#pragma GCC pop_options
#endif
