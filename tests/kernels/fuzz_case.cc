// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {
namespace {

// A float no data has: what is not written must still be this.
constexpr uint8_t kPattern = 0xC5;

float Scaled(uint64_t mantissa_bits, int exponent, bool negative) {
  const double mantissa = 1.0 + std::ldexp(static_cast<double>(mantissa_bits & 0x7FFFFF), -23);
  const float value = static_cast<float>(std::ldexp(mantissa, exponent));
  return negative ? -value : value;
}

// Numbers half-way between two codes, at the ends of formats, and where bits are few.
float EdgeNumber(Rng& rng) {
  const bool negative = rng.Chance(50);
  const uint32_t sign = negative ? 0x80000000u : 0u;
  const uint64_t bits = rng.Next();
  const int exponent = static_cast<int>(rng.Between(0, 185)) - 126;
  switch (rng.Below(8)) {
    case 0: return std::bit_cast<float>(sign);
    case 1: return std::bit_cast<float>(sign | (static_cast<uint32_t>(bits) & 0x7FFFFFu));
    case 2: return Scaled(bits, exponent, negative);
    // Ties of bf16, then of E4M3's three mantissa bits.
    case 3:
      return std::bit_cast<float>((std::bit_cast<uint32_t>(Scaled(bits, exponent % 8, negative)) & ~0xFFFFu) | 0x8000u);
    case 4:
      return std::bit_cast<float>((std::bit_cast<uint32_t>(Scaled(bits, exponent % 8, negative)) & ~0xFFFFFu) |
                                  0x80000u);
    case 5: {
      // Ties of E2M1, and the largest numbers of both formats and what lies just above.
      constexpr float kSpecial[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f, 448.0f, 449.0f, 1e-4f};
      return std::ldexp(kSpecial[bits % std::size(kSpecial)], static_cast<int>(bits >> 32) % 4);
    }
    default: return Scaled(bits, exponent % 4, negative);
  }
}

float AnyBits(Rng& rng) {
  const uint32_t bits = static_cast<uint32_t>(rng.Next());
  if (rng.Chance(80)) return EdgeNumber(rng);
  if (rng.Chance(30)) return std::bit_cast<float>((bits & 0x80000000u) | 0x7F800000u);
  if (rng.Chance(30)) return std::bit_cast<float>(bits | 0x7F800001u);
  return std::bit_cast<float>(bits);
}

std::vector<uint16_t> Bf16Bits(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  kvstrata_convert_args a = Args<kvstrata_convert_args>();
  a.count = values.size();
  a.source = values.data();
  a.destination = bits.data();
  REQUIRE(Reference().f32_to_bf16(&a, nullptr) == 0);
  return bits;
}

}  // namespace

kvstrata_packed_planes Packed::From(uint64_t row) const {
  kvstrata_packed_planes moved = planes;
  moved.codes += row * planes.code_stride_bytes;
  moved.scales += row * planes.scale_stride_bytes;
  if (moved.rope != nullptr) moved.rope += row * planes.rope_stride_bytes;
  return moved;
}

// --------------------------------------------------------------------------------------------------------- memory

uint8_t* Case::Bytes(size_t bytes) {
  buffers_.emplace_back(bytes, rng.Chance(50) ? Edge::kFront : Edge::kBack);
  REQUIRE(buffers_.back().data() != nullptr);
  return buffers_.back().data();
}

void* Case::Workspace(uint64_t bytes) {
  if (bytes == 0) return nullptr;
  const uint64_t whole_floats = (bytes + 3) / 4 * 4;
  // Its contents mean nothing; the pattern is a number, so that reading before writing gives a wrong result.
  uint8_t* data = Bytes(whole_floats);
  std::memset(data, kPattern, whole_floats);
  return data;
}

void Case::Freeze() {
  for (const size_t index : read_only_) REQUIRE(buffers_[index].MakeReadOnly());
}

// ---------------------------------------------------------------------------------------------------- random data

float Case::Number(Fill fill) {
  switch (fill) {
    case Fill::kPlain: return static_cast<float>(rng.Next() >> 40) * 0x1p-21f - 4.0f;
    case Fill::kWide: return Scaled(rng.Next(), static_cast<int>(rng.Below(40)) - 20, rng.Chance(50));
    case Fill::kTiny: return std::ldexp(Number(Fill::kPlain), -static_cast<int>(rng.Between(100, 150)));
    case Fill::kEdges: return EdgeNumber(rng);
    case Fill::kBits: return AnyBits(rng);
  }
  return 0;
}

std::vector<float> Case::Numbers(uint64_t count, Fill fill) {
  std::vector<float> values(count);
  for (float& value : values) value = Number(fill);
  return values;
}

Matrix Case::Rows(int32_t type, uint64_t rows, uint64_t width, Fill fill) {
  Matrix m;
  m.type = type;
  m.rows = rows;
  m.width = width;
  m.stride = Stride(width);
  m.floats.assign(rows == 0 ? 0 : (rows - 1) * m.stride + width, kNan);
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t i = 0; i < width; ++i) m.floats[row * m.stride + i] = Number(fill);
  }
  if (type == KVSTRATA_KERNELS_F32) {
    m.data = const_cast<float*>(Input(m.floats));
    return m;
  }
  const std::vector<uint16_t> bits = Bf16Bits(m.floats);
  for (size_t i = 0; i < bits.size(); ++i) m.floats[i] = std::bit_cast<float>(uint32_t{bits[i]} << 16);
  m.data = const_cast<uint16_t*>(Input(bits));
  return m;
}

Matrix Case::InPlace(uint64_t rows, uint64_t width, Fill fill) {
  Matrix m = Rows(KVSTRATA_KERNELS_F32, rows, width, fill);
  read_only_.pop_back();
  return m;
}

// ------------------------------------------------------------------------------------------------- packed planes

Packed Case::LayPlanes(const kvstrata_packed_shape& shape, uint64_t rows, std::vector<size_t>& made) {
  Packed p;
  p.shape = shape;
  const auto plane = [&](uint64_t bytes, uint64_t stride) {
    uint8_t* data = Bytes(rows == 0 ? 0 : (rows - 1) * stride + bytes);
    std::memset(data, kPattern, buffers_.back().size());
    made.push_back(buffers_.size() - 1);
    return data;
  };
  const uint64_t padding = rng.Chance(50) ? 0 : rng.Between(1, 13);
  if (rng.Chance(50)) {  // interleaved
    const uint64_t stride = shape.row_bytes + padding;
    uint8_t* data = plane(shape.row_bytes, stride);
    p.planes = {data, stride, data + shape.code_bytes, stride, data + shape.code_bytes + shape.rope_bytes, stride};
  } else {
    const uint64_t code_stride = shape.code_bytes + padding;
    const uint64_t rope_stride = shape.rope_bytes + padding;
    const uint64_t scale_stride = shape.scale_bytes + padding;
    p.planes.codes = plane(shape.code_bytes, code_stride);
    p.planes.code_stride_bytes = code_stride;
    if (shape.rope_bytes != 0) p.planes.rope = plane(shape.rope_bytes, rope_stride);
    p.planes.rope_stride_bytes = rope_stride;
    p.planes.scales = plane(shape.scale_bytes, scale_stride);
    p.planes.scale_stride_bytes = scale_stride;
  }
  return p;
}

Packed Case::PackedRows(int32_t format, uint32_t width, uint32_t rope_dims, uint64_t rows,
                        const std::vector<float>& floats) {
  kvstrata_packed_shape shape = Args<kvstrata_packed_shape>();
  shape.format = format;
  shape.width = width;
  shape.rope_dims = rope_dims;
  REQUIRE(Reference().packed_shape(&shape) == 0);
  Packed p = LayPlanes(shape, rows, read_only_);
  kvstrata_pack_rows_args a = Args<kvstrata_pack_rows_args>();
  a.format = format;
  a.width = width;
  a.rope_dims = rope_dims;
  a.rows = rows;
  a.source = floats.data();
  a.codes = p.planes.codes;
  a.code_stride_bytes = p.planes.code_stride_bytes;
  a.rope = p.planes.rope;
  a.rope_stride_bytes = p.planes.rope_stride_bytes;
  a.scales = p.planes.scales;
  a.scale_stride_bytes = p.planes.scale_stride_bytes;
  REQUIRE(Reference().pack_rows(&a, nullptr) == 0);
  return p;
}

std::vector<float> Case::Unpacked(const Packed& packed, uint64_t rows) {
  std::vector<float> floats(rows * packed.shape.width);
  kvstrata_unpack_rows_args a = Args<kvstrata_unpack_rows_args>();
  a.format = packed.shape.format;
  a.width = packed.shape.width;
  a.rope_dims = packed.shape.rope_dims;
  a.rows = rows;
  a.codes = packed.planes.codes;
  a.code_stride_bytes = packed.planes.code_stride_bytes;
  a.rope = packed.planes.rope;
  a.rope_stride_bytes = packed.planes.rope_stride_bytes;
  a.scales = packed.planes.scales;
  a.scale_stride_bytes = packed.planes.scale_stride_bytes;
  a.destination = floats.data();
  if (rows != 0) REQUIRE(Reference().unpack_rows(&a, nullptr) == 0);
  return floats;
}

Packed Case::PackedOutput(const std::string& name, const kvstrata_packed_shape& shape, uint64_t rows, Match match) {
  std::vector<size_t> made;
  Packed p = LayPlanes(shape, rows, made);
  for (const size_t index : made) {
    AddOutput(name, Element::kByte, match, buffers_[index].data(), buffers_[index].size());
  }
  return p;
}

// -------------------------------------------------------------------------------------------------------- outputs

Matrix Case::OutputRows(const std::string& name, int32_t type, uint64_t rows, uint64_t width, Match match) {
  Matrix m;
  m.type = type;
  m.rows = rows;
  m.width = width;
  m.stride = Stride(width);
  const uint64_t elements = rows == 0 ? 0 : (rows - 1) * m.stride + width;
  m.data = Bytes(elements * m.element());
  std::memset(m.data, kPattern, elements * m.element());
  AddOutput(name, type == KVSTRATA_KERNELS_F32 ? Element::kFloat : Element::kBf16, match, m.data,
            elements * m.element());
  return m;
}

void Case::AddOutput(const std::string& name, Element element, Match match, const void* data, size_t bytes) {
  outputs_.push_back({name, element, match, static_cast<const uint8_t*>(data), bytes, {}, {}});
}

void Case::Tolerate(uint64_t index, double tolerance) {
  Output& output = outputs_.back();
  if (output.tolerance.empty()) output.tolerance.resize(output.bytes / (output.element == Element::kFloat ? 4 : 2));
  output.tolerance.at(index) = tolerance;
}

void Case::Ok(int32_t status, const char* call) {
  if (status != KVSTRATA_KERNELS_OK) problems_.push_back(std::string(call) + " returned " + std::to_string(status));
}

// --------------------------------------------------------------------------------------------------------- shapes

kvstrata_packed_shape AnyShape(Case& c, int32_t format) {
  kvstrata_packed_shape shape = Args<kvstrata_packed_shape>();
  shape.format = format;
  if (c.rng.Chance(50)) {
    switch (format) {
      case KVSTRATA_KERNELS_FORMAT_V4_ROW:
        shape.rope_dims = static_cast<uint32_t>(2 * c.rng.Below(24));
        shape.width = shape.rope_dims + static_cast<uint32_t>(64 * c.rng.Between(1, 10));
        break;
      case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8: shape.width = static_cast<uint32_t>(2 * c.rng.Between(1, 150)); break;
      case KVSTRATA_KERNELS_FORMAT_V41_ENTRY: shape.width = static_cast<uint32_t>(16 * c.rng.Between(1, 40)); break;
      default: shape.width = static_cast<uint32_t>(32 * c.rng.Between(1, 20)); break;
    }
  }
  REQUIRE(Reference().packed_shape(&shape) == 0);
  return shape;
}

const float* Frequencies(Case& c, uint32_t rope_dims, std::vector<float>& values) {
  values.assign(rope_dims / 2, 0.0f);
  kvstrata_rope_frequencies_args a = Args<kvstrata_rope_frequencies_args>();
  a.rope_dims = rope_dims;
  a.theta = c.rng.Chance(50) ? 10000 : 160000;
  if (c.rng.Chance(50)) {
    a.yarn_factor = 16;
    a.original_length = 65536;
    a.beta_fast = 32;
    a.beta_slow = 1;
  }
  a.frequencies = values.data();
  REQUIRE(Reference().rope_frequencies(&a, nullptr) == 0);
  return c.Input(values);
}

}  // namespace kvstrata::kernels::test
