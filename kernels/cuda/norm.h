// SPDX-License-Identifier: Apache-2.0
// The steps of RMSNorm and of a rotation that kernels share: one order of summation, whoever calls.
//
// Thread rule: pure functions; those that take a Thread are called by all lanes of its warp.
#pragma once

#include <cmath>

#include "kernels/cuda/grid.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::cuda {

// The sum of all lanes' values, the same bits in every lane.
KVSTRATA_DEVICE float WarpSum(const Thread& t, float sum) {
  for (uint32_t mask = kWarp / 2; mask != 0; mask /= 2) sum += t.ExchangeXor(sum, mask);
  return sum;
}

// 1 / sqrt(mean of squares + eps) of a row: lane l adds the squares of channels l, l + 32, ... in ascending order.
KVSTRATA_DEVICE float InverseNorm(const Thread& t, const float* row, uint32_t width, float eps) {
  float sum = 0;
  for (uint32_t c = t.lane(); c < width; c += kWarp) sum += row[c] * row[c];
  const float mean = WarpSum(t, sum) / static_cast<float>(width);
  return 1.0f / std::sqrt(mean + eps);
}

KVSTRATA_DEVICE float Scaled(float value, float inverse, const float* weight, uint32_t channel, bool round) {
  const float scaled = weight != nullptr ? value * inverse * weight[channel] : value * inverse;
  return round ? reference::RoundBf16(scaled) : scaled;
}

// (a + ib) * e^(i angle), or its conjugate.
KVSTRATA_DEVICE void RotatePair(const reference::SinCos& turn, bool inverse, bool round, float* pair) {
  const float sin = inverse ? -turn.sin : turn.sin;
  const float a = pair[0] * turn.cos - pair[1] * sin;
  const float b = pair[0] * sin + pair[1] * turn.cos;
  pair[0] = round ? reference::RoundBf16(a) : a;
  pair[1] = round ? reference::RoundBf16(b) : b;
}

}  // namespace kvstrata::kernels::cuda
