// SPDX-License-Identifier: Apache-2.0
// Gated pooling with state in the vectors of one target (reference sections 2.2, 2.6, 2.7 and 4), for both compressors.
//
// A block that lies in the chunk as a whole, and with OVERLAP the block before it too, is pooled from the caller's rows
// where they are; any other goes through the state, token by token, and is pooled from there. Both ways run the same
// code on the same floats (a bf16 row widened, a gate with its bias), so a row does not depend on the way (I1).
//
// I1: an entry's floats depend on the rows of its own and, with OVERLAP, of the previous block, and on the level.
// I2: nothing is read beyond the channels of the rows given, and of the state only what kernels.h says is there.
//
// Include it after targets-inl.h (formats-inl.h says why).
//
// Thread rule: pure functions over the caller's state.
#if defined(KVSTRATA_KERNELS_CPU_POOLING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTRATA_KERNELS_CPU_POOLING_INL_H_
#undef KVSTRATA_KERNELS_CPU_POOLING_INL_H_
#else
#define KVSTRATA_KERNELS_CPU_POOLING_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/arguments.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/targets-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- groups of rows ----------------------------------------------------------------------------------------------

// Rows of one block, or of the state: one half of their channels. T is float or uint16_t (bf16); with kBias the gates
// lack their position bias, row s of `bias`.
template <typename T, bool kBias>
struct BlockRows {
  const T* values;
  const T* gates;
  const float* bias;
  uint64_t value_stride;
  uint64_t gate_stride;
  uint64_t bias_stride;
  uint32_t count;
};
// Rows of the state, or of a chunk whose gates need no bias.
using StateRows = BlockRows<float, false>;

// An entry's rows, those of the previous block first, are taken in groups. The sums run from row to row in order,
// wherever a group ends. A group of 8 keeps them in registers for longest and is fastest where computing takes longer
// than memory. Floats in vectors of 64 bytes wait for memory: row by row they are read in the order in which they lie,
// which the processor's own prefetching follows, and the first-level cache keeps the sums.
inline constexpr uint32_t kMostRows = 8;
template <typename T>
inline constexpr uint32_t kGroup = sizeof(T) == 4 && HWY_MAX_BYTES >= 64 ? 1 : kMostRows;

// What will be wanted later, line by line into the second-level cache: rows of values and gates in the order in which
// they lie in memory, which the processor's own prefetching recognises, where the columns in which they are pooled lose
// it. A few lines between the exps, as a burst would hold up the loads.
template <typename T>
struct RowsAhead {
  const T* values = nullptr;
  const T* gates = nullptr;
  uint64_t value_stride = 0;
  uint64_t gate_stride = 0;
  uint64_t channels = 0;
  uint64_t at = 0;
  uint64_t rows = 0;  // that are left

  HWY_INLINE void Prefetch(uint32_t count) {
    constexpr uint32_t kLine = 64 / sizeof(T);
    if (rows == 0) return;
    for (uint32_t i = 0; i < count; i += kLine) {
      __builtin_prefetch(gates + at + i, 0, 2);
      __builtin_prefetch(values + at + i, 0, 2);
    }
    at += count;
    if (at < channels) return;
    at = 0;
    --rows;
    values += value_stride;
    gates += gate_stride;
  }
};

template <typename T, bool kBias>
struct RowGroup {
  const T* values[kMostRows];
  const T* gates[kMostRows];
  const float* bias[kMostRows];
  uint32_t count;
};

// Anchors (math-inl.h) and sums of as many channels as stay in the first-level cache, from a group to the next.
struct PoolTile {
  static constexpr uint32_t kChannels = 512;
  alignas(64) float anchors[kChannels];
  alignas(64) float weights[kChannels];
  alignas(64) float sums[kChannels];
};

// Some vectors of channels, or a single channel: in every lane when it is loaded, and from one lane when it is stored.
// What does not fill a vector so goes through the same code, to the same floats.
template <uint32_t kVectorsOf, bool kOneOf>
struct Part {
  static constexpr uint32_t kVectors = kVectorsOf;
  static constexpr bool kOne = kOneOf;
};
using FourVectors = Part<4, false>;
using OneVector = Part<1, false>;
using OneChannel = Part<1, true>;

template <class P, typename T>
HWY_INLINE FloatVec LoadPart(const T* from, uint32_t v) {
  if constexpr (P::kOne) return hn::Set(FloatTag(), reference::AsFloat(*from));
  return LoadFloats(from + v * FloatLanes());
}
#if HWY_TARGET == HWY_AVX3
// Highway 1.0.3 widens bf16 by two instructions, one of which needs the units of additions, of which pooling has most.
// A look-up of 16-bit lanes that leaves the lower half of each word 0 does it at once.
template <class P>
HWY_INLINE FloatVec LoadPart(const uint16_t* from, uint32_t v) {
  if constexpr (P::kOne) return hn::Set(FloatTag(), reference::AsFloat(*from));
  if constexpr (P::kVectors == 1) return LoadFloats(from);
  // Of two vectors' halves, in a register of their own each, those of the lower or the upper one.
  const __m512i halves = _mm512_loadu_si512(from + v / 2 * 32);
  const __m512i lanes = hn::ShiftLeft<16>(hn::Add(hn::Iota(WordTag(), 0), hn::Set(WordTag(), v % 2 * 16))).raw;
  return hn::BitCast(FloatTag(), WordVec{_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, lanes, halves)});
}
#endif

template <class P>
HWY_INLINE void StorePart(FloatVec values, float* to, uint32_t v) {
  if constexpr (P::kOne) {
    *to = hn::GetLane(values);
  } else {
    StoreFloats(values, to + v * FloatLanes());
  }
}

template <class P, bool kBias, typename T>
HWY_INLINE FloatVec LoadGate(const RowGroup<T, kBias>& g, uint32_t s, uint32_t j, uint32_t v) {
  const FloatVec gate = LoadPart<P>(g.gates[s] + j, v);
  if constexpr (kBias) return hn::Add(gate, LoadPart<P>(g.bias[s] + j, v));
  return gate;
}

// What a group adds to: some vectors' sums of weights and of weighted values, the weights relative to a base that the
// entry's first gate gives. The greatest gate, which the reference takes, would cost a pass of its own over the gates;
// any of them does as long as nothing overflows. The constructor is written out, as GCC makes an implicit one without
// the options of the target, and could then not inline NEON's vectors' own.
template <class P>
struct PartSums {
  HWY_INLINE PartSums() {}

  FloatVec anchors[P::kVectors];
  FloatVec weights[P::kVectors];
  FloatVec sums[P::kVectors];
};

// From the entry's first row. False if a gate is too large for an anchor.
template <class P, bool kBias, typename T>
HWY_INLINE bool BeginPart(const RowGroup<T, kBias>& g, uint32_t j, PartSums<P>& part) {
  const FloatTag floats;
  FloatVec largest = hn::Zero(floats);
  for (uint32_t v = 0; v < P::kVectors; ++v) {
    const FloatVec gate = LoadGate<P>(g, 0, j, v);
    part.anchors[v] = Exp2Anchor(floats, gate);
    part.weights[v] = Exp2AnchorWeight(floats, gate, part.anchors[v]);
    part.sums[v] = hn::Mul(part.weights[v], LoadPart<P>(g.values[0] + j, v));
    largest = hn::Max(largest, hn::Abs(gate));  // a NaN that this loses comes out in the sums
  }
  return hn::AllTrue(floats, hn::Lt(largest, hn::Set(floats, 131072.0f)));
}

// The entry's channels. False if weights became so large that products with them could overflow, or anything is
// infinite or NaN: what overflowed once stays so.
template <class P>
HWY_INLINE bool FinishPart(const PartSums<P>& part, float* to) {
  const FloatTag floats;
  const FloatVec limit = hn::Set(floats, 0x1p64f);
  const FloatVec infinity = hn::Set(floats, std::numeric_limits<float>::infinity());
  auto modest = hn::Lt(part.weights[0], limit);
  for (uint32_t v = 0; v < P::kVectors; ++v) {
    modest = hn::And(modest, hn::And(hn::Lt(part.weights[v], limit), hn::Lt(hn::Abs(part.sums[v]), infinity)));
    StorePart<P>(hn::Div(part.sums[v], part.weights[v]), to, v);
  }
  return hn::AllTrue(floats, modest);
}

// Channels j.. of a group's rows, which are the tile's from `at` on; several vectors at once, whose latencies hide one
// another's. kFirst and kLast: the group is the entry's first or last. False: what came out is no use.
template <bool kFirst, bool kLast, class P, bool kBias, typename T>
HWY_INLINE bool AddPart(const RowGroup<T, kBias>& g, uint32_t j, uint32_t at, PoolTile& tile, RowsAhead<T>& ahead,
                        float* entry) {
  PartSums<P> part;
  bool is_good = true;
  if constexpr (kFirst) {
    if constexpr (!P::kOne) ahead.Prefetch(P::kVectors * FloatLanes());
    is_good = BeginPart(g, j, part);
  } else {
    for (uint32_t v = 0; v < P::kVectors; ++v) {
      part.anchors[v] = LoadPart<P>(tile.anchors + at, v);
      part.weights[v] = LoadPart<P>(tile.weights + at, v);
      part.sums[v] = LoadPart<P>(tile.sums + at, v);
    }
  }
  for (uint32_t s = kFirst ? 1 : 0; s < g.count; ++s) {
    if constexpr (!P::kOne) ahead.Prefetch(P::kVectors * FloatLanes());
    for (uint32_t v = 0; v < P::kVectors; ++v) {
      const FloatVec weight = Exp2Weight(FloatTag(), LoadGate<P>(g, s, j, v), part.anchors[v]);
      part.weights[v] = hn::Add(part.weights[v], weight);
      part.sums[v] = hn::MulAdd(weight, LoadPart<P>(g.values[s] + j, v), part.sums[v]);
    }
  }
  if constexpr (kLast) return FinishPart<P>(part, entry + j) && is_good;
  for (uint32_t v = 0; v < P::kVectors; ++v) {
    if constexpr (kFirst) StorePart<P>(part.anchors[v], tile.anchors + at, v);
    StorePart<P>(part.weights[v], tile.weights + at, v);
    StorePart<P>(part.sums[v], tile.sums + at, v);
  }
  return is_good;
}

// Channels begin .. begin+channels-1, which are the tile's.
template <bool kFirst, bool kLast, bool kBias, typename T>
HWY_NOINLINE bool AddGroup(const RowGroup<T, kBias>& g, uint32_t begin, uint32_t channels, PoolTile& tile,
                           RowsAhead<T>& rows_ahead, float* entry) {
  RowsAhead<T> ahead = rows_ahead;
  const uint32_t lanes = FloatLanes();
  uint32_t at = 0;
  bool is_good = true;
  for (; at + 4 * lanes <= channels; at += 4 * lanes) {
    is_good &= AddPart<kFirst, kLast, FourVectors>(g, begin + at, at, tile, ahead, entry);
  }
  for (; at + lanes <= channels; at += lanes) {
    is_good &= AddPart<kFirst, kLast, OneVector>(g, begin + at, at, tile, ahead, entry);
  }
  for (; at < channels; ++at) is_good &= AddPart<kFirst, kLast, OneChannel>(g, begin + at, at, tile, ahead, entry);
  rows_ahead = ahead;
  return is_good;
}

// ---- one entry ---------------------------------------------------------------------------------------------------

// Row n of an entry, counted over both blocks, into slot s of a group.
template <bool kBias, typename T>
HWY_INLINE void SetRow(const BlockRows<T, kBias>& previous, const BlockRows<T, kBias>& current, uint32_t n, uint32_t s,
                       RowGroup<T, kBias>& g) {
  const BlockRows<T, kBias>& block = n < previous.count ? previous : current;
  const uint32_t row = n < previous.count ? n : n - previous.count;
  g.values[s] = block.values + row * block.value_stride;
  g.gates[s] = block.gates + row * block.gate_stride;
  if constexpr (kBias) g.bias[s] = block.bias + row * block.bias_stride;
}

template <bool kBias, typename T>
HWY_INLINE bool AddRows(const RowGroup<T, kBias>& g, bool is_first, bool is_last, uint32_t begin, uint32_t channels,
                        PoolTile& tile, RowsAhead<T>& ahead, float* entry) {
  if (is_first && is_last) return AddGroup<true, true>(g, begin, channels, tile, ahead, entry);
  if (is_first) return AddGroup<true, false>(g, begin, channels, tile, ahead, entry);
  if (is_last) return AddGroup<false, true>(g, begin, channels, tile, ahead, entry);
  return AddGroup<false, false>(g, begin, channels, tile, ahead, entry);
}

// A vector of channels, or one, for any gates: relative to the greatest, which begins with the lowest finite float, not
// -infinity, so that gates of -infinity weigh 0 beside others; alone they give 0 / 0, NaN, as in the reference.
template <class P, bool kBias, typename T>
HWY_INLINE void PoolPartPlainly(const BlockRows<T, kBias>& previous, const BlockRows<T, kBias>& current, uint32_t j,
                                float* entry) {
  const FloatTag floats;
  const uint32_t rows = previous.count + current.count;
  RowGroup<T, kBias> g;
  FloatVec greatest = hn::Set(floats, std::numeric_limits<float>::lowest());
  for (uint32_t n = 0; n < rows; ++n) {
    SetRow(previous, current, n, 0, g);
    greatest = hn::Max(greatest, LoadGate<P>(g, 0, j, 0));
  }
  FloatVec weights = hn::Zero(floats);
  FloatVec sums = hn::Zero(floats);
  for (uint32_t n = 0; n < rows; ++n) {
    SetRow(previous, current, n, 0, g);
    const FloatVec weight = ExpNonPositive(floats, hn::Sub(LoadGate<P>(g, 0, j, 0), greatest));
    weights = hn::Add(weights, weight);
    sums = hn::MulAdd(weight, LoadPart<P>(g.values[0] + j, 0), sums);
  }
  StorePart<P>(hn::Div(sums, weights), entry + j, 0);
}

// Rare: gates so far apart, or values so large, that the short way overflowed.
template <bool kBias, typename T>
HWY_NOINLINE void PoolPlainly(const BlockRows<T, kBias>& previous, const BlockRows<T, kBias>& current, uint32_t begin,
                              uint32_t end, float* entry) {
  uint32_t j = begin;
  for (; j + FloatLanes() <= end; j += FloatLanes()) PoolPartPlainly<OneVector>(previous, current, j, entry);
  for (; j < end; ++j) PoolPartPlainly<OneChannel>(previous, current, j, entry);
}

// How far ahead rows are prefetched: what is pooled meanwhile outlasts a load from memory.
inline constexpr uint64_t kBytesAhead = 16384;

template <bool kBias, typename T>
void PoolEntry(const BlockRows<T, kBias>& previous, const BlockRows<T, kBias>& current, uint32_t width,
               RowsAhead<T> ahead, float* entry) {
  PoolTile tile;
  RowGroup<T, kBias> g{};
  const uint32_t rows = previous.count + current.count;
  for (uint32_t begin = 0; begin < width; begin += PoolTile::kChannels) {
    const uint32_t channels = std::min(width - begin, PoolTile::kChannels);
    bool is_good = true;
    for (uint32_t n = 0; n < rows;) {
      g.count = std::min(rows - n, kGroup<T>);
      for (uint32_t s = 0; s < g.count; ++s) SetRow(previous, current, n + s, s, g);
      const bool is_first = n == 0;
      n += g.count;
      is_good &= AddRows(g, is_first, n == rows, begin, channels, tile, ahead, entry);
    }
    if (HWY_UNLIKELY(!is_good)) PoolPlainly(previous, current, begin, begin + channels, entry);
  }
}

// ---- tokens ------------------------------------------------------------------------------------------------------

// Widens a row of `width` elements and adds a bias, if there is one.
template <typename T>
void WidenRow(const T* from, const float* bias, uint64_t width, float* to) {
  const uint64_t lanes = FloatLanes();
  uint64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    const FloatVec x = LoadFloats(from + i);
    StoreFloats(bias != nullptr ? hn::Add(x, LoadFloats(bias + i)) : x, to + i);
  }
  for (; i < width; ++i) to[i] = reference::AsFloat(from[i]) + (bias != nullptr ? bias[i] : 0.0f);
}

// The rows of one call, whose arguments have passed Prepare, and the state they go into.
template <typename T, bool kBias>
class PoolChunk {
 public:
  using Rows = BlockRows<T, kBias>;

  explicit PoolChunk(const kvstrata_pool_args& a)
      : a_(a),
        overlap_((a.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0),
        channels_(PoolChannels(a)),
        values_(static_cast<const T*>(a.values)),
        gates_(static_cast<const T*>(a.gates)) {}

  // Row(n) tells where entry n of the call goes, Done(n) that it is there.
  template <class Sink>
  void Pool(Sink& sink) const {
    const uint64_t head = std::min(TokensBeforeWholeBlocks(), a_.tokens);
    uint64_t entry = 0;
    for (uint64_t n = 0; n < head; ++n) entry += Store(n, entry, sink);
    uint64_t n = head;
    for (; n + a_.ratio <= a_.tokens; n += a_.ratio, ++entry) {
      const Rows previous = overlap_ && n != 0 ? Block(n - a_.ratio, 0, a_.ratio) : Rows{};
      PoolEntry(previous, Block(n, channels_ - a_.width, a_.ratio), a_.width, Ahead(n), sink.Row(entry));
      sink.Done(entry);
    }
    if (overlap_ && n != head) KeepPrevious(n - a_.ratio);
    for (; n < a_.tokens; ++n) Store(n, entry, sink);
  }

 private:
  // Up to the end of the open block; with OVERLAP one block more, whose previous block is in the state.
  uint64_t TokensBeforeWholeBlocks() const {
    const uint64_t open = a_.position % a_.ratio;
    const uint64_t to_end = open == 0 ? 0 : a_.ratio - open;
    return overlap_ && a_.position != 0 ? to_end + a_.ratio : to_end;
  }

  // `count` rows from token n on, channels from `begin` on.
  Rows Block(uint64_t n, uint64_t begin, uint32_t count) const {
    return {values_ + n * a_.value_stride + begin,
            gates_ + n * a_.gate_stride + begin,
            kBias ? a_.ape + begin : nullptr,
            a_.value_stride,
            a_.gate_stride,
            channels_,
            count};
  }

  // What to prefetch while the block at token n is pooled.
  RowsAhead<T> Ahead(uint64_t n) const {
    const uint64_t first = n + 1 + kBytesAhead / (2 * channels_ * sizeof(T));
    if (first >= a_.tokens) return {};
    return {values_ + first * a_.value_stride,
            gates_ + first * a_.gate_stride,
            a_.value_stride,
            a_.gate_stride,
            channels_,
            0,
            std::min<uint64_t>(a_.ratio, a_.tokens - first)};
  }

  // Puts token n into its slot of the open block. True if that completed the block: its entry is there, and with
  // OVERLAP its P half is kept.
  template <class Sink>
  bool Store(uint64_t n, uint64_t entry, Sink& sink) const {
    const uint64_t t = a_.position + n;
    const uint64_t slot = t % a_.ratio;
    WidenRow(values_ + n * a_.value_stride, nullptr, channels_, a_.open_values + slot * channels_);
    WidenRow(gates_ + n * a_.gate_stride, kBias ? a_.ape + slot * channels_ : nullptr, channels_,
             a_.open_gates + slot * channels_);
    if (slot + 1 != a_.ratio) return false;
    const uint64_t half = channels_ - a_.width;
    const StateRows current = {a_.open_values + half, a_.open_gates + half, nullptr, channels_, channels_, 0, a_.ratio};
    const bool has_previous = overlap_ && t >= a_.ratio;
    const StateRows previous = {
        a_.prev_values, a_.prev_gates, nullptr, a_.width, a_.width, 0, has_previous ? a_.ratio : 0};
    PoolEntry(previous, current, a_.width, RowsAhead<float>(), sink.Row(entry));
    sink.Done(entry);
    if (!overlap_) return true;
    for (uint64_t s = 0; s < a_.ratio; ++s) {
      WidenRow(a_.open_values + s * channels_, nullptr, a_.width, a_.prev_values + s * a_.width);
      WidenRow(a_.open_gates + s * channels_, nullptr, a_.width, a_.prev_gates + s * a_.width);
    }
    return true;
  }

  // The P half of the block at token n, straight from the caller's rows.
  void KeepPrevious(uint64_t n) const {
    for (uint64_t s = 0; s < a_.ratio; ++s) {
      WidenRow(values_ + (n + s) * a_.value_stride, nullptr, a_.width, a_.prev_values + s * a_.width);
      WidenRow(gates_ + (n + s) * a_.gate_stride, kBias ? a_.ape + s * channels_ : nullptr, a_.width,
               a_.prev_gates + s * a_.width);
    }
  }

  const kvstrata_pool_args& a_;
  const bool overlap_;
  const uint64_t channels_;
  const T* const values_;
  const T* const gates_;
};

template <typename T, class Sink>
void PoolTokens(const kvstrata_pool_args& a, Sink& sink) {
  if (a.ratio == 1 && (a.flags & KVSTRATA_KERNELS_POOL_OVERLAP) == 0) {  // softmax over one gate: the value itself
    for (uint64_t n = 0; n < a.tokens; ++n) {
      WidenRow(static_cast<const T*>(a.values) + n * a.value_stride, nullptr, a.width, sink.Row(n));
      sink.Done(n);
    }
  } else if (a.ape != nullptr) {
    PoolChunk<T, true>(a).Pool(sink);
  } else {
    PoolChunk<T, false>(a).Pool(sink);
  }
}

// Feeds the tokens of `a`, which has passed Prepare, and hands each entry that completes to the sink.
template <class Sink>
void PoolTokens(const kvstrata_pool_args& a, Sink& sink) {
  if (a.input_type == KVSTRATA_KERNELS_F32) return PoolTokens<float>(a, sink);
  PoolTokens<uint16_t>(a, sink);
}

}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVSTRATA_CPU_VECTORS

#endif  // Highway's toggle
