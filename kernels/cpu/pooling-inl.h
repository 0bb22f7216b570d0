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

// An entry's rows, those of the previous block first, are taken in groups of 8, then 4, 2 and 1: CSA's are one group. A
// second group is added to the first relative to the greatest gate of both. Groups are counted from the entry's first
// row, wherever the chunk began, so rescaling happens at the same rows always.
inline constexpr uint32_t kGroup = 8;

template <typename T>
struct RowGroup {
  const T* values[kGroup];
  const T* gates[kGroup];
  const float* bias[kGroup];
  // Elements from a row to the one that will be wanted in its place later; 0 where none is there.
  uint64_t values_ahead;
  uint64_t gates_ahead;
  bool is_first;
  bool is_last;
};

// The greatest gate so far and the sums relative to it, of as many channels as stay in the first-level cache.
struct PoolTile {
  static constexpr uint32_t kChannels = 512;
  alignas(64) float greatest[kChannels];
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

// The line that will be wanted where this vector is, into the second-level cache. The rows lie kilobytes apart, where
// the processor's own prefetching loses them; one by one between the exps, as a burst would hold up the loads.
template <typename T>
HWY_INLINE void PrefetchAhead(const RowGroup<T>& g, uint32_t s, uint32_t j, uint32_t v) {
  if (v * FloatLanes() * sizeof(T) % 64 != 0) return;
  __builtin_prefetch(g.gates[s] + g.gates_ahead + j + v * FloatLanes(), 0, 2);
  __builtin_prefetch(g.values[s] + g.values_ahead + j + v * FloatLanes(), 0, 2);
}

// What a group adds to: some vectors' greatest gates and sums. The constructor is written out, as GCC makes an implicit
// one without the options of the target, and could then not inline NEON's vectors' own.
template <class P>
struct PartSums {
  HWY_INLINE PartSums() {}

  FloatVec greatest[P::kVectors];
  FloatVec weights[P::kVectors];
  FloatVec sums[P::kVectors];
};

// The gates of a group with their bias, on the way from the first pass to the second.
template <uint32_t kRows, class P>
struct PartGates {
  alignas(64) float rows[kRows][P::kVectors * (HWY_MAX_BYTES / sizeof(float))];
};

// From the first group's weights to the next one's, and from gates to weights: 2^(gate log2(e) - greatest log2(e)),
// where the second product is rounded alike for all rows, so that its rounding cancels in the quotient of the sums.
// Plain, for a greatest gate so large that the product could overflow: e^(gate - greatest).
template <bool kPlain>
HWY_INLINE FloatVec WeightOf(FloatVec gate, FloatVec greatest) {
  const FloatTag floats;
  if constexpr (kPlain) return ExpNonPositive(floats, hn::Sub(gate, greatest));
  const FloatVec log2e = hn::Set(floats, 1.44269504088896341f);
  return Exp2Weight(floats, hn::MulSub(gate, log2e, hn::Mul(greatest, log2e)));
}
template <bool kPlain>
HWY_INLINE FloatVec RescaleOf(FloatVec so_far, FloatVec greatest) {
  const FloatTag floats;
  if constexpr (kPlain) return ExpNonPositive(floats, hn::Sub(so_far, greatest));
  const FloatVec log2e = hn::Set(floats, 1.44269504088896341f);
  return Exp2Weight(floats, hn::Sub(hn::Mul(so_far, log2e), hn::Mul(greatest, log2e)));
}

// The second pass: all exps. `at` is where the channels are in the tile.
template <bool kPlain, uint32_t kRows, class P, typename T>
HWY_INLINE void AddWeights(const RowGroup<T>& g, const PartGates<kRows, P>& gates, uint32_t j, uint32_t at,
                           const PoolTile& tile, PartSums<P>& part) {
  for (uint32_t v = 0; v < P::kVectors; ++v) {
    part.weights[v] = part.sums[v] = hn::Zero(FloatTag());
    if (g.is_first) continue;
    const FloatVec rescale = RescaleOf<kPlain>(LoadPart<P>(tile.greatest + at, v), part.greatest[v]);
    part.weights[v] = hn::Mul(LoadPart<P>(tile.weights + at, v), rescale);
    part.sums[v] = hn::Mul(LoadPart<P>(tile.sums + at, v), rescale);
  }
  for (uint32_t s = 0; s < kRows; ++s) {
    for (uint32_t v = 0; v < P::kVectors; ++v) {
      if constexpr (P::kVectors == 4) PrefetchAhead(g, s, j, v);
      const FloatVec gate = hn::Load(FloatTag(), gates.rows[s] + v * FloatLanes());
      const FloatVec weight = WeightOf<kPlain>(gate, part.greatest[v]);
      part.weights[v] = hn::Add(part.weights[v], weight);
      part.sums[v] = hn::MulAdd(weight, LoadPart<P>(g.values[s] + j, v), part.sums[v]);
    }
  }
}

// Rare, so not copied into every loop.
template <uint32_t kRows, class P, typename T>
HWY_NOINLINE void AddWeightsPlainly(const RowGroup<T>& g, const PartGates<kRows, P>& gates, uint32_t j, uint32_t at,
                                    const PoolTile& tile, PartSums<P>& part) {
  AddWeights<true>(g, gates, j, at, tile, part);
}

template <class P>
HWY_INLINE bool AreModest(const FloatVec (&greatest)[P::kVectors]) {
  FloatVec largest = hn::Abs(greatest[0]);
  for (uint32_t v = 1; v < P::kVectors; ++v) largest = hn::Max(largest, hn::Abs(greatest[v]));
  return hn::AllTrue(FloatTag(), hn::Lt(largest, hn::Set(FloatTag(), 1e38f)));
}

// Channels j.. of a group's kRows rows. First all gates, then all exps, over several vectors at once: what depends on
// one another lies far enough apart to hide its latency. The greatest gate begins with the lowest finite float, not
// -infinity, so that a group of gates that are all -infinity weighs 0 beside others; alone it gives 0 / 0, NaN, as in
// the reference.
template <uint32_t kRows, bool kBias, class P, typename T>
HWY_INLINE void AddPart(const RowGroup<T>& g, uint32_t j, uint32_t at, PoolTile& tile, float* entry) {
  const FloatTag floats;
  PartGates<kRows, P> gates;
  PartSums<P> part;
  for (uint32_t v = 0; v < P::kVectors; ++v) {
    part.greatest[v] =
        g.is_first ? hn::Set(floats, std::numeric_limits<float>::lowest()) : LoadPart<P>(tile.greatest + at, v);
  }
  for (uint32_t s = 0; s < kRows; ++s) {
    for (uint32_t v = 0; v < P::kVectors; ++v) {
      FloatVec gate = LoadPart<P>(g.gates[s] + j, v);
      if constexpr (kBias) gate = hn::Add(gate, LoadPart<P>(g.bias[s] + j, v));
      part.greatest[v] = hn::Max(part.greatest[v], gate);
      hn::Store(gate, floats, gates.rows[s] + v * FloatLanes());
    }
  }
  if (HWY_LIKELY(AreModest<P>(part.greatest))) {
    AddWeights<false>(g, gates, j, at, tile, part);
  } else {
    AddWeightsPlainly(g, gates, j, at, tile, part);
  }
  for (uint32_t v = 0; v < P::kVectors; ++v) {
    if (g.is_last) {
      StorePart<P>(hn::Div(part.sums[v], part.weights[v]), entry + j, v);
    } else {
      StorePart<P>(part.greatest[v], tile.greatest + at, v);
      StorePart<P>(part.weights[v], tile.weights + at, v);
      StorePart<P>(part.sums[v], tile.sums + at, v);
    }
  }
}

// Channels begin .. begin+channels-1, which are the tile's.
template <uint32_t kRows, bool kBias, typename T>
HWY_NOINLINE void AddGroup(const RowGroup<T>& g, uint32_t begin, uint32_t channels, PoolTile& tile, float* entry) {
  const uint32_t lanes = FloatLanes();
  uint32_t at = 0;
  for (; at + 4 * lanes <= channels; at += 4 * lanes) {
    AddPart<kRows, kBias, FourVectors>(g, begin + at, at, tile, entry);
  }
  for (; at + lanes <= channels; at += lanes) AddPart<kRows, kBias, OneVector>(g, begin + at, at, tile, entry);
  for (; at < channels; ++at) AddPart<kRows, kBias, OneChannel>(g, begin + at, at, tile, entry);
}

// ---- one entry ---------------------------------------------------------------------------------------------------

// How many of an entry's `left` rows its next group takes.
inline uint32_t GroupRows(uint32_t left) { return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

template <bool kBias, typename T>
void AddRows(uint32_t rows, const RowGroup<T>& g, uint32_t begin, uint32_t channels, PoolTile& tile, float* entry) {
  switch (rows) {
    case 8: return AddGroup<8, kBias>(g, begin, channels, tile, entry);
    case 4: return AddGroup<4, kBias>(g, begin, channels, tile, entry);
    case 2: return AddGroup<2, kBias>(g, begin, channels, tile, entry);
    default: return AddGroup<1, kBias>(g, begin, channels, tile, entry);
  }
}

// Row n of an entry, counted over both blocks, into slot s of a group.
template <bool kBias, typename T>
HWY_INLINE void SetRow(const BlockRows<T, kBias>& previous, const BlockRows<T, kBias>& current, uint32_t n, uint32_t s,
                       RowGroup<T>& g) {
  const BlockRows<T, kBias>& block = n < previous.count ? previous : current;
  const uint32_t row = n < previous.count ? n : n - previous.count;
  g.values[s] = block.values + row * block.value_stride;
  g.gates[s] = block.gates + row * block.gate_stride;
  if constexpr (kBias) g.bias[s] = block.bias + row * block.bias_stride;
}

// How far ahead rows are prefetched: what is pooled meanwhile outlasts a load from memory. bf16 rows take little less
// time to pool than floats, and half the memory.
template <typename T>
inline constexpr uint32_t kRowsAhead = sizeof(T) == 2 ? 16 : 8;

// `rows_there`: rows of the caller's from the current block's first one on; 0 where the rows are the state's.
template <bool kBias, typename T>
void PoolEntry(const BlockRows<T, kBias>& previous, const BlockRows<T, kBias>& current, uint32_t width,
               uint64_t rows_there, float* entry) {
  PoolTile tile;
  RowGroup<T> g{};
  const uint32_t rows = previous.count + current.count;
  for (uint32_t begin = 0; begin < width; begin += PoolTile::kChannels) {
    const uint32_t channels = std::min(width - begin, PoolTile::kChannels);
    for (uint32_t n = 0; n < rows;) {
      const uint32_t count = GroupRows(rows - n);
      for (uint32_t s = 0; s < count; ++s) SetRow(previous, current, n + s, s, g);
      g.is_first = n == 0;
      n += count;
      g.is_last = n == rows;
      const bool is_ahead_there = n + kRowsAhead<T> <= rows_there + previous.count;
      g.values_ahead = is_ahead_there ? kRowsAhead<T> * current.value_stride : 0;
      g.gates_ahead = is_ahead_there ? kRowsAhead<T> * current.gate_stride : 0;
      AddRows<kBias>(count, g, begin, channels, tile, entry);
    }
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
      PoolEntry(previous, Block(n, channels_ - a_.width, a_.ratio), a_.width, a_.tokens - n, sink.Row(entry));
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
    PoolEntry(previous, current, a_.width, 0, sink.Row(entry));
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
