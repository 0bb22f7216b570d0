// SPDX-License-Identifier: Apache-2.0
// What all forms of attention share: which rows a query sees, in the order of summation; the online softmax; how an
// output is stored. A pick that is no visible entry skips its place, as -1 does: it lies in device memory, where nobody
// can refuse it.
//
// Thread rule: pure functions; those that take a Thread are called by all lanes of its warp.
#pragma once

#include <cmath>

#include "kernels/arguments.h"
#include "kernels/cuda/keys.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/words.h"

namespace kvstrata::kernels::cuda {

// Rows of a tile.
inline constexpr uint32_t kTile = 32;

// What both forms share.
struct Attend {
  KeyRows window_rows, entry_rows;
  Rows queries;
  uint64_t query_token_stride, query_head_stride;
  Rows output;
  uint64_t output_token_stride, output_head_stride;
  const int32_t* picks;
  uint64_t pick_stride;
  const float* sinks;
  const float* frequencies;
  uint64_t tokens, first_position, window_first, window_ring, entry_count;
  uint32_t heads, width, rope_dims, window, ratio, pick_count;
  float scale;
  bool round, inverse;

  // The rows that one query sees, in the order of summation.
  struct Seen {
    uint64_t position;
    uint64_t window_begin;
    uint64_t window_size;
    uint64_t listed;
    uint64_t visible;  // entries
    const int32_t* picks;

    KVSTRATA_DEVICE uint64_t rows() const { return window_size + listed; }
  };

  KVSTRATA_DEVICE Seen SeenBy(uint64_t n) const {
    Seen seen{};
    seen.position = first_position + n;
    const uint64_t oldest = seen.position + 1 > window ? seen.position + 1 - window : 0;
    seen.window_begin = oldest > window_first ? oldest : window_first;
    seen.window_size = seen.position + 1 - seen.window_begin;
    if (ratio == 0) return seen;
    const uint64_t complete = VisibleEntries(seen.position, ratio);
    seen.visible = complete < entry_count ? complete : entry_count;
    if (picks != nullptr) seen.picks = picks + n * pick_stride;
    seen.listed = picks != nullptr ? pick_count : complete;
    return seen;
  }

  struct Place {
    bool there;
    bool in_window;
    uint64_t row;
  };

  // The pick that decides about row `i`, and 0 where none does. It is a read of its own, so that it can be begun early.
  KVSTRATA_DEVICE int32_t PickOf(const Seen& seen, uint64_t i) const {
    if (seen.picks == nullptr || i < seen.window_size || i - seen.window_size >= seen.listed) return 0;
    return seen.picks[i - seen.window_size];
  }

  KVSTRATA_DEVICE Place PlaceOf(const Seen& seen, uint64_t i, int32_t pick) const {
    if (i < seen.window_size) {
      const uint64_t position = seen.window_begin + i;
      return {true, true, window_ring != 0 ? Divide(position, window_ring).rest : position - window_first};
    }
    const uint64_t listed = i - seen.window_size;
    if (listed >= seen.listed) return {false, false, 0};
    if (seen.picks == nullptr) return {true, false, listed};
    return {pick >= 0 && static_cast<uint64_t>(pick) < seen.visible, false, static_cast<uint64_t>(pick)};
  }
  KVSTRATA_DEVICE Place PlaceOf(const Seen& seen, uint64_t i) const { return PlaceOf(seen, i, PickOf(seen, i)); }

  KVSTRATA_DEVICE float ChannelOf(const Place& place, uint32_t channel) const {
    return place.in_window ? window_rows.At(place.row, channel) : entry_rows.At(place.row, channel);
  }

  KVSTRATA_DEVICE float Sink(uint32_t head) const { return sinks != nullptr ? sinks[head] : -INFINITY; }

  KVSTRATA_DEVICE void StoreChannel(uint64_t n, uint32_t head, uint32_t channel, float value) const {
    const float one[1] = {round ? reference::RoundBf16(value) : value};
    output.Store(n * output_token_stride + head * output_head_stride + channel, one);
  }

  // Two neighbouring channels of the finished output; those that are rotated are a pair of RoPE's.
  KVSTRATA_DEVICE void StorePair(uint64_t n, uint32_t head, uint32_t channel, float x, float y) const {
    if (!inverse || channel < width - rope_dims) {
      StoreChannel(n, head, channel, x);
      StoreChannel(n, head, channel + 1, y);
      return;
    }
    float pair[2] = {round ? reference::RoundBf16(x) : x, round ? reference::RoundBf16(y) : y};
    const auto position = static_cast<float>(static_cast<int64_t>(first_position + n));
    const float frequency = frequencies[(channel - (width - rope_dims)) / 2];
    RotatePair(reference::SinCosOf(position * frequency), true, round, pair);
    StoreChannel(n, head, channel, pair[0]);
    StoreChannel(n, head, channel + 1, pair[1]);
  }
};

// Of a head: the greatest logit so far, the sum of all exp(logit - greatest), and by what the last step scaled sums.
struct Softmax {
  float greatest;
  float sum;
  float factor;
};

// Takes in `logits`; they become probabilities against the new greatest. A lane of a team has every kLanes-th of them.
template <uint32_t kLanes>
KVSTRATA_DEVICE Softmax TakeIn(const Thread& t, const Softmax& before, float* logits) {
  const uint32_t lane = t.lane() % kLanes;
  float greatest = before.greatest;
  for (uint32_t i = lane; i < kTile; i += kLanes) greatest = logits[i] > greatest ? logits[i] : greatest;
  for (uint32_t mask = 1; mask < kLanes; mask *= 2) {
    const float other = t.ExchangeXor(greatest, mask);
    greatest = other > greatest ? other : greatest;
  }
  float sum = 0;
  for (uint32_t i = lane; i < kTile; i += kLanes) {
    // A row that is not there has a logit of -infinity, also where no row was there yet.
    logits[i] = logits[i] == -INFINITY ? 0.0f : reference::ExpNonPositive(logits[i] - greatest);
    sum += logits[i];
  }
  for (uint32_t mask = 1; mask < kLanes; mask *= 2) sum += t.ExchangeXor(sum, mask);
  const float factor = before.greatest == -INFINITY ? 0.0f : reference::ExpNonPositive(before.greatest - greatest);
  return {greatest, before.sum * factor + sum, factor};
}

// The denominator, with the sink in it.
KVSTRATA_DEVICE float Total(const Softmax& softmax, float sink) {
  return sink == -INFINITY ? softmax.sum : softmax.sum + reference::ExpNonPositive(sink - softmax.greatest);
}

}  // namespace kvstrata::kernels::cuda
