// SPDX-License-Identifier: Apache-2.0
// Scalar building blocks of the reference: bf16, E4M3, E2M1, UE8M0, exp, sin and cos, and the 16-lane dot product.
//
// Everything here uses IEEE operations in a fixed order and no libm function but correctly rounded sqrt and rint, so
// that the results are the same bits on every machine. (libm's expf and sinf choose code by processor.) Compiled
// with -ffp-contract=off: a fused multiply-add would change low bits.
//
// Thread rule: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/kernel_api.h"

namespace kvstrata::kernels::reference {

// ---- bf16: the upper 16 bits of a float -----------------------------------------------------------------------

KVSTRATA_HOST_DEVICE inline float Bf16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest, ties to even. A NaN stays a NaN: its payload might lie in the dropped bits, so it is made quiet.
KVSTRATA_HOST_DEVICE inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

KVSTRATA_HOST_DEVICE inline float RoundBf16(float value) { return Bf16ToF32(F32ToBf16(value)); }

// ---- E4M3, the variant without infinities: S EEEE MMM, bias 7, 0x7F = NaN, largest 448 ---------------------------

inline constexpr float kE4M3Max = 448.0f;

// Round to nearest even, saturating.
KVSTRATA_HOST_DEVICE inline uint8_t EncodeE4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 31 << 7;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude < 0x3C800000u) {
    // Below 2^-6: multiples of 2^-9. Adding 2^23 rounds to an integer, ties to even; 8 is the smallest normal code.
    const float steps = std::bit_cast<float>(magnitude) * 512.0f + 8388608.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(steps) & 0xFu));
  }
  // Keep 3 of 23 mantissa bits; a carry runs into the exponent, as it should.
  const uint32_t rounded = (magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20;
  const uint32_t code = rounded - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7Eu ? 0x7Eu : code));
}

KVSTRATA_HOST_DEVICE inline float DecodeE4M3(uint8_t code) {
  const uint32_t sign = uint32_t{code} >> 7 << 31;
  const uint32_t exponent = (code >> 3) & 0xFu;
  const uint32_t mantissa = code & 7u;
  if ((code & 0x7Fu) == 0x7Fu) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0.001953125f;  // 2^-9
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 120u) << 23 | mantissa << 20);
}

// ---- E2M1: magnitudes 0 .5 1 1.5 2 3 4 6, sign in bit 3 ------------------------------------------------------------

inline constexpr float kE2M1Max = 6.0f;

// Nearest, ties to the even code, saturating; NaN becomes 0 (the format has none).
KVSTRATA_HOST_DEVICE inline uint8_t EncodeE2M1(float value) {
  if (std::isnan(value)) return 0;
  const float a = std::fabs(value);
  const uint8_t sign = std::signbit(value) ? 8 : 0;
  uint8_t code = 7;
  if (a <= 0.25f)
    code = 0;
  else if (a < 0.75f)
    code = 1;
  else if (a <= 1.25f)
    code = 2;
  else if (a < 1.75f)
    code = 3;
  else if (a <= 2.5f)
    code = 4;
  else if (a < 3.5f)
    code = 5;
  else if (a <= 5.0f)
    code = 6;
  return static_cast<uint8_t>(sign | code);
}

// Exponent in two bits above a mantissa of one; exponent 0 means 0 or 0.5, else (1 + mantissa / 2) * 2^(exponent - 1).
KVSTRATA_HOST_DEVICE inline float DecodeE2M1(uint8_t code) {
  const uint32_t exponent = (code >> 1) & 3u;
  const uint32_t mantissa = code & 1u;
  const uint32_t subnormal = mantissa != 0 ? 0x3F000000u : 0u;
  const uint32_t magnitude = exponent == 0 ? subnormal : (exponent + 126u) << 23 | mantissa << 22;
  return std::bit_cast<float>(magnitude | (code & 8u) << 28);
}

// ---- UE8M0: byte b means 2^(b-127), 255 is NaN -----------------------------------------------------------------

KVSTRATA_HOST_DEVICE inline float DecodeUE8M0(uint8_t byte) {
  if (byte == 255) return std::bit_cast<float>(0x7FC00000u);
  if (byte == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127, below the smallest normal float
  return std::bit_cast<float>(uint32_t{byte} << 23);
}

// The byte of the smallest power of two that is not below a positive `value`: the exponent field, one more if any
// mantissa bit is set. An infinite amax gets the largest power there is.
KVSTRATA_HOST_DEVICE inline uint8_t CeilUE8M0(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t byte = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  return static_cast<uint8_t>(byte > 254u ? 254u : byte);
}

// ---- exp for softmax ----------------------------------------------------------------------------------------

// e^x for x <= 0, within 2 ulp; below -87 it is 0 (smaller than the smallest normal float times 1.4), NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series up to r^7/5040 (the next term is below 6e-9); the
// magic constant 1.5 * 2^23 rounds to an integer and leaves n in the low bits. Branch-free, so that loops vectorise.
KVSTRATA_HOST_DEVICE inline float ExpNonPositive(float x) {
  constexpr float kLowest = -87.0f;
  constexpr float kMagic = 12582912.0f;
  constexpr float kLn2High = 0.693145751953125f;  // 15 bits of ln 2, so that n * kLn2High is exact for |n| < 512
  constexpr float kLn2Low = 1.42860682030941723e-6f;
  const float clamped = x < kLowest ? kLowest : x;
  const float shifted = clamped * 1.44269504088896341f + kMagic;
  const float n = shifted - kMagic;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // n + 127 lies in [1, 127]: the bits of kMagic above the low 9 shift out.
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);
  return x < kLowest ? 0.0f : p * power;
}

// ---- sin and cos of an fp32 angle -------------------------------------------------------------------------------

struct SinCos {
  float sin;
  float cos;
};

// Both to within an fp32 rounding, computed in double: the angle minus n * pi/2 in three parts of 33 bits, exact for
// n < 2^20 (angles to 1.6 million, beyond any position of these models), then Taylor series on [-pi/4, pi/4].
KVSTRATA_HOST_DEVICE inline SinCos SinCosOf(float angle) {
  constexpr double kPio2Part1 = 1.57079632673412561417e+00;
  constexpr double kPio2Part2 = 6.07710050630396597660e-11;
  constexpr double kPio2Part3 = 2.02226624871116645580e-21;
  constexpr double kPio2Rest = 8.47842766036889956997e-32;
  constexpr double kTwoOverPi = 0.63661977236758134308;
  const double x = angle;
  const double n = std::rint(x * kTwoOverPi);
  if (!(std::fabs(n) < 1048576.0)) return {std::sin(angle), std::cos(angle)};
  const double r = ((x - n * kPio2Part1) - n * kPio2Part2) - n * (kPio2Part3 + kPio2Rest);
  const double z = r * r;
  // x - x^3/3! + ... + x^13/13!; the next term is below 3e-14. Likewise cos up to x^14/14!.
  double s = 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = s * z * r + r;
  double c = -1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = c * z - 0.5;
  c = c * z + 1.0;
  const int64_t quadrant = static_cast<int64_t>(n) & 3;
  const double sin_value = (quadrant & 1) != 0 ? c : s;
  const double cos_value = (quadrant & 1) != 0 ? s : c;
  return {static_cast<float>((quadrant & 2) != 0 ? -sin_value : sin_value),
          static_cast<float>(quadrant == 1 || quadrant == 2 ? -cos_value : cos_value)};
}

// ---- dot product ----------------------------------------------------------------------------------------------

KVSTRATA_HOST_DEVICE inline float AsFloat(float value) { return value; }
KVSTRATA_HOST_DEVICE inline float AsFloat(uint16_t bf16) { return Bf16ToF32(bf16); }

inline constexpr uint64_t kLanes = 16;

// Adds the upper half of the lanes to the lower half until one is left.
KVSTRATA_HOST_DEVICE inline float SumLanes(float (&lanes)[kLanes]) {
  for (uint64_t half = kLanes / 2; half != 0; half /= 2) {
    for (uint64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// The order of summation that kernels.h states for `project`: a fixed number of independent lanes, so that the sum is
// the same on every machine and still runs at vector speed. X and T are float or uint16_t (bf16).
template <typename X, typename T>
KVSTRATA_HOST_DEVICE float Dot(const X* x, const T* w, uint64_t count) {
  float lanes[kLanes] = {};
  uint64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    for (uint64_t l = 0; l < kLanes; ++l) lanes[l] += AsFloat(x[k + l]) * AsFloat(w[k + l]);
  }
  for (uint64_t l = 0; k + l < count; ++l) lanes[l] += AsFloat(x[k + l]) * AsFloat(w[k + l]);
  return SumLanes(lanes);
}

}  // namespace kvstrata::kernels::reference
