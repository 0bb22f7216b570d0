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
float Score(const kvstrata_index_scores_args& a, const float* query, const float* weights, const float* key) {
  float score = 0;
  for (uint32_t h = 0; h < a.heads; ++h) {
    const float dot = Dot(query + uint64_t{h} * a.width, key, a.width);
    score += weights[h] * a.scale * (dot > 0 || std::isnan(dot) ? dot : 0.0f);
  }
  return (a.flags & KVSTRATA_KERNELS_SCORES_ROUND_BF16) != 0 ? RoundBf16(score) : score;
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
  for (uint64_t n = 0; n < a.tokens; ++n) {
    const uint64_t visible = std::min(VisibleEntries(a.first_position + n, a.ratio), a.entries);
    float* scores = a.scores + n * a.score_stride;
    for (uint64_t s = 0; s < visible; ++s) {
      scores[s] = Score(a, a.queries + n * a.query_stride, a.weights + n * a.weight_stride, a.keys + s * a.key_stride);
    }
    std::fill(scores + visible, scores + a.entries, -std::numeric_limits<float>::infinity());
  }
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
