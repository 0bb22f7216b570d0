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

// Loads of any number of lanes: what does not fill a vector goes through the same code with one lane.
using OneFloat = hn::CappedTag<float, 1>;

template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const uint16_t* from) {
  const hn::Rebind<uint16_t, D> halves;
  const hn::RebindToUnsigned<D> words;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(halves, from))));
}

// The rows of a block that take part in an entry, one half of their channels. T is float or uint16_t (bf16); with kBias
// the gates lack their position bias, row s of `bias`.
template <typename T, bool kBiasOf>
struct BlockRows {
  static constexpr bool kBias = kBiasOf;
  using Type = T;
  const T* values;
  const T* gates;
  const float* bias;
  uint64_t value_stride;
  uint64_t gate_stride;
  uint64_t bias_stride;
  uint32_t count;

  template <class D>
  HWY_INLINE hn::Vec<D> Value(D d, uint32_t s, uint32_t j) const {
    return LoadWide(d, values + s * value_stride + j);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Gate(D d, uint32_t s, uint32_t j) const {
    const hn::Vec<D> gate = LoadWide(d, gates + s * gate_stride + j);
    if constexpr (kBias) return hn::Add(gate, hn::LoadU(d, bias + s * bias_stride + j));
    return gate;
  }
};
// Rows of the state, or of a chunk whose gates need no bias.
using StateRows = BlockRows<float, false>;

// A line of each row into the second-level cache. The rows of a block lie kilobytes apart, where the processor's own
// prefetching loses them.
template <class Rows>
HWY_INLINE void PrefetchLines(const Rows& rows, uint32_t count, uint64_t rows_ahead, uint32_t j) {
  for (uint32_t s = 0; s < count; ++s) {
    __builtin_prefetch(rows.gates + (rows_ahead + s) * rows.gate_stride + j, 0, 2);
    __builtin_prefetch(rows.values + (rows_ahead + s) * rows.value_stride + j, 0, 2);
  }
}

inline constexpr uint32_t kLineBytes = 64;

template <class D, class Rows, class V = hn::Vec<D>>
HWY_INLINE void AddRow(D d, const Rows& rows, uint32_t s, uint32_t j, V below_greatest, V& weights, V& sums) {
  const V weight = ExpNonPositive(d, below_greatest);
  weights = hn::Add(weights, weight);
  sums = hn::MulAdd(weight, rows.Value(d, s, j), sums);
}

// ---- few rows: the greatest gate first, then the sums ------------------------------------------------------------

// kRatio rows of the current block, and with kPrevious as many of the previous one. The gates stay in registers.
template <uint32_t kRatio, bool kPrevious, class D, class Rows, class V = hn::Vec<D>>
HWY_INLINE V PoolFewLanes(D d, const Rows& previous, const Rows& current, uint32_t j) {
  constexpr uint32_t kBefore = kPrevious ? kRatio : 0;
  V gates[kBefore + kRatio];
  for (uint32_t s = 0; s < kBefore; ++s) gates[s] = previous.Gate(d, s, j);
  for (uint32_t s = 0; s < kRatio; ++s) gates[kBefore + s] = current.Gate(d, s, j);
  V greatest = gates[0];
  for (uint32_t s = 1; s < kBefore + kRatio; ++s) greatest = hn::Max(greatest, gates[s]);
  V weights = hn::Zero(d);
  V sums = hn::Zero(d);
  for (uint32_t s = 0; s < kBefore; ++s) AddRow(d, previous, s, j, hn::Sub(gates[s], greatest), weights, sums);
  for (uint32_t s = 0; s < kRatio; ++s) AddRow(d, current, s, j, hn::Sub(gates[kBefore + s], greatest), weights, sums);
  return hn::Div(sums, weights);
}

// With `blocks_ahead`, the rows that many blocks on are there and will be wanted.
template <uint32_t kRatio, bool kPrevious, class Rows>
HWY_NOINLINE void PoolFew(const Rows& previous, const Rows& current, uint32_t width, uint32_t blocks_ahead,
                          float* entry) {
  constexpr uint32_t kLine = kLineBytes / sizeof(typename Rows::Type);
  const uint32_t lanes = FloatLanes();
  uint32_t j = 0;
  for (; j + lanes <= width; j += lanes) {
    if (blocks_ahead != 0 && j % kLine == 0) {
      if (kPrevious) PrefetchLines(previous, kRatio, blocks_ahead * kRatio, j);
      PrefetchLines(current, kRatio, blocks_ahead * kRatio, j);
    }
    StoreFloats(PoolFewLanes<kRatio, kPrevious>(FloatTag(), previous, current, j), entry + j);
  }
  const OneFloat one;
  for (; j < width; ++j) hn::StoreU(PoolFewLanes<kRatio, kPrevious>(one, previous, current, j), one, entry + j);
}

// ---- any number of rows, the same way; the gates are loaded twice ------------------------------------------------

template <class D, class Rows, class V = hn::Vec<D>>
HWY_INLINE V PoolAnyLanes(D d, const Rows& previous, const Rows& current, uint32_t j) {
  V greatest = current.Gate(d, 0, j);
  for (uint32_t s = 0; s < previous.count; ++s) greatest = hn::Max(greatest, previous.Gate(d, s, j));
  for (uint32_t s = 1; s < current.count; ++s) greatest = hn::Max(greatest, current.Gate(d, s, j));
  V weights = hn::Zero(d);
  V sums = hn::Zero(d);
  for (uint32_t s = 0; s < previous.count; ++s) {
    AddRow(d, previous, s, j, hn::Sub(previous.Gate(d, s, j), greatest), weights, sums);
  }
  for (uint32_t s = 0; s < current.count; ++s) {
    AddRow(d, current, s, j, hn::Sub(current.Gate(d, s, j), greatest), weights, sums);
  }
  return hn::Div(sums, weights);
}

template <class Rows>
HWY_NOINLINE void PoolAny(const Rows& previous, const Rows& current, uint32_t width, float* entry) {
  const uint32_t lanes = FloatLanes();
  uint32_t j = 0;
  for (; j + lanes <= width; j += lanes) {
    StoreFloats(PoolAnyLanes(FloatTag(), previous, current, j), entry + j);
  }
  const OneFloat one;
  for (; j < width; ++j) hn::StoreU(PoolAnyLanes(one, previous, current, j), one, entry + j);
}

// ---- many rows: in groups, with running sums ---------------------------------------------------------------------

// The greatest gate so far and the sums relative to it, of as many channels as stay in the first-level cache. Groups
// begin at the block's first row, wherever the chunk began, so rescaling happens at the same rows always.
struct PoolTile {
  static constexpr uint32_t kChannels = 512;
  static constexpr uint32_t kGroup = 8;
  alignas(64) float greatest[kChannels];
  alignas(64) float weights[kChannels];
  alignas(64) float sums[kChannels];
};

// Rows first .. first+kRows-1 of channel j, which is `at` in the tile. The greatest gate begins with the lowest finite
// float, not -infinity, so that a group of gates that are all -infinity has weights of 0 and not NaN.
template <uint32_t kRows, class D, class Rows, class V = hn::Vec<D>>
HWY_INLINE void AddGroupLanes(D d, const Rows& rows, uint32_t first, uint32_t j, uint32_t at, PoolTile& tile) {
  V gates[kRows];
  for (uint32_t s = 0; s < kRows; ++s) gates[s] = rows.Gate(d, first + s, j);
  V greatest = hn::Set(d, std::numeric_limits<float>::lowest());
  V weights = hn::Zero(d);
  V sums = hn::Zero(d);
  if (first != 0) {
    const V so_far = hn::LoadU(d, tile.greatest + at);
    greatest = so_far;
    for (uint32_t s = 0; s < kRows; ++s) greatest = hn::Max(greatest, gates[s]);
    const V rescale = ExpNonPositive(d, hn::Sub(so_far, greatest));
    weights = hn::Mul(hn::LoadU(d, tile.weights + at), rescale);
    sums = hn::Mul(hn::LoadU(d, tile.sums + at), rescale);
  } else {
    for (uint32_t s = 0; s < kRows; ++s) greatest = hn::Max(greatest, gates[s]);
  }
  for (uint32_t s = 0; s < kRows; ++s) AddRow(d, rows, first + s, j, hn::Sub(gates[s], greatest), weights, sums);
  hn::StoreU(greatest, d, tile.greatest + at);
  hn::StoreU(weights, d, tile.weights + at);
  hn::StoreU(sums, d, tile.sums + at);
}

// Channels begin .. begin+channels-1. With `rows_ahead`, the rows that many on are there and will be wanted.
template <uint32_t kRows, class Rows>
HWY_NOINLINE void AddGroup(const Rows& rows, uint32_t first, uint32_t begin, uint32_t channels, uint32_t rows_ahead,
                           PoolTile& tile) {
  constexpr uint32_t kLine = kLineBytes / sizeof(typename Rows::Type);
  const uint32_t lanes = FloatLanes();
  uint32_t at = 0;
  for (; at + lanes <= channels; at += lanes) {
    if (rows_ahead != 0 && at % kLine == 0) PrefetchLines(rows, kRows, first + rows_ahead, begin + at);
    AddGroupLanes<kRows>(FloatTag(), rows, first, begin + at, at, tile);
  }
  for (; at < channels; ++at) AddGroupLanes<kRows>(OneFloat(), rows, first, begin + at, at, tile);
}

inline void DivideRow(const PoolTile& tile, uint32_t channels, float* entry) {
  const uint32_t lanes = FloatLanes();
  uint32_t i = 0;
  for (; i + lanes <= channels; i += lanes) {
    StoreFloats(hn::Div(LoadFloats(tile.sums + i), LoadFloats(tile.weights + i)), entry + i);
  }
  for (; i < channels; ++i) entry[i] = tile.sums[i] / tile.weights[i];
}

// `rows_there` counts from the block's first row to the chunk's end: what may be prefetched.
template <class Rows>
void PoolMany(const Rows& rows, uint32_t width, uint64_t rows_there, float* entry) {
  constexpr uint32_t kGroup = PoolTile::kGroup;
  PoolTile tile;
  for (uint32_t begin = 0; begin < width; begin += PoolTile::kChannels) {
    const uint32_t channels = std::min(width - begin, PoolTile::kChannels);
    uint32_t s = 0;
    for (; s + kGroup <= rows.count; s += kGroup) {
      AddGroup<kGroup>(rows, s, begin, channels, s + 2 * kGroup <= rows_there ? kGroup : 0, tile);
    }
    for (; s < rows.count; ++s) AddGroup<1>(rows, s, begin, channels, 0, tile);
    DivideRow(tile, channels, entry + begin);
  }
}

// ---- one entry, whichever way its number of rows asks for --------------------------------------------------------

// How many blocks ahead few rows are prefetched.
inline constexpr uint32_t kBlocksAhead = 2;

template <uint32_t kRatio, class Rows>
void PoolFew(const Rows& previous, const Rows& current, uint32_t width, uint64_t rows_there, float* entry) {
  const uint32_t ahead = rows_there >= (kBlocksAhead + 1) * kRatio ? kBlocksAhead : 0;
  previous.count != 0 ? PoolFew<kRatio, true>(previous, current, width, ahead, entry)
                      : PoolFew<kRatio, false>(previous, current, width, ahead, entry);
}

// `rows_there`: rows of the caller's from the current block's first one on; 0 where the rows are the state's.
template <class Rows>
void PoolEntry(const Rows& previous, const Rows& current, uint32_t width, uint64_t rows_there, float* entry) {
  if (current.count == 4) return PoolFew<4>(previous, current, width, rows_there, entry);
  if (current.count == 2) return PoolFew<2>(previous, current, width, rows_there, entry);
  if (previous.count == 0 && current.count > PoolTile::kGroup) return PoolMany(current, width, rows_there, entry);
  PoolAny(previous, current, width, entry);
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
