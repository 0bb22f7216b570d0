// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/pooling.h"

#include <cstring>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {
namespace {

// Channels that one pass works on: few enough to stay in registers and first-level cache.
constexpr uint32_t kTile = 64;

// A group of m rows that takes part in an entry: the previous block's P half, or the open block.
struct Rows {
  const float* values;
  const float* gates;
  uint64_t stride;
  uint32_t count;
};

void RaiseMax(const Rows& rows, uint32_t begin, uint32_t channels, float* maxima) {
  for (uint32_t s = 0; s < rows.count; ++s) {
    const float* gates = rows.gates + s * rows.stride + begin;
    for (uint32_t j = 0; j < channels; ++j) maxima[j] = gates[j] > maxima[j] ? gates[j] : maxima[j];
  }
}

void AddWeighted(const Rows& rows, uint32_t begin, uint32_t channels, const float* maxima, float* weights,
                 float* sums) {
  for (uint32_t s = 0; s < rows.count; ++s) {
    const float* gates = rows.gates + s * rows.stride + begin;
    const float* values = rows.values + s * rows.stride + begin;
    for (uint32_t j = 0; j < channels; ++j) {
      const float weight = ExpNonPositive(gates[j] - maxima[j]);
      weights[j] += weight;
      sums[j] += weight * values[j];
    }
  }
}

// One entry: per channel sum(exp(z - max) u) / sum(exp(z - max)) over the previous block's rows, then the current.
void PoolEntry(const Rows& previous, const Rows& current, uint32_t width, float* entry) {
  for (uint32_t begin = 0; begin < width; begin += kTile) {
    const uint32_t channels = width - begin < kTile ? width - begin : kTile;
    float maxima[kTile];
    float weights[kTile] = {};
    float sums[kTile] = {};
    std::memcpy(maxima, current.gates + begin, channels * sizeof(float));
    RaiseMax(previous, begin, channels, maxima);
    RaiseMax(current, begin, channels, maxima);
    AddWeighted(previous, begin, channels, maxima, weights, sums);
    AddWeighted(current, begin, channels, maxima, weights, sums);
    for (uint32_t j = 0; j < channels; ++j) entry[begin + j] = sums[j] / weights[j];
  }
}

// Puts token n into its slot t mod m of the open block; the gate gets the position bias of that slot.
void StoreToken(const kvstrata_pool_args& a, uint64_t n, uint32_t slot, uint64_t channels) {
  float* open_gates = a.open_gates + slot * channels;
  LoadRow(a.values, a.input_type, n * a.value_stride, channels, a.open_values + slot * channels);
  LoadRow(a.gates, a.input_type, n * a.gate_stride, channels, open_gates);
  if (a.ape == nullptr) return;
  const float* ape = a.ape + slot * channels;
  for (uint64_t j = 0; j < channels; ++j) open_gates[j] += ape[j];
}

// The closed block's P half becomes the next entry's previous block.
void KeepPrevious(const kvstrata_pool_args& a, uint64_t channels) {
  for (uint32_t s = 0; s < a.ratio; ++s) {
    std::memcpy(a.prev_values + uint64_t{s} * a.width, a.open_values + s * channels, a.width * sizeof(float));
    std::memcpy(a.prev_gates + uint64_t{s} * a.width, a.open_gates + s * channels, a.width * sizeof(float));
  }
}

}  // namespace

void PoolTokens(const kvstrata_pool_args& a) {
  const bool overlap = (a.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0;
  if (a.ratio == 1 && !overlap) {  // softmax over one gate: the value itself
    for (uint64_t n = 0; n < a.tokens; ++n) {
      LoadRow(a.values, a.input_type, n * a.value_stride, a.width, a.entries + n * a.entry_stride);
    }
    return;
  }
  const uint64_t channels = PoolChannels(a);
  const uint64_t current_half = channels - a.width;  // the C half begins at w with overlap, at 0 without
  float* entry = a.entries;
  for (uint64_t n = 0; n < a.tokens; ++n) {
    const uint64_t t = a.position + n;
    StoreToken(a, n, static_cast<uint32_t>(t % a.ratio), channels);
    if ((t + 1) % a.ratio != 0) continue;
    const bool has_previous = overlap && t >= a.ratio;
    PoolEntry({a.prev_values, a.prev_gates, a.width, has_previous ? a.ratio : 0},
              {a.open_values + current_half, a.open_gates + current_half, channels, a.ratio}, a.width, entry);
    if (overlap) KeepPrevious(a, channels);
    entry += a.entry_stride;
  }
}

}  // namespace kvstrata::kernels::reference
