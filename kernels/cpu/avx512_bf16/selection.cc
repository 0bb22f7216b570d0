// SPDX-License-Identifier: Apache-2.0
// Index scores of bf16 queries by vdpbf16ps: twice the multiply-adds of fp32 a cycle. Highway 1.0.3 has neither this
// instruction nor VBMI's byte tables on AMD's processors, hence intrinsics.
//
// Keys are bf16 rows where they lie, or packed rows that are widened to bf16 a few keys ahead of their use. Widening is
// exact: a code is looked up as a bf16 number and the block's power of two is added to its exponent. A row whose scales
// leave the normal numbers (no packing of ordinary floats gives one) is scored in fp32 instead, by the AVX-512 level.
// I1: A dot product adds pairs of channels in ascending order. A score adds head h in lane h mod 16, lanes in ascending
//     order of h, then the lanes in halves: the same for every key, whatever tile it is in.
// I2: Whether a row is scored in fp32 depends on that row's bytes alone.
//
// Thread rule: pure functions.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "hwy/base.h"
#include "kernels/arguments.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/score_scan.h"
#include "kernels/reference/scalar.h"

// GCC 12 takes the deliberately undefined operands within its own intrinsics for a mistake (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace kvstrata::kernels::cpu {
namespace {

using Args = kvstrata_index_scores_args;

// Of 32 registers 4 hold heads, one a key, and 24 or 20 sums of a tile's 6 or 5 keys: the widening of packed keys in
// between needs the difference.
constexpr uint64_t kGroup = 4;
constexpr uint64_t kLanes = 16;
static_assert(kScanKeys % 5 == 0 && kScanKeys % 6 == 0);

constexpr uint32_t kCodes = 128;  // E4M3 codes without their sign

// bf16 numbers of the E4M3 codes, lower and upper bytes apart, as VBMI looks up bytes. In `odd` the exponent is one
// larger: adding e to an exponent field that begins at bit 7 is adding e mod 2 there and e / 2 to the upper byte.
struct ByteTables {
  std::array<uint8_t, kCodes> low[2];
  std::array<uint8_t, kCodes> high[2];
};

constexpr uint16_t E4M3AsBf16(uint32_t code, uint32_t odd) {
  if (code == 0) return 0;
  if (code == 0x7F) return 0x7FC0;
  uint32_t exponent = code >> 3;
  uint32_t mantissa = code & 7u;
  if (exponent == 0) {
    exponent = 1;
    for (; mantissa < 8; mantissa *= 2) --exponent;
    mantissa -= 8;  // the leading one; `exponent` may have wrapped below 0 and comes back by the bias
  }
  return static_cast<uint16_t>((exponent + 120u + odd) << 7 | mantissa << 4);
}

constexpr ByteTables MakeByteTables() {
  ByteTables tables{};
  for (uint32_t odd = 0; odd < 2; ++odd) {
    for (uint32_t code = 0; code < kCodes; ++code) {
      const uint16_t bits = E4M3AsBf16(code, odd);
      tables.low[odd][code] = static_cast<uint8_t>(bits & 0xFFu);
      tables.high[odd][code] = static_cast<uint8_t>(bits >> 8);
    }
  }
  return tables;
}

alignas(64) constexpr ByteTables kE4M3 = MakeByteTables();

// bf16 numbers of the 16 E2M1 codes times the power of two of each scale byte, twice: a lookup has 5 bits, of which the
// fifth is a neighbour's. 16 KiB, of which few lines are in use at a time: keys of one layer have few scales. Scales
// below 1 and above 252 take a code out of the normal numbers, but that byte 1 makes +-1/2 a denormal, which counts as
// 0 (kernels.h) and is 0 here; all-zero blocks have that byte.
constexpr uint32_t kLeastFp4Scale = 1;
constexpr uint32_t kMostFp4Scale = 252;

struct NibbleTables {
  std::array<uint16_t, 32> scaled[kMostFp4Scale + 1];
};

constexpr NibbleTables MakeNibbleTables() {
  constexpr uint16_t kMagnitudes[8] = {0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};
  NibbleTables tables{};
  for (uint32_t scale = kLeastFp4Scale; scale <= kMostFp4Scale; ++scale) {
    for (uint32_t code = 0; code < 32; ++code) {
      const uint32_t magnitude = kMagnitudes[code & 7u];
      const uint32_t scaled = magnitude == 0 ? 0 : magnitude + (scale << 7) - (127u << 7);
      tables.scaled[scale][code] = static_cast<uint16_t>(scaled | (code & 8u) << 12);
    }
  }
  return tables;
}

alignas(64) constexpr NibbleTables kE2M1 = MakeNibbleTables();

constexpr uint32_t kIndexWidth = 128;  // of packed keys
constexpr uint32_t kFp4Block = 32;

uint64_t HeadVectors(const Args& a) { return (a.heads + kLanes - 1) / kLanes; }
uint64_t Pairs(const Args& a) { return (uint64_t{a.width} + 1) / 2; }

// A packed query: the weights of all heads times the scale as fp32, then for each group of kGroup vectors of heads (the
// last may be smaller) [pairs of channels][vectors of the group][lanes]. What does not exist is zero.
uint64_t QueryBytes(const Args& a) { return HeadVectors(a) * kLanes * (1 + Pairs(a)) * sizeof(uint32_t); }

uint32_t LoadPair(const uint16_t* row, uint64_t pair, uint64_t width) {
  const uint32_t low = row[2 * pair];
  return 2 * pair + 1 < width ? low | uint32_t{row[2 * pair + 1]} << 16 : low;
}

void PackQuery(const Args& a, uint64_t token, void* packed) {
  const uint64_t vectors = HeadVectors(a);
  float* weights = static_cast<float*>(packed);
  for (uint64_t h = 0; h < vectors * kLanes; ++h) {
    weights[h] = h < a.heads ? a.weights[token * a.weight_stride + h] * a.scale : 0.0f;
  }
  const uint16_t* query = static_cast<const uint16_t*>(a.queries) + token * a.query_stride;
  uint32_t* group = static_cast<uint32_t*>(packed) + vectors * kLanes;
  for (uint64_t v = 0; v < vectors; v += kGroup) {
    const uint64_t lanes = std::min(kGroup, vectors - v) * kLanes;
    for (uint64_t l = 0; l < lanes; ++l) {
      const uint64_t h = v * kLanes + l;
      for (uint64_t p = 0; p < Pairs(a); ++p) {
        group[p * lanes + l] = h < a.heads ? LoadPair(query + h * a.width, p, a.width) : 0;
      }
    }
    group += lanes * Pairs(a);
  }
}

// An odd last channel has no pair in the caller's row.
bool ReadInPlace(const Args& a) { return a.key_format == KVSTRATA_KERNELS_FORMAT_NONE && a.width % 2 == 0; }

uint64_t KeyBytes(const Args& a) { return ReadInPlace(a) ? 0 : Pairs(a) * sizeof(uint32_t); }

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16,avx512vbmi,bmi,bmi2,fma")

// False, and an unfinished row, if the scale is no power of two, or takes a code out of the normal numbers. Codes of
// E4M3 have the exponents 118 .. 135 as floats.
inline __attribute__((always_inline)) bool WidenFp8(const uint8_t* codes, const uint8_t* scale, uint16_t* row) {
  uint32_t bits;
  std::memcpy(&bits, scale, sizeof bits);
  const int32_t shift = static_cast<int32_t>(bits >> 23) - 127;
  if ((bits & 0x807FFFFFu) != 0 || shift < -117 || shift > 119) return false;
  const int32_t odd = shift & 1;
  const __m512i step = _mm512_set1_epi8(static_cast<char>(shift >> 1));
  const __m512i low0 = _mm512_load_si512(kE4M3.low[odd].data());
  const __m512i low1 = _mm512_load_si512(kE4M3.low[odd].data() + 64);
  // All but the code of zero, and all but that of NaN.
  const __m512i zero_high = _mm512_load_si512(kE4M3.high[odd].data());
  const __m512i nan_high = _mm512_load_si512(kE4M3.high[odd].data() + 64);
  const __m512i high0 = _mm512_mask_add_epi8(zero_high, ~__mmask64{1}, zero_high, step);
  const __m512i high1 = _mm512_mask_add_epi8(nan_high, ~(__mmask64{1} << 63), nan_high, step);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  // Unpacking works within 128 bits: eights of codes are brought to where it leaves them in order.
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  for (uint32_t c = 0; c < kIndexWidth; c += 64) {
    const __m512i code = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes + c));
    const __m512i low = _mm512_permutex2var_epi8(low0, code, low1);
    const __m512i magnitude = _mm512_permutex2var_epi8(high0, code, high1);
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, code, sign, 0xF8);  // magnitude | (code & sign)
    _mm512_storeu_si512(row + c, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(row + c + 32, _mm512_unpackhi_epi8(low, high));
  }
  return true;
}

// False, and an unfinished row, if there is no table for a scale.
inline __attribute__((always_inline)) bool WidenFp4(const uint8_t* codes, const uint8_t* scales, uint16_t* row) {
  for (uint32_t block = 0; block < kIndexWidth / kFp4Block; ++block) {
    const uint32_t scale = scales[block];
    if (scale < kLeastFp4Scale || scale > kMostFp4Scale) return false;
    const void* from = codes + block * (kFp4Block / 2);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
    // The lookup takes the lowest 5 bits of each 16: the low nibble, and with the byte 12 bits higher the high one.
    const __m512i nibbles = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
    const __m512i table = _mm512_load_si512(kE2M1.scaled[scale].data());
    _mm512_storeu_si512(row + block * kFp4Block, _mm512_permutexvar_epi16(nibbles, table));
  }
  return true;
}

bool LoadKeys(const Args& a, uint64_t first, uint64_t count, void* rows) {
  const kvstrata_packed_planes& planes = a.packed_keys;
  uint16_t* row = static_cast<uint16_t*>(rows);
  bool all_loaded = true;
  for (uint64_t s = first; s < first + count; ++s, row += 2 * Pairs(a)) {
    if (a.key_format == KVSTRATA_KERNELS_FORMAT_NONE) {
      std::memcpy(row, static_cast<const uint16_t*>(a.keys) + s * a.key_stride, a.width * sizeof(uint16_t));
      row[a.width] = 0;  // only odd widths come here
      continue;
    }
    const uint8_t* codes = planes.codes + s * planes.code_stride_bytes;
    const uint8_t* scales = planes.scales + s * planes.scale_stride_bytes;
    const bool fp4 = a.key_format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4;
    all_loaded = (fp4 ? WidenFp4(codes, scales, row) : WidenFp8(codes, scales, row)) && all_loaded;
  }
  return all_loaded;
}

// ---- What happens between the multiply-adds: a few instructions after every kBlockPairs pairs ----------------------

// Five keys are widened within the 64 pairs of a packed row; 16 pairs are a line of a bf16 row.
constexpr uint64_t kBlockPairs = 8;
static_assert(kIndexWidth / 2 / kBlockPairs >= 5);

// Each is told when a tile begins and when its first vectors of heads are done; within, it is called once a block.
struct Nothing {
  static constexpr uint64_t kTile = 6;
  void Begin() {}
  void operator()(uint64_t) {}
  void Finish() {}
};

// Asks for the rows of the next keys, a line of each at a time.
struct Fetch {
  static constexpr uint64_t kTile = 6;
  uintptr_t rows;
  uint64_t stride_bytes;
  bool active = false;
  void Begin() { active = true; }
  void operator()(uint64_t block) {
    if (!active || block % 2 != 0) return;
    for (uint64_t k = 0; k < kTile; ++k) PrefetchLine(rows + k * stride_bytes + block * kBlockPairs * sizeof(uint32_t));
  }
  void Finish() {
    active = false;
    rows += kTile * stride_bytes;
  }
};

using WidenRow = bool (*)(const uint8_t* codes, const uint8_t* scales, uint16_t* row);

// Widens one of the next keys, and asks for one that comes a little later.
template <WidenRow kWidenRow, uint64_t kCodeBytes>
struct Widen {
  static constexpr uint64_t kTile = 5;
  kvstrata_packed_planes planes;  // from the first of the next keys on
  uint16_t* rows;
  uint64_t count;
  uint64_t done = 0;
  uint64_t until = 0;
  bool all_loaded = true;

  void Begin() { until = count - done < kTile ? count : done + kTile; }
  void operator()(uint64_t block) {
    constexpr uint64_t kFetchAhead = 12;
    const uint64_t key = done + block;
    if (key >= until) return;
    const uint8_t* codes = planes.codes + key * planes.code_stride_bytes;
    const uint8_t* scales = planes.scales + key * planes.scale_stride_bytes;
    const uintptr_t later = reinterpret_cast<uintptr_t>(codes) + kFetchAhead * planes.code_stride_bytes;
    for (uint64_t byte = 0; byte < kCodeBytes; byte += 64) PrefetchLine(later + byte);
    PrefetchLine(reinterpret_cast<uintptr_t>(scales) + kFetchAhead * planes.scale_stride_bytes);
    all_loaded = kWidenRow(codes, scales, rows + key * kIndexWidth) && all_loaded;
  }
  void Finish() { done = until; }
};

// ---- Scores --------------------------------------------------------------------------------------------------------

// Adds kVectors vectors of heads to the sums of kKeys keys. Of the last vector only the first heads may exist: an
// infinite key times the zeros of the others would be NaN.
template <uint64_t kVectors, uint64_t kKeys, class Meanwhile>
inline __attribute__((always_inline)) void AddHeads(const uint32_t* query, uint64_t pairs, const float* weights,
                                                    uint64_t heads_left, const unsigned char* rows,
                                                    uint64_t stride_bytes, Meanwhile& meanwhile,
                                                    __m512 (&sums)[kKeys]) {
  __m512 dots[kKeys][kVectors];
  for (uint64_t k = 0; k < kKeys; ++k) {
    for (uint64_t v = 0; v < kVectors; ++v) dots[k][v] = _mm512_setzero_ps();
  }
  for (uint64_t p = 0, block = 0; p < pairs; ++block) {
    meanwhile(block);
    const uint64_t end = pairs - p < kBlockPairs ? pairs : p + kBlockPairs;
    for (; p < end; ++p, query += kVectors * kLanes) {
      __m512i q[kVectors];
      for (uint64_t v = 0; v < kVectors; ++v) q[v] = _mm512_loadu_si512(query + v * kLanes);
      for (uint64_t k = 0; k < kKeys; ++k) {
        int32_t pair;
        std::memcpy(&pair, rows + k * stride_bytes + p * sizeof pair, sizeof pair);
        const __m512i key = _mm512_set1_epi32(pair);
        for (uint64_t v = 0; v < kVectors; ++v) {
          dots[k][v] = _mm512_dpbf16_ps(dots[k][v], (__m512bh)q[v], (__m512bh)key);
        }
      }
    }
  }
  const __m512 zero = _mm512_setzero_ps();
  for (uint64_t v = 0; v < kVectors; ++v) {
    const __m512 weight = _mm512_loadu_ps(weights + v * kLanes);
    const uint64_t left = heads_left - v * kLanes;
    const __mmask16 exists = static_cast<__mmask16>(left < kLanes ? (1u << left) - 1 : 0xFFFFu);
    for (uint64_t k = 0; k < kKeys; ++k) {
      // Of a number and NaN the maximum is the second operand: the ReLU keeps NaN, as the reference does.
      sums[k] = _mm512_fmadd_ps(weight, _mm512_maskz_max_ps(exists, zero, dots[k][v]), sums[k]);
    }
  }
}

// The sums of all heads of kKeys keys, lane by lane.
template <uint64_t kKeys, class Meanwhile>
void SumHeads(const Args& a, const void* packed, const unsigned char* rows, uint64_t stride_bytes, Meanwhile& meanwhile,
              float* lanes) {
  const uint64_t vectors = HeadVectors(a);
  const float* weights = static_cast<const float*>(packed);
  const uint32_t* query = static_cast<const uint32_t*>(packed) + vectors * kLanes;
  const uint64_t pairs = Pairs(a);
  __m512 sums[kKeys];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  meanwhile.Begin();
  for (uint64_t v = 0; v < vectors; v += kGroup, weights += kGroup * kLanes) {
    const uint64_t heads_left = a.heads - v * kLanes;
    switch (vectors - v) {
      case 1: AddHeads<1>(query, pairs, weights, heads_left, rows, stride_bytes, meanwhile, sums); break;
      case 2: AddHeads<2>(query, pairs, weights, heads_left, rows, stride_bytes, meanwhile, sums); break;
      case 3: AddHeads<3>(query, pairs, weights, heads_left, rows, stride_bytes, meanwhile, sums); break;
      default: AddHeads<kGroup>(query, pairs, weights, heads_left, rows, stride_bytes, meanwhile, sums); break;
    }
    meanwhile.Finish();
    query += kGroup * kLanes * pairs;
  }
  for (uint64_t k = 0; k < kKeys; ++k) _mm512_store_ps(lanes + k * kLanes, sums[k]);
}

float SumOfLanes(const float* lanes) {
  const __m256 eight = _mm256_add_ps(_mm256_load_ps(lanes), _mm256_load_ps(lanes + 8));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// All keys of a chunk. Lanes are added at the end, when no sum is waited for.
template <class Meanwhile>
void ScoreTiles(const Args& a, const ScoreJob& job, Meanwhile& meanwhile) {
  alignas(64) float lanes[kScanKeys * kLanes];
  const unsigned char* rows = static_cast<const unsigned char*>(job.rows);
  constexpr uint64_t kTile = Meanwhile::kTile;
  uint64_t s = 0;
  for (; s + kTile <= job.count; s += kTile, rows += kTile * job.stride_bytes) {
    SumHeads<kTile>(a, job.packed, rows, job.stride_bytes, meanwhile, lanes + s * kLanes);
  }
  Nothing nothing;
  for (; s < job.count; ++s, rows += job.stride_bytes) {
    SumHeads<1>(a, job.packed, rows, job.stride_bytes, nothing, lanes + s * kLanes);
  }
  for (uint64_t k = 0; k < job.count; ++k) job.scores[k] = SumOfLanes(lanes + k * kLanes);
}

template <WidenRow kWidenRow, uint64_t kCodeBytes>
bool ScoreAndWiden(const Args& a, const ScoreJob& job) {
  Widen<kWidenRow, kCodeBytes> widen{a.packed_keys, static_cast<uint16_t*>(job.next_rows), job.next_count};
  widen.planes.codes += job.next * a.packed_keys.code_stride_bytes;
  widen.planes.scales += job.next * a.packed_keys.scale_stride_bytes;
  ScoreTiles(a, job, widen);
  // This query may have seen fewer keys than the next chunk has.
  const uint64_t left = job.next_count - widen.done;
  return LoadKeys(a, job.next + widen.done, left, widen.rows + widen.done * kIndexWidth) && widen.all_loaded;
}

bool ScoreChunk(const Args& a, const ScoreJob& job) {
  if (job.next_count != 0 && job.next_rows == nullptr) {
    Fetch fetch{reinterpret_cast<uintptr_t>(a.keys) + job.next * job.stride_bytes, job.stride_bytes};
    ScoreTiles(a, job, fetch);
    return true;
  }
  if (job.next_count != 0 && a.key_format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8) {
    return ScoreAndWiden<WidenFp8, kIndexWidth>(a, job);
  }
  if (job.next_count != 0 && a.key_format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4) {
    return ScoreAndWiden<WidenFp4, kIndexWidth / 2>(a, job);
  }
  Nothing nothing;
  ScoreTiles(a, job, nothing);
  return LoadKeys(a, job.next, job.next_count, job.next_rows);
}

// What a row's scales alone decide; the same question as in WidenFp8 and WidenFp4.
bool CanLoad(const Args& a, uint64_t s) {
  uint16_t row[kIndexWidth];
  return LoadKeys(a, s, 1, row);
}

HWY_POP_ATTRIBUTES

constexpr ScoreSteps kSteps = {QueryBytes, KeyBytes, PackQuery, LoadKeys, ScoreChunk};

// bf16 queries against bf16 or packed keys; all else is fp32.
bool ByDotProduct(const Args& a) {
  return a.query_type == KVSTRATA_KERNELS_BF16 &&
         (a.key_format != KVSTRATA_KERNELS_FORMAT_NONE || a.key_type == KVSTRATA_KERNELS_BF16);
}

// The call for one key.
Args OneKey(const Args& a, uint64_t s) {
  Args one = a;
  one.entries = 1;
  one.first_entry = a.first_entry + s;
  one.packed_keys.codes += s * a.packed_keys.code_stride_bytes;
  one.packed_keys.scales += s * a.packed_keys.scale_stride_bytes;
  one.scores += s;
  return one;
}

uint64_t WorkspaceBytes(const Args& a) {
  const uint64_t fp32 = ScanWorkspaceBytes(a, *Avx512ScoreSteps());
  if (!ByDotProduct(a)) return fp32;
  const uint64_t dot = ScanWorkspaceBytes(a, kSteps);
  return a.key_format == KVSTRATA_KERNELS_FORMAT_NONE ? dot : std::max(dot, fp32);
}

int32_t IndexScores(const Args* args, void*) {
  Args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, WorkspaceBytes(a))) return kInvalidArgument;
  if (!ByDotProduct(a)) {
    ScanScores(a, *Avx512ScoreSteps());
  } else if (!ScanScores(a, kSteps)) {
    const uint64_t visible = VisibleHere(a, a.tokens - 1);
    for (uint64_t s = 0; s < visible; ++s) {
      if (!CanLoad(a, s)) ScanScores(OneKey(a, s), *Avx512ScoreSteps());
    }
  }
  return kOk;
}

int32_t IndexScoresWorkspaceBytes(const Args* args, uint64_t* out_bytes) {
  Args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = WorkspaceBytes(a);
  return kOk;
}

}  // namespace

void FillAvx512Bf16Selection(kvstrata_kernels& table) {
  if (Avx512ScoreSteps() == nullptr) return;
  table.index_scores = IndexScores;
  table.index_scores_workspace_bytes = IndexScoresWorkspaceBytes;
}

}  // namespace kvstrata::kernels::cpu
#endif
