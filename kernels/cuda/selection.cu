// SPDX-License-Identifier: Apache-2.0
// Index scores: for bf16 queries against bf16 or packed keys on the tensor cores, else in fp32.
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/keys.h"
#include "kernels/cuda/norm.h"

namespace kvstrata::kernels::cuda {
namespace {

// What both forms share.
struct Scores {
  KeyRows keys;
  Rows queries;
  uint64_t query_stride;
  const float* weights;
  uint64_t weight_stride;
  float* scores;
  uint64_t score_stride;
  uint64_t tokens, entries, first_position, first_entry;
  uint32_t heads, width, ratio;
  float scale;
  bool round;

  // Entries of this call that query n sees.
  KVSTRATA_DEVICE uint64_t VisibleHere(uint64_t n) const {
    const uint64_t visible = VisibleEntries(first_position + n, ratio);
    if (visible <= first_entry) return 0;
    return visible - first_entry < entries ? visible - first_entry : entries;
  }
  KVSTRATA_DEVICE float Weight(uint64_t n, uint32_t head) const { return weights[n * weight_stride + head] * scale; }
  KVSTRATA_DEVICE void Store(uint64_t n, uint64_t s, float score) const {
    scores[n * score_stride + s] = round ? reference::RoundBf16(score) : score;
  }
};

// The ReLU is on the product, before the weight, which may be negative; NaN stays.
KVSTRATA_DEVICE float Relu(float product) { return product > 0 || std::isnan(product) ? product : 0.0f; }

// A warp has a pair of query and entry, a lane every 32nd head.
struct ScorePlain {
  static constexpr uint32_t kThreads = 128;

  Scores s;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t index = t.first() / kWarp; index < s.tokens * s.entries; index += t.step() / kWarp) {
      const Quotient pair = Divide(index, s.entries);
      const bool visible = pair.rest < s.VisibleHere(pair.whole);
      float sum = 0;
      for (uint32_t h = t.lane(); visible && h < s.heads; h += kWarp) {
        const uint64_t query = pair.whole * s.query_stride + uint64_t{h} * s.width;
        float product = 0;
        for (uint32_t c = 0; c < s.width; ++c) {
          float q[1];
          s.queries.Load(query + c, q);
          product += s.keys.At(pair.rest, c) * q[0];
        }
        sum += s.Weight(pair.whole, h) * Relu(product);
      }
      sum = WarpSum(t, sum);
      if (t.lane() == 0) s.Store(pair.whole, pair.rest, visible ? sum : -INFINITY);
    }
  }
};

// A block has 64 entries, brought into shared memory once for a group of queries; a warp has 16 of them, and 16 heads
// at a time. Rows in shared memory are 8 elements longer than they need to be: the lanes of a fragment then lie in
// different banks.
struct ScoreTensor {
  static constexpr uint32_t kThreads = 128;
  static constexpr uint32_t kTile = 64;
  static constexpr uint32_t kWarpEntries = kTile / (kThreads / kWarp);
  static constexpr uint32_t kTokens = 4;  // that share a tile
  static constexpr uint32_t kPadding = 8;
  static constexpr uint32_t kMostSharedBytes = 48u << 10;

  Scores s;

  KVSTRATA_HOST_DEVICE uint32_t row_elements() const { return s.width + kPadding; }
  KVSTRATA_HOST_DEVICE uint32_t padded_heads() const { return (s.heads + 15) / 16 * 16; }
  uint64_t shared_bytes() const { return uint64_t{kTile + padded_heads()} * row_elements() * sizeof(uint16_t); }
  uint64_t tiles() const { return (s.entries + kTile - 1) / kTile; }
  uint64_t groups() const { return (s.tokens + kTokens - 1) / kTokens; }

  // Whole instructions of 16 channels, and rows that fit.
  bool Fits() const {
    return s.queries.type == KVSTRATA_KERNELS_BF16 && s.keys.is_bf16() && s.width % 16 == 0 &&
           shared_bytes() <= kMostSharedBytes;
  }

  // Rows behind the last are zeros: products with them are never used, but shared memory has no contents.
  KVSTRATA_DEVICE void BringKeys(const Thread& t, uint64_t first, uint16_t* tile) const {
    for (uint32_t i = t.thread(); i < kTile * s.width; i += t.threads()) {
      const uint64_t row = first + i / s.width;
      const uint32_t channel = i % s.width;
      const float value = row < s.entries ? s.keys.At(row, channel) : 0.0f;
      tile[i / s.width * row_elements() + channel] = reference::F32ToBf16(value);
    }
  }

  KVSTRATA_DEVICE void BringQuery(const Thread& t, uint64_t n, uint16_t* query) const {
    const auto* from = static_cast<const uint16_t*>(s.queries.data) + n * s.query_stride;
    for (uint32_t i = t.thread(); i < padded_heads() * s.width; i += t.threads()) {
      const uint32_t head = i / s.width;
      query[head * row_elements() + i % s.width] = head < s.heads ? from[i] : uint16_t{0};
    }
  }

  static KVSTRATA_DEVICE uint32_t Pair(const uint16_t* at) { return *reinterpret_cast<const uint32_t*>(at); }

  // The products of 16 heads with 8 entries.
  KVSTRATA_DEVICE FragmentC Products(const Thread& t, const uint16_t* heads, const uint16_t* keys) const {
    const uint32_t group = t.lane() / 4;
    const uint32_t pair = t.lane() % 4 * 2;
    const uint16_t* upper = heads + group * row_elements() + pair;
    const uint16_t* lower = upper + 8 * row_elements();
    const uint16_t* column = keys + group * row_elements() + pair;
    FragmentC c{};
    for (uint32_t k = 0; k < s.width; k += 16) {
      const FragmentA a{{Pair(upper + k), Pair(lower + k), Pair(upper + k + 8), Pair(lower + k + 8)}};
      const FragmentB b{{Pair(column + k), Pair(column + k + 8)}};
      t.MultiplyAdd(a, b, &c);
    }
    return c;
  }

  // The scores of query n and the warp's 16 entries.
  KVSTRATA_DEVICE void Query(const Thread& t, uint64_t n, uint64_t first, const uint16_t* query,
                             const uint16_t* tile) const {
    const uint32_t own = t.thread() / kWarp * kWarpEntries;
    const uint64_t visible = s.VisibleHere(n);
    for (uint32_t part = 0; part < kWarpEntries; part += 8) {
      float sums[2] = {};  // of entries 2p and 2p + 1 over the lane's heads
      for (uint32_t h = 0; h < padded_heads(); h += 16) {
        const FragmentC c = Products(t, query + h * row_elements(), tile + (own + part) * row_elements());
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t head = h + t.lane() / 4 + i / 2 * 8;
          if (head < s.heads) sums[i % 2] += s.Weight(n, head) * Relu(c.values[i]);
        }
      }
      for (uint32_t i = 0; i < 2; ++i) {
        // Lanes that differ in bits 2 to 4 have other heads of the same entries.
        for (uint32_t mask = 4; mask < kWarp; mask *= 2) sums[i] += t.ExchangeXor(sums[i], mask);
        const uint64_t entry = first + own + part + t.lane() % 4 * 2 + i;
        if (t.lane() < 4 && entry < s.entries) s.Store(n, entry, entry < visible ? sums[i] : -INFINITY);
      }
    }
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    auto* tile = static_cast<uint16_t*>(t.shared());
    uint16_t* query = tile + kTile * row_elements();
    const uint64_t all_tiles = (s.entries + kTile - 1) / kTile;
    const uint64_t all = all_tiles * ((s.tokens + kTokens - 1) / kTokens);
    for (uint64_t index = t.block(); index < all; index += t.blocks()) {
      const uint64_t first = index % all_tiles * kTile;
      const uint64_t group = index / all_tiles * kTokens;
      BringKeys(t, first, tile);
      for (uint64_t n = group; n < s.tokens && n < group + kTokens; ++n) {
        BringQuery(t, n, query);
        t.Sync();
        Query(t, n, first, query, tile);
        t.Sync();  // the next query, or tile, comes where this one is read
      }
    }
  }
};

}  // namespace

int32_t IndexScoresWorkspaceBytes(const kvstrata_index_scores_args* args, uint64_t* out_bytes) {
  kvstrata_index_scores_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = 0;
  return kOk;
}

int32_t IndexScores(const kvstrata_index_scores_args* args, void* stream) {
  kvstrata_index_scores_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.tokens == 0 || a.entries == 0) return kOk;
  const bool packed = a.key_format != KVSTRATA_KERNELS_FORMAT_NONE;
  const Scores scores{packed ? KeyRows::Packed(a.key_format, a.width, 0, a.packed_keys)
                             : KeyRows::Typed(a.keys, a.key_type, a.key_stride),
                      {const_cast<void*>(a.queries), a.query_type},
                      a.query_stride,
                      a.weights,
                      a.weight_stride,
                      a.scores,
                      a.score_stride,
                      a.tokens,
                      a.entries,
                      a.first_position,
                      a.first_entry,
                      a.heads,
                      a.width,
                      a.ratio,
                      a.scale,
                      (a.flags & KVSTRATA_KERNELS_SCORES_ROUND_BF16) != 0};
  const ScoreTensor tensor{scores};
  if (tensor.Fits()) {
    const uint64_t blocks = tensor.tiles() * tensor.groups();
    return Launch(tensor,
                  Grid::Over(blocks * tensor.kThreads, tensor.kThreads, static_cast<uint32_t>(tensor.shared_bytes())),
                  stream);
  }
  return Launch(ScorePlain{scores}, Grid::Over(a.tokens * a.entries * kWarp, ScorePlain::kThreads), stream);
}

}  // namespace kvstrata::kernels::cuda
