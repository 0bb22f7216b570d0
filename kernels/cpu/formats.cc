// SPDX-License-Identifier: Apache-2.0
// Numeric formats: packing and unpacking of rows, quantising in place, conversions between fp32 and bf16, Hadamard.
// Owns the functions of the table; the arithmetic is that of formats-inl.h, and so is its invariant: the reference's
// bits for every input.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/formats.cc"
#include "kernels/arguments.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"
// After targets-inl.h, whose toggle it follows.
#include "kernels/cpu/formats-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void PackAll(const kvstrata_pack_rows_args& a) {
  const T* source = static_cast<const T*>(a.source);
  const uint64_t rope_stride = a.rope_dims == 0 ? 0 : a.rope_stride_bytes;  // `rope` may be null
  for (uint64_t row = 0; row < a.rows; ++row) {
    PackRow(a.format, source + row * a.source_stride, a.width, a.rope_dims, a.codes + row * a.code_stride_bytes,
            a.rope + row * rope_stride, a.scales + row * a.scale_stride_bytes);
  }
}

template <typename T>
void UnpackAll(const kvstrata_unpack_rows_args& a) {
  T* destination = static_cast<T*>(a.destination);
  const uint64_t rope_stride = a.rope_dims == 0 ? 0 : a.rope_stride_bytes;  // `rope` may be null
  for (uint64_t row = 0; row < a.rows; ++row) {
    UnpackRow(a.format, a.codes + row * a.code_stride_bytes, a.rope + row * rope_stride,
              a.scales + row * a.scale_stride_bytes, a.width, a.rope_dims, destination + row * a.destination_stride);
  }
}

int32_t PackRows(const kvstrata_pack_rows_args* args, void*) {
  kvstrata_pack_rows_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.source_type == KVSTRATA_KERNELS_F32) {
    PackAll<float>(a);
  } else {
    PackAll<uint16_t>(a);
  }
  return kOk;
}

int32_t UnpackRows(const kvstrata_unpack_rows_args* args, void*) {
  kvstrata_unpack_rows_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.destination_type == KVSTRATA_KERNELS_F32) {
    UnpackAll<float>(a);
  } else {
    UnpackAll<uint16_t>(a);
  }
  return kOk;
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
  const uint64_t lanes = FloatLanes();
  uint64_t i = 0;
  for (; i + lanes <= a.count; i += lanes) StoreFloats(LoadFloats(source + i), destination + i);
  for (; i < a.count; ++i) destination[i] = reference::F32ToBf16(source[i]);
  return kOk;
}

int32_t ConvertBf16ToF32(const kvstrata_convert_args* args, void*) {
  kvstrata_convert_args a;
  if (const int32_t status = Prepare(args, 2, 4, a); status != kOk) return status;
  const uint16_t* source = static_cast<const uint16_t*>(a.source);
  float* destination = static_cast<float*>(a.destination);
  const uint64_t lanes = FloatLanes();
  uint64_t i = 0;
  for (; i + lanes <= a.count; i += lanes) StoreFloats(LoadFloats(source + i), destination + i);
  for (; i < a.count; ++i) destination[i] = reference::Bf16ToF32(source[i]);
  return kOk;
}

int32_t ConvertRoundBf16(const kvstrata_convert_args* args, void*) {
  kvstrata_convert_args a;
  if (const int32_t status = Prepare(args, 4, 4, a); status != kOk) return status;
  const float* source = static_cast<const float*>(a.source);
  float* destination = static_cast<float*>(a.destination);
  const uint64_t lanes = FloatLanes();
  uint64_t i = 0;
  for (; i + lanes <= a.count; i += lanes) StoreFloats(RoundBf16(LoadFloats(source + i)), destination + i);
  for (; i < a.count; ++i) destination[i] = reference::RoundBf16(source[i]);
  return kOk;
}

int32_t Hadamard(const kvstrata_hadamard_args* args, void* stream) {
  kvstrata_hadamard_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.width < FloatLanes()) return reference::Hadamard(args, stream);
  const bool round = reference::Rounds(a.profile);
  for (uint64_t row = 0; row < a.rows; ++row) HadamardRow(a.values + row * a.value_stride, a.width, round);
  return kOk;
}

void Fill(kvstrata_kernels& table) {
  table.pack_rows = PackRows;
  table.unpack_rows = UnpackRows;
  table.quantize_dequantize = QuantizeDequantize;
  table.f32_to_bf16 = ConvertF32ToBf16;
  table.bf16_to_f32 = ConvertBf16ToF32;
  table.bf16_round = ConvertRoundBf16;
  table.hadamard = Hadamard;
}

}  // namespace
}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVSTRATA_CPU_VECTORS

#if HWY_ONCE
namespace kvstrata::kernels::cpu {
KVSTRATA_CPU_FILL(FillFormats, Fill)
}  // namespace kvstrata::kernels::cpu
#endif
