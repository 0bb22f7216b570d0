// SPDX-License-Identifier: Apache-2.0
// Chained block digests. Owns the bytes that are hashed, and with which seeds: a documented, versioned, pure function,
// so that any process, in any language, on any machine, computes the same keys (the tests hold golden values).
//
// Two independent chains run side by side: a 128-bit digest (the key under which a block is stored and found) and a
// 64-bit check hash with another seed, which keeps a lookup right without a read. Neither is proof: stored records
// carry identity and tokens, and these are compared when a block is read.
//
// Version 1, all integers little-endian, XXH3 as of xxHash 0.8 with a seed:
//   root:  digest = XXH3_128(seed kRootSeed,  u64 size | identity)
//          check  = XXH3_64 (seed ~kRootSeed, u64 size | identity)
//   block: digest = XXH3_128(seed kBlockSeed,  parent.lo u64 | parent.hi u64 | u64 token count | i32 tokens |
//                            u64 extra size | extra)
//          check  = XXH3_64 (seed ~kBlockSeed, parent.check u64 | the same from the token count on)
//   tail:  digest = XXH3_128(seed kTailSeed, as a block's)
// Counts stand before what they count, so two different inputs never give the same bytes; the seed tells the kinds
// apart. XXH3 is no cryptographic hash: who can choose tokens and knows the root could look for collisions. A
// collision costs a miss, never a wrong byte, and a secret tenant salt in the identity hides the root.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvstrata::core::base {

inline constexpr uint64_t kRootSeed = 0x6b76737472610001;   // "kvstra", kind 1
inline constexpr uint64_t kBlockSeed = 0x6b76737472610002;  // "kvstra", kind 2
inline constexpr uint64_t kTailSeed = 0x6b76737472610003;   // "kvstra", kind 3

struct Digest128 {
  uint64_t lo = 0;
  uint64_t hi = 0;

  friend bool operator==(const Digest128&, const Digest128&) = default;
  friend auto operator<=>(const Digest128&, const Digest128&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Digest128& digest) {
    return H::combine(std::move(state), digest.lo, digest.hi);
  }
};

// The key of one block (or of a namespace's root): both chains at that point.
struct BlockDigest {
  Digest128 digest;
  uint64_t check = 0;

  friend bool operator==(const BlockDigest&, const BlockDigest&) = default;
};

// `canonical_identity`: the namespace's whole identity in its canonical, length-framed form.
BlockDigest RootDigest(std::span<const std::byte> canonical_identity);

// `extra`: the canonical, length-framed extra keys that belong to the block's positions; may be empty.
BlockDigest ChainBlock(const BlockDigest& parent, std::span<const int32_t> tokens,
                       std::span<const std::byte> extra = {});

// The same of consecutive blocks of as many tokens each, none of which has extra keys: faster than one by one.
// `tokens`: those of out.size() blocks.
void ChainBlocks(const BlockDigest& parent, std::span<const int32_t> tokens, std::span<BlockDigest> out);

// Digest of the tokens between a block boundary and a snapshot inside the next block (possibly none), with the extra
// keys of those positions. `boundary` is the key of the last complete block, or the root's.
Digest128 TailDigest(const BlockDigest& boundary, std::span<const int32_t> tokens,
                     std::span<const std::byte> extra = {});

}  // namespace kvstrata::core::base
