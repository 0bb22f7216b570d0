// SPDX-License-Identifier: Apache-2.0
// The rival of the keys' hashing: one plain chain of one-shot XXH3-128 over blocks of tokens, parent digest then
// tokens, in the vector width that is the fastest of those that xxHash has for this processor.
//
// Thread rule: any thread; nothing is shared.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <span>
#include <vector>

namespace kvstrata::benchmarks {

using PlainChain = XXH128_hash_t (*)(std::span<const int32_t> tokens, uint64_t block_tokens);

// The one that takes least time for these tokens, of some runs of each.
PlainChain FastestPlainChain(std::span<const int32_t> tokens, uint64_t block_tokens);

// `hash(bytes, size)` over each block and what the one before gave.
template <typename Hash>
XXH128_hash_t ChainOf(std::span<const int32_t> tokens, uint64_t block_tokens, Hash&& hash) {
  std::vector<unsigned char> input(sizeof(XXH128_hash_t) + block_tokens * sizeof(int32_t));
  XXH128_hash_t parent{};
  for (uint64_t first = 0; first + block_tokens <= tokens.size(); first += block_tokens) {
    __builtin_memcpy(input.data(), &parent, sizeof parent);
    __builtin_memcpy(input.data() + sizeof parent, &tokens[first], block_tokens * sizeof(int32_t));
    parent = hash(input.data(), input.size());
  }
  return parent;
}

}  // namespace kvstrata::benchmarks
