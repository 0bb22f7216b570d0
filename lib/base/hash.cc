// SPDX-License-Identifier: Apache-2.0
#include "lib/base/hash.h"

#include <array>
#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/base/pair_hash.h"

namespace kvstrata::core::base {
namespace {

void StoreLittle(uint64_t value, std::byte* out) {
  for (size_t i = 0; i < sizeof(value); ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

// Both hashes over one input, fed in pieces. The digest's and the check's inputs differ only in how they start.
class PairHasher {
 public:
  PairHasher(uint64_t digest_seed, uint64_t check_seed) {
    XXH3_128bits_reset_withSeed(&digest_, digest_seed);
    XXH3_64bits_reset_withSeed(&check_, check_seed);
  }

  void AddToDigest(uint64_t value) {
    const auto bytes = LittleEndian(value);
    XXH3_128bits_update(&digest_, bytes.data(), bytes.size());
  }
  void AddToCheck(uint64_t value) {
    const auto bytes = LittleEndian(value);
    XXH3_64bits_update(&check_, bytes.data(), bytes.size());
  }
  void Add(uint64_t value) {
    AddToDigest(value);
    AddToCheck(value);
  }
  void Add(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    XXH3_128bits_update(&digest_, bytes.data(), bytes.size());
    XXH3_64bits_update(&check_, bytes.data(), bytes.size());
  }
  void Add(std::span<const int32_t> tokens) {
    if constexpr (std::endian::native == std::endian::little) {
      Add(std::as_bytes(tokens));
    } else {
      for (const int32_t token : tokens) {
        const auto bytes = LittleEndian(static_cast<uint32_t>(token));
        Add(std::span<const std::byte>(bytes).first(sizeof(token)));
      }
    }
  }

  BlockDigest Finish() const {
    const XXH128_hash_t digest = XXH3_128bits_digest(&digest_);
    return {{digest.low64, digest.high64}, XXH3_64bits_digest(&check_)};
  }

 private:
  static std::array<std::byte, 8> LittleEndian(uint64_t value) {
    std::array<std::byte, 8> bytes;
    StoreLittle(value, bytes.data());
    return bytes;
  }

  // Zeroed, because a reset with a seed keeps the secret of whatever state it finds under an equal seed.
  XXH3_state_t digest_{};
  XXH3_state_t check_{};
};

// What XXH3 makes of a seed, made once: a one-shot hash of a long input with a bare seed would make it on each call.
static_assert(kSecretBytes == XXH3_SECRET_DEFAULT_SIZE);
struct Secret {
  explicit Secret(uint64_t seed_in) : seed(seed_in) { XXH3_generateSecret_fromSeed(bytes.data(), seed); }

  uint64_t seed;
  alignas(64) SecretBytes bytes;
};

struct SecretPair {
  explicit SecretPair(uint64_t digest_seed) : digest(digest_seed), check(~digest_seed) {}

  Secret digest;
  Secret check;
};

const SecretPair& SecretsOf(uint64_t seed) {
  static const SecretPair kBlock(kBlockSeed);
  static const SecretPair kTail(kTailSeed);
  return seed == kBlockSeed ? kBlock : kTail;
}

BlockDigest HashPieces(uint64_t seed, const BlockDigest& parent, std::span<const int32_t> tokens,
                       std::span<const std::byte> extra) {
  PairHasher hasher(seed, ~seed);
  hasher.AddToDigest(parent.digest.lo);
  hasher.AddToDigest(parent.digest.hi);
  hasher.AddToCheck(parent.check);
  hasher.Add(static_cast<uint64_t>(tokens.size()));
  hasher.Add(tokens);
  hasher.Add(static_cast<uint64_t>(extra.size()));
  hasher.Add(extra);
  return hasher.Finish();
}

// Tokens up to which an input is laid out on the stack and hashed in one call: several times faster than in pieces.
constexpr size_t kOneShotTokens = 1024;

// The same without extra keys. Both inputs end alike, so the check's is the digest's from its second word on, with
// the parent's check in that word's place.
BlockDigest HashWhole(uint64_t seed, const BlockDigest& parent, std::span<const int32_t> tokens) {
  constexpr size_t kWord = sizeof(uint64_t);
  std::array<std::byte, 4 * kWord + kOneShotTokens * sizeof(int32_t)> input;
  StoreLittle(parent.digest.lo, input.data());
  StoreLittle(parent.digest.hi, input.data() + kWord);
  StoreLittle(tokens.size(), input.data() + 2 * kWord);
  if (!tokens.empty()) std::memcpy(input.data() + 3 * kWord, tokens.data(), tokens.size_bytes());
  const size_t size = 4 * kWord + tokens.size_bytes();
  StoreLittle(0, input.data() + size - kWord);  // the size of the extra keys
  const auto& [digest, check] = SecretsOf(seed);
  const XXH128_hash_t hash =
      XXH3_128bits_withSecretandSeed(input.data(), size, digest.bytes.data(), digest.bytes.size(), digest.seed);
  StoreLittle(parent.check, input.data() + kWord);
  return {{hash.low64, hash.high64},
          XXH3_64bits_withSecretandSeed(input.data() + kWord, size - kWord, check.bytes.data(), check.bytes.size(),
                                        check.seed)};
}

BlockDigest HashBelow(uint64_t seed, const BlockDigest& parent, std::span<const int32_t> tokens,
                      std::span<const std::byte> extra) {
  if (extra.empty() && CanHashPairs(tokens.size())) {
    BlockDigest key;
    const auto& [digest, check] = SecretsOf(seed);
    HashPairs(digest.bytes, check.bytes, parent, tokens, tokens.size(), {&key, 1});
    return key;
  }
  const bool whole = extra.empty() && tokens.size() <= kOneShotTokens && std::endian::native == std::endian::little;
  return whole ? HashWhole(seed, parent, tokens) : HashPieces(seed, parent, tokens, extra);
}

}  // namespace

BlockDigest RootDigest(std::span<const std::byte> canonical_identity) {
  PairHasher hasher(kRootSeed, ~kRootSeed);
  hasher.Add(static_cast<uint64_t>(canonical_identity.size()));
  hasher.Add(canonical_identity);
  return hasher.Finish();
}

BlockDigest ChainBlock(const BlockDigest& parent, std::span<const int32_t> tokens, std::span<const std::byte> extra) {
  return HashBelow(kBlockSeed, parent, tokens, extra);
}

void ChainBlocks(const BlockDigest& parent, std::span<const int32_t> tokens, std::span<BlockDigest> out) {
  if (out.empty()) return;
  const size_t block_tokens = tokens.size() / out.size();
  if (CanHashPairs(block_tokens)) {
    const auto& [digest, check] = SecretsOf(kBlockSeed);
    return HashPairs(digest.bytes, check.bytes, parent, tokens, block_tokens, out);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = ChainBlock(i == 0 ? parent : out[i - 1], tokens.subspan(i * block_tokens, block_tokens));
  }
}

Digest128 TailDigest(const BlockDigest& boundary, std::span<const int32_t> tokens, std::span<const std::byte> extra) {
  return HashBelow(kTailSeed, boundary, tokens, extra).digest;
}

}  // namespace kvstrata::core::base
