// SPDX-License-Identifier: Apache-2.0
// Top-k at every level: the tie rule and causal visibility against a stable sort, which must be met exactly; inputs
// that are hard for a selection by threshold.
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

using Picks = std::vector<int32_t>;

// All levels must say the same; what they say. The workspace is what the level asks for.
Picks TopK(const std::vector<float>& scores, uint64_t entries, uint32_t k, uint64_t first_position, uint32_t ratio,
           uint32_t flags = 0) {
  auto a = Args<kvstrata_topk_args>();
  a.flags = flags;
  a.k = k;
  a.ratio = ratio;
  a.tokens = entries == 0 ? 1 : scores.size() / entries;
  a.first_position = first_position;
  a.entries = entries;
  a.scores = scores.data();
  Picks first;
  for (const kvstrata_kernels* level : Levels()) {
    INFO("level " << level->name << ", entries " << entries << ", k " << k);
    Picks picks(a.tokens * k, -7);
    a.indices = picks.data();
    uint64_t bytes = 1;
    REQUIRE(level->topk_workspace_bytes(&a, &bytes) == 0);
    // Aligned to 4 and no more.
    std::vector<uint32_t> workspace(bytes / 4 + 2);
    a.workspace = workspace.data() + 1;
    a.workspace_bytes = bytes;
    REQUIRE(level->topk(&a, nullptr) == 0);
    if (level == &Reference()) first = picks;
    REQUIRE(picks == first);
  }
  return first;
}

// A stable sort by score keeps the lower index first.
Picks Naive(const float* scores, uint64_t visible, uint32_t k) {
  Picks order(visible);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b])) return !std::isnan(scores[a]) && std::isnan(scores[b]);
    return scores[a] > scores[b];
  });
  order.resize(k, -1);
  return order;
}

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

// Each with more entries than one tile of the fast path, and one more than whole vectors.
TEST_CASE("top-k of inputs that are hard for a selection by threshold") {
  constexpr uint64_t kEntries = 40001;
  constexpr float kLargest = std::numeric_limits<float>::max();
  const uint64_t seed = 89;
  INFO("seed " << seed);
  Random random(seed);
  const std::pair<const char*, std::function<float(uint64_t)>> kinds[] = {
      {"random", [&](uint64_t) { return random.Float(1.0f); }},
      {"ascending", [](uint64_t i) { return static_cast<float>(i); }},
      {"descending", [](uint64_t i) { return -static_cast<float>(i); }},
      {"all equal", [](uint64_t) { return 3.0f; }},
      {"both zeros", [](uint64_t i) { return i % 3 == 0 ? -0.0f : 0.0f; }},
      {"two values", [&](uint64_t) { return random.Below(2) == 0 ? 1.0f : 2.0f; }},
      {"few large", [&](uint64_t i) { return i % 1000 == 7 ? 5.0f : 0.0f; }},
      {"ties across the threshold", [&](uint64_t) { return random.Below(100) == 0 ? 9.0f : random.Float(1.0f); }},
      {"large where indices agree modulo 4096",
       [&](uint64_t i) { return random.Float(1.0f) + (i % 4096 < 9 ? 4 : 0); }},
      {"all NaN", [](uint64_t) { return kNan; }},
      {"all -infinity", [](uint64_t) { return -kInfinity; }},
      {"NaN but for a few", [&](uint64_t i) { return i % 400 == 3 ? random.Float(1.0f) : kNan; }},
      {"infinities", [&](uint64_t) { return random.Below(3) == 0 ? kInfinity : -kInfinity; }},
      {"negative NaN and extremes",
       [&](uint64_t i) {
         return i % 4 == 0 ? -kNan : i % 4 == 1 ? kLargest : i % 4 == 2 ? -kLargest : 1e-40f;
       }},
      {"denormals", [&](uint64_t) { return std::bit_cast<float>(static_cast<uint32_t>(random.Below(5000))); }},
  };
  for (const auto& [name, score] : kinds) {
    INFO(name);
    std::vector<float> scores(kEntries);
    for (uint64_t i = 0; i < kEntries; ++i) scores[i] = score(i);
    for (const uint32_t k : {1u, 512u, 1024u, 5000u, 50000u}) {
      Picks expected = Naive(scores.data(), kEntries, k);
      REQUIRE(TopK(scores, kEntries, k, kEntries, 1) == expected);
      std::sort(expected.begin(), expected.begin() + static_cast<int64_t>(std::min<uint64_t>(k, kEntries)));
      REQUIRE(TopK(scores, kEntries, k, kEntries, 1, KVSTRATA_KERNELS_TOPK_SORT_ASCENDING) == expected);
    }
  }
}

TEST_CASE("top-k of every size around whole vectors and around k") {
  Random random(90);
  for (uint64_t entries = 1; entries <= 100; ++entries) {
    const std::vector<float> scores = random.Floats(entries, 1.0f);
    for (const uint32_t k : {1u, 7u, 64u}) {
      REQUIRE(TopK(scores, entries, k, entries, 1) == Naive(scores.data(), entries, k));
    }
  }
  for (const uint64_t entries : {4095u, 4096u, 4097u, 4111u, 4113u, 8191u, 8193u}) {
    const std::vector<float> scores = random.Floats(entries, 1.0f);
    REQUIRE(TopK(scores, entries, 512, entries, 1) == Naive(scores.data(), entries, 512));
  }
}

TEST_CASE("a score that is not visible is never looked at, nor is one of another query") {
  // Large scores lie beyond what each query sees, and between the rows.
  constexpr uint64_t kEntries = 9000;
  constexpr uint64_t kStride = kEntries + 5;
  Random random(91);
  std::vector<float> scores(3 * kStride, 100.0f);
  const uint64_t first = 8998 * 4 - 2;  // sees 8997, then 8998, 8998
  Picks expected;
  for (uint64_t n = 0; n < 3; ++n) {
    const uint64_t visible = (first + n + 1) / 4;
    for (uint64_t s = 0; s < visible; ++s) scores[n * kStride + s] = random.Float(1.0f);
    const Picks row = Naive(scores.data() + n * kStride, visible, 600);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  for (const kvstrata_kernels* level : Levels()) {
    INFO("level " << level->name);
    auto a = Args<kvstrata_topk_args>();
    a.k = 600;
    a.ratio = 4;
    a.tokens = 3;
    a.first_position = first;
    a.entries = kEntries;
    a.scores = scores.data();
    a.score_stride = kStride;
    Picks picks(expected.size());
    a.indices = picks.data();
    uint64_t bytes = 0;
    REQUIRE(level->topk_workspace_bytes(&a, &bytes) == 0);
    std::vector<uint32_t> workspace(bytes / 4 + 1);
    a.workspace = workspace.data();
    a.workspace_bytes = bytes;
    REQUIRE(level->topk(&a, nullptr) == 0);
    CHECK(picks == expected);
    if (bytes == 0) continue;
    a.workspace_bytes = bytes - 1;
    std::fill(picks.begin(), picks.end(), -7);
    CHECK(level->topk(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    CHECK(picks == Picks(picks.size(), -7));
  }
}
