// SPDX-License-Identifier: Apache-2.0
// Core attention with the processor's bf16 dot product (vdpbf16ps), for what kernels.h lets it be used on: bf16 queries
// against bf16 or packed rows in profiles Q and S. Everything else goes to the level below. Intrinsics, because Highway
// 1.0.3 has neither vdpbf16ps nor the byte permutations of VBMI.
//
// vdpbf16ps sums pairs of neighbours. Logits pair neighbouring channels of a row, lanes being 16 rows; values pair
// neighbouring rows, lanes being 16 channels. So each row is laid out twice: `across` holds the 32 rows of a tile
// as [16 rows][channel pair][row][2] and lives in cache only while the tile's logits are made; `values` holds all rows
// of a query as [slice of 64 channels][row pair][channel][2], so that a slice is read front to back. While the logits
// of a tile are computed, the rows of the next are on their way from memory: a gather from a large pool is all misses.
//
// I1: what a head gets does not depend on the other heads of the call, nor on the form of the rows: sums run over the
//     channel pairs, and the row pairs, in ascending order in every tile of registers.
// I2: a row in workspace is exactly what unpack_rows gives; what the quick ways cannot do exactly goes the slow one.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "hwy/base.h"
#include "kernels/arguments.h"
#include "kernels/cpu/attention_keys.h"
#include "kernels/cpu/level.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

// GCC 12 takes the deliberately undefined operands within its own intrinsics for a mistake (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace kvstrata::kernels::cpu {
namespace {

HWY_PUSH_ATTRIBUTES("avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512bf16")

constexpr uint64_t kLanes = 16;     // floats of a vector
constexpr uint64_t kHalves = 32;    // bf16 numbers of a vector
constexpr uint64_t kTileRows = 32;  // of `across`: two vectors of rows
constexpr uint64_t kSlice = 64;     // channels of a slice of `values`; rows are zero-padded to whole slices
constexpr uint64_t kSliceVectors = kSlice / kLanes;
// Heads whose logits are in the workspace at once; bounds it. The rows are brought anew for each group.
constexpr uint64_t kGroupHeads = 128;
// Sums in registers: 8 heads x 2 vectors of rows, 4 heads x 4 vectors of channels. At least 12 are needed where two
// dot products of latency 6 begin in a cycle; 64 and 128 heads are whole tiles of both.
constexpr uint64_t kLogitHeads = 8;
constexpr uint64_t kValueHeads = 4;
// Cache lines of a tile's rows that are asked for ahead, at most: 24 a row, enough for bf16 rows of 1400 bytes.
constexpr uint64_t kTileLines = 24 * kTileRows;

// The softmax is one of powers of 2: logits are scaled by this as well.
constexpr float kLog2E = 1.44269504f;

struct Work {
  uint64_t width;  // padded
  uint64_t most;   // keys, padded
  uint64_t output_stride;
  uint64_t* keys;
  uint16_t* rows;     // [kLanes][width]
  uint16_t* across;   // [kTileRows / kLanes][width / 2][kLanes][2]
  uint16_t* values;   // [width / kSlice][most / 2][kSlice][2]
  uint16_t* queries;  // [kGroupHeads][width]
  float* logits;      // [kGroupHeads][most]; a head's probabilities then take the first half of its place, as bf16
  float* output;      // [kGroupHeads][output_stride]
  float* factors;     // [kGroupHeads]
  float* unpacked;    // [width]
  float* cosines;
  float* sines;
  const uint8_t** lines;  // [kTileLines]: cache lines of the next tile
};

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool Inverse(const kvstrata_attention_args& a) { return (a.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0; }

uint64_t LayWorkspace(const kvstrata_attention_args& a, Work& work) {
  WorkspaceParts parts(a.workspace);
  const uint64_t group = std::min<uint64_t>(a.heads, kGroupHeads);
  const uint64_t rope = Inverse(a) ? RoundUp(a.rope_dims, kLanes) : 0;
  work.width = RoundUp(a.width, kSlice);
  work.most = RoundUp(MostKeys(a), kTileRows);
  work.output_stride = work.width + kLanes;  // the rotation works on whole vectors from any channel on
  work.keys = parts.Next<uint64_t>(work.most);
  work.rows = parts.Next<uint16_t>(kLanes, work.width);
  work.across = parts.Next<uint16_t>(kTileRows, work.width);
  work.values = parts.Next<uint16_t>(work.most, work.width);
  work.queries = parts.Next<uint16_t>(group, work.width);
  work.logits = parts.Next<float>(work.most, group);
  work.output = parts.Next<float>(group, work.output_stride);
  work.factors = parts.Next<float>(group);
  work.unpacked = parts.Next<float>(work.width);
  work.cosines = parts.Next<float>(rope);
  work.sines = parts.Next<float>(rope);
  work.lines = parts.Next<const uint8_t*>(kTileLines);
  return parts.Bytes();
}

__m512bh Pairs(__m512i v) { return (__m512bh)v; }

// Lanes below `count`, of 16 and of 32.
__mmask16 FirstFloats(uint64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xFFFFu : (1u << count) - 1); }
__mmask32 FirstHalves(uint64_t count) {
  return static_cast<__mmask32>(count >= 32 ? 0xFFFFFFFFu : (uint32_t{1} << count) - 1);
}
__mmask64 FirstBytes(uint64_t count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

// ---- rows to bf16 ------------------------------------------------------------------------------------------------

// `count` bf16 numbers and zeros up to `padded`, a multiple of 32; `out` is aligned.
void CopyHalves(const uint8_t* source, uint64_t count, uint64_t padded, uint16_t* out) {
  for (uint64_t c = 0; c < padded; c += kHalves) {
    const __mmask32 mask = FirstHalves(count > c ? count - c : 0);
    _mm512_store_si512(out + c, _mm512_maskz_loadu_epi16(mask, source + c * sizeof(uint16_t)));
  }
}

// The bf16 number of each E4M3 magnitude, as two tables of bytes for VBMI's 128-entry look-up. Not of NaN (127).
struct CodeTables {
  alignas(64) std::array<uint8_t, 128> low;
  alignas(64) std::array<uint8_t, 128> high;
};

constexpr CodeTables MakeCodeTables() {
  CodeTables tables{};
  for (uint32_t code = 0; code < 127; ++code) {
    uint32_t exponent = code >> 3;
    uint32_t mantissa = code & 7;
    if (exponent == 0 && mantissa != 0) {
      // A denormal: mantissa * 2^-9; the leading bit becomes the hidden one.
      exponent = 1;
      while ((mantissa & 8) == 0) {
        mantissa <<= 1;
        exponent -= 1;
      }
      mantissa &= 7;
    } else if (exponent == 0) {
      continue;
    }
    const uint32_t bits = (exponent + 120) << 7 | mantissa << 4;  // 120: between the biases 127 and 7
    tables.low[code] = static_cast<uint8_t>(bits);
    tables.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return tables;
}

constexpr CodeTables kCodeTables = MakeCodeTables();

// A scale may be added to the exponents if none leaves its range: those of E4M3 numbers are 118 (2^-9) to 135 (448).
constexpr uint32_t kScaleLowest = 127 + 1 - 118;
constexpr uint32_t kScaleHighest = 127 + 254 - 135;

bool ScalesSimple(const uint8_t* scales, uint64_t count) {
  for (uint64_t i = 0; i < count; i += 64) {
    const __mmask64 mask = FirstBytes(count - i);
    const __m512i bytes = _mm512_maskz_loadu_epi8(mask, scales + i);
    const __m512i above = _mm512_sub_epi8(bytes, _mm512_set1_epi8(static_cast<char>(kScaleLowest)));
    const __m512i most = _mm512_set1_epi8(static_cast<char>(kScaleHighest - kScaleLowest));
    if (_mm512_mask_cmpgt_epu8_mask(mask, above, most) != 0) return false;
  }
  return true;
}

// The exponents of 32 bf16 numbers raised by a scale's; zeros stay.
__m512i Scale(__m512i numbers, uint8_t scale) {
  const __m512i raise = _mm512_set1_epi16(static_cast<int16_t>((int32_t{scale} - 127) * 128));
  const __mmask32 not_zero = _mm512_test_epi16_mask(numbers, _mm512_set1_epi16(0x7FFF));
  return _mm512_mask_add_epi16(numbers, not_zero, numbers, raise);
}

// `count` E4M3 codes with a UE8M0 scale for each `block` (32 or 64) of them, to bf16. False, with nonsense in `out`,
// for what needs more care: NaN, or a scale at the end of its range.
bool UnpackE4M3(const uint8_t* codes, const uint8_t* scales, uint64_t count, uint64_t block, uint16_t* out) {
  if (!ScalesSimple(scales, count / block)) return false;
  const __m512i low0 = _mm512_load_si512(kCodeTables.low.data());
  const __m512i low1 = _mm512_load_si512(kCodeTables.low.data() + 64);
  const __m512i high0 = _mm512_load_si512(kCodeTables.high.data());
  const __m512i high1 = _mm512_load_si512(kCodeTables.high.data() + 64);
  // So that unpacking the halves of each 128-bit lane gives the codes in order.
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  __mmask64 nan = 0;
  for (uint64_t c = 0; c < count; c += kSlice) {
    const uint8_t* scale = scales + c / block;
    const bool whole = c + kSlice <= count;
    const __m512i loaded =
        whole ? _mm512_loadu_si512(codes + c) : _mm512_maskz_loadu_epi8(FirstBytes(count - c), codes + c);
    const __m512i code = _mm512_permutexvar_epi64(order, loaded);
    nan |= _mm512_cmpeq_epi8_mask(_mm512_or_si512(code, _mm512_set1_epi8(-128)), _mm512_set1_epi8(-1));
    const __m512i sign = _mm512_and_si512(code, _mm512_set1_epi8(-128));
    const __m512i low = _mm512_permutex2var_epi8(low0, code, low1);
    const __m512i high = _mm512_or_si512(_mm512_permutex2var_epi8(high0, code, high1), sign);
    const uint8_t second = block == kSlice || !whole ? scale[0] : scale[1];
    _mm512_store_si512(out + c, Scale(_mm512_unpacklo_epi8(low, high), scale[0]));
    _mm512_store_si512(out + c + kHalves, Scale(_mm512_unpackhi_epi8(low, high), second));
  }
  return nan == 0;
}

// V41_ENTRY: two E2M1 codes a byte, the even channel in the low half; an E4M3 scale for each 16. The products have at
// most 2 + 4 significant bits, so bf16 holds them.
void UnpackE2M1(const uint8_t* codes, const uint8_t* scales, uint64_t count, uint16_t* out) {
  const __m512 magnitudes = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                           -2.0f, -3.0f, -4.0f, -6.0f);
  for (uint64_t c = 0; c < count; c += kLanes) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + c / 2));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i even = _mm_and_si128(bytes, nibble);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
    const __m512i code = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(even, odd));
    const __m512 scale = _mm512_set1_ps(reference::DecodeE4M3(scales[c / kLanes]));
    const __m512 numbers = _mm512_mul_ps(_mm512_permutexvar_ps(code, magnitudes), scale);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + c), (__m256i)_mm512_cvtneps_pbh(numbers));
  }
}

void FillZero(uint16_t* begin, uint16_t* end) { std::fill(begin, end, uint16_t{0}); }

void UnpackSlowly(const RowSource& source, uint64_t row, const Work& work, uint16_t* out) {
  reference::UnpackRow(source.format, source.planes, row, source.width, source.shape.rope_dims, work.unpacked);
  for (uint64_t c = 0; c < source.width; ++c) out[c] = reference::F32ToBf16(work.unpacked[c]);
  FillZero(out + source.width, out + work.width);
}

// A row of the list, zero-padded to work.width.
void BringRow(const RowSource& source, uint64_t row, const Work& work, uint16_t* out) {
  if (!source.IsPacked()) {
    CopyHalves(static_cast<const uint8_t*>(source.Row(row)), source.width, work.width, out);
    return;
  }
  const kvstrata_packed_planes& planes = source.planes;
  const uint8_t* codes = planes.codes + row * planes.code_stride_bytes;
  const uint8_t* scales = planes.scales + row * planes.scale_stride_bytes;
  const uint64_t quantised = source.width - source.shape.rope_dims;
  if (source.format == KVSTRATA_KERNELS_FORMAT_V41_ENTRY) {
    UnpackE2M1(codes, scales, quantised, out);
    FillZero(out + quantised, out + work.width);
    return;
  }
  const uint64_t block = source.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? 64 : 32;
  if (!UnpackE4M3(codes, scales, quantised, block, out)) return UnpackSlowly(source, row, work, out);
  const uint64_t end = RoundUp(quantised, kSlice);  // what lies behind `quantised` is zeros already
  if (end == work.width) return;
  CopyHalves(planes.rope + row * planes.rope_stride_bytes, source.shape.rope_dims, work.width - end, out + end);
}

// ---- the two layouts ---------------------------------------------------------------------------------------------

// 16 rows x 16 words (pairs of channels) to 16 words x 16 rows: by words and double words within 128-bit lanes, then
// by lanes.
void Transpose(const uint16_t* rows, uint64_t stride, uint16_t* out) {
  __m512i r[kLanes];
  __m512i t[kLanes];
  for (uint64_t i = 0; i < kLanes; ++i) r[i] = _mm512_load_si512(rows + i * stride);
  for (uint64_t i = 0; i < kLanes; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (uint64_t i = 0; i < kLanes; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // r[4k + w] has, in lane l, word 4l + w of rows 4k .. 4k+3.
  for (uint64_t w = 0; w < 4; ++w) {
    const __m512i even01 = _mm512_shuffle_i32x4(r[w], r[4 + w], 0x88);
    const __m512i odd01 = _mm512_shuffle_i32x4(r[w], r[4 + w], 0xDD);
    const __m512i even23 = _mm512_shuffle_i32x4(r[8 + w], r[12 + w], 0x88);
    const __m512i odd23 = _mm512_shuffle_i32x4(r[8 + w], r[12 + w], 0xDD);
    _mm512_store_si512(out + w * kHalves, _mm512_shuffle_i32x4(even01, even23, 0x88));
    _mm512_store_si512(out + (4 + w) * kHalves, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
    _mm512_store_si512(out + (8 + w) * kHalves, _mm512_shuffle_i32x4(even01, even23, 0xDD));
    _mm512_store_si512(out + (12 + w) * kHalves, _mm512_shuffle_i32x4(odd01, odd23, 0xDD));
  }
}

// Two rows as pairs, into their place of each slice.
void Interleave(const uint16_t* rows, uint64_t width, uint64_t slice_stride, uint16_t* out) {
  alignas(64) static constexpr std::array<uint16_t, kHalves> kFirst = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                                       37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                                       11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i first = _mm512_load_si512(kFirst.data());
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  for (uint64_t c = 0; c < width; c += kHalves) {
    const __m512i even = _mm512_load_si512(rows + c);
    const __m512i odd = _mm512_load_si512(rows + width + c);
    uint16_t* place = out + c / kSlice * slice_stride + c % kSlice * 2;
    _mm512_store_si512(place, _mm512_permutex2var_epi16(even, first, odd));
    _mm512_store_si512(place + kHalves, _mm512_permutex2var_epi16(even, second, odd));
  }
}

// Keys begin .. begin+31 into both layouts; behind the last key: zeros.
void BringTile(const RowSources& sources, const KeyList& list, uint64_t begin, const Work& work) {
  for (uint64_t half = 0; half < kTileRows; half += kLanes) {
    for (uint64_t j = 0; j < kLanes; ++j) {
      const uint64_t i = begin + half + j;
      uint16_t* row = work.rows + j * work.width;
      if (i < list.total) {
        BringRow(sources.Of(list, i), list.keys[i], work, row);
      } else {
        FillZero(row, row + work.width);
      }
    }
    for (uint64_t c = 0; c < work.width; c += kHalves) {
      Transpose(work.rows + c, work.width, work.across + half * work.width + c * kLanes);
    }
    for (uint64_t j = 0; j < kLanes; j += 2) {
      Interleave(work.rows + j * work.width, work.width, work.most * kSlice, work.values + (begin + half + j) * kSlice);
    }
  }
}

// ---- logits ------------------------------------------------------------------------------------------------------

// kHeads queries against the 32 rows of a tile, scaled. Never inlined: GCC keeps constants of what is around it in
// registers, and then has none left for the rows, which cost a fifth of the speed.
template <uint64_t kHeads>
__attribute__((noinline)) void LogitTile(const uint16_t* queries, const uint16_t* across, uint64_t width, float scale,
                                         LineQueue lines, float* logits, uint64_t stride) {
  __m512 sums[kHeads][2];
#pragma GCC unroll 16
  for (auto& head : sums) head[0] = head[1] = _mm512_setzero_ps();
  // A line each `spacing` channels, a power of two: a pattern that branch prediction learns.
  const uint64_t spacing = std::bit_floor(width / std::clamp<uint64_t>(lines.Count(), 1, width / 2));
  for (uint64_t c = 0; c < width; c += 2) {
    if ((c & (spacing - 1)) == 0 && lines.next < lines.end) _mm_prefetch(*lines.next++, _MM_HINT_T0);
    const __m512bh rows0 = Pairs(_mm512_load_si512(across + c * kLanes));
    const __m512bh rows1 = Pairs(_mm512_load_si512(across + (width + c) * kLanes));
#pragma GCC unroll 16
    for (uint64_t h = 0; h < kHeads; ++h) {
      int32_t pair;
      std::memcpy(&pair, queries + h * width + c, sizeof pair);
      const __m512bh query = Pairs(_mm512_set1_epi32(pair));
      sums[h][0] = _mm512_dpbf16_ps(sums[h][0], query, rows0);
      sums[h][1] = _mm512_dpbf16_ps(sums[h][1], query, rows1);
    }
  }
  const __m512 factor = _mm512_set1_ps(scale);
#pragma GCC unroll 16
  for (uint64_t h = 0; h < kHeads; ++h) {
    _mm512_store_ps(logits + h * stride, _mm512_mul_ps(sums[h][0], factor));
    _mm512_store_ps(logits + h * stride + kLanes, _mm512_mul_ps(sums[h][1], factor));
  }
}

template <uint64_t kHeads>
void LogitHeads(const Work& work, uint64_t head, uint64_t begin, float scale, LineQueue lines) {
  LogitTile<kHeads>(work.queries + head * work.width, work.across, work.width, scale, lines,
                    work.logits + head * work.most + begin, work.most);
}

// The logits of a tile. Each tile of heads asks for its share of the next tile's rows, a line at a time: in one go they
// would fill the queue of misses and hold up the loads behind them.
void LogitRows(const RowSources& sources, const KeyList& list, const Work& work, uint64_t heads, uint64_t begin,
               float scale) {
  PrefetchFirstLines(sources, list, begin + kTileRows, begin + 2 * kTileRows);
  LineQueue lines = ListLines(sources, list, begin + kTileRows, begin + 2 * kTileRows, kTileLines, work.lines);
  const uint64_t steps = heads / kLogitHeads;
  uint64_t h = 0;
  for (uint64_t step = 0; step < steps; ++step, h += kLogitHeads) {
    const uint64_t share = lines.Count() / (steps - step);
    LogitHeads<kLogitHeads>(work, h, begin, scale, {lines.next, lines.next + share});
    lines.next += share;
  }
  // The last shares end with the lines, so these ask for some only where there is no whole tile of heads.
  const uint64_t left = heads - h;
  if ((left & 4) != 0) LogitHeads<4>(work, h, begin, scale, lines);
  h += left & 4;
  if ((left & 2) != 0) LogitHeads<2>(work, h, begin, scale, lines);
  h += left & 2;
  if ((left & 1) != 0) LogitHeads<1>(work, h, begin, scale, lines);
}

// ---- softmax -----------------------------------------------------------------------------------------------------

// 2^x for x <= 0, within 2 ulp; below -126 it is 0, NaN stays NaN. 2^x = 2^n 2^r for the integer n next to x; 2^r =
// 1 + r q(r), q the polynomial through the Chebyshev nodes of [-1/2, 1/2], 0.16 * 2^-24 off.
__m512 Exp2NonPositive(__m512 x) {
  const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.00015453163f), _mm512_set1_ps(0.0013390863f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.009618083f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.05550357f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.2402265f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69314718f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(kept, p, n);
}

// Logits times log2(e) to bf16 probabilities in their place; returns 1 / (sum of the unrounded ones and the sink's).
float Softmax(float* logits, uint64_t count, const float* sink) {
  const uint64_t padded = RoundUp(count, kTileRows);
  std::fill(logits + count, logits + padded, -INFINITY);
  const __m512 last = _mm512_set1_ps(sink != nullptr ? *sink * kLog2E : -INFINITY);
  __m512 most = last;
  // The second operand is the result where one is NaN.
  for (uint64_t i = 0; i < padded; i += kLanes) most = _mm512_max_ps(_mm512_load_ps(logits + i), most);
  const __m512 shift = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  __m512 total0 = _mm512_setzero_ps();
  __m512 total1 = _mm512_setzero_ps();
  uint16_t* probabilities = reinterpret_cast<uint16_t*>(logits);
  for (uint64_t i = 0; i < padded; i += kTileRows) {
    const __m512 p0 = Exp2NonPositive(_mm512_sub_ps(_mm512_load_ps(logits + i), shift));
    const __m512 p1 = Exp2NonPositive(_mm512_sub_ps(_mm512_load_ps(logits + i + kLanes), shift));
    total0 = _mm512_add_ps(total0, p0);
    total1 = _mm512_add_ps(total1, p1);
    _mm512_store_si512(probabilities + i, (__m512i)_mm512_cvtne2ps_pbh(p1, p0));
  }
  const float sum = _mm512_reduce_add_ps(_mm512_add_ps(total0, total1));
  return 1.0f / (sink != nullptr ? sum + _mm512_cvtss_f32(Exp2NonPositive(_mm512_sub_ps(last, shift))) : sum);
}

// ---- values ------------------------------------------------------------------------------------------------------

// The sums over `pairs` row pairs of kHeads heads, for one slice of channels, divided by the heads' totals.
template <uint64_t kHeads>
void ValueTile(const float* logits, uint64_t stride, const uint16_t* values, uint64_t pairs, const float* factors,
               float* output, uint64_t output_stride) {
  __m512 sums[kHeads][kSliceVectors];
  for (auto& head : sums) {
    for (__m512& sum : head) sum = _mm512_setzero_ps();
  }
  for (uint64_t r = 0; r < pairs; ++r) {
    __m512bh rows[kSliceVectors];
    for (uint64_t v = 0; v < kSliceVectors; ++v) {
      rows[v] = Pairs(_mm512_load_si512(values + (r * kSliceVectors + v) * kHalves));
    }
    for (uint64_t h = 0; h < kHeads; ++h) {
      int32_t pair;
      std::memcpy(&pair, reinterpret_cast<const uint8_t*>(logits + h * stride) + r * sizeof pair, sizeof pair);
      const __m512bh p = Pairs(_mm512_set1_epi32(pair));
      for (uint64_t v = 0; v < kSliceVectors; ++v) sums[h][v] = _mm512_dpbf16_ps(sums[h][v], p, rows[v]);
    }
  }
  for (uint64_t h = 0; h < kHeads; ++h) {
    const __m512 factor = _mm512_set1_ps(factors[h]);
    for (uint64_t v = 0; v < kSliceVectors; ++v) {
      _mm512_store_ps(output + h * output_stride + v * kLanes, _mm512_mul_ps(sums[h][v], factor));
    }
  }
}

template <uint64_t kHeads>
void ValueHeads(const Work& work, uint64_t head, uint64_t slice, uint64_t pairs) {
  ValueTile<kHeads>(work.logits + head * work.most, work.most, work.values + slice * work.most * kSlice, pairs,
                    work.factors + head, work.output + head * work.output_stride + slice * kSlice, work.output_stride);
}

// Slice by slice: a slice of 1152 rows takes 144 KiB and stays in cache for all heads.
void SumRows(const Work& work, uint64_t heads, uint64_t keys) {
  const uint64_t pairs = RoundUp(keys, kTileRows) / 2;
  for (uint64_t slice = 0; slice < work.width / kSlice; ++slice) {
    uint64_t h = 0;
    for (; h + kValueHeads <= heads; h += kValueHeads) ValueHeads<kValueHeads>(work, h, slice, pairs);
    for (; h < heads; ++h) ValueHeads<1>(work, h, slice, pairs);
  }
}

// ---- output ------------------------------------------------------------------------------------------------------

__m512 RoundBf16(__m512 v) {
  const __m256i halves = (__m256i)_mm512_cvtneps_pbh(v);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Rotates the rounded row's last channels. The swap of pairs and the tables make it (a cos + b sin, b cos - a sin).
void Rotate(const Work& work, uint64_t rope_dims, float* row) {
  for (uint64_t c = 0; c < rope_dims; c += kLanes) {
    const __m512 v = _mm512_loadu_ps(row + c);
    const __m512 straight = _mm512_mul_ps(v, _mm512_load_ps(work.cosines + c));
    const __m512 crossed = _mm512_mul_ps(_mm512_permute_ps(v, 0xB1), _mm512_load_ps(work.sines + c));
    _mm512_storeu_ps(row + c, RoundBf16(_mm512_add_ps(straight, crossed)));
  }
}

void Finish(const kvstrata_attention_args& a, const Work& work, uint64_t n, uint64_t group_head, uint64_t head) {
  float* row = work.output + group_head * work.output_stride;
  for (uint64_t c = 0; c < a.width; c += kLanes) _mm512_store_ps(row + c, RoundBf16(_mm512_load_ps(row + c)));
  if (Inverse(a)) Rotate(work, a.rope_dims, row + (a.width - a.rope_dims));
  const uint64_t place = n * a.output_token_stride + head * a.output_head_stride;
  for (uint64_t c = 0; c < a.width; c += kLanes) {
    const __m512 v = _mm512_load_ps(row + c);
    const __mmask16 mask = FirstFloats(a.width - c);
    if (a.output_type == KVSTRATA_KERNELS_F32) {
      _mm512_mask_storeu_ps(static_cast<float*>(a.output) + place + c, mask, v);
    } else {
      const __m256i halves = (__m256i)_mm512_cvtneps_pbh(v);
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(a.output) + place + c, mask, halves);
    }
  }
}

void AttendToken(const kvstrata_attention_args& a, const RowSources& sources, const Work& work, uint64_t n) {
  const KeyList list = ListKeys(a, n, work.keys);
  if (Inverse(a)) InverseRotation(a, n, work.cosines, work.sines);
  for (uint64_t first = 0; first < a.heads; first += kGroupHeads) {
    const uint64_t heads = std::min<uint64_t>(kGroupHeads, a.heads - first);
    PrefetchRows(sources, list, 0, kTileRows);
    for (uint64_t h = 0; h < heads; ++h) {
      const uint64_t place = n * a.query_token_stride + (first + h) * a.query_head_stride;
      CopyHalves(static_cast<const uint8_t*>(a.queries) + place * sizeof(uint16_t), a.width, work.width,
                 work.queries + h * work.width);
    }
    for (uint64_t begin = 0; begin < list.total; begin += kTileRows) {
      BringTile(sources, list, begin, work);
      LogitRows(sources, list, work, heads, begin, a.scale * kLog2E);
    }
    for (uint64_t h = 0; h < heads; ++h) {
      work.factors[h] =
          Softmax(work.logits + h * work.most, list.total, a.sinks != nullptr ? a.sinks + first + h : nullptr);
    }
    SumRows(work, heads, list.total);
    for (uint64_t h = 0; h < heads; ++h) Finish(a, work, n, h, first + h);
  }
}

// ---- the functions -----------------------------------------------------------------------------------------------

bool IsBf16(int32_t type, int32_t format) {
  return format != KVSTRATA_KERNELS_FORMAT_NONE || type == KVSTRATA_KERNELS_BF16;
}

// The contract lets the dot product be used.
bool DotAllowed(const kvstrata_attention_args& a) {
  return reference::Rounds(a.profile) && a.query_type == KVSTRATA_KERNELS_BF16 &&
         IsBf16(a.window_type, a.window_format) && (a.ratio == 0 || IsBf16(a.entry_type, a.entry_format));
}

const kvstrata_kernels& Below() { return *Table(KVSTRATA_KERNELS_LEVEL_CPU_AVX512); }

int32_t AttentionWorkspaceBytes(const kvstrata_attention_args* args, uint64_t* out_bytes) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  if (!DotAllowed(a)) return Below().attention_workspace_bytes(args, out_bytes);
  Work work;
  const uint64_t bytes = a.tokens != 0 ? LayWorkspace(a, work) : 0;
  if (bytes == 0 && a.tokens != 0) return kInvalidArgument;
  *out_bytes = bytes;
  return kOk;
}

int32_t Attention(const kvstrata_attention_args* args, void* stream) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!DotAllowed(a)) return Below().attention(args, stream);
  if (a.tokens == 0) return kOk;
  Work work;
  const uint64_t bytes = LayWorkspace(a, work);
  if (bytes == 0 || !WorkspaceValid(a.workspace, a.workspace_bytes, bytes) || !PicksValid(a)) return kInvalidArgument;
  const RowSources sources = SourcesOf(a);
  for (uint64_t n = 0; n < a.tokens; ++n) AttendToken(a, sources, work, n);
  return kOk;
}

HWY_POP_ATTRIBUTES

}  // namespace

void FillAvx512Bf16Attention(kvstrata_kernels& table) {
  table.attention = Attention;
  table.attention_workspace_bytes = AttentionWorkspaceBytes;
}

}  // namespace kvstrata::kernels::cpu
#endif
