// SPDX-License-Identifier: Apache-2.0
// Packed rows (formats of reference section 7 and 11.4), conversions, Hadamard.
//
// I1: quantising a row in place and unpacking its packed bytes give the same floats, because both go through the
//     same block functions (grid.h).
#include <algorithm>
#include <cstring>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/grid.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {
namespace {

float MaxMagnitude(const float* values, uint32_t count) {
  float largest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const float a = std::fabs(values[i]);
    largest = a > largest ? a : largest;  // false for NaN
  }
  return largest;
}

uint8_t BlockScale(const Grid& grid, const float* values) { return ScaleByte(grid, MaxMagnitude(values, grid.block)); }

void StoreLittle(uint32_t value, uint32_t bytes, uint8_t* out) {
  for (uint32_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(value >> (8 * i));
}

uint32_t LoadLittle(const uint8_t* in, uint32_t bytes) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < bytes; ++i) value |= uint32_t{in[i]} << (8 * i);
  return value;
}

// Channels [begin, begin + count) of one source row as floats.
void StoreChannel(void* rows, int32_t type, uint64_t index, float value) {
  if (type == KVSTRATA_KERNELS_F32) {
    static_cast<float*>(rows)[index] = value;
  } else {
    static_cast<uint16_t*>(rows)[index] = F32ToBf16(value);  // exact: packed values are bf16 numbers
  }
}

// A block is worked on in pieces, as the one block of an FP8 index key may be wide; pieces are even, as FP4 needs.
constexpr uint32_t kPiece = 64;

// amax of a block that need not be floats: the largest over its pieces.
uint8_t BlockScaleOf(const Grid& grid, const void* rows, int32_t type, uint64_t begin) {
  if (type == KVSTRATA_KERNELS_F32) return BlockScale(grid, static_cast<const float*>(rows) + begin);
  Grid one = grid;
  one.block = 1;
  float amax = 0;
  for (uint32_t i = 0; i < grid.block; ++i) {
    const float a = std::fabs(Bf16ToF32(static_cast<const uint16_t*>(rows)[begin + i]));
    amax = a > amax ? a : amax;
  }
  return BlockScale(one, &amax);
}

void PackCodes(const Grid& grid, const float* values, uint32_t count, float scale, uint8_t* codes) {
  if (!grid.e2m1) {
    for (uint32_t i = 0; i < count; ++i) codes[i] = Encode(grid, values[i], scale);
    return;
  }
  for (uint32_t i = 0; i < count; i += 2) {
    const uint32_t low = Encode(grid, values[i], scale);
    const uint32_t high = Encode(grid, values[i + 1], scale);
    codes[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

uint8_t CodeAt(const Grid& grid, const uint8_t* codes, uint64_t channel) {
  if (!grid.e2m1) return codes[channel];
  return static_cast<uint8_t>(codes[channel / 2] >> (channel % 2 * 4) & 0xFu);
}

void PackOneRow(const kvstrata_pack_rows_args& a, const Grid& grid, const kvstrata_packed_shape& shape, uint64_t row) {
  const uint64_t source = row * a.source_stride;
  uint8_t* codes = a.codes + row * a.code_stride_bytes;
  uint8_t* scales = a.scales + row * a.scale_stride_bytes;
  const uint32_t quantised = a.width - a.rope_dims;
  std::memset(scales, 0, shape.scale_bytes);
  for (uint32_t begin = 0; begin < quantised; begin += grid.block) {
    const uint8_t byte = BlockScaleOf(grid, a.source, a.source_type, source + begin);
    const float scale = ScaleValue(grid, byte);
    if (grid.f32_scale) {
      StoreLittle(std::bit_cast<uint32_t>(scale), 4, scales);
    } else {
      scales[begin / grid.block] = byte;
    }
    for (uint32_t i = begin; i < begin + grid.block; i += kPiece) {
      float values[kPiece];
      const uint32_t left = begin + grid.block - i;
      const uint32_t count = left < kPiece ? left : kPiece;
      LoadRow(a.source, a.source_type, source + i, count, values);
      PackCodes(grid, values, count, scale, codes + (grid.e2m1 ? i / 2 : i));
    }
  }
  for (uint32_t i = 0; i < a.rope_dims; ++i) {
    float value;
    LoadRow(a.source, a.source_type, source + quantised + i, 1, &value);
    StoreLittle(F32ToBf16(value), 2, a.rope + row * a.rope_stride_bytes + 2 * uint64_t{i});
  }
}

void UnpackOneRow(const kvstrata_unpack_rows_args& a, const Grid& grid, uint64_t row) {
  const uint64_t destination = row * a.destination_stride;
  const uint8_t* codes = a.codes + row * a.code_stride_bytes;
  const uint8_t* scales = a.scales + row * a.scale_stride_bytes;
  const uint32_t quantised = a.width - a.rope_dims;
  for (uint32_t i = 0; i < quantised; ++i) {
    const float scale =
        grid.f32_scale ? std::bit_cast<float>(LoadLittle(scales, 4)) : ScaleValue(grid, scales[i / grid.block]);
    StoreChannel(a.destination, a.destination_type, destination + i, Decode(grid, CodeAt(grid, codes, i), scale));
  }
  for (uint32_t i = 0; i < a.rope_dims; ++i) {
    const uint32_t bits = LoadLittle(a.rope + row * a.rope_stride_bytes + 2 * uint64_t{i}, 2);
    StoreChannel(a.destination, a.destination_type, destination + quantised + i,
                 Bf16ToF32(static_cast<uint16_t>(bits)));
  }
}

}  // namespace

int32_t PackedShape(kvstrata_packed_shape* shape) {
  kvstrata_packed_shape filled;
  if (const int32_t status = Prepare(shape, filled); status != kOk) return status;
  filled.struct_size = shape->struct_size;
  std::memcpy(shape, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
  return kOk;
}

int32_t PackRows(const kvstrata_pack_rows_args* args, void*) {
  kvstrata_pack_rows_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  kvstrata_packed_shape shape{};
  shape.struct_size = sizeof shape;
  shape.format = a.format;
  shape.width = a.width;
  shape.rope_dims = a.rope_dims;
  if (const int32_t status = PackedShape(&shape); status != kOk) return status;
  const Grid grid = GridOf(a.format, a.width);
  for (uint64_t row = 0; row < a.rows; ++row) PackOneRow(a, grid, shape, row);
  return kOk;
}

int32_t UnpackRows(const kvstrata_unpack_rows_args* args, void*) {
  kvstrata_unpack_rows_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const Grid grid = GridOf(a.format, a.width);
  for (uint64_t row = 0; row < a.rows; ++row) UnpackOneRow(a, grid, row);
  return kOk;
}

void QuantizeRow(int32_t format, float* row, uint32_t width, uint32_t rope_dims) {
  const Grid grid = GridOf(format, width);
  const uint32_t quantised = width - rope_dims;
  for (uint32_t begin = 0; begin < quantised; begin += grid.block) {
    const float scale = ScaleValue(grid, BlockScale(grid, row + begin));
    for (uint32_t i = begin; i < begin + grid.block; ++i) row[i] = Decode(grid, Encode(grid, row[i], scale), scale);
  }
  RoundRow(row + quantised, rope_dims);
}

int32_t QuantizeDequantize(const kvstrata_quantize_args* args, void*) {
  kvstrata_quantize_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  for (uint64_t row = 0; row < a.rows; ++row) {
    QuantizeRow(a.format, a.values + row * a.value_stride, a.width, a.rope_dims);
  }
  return kOk;
}

int32_t ConvertF32ToBf16(const kvstrata_convert_args* args, void*) {
  kvstrata_convert_args a;
  if (const int32_t status = Prepare(args, 4, 2, a); status != kOk) return status;
  const float* source = static_cast<const float*>(a.source);
  uint16_t* destination = static_cast<uint16_t*>(a.destination);
  for (uint64_t i = 0; i < a.count; ++i) destination[i] = F32ToBf16(source[i]);
  return kOk;
}

int32_t ConvertBf16ToF32(const kvstrata_convert_args* args, void*) {
  kvstrata_convert_args a;
  if (const int32_t status = Prepare(args, 2, 4, a); status != kOk) return status;
  const uint16_t* source = static_cast<const uint16_t*>(a.source);
  float* destination = static_cast<float*>(a.destination);
  for (uint64_t i = 0; i < a.count; ++i) destination[i] = Bf16ToF32(source[i]);
  return kOk;
}

int32_t ConvertRoundBf16(const kvstrata_convert_args* args, void*) {
  kvstrata_convert_args a;
  if (const int32_t status = Prepare(args, 4, 4, a); status != kOk) return status;
  const float* source = static_cast<const float*>(a.source);
  float* destination = static_cast<float*>(a.destination);
  for (uint64_t i = 0; i < a.count; ++i) destination[i] = RoundBf16(source[i]);
  return kOk;
}

void LoadRow(const void* rows, int32_t type, uint64_t begin, uint64_t width, float* row) {
  if (type == KVSTRATA_KERNELS_F32) {
    std::memcpy(row, static_cast<const float*>(rows) + begin, width * sizeof(float));
    return;
  }
  const uint16_t* bf16 = static_cast<const uint16_t*>(rows) + begin;
  for (uint64_t i = 0; i < width; ++i) row[i] = Bf16ToF32(bf16[i]);
}

void StoreRow(const float* row, int32_t type, uint64_t begin, uint64_t width, void* rows) {
  if (type == KVSTRATA_KERNELS_F32) {
    std::memcpy(static_cast<float*>(rows) + begin, row, width * sizeof(float));
    return;
  }
  uint16_t* bf16 = static_cast<uint16_t*>(rows) + begin;
  for (uint64_t i = 0; i < width; ++i) bf16[i] = F32ToBf16(row[i]);
}

void UnpackRow(int32_t format, const kvstrata_packed_planes& planes, uint64_t row, uint32_t width, uint32_t rope_dims,
               float* values) {
  kvstrata_unpack_rows_args a{};
  a.struct_size = sizeof a;
  a.format = format;
  a.width = width;
  a.rope_dims = rope_dims;
  a.destination_type = KVSTRATA_KERNELS_F32;
  a.rows = 1;
  a.codes = planes.codes + row * planes.code_stride_bytes;
  a.rope = planes.rope != nullptr ? planes.rope + row * planes.rope_stride_bytes : nullptr;
  a.scales = planes.scales + row * planes.scale_stride_bytes;
  a.destination = values;
  UnpackOneRow(a, GridOf(format, width), 0);
}

void RoundRow(float* row, uint64_t width) {
  for (uint64_t i = 0; i < width; ++i) row[i] = RoundBf16(row[i]);
}

// Sylvester's construction, H_2n = [[H, H], [H, -H]]: log2(width) passes of sums and differences at doubling distance,
// then times width^-0.5 so that H*H = I (section 2.5).
void HadamardRow(float* row, uint32_t width, bool round) {
  for (uint32_t half = 1; half < width; half *= 2) {
    for (uint32_t begin = 0; begin < width; begin += 2 * half) {
      for (uint32_t i = begin; i < begin + half; ++i) {
        const float a = row[i];
        const float b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
    }
  }
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
  for (uint32_t i = 0; i < width; ++i) row[i] *= norm;
  if (round) RoundRow(row, width);
}

int32_t Hadamard(const kvstrata_hadamard_args* args, void*) {
  kvstrata_hadamard_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  for (uint64_t row = 0; row < a.rows; ++row) HadamardRow(a.values + row * a.value_stride, a.width, Rounds(a.profile));
  return kOk;
}

}  // namespace kvstrata::kernels::reference
