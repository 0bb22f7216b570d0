// SPDX-License-Identifier: Apache-2.0
// Rows that a kernel reads as keys: of an element type, or packed, which mean exactly what unpack_rows gives. Every
// packed value is a bf16 number, so packed and bf16 rows can go to the tensor cores as they are.
//
// Thread rule: pure functions.
#pragma once

#include "kernels/cuda/rows.h"
#include "kernels/cuda/scales.h"
#include "kernels/reference/grid.h"

namespace kvstrata::kernels::cuda {

struct KeyRows {
  Rows rows;  // of a type
  uint64_t stride;
  bool packed;
  reference::Grid format;
  kvstrata_packed_planes planes;
  uint32_t quantised;  // channels before the rope part

  static KeyRows Typed(const void* data, int32_t type, uint64_t stride) {
    return {{const_cast<void*>(data), type}, stride, false, {}, {}, 0};
  }
  static KeyRows Packed(int32_t format, uint32_t width, uint32_t rope_dims, const kvstrata_packed_planes& planes) {
    const uint32_t apart = format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? rope_dims : 0;
    return {{}, 0, true, reference::GridOf(format, width), planes, width - apart};
  }

  // Both halves exact in bf16?
  bool is_bf16() const { return packed || rows.type == KVSTRATA_KERNELS_BF16; }

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
    return reference::Decode(format, code, LoadScale(format, scales, channel));
  }
};

}  // namespace kvstrata::kernels::cuda
