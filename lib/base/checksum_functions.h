// SPDX-License-Identifier: Apache-2.0
// What checksum.cc is made of, once for the machine that the library was built for and once for wider vectors: XXH3 of
// xxHash is compiled into each, and gives the same values in all.
//
// Thread rule: as checksum.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvstrata::core::base {

struct ChecksumFunctions {
  uint64_t (*whole)(const std::byte* bytes, size_t size, uint64_t seed);
  // `state` is an XXH3_state_t that has been reset; bytes is not null.
  void (*update)(std::byte* state, const std::byte* bytes, size_t size);
};

// Null where the build or the processor has no AVX2. SSE2 alone, which x86-64 builds may count on, reaches a quarter of
// its speed: less than memory gives.
const ChecksumFunctions* ChecksumAvx2();

}  // namespace kvstrata::core::base
