// SPDX-License-Identifier: Apache-2.0
// Gated pooling with state (CSA and HCA): one launch for the entries, one for the state behind them. Entries read the
// old state, so the new one is written by a launch of its own, which the stream puts after the first.
#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/words.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::cuda {
namespace {

struct Sample {
  float value;
  float gate;
};

// Values and gates of all tokens that a call can see: its own, and before them what the state holds.
struct Tokens {
  Rows values, gates;
  uint64_t value_stride, gate_stride;
  const float* ape;
  float *prev_values, *prev_gates;
  float *open_values, *open_gates;
  uint64_t position;
  uint32_t ratio, width, channels;

  explicit Tokens(const kvstrata_pool_args& a)
      : values{const_cast<void*>(a.values), a.input_type},
        gates{const_cast<void*>(a.gates), a.input_type},
        value_stride(a.value_stride),
        gate_stride(a.gate_stride),
        ape(a.ape),
        prev_values(a.prev_values),
        prev_gates(a.prev_gates),
        open_values(a.open_values),
        open_gates(a.open_gates),
        position(a.position),
        ratio(a.ratio),
        width(a.width),
        channels(static_cast<uint32_t>(PoolChannels(a))) {}

  KVSTRATA_DEVICE Sample Given(uint64_t token, uint32_t slot, uint32_t channel) const {
    const uint64_t n = token - position;
    float value[1], gate[1];
    values.Load(n * value_stride + channel, value);
    gates.Load(n * gate_stride + channel, gate);
    return {value[0], ape != nullptr ? gate[0] + ape[uint64_t{slot} * channels + channel] : gate[0]};
  }

  // Token `slot` of a block that is not older than the one before the open one; of that only the P half is there.
  KVSTRATA_DEVICE Sample At(uint64_t block, uint32_t slot, uint32_t channel) const {
    const uint64_t token = block * ratio + slot;
    if (token >= position) return Given(token, slot, channel);
    if (block == position / ratio) {
      const uint64_t at = uint64_t{slot} * channels + channel;
      return {open_values[at], open_gates[at]};
    }
    const uint64_t at = uint64_t{slot} * width + channel;
    return {prev_values[at], prev_gates[at]};
  }
};

// A block of threads has kThreads / kGroups channels of one entry. With many tokens an entry, kGroups threads share a
// channel's, each a fixed part of them, so that few entries still keep a GPU busy; their sums are added in their order.
template <uint32_t kGroups>
struct Pool {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kChannels = kThreads / kGroups;
  static constexpr uint32_t kSharedBytes = 3 * kThreads * sizeof(float);

  Tokens tokens;
  uint64_t first_entry;
  uint64_t count;
  float* entries;
  uint64_t entry_stride;
  bool overlap;

  KVSTRATA_HOST_DEVICE uint32_t tiles() const { return (tokens.width + kChannels - 1) / kChannels; }

  // Row `i` of an entry: its previous block's tokens where there are such, then its own.
  KVSTRATA_DEVICE Sample RowAt(uint64_t entry, uint32_t previous, uint32_t i, uint32_t channel) const {
    if (i < previous) return tokens.At(entry - 1, i, channel);
    return tokens.At(entry, i - previous, tokens.channels - tokens.width + channel);
  }

  KVSTRATA_DEVICE void PoolTile(const Thread& t, uint64_t n, uint32_t tile) const {
    const uint32_t in_tile = t.thread() % kChannels;
    const uint32_t group = t.thread() / kChannels;
    const uint32_t channel = tile * kChannels + in_tile;
    const bool there = channel < tokens.width;
    const uint64_t entry = first_entry + n;
    const uint32_t previous = overlap && entry > 0 ? tokens.ratio : 0;
    const uint32_t rows = previous + tokens.ratio;
    const uint32_t begin = static_cast<uint32_t>(uint64_t{rows} * group / kGroups);
    const uint32_t end = static_cast<uint32_t>(uint64_t{rows} * (group + 1) / kGroups);
    float* maxima = static_cast<float*>(t.shared());
    float* weights = maxima + kThreads;
    float* sums = weights + kThreads;

    float maximum = -INFINITY;
    for (uint32_t i = begin; there && i < end; ++i) {
      const float gate = RowAt(entry, previous, i, channel).gate;
      maximum = gate > maximum ? gate : maximum;
    }
    maxima[t.thread()] = maximum;
    t.Sync();
    for (uint32_t g = 0; g < kGroups; ++g) {
      const float other = maxima[g * kChannels + in_tile];
      maximum = other > maximum ? other : maximum;
    }
    float weight = 0, sum = 0;
    for (uint32_t i = begin; there && i < end; ++i) {
      const Sample row = RowAt(entry, previous, i, channel);
      const float w = reference::ExpNonPositive(row.gate - maximum);
      weight += w;
      sum += w * row.value;
    }
    weights[t.thread()] = weight;
    sums[t.thread()] = sum;
    t.Sync();
    if (group != 0 || !there) return;
    for (uint32_t g = 1; g < kGroups; ++g) {
      weight += weights[g * kChannels + in_tile];
      sum += sums[g * kChannels + in_tile];
    }
    entries[n * entry_stride + channel] = sum / weight;
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t index = t.block(); index < count * tiles(); index += t.blocks()) {
      PoolTile(t, index / tiles(), static_cast<uint32_t>(index % tiles()));
      t.Sync();  // the next tile's numbers come where these are read
    }
  }
};

// What the next call finds. One thread has a slot's channel in both states, so that the old open block's rows have been
// read before the new one's come in their place.
struct KeepState {
  static constexpr uint32_t kThreads = 256;

  Tokens tokens;
  uint64_t end;  // position behind the call's tokens
  bool overlap;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint64_t block = end / tokens.ratio;  // the new open one
    const uint64_t work = uint64_t{tokens.ratio} * tokens.channels;
    for (uint64_t index = t.first(); index < work; index += t.step()) {
      const Quotient place = Divide(index, tokens.channels);
      const uint32_t slot = static_cast<uint32_t>(place.whole);
      const uint32_t channel = static_cast<uint32_t>(place.rest);
      if (overlap && block > tokens.position / tokens.ratio && channel < tokens.width) {
        const Sample last = tokens.At(block - 1, slot, channel);
        tokens.prev_values[uint64_t{slot} * tokens.width + channel] = last.value;
        tokens.prev_gates[uint64_t{slot} * tokens.width + channel] = last.gate;
      }
      const uint64_t token = block * tokens.ratio + slot;
      if (token >= tokens.position && token < end) {
        const Sample open = tokens.Given(token, slot, channel);
        tokens.open_values[index] = open.value;
        tokens.open_gates[index] = open.gate;
      }
    }
  }
};

// A softmax over one gate: the value itself.
struct Copy {
  static constexpr uint32_t kThreads = 256;

  Rows values;
  uint64_t value_stride;
  float* entries;
  uint64_t entry_stride;
  uint64_t rows;
  uint32_t width;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t index = t.first(); index < rows * width; index += t.step()) {
      const Quotient row = Divide(index, width);
      float value[1];
      values.Load(row.whole * value_stride + row.rest, value);
      entries[row.whole * entry_stride + row.rest] = value[0];
    }
  }
};

// Tokens of one entry from which it is worth to share a channel.
constexpr uint32_t kSharedFrom = 32;

template <uint32_t kGroups>
int32_t LaunchPool(const kvstrata_pool_args& a, bool overlap, void* stream) {
  const Pool<kGroups> kernel{Tokens(a), a.position / a.ratio, EmittedEntries(a), a.entries, a.entry_stride, overlap};
  const uint64_t blocks = kernel.count * kernel.tiles();
  return Launch(kernel, Grid::Over(blocks * kernel.kThreads, kernel.kThreads, kernel.kSharedBytes), stream);
}

}  // namespace

int32_t PoolTokens(const kvstrata_pool_args& a, void* stream) {
  const bool overlap = (a.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0;
  if (a.tokens == 0) return kOk;
  if (a.ratio == 1 && !overlap) {
    const Copy kernel{
        {const_cast<void*>(a.values), a.input_type}, a.value_stride, a.entries, a.entry_stride, a.tokens, a.width};
    return Launch(kernel, Grid::Over(a.tokens * a.width, kernel.kThreads), stream);
  }
  const int32_t status = a.ratio < kSharedFrom ? LaunchPool<1>(a, overlap, stream) : LaunchPool<4>(a, overlap, stream);
  if (status != kOk) return status;
  const KeepState state{Tokens(a), a.position + a.tokens, overlap};
  return Launch(state, Grid::Over(uint64_t{a.ratio} * state.tokens.channels, state.kThreads), stream);
}

int32_t CsaPool(const kvstrata_pool_args* args, void* stream) {
  kvstrata_pool_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  return PoolTokens(a, stream);
}

int32_t HcaPool(const kvstrata_pool_args* args, void* stream) {
  kvstrata_pool_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  return (a.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0 ? kInvalidArgument : PoolTokens(a, stream);
}

}  // namespace kvstrata::kernels::cuda
