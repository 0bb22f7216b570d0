// SPDX-License-Identifier: Apache-2.0
// Exact top-k of one query's scores as a multiple of one read of them, for scores as an indexer gives them and for
// inputs that are hard for a selection; against std::nth_element and against the scalar reference. Every result is
// compared with the reference's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/kernels/roofline.h"
#include "benchmarks/ratio.h"
#include "kernels/dispatch.h"

namespace {

namespace b = kvstrata::benchmarks;

constexpr uint64_t kEntries = 262144;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "topk: %s\n", what);
  std::exit(1);
}

uint64_t Random() {
  static uint64_t state = 9;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

float Gaussian() {
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) sum += static_cast<float>(Random()) * 0x1p-31f;
  return sum;
}

class Problem {
 public:
  template <typename Score>
  Problem(uint64_t entries, uint32_t k, Score&& score) : scores_(entries * sizeof(float)), picks_(k) {
    a_.struct_size = sizeof a_;
    a_.k = k;
    a_.ratio = 4;
    a_.tokens = 1;
    a_.first_position = 4 * entries;
    a_.entries = entries;
    a_.scores = scores_.as<float>();
    for (uint64_t i = 0; i < entries; ++i) scores_.as<float>()[i] = score(i);
  }

  void Run(const kvstrata_kernels& level) {
    a_.indices = picks_.data();
    uint64_t bytes = 0;
    if (level.topk_workspace_bytes(&a_, &bytes) != 0) Fail("topk_workspace_bytes failed");
    if (workspace_.size() < bytes) workspace_.resize(bytes);
    a_.workspace = workspace_.data();
    a_.workspace_bytes = workspace_.size();
    if (level.topk(&a_, nullptr) != 0) Fail("topk failed");
  }

  void Check(const kvstrata_kernels& level) {
    Run(*kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_REFERENCE));
    const std::vector<int32_t> expected = picks_;
    Run(level);
    if (picks_ != expected) Fail("the picks are not the reference's");
  }

  void Read() const { b::ReadPass(scores_.as(), a_.entries * sizeof(float)); }

  // What a plain C++ program does: pairs, nth_element, no order of the picks.
  void NthElement() {
    pairs_.resize(a_.entries);
    for (uint64_t i = 0; i < a_.entries; ++i) pairs_[i] = {a_.scores[i], static_cast<uint32_t>(i)};
    std::nth_element(pairs_.begin(), pairs_.begin() + a_.k, pairs_.end(),
                     [](const auto& x, const auto& y) { return x.first > y.first; });
  }

 private:
  kvstrata_topk_args a_{};
  b::HugeBuffer scores_;
  std::vector<int32_t> picks_;
  std::vector<unsigned char> workspace_;
  std::vector<std::pair<float, uint32_t>> pairs_;
};

// One call is too short for the clock: each side does it a few times.
constexpr int kTimes = 20;

template <typename Function>
void Times(Function&& function) {
  for (int i = 0; i < kTimes; ++i) function();
}

void PrintPasses(const std::string& name, const char* goal, const kvstrata_kernels& level, Problem& problem) {
  problem.Check(level);
  b::PrintRatio(
      name.c_str(), goal, [&] { Times([&] { problem.Run(level); }); }, [&] { Times([&] { problem.Read(); }); });
}

template <typename Score>
void PrintKind(const char* kind, const char* goal, const kvstrata_kernels& level, Score&& score) {
  for (const uint32_t k : {512u, 1024u}) {
    Problem problem(kEntries, k, score);
    PrintPasses("top" + std::to_string(k) + "_" + kind + "_passes", goal, level, problem);
  }
}

void PrintAdversarial(const kvstrata_kernels& level) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr const char* kGoal = "<=60";
  PrintKind("ascending", kGoal, level, [](uint64_t i) { return static_cast<float>(i); });
  PrintKind("descending", kGoal, level, [](uint64_t i) { return -static_cast<float>(i); });
  PrintKind("all_equal", kGoal, level, [](uint64_t) { return 1.0f; });
  PrintKind("two_values", kGoal, level, [](uint64_t) { return Random() % 2 == 0 ? 1.0f : 2.0f; });
  PrintKind("few_values", kGoal, level, [](uint64_t) { return static_cast<float>(Random() % 16); });
  PrintKind("relu_zeros", kGoal, level, [](uint64_t) { return Random() % 1000 == 0 ? Gaussian() : 0.0f; });
  PrintKind("nan_and_infinity", kGoal, level, [](uint64_t i) {
    return i % 3 == 0 ? kNan : i % 3 == 1 ? -kInfinity : Random() % 5 == 0 ? kInfinity : Gaussian();
  });
  PrintKind("all_nan", kGoal, level, [](uint64_t) { return kNan; });
  // All that is large lies in few columns of whatever width.
  PrintKind("columns_of_4160", kGoal, level, [](uint64_t i) { return Gaussian() + (i % 4160 < 500 ? 100.0f : 0.0f); });
  // Every magnitude there is, so that no halving of values helps.
  PrintKind("all_magnitudes", kGoal, level,
            [](uint64_t) { return std::ldexp(Gaussian(), static_cast<int>(Random() % 250) - 125); });
}

}  // namespace

int main() {
  const kvstrata_kernels& level = *kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_AUTO);
  const auto typical = [](uint64_t) { return 100.0f + 20.0f * Gaussian(); };
  PrintKind("typical", "<=4.0", level, typical);
  Problem problem(kEntries, 512, typical);
  b::PrintShare(
      "top512_vs_nth_element", ">=40", [&] { Times([&] { problem.Run(level); }); },
      [&] { Times([&] { problem.NthElement(); }); });
  b::PrintShare(
      "top512_vs_reference", ">=5.0", [&] { Times([&] { problem.Run(level); }); },
      [&] { Times([&] { problem.Run(*kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_REFERENCE)); }); });
  if (const kvstrata_kernels* avx2 = kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX2); avx2 != nullptr) {
    PrintPasses("top512_avx2_typical_passes", "<=6.0", *avx2, problem);
  }
  for (const uint64_t entries : {65536u, 2048u}) {
    Problem small(entries, 512, typical);
    PrintPasses("top512_of_" + std::to_string(entries) + "_passes", entries == 2048 ? "<=100" : "<=6.0", level, small);
  }
  PrintAdversarial(level);
  return 0;
}
