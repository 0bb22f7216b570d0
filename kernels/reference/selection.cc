// SPDX-License-Identifier: Apache-2.0
// Lightning indexer: scores and causal top-k (reference section 3).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {
namespace {

// sum over heads of w_h * max(0, q_h . k): the ReLU is on the dot product, before the (possibly negative) weight.
template <typename Query>
float Score(const kvstrata_index_scores_args& a, const Query* query, const float* weights, const float* key) {
  float score = 0;
  for (uint32_t h = 0; h < a.heads; ++h) {
    const float dot = Dot(key, query + uint64_t{h} * a.width, a.width);
    score += weights[h] * a.scale * (dot > 0 || std::isnan(dot) ? dot : 0.0f);
  }
  return (a.flags & KVSTRATA_KERNELS_SCORES_ROUND_BF16) != 0 ? RoundBf16(score) : score;
}

float ScoreOf(const kvstrata_index_scores_args& a, uint64_t n, const float* key) {
  const float* weights = a.weights + n * a.weight_stride;
  if (a.query_type == KVSTRATA_KERNELS_F32) {
    return Score(a, static_cast<const float*>(a.queries) + n * a.query_stride, weights, key);
  }
  return Score(a, static_cast<const uint16_t*>(a.queries) + n * a.query_stride, weights, key);
}

// The row of key `s`: the caller's, or brought into `scratch`.
const float* KeyRow(const kvstrata_index_scores_args& a, uint64_t s, float* scratch) {
  if (a.key_format != KVSTRATA_KERNELS_FORMAT_NONE) {
    UnpackRow(a.key_format, a.packed_keys, s, a.width, 0, scratch);
    return scratch;
  }
  if (a.key_type == KVSTRATA_KERNELS_F32) return static_cast<const float*>(a.keys) + s * a.key_stride;
  LoadRow(a.keys, a.key_type, s * a.key_stride, a.width, scratch);
  return scratch;
}

// Entries of this call that query n sees.
uint64_t VisibleHere(const kvstrata_index_scores_args& a, uint64_t n) {
  const uint64_t visible = VisibleEntries(a.first_position + n, a.ratio);
  return visible <= a.first_entry ? 0 : std::min(visible - a.first_entry, a.entries);
}

// A key's row in floats, when the caller's is not one.
uint64_t WorkspaceBytes(const kvstrata_index_scores_args& a) {
  const bool floats = a.key_format == KVSTRATA_KERNELS_FORMAT_NONE && a.key_type == KVSTRATA_KERNELS_F32;
  return floats ? 0 : uint64_t{a.width} * sizeof(float);
}

// The total order of picks: higher score, then lower index; NaN below every number, NaNs by index.
class Better {
 public:
  explicit Better(const float* scores) : scores_(scores) {}
  bool operator()(int32_t a, int32_t b) const {
    const bool a_nan = std::isnan(scores_[a]);
    const bool b_nan = std::isnan(scores_[b]);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && scores_[a] != scores_[b]) return scores_[a] > scores_[b];
    return a < b;
  }

 private:
  const float* scores_;
};

// Keeps the best k of `visible` in picks as a heap whose front is the worst one kept.
void SelectOne(const float* scores, uint64_t visible, uint32_t k, bool ascending, int32_t* picks) {
  const Better better(scores);
  const uint64_t kept = visible < k ? visible : k;
  for (uint64_t s = 0; s < kept; ++s) picks[s] = static_cast<int32_t>(s);
  std::make_heap(picks, picks + kept, better);
  for (uint64_t s = kept; s < visible; ++s) {
    const int32_t candidate = static_cast<int32_t>(s);
    if (!better(candidate, picks[0])) continue;
    std::pop_heap(picks, picks + kept, better);
    picks[kept - 1] = candidate;
    std::push_heap(picks, picks + kept, better);
  }
  if (ascending) {
    std::sort(picks, picks + kept);
  } else {
    std::sort_heap(picks, picks + kept, better);
  }
  std::fill(picks + kept, picks + k, -1);
}

}  // namespace

int32_t IndexScores(const kvstrata_index_scores_args* args, void*) {
  kvstrata_index_scores_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, WorkspaceBytes(a))) return kInvalidArgument;
  for (uint64_t n = 0; n < a.tokens; ++n) {
    const uint64_t visible = VisibleHere(a, n);
    float* scores = a.scores + n * a.score_stride;
    for (uint64_t s = 0; s < visible; ++s) {
      scores[s] = ScoreOf(a, n, KeyRow(a, s, static_cast<float*>(a.workspace)));
    }
    std::fill(scores + visible, scores + a.entries, -std::numeric_limits<float>::infinity());
  }
  return kOk;
}

int32_t IndexScoresWorkspaceBytes(const kvstrata_index_scores_args* args, uint64_t* out_bytes) {
  kvstrata_index_scores_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = WorkspaceBytes(a);
  return kOk;
}

int32_t TopK(const kvstrata_topk_args* args, void*) {
  kvstrata_topk_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const bool ascending = (a.flags & KVSTRATA_KERNELS_TOPK_SORT_ASCENDING) != 0;
  for (uint64_t n = 0; n < a.tokens; ++n) {
    const uint64_t visible = std::min(VisibleEntries(a.first_position + n, a.ratio), a.entries);
    SelectOne(a.scores + n * a.score_stride, visible, a.k, ascending, a.indices + n * a.index_stride);
  }
  return kOk;
}

int32_t TopKWorkspaceBytes(const kvstrata_topk_args* args, uint64_t* out_bytes) {
  kvstrata_topk_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = 0;  // the heap lives in the output row
  return kOk;
}

}  // namespace kvstrata::kernels::reference
