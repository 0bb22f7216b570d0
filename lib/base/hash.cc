// SPDX-License-Identifier: Apache-2.0
#include "lib/base/hash.h"

#include <array>
#include <bit>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvstrata::core::base {
namespace {

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
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
    return bytes;
  }

  // Zeroed, because a reset with a seed keeps the secret of whatever state it finds under an equal seed.
  XXH3_state_t digest_{};
  XXH3_state_t check_{};
};

BlockDigest HashBelow(uint64_t seed, const BlockDigest& parent, std::span<const int32_t> tokens,
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

Digest128 TailDigest(const BlockDigest& boundary, std::span<const int32_t> tokens, std::span<const std::byte> extra) {
  return HashBelow(kTailSeed, boundary, tokens, extra).digest;
}

}  // namespace kvstrata::core::base
