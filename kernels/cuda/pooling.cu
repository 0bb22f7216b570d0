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

// The rows of an entry, all of them the call's own: the previous block's tokens where there are such, then its own,
// which follow them. T is float or uint16_t (bf16).
template <typename T>
struct GivenRows {
  const T* values;
  const T* gates;
  const float* ape;
  uint64_t value_stride, gate_stride;
  uint32_t channels, ratio;
  uint32_t previous;  // rows
  uint32_t later;     // how much further the own block's channels lie

  KVSTRATA_DEVICE GivenRows(const Tokens& tokens, uint64_t entry, uint32_t previous_rows, uint32_t channel)
      : value_stride(tokens.value_stride),
        gate_stride(tokens.gate_stride),
        channels(tokens.channels),
        ratio(tokens.ratio),
        previous(previous_rows),
        later(tokens.channels - tokens.width) {
    const uint64_t first = entry * ratio - previous - tokens.position;
    values = static_cast<const T*>(tokens.values.data) + first * value_stride + channel;
    gates = static_cast<const T*>(tokens.gates.data) + first * gate_stride + channel;
    ape = tokens.ape != nullptr ? tokens.ape + channel : nullptr;
  }

  KVSTRATA_DEVICE float Value(uint32_t i) const {
    return reference::AsFloat(values[i * value_stride + (i < previous ? 0 : later)]);
  }
  KVSTRATA_DEVICE float Gate(uint32_t i) const {
    const uint32_t further = i < previous ? 0 : later;
    const float gate = reference::AsFloat(gates[i * gate_stride + further]);
    if (ape == nullptr) return gate;
    return gate + ape[uint64_t{i < previous ? i : i - previous} * channels + further];
  }
};

// The same where some of them lie in the state.
struct AnyRows {
  const Tokens& tokens;
  uint64_t entry;
  uint32_t previous, channel;

  KVSTRATA_DEVICE Sample At(uint32_t i) const {
    if (i < previous) return tokens.At(entry - 1, i, channel);
    return tokens.At(entry, i - previous, tokens.channels - tokens.width + channel);
  }
  KVSTRATA_DEVICE float Value(uint32_t i) const { return At(i).value; }
  KVSTRATA_DEVICE float Gate(uint32_t i) const { return At(i).gate; }
};

// A block of threads has kThreads / kGroups channels of one entry. With many tokens an entry, kGroups threads share a
// channel's, each a fixed part of them, so that few entries still keep a GPU busy; their sums are added in their order.
// A thread keeps kKept gates in registers, all of them in the models' shapes: each input is then read once.
template <uint32_t kGroups, uint32_t kKept>
struct Pool {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kChannels = kThreads / kGroups;
  static constexpr uint32_t kMostSharedBytes = 3 * kThreads * sizeof(float);

  Tokens tokens;
  uint64_t first_entry;
  uint64_t count;
  float* entries;
  uint64_t entry_stride;
  bool overlap;

  KVSTRATA_HOST_DEVICE uint32_t tiles() const { return (tokens.width + kChannels - 1) / kChannels; }

  // Rows begin .. end - 1 are this thread's; none: its channel is not there.
  template <typename Rows>
  KVSTRATA_DEVICE void Reduce(const Thread& t, const Rows& rows, uint32_t begin, uint32_t end, float* out) const {
    const uint32_t in_tile = t.thread() % kChannels;
    float* maxima = static_cast<float*>(t.shared());
    float* weights = maxima + kThreads;
    float* sums = weights + kThreads;
    float gates[kKept];
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kKept; ++i) gates[i] = begin + i < end ? rows.Gate(begin + i) : -INFINITY;
    float maximum = -INFINITY;
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kKept; ++i) maximum = gates[i] > maximum ? gates[i] : maximum;
    for (uint32_t i = begin + kKept; i < end; ++i) {
      const float gate = rows.Gate(i);
      maximum = gate > maximum ? gate : maximum;
    }
    maxima[t.thread()] = maximum;
    t.Sync();
    for (uint32_t g = 0; g < kGroups; ++g) {
      const float other = maxima[g * kChannels + in_tile];
      maximum = other > maximum ? other : maximum;
    }
    float weight = 0, sum = 0;
    const auto add = [&](float gate, uint32_t i) {
      const float w = reference::ExpNonPositive(gate - maximum);
      weight += w;
      sum += w * rows.Value(i);
    };
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kKept; ++i) {
      if (begin + i < end) add(gates[i], begin + i);
    }
    for (uint32_t i = begin + kKept; i < end; ++i) add(rows.Gate(i), i);
    weights[t.thread()] = weight;
    sums[t.thread()] = sum;
    t.Sync();
    if (t.thread() >= kChannels || begin == end) return;
    for (uint32_t g = 1; g < kGroups; ++g) {
      weight += weights[g * kChannels + in_tile];
      sum += sums[g * kChannels + in_tile];
    }
    *out = sum / weight;
  }

  KVSTRATA_DEVICE void PoolTile(const Thread& t, uint64_t n, uint32_t tile) const {
    const uint32_t group = t.thread() / kChannels;
    const uint32_t channel = tile * kChannels + t.thread() % kChannels;
    const uint64_t entry = first_entry + n;
    const uint32_t previous = overlap && entry > 0 ? tokens.ratio : 0;
    const uint32_t rows = channel < tokens.width ? previous + tokens.ratio : 0;
    const auto begin = static_cast<uint32_t>(uint64_t{rows} * group / kGroups);
    const auto end = static_cast<uint32_t>(uint64_t{rows} * (group + 1) / kGroups);
    float* out = entries + n * entry_stride + channel;
    if (entry * tokens.ratio < tokens.position + previous) {
      Reduce(t, AnyRows{tokens, entry, previous, channel}, begin, end, out);
    } else if (tokens.values.type == KVSTRATA_KERNELS_F32) {
      Reduce(t, GivenRows<float>(tokens, entry, previous, channel), begin, end, out);
    } else {
      Reduce(t, GivenRows<uint16_t>(tokens, entry, previous, channel), begin, end, out);
    }
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

template <uint32_t kGroups, uint32_t kKept>
int32_t LaunchPool(const kvstrata_pool_args& a, bool overlap, void* stream) {
  const Pool<kGroups, kKept> kernel{Tokens(a), a.position / a.ratio, EmittedEntries(a),
                                    a.entries, a.entry_stride,       overlap};
  const uint64_t blocks = kernel.count * kernel.tiles();
  return Launch(kernel, Grid::Over(blocks * kernel.kThreads, kernel.kThreads, kernel.kMostSharedBytes), stream);
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
  // CSA has eight rows, HCA 128.
  const int32_t status =
      a.ratio < kSharedFrom ? LaunchPool<1, 8>(a, overlap, stream) : LaunchPool<4, 32>(a, overlap, stream);
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
