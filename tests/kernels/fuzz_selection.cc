// SPDX-License-Identifier: Apache-2.0
// Index scores within the tolerance that kernels.h states for them; top-k exactly, whatever the scores.
#include <algorithm>

#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {
namespace {

constexpr int32_t kTypes[] = {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16};

struct Scores {
  uint32_t heads = 1, width = 1, ratio = 1;
  uint64_t tokens = 0, first_position = 0, first_entry = 0, entries = 0;
  int32_t key_format = KVSTRATA_KERNELS_FORMAT_NONE;
  bool round = false;
  float scale = 0;
  Matrix queries, keys, weights;
  Packed packed;

  uint64_t Visible(uint64_t n) const {
    const uint64_t visible = (first_position + n + 1) / ratio;
    return visible <= first_entry ? 0 : std::min(visible - first_entry, entries);
  }
};

Scores MakeScores(Case& c) {
  constexpr int32_t kKeyFormats[] = {KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8};
  Scores s;
  const bool packed = c.rng.Chance(50);
  s.width = packed || c.rng.Chance(40) ? 128 : static_cast<uint32_t>(c.rng.Between(1, 140));
  s.heads = c.rng.Chance(50) ? 64 : static_cast<uint32_t>(c.rng.Between(1, 40));
  s.ratio = c.rng.Chance(60) ? 4 : static_cast<uint32_t>(c.rng.Between(1, 5));
  s.tokens = c.rng.Below(4);
  s.entries = c.rng.Below(c.rng.Chance(30) ? 300 : 50);
  s.first_entry = c.rng.Chance(50) ? 0 : c.rng.Below(1000);
  // Around the place where the entries become visible.
  s.first_position = c.rng.Chance(50) ? (s.first_entry + s.entries) * s.ratio + 7
                                      : s.first_entry * s.ratio + c.rng.Below(s.entries * s.ratio + 1);
  s.round = c.rng.Chance(25);
  s.scale = c.rng.Chance(50) ? 0.0f : 0.37f;
  constexpr Fill kQueryFills[] = {Fill::kPlain, Fill::kPlain, Fill::kWide};
  constexpr Fill kKeyFills[] = {Fill::kPlain, Fill::kPlain, Fill::kWide, Fill::kTiny};
  const Fill fill = c.OneOf(kQueryFills);
  const Fill key_fill = c.OneOf(kKeyFills);
  s.queries = c.Rows(c.OneOf(kTypes), s.tokens, uint64_t{s.heads} * s.width, fill);
  s.weights = c.Rows(KVSTRATA_KERNELS_F32, s.tokens, s.heads, Fill::kPlain);
  if (packed) {
    s.key_format = c.OneOf(kKeyFormats);
    const std::vector<float> floats = c.Numbers(s.entries * s.width, key_fill);
    s.packed = c.PackedRows(s.key_format, s.width, 0, s.entries, floats);
    s.keys.floats = c.Unpacked(s.packed, s.entries);
    s.keys.stride = s.width;
  } else {
    s.keys = c.Rows(c.OneOf(kTypes), s.entries, s.width, key_fill);
  }
  return s;
}

// 2 (width + heads) 2^-24 sum_h |w scale| sum_c |q k| of kernels.h; a step more where the score is rounded to bf16. The
// absolute term covers what a bf16 dot product takes for 0: below 2^-126, times queries below 2^20, times the sums.
double ScoreTolerance(const Scores& s, uint64_t n, uint64_t entry) {
  const double scale = s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<double>(s.width) * s.heads);
  const float* key = s.keys.Row(entry);
  double sum = 0;
  for (uint32_t h = 0; h < s.heads; ++h) {
    const float* query = s.queries.Row(n) + uint64_t{h} * s.width;
    double products = 0;
    for (uint32_t i = 0; i < s.width; ++i) products += std::fabs(static_cast<double>(query[i]) * key[i]);
    sum += std::fabs(s.weights.Row(n)[h] * scale) * products;
  }
  return 2.0 * (s.width + s.heads) * kUnit * sum + (s.round ? Bf16Step(sum) : 0) + 0x1p-88;
}

// Scores of every awkward kind: a few values only, sorted either way, NaN and infinity, zeros of both signs.
float AwkwardScore(Case& c, uint64_t kind, uint64_t s) {
  switch (kind) {
    case 0: return c.Number(Fill::kPlain);
    case 1: return static_cast<float>(c.rng.Below(4));
    case 2: return static_cast<float>(s);
    case 3: return -static_cast<float>(s);
    case 4: return c.rng.Chance(50) ? 0.0f : -0.0f;
    case 5: return c.Number(Fill::kBits);
    case 6: return c.rng.Chance(95) ? -kInfinity : kNan;
    default: return c.rng.Chance(99) ? 0.0f : c.Number(Fill::kPlain);
  }
}

}  // namespace

void FuzzIndexScores(Case& c) {
  const Scores s = MakeScores(c);
  const Matrix scores = c.OutputRows("index_scores", KVSTRATA_KERNELS_F32, s.tokens, s.entries, Match::kTolerance);
  for (uint64_t n = 0; c.tolerances() && n < s.tokens; ++n) {
    const uint64_t visible = s.Visible(n);
    for (uint64_t e = 0; e < visible; ++e) c.Tolerate(n * scores.stride + e, ScoreTolerance(s, n, e));
  }
  c.Freeze();
  for (uint64_t n = 0, piece = 0; n < s.tokens; n += piece) {
    piece = c.Piece(s.tokens - n);
    for (uint64_t e = 0, part = 0; e < s.entries; e += part) {
      part = c.Piece(s.entries - e);
      kvstrata_index_scores_args a = Args<kvstrata_index_scores_args>();
      a.flags = s.round ? KVSTRATA_KERNELS_SCORES_ROUND_BF16 : 0;
      a.heads = s.heads;
      a.width = s.width;
      a.ratio = s.ratio;
      a.scale = s.scale;
      a.tokens = piece;
      a.first_position = s.first_position + n;
      a.entries = part;
      a.queries = s.queries.At(n);
      a.query_stride = s.queries.stride;
      a.query_type = s.queries.type;
      a.key_format = s.key_format;
      if (s.key_format != KVSTRATA_KERNELS_FORMAT_NONE) {
        a.packed_keys = s.packed.From(e);
      } else {
        a.keys = s.keys.At(e);
        a.key_stride = s.keys.stride;
        a.key_type = s.keys.type;
      }
      a.weights = static_cast<const float*>(s.weights.At(n));
      a.weight_stride = s.weights.stride;
      a.scores = static_cast<float*>(scores.At(n, e));
      a.score_stride = scores.stride;
      a.first_entry = s.first_entry + e;
      c.Ok(c.k.index_scores_workspace_bytes(&a, &a.workspace_bytes), "index_scores_workspace_bytes");
      a.workspace = c.Workspace(a.workspace_bytes);
      c.Ok(c.k.index_scores(&a, nullptr), "index_scores");
    }
  }
}

void FuzzTopK(Case& c) {
  const uint64_t tokens = c.rng.Below(4);
  const uint64_t entries = c.rng.Below(c.rng.Chance(30) ? 20000 : 400);
  const uint32_t ratio = static_cast<uint32_t>(c.rng.Between(1, 4));
  constexpr uint32_t kCounts[] = {512, 1024, 1, 8};
  const uint32_t k = c.rng.Chance(50) ? c.OneOf(kCounts) : static_cast<uint32_t>(c.rng.Between(1, 100));
  const uint64_t first = c.rng.Chance(60) ? entries * ratio + 3 : c.rng.Below(entries * ratio + 1);
  Matrix scores;
  scores.rows = tokens;
  scores.width = entries;
  scores.stride = c.Stride(entries);
  // What is not visible is not read, so it may be the best there is.
  scores.floats.assign(tokens == 0 ? 0 : (tokens - 1) * scores.stride + entries, kInfinity);
  for (uint64_t n = 0; n < tokens; ++n) {
    const uint64_t kind = c.rng.Below(8);
    const uint64_t visible = std::min((first + n + 1) / ratio, entries);
    for (uint64_t s = 0; s < visible; ++s) scores.floats[n * scores.stride + s] = AwkwardScore(c, kind, s);
  }
  scores.data = const_cast<float*>(c.Input(scores.floats));
  const uint32_t flags = c.rng.Chance(50) ? KVSTRATA_KERNELS_TOPK_SORT_ASCENDING : 0;
  const Matrix indices = c.OutputRows("topk", KVSTRATA_KERNELS_F32, tokens, k, Match::kBits);
  c.Freeze();
  for (uint64_t n = 0, piece = 0; n < tokens; n += piece) {
    piece = c.Piece(tokens - n);
    kvstrata_topk_args a = Args<kvstrata_topk_args>();
    a.flags = flags;
    a.k = k;
    a.ratio = ratio;
    a.tokens = piece;
    a.first_position = first + n;
    a.entries = entries;
    a.scores = static_cast<const float*>(scores.At(n));
    a.score_stride = scores.stride;
    a.indices = static_cast<int32_t*>(indices.At(n));
    a.index_stride = indices.stride;
    c.Ok(c.k.topk_workspace_bytes(&a, &a.workspace_bytes), "topk_workspace_bytes");
    a.workspace = c.Workspace(a.workspace_bytes);
    c.Ok(c.k.topk(&a, nullptr), "topk");
  }
}

}  // namespace kvstrata::kernels::test
