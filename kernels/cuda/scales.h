// SPDX-License-Identifier: Apache-2.0
// Scales of packed rows: what a team of lanes has to agree on before one of them writes, and where scales lie.
//
// Thread rule: pure functions; those that take a Thread are called by all lanes of its warp.
#pragma once

#include <bit>
#include <cmath>

#include "kernels/cuda/grid.h"
#include "kernels/reference/grid.h"

namespace kvstrata::kernels::cuda {

// The largest of the magnitudes that the lanes of a team have found; teams are powers of two, or alone in their warp.
KVSTRATA_DEVICE float TeamLargest(const Thread& t, uint32_t team, float amax) {
  for (uint32_t mask = 1; mask < team; mask *= 2) {
    const float other = t.ExchangeXor(amax, mask);
    amax = other > amax ? other : amax;
  }
  return amax;
}

// Of block `block` of a row that has `blocks`; whoever writes the last one writes the padding behind it.
KVSTRATA_DEVICE void StoreScale(const reference::Grid& format, uint32_t block, uint32_t blocks, uint8_t byte,
                                uint32_t scale_bytes, uint8_t* scales) {
  if (format.f32_scale) {
    const uint32_t bits = std::bit_cast<uint32_t>(reference::ScaleValue(format, byte));
    for (uint32_t i = 0; i < 4; ++i) scales[i] = static_cast<uint8_t>(bits >> (8 * i));
    return;
  }
  scales[block] = byte;
  if (block + 1 < blocks) return;
  for (uint32_t i = blocks; i < scale_bytes; ++i) scales[i] = 0;
}

// As reference::Encode. A power of two and its reciprocal are both floats, and a product with that is the quotient.
struct Encoder {
  reference::Grid format;
  float scale;
  float reciprocal;

  KVSTRATA_DEVICE Encoder(const reference::Grid& of, uint8_t byte)
      : format(of), scale(reference::ScaleValue(of, byte)), reciprocal(1.0f / scale) {}

  KVSTRATA_DEVICE uint8_t operator()(float value) const {
    const float scaled = format.e4m3_scale ? value / scale : value * reciprocal;
    return format.e2m1 ? reference::EncodeE2M1(scaled) : reference::EncodeE4M3(scaled);
  }
};

// As reference::Decode. An E4M3 number's bits, moved to a float's exponent and mantissa, are 2^-120 of it, also where
// it is denormal.
KVSTRATA_DEVICE float DecodeCode(const reference::Grid& format, uint8_t code, float scale) {
  if (format.e2m1) return reference::DecodeE2M1(code) * scale;
  const uint32_t bits = code & 0x7Fu;
  const float magnitude = bits == 0x7F ? NAN : std::bit_cast<float>(bits << 20) * 0x1p120f;
  return ((code & 0x80u) != 0 ? -magnitude : magnitude) * scale;
}

// Of the block that a channel is in.
KVSTRATA_DEVICE float LoadScale(const reference::Grid& format, const uint8_t* scales, uint32_t channel) {
  if (!format.f32_scale) return reference::ScaleValue(format, scales[channel / format.block]);
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 4; ++i) bits |= uint32_t{scales[i]} << (8 * i);
  return std::bit_cast<float>(bits);
}

}  // namespace kvstrata::kernels::cuda
