// SPDX-License-Identifier: Apache-2.0
// Packed rows and conversions of every level against the definitions of the formats, each written out here once more
// in double.
#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

// E4M3 by its definition: (-1)^s * 2^(e-7) * (1 + m/8), subnormal 2^-6 * m/8.
double E4M3Value(uint32_t code) {
  const int exponent = static_cast<int>(code >> 3 & 15u);
  const double mantissa = (code & 7u) / 8.0;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1.0 + mantissa, exponent - 7);
  return (code & 128u) != 0 ? -magnitude : magnitude;
}

double E2M1Value(uint32_t code) {
  constexpr double kValues[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8u) != 0 ? -kValues[code & 7u] : kValues[code & 7u];
}

// The code whose value is nearest, of two equally near ones the even code; brute force over all finite codes.
template <typename Value>
uint32_t Nearest(double wanted, uint32_t magnitudes, uint32_t sign_bit, Value value) {
  const uint32_t sign = std::signbit(wanted) ? sign_bit : 0;
  uint32_t best = 0;
  for (uint32_t code = 1; code < magnitudes; ++code) {
    const double distance = std::fabs(value(code) - std::fabs(wanted));
    const double best_distance = std::fabs(value(best) - std::fabs(wanted));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return best | sign;
}

struct Packed {
  std::vector<uint8_t> codes, rope, scales;
  kvstrata_packed_shape shape;
};

kvstrata_packed_shape ShapeOf(int32_t format) {
  auto shape = Args<kvstrata_packed_shape>();
  shape.format = format;
  REQUIRE(Reference().packed_shape(&shape) == 0);
  return shape;
}

Packed Pack(const kvstrata_kernels& k, int32_t format, const std::vector<float>& rows) {
  Packed out{{}, {}, {}, ShapeOf(format)};
  auto a = Args<kvstrata_pack_rows_args>();
  a.format = format;
  a.rows = rows.size() / out.shape.width;
  a.source = rows.data();
  out.codes.resize(a.rows * out.shape.code_bytes);
  out.rope.resize(a.rows * out.shape.rope_bytes);
  out.scales.resize(a.rows * out.shape.scale_bytes);
  a.codes = out.codes.data();
  a.rope = out.rope.data();
  a.scales = out.scales.data();
  REQUIRE(k.pack_rows(&a, nullptr) == 0);
  return out;
}

std::vector<float> Unpack(const kvstrata_kernels& k, const Packed& packed) {
  auto a = Args<kvstrata_unpack_rows_args>();
  a.format = packed.shape.format;
  a.rows = packed.codes.size() / packed.shape.code_bytes;
  a.codes = packed.codes.data();
  a.rope = packed.rope.data();
  a.scales = packed.scales.data();
  std::vector<float> out(a.rows * packed.shape.width);
  a.destination = out.data();
  REQUIRE(k.unpack_rows(&a, nullptr) == 0);
  return out;
}

std::vector<float> Quantized(const kvstrata_kernels& k, int32_t format, std::vector<float> rows) {
  auto a = Args<kvstrata_quantize_args>();
  a.format = format;
  a.rows = rows.size() / ShapeOf(format).width;
  a.values = rows.data();
  REQUIRE(k.quantize_dequantize(&a, nullptr) == 0);
  return rows;
}

std::vector<float> RowWith(int32_t format, std::vector<float> first) {
  first.resize(ShapeOf(format).width);
  return first;
}

std::vector<uint8_t> First(const std::vector<uint8_t>& bytes, size_t count) {
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count)};
}

constexpr int32_t kFormats[] = {KVSTRATA_KERNELS_FORMAT_V4_ROW, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4,
                                KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, KVSTRATA_KERNELS_FORMAT_V41_WINDOW,
                                KVSTRATA_KERNELS_FORMAT_V41_ENTRY};

using Bytes = std::vector<uint8_t>;

}  // namespace

TEST_CASE("packed rows have the published sizes") {
  CHECK(ShapeOf(KVSTRATA_KERNELS_FORMAT_V4_ROW).row_bytes == 584);
  CHECK(ShapeOf(KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4).row_bytes == 68);
  CHECK(ShapeOf(KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8).row_bytes == 132);
  CHECK(ShapeOf(KVSTRATA_KERNELS_FORMAT_V41_WINDOW).row_bytes == 528);
  CHECK(ShapeOf(KVSTRATA_KERNELS_FORMAT_V41_ENTRY).row_bytes == 288);
}

TEST_CASE("FP8 check values") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const int32_t format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  Packed p = Pack(k, format, RowWith(format, {3.0f, 1.0f, 0.3f, -0.046875f, 0.001f}));
  CHECK(p.scales[0] == 120);
  CHECK(First(p.codes, 5) == Bytes{0x7C, 0x70, 0x62, 0xCC, 0x20});
  std::vector<float> back = Unpack(k, p);
  CHECK(back[0] == 3.0f);
  CHECK(back[1] == 1.0f);
  CHECK(back[2] == 0.3125f);
  CHECK(back[3] == -0.046875f);
  CHECK(back[4] == 0.0009765625f);

  p = Pack(k, format, RowWith(format, {448.0f, 1.0f}));
  CHECK(p.scales[0] == 127);
  CHECK(First(p.codes, 2) == Bytes{0x7E, 0x38});

  p = Pack(k, format, RowWith(format, {450.0f, 1.0f}));
  CHECK(p.scales[0] == 128);
  CHECK(First(p.codes, 2) == Bytes{0x76, 0x30});
  CHECK(Unpack(k, p)[0] == 448.0f);
  CHECK(Unpack(k, p)[1] == 1.0f);

  p = Pack(k, format, RowWith(format, {}));
  CHECK(p.scales == Bytes{105, 105, 105, 105, 105, 105, 105, 0});
  CHECK(p.codes == Bytes(448, 0));
}

TEST_CASE("FP4 check values, even channel in the low nibble") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const int32_t format = KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4;
  Packed p = Pack(k, format, RowWith(format, {2.5f, .125f, .375f, .625f, .875f, 1.25f, 1.75f, -.5f}));
  CHECK(p.scales[0] == 126);
  CHECK(First(p.codes, 4) == Bytes{0x06, 0x22, 0x44, 0xA6});
  const std::vector<float> back = Unpack(k, p);
  CHECK(std::vector<float>(back.begin(), back.begin() + 8) == std::vector<float>{2, 0, .5f, .5f, 1, 1, 2, -.5f});

  p = Pack(k, format, RowWith(format, {6.0f, 1.0f}));
  CHECK(p.scales[0] == 127);
  CHECK(p.codes[0] == 0x27);

  p = Pack(k, format, RowWith(format, {6.5f, 1.0f}));
  CHECK(p.scales[0] == 128);
  CHECK(p.codes[0] == 0x15);
  CHECK(Unpack(k, p)[0] == 6.0f);
  CHECK(Unpack(k, p)[1] == 1.0f);

  CHECK(Pack(k, format, RowWith(format, {})).scales == Bytes{1, 1, 1, 1});
}

TEST_CASE("V4.1 entry check values") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const int32_t format = KVSTRATA_KERNELS_FORMAT_V41_ENTRY;
  const Packed p = Pack(k, format, RowWith(format, {2.5f, 1.0f, -.3f, .05f}));
  CHECK(p.scales[0] == 0x2D);
  CHECK(First(p.codes, 2) == Bytes{0x47, 0x09});
  const std::vector<float> back = Unpack(k, p);
  CHECK(back[0] == 2.4375f);
  CHECK(back[1] == .8125f);
  CHECK(back[2] == -.203125f);
  CHECK(back[3] == 0.0f);
}

TEST_CASE("every FP8 code survives unpack and pack") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  // 14 blocks of 64: the first channel pins the scale with 448, the others run through all codes.
  const int32_t format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  for (uint32_t scale : {105u, 120u, 127u, 130u}) {
    Packed p{{}, Bytes(256, 0), Bytes(16, static_cast<uint8_t>(scale)), ShapeOf(format)};
    p.scales[7] = p.scales[15] = 0;
    for (uint32_t i = 0; i < 896; ++i) {
      const uint32_t code = (i - i / 64) % 256;
      p.codes.push_back(static_cast<uint8_t>(i % 64 == 0 ? 0x7Eu : code));
    }
    const std::vector<float> values = Unpack(k, p);
    for (uint32_t row = 0; row < 2; ++row) {
      for (uint32_t i = 0; i < 448; ++i) {
        const uint32_t code = p.codes[row * 448 + i];
        const float value = values[row * 512 + i];
        CAPTURE(scale, row, i, code);
        if ((code & 127u) == 127u) {
          CHECK(std::isnan(value));
        } else {
          CHECK(static_cast<double>(value) == std::ldexp(E4M3Value(code), static_cast<int>(scale) - 127));
        }
      }
    }
    const Packed again = Pack(k, format, values);
    CHECK(again.codes == p.codes);  // NaN codes included: the sign of a NaN is kept
    CHECK(again.scales == p.scales);
  }
}

TEST_CASE("every FP4 code survives unpack and pack, in both nibbles") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  for (const int32_t format : {KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, KVSTRATA_KERNELS_FORMAT_V41_ENTRY}) {
    const bool is_entry = format == KVSTRATA_KERNELS_FORMAT_V41_ENTRY;
    const kvstrata_packed_shape shape = ShapeOf(format);
    const uint32_t block = is_entry ? 16 : 32;
    for (uint32_t first = 0; first < 16; ++first) {
      // 1.0 as a scale in either coding. Channel 0 of each block is 6; every other channel takes each code once.
      Packed p{Bytes(shape.code_bytes), {}, Bytes(shape.scale_bytes, is_entry ? 0x38 : 127), shape};
      for (uint32_t i = 0; i < shape.width; ++i) {
        const uint32_t code = i % block == 0 ? 7 : (i + first) % 16;
        p.codes[i / 2] = static_cast<uint8_t>(p.codes[i / 2] | code << (i % 2 * 4));
      }
      const std::vector<float> values = Unpack(k, p);
      for (uint32_t i = 0; i < shape.width; ++i) {
        const uint32_t code = i % block == 0 ? 7 : (i + first) % 16;
        CHECK(static_cast<double>(values[i]) == E2M1Value(code));
        CHECK(std::signbit(values[i]) == (code >= 8));
      }
      const Packed again = Pack(k, format, values);
      CHECK(again.codes == p.codes);
      CHECK(again.scales == p.scales);
    }
  }
}

TEST_CASE("the scale is the smallest power of two that holds the block, for every bf16 magnitude") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  // Exact in double: the smallest e with largest_element * 2^e >= max(amax, floor).
  const auto expected_byte = [](double amax, double floor, double largest) {
    const double wanted = std::fmax(amax, floor);
    int e = -127;
    while (std::ldexp(largest, e) < wanted) ++e;
    return static_cast<uint32_t>(e + 127);
  };
  std::vector<float> magnitudes;
  for (uint32_t bits = 1; bits < 0x7F80; ++bits) magnitudes.push_back(std::bit_cast<float>(bits << 16));
  CHECK(magnitudes.size() == 32639);

  struct Case {
    int32_t format;
    uint32_t block, blocks;
    double floor, largest;
  };
  const Case cases[] = {
      {KVSTRATA_KERNELS_FORMAT_V4_ROW, 64, 7, static_cast<double>(1e-4f), 448},
      {KVSTRATA_KERNELS_FORMAT_V41_WINDOW, 32, 16, static_cast<double>(1e-4f), 448},
      {KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, 32, 4, 0x6p-126, 6},
  };
  for (const Case& c : cases) {
    const kvstrata_packed_shape shape = ShapeOf(c.format);
    std::vector<float> rows((magnitudes.size() / c.blocks + 1) * shape.width);
    for (size_t i = 0; i < magnitudes.size(); ++i) {
      // Somewhere in the block, with either sign.
      const size_t channel = i % c.blocks * c.block + i % c.block;
      rows[i / c.blocks * shape.width + channel] = i % 2 == 0 ? magnitudes[i] : -magnitudes[i];
    }
    const Packed p = Pack(k, c.format, rows);
    size_t wrong = 0;
    for (size_t i = 0; i < magnitudes.size(); ++i) {
      const uint32_t byte = p.scales[i / c.blocks * shape.scale_bytes + i % c.blocks];
      if (byte != expected_byte(static_cast<double>(magnitudes[i]), c.floor, c.largest)) ++wrong;
    }
    CAPTURE(c.format);
    CHECK(wrong == 0);
  }
}

TEST_CASE("codes are the nearest ones, ties to even, by brute force") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 11;
  INFO("seed " << seed);
  Random random(seed);
  for (int round = 0; round < 20; ++round) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random.Below(30)) - 20);
    std::vector<float> row = random.Floats(512, scale);
    // Exact ties and near ties of both grids.
    for (uint32_t i = 0; i < 64; ++i) row[i] = scale * (static_cast<float>(i) - 32.0f) / 32.0f;
    const Packed p = Pack(k, KVSTRATA_KERNELS_FORMAT_V4_ROW, row);
    for (uint32_t i = 0; i < 448; ++i) {
      const double x = std::ldexp(static_cast<double>(row[i]), 127 - p.scales[i / 64]);
      REQUIRE(p.codes[i] == Nearest(x, 127, 128, E4M3Value));
    }
    const Packed q = Pack(k, KVSTRATA_KERNELS_FORMAT_V41_ENTRY, row);
    for (uint32_t i = 0; i < 512; ++i) {
      const float step = static_cast<float>(E4M3Value(q.scales[i / 16]));
      const uint32_t code = q.codes[i / 2] >> (i % 2 * 4) & 15u;
      REQUIRE(code == Nearest(static_cast<double>(row[i] / step), 8, 8, E2M1Value));
    }
    row.resize(128);
    const Packed key = Pack(k, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, row);
    for (uint32_t i = 0; i < 128; ++i) {
      const double x = std::ldexp(static_cast<double>(row[i]), 127 - key.scales[i / 32]);
      REQUIRE((key.codes[i / 2] >> (i % 2 * 4) & 15u) == Nearest(x, 8, 8, E2M1Value));
    }
  }
}

TEST_CASE("profile S unpacks exactly the numbers of profile Q, and they are bf16 numbers and fixed points") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 12;
  INFO("seed " << seed);
  Random random(seed);
  for (const int32_t format : kFormats) {
    const kvstrata_packed_shape shape = ShapeOf(format);
    std::vector<float> rows;
    for (int row = 0; row < 200; ++row) {
      const float scale = std::ldexp(1.0f, static_cast<int>(random.Below(12)) - 4);
      for (float value : random.Floats(shape.width, scale)) rows.push_back(ToBf16(value));
    }
    const std::vector<float> quantised = Quantized(k, format, rows);
    const Packed packed = Pack(k, format, rows);
    CAPTURE(format);
    CHECK(SameBits(Unpack(k, packed), quantised));
    CHECK_FALSE(SameBits(rows, quantised));
    size_t not_bf16 = 0;
    for (float value : quantised) not_bf16 += (std::bit_cast<uint32_t>(value) & 0xFFFFu) != 0;
    CHECK(not_bf16 == 0);
    CHECK(SameBits(Unpack(k, Pack(k, format, quantised)), quantised));
  }
}

TEST_CASE("the one packed block that is no fixed point is the documented one") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const int32_t format = KVSTRATA_KERNELS_FORMAT_V41_ENTRY;
  // 9.8 steps of 2^-9: scale 9.8/6 rounds to 2 steps, 9.8/2 rounds to 4: largest magnitude 8 steps. Packed again its
  // scale is 8/6 -> 1 step, which holds only 6.
  const std::vector<float> once = Quantized(k, format, RowWith(format, {9.8f * 0x1p-9f}));
  CHECK(once[0] == 0x1p-6f);
  CHECK(Quantized(k, format, once)[0] == 0x6p-9f);
}

TEST_CASE("bf16 sources and destinations give the same bytes and numbers as floats") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 13;
  INFO("seed " << seed);
  Random random(seed);
  for (const int32_t format : kFormats) {
    const kvstrata_packed_shape shape = ShapeOf(format);
    std::vector<float> rows;
    std::vector<uint16_t> halves;
    for (float value : random.Floats(3 * uint64_t{shape.width}, 5.0f)) {
      rows.push_back(ToBf16(value));
      halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(rows.back()) >> 16));
    }
    const Packed expected = Pack(k, format, rows);
    Packed got = expected;
    auto a = Args<kvstrata_pack_rows_args>();
    a.format = format;
    a.source_type = KVSTRATA_KERNELS_BF16;
    a.rows = 3;
    a.source = halves.data();
    a.codes = got.codes.data();
    a.rope = got.rope.data();
    a.scales = got.scales.data();
    got.codes.assign(got.codes.size(), 0xEE);
    got.scales.assign(got.scales.size(), 0xEE);
    REQUIRE(k.pack_rows(&a, nullptr) == 0);
    CHECK(got.codes == expected.codes);
    CHECK(got.rope == expected.rope);
    CHECK(got.scales == expected.scales);

    auto u = Args<kvstrata_unpack_rows_args>();
    u.format = format;
    u.destination_type = KVSTRATA_KERNELS_BF16;
    u.rows = 3;
    u.codes = got.codes.data();
    u.rope = got.rope.data();
    u.scales = got.scales.data();
    std::vector<uint16_t> back(halves.size());
    u.destination = back.data();
    REQUIRE(k.unpack_rows(&u, nullptr) == 0);
    const std::vector<float> floats = Unpack(k, expected);
    for (size_t i = 0; i < back.size(); ++i) REQUIRE(back[i] == std::bit_cast<uint32_t>(floats[i]) >> 16);
  }
}

TEST_CASE("a planar page and interleaved rows hold the same planes and nothing else is written") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 14;
  INFO("seed " << seed);
  const std::vector<float> rows = Random(seed).Floats(3 * 512, 4.0f);
  const Packed tight = Pack(k, KVSTRATA_KERNELS_FORMAT_V4_ROW, rows);
  auto a = Args<kvstrata_pack_rows_args>();
  a.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  a.rows = 3;
  a.source = rows.data();

  SECTION("interleaved, 584 bytes a row") {
    Bytes bytes(3 * 584 + 2, 0xAB);
    a.codes = bytes.data() + 1;
    a.rope = a.codes + 448;
    a.scales = a.codes + 576;
    a.code_stride_bytes = a.rope_stride_bytes = a.scale_stride_bytes = 584;
    REQUIRE(k.pack_rows(&a, nullptr) == 0);
    CHECK(bytes.front() == 0xAB);
    CHECK(bytes.back() == 0xAB);
    for (size_t row = 0; row < 3; ++row) {
      CHECK(std::memcmp(a.codes + row * 584, tight.codes.data() + row * 448, 448) == 0);
      CHECK(std::memcmp(a.rope + row * 584, tight.rope.data() + row * 128, 128) == 0);
      CHECK(std::memcmp(a.scales + row * 584, tight.scales.data() + row * 8, 8) == 0);
    }
  }
  SECTION("planar page of 64 rows: 576 data bytes a row, then the scales") {
    Bytes page(37440, 0xAB);
    a.codes = page.data() + 5 * 576;
    a.rope = a.codes + 448;
    a.scales = page.data() + 64 * 576 + 5 * 8;
    a.code_stride_bytes = a.rope_stride_bytes = 576;
    a.scale_stride_bytes = 8;
    REQUIRE(k.pack_rows(&a, nullptr) == 0);
    size_t written = 0;
    for (uint8_t byte : page) written += byte != 0xAB;
    size_t like_guard = 0;
    for (const Bytes* plane : {&tight.codes, &tight.rope, &tight.scales}) {
      for (uint8_t byte : *plane) like_guard += byte == 0xAB;
    }
    CHECK(written + like_guard == 3 * 584);
    CHECK(std::memcmp(a.codes + 576, tight.codes.data() + 448, 448) == 0);
    CHECK(std::memcmp(a.scales + 16, tight.scales.data() + 16, 8) == 0);
  }
}

TEST_CASE("small models: other widths, padded scale plane") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  auto shape = Args<kvstrata_packed_shape>();
  shape.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  shape.width = 136;
  shape.rope_dims = 8;
  REQUIRE(k.packed_shape(&shape) == 0);
  CHECK(shape.code_bytes == 128);
  CHECK(shape.rope_bytes == 16);
  CHECK(shape.scale_bytes == 8);
  shape.width = 100;
  CHECK(k.packed_shape(&shape) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
  CHECK(shape.width == 100);
}

TEST_CASE("NaN and infinity: stated, and never a wrong finite neighbour") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const int32_t format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  std::vector<float> back = Unpack(k, Pack(k, format, RowWith(format, {kNan, 2.0f, -1.0f})));
  CHECK(std::isnan(back[0]));
  CHECK(back[1] == 2.0f);
  CHECK(back[2] == -1.0f);
  const Packed p = Pack(k, format, RowWith(format, {kInfinity, 1.0f}));
  CHECK(p.scales[0] == 254);
  CHECK(p.codes[0] == 0x7E);
  const int32_t fp4 = KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4;
  CHECK(Unpack(k, Pack(k, fp4, RowWith(fp4, {kNan, 3.0f})))[0] == 0.0f);
}

TEST_CASE("bf16 conversion rounds to nearest even and keeps every bf16 number") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(all.size());
  auto a = Args<kvstrata_convert_args>();
  a.count = all.size();
  a.source = all.data();
  a.destination = floats.data();
  REQUIRE(k.bf16_to_f32(&a, nullptr) == 0);
  std::vector<uint16_t> back(all.size());
  a.source = floats.data();
  a.destination = back.data();
  REQUIRE(k.f32_to_bf16(&a, nullptr) == 0);
  for (size_t i = 0; i < all.size(); ++i) {
    REQUIRE(std::bit_cast<uint32_t>(floats[i]) == i << 16);
    if (std::isnan(floats[i])) {
      REQUIRE((back[i] & 0x7FFFu) > 0x7F80u);
    } else {
      REQUIRE(back[i] == all[i]);
    }
  }
  std::vector<float> values = {1.0f + 0x1p-8f,  1.0f + 0x3p-8f, 1.0f + 0x1p-8f + 0x1p-20f,
                               -1.0f - 0x1p-8f, 3.4e38f,        std::bit_cast<float>(0x7F800001u)};
  a.count = values.size();
  a.source = a.destination = values.data();
  REQUIRE(k.bf16_round(&a, nullptr) == 0);
  CHECK(values[0] == 1.0f);
  CHECK(values[1] == 1.0f + 0x1p-6f);
  CHECK(values[2] == 1.0f + 0x1p-7f);
  CHECK(values[3] == -1.0f);
  CHECK(values[4] == kInfinity);
  CHECK(std::isnan(values[5]));

  const uint64_t seed = 15;
  INFO("seed " << seed);
  values = Random(seed).Floats(5000, 3.0f);
  const std::vector<float> before = values;
  a.count = values.size();
  a.source = a.destination = values.data();
  REQUIRE(k.bf16_round(&a, nullptr) == 0);
  for (size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == ToBf16(before[i]));
}

TEST_CASE("Hadamard: the signs of unit vector 5, the matrix itself, its own inverse") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  auto a = Args<kvstrata_hadamard_args>();
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.width = 128;
  a.rows = 1;
  std::vector<float> unit(128);
  unit[5] = 1.0f;
  a.values = unit.data();
  REQUIRE(k.hadamard(&a, nullptr) == 0);
  const std::string signs = "+-+--+-++-+--+-+";
  for (size_t i = 0; i < signs.size(); ++i) CHECK((unit[i] > 0) == (signs[i] == '+'));
  // H[i][j] = (-1)^popcount(i & j) / sqrt(128).
  for (uint32_t i = 0; i < 128; ++i) {
    const double sign = std::popcount(i & 5u) % 2 == 0 ? 1 : -1;
    CHECK(unit[i] == static_cast<float>(sign * 0.08838834764831845));
  }
  const uint64_t seed = 16;
  INFO("seed " << seed);
  std::vector<float> row = Random(seed).Floats(128, 1.0f);
  const std::vector<float> before = row;
  a.values = row.data();
  REQUIRE(k.hadamard(&a, nullptr) == 0);
  for (uint32_t i = 0; i < 128; ++i) {
    double expected = 0;
    for (uint32_t j = 0; j < 128; ++j) expected += (std::popcount(i & j) % 2 == 0 ? 1.0 : -1.0) * before[j];
    // 7 levels of fp32 additions of numbers up to 128, then the scale.
    CHECK(std::fabs(row[i] - expected * 0.08838834764831845) < 9 * kUnit * 128 * 0.0884);
  }
  REQUIRE(k.hadamard(&a, nullptr) == 0);
  for (uint32_t i = 0; i < 128; ++i) CHECK(std::fabs(row[i] - before[i]) < 2e-6);
}
