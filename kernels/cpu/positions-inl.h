// SPDX-License-Identifier: Apache-2.0
// RoPE and RMSNorm of one row in the vectors of one target: what positions.cc makes functions of the table from, and
// what the compressors and attention use.
//
// I1: a row's floats depend on that row, its position and the level alone.
// I2: nothing is read or written beyond the channels given; no pointer need be aligned beyond its type.
//
// Include it after targets-inl.h (formats-inl.h says why).
//
// Thread rule: pure functions.
#if defined(KVSTRATA_KERNELS_CPU_POSITIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTRATA_KERNELS_CPU_POSITIONS_INL_H_
#undef KVSTRATA_KERNELS_CPU_POSITIONS_INL_H_
#else
#define KVSTRATA_KERNELS_CPU_POSITIONS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/functions.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- RoPE --------------------------------------------------------------------------------------------------------

// The turns of some pairs at one position, laid out as the pairs' channels are: every cos twice, every sin as -sin and
// sin. A rotation is then x * cos + swapped(x) * sin, with the reference's two products and one sum.
struct Turns {
  static constexpr uint32_t kPairs = 64;
  float cos[2 * kPairs];
  float sin[2 * kPairs];
};

// `count` <= Turns::kPairs. The angle is the fp32 product of the contract.
inline void FillTurns(const float* frequencies, uint32_t count, int64_t position, bool inverse, Turns& turns) {
  const hn::ScalableTag<double> doubles;
  const hn::CappedTag<double, 1> one;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(doubles));
  const float at = static_cast<float>(position);
  const FloatsOf<decltype(doubles)> floats;
  uint32_t k = 0;
  for (; k + lanes <= count; k += lanes) {
    hn::Vec<decltype(floats)> sin;
    hn::Vec<decltype(floats)> cos;
    SinCos(doubles, hn::Mul(hn::Set(floats, at), hn::LoadU(floats, frequencies + k)), sin, cos);
    if (inverse) sin = hn::Neg(sin);
    hn::StoreInterleaved2(cos, cos, floats, turns.cos + 2 * k);
    hn::StoreInterleaved2(hn::Neg(sin), sin, floats, turns.sin + 2 * k);
  }
  const FloatsOf<decltype(one)> one_float;
  for (; k < count; ++k) {
    hn::Vec<decltype(one_float)> sin;
    hn::Vec<decltype(one_float)> cos;
    SinCos(one, hn::Set(one_float, at * frequencies[k]), sin, cos);
    const float turned = inverse ? -hn::GetLane(sin) : hn::GetLane(sin);
    turns.cos[2 * k] = turns.cos[2 * k + 1] = hn::GetLane(cos);
    turns.sin[2 * k] = -turned;
    turns.sin[2 * k + 1] = turned;
  }
}

// Rotates `count` pairs in place.
inline void RotatePairs(const Turns& turns, uint32_t count, bool round, float* pairs) {
  const uint32_t lanes = FloatLanes();
  uint32_t i = 0;
  for (; i + lanes <= 2 * count; i += lanes) {
    const FloatVec x = LoadFloats(pairs + i);
    const FloatVec turned =
        hn::Add(hn::Mul(x, LoadFloats(turns.cos + i)), hn::Mul(hn::Shuffle2301(x), LoadFloats(turns.sin + i)));
    StoreFloats(round ? RoundBf16(turned) : turned, pairs + i);
  }
  for (; i < 2 * count; i += 2) {
    const float a = pairs[i] * turns.cos[i] + pairs[i + 1] * turns.sin[i];
    const float b = pairs[i + 1] * turns.cos[i + 1] + pairs[i] * turns.sin[i + 1];
    pairs[i] = round ? reference::RoundBf16(a) : a;
    pairs[i + 1] = round ? reference::RoundBf16(b) : b;
  }
}

// All heads of one token in place; `pairs` is the first rotated channel of the first head.
inline void RopeHeads(float* pairs, uint64_t heads, uint64_t head_stride, const float* frequencies, uint32_t rope_dims,
                      int64_t position, bool inverse, bool round) {
  Turns turns;
  for (uint32_t begin = 0; begin < rope_dims / 2; begin += Turns::kPairs) {
    const uint32_t count = std::min(rope_dims / 2 - begin, Turns::kPairs);
    FillTurns(frequencies + begin, count, position, inverse, turns);
    for (uint64_t h = 0; h < heads; ++h) RotatePairs(turns, count, round, pairs + h * head_stride + 2 * begin);
  }
}

// ---- RMSNorm -----------------------------------------------------------------------------------------------------

// Four vectors of sums, of every fourth vector each, so that the additions' latency does not add up; then what is left.
HWY_INLINE float SumOfSquares(const float* row, uint32_t width) {
  const FloatTag floats;
  const uint32_t lanes = FloatLanes();
  FloatVec sums[4] = {hn::Zero(floats), hn::Zero(floats), hn::Zero(floats), hn::Zero(floats)};
  uint32_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    for (uint32_t v = 0; v < 4; ++v) {
      const FloatVec x = LoadFloats(row + i + v * lanes);
      sums[v] = hn::MulAdd(x, x, sums[v]);
    }
  }
  for (; i + lanes <= width; i += lanes) {
    const FloatVec x = LoadFloats(row + i);
    sums[0] = hn::MulAdd(x, x, sums[0]);
  }
  const FloatVec sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  float total = hn::GetLane(hn::SumOfLanes(floats, sum));
  for (; i < width; ++i) total += row[i] * row[i];
  return total;
}

template <bool kWeighted, bool kRound>
HWY_INLINE void ScaleRow(const float* source, float factor, const float* weight, uint32_t width, float* destination) {
  const uint32_t lanes = FloatLanes();
  const FloatVec factors = hn::Set(FloatTag(), factor);
  uint32_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    FloatVec x = hn::Mul(LoadFloats(source + i), factors);
    if constexpr (kWeighted) x = hn::Mul(x, LoadFloats(weight + i));
    StoreFloats(kRound ? RoundBf16(x) : x, destination + i);
  }
  for (; i < width; ++i) {
    float x = source[i] * factor;
    if constexpr (kWeighted) x *= weight[i];
    destination[i] = kRound ? reference::RoundBf16(x) : x;
  }
}

// What a row's numbers are multiplied by.
HWY_INLINE float NormFactor(const float* row, float eps, uint32_t width) {
  return 1.0f / std::sqrt(SumOfSquares(row, width) / static_cast<float>(width) + eps);
}

template <bool kWeighted, bool kRound>
inline void NormRowsAs(const kvstrata_rms_norm_args& a) {
  // Rows whose factors are there before the first of them is scaled: the way from sums to a factor, some hundred cycles
  // of latency, is waited for once, not for every row. As many as stay in the first-level cache meanwhile.
  constexpr uint64_t kRowsAtOnce = 8;
  constexpr uint64_t kFloatsAtOnce = 4096;
  const uint64_t most = std::clamp<uint64_t>(kFloatsAtOnce / a.width, 1, kRowsAtOnce);
  float factors[kRowsAtOnce];
  for (uint64_t first = 0; first < a.rows; first += most) {
    const uint64_t rows = std::min(most, a.rows - first);
    const float* source = a.source + first * a.source_stride;
    float* destination = a.destination + first * a.destination_stride;
    for (uint64_t r = 0; r < rows; ++r) factors[r] = NormFactor(source + r * a.source_stride, a.eps, a.width);
    for (uint64_t r = 0; r < rows; ++r) {
      ScaleRow<kWeighted, kRound>(source + r * a.source_stride, factors[r], a.weight, a.width,
                                  destination + r * a.destination_stride);
    }
  }
}

// Each as reference::NormRow; a row may be in place.
inline void NormRows(const kvstrata_rms_norm_args& a) {
  const bool round = reference::Rounds(a.profile);
  if (a.weight != nullptr) {
    round ? NormRowsAs<true, true>(a) : NormRowsAs<true, false>(a);
  } else {
    round ? NormRowsAs<false, true>(a) : NormRowsAs<false, false>(a);
  }
}

// One row, in place.
inline void NormRow(float* row, const float* weight, float eps, uint32_t width, bool round) {
  const float factor = NormFactor(row, eps, width);
  if (weight != nullptr) {
    round ? ScaleRow<true, true>(row, factor, weight, width, row)
          : ScaleRow<true, false>(row, factor, weight, width, row);
  } else {
    round ? ScaleRow<false, true>(row, factor, weight, width, row)
          : ScaleRow<false, false>(row, factor, weight, width, row);
  }
}

}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVSTRATA_CPU_VECTORS

#endif  // Highway's toggle
