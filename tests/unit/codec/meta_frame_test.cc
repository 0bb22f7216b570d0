// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/meta_frame.h"

#include <zstd.h>

#include <cstdio>
#include <random>
#include <string>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using namespace kvstrata::core::codec;

namespace {

constexpr size_t kLimit = 4096;

std::string Framed(char method, uint32_t plain_size, std::string_view payload) {
  std::string frame(1, method);
  for (int i = 0; i < 4; ++i) frame += static_cast<char>(plain_size >> (8 * i));
  return frame.append(payload);
}

std::string Zstd(std::string_view plain) {
  std::string packed(ZSTD_compressBound(plain.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), 3));
  return packed;
}

void CheckCorrupt(const std::string& frame, size_t limit = kLimit) {
  const auto plain = DecodeMeta(frame, limit);
  REQUIRE_FALSE(plain.ok());
  CHECK(base::CodeOf(plain.status()) == base::Code::kCorrupt);
}

}  // namespace

TEST_CASE("metadata comes back, compressed where that is smaller") {
  std::mt19937 random(1);
  std::string noise(3000, '\0');
  for (char& c : noise) c = static_cast<char>(random() % 256);
  const std::string text(3000, 'k');
  for (const std::string& plain : {std::string(), std::string("k"), text, noise, text + noise}) {
    const std::string frame = EncodeMeta(plain).value();
    CHECK(frame.size() <= plain.size() + kMetaFrameHeaderBytes);
    CHECK(DecodeMeta(frame, plain.size()).value() == plain);
  }
  CHECK(EncodeMeta(text)->size() < 100);
  CHECK(EncodeMeta(noise)->size() == noise.size() + kMetaFrameHeaderBytes);
  CHECK(base::CodeOf(EncodeMeta(std::string(kMaxMetaBytes + 1, 'x')).status()) == base::Code::kTooLarge);
}

TEST_CASE("the reader's bound holds, whatever the frame says") {
  const std::string plain(kLimit, 'k');
  CHECK(DecodeMeta(EncodeMeta(plain).value(), kLimit).ok());
  CheckCorrupt(EncodeMeta(plain).value(), kLimit - 1);
  // A frame of 1 MiB, said to be small, said to be what it is, and said to be more than any metadata.
  const std::string bomb = Zstd(std::string(1u << 20, '\0'));
  CheckCorrupt(Framed(1, 10, bomb));
  CheckCorrupt(Framed(1, 1u << 20, bomb));
  CheckCorrupt(Framed(1, 0xffffffffu, bomb), ~size_t{0});
}

TEST_CASE("anything but one frame of the said size is corrupt") {
  CheckCorrupt("");
  CheckCorrupt(Framed(0, 0, "").substr(0, 4));
  CheckCorrupt(Framed(0, 3, "ab"));
  CheckCorrupt(Framed(0, 1, "ab"));
  CheckCorrupt(Framed(2, 2, "ab"));
  CheckCorrupt(Framed(1, 2, "ab"));
  CheckCorrupt(Framed(1, 0, ""));
  const std::string plain(100, 'k');
  CHECK(DecodeMeta(Framed(1, 100, Zstd(plain)), kLimit).value() == plain);
  CheckCorrupt(Framed(1, 99, Zstd(plain)));
  CheckCorrupt(Framed(1, 101, Zstd(plain)));
  CheckCorrupt(Framed(1, 100, Zstd(plain) + "x"));
  CheckCorrupt(Framed(1, 200, Zstd(plain) + Zstd(plain)));
  // A skippable frame (magic 0x184D2A50) holds nothing.
  CheckCorrupt(Framed(1, 4, std::string("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12)));
}

TEST_CASE("every truncation and random damage is corrupt or within the bound") {
  std::string plain;
  for (int i = 0; i < 60; ++i) plain += "stream " + std::to_string(i * i) + "\n";
  const std::string frame = EncodeMeta(plain).value();
  for (size_t i = 0; i < frame.size(); ++i) CheckCorrupt(frame.substr(0, i));
  const unsigned seed = std::random_device{}();
  std::printf("meta_frame_test: random damage, seed %u\n", seed);
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = frame;
    for (uint32_t i = 0; i < 1 + random() % 3; ++i) changed[random() % changed.size()] = static_cast<char>(random());
    const auto decoded = DecodeMeta(changed, kLimit);
    if (decoded.ok() && decoded->size() > kLimit) FAIL("beyond the bound");
    if (!decoded.ok() && base::CodeOf(decoded.status()) != base::Code::kCorrupt) FAIL(decoded.status());
  }
}
