// SPDX-License-Identifier: Apache-2.0
// The two hashes of blocks' keys (hash.h) in one pass over their tokens, with AVX2. Owns no definition: the values are
// XXH3's, bit for bit, and hash.cc makes them with xxHash wherever this file does not apply.
//
// Faster than two calls of xxHash, because nothing is copied, two independent sums keep the multipliers busy, and only
// one of the stripes of 64 bytes needs the parent: what the others add is computed while the parent's key is still
// being made.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/base/hash.h"

namespace kvstrata::core::base {

// What XXH3 makes of a seed: for inputs of more than 240 bytes, all that the seed does.
inline constexpr size_t kSecretBytes = 192;
using SecretBytes = std::array<std::byte, kSecretBytes>;

// Whether HashPairs may be called: the processor has AVX2, and a block is whole stripes of tokens, enough of them for
// XXH3's way with long inputs.
bool CanHashPairs(size_t block_tokens);

// The keys of consecutive blocks without extra keys (hash.h, "block"), from the secrets of the two seeds. `tokens` are
// those of all blocks, out.size() times `block_tokens`.
void HashPairs(const SecretBytes& digest_secret, const SecretBytes& check_secret, const BlockDigest& parent,
               std::span<const int32_t> tokens, size_t block_tokens, std::span<BlockDigest> out);

}  // namespace kvstrata::core::base
