// SPDX-License-Identifier: Apache-2.0
// Packing, unpacking, quantising, conversions, Hadamard: the same bits on every level, whatever the floats. Of NaN only
// that it is one, where the result is floats.
#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {
namespace {

constexpr int32_t kFormats[] = {KVSTRATA_KERNELS_FORMAT_V4_ROW, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4,
                                KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, KVSTRATA_KERNELS_FORMAT_V41_WINDOW,
                                KVSTRATA_KERNELS_FORMAT_V41_ENTRY};
constexpr int32_t kTypes[] = {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16};
constexpr Fill kFills[] = {Fill::kPlain, Fill::kWide, Fill::kTiny, Fill::kEdges, Fill::kBits};

// Random codes; scales as a packer could have written them, NaN included where the format has one.
Packed RandomPacked(Case& c, const kvstrata_packed_shape& shape, uint64_t rows) {
  const std::vector<float> floats = c.Numbers(rows * shape.width, c.OneOf(kFills));
  Packed p = c.PackedRows(shape.format, shape.width, shape.rope_dims, rows, floats);
  if (c.rng.Chance(50)) return p;
  for (uint64_t row = 0; row < rows; ++row) {
    const kvstrata_packed_planes at = p.From(row);
    for (uint32_t i = 0; i < shape.code_bytes; ++i) at.codes[i] = static_cast<uint8_t>(c.rng.Next());
    for (uint32_t i = 0; i < shape.rope_bytes; ++i) at.rope[i] = static_cast<uint8_t>(c.rng.Next());
    if (shape.format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8) {
      const float scale = std::ldexp(1.0f, static_cast<int>(c.rng.Between(0, 240)) - 126);
      std::memcpy(at.scales, &scale, sizeof scale);
    } else {
      for (uint32_t i = 0; i < shape.scale_bytes; ++i) at.scales[i] = static_cast<uint8_t>(c.rng.Next());
    }
  }
  return p;
}

}  // namespace

void FuzzPackRows(Case& c) {
  const kvstrata_packed_shape shape = AnyShape(c, c.OneOf(kFormats));
  const uint64_t rows = c.rng.Below(12);
  const Matrix source = c.Rows(c.OneOf(kTypes), rows, shape.width, c.OneOf(kFills));
  const Packed packed = c.PackedOutput("pack_rows", shape, rows, Match::kBits);
  c.Freeze();
  for (uint64_t row = 0, piece = 0; row < rows; row += piece) {
    piece = c.Piece(rows - row);
    const kvstrata_packed_planes to = packed.From(row);
    kvstrata_pack_rows_args a = Args<kvstrata_pack_rows_args>();
    a.format = shape.format;
    a.width = shape.width;
    a.rope_dims = shape.rope_dims;
    a.source_type = source.type;
    a.rows = piece;
    a.source = source.At(row);
    a.source_stride = source.stride;
    a.codes = to.codes;
    a.code_stride_bytes = to.code_stride_bytes;
    a.rope = to.rope;
    a.rope_stride_bytes = to.rope_stride_bytes;
    a.scales = to.scales;
    a.scale_stride_bytes = to.scale_stride_bytes;
    c.Ok(c.k.pack_rows(&a, nullptr), "pack_rows");
  }
}

void FuzzUnpackRows(Case& c) {
  const kvstrata_packed_shape shape = AnyShape(c, c.OneOf(kFormats));
  const uint64_t rows = c.rng.Below(12);
  const Packed packed = RandomPacked(c, shape, rows);
  const Matrix to = c.OutputRows("unpack_rows", c.OneOf(kTypes), rows, shape.width, Match::kBitsOrNan);
  c.Freeze();
  for (uint64_t row = 0, piece = 0; row < rows; row += piece) {
    piece = c.Piece(rows - row);
    const kvstrata_packed_planes from = packed.From(row);
    kvstrata_unpack_rows_args a = Args<kvstrata_unpack_rows_args>();
    a.format = shape.format;
    a.width = shape.width;
    a.rope_dims = shape.rope_dims;
    a.destination_type = to.type;
    a.rows = piece;
    a.codes = from.codes;
    a.code_stride_bytes = from.code_stride_bytes;
    a.rope = from.rope;
    a.rope_stride_bytes = from.rope_stride_bytes;
    a.scales = from.scales;
    a.scale_stride_bytes = from.scale_stride_bytes;
    a.destination = to.At(row);
    a.destination_stride = to.stride;
    c.Ok(c.k.unpack_rows(&a, nullptr), "unpack_rows");
  }
}

void FuzzQuantize(Case& c) {
  const kvstrata_packed_shape shape = AnyShape(c, c.OneOf(kFormats));
  const uint64_t rows = c.rng.Below(12);
  const Matrix values = c.InPlace(rows, shape.width, c.OneOf(kFills));
  c.AddOutput("quantize_dequantize", Element::kFloat, Match::kBitsOrNan, values.data, values.floats.size() * 4);
  c.Freeze();
  for (uint64_t row = 0, piece = 0; row < rows; row += piece) {
    piece = c.Piece(rows - row);
    kvstrata_quantize_args a = Args<kvstrata_quantize_args>();
    a.format = shape.format;
    a.width = shape.width;
    a.rope_dims = shape.rope_dims;
    a.rows = piece;
    a.values = static_cast<float*>(values.At(row));
    a.value_stride = values.stride;
    c.Ok(c.k.quantize_dequantize(&a, nullptr), "quantize_dequantize");
  }
}

void FuzzConvert(Case& c) {
  const uint64_t count = c.rng.Below(700);
  const uint64_t which = c.rng.Below(4);  // 3: bf16_round in place
  const int32_t from_type = which == 1 ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32;
  const int32_t to_type = which == 0 ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32;
  const Fill fill = c.OneOf(kFills);
  const Matrix from = which == 3 ? c.InPlace(1, count, fill) : c.Rows(from_type, 1, count, fill);
  Matrix to = from;
  if (which == 3) {
    c.AddOutput("bf16_round in place", Element::kFloat, Match::kBitsOrNan, to.data, count * 4);
  } else {
    to = c.OutputRows("conversion", to_type, 1, count, Match::kBitsOrNan);
  }
  c.Freeze();
  const auto convert = which == 0 ? c.k.f32_to_bf16 : which == 1 ? c.k.bf16_to_f32 : c.k.bf16_round;
  for (uint64_t at = 0, piece = 0; at < count; at += piece) {
    piece = c.Piece(count - at);
    kvstrata_convert_args a = Args<kvstrata_convert_args>();
    a.count = piece;
    a.source = from.At(0, at);
    a.destination = to.At(0, at);
    c.Ok(convert(&a, nullptr), "conversion");
  }
}

void FuzzHadamard(Case& c) {
  const uint32_t width = c.rng.Chance(50) ? 128 : 1u << c.rng.Below(10);
  const uint64_t rows = c.rng.Below(9);
  const Matrix values = c.InPlace(rows, width, c.OneOf(kFills));
  const int32_t profile = static_cast<int32_t>(c.rng.Between(1, 3));
  c.AddOutput("hadamard", Element::kFloat, Match::kBitsOrNan, values.data, values.floats.size() * 4);
  c.Freeze();
  for (uint64_t row = 0, piece = 0; row < rows; row += piece) {
    piece = c.Piece(rows - row);
    kvstrata_hadamard_args a = Args<kvstrata_hadamard_args>();
    a.profile = profile;
    a.width = width;
    a.rows = piece;
    a.values = static_cast<float*>(values.At(row));
    a.value_stride = values.stride;
    c.Ok(c.k.hadamard(&a, nullptr), "hadamard");
  }
}

}  // namespace kvstrata::kernels::test
