// SPDX-License-Identifier: Apache-2.0
// Rows that a kernel reads as keys: of an element type, or packed, which mean exactly what unpack_rows gives. Every
// packed value is a bf16 number, so packed and bf16 rows can go to the tensor cores as they are.
//
// Thread rule: pure functions.
#pragma once

#include "kernels/cuda/rows.h"
#include "kernels/cuda/scales.h"
#include "kernels/cuda/words.h"
#include "kernels/reference/grid.h"

namespace kvstrata::kernels::cuda {

struct KeyRows {
  Rows rows;  // of a type
  uint64_t stride;
  bool packed;
  reference::Grid format;
  kvstrata_packed_planes planes;
  uint32_t quantised;  // channels before the rope part
  // The widest words that rows and planes can be read in.
  uint32_t row_word, code_word, rope_word;

  static KeyRows Typed(const void* data, int32_t type, uint64_t stride) {
    const uint64_t bytes = stride * (type == KVSTRATA_KERNELS_F32 ? sizeof(float) : sizeof(uint16_t));
    return {{const_cast<void*>(data), type}, stride, false, {}, {}, 0, WordBytes(AddressOf(data) | bytes), 0, 0};
  }
  static KeyRows Packed(int32_t format, uint32_t width, uint32_t rope_dims, const kvstrata_packed_planes& planes) {
    const uint32_t apart = format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? rope_dims : 0;
    const reference::Grid grid = reference::GridOf(format, width);
    return {{},
            0,
            true,
            grid,
            planes,
            width - apart,
            0,
            // Of eight channels.
            WordBytes(AddressOf(planes.codes) | planes.code_stride_bytes | (grid.e2m1 ? 4 : 8)),
            WordBytes(AddressOf(planes.rope) | planes.rope_stride_bytes)};
  }

  // Both halves exact in bf16?
  bool is_bf16() const { return packed || rows.type == KVSTRATA_KERNELS_BF16; }

  // Channels `channel` .. `channel` + 7, a multiple of eight, of bf16 or packed rows, as pairs. A block of channels is
  // never cut: all formats' are a multiple of eight wide, but for small rows of one block, which end with it.
  KVSTRATA_DEVICE Word16 Pairs(const Thread& t, uint64_t row, uint32_t channel) const {
    if (!packed) {
      const auto* from = static_cast<const uint16_t*>(rows.data) + row * stride + channel;
      return LoadBytes(reinterpret_cast<const uint8_t*>(from), sizeof(Word16), row_word);
    }
    if (channel >= quantised) {
      const uint8_t* rope = planes.rope + row * planes.rope_stride_bytes + 2 * (channel - quantised);
      return LoadBytes(rope, sizeof(Word16), rope_word);
    }
    const float scale = LoadScale(format, planes.scales + row * planes.scale_stride_bytes, channel);
    const uint8_t* codes = planes.codes + row * planes.code_stride_bytes;
    const Word16 from =
        format.e2m1 ? LoadBytes(codes + channel / 2, 4, code_word) : LoadBytes(codes + channel, 8, code_word);
    Word16 pairs;
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t two = format.e2m1 ? from.parts[0] >> (8 * i) : from.parts[i / 2] >> (i % 2 * 16);
      const auto low = static_cast<uint8_t>(format.e2m1 ? two & 0xFu : two);
      const auto high = static_cast<uint8_t>(format.e2m1 ? two >> 4 & 0xFu : two >> 8);
      pairs.parts[i] = t.PairOf(DecodeCode(format, low, scale), DecodeCode(format, high, scale));
    }
    return pairs;
  }

  KVSTRATA_DEVICE float At(uint64_t row, uint32_t channel) const {
    if (!packed) {
      float value[1];
      rows.Load(row * stride + channel, value);
      return value[0];
    }
    if (channel >= quantised) {
      const uint8_t* rope = planes.rope + row * planes.rope_stride_bytes + 2 * (channel - quantised);
      return reference::Bf16ToF32(static_cast<uint16_t>(rope[0] | rope[1] << 8));
    }
    const uint8_t* codes = planes.codes + row * planes.code_stride_bytes;
    const uint8_t* scales = planes.scales + row * planes.scale_stride_bytes;
    uint8_t code = format.e2m1 ? codes[channel / 2] : codes[channel];
    if (format.e2m1) code = static_cast<uint8_t>(code >> (channel % 2 * 4) & 0xFu);
    return DecodeCode(format, code, LoadScale(format, scales, channel));
  }
};

}  // namespace kvstrata::kernels::cuda
