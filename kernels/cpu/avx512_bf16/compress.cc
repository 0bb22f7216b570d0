// SPDX-License-Identifier: Apache-2.0
// A pooled row to its packed one in two passes, with the conversions to bf16 that this level has: rounding takes two
// instructions for 32 channels instead of eighteen. By hand, because Highway 1.0.3 does not have them on this level.
//
// I1: the bytes of the single functions. The conversion takes denormals for zero, where those round them: a row with
//     a zero among what came out is looked at again, and one with a denormal, NaN or infinity takes the long way.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/cpu/emitted_row.h"
#include "kernels/cpu/level.h"

// GCC 12 takes the deliberately undefined operands within its own intrinsics for a mistake (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace kvstrata::kernels::cpu {
namespace {

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")

constexpr uint32_t kLanes = 16;
constexpr uint32_t kHalves = 2 * kLanes;

// The least and the greatest magnitude of all that was rounded.
struct Extremes {
  __m512i least;
  __m512i greatest;
};

HWY_INLINE __m512i Round(__m512 lower, __m512 upper, Extremes& seen) {
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper, lower));
  const __m512i magnitudes = _mm512_and_si512(halves, _mm512_set1_epi16(0x7FFF));
  seen.least = _mm512_min_epu16(seen.least, magnitudes);
  seen.greatest = _mm512_max_epu16(seen.greatest, magnitudes);
  return halves;
}

// 16 of 32 bf16 numbers, the lower or the upper ones.
template <uint32_t kPart>
HWY_INLINE __m512 Widened(__m512i halves) {
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i lanes = _mm512_slli_epi32(_mm512_add_epi32(numbers, _mm512_set1_epi32(kPart * kLanes)), 16);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, lanes, halves));
}

// Rounds the row to `halves` and sums their squares, in the order of positions-inl.h.
HWY_INLINE float RoundAndSquare(const PooledRow& row, uint16_t* halves, Extremes& seen) {
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  for (uint32_t i = 0; i < row.width; i += 2 * kHalves) {
    for (uint32_t v = 0; v < 2; ++v) {
      const float* values = row.values + i + v * kHalves;
      const __m512i rounded = Round(_mm512_loadu_ps(values), _mm512_loadu_ps(values + kLanes), seen);
      _mm512_store_si512(halves + i + v * kHalves, rounded);
      const __m512 lower = Widened<0>(rounded);
      const __m512 upper = Widened<1>(rounded);
      sums[2 * v] = _mm512_fmadd_ps(lower, lower, sums[2 * v]);
      sums[2 * v + 1] = _mm512_fmadd_ps(upper, upper, sums[2 * v + 1]);
    }
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

HWY_INLINE __m512 Scaled(__m512 values, __m512 factor, const float* weight) {
  return _mm512_mul_ps(_mm512_mul_ps(values, factor), _mm512_loadu_ps(weight));
}

HWY_INLINE void Norm(const PooledRow& row, float factor, uint16_t* halves, Extremes& seen) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (uint32_t i = 0; i < row.width; i += kHalves) {
    const __m512i rounded = _mm512_load_si512(halves + i);
    const float* weight = row.norm_weight + i;
    const __m512 lower = Scaled(Widened<0>(rounded), factors, weight);
    const __m512 upper = Scaled(Widened<1>(rounded), factors, weight + kLanes);
    _mm512_store_si512(halves + i, Round(lower, upper, seen));
  }
}

HWY_INLINE __m512 Turned(__m512 pairs, const float* cos, const float* sin) {
  const __m512 swapped = _mm512_permute_ps(pairs, 0xB1);
  return _mm512_add_ps(_mm512_mul_ps(pairs, _mm512_loadu_ps(cos)), _mm512_mul_ps(swapped, _mm512_loadu_ps(sin)));
}

HWY_INLINE void Rotate(const PooledRow& row, uint16_t* halves, Extremes& seen) {
  uint16_t* rotated = halves + (row.width - row.rope_dims);
  for (uint32_t i = 0; i < row.rope_dims; i += kHalves) {
    const __m512i normed = _mm512_loadu_si512(rotated + i);
    const __m512 lower = Turned(Widened<0>(normed), row.cos + i, row.sin + i);
    const __m512 upper = Turned(Widened<1>(normed), row.cos + i + kLanes, row.sin + i + kLanes);
    _mm512_storeu_si512(rotated + i, Round(lower, upper, seen));
  }
}

// Everything is a number and nothing came out as zero: then nothing denormal went in.
HWY_INLINE bool IsPlain(const Extremes& seen) {
  const __mmask32 zero = _mm512_cmpeq_epi16_mask(seen.least, _mm512_setzero_si512());
  const __mmask32 beyond = _mm512_cmpge_epu16_mask(seen.greatest, _mm512_set1_epi16(0x7F80));
  return (zero | beyond) == 0;
}

bool EmitRow(const PooledRow& row, bool is_v4_row, const PlaneRow& to) {
  alignas(64) uint16_t halves[PooledRow::kMostChannels];
  Extremes seen = {_mm512_set1_epi16(-1), _mm512_setzero_si512()};
  const float mean = RoundAndSquare(row, halves, seen) / static_cast<float>(row.width);
  Norm(row, 1.0f / std::sqrt(mean + row.eps), halves, seen);
  Rotate(row, halves, seen);
  const uint32_t kept = is_v4_row ? row.rope_dims : 0;
  return HWY_LIKELY(IsPlain(seen)) && PackQuantisedRow(is_v4_row, halves, row.width - kept, kept, to);
}

HWY_POP_ATTRIBUTES

int32_t Compress(const kvstrata_compress_args* args, void*) { return CompressAvx512(args, EmitRow); }

}  // namespace

void FillAvx512Bf16Compress(kvstrata_kernels& table) { table.compress = Compress; }

}  // namespace kvstrata::kernels::cpu

#endif  // x86-64
