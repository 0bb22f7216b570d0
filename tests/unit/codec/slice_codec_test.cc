// SPDX-License-Identifier: Apache-2.0
// Coded slices: all packings come back bit for bit, what cannot gain is not coded, bytes are laid out as FORMAT.md
// says, and nothing that is wrong passes or leaves its bounds.
#include "lib/codec/slice_codec.h"

#include <zstd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace codec = kvstrata::core::codec;
namespace layout = kvstrata::core::layout;

namespace {

using Bytes = std::vector<std::byte>;
using layout::Packing;

layout::Stream StreamOf(Packing packing, uint32_t row_bytes) {
  layout::Stream stream;
  stream.packing = packing;
  stream.row_bytes = row_bytes;
  return stream;
}

const std::vector<layout::Stream> kStreams = {
    StreamOf(Packing::kRaw, 100),       StreamOf(Packing::kF32, 512),       StreamOf(Packing::kBf16, 1024),
    StreamOf(Packing::kF16, 256),       StreamOf(Packing::kFp8Row584, 584), StreamOf(Packing::kFp8Row528, 528),
    StreamOf(Packing::kFp4Row288, 288), StreamOf(Packing::kFp8Key132, 132), StreamOf(Packing::kFp4Key68, 68),
    StreamOf(Packing::kFp8Row656, 656), StreamOf(Packing::kBf16, 7),        StreamOf(Packing::kRaw, 0)};

// Few different bytes in each place of a row: what codes of like numbers look like to an entropy coder.
Bytes LikeRows(base::SeededRandom& random, uint64_t rows, uint64_t row_bytes) {
  Bytes bytes(rows * row_bytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint64_t place = i % row_bytes;
    bytes[i] = static_cast<std::byte>((place % 2 == 0 ? 0x3c : 0x80) + random.Below(place % 2 == 0 ? 4 : 64));
  }
  return bytes;
}

Bytes Noise(base::SeededRandom& random, uint64_t bytes) {
  Bytes out(bytes);
  REQUIRE(random.Fill(out).ok());
  return out;
}

// Empty where the encoder declines. Buffers of exactly the sizes asked for, so that a sanitizer sees a step outside.
Bytes Encoded(const layout::Stream& stream, const Bytes& rows) {
  codec::SliceEncoder encoder;
  Bytes scratch(rows.size()), coded(rows.size());
  coded.resize(encoder.Encode(stream, rows, scratch, coded));
  return coded;
}

absl::Status Decode(const layout::Stream& stream, const Bytes& coded, Bytes* rows,
                    codec::FindPacker find_packer = nullptr) {
  codec::SliceDecoder decoder(find_packer);
  Bytes scratch(2 * rows->size());
  return decoder.Decode(stream, Bytes(coded), scratch, *rows);
}

void CheckCorrupt(const layout::Stream& stream, const Bytes& coded, size_t size) {
  Bytes rows(size);
  const absl::Status status = Decode(stream, coded, &rows);
  INFO(status.ToString());
  CHECK(base::CodeOf(status) == base::Code::kCorrupt);
  CHECK(base::FieldOf(status) == "coded slice");
}

void Append(Bytes* out, std::string_view text) {
  const base::ByteView bytes = base::AsBytes(text);
  out->insert(out->end(), bytes.begin(), bytes.end());
}

// A plane as it is stored.
void AppendPlane(Bytes* out, std::string_view stored) {
  base::ByteWriter writer(out);
  writer.Write(static_cast<uint32_t>(stored.size()));
  Append(out, stored);
}

std::string Zstd(std::string_view plain) {
  std::string packed(ZSTD_compressBound(plain.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), 3));
  return packed;
}

}  // namespace

TEST_CASE("rows of every packing come back bit for bit, in fewer bytes") {
  base::SeededRandom random(20261201);
  for (const layout::Stream& stream : kStreams) {
    for (const uint64_t count : {5, 32, 127}) {
      const uint64_t row_bytes = stream.row_bytes == 0 ? 1009 : stream.row_bytes;
      CAPTURE(layout::PackingName(stream.packing), stream.row_bytes, count);
      const Bytes rows = LikeRows(random, count, row_bytes);
      const Bytes coded = Encoded(stream, rows);
      if (count >= 32) REQUIRE_FALSE(coded.empty());
      if (coded.empty()) continue;
      CHECK(coded.size() <= rows.size() - rows.size() / 32);
      Bytes decoded(rows.size());
      REQUIRE(Decode(stream, coded, &decoded).ok());
      CHECK(decoded == rows);
    }
  }
}

TEST_CASE("rows apart gain where rows as they are do not") {
  // Alternating bytes of a narrow and of a wide distribution: 2 and 8 bits of entropy, so 5/8 is the bound.
  base::SeededRandom random(20261202);
  const layout::Stream stream = StreamOf(Packing::kBf16, 1024);
  Bytes rows(64 * 1024);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<std::byte>(i % 2 == 0 ? random.Below(256) : 0x3c + random.Below(4));
  }
  const size_t apart = Encoded(stream, rows).size(), together = Encoded(StreamOf(Packing::kRaw, 1024), rows).size();
  CHECK(apart < rows.size() * 66 / 100);
  CHECK(apart < (together == 0 ? rows.size() : together) * 9 / 10);
}

TEST_CASE("what cannot gain is not coded") {
  base::SeededRandom random(20261203);
  for (const layout::Stream& stream : kStreams) {
    CAPTURE(layout::PackingName(stream.packing), stream.row_bytes);
    CHECK(Encoded(stream, Noise(random, 32 * (stream.row_bytes == 0 ? 999 : stream.row_bytes))).empty());
    CHECK(Encoded(stream, {}).empty());
  }
  const layout::Stream stream = StreamOf(Packing::kRaw, 1024);
  CHECK(Encoded(stream, Bytes(1)).empty());
  CHECK_FALSE(Encoded(stream, Bytes(codec::kMaxCodedSliceBytes)).empty());
  CHECK(Encoded(stream, Bytes(codec::kMaxCodedSliceBytes + 1024)).empty());
  // Not whole rows.
  CHECK(Encoded(StreamOf(Packing::kBf16, 1024), Bytes(1500)).empty());
}

TEST_CASE("a plane is coded from 128 bytes on, and what that leaves of shorter ones is next to nothing") {
  // Scales as rows of numbers of one kind have them: a normal distribution of exponents, 2.3 bits of entropy.
  base::SeededRandom random(20261206);
  const auto scales = [&](size_t count) {
    std::string plane;
    for (size_t i = 0; i < count; ++i) {
      uint64_t sum = 0;
      for (int k = 0; k < 12; ++k) sum += random.Below(5);
      plane.push_back(static_cast<char>(100 + sum / 4));
    }
    return plane;
  };
  // Rows of 64 equal codes and 4 scales: a plane that shrinks to nothing, and the one that is looked at.
  const layout::Stream key = StreamOf(Packing::kFp4Key68, 68);
  for (const size_t count : {31, 32}) {
    CAPTURE(count);
    const std::string plane = scales(4 * count);
    Bytes rows;
    for (size_t row = 0; row < count; ++row) Append(&rows, std::string(64, 'c') + plane.substr(4 * row, 4));
    const Bytes coded = Encoded(key, rows);
    REQUIRE_FALSE(coded.empty());
    const bool as_it_is = base::AsText(coded).ends_with(plane);
    CHECK(as_it_is == (count == 31));
  }
  for (int i = 0; i < 100; ++i) {
    for (const size_t size : {16, 32, 48}) CHECK(Zstd(scales(size)).size() > size - size / 32);
    CHECK(Zstd(scales(124)).size() + 70 > 124);
  }
}

TEST_CASE("a coded slice is laid out as the format says") {
  // Rows of 68 bytes: 64 of codes, 4 of scales. Two planes, here a frame and one as it is.
  const layout::Stream key = StreamOf(Packing::kFp4Key68, 68);
  const std::string codes(128, 'c'), scales = "01234567";
  Bytes coded{std::byte{1}};
  AppendPlane(&coded, Zstd(codes));
  AppendPlane(&coded, scales);
  Bytes rows(2 * 68);
  REQUIRE(Decode(key, coded, &rows).ok());
  Bytes expected;
  Append(&expected, codes.substr(0, 64) + "0123" + codes.substr(64) + "4567");
  CHECK(rows == expected);
  // Rows of two 16-bit numbers: low bytes, then high bytes.
  const layout::Stream floats = StreamOf(Packing::kBf16, 4);
  coded = {std::byte{1}};
  AppendPlane(&coded, "acegik");
  AppendPlane(&coded, "bdfhjl");
  rows.assign(12, std::byte{0});
  REQUIRE(Decode(floats, coded, &rows).ok());
  expected.clear();
  Append(&expected, "abcdefghijkl");
  CHECK(rows == expected);
  // The three columns of a row with a wider scale, in the row's order: codes, fp32 scales, bf16.
  const layout::Stream wide = StreamOf(Packing::kFp8Row656, 656);
  coded = {std::byte{1}};
  AppendPlane(&coded, std::string(512, '.'));
  for (const char* plane : {"aeim", "bfjn", "cgko", "dhlp"}) AppendPlane(&coded, plane);
  AppendPlane(&coded, std::string(64, 'l'));
  AppendPlane(&coded, std::string(64, 'h'));
  rows.assign(656, std::byte{0});
  REQUIRE(Decode(wide, coded, &rows).ok());
  expected.clear();
  std::string text(512, '.');
  text += "abcdefghijklmnop";
  for (int i = 0; i < 64; ++i) text += "lh";
  Append(&expected, text);
  CHECK(rows == expected);
}

// A toy packing of 512 bf16 numbers: the high bytes, and 72 zeros. On its grid are numbers whose low bytes are 0.
bool PackHigh(void*, const std::byte* source, size_t rows, std::byte* packed) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < 584; ++i) packed[584 * row + i] = i < 512 ? source[1024 * row + 2 * i + 1] : std::byte{0};
  }
  return true;
}

bool UnpackHigh(void*, const std::byte* packed, size_t rows, std::byte* source) {
  for (size_t row = 0; row < rows; ++row) {
    if (packed[584 * row] == std::byte{0xff}) return false;
    for (size_t i = 0; i < 512; ++i) {
      source[1024 * row + 2 * i] = std::byte{0};
      source[1024 * row + 2 * i + 1] = packed[584 * row + i];
    }
  }
  return true;
}

constexpr codec::RowPacker kHigh{&PackHigh, &UnpackHigh, nullptr, 1024, 584};

const codec::RowPacker* FindHigh(Packing packed, Packing source) {
  return packed == Packing::kFp8Row584 && source == Packing::kBf16 ? &kHigh : nullptr;
}

TEST_CASE("rows on the grid of a packed form are stored in it, others are not") {
  base::SeededRandom random(20261206);
  const layout::Stream stream = StreamOf(Packing::kBf16, 1024);
  Bytes rows = LikeRows(random, 32, 1024);
  for (size_t i = 0; i < rows.size(); i += 2) rows[i] = std::byte{0};
  codec::SliceEncoder encoder;
  Bytes scratch(2 * rows.size()), plain(rows.size()), squeezed(rows.size());
  const auto encode = [&](bool squeeze, Bytes* coded) {
    coded->resize(rows.size());
    coded->resize(encoder.EncodePacked(stream, Packing::kFp8Row584, kHigh, squeeze, rows, scratch, *coded));
  };
  encode(false, &plain);
  encode(true, &squeezed);
  // Form, packing, and four planes with their sizes.
  CHECK(plain.size() == 2 + 4 * 4 + 32 * 584);
  CHECK(squeezed.size() < plain.size() * 95 / 100);
  for (const Bytes& coded : {plain, squeezed}) {
    CHECK(coded[0] == std::byte{2});
    CHECK(coded[1] == std::byte{10});
    Bytes decoded(rows.size());
    REQUIRE(Decode(stream, coded, &decoded, &FindHigh).ok());
    CHECK(decoded == rows);
    CHECK(base::CodeOf(Decode(stream, coded, &decoded)) == base::Code::kUnsupported);
    for (size_t size = 1; size < coded.size(); ++size) {
      const absl::Status status =
          Decode(stream, Bytes(coded.begin(), coded.begin() + static_cast<ptrdiff_t>(size)), &decoded, &FindHigh);
      CHECK(base::CodeOf(status) == base::Code::kCorrupt);
    }
    for (const int packing : {0, 1, 2, 9, 11, 13, 15, 110, 255}) {
      Bytes wrong = coded;
      wrong[1] = static_cast<std::byte>(packing);
      CHECK_FALSE(Decode(stream, wrong, &decoded, &FindHigh).ok());
    }
    CheckCorrupt(StreamOf(Packing::kF32, 1024), coded, rows.size());
    CheckCorrupt(StreamOf(Packing::kRaw, 1024), coded, rows.size());
    Bytes longer = coded;
    longer.push_back(std::byte{0});
    CHECK(base::CodeOf(Decode(stream, longer, &decoded, &FindHigh)) == base::Code::kCorrupt);
  }
  Bytes wrong = plain;
  wrong[6] = std::byte{0xff};  // rows that the packer knows no floats for
  Bytes decoded(rows.size());
  CHECK(base::CodeOf(Decode(stream, wrong, &decoded, &FindHigh)) == base::Code::kCorrupt);
  rows[2 * 511 + 1024 * 17] = std::byte{1};
  encode(true, &squeezed);
  CHECK(squeezed.empty());
}

TEST_CASE("a slice that is wrong is corrupt") {
  base::SeededRandom random(20261204);
  const layout::Stream stream = StreamOf(Packing::kFp8Row584, 584);
  const Bytes rows = LikeRows(random, 8, 584);
  const Bytes coded = Encoded(stream, rows);
  REQUIRE_FALSE(coded.empty());
  for (size_t size = 0; size < coded.size(); ++size) {
    CheckCorrupt(stream, Bytes(coded.begin(), coded.begin() + static_cast<ptrdiff_t>(size)), rows.size());
  }
  Bytes wrong = coded;
  wrong.push_back(std::byte{0});
  CheckCorrupt(stream, wrong, rows.size());
  for (const int form : {0, 2, 255}) {
    wrong = coded;
    wrong[0] = static_cast<std::byte>(form);
    CheckCorrupt(stream, wrong, rows.size());
  }
  // Other rows than it has, and other streams'.
  for (const size_t size : {size_t{0}, rows.size() - 584, rows.size() + 584, rows.size() - 1}) {
    CheckCorrupt(stream, coded, size);
  }
  CheckCorrupt(StreamOf(Packing::kFp8Row528, 528), coded, 8 * 528);
}

TEST_CASE("a plane that is no frame of its size is corrupt") {
  const layout::Stream stream = StreamOf(Packing::kRaw, 1000);
  const auto check = [&](std::string_view stored) {
    Bytes coded{std::byte{1}};
    AppendPlane(&coded, stored);
    CheckCorrupt(stream, coded, 1000);
  };
  check(Zstd(std::string(999, 'x')));
  check(Zstd(std::string(1001, 'x')));
  check(Zstd(std::string(1u << 20, 'x')));  // a bomb: there is room for the rows alone
  check(Zstd(std::string(500, 'x')) + Zstd(std::string(500, 'x')));
  check(Zstd(std::string(1000, 'x')) + "x");
  check("");
  check("xyz");
  check(std::string("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12));  // a skippable frame
  check(std::string(1001, 'x'));
}

TEST_CASE("no flipped bit makes the decoder leave its bounds") {
  base::SeededRandom random(20261205);
  for (const layout::Stream& stream : {kStreams[2], kStreams[4], kStreams[7]}) {
    const Bytes rows = LikeRows(random, 8, stream.row_bytes);
    const Bytes coded = Encoded(stream, rows);
    REQUIRE_FALSE(coded.empty());
    for (size_t i = 0; i < coded.size(); ++i) {
      Bytes flipped = coded;
      flipped[i] ^= std::byte{1} << random.Below(8);
      Bytes decoded(rows.size());
      const absl::Status status = Decode(stream, flipped, &decoded);
      // Without a checksum of its own a frame may hold other bytes: the record's checksums tell those.
      if (!status.ok()) CHECK(base::CodeOf(status) == base::Code::kCorrupt);
    }
  }
}
