// SPDX-License-Identifier: Apache-2.0
// Both inputs are words of 64 bits, t being the tokens and 0 the size of the extra keys:
//
//   digest:  parent.lo  parent.hi  count  t t t t t ... t 0
//   check:              parent.check  count  t t t t ... t 0
//
// With whole stripes of tokens, each has as many whole stripes as the tokens, and a last one, which overlaps the one
// before it: seven words of tokens and the 0, in both.
#include "lib/base/pair_hash.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#define KVSTRATA_AVX2 __attribute__((target("avx2")))
#define KVSTRATA_AVX2_INLINE KVSTRATA_AVX2 inline __attribute__((always_inline))

namespace kvstrata::core::base {
namespace {

constexpr size_t kStripe = 64;
constexpr size_t kLeastTokens = 64;  // inputs of more than 240 bytes
// XXH3's own numbers.
constexpr size_t kStripesToScramble = (kSecretBytes - kStripe) / 8;
constexpr size_t kLastStripeSecret = kSecretBytes - kStripe - 7;
constexpr size_t kLowSecret = 11;
constexpr size_t kHighSecret = kSecretBytes - kStripe - 11;
constexpr uint64_t kPrime32[3] = {0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D};
constexpr uint64_t kPrime64[5] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                                  0x27D4EB2F165667C5};
constexpr uint64_t kAvalanche = 0x165667919E3779F9;
alignas(32) constexpr uint64_t kInitial[8] = {kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
                                              kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]};

// Eight words: a stripe, or the sums over stripes.
struct Words {
  __m256i low;
  __m256i high;
};

KVSTRATA_AVX2_INLINE __m256i Load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
KVSTRATA_AVX2_INLINE Words LoadStripe(const std::byte* from) { return {Load(from), Load(from + 32)}; }

inline uint64_t Word(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

KVSTRATA_AVX2_INLINE __m256i AddHalf(__m256i sum, __m256i data, const std::byte* secret) {
  const __m256i keyed = _mm256_xor_si256(data, Load(secret));
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  const __m256i neighbours = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(sum, _mm256_add_epi64(product, neighbours));
}
KVSTRATA_AVX2_INLINE Words Add(Words sums, Words data, const std::byte* secret) {
  return {AddHalf(sums.low, data.low, secret), AddHalf(sums.high, data.high, secret + 32)};
}

KVSTRATA_AVX2_INLINE __m256i ScrambleHalf(__m256i sum, const std::byte* secret) {
  const __m256i prime = _mm256_set1_epi64x(static_cast<int64_t>(kPrime32[0]));
  const __m256i keyed = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47)), Load(secret));
  const __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(keyed, prime), _mm256_slli_epi64(upper, 32));
}
KVSTRATA_AVX2_INLINE Words Scramble(Words sums, const std::byte* secret) {
  return {ScrambleHalf(sums.low, secret), ScrambleHalf(sums.high, secret + 32)};
}

inline uint64_t FoldedProduct(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// The first pair is added last: it alone waits for the parent.
inline uint64_t Merge(const uint64_t (&sums)[8], const std::byte* secret, uint64_t start) {
  uint64_t hash = start;
  for (size_t pair = 4; pair-- > 0;) {
    hash += FoldedProduct(sums[2 * pair] ^ Word(secret + 16 * pair), sums[2 * pair + 1] ^ Word(secret + 16 * pair + 8));
  }
  hash = (hash ^ (hash >> 37)) * kAvalanche;
  return hash ^ (hash >> 32);
}

KVSTRATA_AVX2_INLINE void Store(Words sums, uint64_t (&out)[8]) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), sums.low);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out + 4), sums.high);
}

KVSTRATA_AVX2_INLINE __m256i FourWords(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return _mm256_set_epi64x(static_cast<int64_t>(d), static_cast<int64_t>(c), static_cast<int64_t>(b),
                           static_cast<int64_t>(a));
}

struct Sums {
  Words digest;
  Words check;
};

// Of all stripes but the last.
KVSTRATA_AVX2_INLINE Sums AddStripes(const std::byte* digest_secret, const std::byte* check_secret,
                                     const BlockDigest& parent, const std::byte* text, size_t size, size_t tokens) {
  const Words initial = {Load(kInitial), Load(kInitial + 4)};
  const Words digest_head = {FourWords(parent.digest.lo, parent.digest.hi, tokens, Word(text)), Load(text + 8)};
  const Words check_head = {FourWords(parent.check, tokens, Word(text), Word(text + 8)), Load(text + 16)};
  Words digest = Add(initial, digest_head, digest_secret);
  Words check = Add(initial, check_head, check_secret);
  for (size_t stripe = 1; stripe < size / kStripe; ++stripe) {
    const size_t turn = stripe % kStripesToScramble;
    digest = Add(digest, LoadStripe(text + kStripe * stripe - 24), digest_secret + 8 * turn);
    check = Add(check, LoadStripe(text + kStripe * stripe - 16), check_secret + 8 * turn);
    if (turn + 1 == kStripesToScramble) {
      digest = Scramble(digest, digest_secret + kSecretBytes - kStripe);
      check = Scramble(check, check_secret + kSecretBytes - kStripe);
    }
  }
  return {digest, check};
}

KVSTRATA_AVX2 void HashPairsAvx2(const std::byte* digest_secret, const std::byte* check_secret, BlockDigest parent,
                                 std::span<const int32_t> tokens, size_t block_tokens, std::span<BlockDigest> out) {
  const std::byte* text = std::as_bytes(tokens).data();
  const size_t size = block_tokens * sizeof(int32_t);
  const uint64_t digest_bytes = size + 32;
  const uint64_t check_bytes = size + 24;
  for (BlockDigest& key : out) {
    const Sums sums = AddStripes(digest_secret, check_secret, parent, text, size, block_tokens);
    text += size;
    const Words last = {Load(text - 56), FourWords(Word(text - 24), Word(text - 16), Word(text - 8), 0)};
    alignas(32) uint64_t digest[8];
    alignas(32) uint64_t check[8];
    Store(Add(sums.digest, last, digest_secret + kLastStripeSecret), digest);
    Store(Add(sums.check, last, check_secret + kLastStripeSecret), check);
    // Handed on by value: a key that was just stored by halves is slow to load as a whole.
    parent.digest.lo = Merge(digest, digest_secret + kLowSecret, digest_bytes * kPrime64[0]);
    parent.digest.hi = Merge(digest, digest_secret + kHighSecret, ~(digest_bytes * kPrime64[1]));
    parent.check = Merge(check, check_secret + kLowSecret, check_bytes * kPrime64[0]);
    key = parent;
  }
}

}  // namespace

bool CanHashPairs(size_t block_tokens) {
  static const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
  return kHasAvx2 && block_tokens >= kLeastTokens && block_tokens * sizeof(int32_t) % kStripe == 0;
}

void HashPairs(const SecretBytes& digest_secret, const SecretBytes& check_secret, const BlockDigest& parent,
               std::span<const int32_t> tokens, size_t block_tokens, std::span<BlockDigest> out) {
  HashPairsAvx2(digest_secret.data(), check_secret.data(), parent, tokens, block_tokens, out);
}

}  // namespace kvstrata::core::base

#else

namespace kvstrata::core::base {

bool CanHashPairs(size_t) { return false; }
void HashPairs(const SecretBytes&, const SecretBytes&, const BlockDigest&, std::span<const int32_t>, size_t,
               std::span<BlockDigest>) {}

}  // namespace kvstrata::core::base

#endif
