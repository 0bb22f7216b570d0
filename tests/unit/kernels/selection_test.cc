// SPDX-License-Identifier: Apache-2.0
// Index scores and top-k against a naive computation; the tie rule; causal visibility.
#include <algorithm>
#include <numeric>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

std::vector<int32_t> TopK(const std::vector<float>& scores, uint64_t entries, uint32_t k, uint64_t first_position,
                          uint32_t ratio, uint32_t flags = 0) {
  auto a = Args<kvstrata_topk_args>();
  a.flags = flags;
  a.k = k;
  a.ratio = ratio;
  a.tokens = entries == 0 ? 1 : scores.size() / entries;
  a.first_position = first_position;
  a.entries = entries;
  a.scores = scores.data();
  std::vector<int32_t> out(a.tokens * k, -7);
  a.indices = out.data();
  uint64_t bytes = 1;
  REQUIRE(Reference().topk_workspace_bytes(&a, &bytes) == 0);
  std::vector<unsigned char> workspace(bytes);
  a.workspace = workspace.data();
  a.workspace_bytes = bytes;
  REQUIRE(Reference().topk(&a, nullptr) == 0);
  return out;
}

// A stable sort by score keeps the lower index first.
std::vector<int32_t> Naive(const float* scores, uint64_t visible, uint32_t k) {
  std::vector<int32_t> order(visible);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b])) return !std::isnan(scores[a]) && std::isnan(scores[b]);
    return scores[a] > scores[b];
  });
  order.resize(k, -1);
  return order;
}

using Picks = std::vector<int32_t>;

}  // namespace

TEST_CASE("top-k: higher score first, then lower index, NaN last, -1 where nothing is visible") {
  const std::vector<float> scores = {0.0f, 2.0f, kNan, -0.0f, 2.0f, 0.0f, -kInfinity, 9.0f};
  // Ratio 1 and position 6: entries 0..6 are visible, the 9 is not.
  CHECK(TopK(scores, 8, 3, 6, 1) == Picks{1, 4, 0});
  CHECK(TopK(scores, 8, 4, 6, 1) == Picks{1, 4, 0, 3});
  CHECK(TopK(scores, 8, 9, 6, 1) == Picks{1, 4, 0, 3, 5, 6, 2, -1, -1});
  CHECK(TopK(scores, 8, 3, 6, 1, KVSTRATA_KERNELS_TOPK_SORT_ASCENDING) == Picks{0, 1, 4});
  CHECK(TopK(scores, 8, 9, 6, 1, KVSTRATA_KERNELS_TOPK_SORT_ASCENDING) == Picks{0, 1, 2, 3, 4, 5, 6, -1, -1});
  CHECK(TopK({}, 0, 2, 100, 4) == Picks{-1, -1});
}

TEST_CASE("visibility: the query that closes an entry sees it") {
  const std::vector<float> scores(6 * 3, 1.0f);
  const Picks picks = TopK(scores, 3, 2, 2, 4);  // positions 2..7, ratio 4: floor((t+1)/4) = 0 1 1 1 1 2
  CHECK(picks == Picks{-1, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, 1});
}

TEST_CASE("top-k against a stable sort, with many exact ties") {
  const uint64_t seed = 81;
  INFO("seed " << seed);
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    const uint64_t entries = 1 + random.Below(200);
    const uint32_t k = static_cast<uint32_t>(1 + random.Below(64));
    std::vector<float> scores;
    for (uint64_t i = 0; i < entries; ++i) {
      const uint64_t kind = random.Below(20);
      scores.push_back(kind == 0 ? kNan : kind < 10 ? 0.0f : static_cast<float>(random.Below(12)) - 6.0f);
    }
    const uint64_t position = random.Below(900);
    const uint64_t visible = std::min(entries, (position + 1) / 4);
    Picks expected = Naive(scores.data(), visible, k);
    REQUIRE(TopK(scores, entries, k, position, 4) == expected);
    expected.resize(std::min<uint64_t>(visible, k));
    std::sort(expected.begin(), expected.end());
    expected.resize(k, -1);
    REQUIRE(TopK(scores, entries, k, position, 4, KVSTRATA_KERNELS_TOPK_SORT_ASCENDING) == expected);
  }
}

TEST_CASE("index scores: ReLU on the dot product, then the head's weight, which may be negative") {
  const uint64_t seed = 82;
  INFO("seed " << seed);
  Random random(seed);
  const uint32_t heads = 3, width = 40, ratio = 4;
  const uint64_t tokens = 9, first = 14, entries = 5;
  const std::vector<float> queries = random.Floats(tokens * heads * width, 1.0f);
  const std::vector<float> keys = random.Floats(entries * width, 1.0f);
  const std::vector<float> weights = random.Floats(tokens * heads, 1.0f);
  auto a = Args<kvstrata_index_scores_args>();
  a.heads = heads;
  a.width = width;
  a.ratio = ratio;
  a.tokens = tokens;
  a.first_position = first;
  a.entries = entries;
  a.queries = queries.data();
  a.keys = keys.data();
  a.weights = weights.data();
  std::vector<float> scores(tokens * entries), rounded(tokens * entries);
  a.scores = scores.data();
  REQUIRE(Reference().index_scores(&a, nullptr) == 0);
  a.flags = KVSTRATA_KERNELS_SCORES_ROUND_BF16;
  a.scores = rounded.data();
  REQUIRE(Reference().index_scores(&a, nullptr) == 0);
  const double scale = 1 / std::sqrt(40.0 * 3.0);
  for (uint64_t n = 0; n < tokens; ++n) {
    for (uint64_t s = 0; s < entries; ++s) {
      const float got = scores[n * entries + s];
      if (s >= (first + n + 1) / ratio) {
        CHECK(got == -kInfinity);
        continue;
      }
      double expected = 0;
      for (uint32_t h = 0; h < heads; ++h) {
        double dot = 0;
        for (uint32_t c = 0; c < width; ++c) {
          dot += static_cast<double>(queries[(n * heads + h) * width + c]) * keys[s * width + c];
        }
        expected += weights[n * heads + h] * scale * std::fmax(0.0, dot);
      }
      // 40 products below 1 in 16 lanes: 8 roundings of sums below 40; then 3 heads.
      CHECK(std::fabs(got - expected) < 3 * 12 * 40 * kUnit * scale);
      CHECK(rounded[n * entries + s] == ToBf16(got));
    }
  }
  // Half the dots are negative; a head sum of exactly 0 is then common, which is why the tie rule matters.
  size_t zeros = 0;
  for (float score : scores) zeros += score == 0.0f;
  CHECK(zeros > 0);
}
