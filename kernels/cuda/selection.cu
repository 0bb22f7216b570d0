// SPDX-License-Identifier: Apache-2.0
// Index scores: for bf16 queries against bf16 or packed keys on the tensor cores, else in fp32.
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/keys.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/words.h"

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

// A block has 128 entries and a group of queries, a warp 32 of the entries: their fragments stay in its registers while
// the queries' heads, 64 at a time, come through two places in shared memory, the next on its way while the one there
// is worked on. Rows in shared memory are 16 bytes longer than they need to be: a fragment's rows then lie in different
// banks. Narrower rows are filled up with zeros, whose products are 0.
struct ScoreTensor {
  static constexpr uint32_t kThreads = 128;
  static constexpr uint32_t kWarpEntries = 32;
  static constexpr uint32_t kTile = kWarpEntries * (kThreads / kWarp);
  static constexpr uint32_t kTokens = 16;  // that share a tile
  static constexpr uint32_t kHeads = 64;   // that are in a place at a time
  static constexpr uint32_t kWidth = 128;
  static constexpr uint32_t kSteps = kWidth / 16;
  static constexpr uint32_t kRow = kWidth + 8;
  static constexpr uint32_t kRowWords = kWidth / 8;
  static constexpr uint32_t kPlaceElements = kHeads * kRow;
  // The entries are in registers before the first query comes where they were.
  static constexpr uint32_t kRowBytes = 2 * kPlaceElements * sizeof(uint16_t);
  static constexpr uint32_t kMostSharedBytes = kRowBytes + 2 * kHeads * sizeof(float);
  static_assert(kTile * kRow * sizeof(uint16_t) <= kRowBytes && kMostSharedBytes <= kUnaskedSharedBytes);

  Scores s;
  uint32_t query_word;  // the widest words that queries can be read in

  explicit ScoreTensor(const Scores& scores)
      : s(scores), query_word(WordBytes(AddressOf(s.queries.data) | s.query_stride * 2 | s.width * 2)) {}

  KVSTRATA_HOST_DEVICE uint64_t tiles() const { return (s.entries + kTile - 1) / kTile; }
  uint64_t groups() const { return (s.tokens + kTokens - 1) / kTokens; }
  KVSTRATA_HOST_DEVICE uint32_t head_parts() const { return (s.heads + kHeads - 1) / kHeads; }

  bool Fits() const {
    return s.queries.type == KVSTRATA_KERNELS_BF16 && s.keys.is_bf16() && s.width % 8 == 0 && s.width <= kWidth;
  }

  // Rows behind the last are zeros: products with them are never used, but shared memory has no contents.
  KVSTRATA_DEVICE void BringKeys(const Thread& t, uint64_t first, uint16_t* tile) const {
    for (uint32_t i = t.thread(); i < kTile * kRowWords; i += kThreads) {
      const uint64_t row = first + i / kRowWords;
      const uint32_t channel = i % kRowWords * 8;
      const bool there = row < s.entries && channel < s.width;
      *reinterpret_cast<Word16*>(tile + i / kRowWords * kRow + channel) =
          there ? s.keys.Pairs(t, row, channel) : Word16{};
    }
  }

  // Heads part * 64 .. of query n, on their way to `place`; and their weights.
  KVSTRATA_DEVICE void BringQuery(const Thread& t, uint64_t n, uint32_t part, uint16_t* place, float* weights) const {
    const auto* from = static_cast<const uint16_t*>(s.queries.data) + n * s.query_stride;
    for (uint32_t i = t.thread(); i < kHeads * kRowWords; i += kThreads) {
      const uint32_t head = part * kHeads + i / kRowWords;
      const uint32_t channel = i % kRowWords * 8;
      auto* to = reinterpret_cast<Word16*>(place + i / kRowWords * kRow + channel);
      const uint16_t* word = from + uint64_t{head} * s.width + channel;
      if (head >= s.heads || channel >= s.width) {
        *to = {};
      } else if (query_word == sizeof(Word16)) {
        t.CopyAsync(to, word);
      } else {
        *to = LoadBytes(reinterpret_cast<const uint8_t*>(word), sizeof(Word16), query_word);
      }
    }
    for (uint32_t i = t.thread(); i < kHeads; i += kThreads) {
      const uint32_t head = part * kHeads + i;
      weights[i] = head < s.heads ? s.Weight(n, head) : 0.0f;
    }
  }

  // The warp's entries: two matrices of 16 rows.
  struct Keys {
    FragmentA of[2][kSteps];
  };

  KVSTRATA_DEVICE void LoadKeys(const Thread& t, const uint16_t* tile, Keys* keys) const {
    const uint32_t own = t.thread() / kWarp * kWarpEntries + t.lane() % 16;
    KVSTRATA_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const uint16_t* row = tile + (own + 16 * half) * kRow + t.lane() / 16 * 8;
      KVSTRATA_UNROLL
      for (uint32_t k = 0; k < kSteps; ++k) t.LoadMatrices(row + 16 * k, keys->of[half][k].pairs);
    }
  }

  // Adds the scores that 64 heads give: sums[2 * half + i] is of entry 16 * half + 8 * i + lane / 4, over the lane's
  // heads.
  KVSTRATA_DEVICE void AddHeads(const Thread& t, const Keys& keys, const uint16_t* place, const float* weights,
                                uint32_t heads, float (&sums)[4]) const {
    const uint32_t pair = t.lane() % 4 * 2;
    for (uint32_t h = 0; h < kHeads; h += 8) {
      const uint16_t* row = place + (h + t.lane() % 8) * kRow + t.lane() / 8 * 8;
      FragmentC c[2] = {};
      KVSTRATA_UNROLL
      for (uint32_t k = 0; k < kSteps; k += 2) {
        uint32_t pairs[4];
        t.LoadMatrices(row + 16 * k, pairs);
        KVSTRATA_UNROLL
        for (uint32_t step = 0; step < 2; ++step) {
          const FragmentB b{{pairs[2 * step], pairs[2 * step + 1]}};
          t.MultiplyAdd(keys.of[0][k + step], b, &c[0]);
          t.MultiplyAdd(keys.of[1][k + step], b, &c[1]);
        }
      }
      // Of a head that is not there the products are 0 times the key, which is not always 0.
      KVSTRATA_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t head = h + pair + i % 2;
        const float weight = weights[head];
        KVSTRATA_UNROLL
        for (uint32_t half = 0; half < 2; ++half) {
          sums[2 * half + i / 2] += head < heads ? weight * Relu(c[half].values[i]) : 0.0f;
        }
      }
    }
  }

  // Lanes of a group of four have other heads of the same entries; each stores one of the four sums.
  KVSTRATA_DEVICE void StoreSums(const Thread& t, uint64_t n, uint64_t first, float (&sums)[4]) const {
    const uint32_t own = t.lane() % 4;
    float sum = 0;
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      sums[i] += t.ExchangeXor(sums[i], 1);
      sums[i] += t.ExchangeXor(sums[i], 2);
      sum = i == own ? sums[i] : sum;
      sums[i] = 0;
    }
    const uint64_t entry = first + t.thread() / kWarp * kWarpEntries + 8 * own + t.lane() / 4;
    if (entry < s.entries) s.Store(n, entry, entry < s.VisibleHere(n) ? sum : -INFINITY);
  }

  // Queries begin .. end - 1, of which each sees some of the tile.
  KVSTRATA_DEVICE void Queries(const Thread& t, uint64_t begin, uint64_t end, uint64_t first, const Keys& keys) const {
    auto* places = static_cast<uint16_t*>(t.shared());
    auto* weights = reinterpret_cast<float*>(places + 2 * kPlaceElements);
    const auto steps = static_cast<uint32_t>(end - begin) * head_parts();
    const auto bring = [&](uint32_t step) {
      const uint32_t at = step % 2;
      BringQuery(t, begin + step / head_parts(), step % head_parts(), places + at * kPlaceElements,
                 weights + at * kHeads);
    };
    float sums[4] = {};
    bring(0);
    t.CommitCopies();
    for (uint32_t step = 0; step < steps; ++step) {
      if (step + 1 < steps) bring(step + 1);
      t.CommitCopies();
      t.AwaitCopies<1>();  // all but those of the next step
      t.Sync();
      const uint32_t part = step % head_parts();
      AddHeads(t, keys, places + step % 2 * kPlaceElements, weights + step % 2 * kHeads, s.heads - part * kHeads, sums);
      if (part + 1 == head_parts()) StoreSums(t, begin + step / head_parts(), first, sums);
      t.Sync();  // the step after the next comes where this one is read
    }
    t.AwaitCopies<0>();
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint64_t all = tiles() * ((s.tokens + kTokens - 1) / kTokens);
    for (uint64_t index = t.block(); index < all; index += t.blocks()) {
      const uint64_t first = index % tiles() * kTile;
      uint64_t begin = index / tiles() * kTokens;
      const uint64_t end = begin + kTokens < s.tokens ? begin + kTokens : s.tokens;
      // Later queries see more: those that see nothing of the tile come first.
      for (; begin < end && s.VisibleHere(begin) <= first; ++begin) {
        const uint64_t entry = first + t.thread();
        if (entry < s.entries) s.Store(begin, entry, -INFINITY);
      }
      if (begin == end) continue;
      auto* tile = static_cast<uint16_t*>(t.shared());
      BringKeys(t, first, tile);
      t.Sync();
      Keys keys;
      LoadKeys(t, tile, &keys);
      t.Sync();  // queries come where the entries are
      Queries(t, begin, end, first, keys);
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
    return Launch(tensor, Grid::Over(blocks * tensor.kThreads, tensor.kThreads, tensor.kMostSharedBytes), stream);
  }
  return Launch(ScorePlain{scores}, Grid::Over(a.tokens * a.entries * kWarp, ScorePlain::kThreads), stream);
}

}  // namespace kvstrata::kernels::cuda
