// SPDX-License-Identifier: Apache-2.0
#include "lib/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <initializer_list>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;

namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

}  // namespace

// The expected values are not ours: they are the output of this script (CPython 3.11, package xxhash 3, which carries
// its own copy of xxHash):
//   import struct, xxhash
//   M = 2**64 - 1
//   def u64(*v): return b"".join(struct.pack("<Q", x) for x in v)
//   def pair(seed, to_digest, to_check, rest):
//       d = xxhash.xxh3_128_intdigest(to_digest + rest, seed)
//       return (d & M, d >> 64, xxhash.xxh3_64_intdigest(to_check + rest, ~seed & M))
//   def root(i): return pair(0x6b76737472610001, b"", b"", u64(len(i)) + i)
//   def below(seed, p, tokens, extra):
//       rest = u64(len(tokens)) + struct.pack("<%di" % len(tokens), *tokens) + u64(len(extra)) + extra
//       return pair(seed, u64(p[0], p[1]), u64(p[2]), rest)
//   def block(p, t, e=b""): return below(0x6b76737472610002, p, t, e)
//   def tail(p, t, e=b""): return below(0x6b76737472610003, p, t, e)[:2]
//   r = root(b"model\0adapter"); a = block(r, list(range(128)))
//   b = block(a, [-1, 2**31 - 1, -2**31, 7]); c = block(b, [1000 * i for i in range(256)], b"image:0123")
//   print(root(b""), r, a, b, c, tail(a, []), tail(a, [1, 2, 3], b"x"))
TEST_CASE("keys are the documented function of bytes") {
  CHECK(base::RootDigest({}) == base::BlockDigest{{0x64353d5342c08cb1, 0x0d128afd4f3d707d}, 0xe6d26389faa5e375});
  const auto root = base::RootDigest(Bytes(std::string_view("model\0adapter", 13)));
  CHECK(root == base::BlockDigest{{0x170a2e6b7b9af35b, 0x8382c6433195991f}, 0x15726b5cbb3f3138});

  std::vector<int32_t> tokens(128);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto a = base::ChainBlock(root, tokens);
  CHECK(a == base::BlockDigest{{0x9ae5b9cba28ebda0, 0xba6ecc8f94798d49}, 0x56da0aff6e5bb6fa});
  const auto b = base::ChainBlock(a, std::vector<int32_t>{-1, INT32_MAX, INT32_MIN, 7});
  CHECK(b == base::BlockDigest{{0x9b6bf9212a5be167, 0x79fd79a99bb1e69f}, 0xf5620fabda190bac});
  std::vector<int32_t> long_block(256);
  for (int32_t i = 0; i < 256; ++i) long_block[static_cast<size_t>(i)] = 1000 * i;
  const auto c = base::ChainBlock(b, long_block, Bytes("image:0123"));
  CHECK(c == base::BlockDigest{{0xec76d0ce9b3f35f1, 0x8c71b1bd21d71d4e}, 0x9ded5883a0617540});

  CHECK(base::TailDigest(a, {}) == base::Digest128{0xcec625e92e4b9081, 0xb32dd22ff9857b8e});
  CHECK(base::TailDigest(a, std::vector<int32_t>{1, 2, 3}, Bytes("x")) ==
        base::Digest128{0x1aa578b12a89824f, 0x8f52ae95703e821a});
}

TEST_CASE("keys of blocks of every length are the documented hashes of the documented bytes") {
  const base::BlockDigest parent{{0x0123456789abcdef, 0xfedcba9876543210}, 0x55aa55aa00ff00ff};
  std::vector<int32_t> tokens(1100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 2654435761u);
  const auto bytes_of = [&](std::initializer_list<uint64_t> words, size_t count) {
    std::string out;
    const auto add = [&](uint64_t word) { out.append(reinterpret_cast<const char*>(&word), sizeof word); };
    for (const uint64_t word : words) add(word);
    add(count);
    out.append(reinterpret_cast<const char*>(tokens.data()), count * sizeof(int32_t));
    add(0);
    return out;
  };
  for (size_t count = 0; count <= tokens.size(); ++count) {
    INFO("tokens " << count);
    const std::string to_digest = bytes_of({parent.digest.lo, parent.digest.hi}, count);
    const std::string to_check = bytes_of({parent.check}, count);
    const auto key = base::ChainBlock(parent, std::span(tokens).first(count));
    const XXH128_hash_t digest = XXH3_128bits_withSeed(to_digest.data(), to_digest.size(), 0x6b76737472610002);
    CHECK(key.digest == base::Digest128{digest.low64, digest.high64});
    CHECK(key.check == XXH3_64bits_withSeed(to_check.data(), to_check.size(), ~uint64_t{0x6b76737472610002}));
    const XXH128_hash_t tail = XXH3_128bits_withSeed(to_digest.data(), to_digest.size(), 0x6b76737472610003);
    CHECK(base::TailDigest(parent, std::span(tokens).first(count)) == base::Digest128{tail.low64, tail.high64});
  }
}

TEST_CASE("the keys of blocks made together are those made one by one") {
  const base::BlockDigest parent{{0x0123456789abcdef, 0xfedcba9876543210}, 0x55aa55aa00ff00ff};
  std::vector<int32_t> tokens(5 * 1056);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 2654435761u);
  for (const size_t block_tokens : {1, 48, 63, 64, 80, 100, 128, 240, 255, 256, 272, 512, 1024, 1056}) {
    for (size_t blocks = 0; blocks <= 5; ++blocks) {
      INFO(blocks << " blocks of " << block_tokens);
      std::vector<base::BlockDigest> keys(blocks);
      base::ChainBlocks(parent, std::span(tokens).first(blocks * block_tokens), keys);
      base::BlockDigest expected = parent;
      for (size_t block = 0; block < blocks; ++block) {
        expected = base::ChainBlock(expected, std::span(tokens).subspan(block * block_tokens, block_tokens));
        CHECK(keys[block] == expected);
      }
    }
  }
}

TEST_CASE("a key depends on parent, tokens, extra keys and where one ends and the other begins") {
  const auto root = base::RootDigest(Bytes("a"));
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  const auto plain = base::ChainBlock(root, tokens);
  std::vector<base::BlockDigest> others = {
      base::ChainBlock(base::RootDigest(Bytes("b")), tokens), base::ChainBlock(plain, tokens),
      base::ChainBlock(root, std::span(tokens).first(3)), base::ChainBlock(root, tokens, Bytes("x")),
      base::ChainBlock(root, tokens, Bytes(std::string_view("\0", 1)))};
  // The last token moved, byte for byte, into the extra keys.
  others.push_back(base::ChainBlock(root, std::span(tokens).first(3), std::as_bytes(std::span(tokens).subspan(3))));
  // Only one of the two chains differs at the parent.
  auto other_check = root;
  ++other_check.check;
  const auto with_other_check = base::ChainBlock(other_check, tokens);
  CHECK(with_other_check.digest == plain.digest);
  CHECK(with_other_check.check != plain.check);
  auto other_digest = root;
  ++other_digest.digest.hi;
  const auto with_other_digest = base::ChainBlock(other_digest, tokens);
  CHECK(with_other_digest.digest != plain.digest);
  CHECK(with_other_digest.check == plain.check);
  for (const auto& other : others) {
    CHECK(other.digest != plain.digest);
    CHECK(other.check != plain.check);
  }
  CHECK(base::TailDigest(root, tokens) != plain.digest);
}

TEST_CASE("extra keys are hashed whole: 65,537 of them on the same tokens stay apart") {
  const auto root = base::RootDigest(Bytes("a"));
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  std::set<base::Digest128> digests;
  std::set<uint64_t> checks;
  for (uint32_t i = 0; i < 65537; ++i) {
    const auto key = base::ChainBlock(root, tokens, std::as_bytes(std::span(&i, 1)));
    digests.insert(key.digest);
    checks.insert(key.check);
  }
  CHECK(digests.size() == 65537);
  CHECK(checks.size() == 65537);
}

TEST_CASE("keys follow the content of a buffer that is used again") {
  const auto root = base::RootDigest(Bytes("a"));
  std::vector<int32_t> buffer = {1, 2, 3, 4};
  const auto before = base::ChainBlock(root, buffer);
  buffer[2] = 9;
  CHECK(base::ChainBlock(root, buffer) != before);
  buffer[2] = 3;
  CHECK(base::ChainBlock(root, buffer) == before);
}
