// SPDX-License-Identifier: Apache-2.0
#include "kernels/arguments.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvstrata::kernels {
namespace {

// No kernel struct comes near this; a larger size is a stray value, not a newer caller.
constexpr uint32_t kStructSizeMax = 4096;
// Byte offsets stay below 2^62 even for 8-byte elements.
constexpr uint64_t kElementsMax = uint64_t{1} << 59;
constexpr uint32_t kHadamardWidthMax = 65536;

// The size-first rule, as in capi/struct_reader.h. A shorter struct comes from an older caller: what it lacks is zero,
// which is every later member's default. A longer one comes from a newer caller and passes as long as what we do not
// know is zero.
template <typename T>
int32_t ReadStruct(const T* in, T& out) {
  if (in == nullptr) return kInvalidArgument;
  uint32_t given = 0;
  std::memcpy(&given, in, sizeof given);
  if (given < sizeof given || given > kStructSizeMax) return kInvalidArgument;
  if (given < sizeof(T) && given % alignof(T) != 0) return kInvalidArgument;  // half a pointer is none
  out = T{};
  std::memcpy(&out, in, std::min<size_t>(given, sizeof(T)));
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(in);
  for (uint32_t i = sizeof(T); i < given; ++i) {
    if (bytes[i] != 0) return kStructTooNew;
  }
  return kOk;
}

bool Aligned(const void* pointer, uint64_t alignment) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

bool IsFloats(const float* pointer) { return Aligned(pointer, alignof(float)); }

bool ProfileValid(int32_t profile) {
  return profile == KVSTRATA_KERNELS_PROFILE_F || profile == KVSTRATA_KERNELS_PROFILE_Q ||
         profile == KVSTRATA_KERNELS_PROFILE_S;
}

bool TypeValid(int32_t type) { return type == KVSTRATA_KERNELS_F32 || type == KVSTRATA_KERNELS_BF16; }

uint64_t TypeAlign(int32_t type) { return type == KVSTRATA_KERNELS_F32 ? 4 : 2; }

// Fills in the tight stride; false if rows would overlap or the whole is beyond any address space.
bool FixStride(uint64_t rows, uint64_t row, uint64_t& stride) {
  if (stride == 0) stride = row;
  if (stride < row || stride > kElementsMax) return false;
  return rows <= kElementsMax && (stride == 0 || rows <= kElementsMax / stride);
}

// `first + count` without wrap-around.
bool RangeFits(uint64_t first, uint64_t count) { return first <= kElementsMax && count <= kElementsMax; }

bool RopeDimsValid(uint32_t rope_dims, uint32_t width) { return rope_dims % 2 == 0 && rope_dims <= width; }

// Block of the quantised part in channels and bytes of its scales; 0 for an unknown format.
uint32_t FormatBlock(int32_t format, uint32_t width) {
  switch (format) {
    case KVSTRATA_KERNELS_FORMAT_V4_ROW: return 64;
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4: return 32;
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8: return width;
    case KVSTRATA_KERNELS_FORMAT_V41_WINDOW: return 32;
    case KVSTRATA_KERNELS_FORMAT_V41_ENTRY: return 16;
    default: return 0;
  }
}

// Width defaults and plane sizes of a format (the table in kernels.h).
int32_t FillShape(kvstrata_packed_shape& shape) {
  const bool is_row = shape.format == KVSTRATA_KERNELS_FORMAT_V4_ROW;
  const bool is_index =
      shape.format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 || shape.format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8;
  if (shape.width == 0) {
    shape.width = is_index ? 128 : 512;
    shape.rope_dims = is_row ? 64 : 0;
  }
  const uint32_t block = FormatBlock(shape.format, shape.width);
  if (block == 0 || shape.width > (1u << 20) || shape.width % 2 != 0) return kInvalidArgument;
  if (shape.rope_dims % 2 != 0 || shape.rope_dims >= shape.width || (shape.rope_dims != 0 && !is_row)) {
    return kInvalidArgument;
  }
  const uint32_t quantised = shape.width - shape.rope_dims;
  if (quantised % block != 0) return kInvalidArgument;
  const uint32_t blocks = quantised / block;
  const bool is_fp4 =
      shape.format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 || shape.format == KVSTRATA_KERNELS_FORMAT_V41_ENTRY;
  shape.code_bytes = is_fp4 ? quantised / 2 : quantised;
  shape.rope_bytes = 2 * shape.rope_dims;
  shape.scale_bytes = blocks;
  if (is_row) shape.scale_bytes = (blocks + 7) / 8 * 8;
  if (shape.format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8) shape.scale_bytes = sizeof(float);
  shape.row_bytes = shape.code_bytes + shape.rope_bytes + shape.scale_bytes;
  return kOk;
}

// Shape of a struct that names format, width and rope_dims; writes the defaults back.
template <typename T>
int32_t ShapeOf(T& args, kvstrata_packed_shape& shape) {
  shape = kvstrata_packed_shape{};
  shape.struct_size = sizeof shape;
  shape.format = args.format;
  shape.width = args.width;
  shape.rope_dims = args.rope_dims;
  const int32_t status = FillShape(shape);
  args.width = shape.width;
  args.rope_dims = shape.rope_dims;
  return status;
}

// Strides and pointers of the three planes of packed rows.
template <typename T>
bool PlanesValid(T& a, const kvstrata_packed_shape& shape) {
  if (!FixStride(a.rows, shape.code_bytes, a.code_stride_bytes)) return false;
  if (!FixStride(a.rows, shape.rope_bytes, a.rope_stride_bytes)) return false;
  if (!FixStride(a.rows, shape.scale_bytes, a.scale_stride_bytes)) return false;
  if (a.rows == 0) return true;
  return a.codes != nullptr && a.scales != nullptr && (a.rope != nullptr || shape.rope_bytes == 0);
}

bool Reserved(uint32_t value) { return value == 0; }

bool IsType(const void* pointer, int32_t type) { return Aligned(pointer, TypeAlign(type)); }

// `rows` packed rows of a shape: strides filled in, pointers there.
bool PlanesValid(kvstrata_packed_planes& planes, uint64_t rows, const kvstrata_packed_shape& shape) {
  if (!FixStride(rows, shape.code_bytes, planes.code_stride_bytes)) return false;
  if (!FixStride(rows, shape.rope_bytes, planes.rope_stride_bytes)) return false;
  return FixStride(rows, shape.scale_bytes, planes.scale_stride_bytes);
}

bool PlanesThere(const kvstrata_packed_planes& planes, const kvstrata_packed_shape& shape) {
  return planes.codes != nullptr && planes.scales != nullptr && (planes.rope != nullptr || shape.rope_bytes == 0);
}

// Only the main row keeps its rope channels out of the quantised part.
int32_t RowShape(int32_t format, uint32_t width, uint32_t rope_dims, kvstrata_packed_shape& shape) {
  shape = kvstrata_packed_shape{};
  shape.struct_size = sizeof shape;
  shape.format = format;
  shape.width = width;
  shape.rope_dims = format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? rope_dims : 0;
  return FillShape(shape);
}

}  // namespace

int32_t Prepare(const kvstrata_packed_shape* in, kvstrata_packed_shape& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  return FillShape(out);
}

int32_t Prepare(const kvstrata_pack_rows_args* in, kvstrata_pack_rows_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  kvstrata_packed_shape shape;
  if (const int32_t status = ShapeOf(out, shape); status != kOk) return status;
  if (!TypeValid(out.source_type) || !Reserved(out.reserved0)) return kInvalidArgument;
  if (!FixStride(out.rows, out.width, out.source_stride) || !PlanesValid(out, shape)) return kInvalidArgument;
  if (out.rows != 0 && !Aligned(out.source, TypeAlign(out.source_type))) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_unpack_rows_args* in, kvstrata_unpack_rows_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  kvstrata_packed_shape shape;
  if (const int32_t status = ShapeOf(out, shape); status != kOk) return status;
  if (!TypeValid(out.destination_type) || !Reserved(out.reserved0)) return kInvalidArgument;
  if (!FixStride(out.rows, out.width, out.destination_stride) || !PlanesValid(out, shape)) return kInvalidArgument;
  if (out.rows != 0 && !Aligned(out.destination, TypeAlign(out.destination_type))) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_quantize_args* in, kvstrata_quantize_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  kvstrata_packed_shape shape;
  if (const int32_t status = ShapeOf(out, shape); status != kOk) return status;
  if (!FixStride(out.rows, out.width, out.value_stride)) return kInvalidArgument;
  if (out.rows != 0 && !IsFloats(out.values)) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_convert_args* in, uint32_t source_align, uint32_t destination_align,
                kvstrata_convert_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if (!Reserved(out.reserved0) || out.count > kElementsMax) return kInvalidArgument;
  if (out.count == 0) return kOk;
  if (!Aligned(out.source, source_align) || !Aligned(out.destination, destination_align)) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_hadamard_args* in, kvstrata_hadamard_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  const bool power_of_two = out.width != 0 && (out.width & (out.width - 1)) == 0;
  if (!power_of_two || out.width > kHadamardWidthMax) return kInvalidArgument;
  if (!ProfileValid(out.profile) || !Reserved(out.reserved0)) return kInvalidArgument;
  if (!FixStride(out.rows, out.width, out.value_stride)) return kInvalidArgument;
  if (out.rows != 0 && !IsFloats(out.values)) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_rope_frequencies_args* in, kvstrata_rope_frequencies_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if (out.rope_dims % 2 != 0 || out.rope_dims > (1u << 20)) return kInvalidArgument;
  // Written so that NaN fails every comparison.
  if (!(out.theta > 1) || !std::isfinite(out.theta)) return kInvalidArgument;
  if (!(out.yarn_factor >= 0) || !std::isfinite(out.yarn_factor)) return kInvalidArgument;
  if (out.yarn_factor > 0) {
    const bool valid = out.original_length > 0 && out.beta_fast > 0 && out.beta_slow > 0 &&
                       std::isfinite(out.original_length) && std::isfinite(out.beta_fast) &&
                       std::isfinite(out.beta_slow);
    if (!valid) return kInvalidArgument;
  }
  if (out.rope_dims != 0 && !IsFloats(out.frequencies)) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_rope_args* in, kvstrata_rope_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if (!ProfileValid(out.profile) || (out.flags & ~uint32_t{KVSTRATA_KERNELS_ROPE_INVERSE}) != 0) {
    return kInvalidArgument;
  }
  if (out.heads == 0) out.heads = 1;
  if (!RopeDimsValid(out.rope_dims, out.width)) return kInvalidArgument;
  if (!FixStride(out.heads, out.width, out.head_stride)) return kInvalidArgument;
  // The last head needs no more than its row, so a token may be shorter than heads * head_stride.
  const uint64_t token_span = (out.heads - 1) * out.head_stride + out.width;
  if (out.token_stride == 0) out.token_stride = out.heads * out.head_stride;
  if (!FixStride(out.tokens, token_span, out.token_stride)) return kInvalidArgument;
  if (out.tokens == 0 || out.rope_dims == 0) return kOk;
  if (!IsFloats(out.values) || !IsFloats(out.frequencies)) return kInvalidArgument;
  if (out.positions != nullptr && !Aligned(out.positions, alignof(int64_t))) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_rms_norm_args* in, kvstrata_rms_norm_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if (!ProfileValid(out.profile) || out.width == 0 || !(out.eps >= 0)) return kInvalidArgument;
  if (!FixStride(out.rows, out.width, out.source_stride)) return kInvalidArgument;
  if (!FixStride(out.rows, out.width, out.destination_stride)) return kInvalidArgument;
  if (out.rows == 0) return kOk;
  if (!IsFloats(out.source) || !IsFloats(out.destination)) return kInvalidArgument;
  if (out.weight != nullptr && !IsFloats(out.weight)) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_pool_args* in, kvstrata_pool_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  const bool overlap = (out.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0;
  if ((out.flags & ~uint32_t{KVSTRATA_KERNELS_POOL_OVERLAP}) != 0 || out.ratio == 0 || out.width == 0) {
    return kInvalidArgument;
  }
  if (!TypeValid(out.input_type) || !Reserved(out.reserved0)) return kInvalidArgument;
  if (!RangeFits(out.position, out.tokens)) return kInvalidArgument;
  const uint64_t channels = PoolChannels(out);
  if (!FixStride(out.tokens, channels, out.value_stride)) return kInvalidArgument;
  if (!FixStride(out.tokens, channels, out.gate_stride)) return kInvalidArgument;
  const uint64_t emitted = (out.position + out.tokens) / out.ratio - out.position / out.ratio;
  if (!FixStride(emitted, out.width, out.entry_stride) || out.entry_capacity < emitted) return kInvalidArgument;
  if (out.tokens == 0) return kOk;
  if (!IsType(out.values, out.input_type) || (emitted != 0 && !IsFloats(out.entries))) return kInvalidArgument;
  if (out.ape != nullptr && !IsFloats(out.ape)) return kInvalidArgument;
  if (overlap && (!IsFloats(out.prev_values) || !IsFloats(out.prev_gates))) return kInvalidArgument;
  if (out.ratio == 1 && !overlap) return kOk;
  if (!IsType(out.gates, out.input_type)) return kInvalidArgument;
  if (!IsFloats(out.open_values) || !IsFloats(out.open_gates)) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_emit_entries_args* in, kvstrata_emit_entries_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  constexpr uint32_t kFlags = KVSTRATA_KERNELS_EMIT_NO_NORM | KVSTRATA_KERNELS_EMIT_HADAMARD;
  if (!ProfileValid(out.profile) || (out.flags & ~kFlags) != 0) return kInvalidArgument;
  if (out.width == 0 || !RopeDimsValid(out.rope_dims, out.width) || out.ratio == 0) return kInvalidArgument;
  if (!(out.eps >= 0) || !RangeFits(out.first_entry, out.rows) ||
      out.first_entry + out.rows > kElementsMax / out.ratio) {
    return kInvalidArgument;
  }
  if (out.format != KVSTRATA_KERNELS_FORMAT_NONE) {
    kvstrata_packed_shape shape;
    if (const int32_t status = RowShape(out.format, out.width, out.rope_dims, shape); status != kOk) return status;
  }
  if ((out.flags & KVSTRATA_KERNELS_EMIT_HADAMARD) != 0 &&
      ((out.width & (out.width - 1)) != 0 || out.width > kHadamardWidthMax)) {
    return kInvalidArgument;
  }
  if (!FixStride(out.rows, out.width, out.pooled_stride)) return kInvalidArgument;
  if (!FixStride(out.rows, out.width, out.entry_stride)) return kInvalidArgument;
  if (out.rows == 0) return kOk;
  if (!IsFloats(out.pooled) || !IsFloats(out.entries)) return kInvalidArgument;
  if (out.norm_weight != nullptr && !IsFloats(out.norm_weight)) return kInvalidArgument;
  if (out.rope_dims != 0 && !IsFloats(out.frequencies)) return kInvalidArgument;
  return kOk;
}

kvstrata_pool_args PoolPart(const kvstrata_compress_args& a) {
  kvstrata_pool_args pool{};
  pool.struct_size = sizeof pool;
  pool.flags = a.pool_flags;
  pool.ratio = a.ratio;
  pool.width = a.width;
  pool.position = a.position;
  pool.tokens = a.tokens;
  pool.values = a.values;
  pool.value_stride = a.value_stride;
  pool.gates = a.gates;
  pool.gate_stride = a.gate_stride;
  pool.ape = a.ape;
  pool.prev_values = a.prev_values;
  pool.prev_gates = a.prev_gates;
  pool.open_values = a.open_values;
  pool.open_gates = a.open_gates;
  pool.input_type = a.input_type;
  return pool;
}

kvstrata_emit_entries_args EmitPart(const kvstrata_compress_args& a) {
  kvstrata_emit_entries_args emit{};
  emit.struct_size = sizeof emit;
  emit.profile = a.profile;
  emit.flags = a.emit_flags;
  emit.format = a.format;
  emit.width = a.width;
  emit.rope_dims = a.rope_dims;
  emit.ratio = a.ratio;
  emit.eps = a.eps;
  emit.norm_weight = a.norm_weight;
  emit.frequencies = a.frequencies;
  return emit;
}

namespace {

// Where the rows go: one of the three output types.
int32_t OutputValid(kvstrata_compress_args& a, uint64_t emitted, Checks checks) {
  const bool used = emitted != 0 && checks == Checks::kAll;
  if (a.output_type != KVSTRATA_KERNELS_PACKED) {
    if (!TypeValid(a.output_type) || !FixStride(emitted, a.width, a.entry_stride)) return kInvalidArgument;
    return used && !IsType(a.entries, a.output_type) ? kInvalidArgument : kOk;
  }
  kvstrata_packed_shape shape;
  if (const int32_t status = RowShape(a.format, a.width, a.rope_dims, shape); status != kOk) return status;
  if (!PlanesValid(a.packed, emitted, shape)) return kInvalidArgument;
  return used && !PlanesThere(a.packed, shape) ? kInvalidArgument : kOk;
}

}  // namespace

int32_t Prepare(const kvstrata_compress_args* in, kvstrata_compress_args& out, Checks checks) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if (!Reserved(out.reserved0)) return kInvalidArgument;
  // The two steps' own checks; what they would say of rows that never exist here is told with a stand-in.
  static constexpr float kStandIn = 0;
  kvstrata_pool_args pool = PoolPart(out);
  if (out.ratio == 0) return kInvalidArgument;
  if (!RangeFits(out.position, out.tokens)) return kInvalidArgument;
  const uint64_t emitted = EmittedEntries(out);
  pool.entries = const_cast<float*>(&kStandIn);
  pool.entry_capacity = out.entry_capacity;
  if (checks == Checks::kShapesOnly) pool.tokens = 0;
  kvstrata_pool_args checked_pool;
  if (const int32_t status = Prepare(&pool, checked_pool); status != kOk) return status;
  if (checks == Checks::kAll) {
    out.value_stride = checked_pool.value_stride;
    out.gate_stride = checked_pool.gate_stride;
  }
  kvstrata_emit_entries_args emit = EmitPart(out);
  emit.first_entry = out.position / out.ratio;
  emit.rows = checks == Checks::kShapesOnly ? 0 : emitted;
  emit.pooled = &kStandIn;
  emit.entries = const_cast<float*>(&kStandIn);
  kvstrata_emit_entries_args checked_emit;
  if (const int32_t status = Prepare(&emit, checked_emit); status != kOk) return status;
  return OutputValid(out, emitted, checks);
}

int32_t Prepare(const kvstrata_window_args* in, kvstrata_window_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if (!Reserved(out.reserved0) || out.row_bytes == 0 || out.row_bytes > kElementsMax) return kInvalidArgument;
  if (out.capacity == 0 || !RangeFits(out.position, out.rows)) return kInvalidArgument;
  if (!FixStride(out.capacity, out.row_bytes, out.ring_stride_bytes)) return kInvalidArgument;
  if (!FixStride(out.rows, out.row_bytes, out.linear_stride_bytes)) return kInvalidArgument;
  if (out.rows != 0 && (out.ring == nullptr || out.linear == nullptr)) return kInvalidArgument;
  return kOk;
}

namespace {

// Keys in one of their two forms.
bool KeysValid(kvstrata_index_scores_args& a, Checks checks) {
  const bool used = a.tokens != 0 && a.entries != 0 && checks == Checks::kAll;
  if (a.key_format == KVSTRATA_KERNELS_FORMAT_NONE) {
    if (!TypeValid(a.key_type) || !FixStride(a.entries, a.width, a.key_stride)) return false;
    return !used || IsType(a.keys, a.key_type);
  }
  const bool is_index =
      a.key_format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 || a.key_format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8;
  kvstrata_packed_shape shape;
  if (!is_index || a.key_type != 0 || RowShape(a.key_format, 0, 0, shape) != kOk) return false;
  if (a.width != shape.width) return false;
  return PlanesValid(a.packed_keys, a.entries, shape) && (!used || PlanesThere(a.packed_keys, shape));
}

}  // namespace

int32_t Prepare(const kvstrata_index_scores_args* in, kvstrata_index_scores_args& out, Checks checks) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if ((out.flags & ~uint32_t{KVSTRATA_KERNELS_SCORES_ROUND_BF16}) != 0) return kInvalidArgument;
  if (out.heads == 0 || out.width == 0 || out.ratio == 0) return kInvalidArgument;
  if (!std::isfinite(out.scale) || !RangeFits(out.first_position, out.tokens)) return kInvalidArgument;
  if (out.scale == 0) {
    out.scale = 1.0f / (std::sqrt(static_cast<float>(out.width)) * std::sqrt(static_cast<float>(out.heads)));
  }
  const uint64_t query = uint64_t{out.heads} * out.width;
  if (!TypeValid(out.query_type) || !Reserved(out.reserved0)) return kInvalidArgument;
  if (!RangeFits(out.first_entry, out.entries)) return kInvalidArgument;
  if (!FixStride(out.tokens, query, out.query_stride)) return kInvalidArgument;
  if (!KeysValid(out, checks)) return kInvalidArgument;
  if (!FixStride(out.tokens, out.heads, out.weight_stride)) return kInvalidArgument;
  if (!FixStride(out.tokens, out.entries, out.score_stride)) return kInvalidArgument;
  if (out.tokens == 0 || out.entries == 0 || checks == Checks::kShapesOnly) return kOk;
  if (!IsType(out.queries, out.query_type) || !IsFloats(out.weights) || !IsFloats(out.scores)) return kInvalidArgument;
  return kOk;
}

int32_t Prepare(const kvstrata_topk_args* in, kvstrata_topk_args& out, Checks checks) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if ((out.flags & ~uint32_t{KVSTRATA_KERNELS_TOPK_SORT_ASCENDING}) != 0) return kInvalidArgument;
  if (out.k == 0 || out.ratio == 0 || out.entries > INT32_MAX) return kInvalidArgument;
  if (!RangeFits(out.first_position, out.tokens)) return kInvalidArgument;
  if (!FixStride(out.tokens, out.entries, out.score_stride)) return kInvalidArgument;
  if (!FixStride(out.tokens, out.k, out.index_stride)) return kInvalidArgument;
  if (out.tokens == 0 || checks == Checks::kShapesOnly) return kOk;
  if (!Aligned(out.indices, alignof(int32_t))) return kInvalidArgument;
  if (out.entries != 0 && !IsFloats(out.scores)) return kInvalidArgument;
  return kOk;
}

namespace {

// Query and output share heads and width but not strides.
bool HeadsValid(uint64_t tokens, uint32_t heads, uint32_t width, uint64_t& token_stride, uint64_t& head_stride) {
  if (!FixStride(heads, width, head_stride)) return false;
  if (token_stride == 0) token_stride = heads * head_stride;
  return FixStride(tokens, (heads - 1) * head_stride + width, token_stride);
}

// Rows in one of their two forms: of a type, or packed.
bool RowsValid(const kvstrata_attention_args& a, uint64_t rows, int32_t type, int32_t format, uint64_t& stride,
               kvstrata_packed_planes& planes) {
  if (format == KVSTRATA_KERNELS_FORMAT_NONE) return TypeValid(type) && FixStride(rows, a.width, stride);
  const bool is_row = format == KVSTRATA_KERNELS_FORMAT_V4_ROW || format == KVSTRATA_KERNELS_FORMAT_V41_WINDOW ||
                      format == KVSTRATA_KERNELS_FORMAT_V41_ENTRY;
  kvstrata_packed_shape shape;
  if (!is_row || type != 0 || RowShape(format, a.width, a.rope_dims, shape) != kOk) return false;
  return PlanesValid(planes, rows, shape);
}

bool RowsThere(const kvstrata_attention_args& a, const void* rows, int32_t type, int32_t format,
               const kvstrata_packed_planes& planes) {
  if (format == KVSTRATA_KERNELS_FORMAT_NONE) return IsType(rows, type);
  kvstrata_packed_shape shape;
  return RowShape(format, a.width, a.rope_dims, shape) == kOk && PlanesThere(planes, shape);
}

// Every position that a query of the call looks at must be there.
bool WindowValid(kvstrata_attention_args& a) {
  const uint64_t held = a.window_ring != 0 ? a.window_ring : a.window_rows;
  if (!RowsValid(a, held, a.window_type, a.window_format, a.window_stride, a.packed_window)) return false;
  if (!RangeFits(a.window_first, a.window_rows)) return false;
  if (a.window_ring != 0 && a.window_rows > a.window_ring) return false;
  if (a.tokens == 0) return true;
  const uint64_t last = a.first_position + a.tokens - 1;
  return a.window_first <= a.first_position && a.window_first + a.window_rows > last;
}

// Without a list all visible entries must be there; with one its values decide, which only the level can read.
bool EntriesValid(kvstrata_attention_args& a) {
  if (a.ratio == 0) return a.picks == nullptr && a.pick_count == 0;
  if (!RowsValid(a, a.entry_count, a.entry_type, a.entry_format, a.entry_stride, a.packed_entries)) return false;
  if (!FixStride(a.tokens, a.pick_count, a.pick_stride)) return false;
  if (a.tokens == 0 || a.picks != nullptr || a.pick_count != 0) return true;
  return a.entry_count >= VisibleEntries(a.first_position + a.tokens - 1, a.ratio);
}

bool AttentionPointersValid(const kvstrata_attention_args& a) {
  if (!IsType(a.queries, a.query_type) || !IsType(a.output, a.output_type)) return false;
  if (!RowsThere(a, a.window_kv, a.window_type, a.window_format, a.packed_window)) return false;
  if (a.sinks != nullptr && !IsFloats(a.sinks)) return false;
  const bool inverse = (a.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0;
  if (inverse && a.rope_dims != 0 && !IsFloats(a.frequencies)) return false;
  if (a.ratio == 0) return true;
  if (a.entry_count != 0 && !RowsThere(a, a.entries, a.entry_type, a.entry_format, a.packed_entries)) return false;
  return a.picks != nullptr ? Aligned(a.picks, alignof(int32_t)) : a.pick_count == 0;
}

}  // namespace

int32_t Prepare(const kvstrata_attention_args* in, kvstrata_attention_args& out, Checks checks) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  const bool inverse = (out.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0;
  if (!ProfileValid(out.profile) || (out.flags & ~uint32_t{KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE}) != 0) {
    return kInvalidArgument;
  }
  if (out.heads == 0 || out.width == 0 || out.window == 0) return kInvalidArgument;
  if (!std::isfinite(out.scale) || !RangeFits(out.first_position, out.tokens)) return kInvalidArgument;
  if (out.scale == 0) out.scale = 1.0f / std::sqrt(static_cast<float>(out.width));
  const bool packed = out.window_format != KVSTRATA_KERNELS_FORMAT_NONE ||
                      (out.ratio != 0 && out.entry_format != KVSTRATA_KERNELS_FORMAT_NONE);
  if ((inverse || packed) && !RopeDimsValid(out.rope_dims, out.width)) return kInvalidArgument;
  if (!TypeValid(out.query_type) || !TypeValid(out.output_type)) return kInvalidArgument;
  if (!HeadsValid(out.tokens, out.heads, out.width, out.query_token_stride, out.query_head_stride) ||
      !HeadsValid(out.tokens, out.heads, out.width, out.output_token_stride, out.output_head_stride)) {
    return kInvalidArgument;
  }
  if (!WindowValid(out) || !EntriesValid(out)) return kInvalidArgument;
  if (out.tokens == 0 || checks == Checks::kShapesOnly) return kOk;
  return AttentionPointersValid(out) ? kOk : kInvalidArgument;
}

namespace {

// Segments inside 2^59 bytes; `row_end` becomes the bytes of a block row that they reach.
bool SegmentsValid(const kvstrata_move_args& a, uint64_t& row_end) {
  row_end = 0;
  for (uint64_t i = 0; i < a.segment_count; ++i) {
    const kvstrata_segment& s = a.segments[i];
    if (!RangeFits(s.block_offset, s.bytes) || s.page_offset > kElementsMax) return false;
    if (s.bytes == 0 || s.page_row_stride < s.bytes || s.page_row_stride > kElementsMax / a.rows_per_page) return false;
    if (s.block_offset + s.bytes > row_end) row_end = s.block_offset + s.bytes;
    const uint64_t page_end = s.page_offset + (a.rows_per_page - 1) * s.page_row_stride + s.bytes;
    if (page_end > a.page_stride_bytes) return false;
  }
  return true;
}

}  // namespace

int32_t Prepare(const kvstrata_move_args* in, kvstrata_move_args& out) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if (out.page_id_type != KVSTRATA_KERNELS_INT32 && out.page_id_type != KVSTRATA_KERNELS_INT64) return kInvalidArgument;
  if (out.rows_per_page == 0 || out.rows_per_page > kElementsMax || !RangeFits(out.first_row, out.rows)) {
    return kInvalidArgument;
  }
  if (out.segment_count == 0 || out.segment_count > (1u << 20) || !Aligned(out.segments, alignof(kvstrata_segment))) {
    return kInvalidArgument;
  }
  uint64_t row_end = 0;
  if (out.page_stride_bytes > kElementsMax || !SegmentsValid(out, row_end)) return kInvalidArgument;
  if (!FixStride(out.rows, row_end, out.block_stride_bytes)) return kInvalidArgument;
  if (out.rows == 0) return kOk;
  if (out.pages == nullptr || out.block == nullptr) return kInvalidArgument;
  const uint64_t id_bytes = out.page_id_type == KVSTRATA_KERNELS_INT64 ? 8 : 4;
  if (!Aligned(out.page_ids, id_bytes)) return kInvalidArgument;
  if ((out.first_row + out.rows - 1) / out.rows_per_page >= out.page_id_count) return kInvalidArgument;
  return kOk;
}

bool PageIdsValid(const kvstrata_move_args& a) {
  if (a.rows == 0) return true;
  const uint64_t last = (a.first_row + a.rows - 1) / a.rows_per_page;
  for (uint64_t i = a.first_row / a.rows_per_page; i <= last; ++i) {
    const int64_t id = PageId(a, i);
    if (id < -1) return false;
    if (id < 0) continue;
    if (a.page_limit != 0 && static_cast<uint64_t>(id) >= a.page_limit) return false;
    if (static_cast<uint64_t>(id) >= kElementsMax / a.page_stride_bytes) return false;
  }
  return true;
}

int32_t Prepare(const kvstrata_project_args* in, kvstrata_project_args& out, Checks checks) {
  if (const int32_t status = ReadStruct(in, out); status != kOk) return status;
  if (!TypeValid(out.weight_type) || !TypeValid(out.x_type) || !Reserved(out.reserved0) || !Reserved(out.reserved1) ||
      (out.flags & ~uint32_t{KVSTRATA_KERNELS_PROJECT_ROUND_BF16}) != 0) {
    return kInvalidArgument;
  }
  if (!FixStride(out.tokens, out.inputs, out.x_stride)) return kInvalidArgument;
  if (!FixStride(out.outputs, out.inputs, out.weight_stride)) return kInvalidArgument;
  if (!FixStride(out.tokens, out.outputs, out.y_stride)) return kInvalidArgument;
  if (out.tokens == 0 || out.outputs == 0 || checks == Checks::kShapesOnly) return kOk;
  if (!IsFloats(out.y)) return kInvalidArgument;
  if (out.inputs == 0) return kOk;
  if (!Aligned(out.x, TypeAlign(out.x_type)) || !Aligned(out.weights, TypeAlign(out.weight_type))) {
    return kInvalidArgument;
  }
  return kOk;
}

}  // namespace kvstrata::kernels
