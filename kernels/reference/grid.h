// SPDX-License-Identifier: Apache-2.0
// What a packed format makes of one block of channels: its scale, and each channel's code (formats of reference section
// 7 and 11.4). Shared by the reference and the CUDA kernels, which have no vector form of it.
//
// Thread rule: pure functions.
#pragma once

#include "kernels/kernel_api.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {

// Element and scale type of a format, and its block.
struct Grid {
  bool e2m1;         // codes: E2M1, else E4M3
  bool e4m3_scale;   // scale: E4M3, else a power of two
  bool f32_scale;    // the power of two is stored as a float, else as UE8M0
  uint32_t block;    // channels of one scale
  float amax_floor;  // keeps the scale of an all-zero block finite
  float reciprocal;  // fp32(1 / largest element)
};

inline Grid GridOf(int32_t format, uint32_t width) {
  constexpr float kFp8Floor = 1e-4f;
  constexpr float kFp4Floor = 0x6p-126f;
  constexpr float kFp4E4M3Floor = 0x6p-9f;
  switch (format) {
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4: return {true, false, false, 32, kFp4Floor, 1.0f / kE2M1Max};
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8: return {false, false, true, width, kFp8Floor, 1.0f / kE4M3Max};
    case KVSTRATA_KERNELS_FORMAT_V41_WINDOW: return {false, false, false, 32, kFp8Floor, 1.0f / kE4M3Max};
    case KVSTRATA_KERNELS_FORMAT_V41_ENTRY: return {true, true, false, 16, kFp4E4M3Floor, 1.0f / kE2M1Max};
    default: return {false, false, false, 64, kFp8Floor, 1.0f / kE4M3Max};
  }
}

// The stored scale byte of a block whose largest magnitude is `amax`: UE8M0 of ceil(log2(amax / largest element)), or
// E4M3(amax / 6) by true division.
KVSTRATA_HOST_DEVICE inline uint8_t ScaleByte(const Grid& grid, float amax) {
  const float floored = amax > grid.amax_floor ? amax : grid.amax_floor;
  if (grid.e4m3_scale) return EncodeE4M3(floored / kE2M1Max);
  return CeilUE8M0(floored * grid.reciprocal);
}

KVSTRATA_HOST_DEVICE inline float ScaleValue(const Grid& grid, uint8_t byte) {
  return grid.e4m3_scale ? DecodeE4M3(byte) : DecodeUE8M0(byte);
}

// Division by a power of two is exact; by an E4M3 scale it is the rounded quotient that the format's definition wants.
KVSTRATA_HOST_DEVICE inline uint8_t Encode(const Grid& grid, float value, float scale) {
  return grid.e2m1 ? EncodeE2M1(value / scale) : EncodeE4M3(value / scale);
}

KVSTRATA_HOST_DEVICE inline float Decode(const Grid& grid, uint8_t code, float scale) {
  return (grid.e2m1 ? DecodeE2M1(code) : DecodeE4M3(code)) * scale;
}

}  // namespace kvstrata::kernels::reference
