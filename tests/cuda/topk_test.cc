// SPDX-License-Identifier: Apache-2.0
// How often the CUDA top-k reads the scores: what it costs where they do not lie in a cache.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/functions.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/support/grid_model.h"

namespace kvstrata::kernels::cuda {
namespace {

constexpr uint32_t kEntries = 5'003;

// The k best by the rule of kernels.h: the higher score first, of equal ones the lower index, NaN last.
std::vector<int32_t> Best(const std::vector<float>& scores, uint32_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return !std::isnan(x) && (std::isnan(y) || x > y);
  });
  order.resize(k);
  return order;
}

struct Run {
  std::vector<int32_t> chosen;
  double passes = 0;
};

Run TopKOnModel(const std::vector<float>& scores, uint32_t k) {
  Run run{std::vector<int32_t>(k), 0};
  kvstrata_topk_args a{};
  a.struct_size = sizeof a;
  a.k = k;
  a.ratio = 4;
  a.tokens = 1;
  a.first_position = 4 * scores.size();
  a.entries = scores.size();
  a.scores = scores.data();
  a.indices = run.chosen.data();
  REQUIRE(TopKWorkspaceBytes(&a, &a.workspace_bytes) == kOk);
  std::vector<uint64_t> workspace(a.workspace_bytes / sizeof(uint64_t) + 1);
  a.workspace = workspace.data();
  const uint64_t before = kvstrata::test::GridLoadedBytes();
  REQUIRE(TopK(&a, nullptr) == kOk);
  run.passes = static_cast<double>(kvstrata::test::GridLoadedBytes() - before) /
               static_cast<double>(scores.size() * sizeof(float));
  return run;
}

struct Kind {
  const char* name;
  std::function<float(uint32_t)> score;
  double passes;
};

}  // namespace

TEST_CASE("top-k reads scores twice as a rule and never more than three times, whatever they are") {
  kvstrata::test::Rng rng(kvstrata::test::TestSeed("topk passes", 71));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Neighbours in the order of floats: their upper bits, which passes count, are the same for 1024 of them.
  const auto neighbour = [](uint32_t i) { return std::bit_cast<float>(std::bit_cast<uint32_t>(1.0f) + i); };
  const std::vector<Kind> kinds = {
      {"spread", [&](uint32_t) { return static_cast<float>(rng.Below(1u << 24)) / 4096 - 2048; }, 2},
      {"rising", [](uint32_t i) { return static_cast<float>(i) * 0.25f - 1000; }, 2},
      {"falling", [](uint32_t i) { return -static_cast<float>(i) * 0.25f + 1000; }, 2},
      {"all equal", [](uint32_t) { return 0.5f; }, 3},
      {"zeros of both signs", [](uint32_t i) { return i % 3 == 0 ? -0.0f : 0.0f; }, 3},
      {"not a number", [](uint32_t) { return kNan; }, 3},
      {"infinities and numbers that are none",
       [](uint32_t i) { return i % 4 == 0   ? kInfinity
                               : i % 4 == 1 ? -kInfinity
                                            : kNan; }, 3},
      {"few values", [&](uint32_t) { return static_cast<float>(rng.Below(3)); }, 3},
      {"neighbours, rising", [&](uint32_t i) { return neighbour(i / 5); }, 3},
      {"neighbours, falling", [&](uint32_t i) { return neighbour(1023 - i / 5); }, 3},
      {"neighbours in no order", [&](uint32_t) { return neighbour(static_cast<uint32_t>(rng.Below(1024))); }, 3},
      {"neighbours below a few that are better",
       [&](uint32_t i) { return i % 97 == 5 ? 7.0f + static_cast<float>(i) : neighbour(i / 5); }, 3},
  };
  for (const Kind& kind : kinds) {
    std::vector<float> scores(kEntries);
    for (uint32_t i = 0; i < kEntries; ++i) scores[i] = kind.score(i);
    for (const uint32_t k : {1u, 512u, 3000u}) {
      INFO(kind.name << ", the best " << k);
      const Run run = TopKOnModel(scores, k);
      CHECK(run.chosen == Best(scores, k));
      CHECK(run.passes <= kind.passes);
    }
  }
  for (const std::string& fault : kvstrata::test::TakeGridFaults()) FAIL_CHECK(fault);
}

}  // namespace kvstrata::kernels::cuda
