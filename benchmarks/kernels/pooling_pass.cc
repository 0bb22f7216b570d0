// SPDX-License-Identifier: Apache-2.0
// PoolPass256 and PoolPass512 of roofline.h: the arithmetic that gated pooling cannot do without, in the order in which
// its operands lie in memory. Intrinsics, as the compiler's own vectors would be a measure of the compiler; with the
// exp of kernels/cpu/math-inl.h, of which no shorter one with its accuracy was found here: vscalefps for the two clamps
// and the shift, a table of 32 with one step less in the polynomial, and no clamps at all gain 1 to 6 %.
//
// Four vectors side by side hide the latencies. Nothing keeps the sums from wandering off: gates of 0 to 4 do not.
#include "benchmarks/kernels/roofline.h"

#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12 takes the deliberately undefined operands within its own intrinsics for a mistake (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define KVSTRATA_TARGET_256 __attribute__((target("avx2,fma"), always_inline)) inline
#define KVSTRATA_TARGET_512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"), always_inline)) inline

namespace kvstrata::benchmarks {
namespace {

constexpr size_t kStep = 64;          // elements of a turn; of 16 lanes four vectors, of 8 twice four
constexpr size_t kAheadBytes = 4096;  // as in ReadPass
constexpr float kLog2E = 1.44269504f;

// 2^(k/K), K = 8 and 16, without k where it ends up when it is shifted up with the exponent.
alignas(32) constexpr uint32_t kPowers8[] = {0x3F800000, 0x3F7B95C2, 0x3F7837F0, 0x3F75FED7,
                                             0x3F7504F3, 0x3F75672A, 0x3F7744FD, 0x3F7AC0C7};
alignas(64) constexpr uint32_t kPowers16[] = {0x3F800000, 0x3F7DAAC3, 0x3F7B95C2, 0x3F79C3D3, 0x3F7837F0, 0x3F76F532,
                                              0x3F75FED7, 0x3F75583F, 0x3F7504F3, 0x3F7508A4, 0x3F75672A, 0x3F76248C,
                                              0x3F7744FD, 0x3F78CCDF, 0x3F7AC0C7, 0x3F7D257D};
constexpr int kShift8 = 20;
constexpr int kShift16 = 19;

template <typename T>
void PrefetchAhead(const T* from) {
  for (size_t byte = 0; byte < kStep * sizeof(T); byte += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(from) + kAheadBytes + byte);
  }
}

// Vector v of those from `from` on. Of bf16, 32 are loaded and 16 of them looked up into the upper halves of words: one
// instruction, where widening and shifting are two.
KVSTRATA_TARGET_512 __m512 Load512(const float* from, size_t v) { return _mm512_loadu_ps(from + 16 * v); }
KVSTRATA_TARGET_512 __m512 Load512(const uint16_t* from, size_t v) {
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i first = _mm512_set1_epi32(static_cast<int>(v % 2 * 16));
  const __m512i lanes = _mm512_slli_epi32(_mm512_add_epi32(numbers, first), 16);
  const __m512i halves = _mm512_loadu_si512(from + v / 2 * 32);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, lanes, halves));
}

KVSTRATA_TARGET_512 __m512 Weight512(__m512 gate) {
  const __m512 magic = _mm512_set1_ps(1.5f * (1 << kShift16));
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  const __m512 shifted = _mm512_fmadd_ps(gate, log2e, magic);
  const __m512 f = _mm512_fmsub_ps(gate, log2e, _mm512_sub_ps(shifted, magic));
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.05550213f), f, _mm512_set1_ps(0.2402343f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69314718f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  constexpr int kMagicBits = 0x3FC00000 + (kShift16 << 23);
  __m512i bits = _mm512_max_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(kMagicBits - 127 * 16));
  bits = _mm512_min_epi32(bits, _mm512_set1_epi32(kMagicBits + 128 * 16));
  const __m512i power = _mm512_permutexvar_epi32(bits, _mm512_load_si512(kPowers16));
  return _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_slli_epi32(bits, kShift16))));
}

template <typename T>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"), noinline)) void Pool512(const T* values,
                                                                                         const T* gates, size_t count) {
  alignas(64) float bias[kStep] = {};
  asm volatile("" : : "r"(bias) : "memory");
  __m512 weights[4] = {};
  __m512 sums[4] = {};
  for (size_t i = 0; i + kStep <= count; i += kStep) {
    PrefetchAhead(values + i);
    PrefetchAhead(gates + i);
    for (size_t v = 0; v < 4; ++v) {
      const __m512 weight = Weight512(_mm512_add_ps(Load512(gates + i, v), _mm512_load_ps(bias + 16 * v)));
      weights[v] = _mm512_add_ps(weights[v], weight);
      sums[v] = _mm512_fmadd_ps(weight, Load512(values + i, v), sums[v]);
    }
  }
  for (size_t v = 0; v < 4; ++v) asm volatile("" : : "v"(weights[v]), "v"(sums[v]));
}

KVSTRATA_TARGET_256 __m256 Load256(const float* from) { return _mm256_loadu_ps(from); }
KVSTRATA_TARGET_256 __m256 Load256(const uint16_t* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

KVSTRATA_TARGET_256 __m256 Weight256(__m256 gate) {
  const __m256 magic = _mm256_set1_ps(1.5f * (1 << kShift8));
  const __m256 log2e = _mm256_set1_ps(kLog2E);
  const __m256 shifted = _mm256_fmadd_ps(gate, log2e, magic);
  const __m256 f = _mm256_fmsub_ps(gate, log2e, _mm256_sub_ps(shifted, magic));
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(0.0554962f), f, _mm256_set1_ps(0.2402577f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.69314724f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  constexpr int kMagicBits = 0x3FC00000 + (kShift8 << 23);
  __m256i bits = _mm256_max_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(kMagicBits - 127 * 8));
  bits = _mm256_min_epi32(bits, _mm256_set1_epi32(kMagicBits + 128 * 8));
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(kPowers8));
  const __m256i power = _mm256_permutevar8x32_epi32(table, bits);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_add_epi32(power, _mm256_slli_epi32(bits, kShift8))));
}

template <typename T>
__attribute__((target("avx2,fma"), noinline)) void Pool256(const T* values, const T* gates, size_t count) {
  alignas(64) float bias[kStep] = {};
  asm volatile("" : : "r"(bias) : "memory");
  __m256 weights[4] = {};
  __m256 sums[4] = {};
  for (size_t i = 0; i + kStep <= count; i += kStep) {
    PrefetchAhead(values + i);
    PrefetchAhead(gates + i);
    for (size_t v = 0; v < 8; ++v) {
      const __m256 weight = Weight256(_mm256_add_ps(Load256(gates + i + 8 * v), _mm256_load_ps(bias + 8 * v)));
      weights[v % 4] = _mm256_add_ps(weights[v % 4], weight);
      sums[v % 4] = _mm256_fmadd_ps(weight, Load256(values + i + 8 * v), sums[v % 4]);
    }
  }
  for (size_t v = 0; v < 4; ++v) asm volatile("" : : "x"(weights[v]), "x"(sums[v]));
}

}  // namespace

void PoolPass512(const float* values, const float* gates, size_t count) { Pool512(values, gates, count); }
void PoolPass512(const uint16_t* values, const uint16_t* gates, size_t count) { Pool512(values, gates, count); }
void PoolPass256(const float* values, const float* gates, size_t count) { Pool256(values, gates, count); }
void PoolPass256(const uint16_t* values, const uint16_t* gates, size_t count) { Pool256(values, gates, count); }

}  // namespace kvstrata::benchmarks

#else

namespace kvstrata::benchmarks {
void PoolPass512(const float*, const float*, size_t) {}
void PoolPass512(const uint16_t*, const uint16_t*, size_t) {}
void PoolPass256(const float*, const float*, size_t) {}
void PoolPass256(const uint16_t*, const uint16_t*, size_t) {}
}  // namespace kvstrata::benchmarks

#endif
