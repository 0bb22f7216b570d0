// SPDX-License-Identifier: Apache-2.0
// bf16 rows to E4M3 and back in 16-bit lanes (V4_ROW and V41_WINDOW): twice the channels of formats-inl.h an
// instruction, which is what it takes to keep up with memory. By hand, because Highway 1.0.3 has neither variable
// 16-bit shifts nor byte look-ups across a whole vector (vpermi2b) on this level.
//
// I1: the same bits as the reference. The arithmetic on bf16 bits below holds for finite numbers and for scales that
//     keep every result normal; a row with anything else (NaN, infinity, a scale byte from outside that is very small
//     or very large) takes the way of the level below, row by row.
// I2: nothing is read or written beyond the planes' rows: what is left over after whole vectors is masked.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/arguments.h"
#include "kernels/cpu/emitted_row.h"
#include "kernels/cpu/level.h"

// GCC 12 takes the deliberately undefined operands within its own intrinsics for a mistake (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace kvstrata::kernels::cpu {
namespace {

constexpr uint32_t kCodesPerVector = 64;
constexpr uint32_t kHalvesPerVector = 32;
constexpr int kBf16Mantissa = 7;
constexpr int16_t kBf16Magnitude = 0x7FFF;
constexpr int16_t kBf16Infinity = 0x7F80;
// ceil(log2(1e-4 / 448)) + 127: the floor of amax.
constexpr int kSmallestScale = 105;
// Scales that leave every E4M3 number (exponents -9..8) a normal bf16 number: 2^-117 .. 2^119.
constexpr uint8_t kLowestEasyScale = 10;
constexpr uint8_t kHighestEasyScale = 246;

// The bf16 number of a magnitude's code: both have the exponent above the mantissa, 7 against 127 for 2^0 and 3 bits
// against 7 behind the point.
constexpr uint32_t E4M3AsBf16(uint32_t code) {
  if (code == 0) return 0;
  if (code == 0x7F) return 0x7FC0;
  if (code >= 8) return (code << 4) + ((127 - 7) << kBf16Mantissa);
  // code * 2^-9: the leading bit becomes the implicit one.
  uint32_t exponent = 127 - 6;
  uint32_t significand = code;
  for (; significand < 8; significand *= 2) --exponent;
  return (exponent << kBf16Mantissa) + ((significand - 8) << 4);
}

// Low and high bytes apart, as bytes are what is looked up.
struct E4M3Table {
  alignas(64) std::array<uint8_t, 128> low;
  alignas(64) std::array<uint8_t, 128> high;
};

constexpr E4M3Table kTable = [] {
  E4M3Table table{};
  for (uint32_t code = 0; code < 128; ++code) {
    table.low[code] = static_cast<uint8_t>(E4M3AsBf16(code));
    table.high[code] = static_cast<uint8_t>(E4M3AsBf16(code) >> 8);
  }
  return table;
}();

const kvstrata_kernels& LevelBelow() { return *Table(static_cast<int32_t>(Level::kAvx512)); }

bool IsFastFormat(int32_t format) {
  return format == KVSTRATA_KERNELS_FORMAT_V4_ROW || format == KVSTRATA_KERNELS_FORMAT_V41_WINDOW;
}

int32_t PackOneRowBelow(const kvstrata_pack_rows_args& a, uint64_t row) {
  kvstrata_pack_rows_args one = a;
  one.rows = 1;
  one.source = static_cast<const uint16_t*>(a.source) + row * a.source_stride;
  one.codes += row * a.code_stride_bytes;
  if (one.rope != nullptr) one.rope += row * a.rope_stride_bytes;
  one.scales += row * a.scale_stride_bytes;
  return LevelBelow().pack_rows(&one, nullptr);
}

int32_t UnpackOneRowBelow(const kvstrata_unpack_rows_args& a, uint64_t row) {
  kvstrata_unpack_rows_args one = a;
  one.rows = 1;
  one.codes += row * a.code_stride_bytes;
  if (one.rope != nullptr) one.rope += row * a.rope_stride_bytes;
  one.scales += row * a.scale_stride_bytes;
  one.destination = static_cast<uint16_t*>(a.destination) + row * a.destination_stride;
  return LevelBelow().unpack_rows(&one, nullptr);
}

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2")

HWY_INLINE __m512i Halves(int value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }

// The largest of 32 unsigned numbers: minpos finds the smallest of 8 complements.
HWY_INLINE int LargestOf(__m512i magnitudes) {
  const __m256i of16 = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes), _mm512_extracti64x4_epi64(magnitudes, 1));
  const __m128i of8 = _mm_max_epu16(_mm256_castsi256_si128(of16), _mm256_extracti128_si256(of16, 1));
  return 0xFFFF & ~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(of8, _mm_set1_epi16(-1))));
}

// ceil(log2(amax / 448)) + 127 of a finite bf16 amax: 448 = 1.75 * 2^8, and of 7 mantissa bits 0x60 is 1.75, so adding
// 0x1F carries into the exponent just above it.
HWY_INLINE int ScaleByte(int amax) {
  const int byte = ((amax + 0x1F) >> kBf16Mantissa) - 8;
  return byte < kSmallestScale ? kSmallestScale : byte;
}

// Magnitudes below 2^-6 of the scale: multiples of 2^-9. `biased` has the E4M3 exponent field, <= 0 here, above the
// mantissa. The full significand is shifted right to the step, nearest, ties to even; bf16 denormals are far below it.
HWY_INLINE __m512i SubnormalCodes(__m512i magnitude, __m512i biased) {
  const __m512i exponent = _mm512_srai_epi16(biased, kBf16Mantissa);
  const __m512i shift = _mm512_min_epi16(_mm512_sub_epi16(Halves(5), exponent), Halves(14));
  const __mmask32 is_normal = _mm512_cmpgt_epi16_mask(magnitude, Halves(0x7F));
  const __m512i significand =
      _mm512_maskz_mov_epi16(is_normal, _mm512_or_si512(_mm512_and_si512(magnitude, Halves(0x7F)), Halves(0x80)));
  const __m512i below_half =
      _mm512_sub_epi16(_mm512_sllv_epi16(Halves(1), _mm512_sub_epi16(shift, Halves(1))), Halves(1));
  const __m512i odd = _mm512_and_si512(_mm512_srlv_epi16(significand, shift), Halves(1));
  return _mm512_srlv_epi16(_mm512_add_epi16(_mm512_add_epi16(significand, below_half), odd), shift);
}

// Codes of 32 finite numbers, one in the low byte of each half; `byte` is their scale. A block's largest number rounds
// to 448 at most, so nothing saturates.
HWY_INLINE __m512i EncodeHalves(__m512i halves, int byte) {
  const __m512i magnitude = _mm512_and_si512(halves, Halves(kBf16Magnitude));
  // 2^(byte-127) has to come out as E4M3's exponent field 7.
  const __m512i biased = _mm512_sub_epi16(magnitude, Halves((byte - 7) << kBf16Mantissa));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(biased, 4), Halves(1));
  __m512i code = _mm512_srli_epi16(_mm512_add_epi16(_mm512_add_epi16(biased, Halves(7)), odd), 4);
  const __mmask32 subnormal = _mm512_cmplt_epi16_mask(biased, Halves(1 << kBf16Mantissa));
  if (HWY_UNLIKELY(subnormal != 0)) {
    code = _mm512_mask_mov_epi16(code, subnormal, SubnormalCodes(magnitude, biased));
  }
  return _mm512_or_si512(code, _mm512_and_si512(_mm512_srli_epi16(halves, 8), Halves(0x80)));
}

// Of a block whose largest number is amax: true if that is coded as 224, half of the largest code, and the scale is not
// the least. Quantised, such a block fits half the scale.
HWY_INLINE bool FitsHalfTheScale(int amax, int byte) {
  const int biased = amax - ((byte - 7) << kBf16Mantissa);
  return byte != kSmallestScale && (biased + 7 + ((biased >> 4) & 1)) >> 4 == 0x76;
}

// Codes that stand for twice as much where the mask says so: 8 more, or twice the code below the smallest normal one.
HWY_INLINE __m512i Doubled(__m512i codes, __mmask64 where) {
  const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(0x7F));
  return _mm512_add_epi8(codes, _mm512_maskz_min_epu8(where, magnitude, _mm512_set1_epi8(8)));
}

// 64 channels: one block of 64 or two of 32. kQuantised: what comes out is what the quantised channels would give.
// False, with rubbish written, if one is not finite.
template <uint32_t kBlock, bool kQuantised>
HWY_INLINE bool PackVector(const uint16_t* source, uint8_t* codes, uint8_t* scales) {
  const __m512i first = _mm512_loadu_si512(source);
  const __m512i second = _mm512_loadu_si512(source + kHalvesPerVector);
  const __m512i first_magnitude = _mm512_and_si512(first, Halves(kBf16Magnitude));
  const __m512i second_magnitude = _mm512_and_si512(second, Halves(kBf16Magnitude));
  int first_amax;
  int second_amax;
  if constexpr (kBlock == 64) {
    first_amax = second_amax = LargestOf(_mm512_max_epu16(first_magnitude, second_magnitude));
  } else {
    first_amax = LargestOf(first_magnitude);
    second_amax = LargestOf(second_magnitude);
  }
  const int first_byte = ScaleByte(first_amax);
  const int second_byte = ScaleByte(second_amax);
  const bool first_halves = kQuantised && FitsHalfTheScale(first_amax, first_byte);
  const bool second_halves = kQuantised && FitsHalfTheScale(second_amax, second_byte);
  scales[0] = static_cast<uint8_t>(first_byte - first_halves);
  if constexpr (kBlock == 32) scales[1] = static_cast<uint8_t>(second_byte - second_halves);
  // The low bytes of both, in order.
  const __m512i low_bytes =
      _mm512_set_epi64(0x7E7C7A7876747270, 0x6E6C6A6866646260, 0x5E5C5A5856545250, 0x4E4C4A4846444240,
                       0x3E3C3A3836343230, 0x2E2C2A2826242220, 0x1E1C1A1816141210, 0x0E0C0A0806040200);
  __m512i bytes =
      _mm512_permutex2var_epi8(EncodeHalves(first, first_byte), low_bytes, EncodeHalves(second, second_byte));
  if constexpr (kQuantised) {
    constexpr __mmask64 kFirst = 0xFFFFFFFF;
    bytes = Doubled(bytes, (first_halves ? kFirst : 0) | (second_halves ? ~kFirst : 0));
  }
  _mm512_storeu_si512(codes, bytes);
  return first_amax < kBf16Infinity && second_amax < kBf16Infinity;
}

// bf16 to bf16, NaNs made quiet as every conversion makes them.
HWY_INLINE __m512i QuietHalves(__m512i halves) {
  const __mmask32 is_nan =
      _mm512_cmpgt_epi16_mask(_mm512_and_si512(halves, Halves(kBf16Magnitude)), Halves(kBf16Infinity));
  return _mm512_or_si512(halves, _mm512_maskz_mov_epi16(is_nan, Halves(0x40)));
}

HWY_INLINE void CopyRope(const void* from, uint32_t dims, void* to) {
  for (uint32_t i = 0; i < dims; i += kHalvesPerVector) {
    const uint32_t left = dims - i;
    const __mmask32 mask = left >= kHalvesPerVector ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
    const __m512i halves = _mm512_maskz_loadu_epi16(mask, static_cast<const uint8_t*>(from) + 2 * i);
    _mm512_mask_storeu_epi16(static_cast<uint8_t*>(to) + 2 * i, mask, QuietHalves(halves));
  }
}

template <uint32_t kBlock, bool kQuantised>
HWY_INLINE bool PackRowFast(const PlaneRow& to, const uint16_t* source, uint32_t quantised, uint32_t rope_dims) {
  bool finite = true;
  for (uint32_t i = 0; i < quantised; i += kCodesPerVector) {
    finite &= PackVector<kBlock, kQuantised>(source + i, to.codes + i, to.scales + i / kBlock);
  }
  if constexpr (kBlock == 64) {  // V4_ROW, whose scales are padded
    for (uint32_t i = quantised / kBlock; i % 8 != 0; ++i) to.scales[i] = 0;
    if (rope_dims != 0) CopyRope(source + quantised, rope_dims, to.rope);
  }
  return finite;
}

// Adds the exponent of the scale to 32 numbers; zeros stay.
HWY_INLINE __m512i Rescaled(__m512i halves, uint8_t byte) {
  const __mmask32 not_zero = _mm512_test_epi16_mask(halves, Halves(kBf16Magnitude));
  return _mm512_mask_add_epi16(halves, not_zero, halves, Halves((int{byte} - 127) << kBf16Mantissa));
}

struct TableVectors {
  __m512i low[2];
  __m512i high[2];
};

HWY_INLINE bool EasyScale(uint8_t byte) { return byte >= kLowestEasyScale && byte <= kHighestEasyScale; }

// 64 codes. False, with rubbish written, if there is a NaN or a scale is not an easy one.
template <uint32_t kBlock>
HWY_INLINE bool UnpackVector(const TableVectors& table, const uint8_t* codes, const uint8_t* scales, uint16_t* to) {
  const uint8_t first_byte = scales[0];
  const uint8_t second_byte = scales[kBlock == 64 ? 0 : 1];
  const __m512i loaded = _mm512_loadu_si512(codes);
  // Interleaving works within 16-byte lanes; this order of the groups of 8 makes its results come out in order.
  const __m512i code = _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), loaded);
  const __m512i sign_bit = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i low = _mm512_permutex2var_epi8(table.low[0], code, table.low[1]);
  const __m512i magnitude_high = _mm512_permutex2var_epi8(table.high[0], code, table.high[1]);
  const __m512i high = _mm512_or_si512(magnitude_high, _mm512_and_si512(code, sign_bit));
  _mm512_storeu_si512(to, Rescaled(_mm512_unpacklo_epi8(low, high), first_byte));
  _mm512_storeu_si512(to + kHalvesPerVector, Rescaled(_mm512_unpackhi_epi8(low, high), second_byte));
  const __mmask64 nan = _mm512_cmpeq_epi8_mask(_mm512_or_si512(code, sign_bit), _mm512_set1_epi8(-1));
  return nan == 0 && EasyScale(first_byte) && EasyScale(second_byte);
}

template <uint32_t kBlock>
bool UnpackRowFast(const TableVectors& table, const kvstrata_unpack_rows_args& a, uint64_t row) {
  uint16_t* to = static_cast<uint16_t*>(a.destination) + row * a.destination_stride;
  const uint8_t* codes = a.codes + row * a.code_stride_bytes;
  const uint8_t* scales = a.scales + row * a.scale_stride_bytes;
  const uint32_t quantised = a.width - a.rope_dims;
  bool easy = true;
  for (uint32_t i = 0; i < quantised; i += kCodesPerVector) {
    easy &= UnpackVector<kBlock>(table, codes + i, scales + i / kBlock, to + i);
  }
  if (a.rope_dims != 0) CopyRope(a.rope + row * a.rope_stride_bytes, a.rope_dims, to + quantised);
  return easy;
}

template <uint32_t kBlock>
void PackAll(const kvstrata_pack_rows_args& a) {
  for (uint64_t row = 0; row < a.rows; ++row) {
    const PlaneRow to = {a.codes + row * a.code_stride_bytes,
                         a.rope != nullptr ? a.rope + row * a.rope_stride_bytes : nullptr,
                         a.scales + row * a.scale_stride_bytes};
    const uint16_t* source = static_cast<const uint16_t*>(a.source) + row * a.source_stride;
    const bool is_packed = PackRowFast<kBlock, false>(to, source, a.width - a.rope_dims, a.rope_dims);
    if (HWY_UNLIKELY(!is_packed)) static_cast<void>(PackOneRowBelow(a, row));
  }
}

template <uint32_t kBlock>
void UnpackAll(const kvstrata_unpack_rows_args& a) {
  const TableVectors table = {{_mm512_load_si512(kTable.low.data()), _mm512_load_si512(kTable.low.data() + 64)},
                              {_mm512_load_si512(kTable.high.data()), _mm512_load_si512(kTable.high.data() + 64)}};
  for (uint64_t row = 0; row < a.rows; ++row) {
    if (HWY_UNLIKELY(!UnpackRowFast<kBlock>(table, a, row))) static_cast<void>(UnpackOneRowBelow(a, row));
  }
}

HWY_POP_ATTRIBUTES

int32_t PackRows(const kvstrata_pack_rows_args* args, void* stream) {
  kvstrata_pack_rows_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const bool whole_vectors = (a.width - a.rope_dims) % kCodesPerVector == 0;
  if (a.source_type != KVSTRATA_KERNELS_BF16 || !IsFastFormat(a.format) || !whole_vectors) {
    return LevelBelow().pack_rows(args, stream);
  }
  if (a.format == KVSTRATA_KERNELS_FORMAT_V4_ROW) {
    PackAll<64>(a);
  } else {
    PackAll<32>(a);
  }
  return kOk;
}

int32_t UnpackRows(const kvstrata_unpack_rows_args* args, void* stream) {
  kvstrata_unpack_rows_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const bool whole_vectors = (a.width - a.rope_dims) % kCodesPerVector == 0;
  if (a.destination_type != KVSTRATA_KERNELS_BF16 || !IsFastFormat(a.format) || !whole_vectors) {
    return LevelBelow().unpack_rows(args, stream);
  }
  if (a.format == KVSTRATA_KERNELS_FORMAT_V4_ROW) {
    UnpackAll<64>(a);
  } else {
    UnpackAll<32>(a);
  }
  return kOk;
}

}  // namespace

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2")

bool PackQuantisedRow(bool is_v4_row, const uint16_t* row, uint32_t quantised, uint32_t rope_dims, const PlaneRow& to) {
  return is_v4_row ? PackRowFast<64, true>(to, row, quantised, rope_dims)
                   : PackRowFast<32, true>(to, row, quantised, rope_dims);
}

HWY_POP_ATTRIBUTES

void FillAvx512Bf16Formats(kvstrata_kernels& table) {
  table.pack_rows = PackRows;
  table.unpack_rows = UnpackRows;
}

}  // namespace kvstrata::kernels::cpu

#endif  // x86-64
