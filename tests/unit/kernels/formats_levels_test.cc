// SPDX-License-Identifier: Apache-2.0
// The numeric formats of the cpu levels against the reference, bit for bit: every bf16 number, every code with every
// scale, random bits, NaN and denormals included, odd shapes and strides. formats_test.cc checks what the bits mean.
#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

using Bytes = std::vector<uint8_t>;

constexpr int32_t kFormats[] = {KVSTRATA_KERNELS_FORMAT_V4_ROW, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4,
                                KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, KVSTRATA_KERNELS_FORMAT_V41_WINDOW,
                                KVSTRATA_KERNELS_FORMAT_V41_ENTRY};
constexpr int32_t kTypes[] = {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16};

struct Shape {
  int32_t format;
  uint32_t width, rope_dims;  // 0: the defaults
};

kvstrata_packed_shape Filled(const Shape& shape) {
  auto out = Args<kvstrata_packed_shape>();
  out.format = shape.format;
  out.width = shape.width;
  out.rope_dims = shape.rope_dims;
  REQUIRE(Reference().packed_shape(&out) == 0);
  return out;
}

// Every plane begins at an odd address, has gaps between its rows and known bytes in them, which must survive.
struct Planes {
  Planes(const kvstrata_packed_shape& shape, uint64_t rows)
      : codes(1 + rows * (shape.code_bytes + 3), 0xC5),
        rope(1 + rows * (shape.rope_bytes + 5), 0xC5),
        scales(1 + rows * (shape.scale_bytes + 1), 0xC5) {}

  template <typename A>
  void Set(A& a, const kvstrata_packed_shape& shape) {
    a.codes = codes.data() + 1;
    a.code_stride_bytes = shape.code_bytes + 3;
    a.rope = shape.rope_bytes == 0 ? nullptr : rope.data() + 1;
    a.rope_stride_bytes = shape.rope_bytes + 5;
    a.scales = scales.data() + 1;
    a.scale_stride_bytes = shape.scale_bytes + 1;
  }

  Bytes codes, rope, scales;
};

template <typename T>
void SetShape(T& a, const kvstrata_packed_shape& shape) {
  a.format = shape.format;
  a.width = shape.width;
  a.rope_dims = shape.rope_dims;
}

Planes PackWith(const kvstrata_kernels& k, const kvstrata_packed_shape& shape, int32_t type, const Bytes& source,
                uint64_t stride, uint64_t rows) {
  auto a = Args<kvstrata_pack_rows_args>();
  SetShape(a, shape);
  a.source_type = type;
  a.rows = rows;
  a.source = source.data();
  a.source_stride = stride;
  Planes planes(shape, rows);
  planes.Set(a, shape);
  REQUIRE(k.pack_rows(&a, nullptr) == 0);
  return planes;
}

Bytes UnpackWith(const kvstrata_kernels& k, const kvstrata_packed_shape& shape, int32_t type, Planes planes,
                 uint64_t rows) {
  auto a = Args<kvstrata_unpack_rows_args>();
  SetShape(a, shape);
  a.destination_type = type;
  a.rows = rows;
  planes.Set(a, shape);
  a.destination_stride = shape.width + 1;
  Bytes out(rows * a.destination_stride * 4, 0xC5);
  a.destination = out.data();
  REQUIRE(k.unpack_rows(&a, nullptr) == 0);
  return out;
}

Bytes QuantizedWith(const kvstrata_kernels& k, const kvstrata_packed_shape& shape, Bytes values, uint64_t stride,
                    uint64_t rows) {
  auto a = Args<kvstrata_quantize_args>();
  SetShape(a, shape);
  a.rows = rows;
  a.values = reinterpret_cast<float*>(values.data());
  a.value_stride = stride;
  REQUIRE(k.quantize_dequantize(&a, nullptr) == 0);
  return values;
}

// Packs, unpacks and quantises the same elements on every level; all bytes must be those of the reference.
void CheckRows(const Shape& wanted, int32_t type, const Bytes& source, uint64_t stride, uint64_t rows) {
  const kvstrata_packed_shape shape = Filled(wanted);
  const Planes expected = PackWith(Reference(), shape, type, source, stride, rows);
  for (const kvstrata_kernels* k : Levels()) {
    CAPTURE(k->name, shape.format, shape.width, shape.rope_dims, type);
    const Planes got = PackWith(*k, shape, type, source, stride, rows);
    REQUIRE(got.codes == expected.codes);
    REQUIRE(got.rope == expected.rope);
    REQUIRE(got.scales == expected.scales);
    for (const int32_t to : kTypes) {
      REQUIRE(UnpackWith(*k, shape, to, expected, rows) == UnpackWith(Reference(), shape, to, expected, rows));
    }
    if (type != KVSTRATA_KERNELS_F32) continue;
    REQUIRE(QuantizedWith(*k, shape, source, stride, rows) == QuantizedWith(Reference(), shape, source, stride, rows));
  }
}

template <typename T>
Bytes AsBytes(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// Floats whose every bit is random: one in 128 is a NaN or infinite.
std::vector<uint32_t> RandomWords(Random& random, uint64_t count) {
  std::vector<uint32_t> out(count);
  for (uint32_t& word : out) word = static_cast<uint32_t>(random.Bits());
  return out;
}

// Floats of a few binades around 1, some of them with few mantissa bits: ties of every grid are among them.
std::vector<uint32_t> NearWords(Random& random, uint64_t count) {
  std::vector<uint32_t> out(count);
  for (uint32_t& word : out) {
    const uint32_t exponent = 127 - 12 + static_cast<uint32_t>(random.Below(16));
    const uint32_t kept = static_cast<uint32_t>(random.Below(8)) < 4 ? 0x780000u : 0x7FFFFFu;
    word =
        static_cast<uint32_t>(random.Below(2)) << 31 | exponent << 23 | (static_cast<uint32_t>(random.Bits()) & kept);
  }
  return out;
}

bool IsNan(uint32_t word) { return (word & 0x7FFFFFFFu) > 0x7F800000u; }

}  // namespace

TEST_CASE("levels: every bf16 number in every format") {
  // In ascending order a block has one or two exponents; shuffled, each number meets many scales.
  const uint64_t seed = 21;
  INFO("seed " << seed);
  Random random(seed);
  std::vector<uint16_t> numbers(65536);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i);
  for (int round = 0; round < 6; ++round) {
    std::vector<uint32_t> words;
    for (const uint16_t number : numbers) words.push_back(uint32_t{number} << 16);
    for (const int32_t format : kFormats) {
      const uint32_t width = Filled({format, 0, 0}).width;
      CheckRows({format, 0, 0}, KVSTRATA_KERNELS_BF16, AsBytes(numbers), width, numbers.size() / width);
      CheckRows({format, 0, 0}, KVSTRATA_KERNELS_F32, AsBytes(words), width, words.size() / width);
    }
    // Rounds 0 and 1 in order, with and without NaN; later ones shuffled, odd ones without NaN and infinity.
    for (size_t i = numbers.size() - 1; round > 0 && i > 0; --i) std::swap(numbers[i], numbers[random.Below(i + 1)]);
    if (round % 2 == 0) {
      for (uint16_t& number : numbers) number = (number & 0x7F80u) == 0x7F80u ? number & 0xBFFFu : number;
    } else {
      for (size_t i = 0; i < numbers.size(); i += 97) numbers[i] = static_cast<uint16_t>(0x7F80u | random.Below(65536));
    }
  }
}

TEST_CASE("levels: random bits and near ties") {
  const uint64_t seed = 22;
  INFO("seed " << seed);
  Random random(seed);
  for (const int32_t format : kFormats) {
    const uint32_t width = Filled({format, 0, 0}).width;
    CheckRows({format, 0, 0}, KVSTRATA_KERNELS_F32, AsBytes(RandomWords(random, 200 * width)), width, 200);
    CheckRows({format, 0, 0}, KVSTRATA_KERNELS_F32, AsBytes(NearWords(random, 400 * width)), width, 400);
  }
}

TEST_CASE("levels: other widths and strides") {
  const uint64_t seed = 23;
  INFO("seed " << seed);
  Random random(seed);
  std::vector<Shape> shapes = {{KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, 32, 0},
                               {KVSTRATA_KERNELS_FORMAT_V41_ENTRY, 16, 0},
                               {KVSTRATA_KERNELS_FORMAT_V41_ENTRY, 48, 0},
                               {KVSTRATA_KERNELS_FORMAT_V41_WINDOW, 96, 0},
                               {KVSTRATA_KERNELS_FORMAT_V41_WINDOW, 192, 0}};
  for (const uint32_t width : {2u, 6u, 14u, 18u, 30u, 34u, 66u, 200u, 512u}) {
    shapes.push_back({KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, width, 0});
  }
  for (const uint32_t rope : {0u, 2u, 8u, 22u, 34u, 64u, 100u}) {
    shapes.push_back({KVSTRATA_KERNELS_FORMAT_V4_ROW, 64 + rope, rope});
    shapes.push_back({KVSTRATA_KERNELS_FORMAT_V4_ROW, 576 + rope, rope});
  }
  for (const Shape& shape : shapes) {
    const uint64_t stride = shape.width + 3;
    CheckRows(shape, KVSTRATA_KERNELS_F32, AsBytes(NearWords(random, 9 * stride)), stride, 9);
    CheckRows(shape, KVSTRATA_KERNELS_F32, AsBytes(RandomWords(random, 9 * stride)), stride, 9);
    CheckRows(shape, KVSTRATA_KERNELS_BF16, AsBytes(RandomWords(random, 5 * stride)), stride, 9);
  }
}

TEST_CASE("levels: every code with every scale byte unpacks to the same numbers") {
  for (const int32_t format : kFormats) {
    const kvstrata_packed_shape shape = Filled({format, 0, 0});
    const uint64_t rows = 256 * 4;
    Planes planes(shape, rows);
    auto a = Args<kvstrata_unpack_rows_args>();
    planes.Set(a, shape);
    for (uint64_t row = 0; row < rows; ++row) {
      uint8_t* codes = planes.codes.data() + 1 + row * a.code_stride_bytes;
      for (uint32_t i = 0; i < shape.code_bytes; ++i) codes[i] = static_cast<uint8_t>(i + row / 256 * 64 + i / 64);
      std::memset(planes.scales.data() + 1 + row * a.scale_stride_bytes, static_cast<int>(row % 256),
                  shape.scale_bytes);
    }
    for (const kvstrata_kernels* k : Levels()) {
      CAPTURE(k->name, format);
      // Where code and scale are NaN both, which of the two goes on is the machine's choice.
      const Bytes got = UnpackWith(*k, shape, KVSTRATA_KERNELS_F32, planes, rows);
      const Bytes expected = UnpackWith(Reference(), shape, KVSTRATA_KERNELS_F32, planes, rows);
      uint64_t wrong = 0;
      for (size_t i = 0; i < got.size(); i += 4) {
        uint32_t one, other;
        std::memcpy(&one, &got[i], 4);
        std::memcpy(&other, &expected[i], 4);
        wrong += one != other && !(IsNan(one) && IsNan(other));
      }
      CHECK(wrong == 0);
      const Bytes halves = UnpackWith(*k, shape, KVSTRATA_KERNELS_BF16, planes, rows);
      const Bytes expected_halves = UnpackWith(Reference(), shape, KVSTRATA_KERNELS_BF16, planes, rows);
      for (size_t i = 0; i < halves.size(); i += 2) {
        const uint32_t one = static_cast<uint32_t>(halves[i] << 16 | halves[i + 1] << 24);
        const uint32_t other = static_cast<uint32_t>(expected_halves[i] << 16 | expected_halves[i + 1] << 24);
        wrong += one != other && !(IsNan(one) && IsNan(other));
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("levels: a float scale from outside need not be a power of two") {
  const uint64_t seed = 24;
  INFO("seed " << seed);
  Random random(seed);
  const kvstrata_packed_shape shape = Filled({KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, 0, 0});
  const uint64_t rows = 300;
  Planes planes(shape, rows);
  for (uint8_t& byte : planes.codes) byte = static_cast<uint8_t>(random.Bits());
  for (uint8_t& byte : planes.scales) byte = static_cast<uint8_t>(random.Bits());
  for (const kvstrata_kernels* k : Levels()) {
    CAPTURE(k->name);
    const Bytes got = UnpackWith(*k, shape, KVSTRATA_KERNELS_BF16, planes, rows);
    const Bytes expected = UnpackWith(Reference(), shape, KVSTRATA_KERNELS_BF16, planes, rows);
    uint64_t wrong = 0;
    for (size_t i = 0; i < got.size(); i += 2) {
      const uint32_t one = static_cast<uint32_t>(got[i] << 16 | got[i + 1] << 24);
      const uint32_t other = static_cast<uint32_t>(expected[i] << 16 | expected[i + 1] << 24);
      wrong += one != other && !(IsNan(one) && IsNan(other));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("levels: conversions of random bits, of every count") {
  const uint64_t seed = 25;
  INFO("seed " << seed);
  Random random(seed);
  std::vector<uint64_t> counts = {100000};
  for (uint64_t count = 0; count < 70; ++count) counts.push_back(count);
  for (const uint64_t count : counts) {
    const std::vector<uint32_t> words = RandomWords(random, count + 1);
    const auto convert = [&](int32_t (*function)(const kvstrata_convert_args*, void*)) {
      auto a = Args<kvstrata_convert_args>();
      a.count = count;
      a.source = words.data();
      std::vector<uint32_t> out(count + 1, 0xC5C5C5C5u);
      a.destination = out.data();
      REQUIRE(function(&a, nullptr) == 0);
      return out;
    };
    for (const kvstrata_kernels* k : Levels()) {
      CAPTURE(k->name, count);
      REQUIRE(convert(k->f32_to_bf16) == convert(Reference().f32_to_bf16));
      REQUIRE(convert(k->bf16_to_f32) == convert(Reference().bf16_to_f32));
      REQUIRE(convert(k->bf16_round) == convert(Reference().bf16_round));
    }
  }
}

TEST_CASE("levels: Hadamard of every width has the reference's bits") {
  const uint64_t seed = 26;
  INFO("seed " << seed);
  Random random(seed);
  for (uint32_t width = 1; width <= 65536; width *= 2) {
    for (const int32_t profile : {KVSTRATA_KERNELS_PROFILE_F, KVSTRATA_KERNELS_PROFILE_Q}) {
      const uint64_t stride = width + 3, rows = 3;
      std::vector<float> values = random.Floats(rows * stride, 2.0f);
      for (size_t i = 0; i < values.size(); i += 5) values[i] = -0.0f;
      const auto transform = [&](const kvstrata_kernels& k) {
        std::vector<float> out = values;
        auto a = Args<kvstrata_hadamard_args>();
        a.profile = profile;
        a.width = width;
        a.rows = rows;
        a.values = out.data();
        a.value_stride = stride;
        REQUIRE(k.hadamard(&a, nullptr) == 0);
        return out;
      };
      for (const kvstrata_kernels* k : Levels()) {
        CAPTURE(k->name, width, profile);
        REQUIRE(SameBits(transform(*k), transform(Reference())));
      }
    }
  }
}
