// SPDX-License-Identifier: Apache-2.0
// XXH3 in vectors of 32 bytes. Every function of xxHash is static here, and no header of C++ is read behind the pragma:
// nothing that was compiled for AVX2 has a name that the linker could choose for others.
#include "lib/base/checksum_functions.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR 2  // XXH_AVX2
#include <xxhash.h>

namespace kvstrata::core::base {
namespace {

uint64_t Whole(const std::byte* bytes, size_t size, uint64_t seed) { return XXH3_64bits_withSeed(bytes, size, seed); }

void Update(std::byte* state, const std::byte* bytes, size_t size) {
  XXH3_64bits_update(reinterpret_cast<XXH3_state_t*>(state), bytes, size);
}

}  // namespace
}  // namespace kvstrata::core::base

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace kvstrata::core::base {

const ChecksumFunctions* ChecksumAvx2() {
  static constexpr ChecksumFunctions kFunctions{&Whole, &Update};
  return __builtin_cpu_supports("avx2") ? &kFunctions : nullptr;
}

}  // namespace kvstrata::core::base

#else

namespace kvstrata::core::base {

const ChecksumFunctions* ChecksumAvx2() { return nullptr; }

}  // namespace kvstrata::core::base

#endif
