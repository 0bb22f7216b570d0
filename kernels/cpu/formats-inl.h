// SPDX-License-Identifier: Apache-2.0
// Numeric formats in the vectors of one target: bf16, blocks of E4M3 and E2M1, whole rows, Hadamard. What formats.cc
// makes functions of the table from, and what the compressors and attention pack and unpack their rows with.
//
// I1: the same bits as reference/numeric_formats.cc for every input, NaN and denormals included, because each step is
//     the same IEEE operation or an exact substitute that is named where it stands.
// I2: nothing is read or written beyond the given counts of elements and bytes; no pointer need be aligned beyond its
//     type.
//
// No include guard but Highway's toggle: each pass of foreach_target.h reads this file once. Include it after
// targets-inl.h.
//
// Thread rule: pure functions.
#if defined(KVSTRATA_KERNELS_CPU_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTRATA_KERNELS_CPU_FORMATS_INL_H_
#undef KVSTRATA_KERNELS_CPU_FORMATS_INL_H_
#else
#define KVSTRATA_KERNELS_CPU_FORMATS_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/targets-inl.h"
#include "kernels/kernel_api.h"
#include "kernels/reference/scalar.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- lanes of 32 bits: 4, 8 or 16 -------------------------------------------------------------------------------

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using Bf16Tag = hn::Rebind<uint16_t, FloatTag>;  // as many bf16 numbers as a vector has floats
using FloatVec = hn::Vec<FloatTag>;
using IntVec = hn::Vec<IntTag>;
using WordVec = hn::Vec<WordTag>;

inline constexpr int32_t kMagnitudeMask = 0x7FFFFFFF;
inline constexpr int32_t kInfinityBits = 0x7F800000;

HWY_INLINE uint32_t FloatLanes() { return static_cast<uint32_t>(hn::Lanes(FloatTag())); }
HWY_INLINE IntVec Ints(int32_t value) { return hn::Set(IntTag(), value); }
HWY_INLINE FloatVec AsFloats(IntVec bits) { return hn::BitCast(FloatTag(), bits); }
HWY_INLINE IntVec AsInts(FloatVec values) { return hn::BitCast(IntTag(), values); }

// ---- bf16 --------------------------------------------------------------------------------------------------------

// Round to nearest even on the bits, as reference/scalar.h does; a NaN is made quiet instead, as its payload may lie in
// the dropped half. The result stays in the upper half of each word, the lower half is arbitrary.
HWY_INLINE WordVec RoundedWords(FloatVec values) {
  const WordTag words;
  const WordVec bits = hn::BitCast(words, values);
#if HWY_TARGET == HWY_AVX3
  // Four instructions instead of eight: the odd bit decides by a mask which of two numbers is added, and vfixupimm puts
  // the quieted source where it was NaN (classes 0 and 1, response 2) and leaves what is there elsewhere (response 0).
  const __mmask16 odd = _mm512_test_epi32_mask(bits.raw, _mm512_set1_epi32(0x10000));
  const __m512i down = _mm512_add_epi32(bits.raw, _mm512_set1_epi32(0x7FFF));
  const __m512i rounded = _mm512_mask_add_epi32(down, odd, bits.raw, _mm512_set1_epi32(0x8000));
  const __m512 fixed = _mm512_fixupimm_ps(_mm512_castsi512_ps(rounded), values.raw, _mm512_set1_epi32(0x22), 0);
  return hn::BitCast(words, FloatVec{fixed});
#else
  const WordVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1u));
  const WordVec rounded = hn::Add(hn::Add(bits, hn::Set(words, 0x7FFFu)), odd);
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(values));
  return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(words, 0x400000u)), rounded);
#endif
}

HWY_INLINE FloatVec RoundBf16(FloatVec values) {
  const WordTag words;
  return hn::BitCast(FloatTag(), hn::And(RoundedWords(values), hn::Set(words, 0xFFFF0000u)));
}

// Bytes, because planes need no alignment.
HWY_INLINE FloatVec LoadBf16Bytes(const uint8_t* bytes) {
  const hn::Repartition<uint8_t, Bf16Tag> all;
  const auto halves = hn::BitCast(Bf16Tag(), hn::LoadU(all, bytes));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), halves)));
}

HWY_INLINE void StoreBf16Bytes(FloatVec values, uint8_t* bytes) {
  const hn::Repartition<uint8_t, Bf16Tag> all;
  const auto halves = hn::TruncateTo(Bf16Tag(), hn::ShiftRight<16>(RoundedWords(values)));
  hn::StoreU(hn::BitCast(all, halves), all, bytes);
}

// A vector of elements of either type as floats and back: bf16 is widened exactly and rounded to.
HWY_INLINE FloatVec LoadFloats(const float* from) { return hn::LoadU(FloatTag(), from); }
HWY_INLINE FloatVec LoadFloats(const uint16_t* from) { return LoadBf16Bytes(reinterpret_cast<const uint8_t*>(from)); }
HWY_INLINE void StoreFloats(FloatVec values, float* to) { hn::StoreU(values, FloatTag(), to); }
HWY_INLINE void StoreFloats(FloatVec values, uint16_t* to) { StoreBf16Bytes(values, reinterpret_cast<uint8_t*>(to)); }

// The same for one element, for what is left over.
HWY_INLINE void StoreFloat(float value, float* to) { *to = value; }
HWY_INLINE void StoreFloat(float value, uint16_t* to) { *to = reference::F32ToBf16(value); }

// In place.
inline void RoundRow(float* row, uint64_t width) {
  const uint64_t lanes = FloatLanes();
  uint64_t i = 0;
  for (; i + lanes <= width; i += lanes) StoreFloats(RoundBf16(LoadFloats(row + i)), row + i);
  for (; i < width; ++i) row[i] = reference::RoundBf16(row[i]);
}

// ---- elements of the packed formats, one code in each word -------------------------------------------------------

enum class Element { kE4M3, kE2M1 };
enum class Scale { kPowerOfTwo, kE4M3, kPowerOfTwoAsFloat };

// Magnitudes of the smallest normal number, of the number whose float spacing is the element's subnormal step (adding
// it rounds to that step, ties to even), and the element's exponent bias against that of floats.
template <Element kElement>
struct ElementBits;
template <>
struct ElementBits<Element::kE4M3> {
  static constexpr int32_t kSmallestNormal = 0x3C800000;  // 2^-6
  static constexpr float kRounder = 16384.0f;             // 2^14: spacing 2^-9
  static constexpr float kStep = 0x1p-9f;
  static constexpr int kDropped = 20;  // keeps 3 of 23 mantissa bits
  static constexpr int32_t kBias = 120 << 23;
  static constexpr int32_t kFirstNormal = 8;
  static constexpr int32_t kLargest = 0x7E;
  static constexpr int kSignShift = 24;  // from the sign of a float to that of a code
};
template <>
struct ElementBits<Element::kE2M1> {
  static constexpr int32_t kSmallestNormal = 0x3F800000;  // 1
  static constexpr float kRounder = 4194304.0f;           // 2^22: spacing 1/2
  static constexpr float kStep = 0.5f;
  static constexpr int kDropped = 22;  // keeps 1 mantissa bit
  static constexpr int32_t kBias = 126 << 23;
  static constexpr int32_t kFirstNormal = 2;
  static constexpr int32_t kLargest = 7;
  static constexpr int kSignShift = 28;
};

// Nearest, ties to even, saturating. kFinite: no input is NaN or infinite.
template <Element kElement, bool kFinite>
HWY_INLINE IntVec EncodeWords(FloatVec values) {
  using B = ElementBits<kElement>;
  const IntVec bits = AsInts(values);
  const IntVec magnitude = hn::And(bits, Ints(kMagnitudeMask));
  const IntVec sign =
      hn::And(hn::ShiftRight<B::kSignShift>(bits), Ints(B::kLargest + (kElement == Element::kE4M3) + 1));
  const IntVec steps = hn::Sub(AsInts(hn::Add(AsFloats(magnitude), hn::Set(FloatTag(), B::kRounder))),
                               AsInts(hn::Set(FloatTag(), B::kRounder)));
  // A carry of the mantissa runs into the exponent, as it should. The bias is taken off first: no sum overflows.
  const IntVec odd = hn::And(hn::ShiftRight<B::kDropped>(magnitude), Ints(1));
  const IntVec below_half = Ints((1 << (B::kDropped - 1)) - 1 - B::kBias);
  const IntVec kept = hn::ShiftRight<B::kDropped>(hn::Add(hn::Add(magnitude, below_half), odd));
  IntVec code = hn::IfThenElse(hn::Lt(magnitude, Ints(B::kSmallestNormal)), steps, kept);
  // A finite block of a power-of-two scale stays below the rounding limit of the largest element, but an E4M3 scale may
  // be rounded down.
  if constexpr (!kFinite || kElement == Element::kE2M1) code = hn::Min(code, Ints(B::kLargest));
  if constexpr (kFinite) return hn::Or(code, sign);
  const auto is_nan = hn::Gt(magnitude, Ints(kInfinityBits));
  if constexpr (kElement == Element::kE2M1) return hn::IfThenZeroElse(is_nan, hn::Or(code, sign));
  return hn::Or(hn::IfThenElse(is_nan, Ints(0x7F), code), sign);
}

// Exact. Only E4M3 has NaN.
template <Element kElement>
HWY_INLINE FloatVec DecodeWords(IntVec codes) {
  using B = ElementBits<kElement>;
  constexpr int32_t kCodeMask = kElement == Element::kE4M3 ? 0x7F : 7;
  const IntVec magnitude = hn::And(codes, Ints(kCodeMask));
  const IntVec sign = hn::ShiftLeft<B::kSignShift>(hn::And(codes, Ints(kCodeMask + 1)));
  const FloatVec steps = hn::Mul(hn::ConvertTo(FloatTag(), magnitude), hn::Set(FloatTag(), B::kStep));
  const IntVec normal = hn::Add(hn::ShiftLeft<B::kDropped>(magnitude), Ints(B::kBias));
  IntVec bits = hn::IfThenElse(hn::Lt(magnitude, Ints(B::kFirstNormal)), AsInts(steps), normal);
  if constexpr (kElement == Element::kE4M3) {
    bits = hn::IfThenElse(hn::Eq(magnitude, Ints(0x7F)), Ints(0x7FC00000), bits);
  }
  return AsFloats(hn::Or(bits, sign));
}

// Bytes that a vector of codes takes.
template <Element kElement>
HWY_INLINE uint32_t CodeBytes(uint32_t channels) {
  return kElement == Element::kE4M3 ? channels : channels / 2;
}

template <Element kElement>
HWY_INLINE void StoreCodes(IntVec codes, uint8_t* to) {
  if constexpr (kElement == Element::kE4M3) {
    const hn::Rebind<uint8_t, FloatTag> bytes;
    hn::StoreU(hn::TruncateTo(bytes, hn::BitCast(WordTag(), codes)), bytes, to);
  } else {
    // Of two words the lower is the even channel, in the low nibble.
    const hn::Repartition<uint64_t, FloatTag> pairs;
    const hn::Rebind<uint8_t, decltype(pairs)> bytes;
    const auto both = hn::BitCast(pairs, codes);
    hn::StoreU(hn::TruncateTo(bytes, hn::Or(both, hn::ShiftRight<28>(both))), bytes, to);
  }
}

template <Element kElement>
HWY_INLINE IntVec LoadCodes(const uint8_t* from) {
  if constexpr (kElement == Element::kE4M3) {
    return hn::PromoteTo(IntTag(), hn::LoadU(hn::Rebind<uint8_t, FloatTag>(), from));
  } else {
    const hn::Repartition<uint32_t, Bf16Tag> pairs;
    const auto bytes = hn::PromoteTo(pairs, hn::LoadU(hn::Rebind<uint8_t, decltype(pairs)>(), from));
    const auto low = hn::And(bytes, hn::Set(pairs, 0xFu));
    const auto high = hn::ShiftLeft<12>(hn::And(bytes, hn::Set(pairs, 0xF0u)));
    return hn::PromoteTo(IntTag(), hn::BitCast(Bf16Tag(), hn::Or(low, high)));
  }
}

// ---- blocks ------------------------------------------------------------------------------------------------------

// A format's element, scale and block (0: the whole row is one block), as numeric_formats.cc has them.
template <Element kElementOf, Scale kScaleOf, uint32_t kBlockOf>
struct Grid {
  static constexpr Element kElement = kElementOf;
  static constexpr Scale kScale = kScaleOf;
  static constexpr uint32_t kBlock = kBlockOf;
  static constexpr float kLargest = kElement == Element::kE4M3 ? reference::kE4M3Max : reference::kE2M1Max;
  static constexpr float kAmaxFloor = kElement == Element::kE4M3 ? 1e-4f : kScale == Scale::kE4M3 ? 0x6p-9f : 0x6p-126f;
};
using RowGrid = Grid<Element::kE4M3, Scale::kPowerOfTwo, 64>;
using IndexFp4Grid = Grid<Element::kE2M1, Scale::kPowerOfTwo, 32>;
using IndexFp8Grid = Grid<Element::kE4M3, Scale::kPowerOfTwoAsFloat, 0>;
using WindowGrid = Grid<Element::kE4M3, Scale::kPowerOfTwo, 32>;
using EntryGrid = Grid<Element::kE2M1, Scale::kE4M3, 16>;

struct BlockScale {
  uint8_t byte;
  float scale;
  float inverse;  // of a power of two: exact, so that multiplying by it is dividing by the scale
};

// `byte` is 1..254: 2^(127-byte) down to 2^-127, which is denormal.
HWY_INLINE float InversePowerOfTwo(uint8_t byte) {
  return std::bit_cast<float>(byte == 254 ? 0x00400000u : (254u - byte) << 23);
}

template <class G>
HWY_INLINE BlockScale BlockScaleOf(float amax) {
  const float floored = amax > G::kAmaxFloor ? amax : G::kAmaxFloor;
  if constexpr (G::kScale == Scale::kE4M3) {
    const uint8_t byte = reference::EncodeE4M3(floored / G::kLargest);
    return {byte, reference::DecodeE4M3(byte), 0.0f};
  } else {
    const uint8_t byte = reference::CeilUE8M0(floored * (1.0f / G::kLargest));
    return {byte, reference::DecodeUE8M0(byte), InversePowerOfTwo(byte)};
  }
}

template <class G>
HWY_INLINE FloatVec Scaled(FloatVec values, const BlockScale& block) {
  if constexpr (G::kScale == Scale::kE4M3) return hn::Div(values, hn::Set(FloatTag(), block.scale));
  return hn::Mul(values, hn::Set(FloatTag(), block.inverse));
}

template <class G>
HWY_INLINE uint8_t EncodeOne(float value, const BlockScale& block) {
  return G::kElement == Element::kE4M3 ? reference::EncodeE4M3(value / block.scale)
                                       : reference::EncodeE2M1(value / block.scale);
}

// The largest magnitude of `count` values as the bits of a float: bits order magnitudes. Above kInfinityBits if there
// is a NaN.
template <typename T>
HWY_INLINE int32_t LargestBits(const T* values, uint32_t count) {
  const uint32_t lanes = FloatLanes();
  IntVec largest = hn::Zero(IntTag());
  uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    largest = hn::Max(largest, hn::And(AsInts(LoadFloats(values + i)), Ints(kMagnitudeMask)));
  }
  int32_t bits = hn::GetLane(hn::MaxOfLanes(IntTag(), largest));
  for (; i < count; ++i) {
    const int32_t one = std::bit_cast<int32_t>(reference::AsFloat(values[i])) & kMagnitudeMask;
    bits = one > bits ? one : bits;
  }
  return bits;
}

// The same without the NaNs, which take no part in amax. Rare, so plain.
template <typename T>
HWY_NOINLINE int32_t LargestNumberBits(const T* values, uint32_t count) {
  int32_t bits = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const int32_t one = std::bit_cast<int32_t>(reference::AsFloat(values[i])) & kMagnitudeMask;
    if (one <= kInfinityBits && one > bits) bits = one;
  }
  return bits;
}

template <class G, bool kFinite, typename T>
HWY_INLINE void EncodeBlock(const T* values, uint32_t count, const BlockScale& block, uint8_t* codes) {
  const uint32_t lanes = FloatLanes();
  uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const IntVec words = EncodeWords<G::kElement, kFinite>(Scaled<G>(LoadFloats(values + i), block));
    StoreCodes<G::kElement>(words, codes + CodeBytes<G::kElement>(i));
  }
  // Only the single block of an FP8 index key has a width that is no multiple of 16.
  for (; i < count; ++i) codes[i] = EncodeOne<G>(reference::AsFloat(values[i]), block);
}

// Returns the scale. `count` is the grid's block, or the row where the grid has none.
template <class G, typename T>
HWY_INLINE BlockScale PackBlock(const T* values, uint32_t count, uint8_t* codes) {
  const int32_t bits = LargestBits(values, count);
  if (HWY_LIKELY(bits < kInfinityBits)) {
    const BlockScale block = BlockScaleOf<G>(std::bit_cast<float>(bits));
    EncodeBlock<G, true>(values, count, block, codes);
    return block;
  }
  const BlockScale block = BlockScaleOf<G>(std::bit_cast<float>(LargestNumberBits(values, count)));
  EncodeBlock<G, false>(values, count, block, codes);
  return block;
}

template <class G, typename T>
HWY_INLINE void UnpackBlock(const uint8_t* codes, float scale, uint32_t count, T* values) {
  const uint32_t lanes = FloatLanes();
  const FloatVec scales = hn::Set(FloatTag(), scale);
  uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const IntVec words = LoadCodes<G::kElement>(codes + CodeBytes<G::kElement>(i));
    StoreFloats(hn::Mul(DecodeWords<G::kElement>(words), scales), values + i);
  }
  for (; i < count; ++i) StoreFloat(reference::DecodeE4M3(codes[i]) * scale, values + i);
}

template <class G, bool kFinite>
HWY_INLINE void RequantizeBlock(float* values, uint32_t count, const BlockScale& block) {
  const uint32_t lanes = FloatLanes();
  const FloatVec scales = hn::Set(FloatTag(), block.scale);
  uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const IntVec words = EncodeWords<G::kElement, kFinite>(Scaled<G>(LoadFloats(values + i), block));
    StoreFloats(hn::Mul(DecodeWords<G::kElement>(words), scales), values + i);
  }
  for (; i < count; ++i) values[i] = reference::DecodeE4M3(EncodeOne<G>(values[i], block)) * block.scale;
}

template <class G>
HWY_INLINE void QuantizeBlock(float* values, uint32_t count) {
  const int32_t bits = LargestBits(values, count);
  if (HWY_LIKELY(bits < kInfinityBits)) {
    RequantizeBlock<G, true>(values, count, BlockScaleOf<G>(std::bit_cast<float>(bits)));
  } else {
    const int32_t numbers = LargestNumberBits(values, count);
    RequantizeBlock<G, false>(values, count, BlockScaleOf<G>(std::bit_cast<float>(numbers)));
  }
}

// ---- rows --------------------------------------------------------------------------------------------------------

template <class G>
HWY_INLINE uint32_t BlockOf(uint32_t quantised) {
  return G::kBlock == 0 ? quantised : G::kBlock;
}

template <class G, typename T>
void PackCodes(const T* row, uint32_t quantised, uint8_t* codes, uint8_t* scales) {
  const uint32_t count = BlockOf<G>(quantised);
  for (uint32_t begin = 0; begin < quantised; begin += count) {
    const BlockScale block = PackBlock<G>(row + begin, count, codes + CodeBytes<G::kElement>(begin));
    if constexpr (G::kScale == Scale::kPowerOfTwoAsFloat) {
      std::memcpy(scales, &block.scale, sizeof block.scale);
    } else {
      scales[begin / count] = block.byte;
    }
  }
}

template <class G>
HWY_INLINE float LoadScale(const uint8_t* scales, uint32_t block) {
  if constexpr (G::kScale == Scale::kE4M3) return reference::DecodeE4M3(scales[block]);
  if constexpr (G::kScale == Scale::kPowerOfTwo) return reference::DecodeUE8M0(scales[block]);
  float scale;
  std::memcpy(&scale, scales, sizeof scale);
  return scale;
}

template <class G, typename T>
void UnpackCodes(const uint8_t* codes, const uint8_t* scales, uint32_t quantised, T* row) {
  const uint32_t count = BlockOf<G>(quantised);
  for (uint32_t begin = 0; begin < quantised; begin += count) {
    const float scale = LoadScale<G>(scales, begin / count);
    UnpackBlock<G>(codes + CodeBytes<G::kElement>(begin), scale, count, row + begin);
  }
}

template <class G>
void QuantizeBlocks(float* row, uint32_t quantised) {
  const uint32_t count = BlockOf<G>(quantised);
  for (uint32_t begin = 0; begin < quantised; begin += count) QuantizeBlock<G>(row + begin, count);
}

template <typename T>
HWY_INLINE void PackRope(const T* values, uint32_t dims, uint8_t* rope) {
  const uint32_t lanes = FloatLanes();
  uint32_t i = 0;
  for (; i + lanes <= dims; i += lanes) StoreBf16Bytes(LoadFloats(values + i), rope + 2 * i);
  for (; i < dims; ++i) {
    const uint16_t half = reference::F32ToBf16(reference::AsFloat(values[i]));
    std::memcpy(rope + 2 * i, &half, sizeof half);
  }
}

template <typename T>
HWY_INLINE void UnpackRope(const uint8_t* rope, uint32_t dims, T* values) {
  const uint32_t lanes = FloatLanes();
  uint32_t i = 0;
  for (; i + lanes <= dims; i += lanes) StoreFloats(LoadBf16Bytes(rope + 2 * i), values + i);
  for (; i < dims; ++i) {
    uint16_t half;
    std::memcpy(&half, rope + 2 * i, sizeof half);
    StoreFloat(reference::Bf16ToF32(half), values + i);
  }
}

// One row in any packed format; T is float or uint16_t (bf16). Width and rope_dims are a shape that Prepare passed, and
// the planes hold that shape's bytes (kernels.h); `rope` is not used when rope_dims is 0.
template <typename T>
void PackRow(int32_t format, const T* row, uint32_t width, uint32_t rope_dims, uint8_t* codes, uint8_t* rope,
             uint8_t* scales) {
  switch (format) {
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4: return PackCodes<IndexFp4Grid>(row, width, codes, scales);
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8: return PackCodes<IndexFp8Grid>(row, width, codes, scales);
    case KVSTRATA_KERNELS_FORMAT_V41_WINDOW: return PackCodes<WindowGrid>(row, width, codes, scales);
    case KVSTRATA_KERNELS_FORMAT_V41_ENTRY: return PackCodes<EntryGrid>(row, width, codes, scales);
    default: break;
  }
  const uint32_t quantised = width - rope_dims;
  PackCodes<RowGrid>(row, quantised, codes, scales);
  const uint32_t blocks = quantised / RowGrid::kBlock;
  std::memset(scales + blocks, 0, (blocks + 7) / 8 * 8 - blocks);
  PackRope(row + quantised, rope_dims, rope);
}

template <typename T>
void UnpackRow(int32_t format, const uint8_t* codes, const uint8_t* rope, const uint8_t* scales, uint32_t width,
               uint32_t rope_dims, T* row) {
  switch (format) {
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4: return UnpackCodes<IndexFp4Grid>(codes, scales, width, row);
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8: return UnpackCodes<IndexFp8Grid>(codes, scales, width, row);
    case KVSTRATA_KERNELS_FORMAT_V41_WINDOW: return UnpackCodes<WindowGrid>(codes, scales, width, row);
    case KVSTRATA_KERNELS_FORMAT_V41_ENTRY: return UnpackCodes<EntryGrid>(codes, scales, width, row);
    default: break;
  }
  UnpackCodes<RowGrid>(codes, scales, width - rope_dims, row);
  UnpackRope(rope, rope_dims, row + (width - rope_dims));
}

// unpack(pack(row)) in place.
inline void QuantizeRow(int32_t format, float* row, uint32_t width, uint32_t rope_dims) {
  switch (format) {
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4: return QuantizeBlocks<IndexFp4Grid>(row, width);
    case KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8: return QuantizeBlocks<IndexFp8Grid>(row, width);
    case KVSTRATA_KERNELS_FORMAT_V41_WINDOW: return QuantizeBlocks<WindowGrid>(row, width);
    case KVSTRATA_KERNELS_FORMAT_V41_ENTRY: return QuantizeBlocks<EntryGrid>(row, width);
    default: break;
  }
  QuantizeBlocks<RowGrid>(row, width - rope_dims);
  RoundRow(row + (width - rope_dims), rope_dims);
}

// ---- Hadamard ----------------------------------------------------------------------------------------------------

// Lanes i and i ^ kHalf change places.
template <int kHalf>
HWY_INLINE FloatVec Partners(FloatVec values) {
  if constexpr (kHalf == 1) return hn::Shuffle2301(values);
  if constexpr (kHalf == 2) return hn::Shuffle1032(values);
  if constexpr (kHalf == 4) return hn::SwapAdjacentBlocks(values);
  return hn::ConcatLowerUpper(FloatTag(), values, values);
}

// One pass within a vector: a + b in the lower lane of each pair, a - b, as b's negation added, in the upper one.
template <int kHalf>
HWY_INLINE FloatVec Butterflies(FloatVec values) {
  const WordTag words;
  const WordVec upper = hn::And(hn::Iota(words, 0), hn::Set(words, kHalf));
  const WordVec sign = hn::IfThenZeroElse(hn::Eq(upper, hn::Zero(words)), hn::Set(words, 0x80000000u));
  return hn::Add(Partners<kHalf>(values), hn::Xor(values, hn::BitCast(FloatTag(), sign)));
}

// All passes whose pairs lie within a vector, in ascending order.
HWY_INLINE FloatVec LowerPasses(FloatVec values) {
  values = Butterflies<2>(Butterflies<1>(values));
#if HWY_MAX_BYTES >= 32
  values = Butterflies<4>(values);
#endif
#if HWY_MAX_BYTES >= 64
  values = Butterflies<8>(values);
#endif
  return values;
}

// All passes within kVectors neighbouring vectors, in registers.
template <uint32_t kVectors>
HWY_INLINE void HadamardGroup(float* row) {
  const uint32_t lanes = FloatLanes();
  FloatVec values[kVectors];
  for (uint32_t v = 0; v < kVectors; ++v) values[v] = LowerPasses(LoadFloats(row + v * lanes));
  for (uint32_t half = 1; half < kVectors; half *= 2) {
    for (uint32_t v = 0; v < kVectors; ++v) {
      if ((v & half) != 0) continue;
      const FloatVec a = values[v];
      const FloatVec b = values[v + half];
      values[v] = hn::Add(a, b);
      values[v + half] = hn::Sub(a, b);
    }
  }
  for (uint32_t v = 0; v < kVectors; ++v) StoreFloats(values[v], row + v * lanes);
}

// One pass over pairs at a distance of `half`, a multiple of the lanes.
HWY_INLINE void HadamardPass(float* row, uint32_t width, uint32_t half) {
  const uint32_t lanes = FloatLanes();
  for (uint32_t begin = 0; begin < width; begin += 2 * half) {
    for (uint32_t i = begin; i < begin + half; i += lanes) {
      const FloatVec a = LoadFloats(row + i);
      const FloatVec b = LoadFloats(row + i + half);
      StoreFloats(hn::Add(a, b), row + i);
      StoreFloats(hn::Sub(a, b), row + i + half);
    }
  }
}

// In place; the same sums in the same order as the reference. `width` is a power of two and at least FloatLanes().
inline void HadamardRow(float* row, uint32_t width, bool round) {
  constexpr uint32_t kGroup = 8;  // of 16 registers, where there are no more
  const uint32_t lanes = FloatLanes();
  const uint32_t grouped = width >= kGroup * lanes ? kGroup * lanes : lanes;
  if (grouped == lanes) {
    for (uint32_t i = 0; i < width; i += lanes) HadamardGroup<1>(row + i);
  } else {
    for (uint32_t i = 0; i < width; i += grouped) HadamardGroup<kGroup>(row + i);
  }
  for (uint32_t half = grouped; half < width; half *= 2) HadamardPass(row, width, half);
  const FloatVec norm = hn::Set(FloatTag(), static_cast<float>(1.0 / std::sqrt(static_cast<double>(width))));
  for (uint32_t i = 0; i < width; i += lanes) {
    const FloatVec scaled = hn::Mul(LoadFloats(row + i), norm);
    StoreFloats(round ? RoundBf16(scaled) : scaled, row + i);
  }
}

}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVSTRATA_CPU_VECTORS

#endif  // Highway's toggle
