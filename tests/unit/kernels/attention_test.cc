// SPDX-License-Identifier: Apache-2.0
// Attention against a direct computation in double, at every level, and what it refuses. Forms of rows and partitions:
// attention_forms_test.cc.
#include <algorithm>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

constexpr uint32_t kHeads = 3;
constexpr uint32_t kWidth = 48;
constexpr uint32_t kRope = 16;
constexpr uint32_t kWindow = 8;
constexpr uint32_t kRatio = 4;
constexpr uint64_t kTokens = 40;

struct Problem {
  std::vector<float> queries, window, entries, sinks, frequencies;
  std::vector<int32_t> picks;  // [kTokens][3]
};

Problem MakeProblem(uint64_t seed) {
  Random random(seed);
  Problem p;
  p.queries = random.Floats(kTokens * kHeads * kWidth, 2.0f);
  p.window = random.Floats(kTokens * kWidth, 1.0f);
  p.entries = random.Floats(kTokens / kRatio * kWidth, 1.0f);
  p.sinks = random.Floats(kHeads, 3.0f);
  p.frequencies = random.Floats(kRope / 2, 0.5f);
  for (uint64_t t = 0; t < kTokens; ++t) {
    const uint64_t visible = (t + 1) / kRatio;
    for (int i = 0; i < 3; ++i) {
      const bool none = visible == 0 || random.Below(4) == 0;
      p.picks.push_back(none ? -1 : static_cast<int32_t>(random.Below(visible)));
    }
  }
  return p;
}

enum class Global { kNone, kAll, kPicks };

kvstrata_attention_args MakeArgs(const Problem& p, Global global) {
  auto a = Args<kvstrata_attention_args>();
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.heads = kHeads;
  a.width = kWidth;
  a.window = kWindow;
  a.rope_dims = kRope;
  a.tokens = kTokens;
  a.queries = p.queries.data();
  a.window_kv = p.window.data();
  a.window_rows = kTokens;
  a.sinks = p.sinks.data();
  a.frequencies = p.frequencies.data();
  if (global == Global::kNone) return a;
  a.ratio = kRatio;
  a.entries = p.entries.data();
  a.entry_count = kTokens / kRatio;
  if (global == Global::kPicks) {
    a.picks = p.picks.data();
    a.pick_count = 3;
  }
  return a;
}

std::vector<float> Run(const kvstrata_kernels& level, kvstrata_attention_args a) {
  uint64_t bytes = 0;
  REQUIRE(level.attention_workspace_bytes(&a, &bytes) == 0);
  std::vector<float> workspace(bytes / sizeof(float));
  std::vector<float> output(a.tokens * kHeads * kWidth);
  a.workspace = workspace.data();
  a.workspace_bytes = bytes;
  a.output = output.data();
  REQUIRE(level.attention(&a, nullptr) == 0);
  return output;
}

// Rows that query t sees, straight from the definition.
std::vector<const float*> Rows(const Problem& p, Global global, uint64_t t) {
  std::vector<const float*> rows;
  for (uint64_t s = 0; s <= t; ++s) {
    if (s + kWindow > t) rows.push_back(p.window.data() + s * kWidth);
  }
  if (global == Global::kAll) {
    for (uint64_t s = 0; s < (t + 1) / kRatio; ++s) rows.push_back(p.entries.data() + s * kWidth);
  }
  if (global == Global::kPicks) {
    for (uint64_t i = 0; i < 3; ++i) {
      const int32_t pick = p.picks[t * 3 + i];
      if (pick >= 0) rows.push_back(p.entries.data() + pick * kWidth);
    }
  }
  return rows;
}

std::vector<double> Expected(const Problem& p, Global global, uint64_t t, uint64_t head, bool sink) {
  const float* q = p.queries.data() + (t * kHeads + head) * kWidth;
  std::vector<double> out(kWidth);
  double total = sink ? std::exp(static_cast<double>(p.sinks[head])) : 0;
  for (const float* row : Rows(p, global, t)) {
    double logit = 0;
    for (uint32_t c = 0; c < kWidth; ++c) logit += static_cast<double>(q[c]) * row[c];
    const double weight = std::exp(logit / std::sqrt(static_cast<double>(kWidth)));
    total += weight;
    for (uint32_t c = 0; c < kWidth; ++c) out[c] += weight * row[c];
  }
  for (double& value : out) value /= total;
  return out;
}

// Logits: products below 2 in sums of 48, (3 + 5) roundings, times 48^-0.5: error d < 8 * 96 * u * 0.145. exp turns
// that into a relative error of d plus 2 ulp; sums of at most 18 rows add 18 each; numerator and denominator alike;
// |kv| <= 1.
constexpr double kTolerance = 2 * (8 * 96 * 0.145 + 4 + 18) * kUnit;

double Worst(const std::vector<float>& got, const Problem& p, Global global, bool sink) {
  double worst = 0;
  for (uint64_t t = 0; t < kTokens; ++t) {
    for (uint64_t h = 0; h < kHeads; ++h) {
      const std::vector<double> expected = Expected(p, global, t, h, sink);
      for (uint32_t c = 0; c < kWidth; ++c) {
        worst = std::max(worst, std::fabs(got[(t * kHeads + h) * kWidth + c] - expected[c]));
      }
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("attention follows the formula for window-only, all-entries and picked-entries layers") {
  const uint64_t seed = 91;
  INFO("seed " << seed);
  const Problem p = MakeProblem(seed);
  for (const kvstrata_kernels* level : Levels()) {
    INFO(level->name);
    for (const Global global : {Global::kNone, Global::kAll, Global::kPicks}) {
      CHECK(Worst(Run(*level, MakeArgs(p, global)), p, global, true) < kTolerance);
      kvstrata_attention_args a = MakeArgs(p, global);
      a.sinks = nullptr;
      CHECK(Worst(Run(*level, a), p, global, false) < kTolerance);
      CHECK(Worst(Run(*level, a), p, global, true) > 100 * kTolerance);  // the sink matters
    }
  }
}

TEST_CASE("negative control: a window one row short or rows in another order are seen") {
  const uint64_t seed = 92;
  INFO("seed " << seed);
  const Problem p = MakeProblem(seed);
  kvstrata_attention_args a = MakeArgs(p, Global::kAll);
  a.window = kWindow - 1;
  CHECK(Worst(Run(Reference(), a), p, Global::kAll, true) > 100 * kTolerance);
  Problem reversed = p;
  for (uint64_t t = 0; t < kTokens; ++t) {
    std::copy_n(p.window.begin() + static_cast<std::ptrdiff_t>(t * kWidth), kWidth,
                reversed.window.begin() + static_cast<std::ptrdiff_t>((kTokens - 1 - t) * kWidth));
  }
  CHECK(Worst(Run(Reference(), MakeArgs(reversed, Global::kAll)), p, Global::kAll, true) > 100 * kTolerance);
}

TEST_CASE("attention does not depend on chunking, nor on linear rows or a ring") {
  const uint64_t seed = 93;
  INFO("seed " << seed);
  const Problem p = MakeProblem(seed);
  for (const kvstrata_kernels* level : Levels()) {
    INFO(level->name);
    std::vector<float> chunked, ringed;
    for (uint64_t t = 0; t < kTokens; ++t) {
      kvstrata_attention_args a = MakeArgs(p, Global::kPicks);
      a.tokens = 1;
      a.first_position = t;
      a.queries = p.queries.data() + t * kHeads * kWidth;
      a.picks += t * 3;
      a.entry_count = (t + 1) / kRatio;
      // Linear: exactly the rows that the query sees.
      a.window_first = t + 1 > kWindow ? t + 1 - kWindow : 0;
      a.window_kv = p.window.data() + a.window_first * kWidth;
      a.window_rows = t + 1 - a.window_first;
      const std::vector<float> one = Run(*level, a);
      chunked.insert(chunked.end(), one.begin(), one.end());

      std::vector<float> ring(11 * kWidth, kNan);
      for (uint64_t s = a.window_first; s <= t; ++s) {
        std::copy_n(p.window.begin() + static_cast<std::ptrdiff_t>(s * kWidth), kWidth,
                    ring.begin() + static_cast<std::ptrdiff_t>(s % 11 * kWidth));
      }
      a.window_kv = ring.data();
      a.window_ring = 11;
      const std::vector<float> two = Run(*level, a);
      ringed.insert(ringed.end(), two.begin(), two.end());
    }
    const std::vector<float> expected = Run(*level, MakeArgs(p, Global::kPicks));
    CHECK(SameBits(chunked, expected));
    CHECK(SameBits(ringed, expected));
  }
}

TEST_CASE("the inverse rotation as a flag equals the reference's rotation of what comes without it") {
  const uint64_t seed = 94;
  INFO("seed " << seed);
  const Problem p = MakeProblem(seed);
  for (const kvstrata_kernels* level : Levels()) {
    INFO(level->name);
    for (const int32_t profile : {KVSTRATA_KERNELS_PROFILE_F, KVSTRATA_KERNELS_PROFILE_Q}) {
      kvstrata_attention_args a = MakeArgs(p, Global::kAll);
      a.profile = profile;
      std::vector<float> apart = Run(*level, a);
      auto rope = Args<kvstrata_rope_args>();
      rope.profile = profile;
      rope.flags = KVSTRATA_KERNELS_ROPE_INVERSE;
      rope.heads = kHeads;
      rope.width = kWidth;
      rope.rope_dims = kRope;
      rope.tokens = kTokens;
      rope.values = apart.data();
      rope.position_step = 1;
      rope.frequencies = p.frequencies.data();
      REQUIRE(Reference().rope(&rope, nullptr) == 0);
      a.flags = KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE;
      CHECK(SameBits(Run(*level, a), apart));
    }
  }
}

TEST_CASE("profile Q rounds probabilities and outputs to bf16") {
  const uint64_t seed = 95;
  INFO("seed " << seed);
  const Problem p = MakeProblem(seed);
  for (const kvstrata_kernels* level : Levels()) {
    INFO(level->name);
    kvstrata_attention_args a = MakeArgs(p, Global::kAll);
    a.profile = KVSTRATA_KERNELS_PROFILE_Q;
    const std::vector<float> q = Run(*level, a);
    a.profile = KVSTRATA_KERNELS_PROFILE_S;
    CHECK(SameBits(Run(*level, a), q));
    for (float value : q) REQUIRE(value == ToBf16(value));
    // Two bf16 roundings (2^-9 relative each) of numbers below 1.
    CHECK(Worst(q, p, Global::kAll, true) < 2.1 * 0x1p-9);
  }
}

TEST_CASE("huge logits and sinks do not overflow") {
  Problem p = MakeProblem(96);
  for (float& value : p.queries) value *= 1000.0f;
  p.sinks = {500.0f, -500.0f, 0.0f};
  for (const kvstrata_kernels* level : Levels()) {
    INFO(level->name);
    for (float value : Run(*level, MakeArgs(p, Global::kAll))) REQUIRE(std::isfinite(value));
  }
}

namespace {

bool Refused(const kvstrata_kernels& level, kvstrata_attention_args a) {
  std::vector<float> workspace(1 << 16), output(kTokens * kHeads * kWidth, 7.0f);
  if (a.workspace_bytes == 0) a.workspace_bytes = workspace.size() * sizeof(float);
  a.workspace = workspace.data();
  a.output = output.data();
  const int32_t status = level.attention(&a, nullptr);
  return status == KVSTRATA_KERNELS_INVALID_ARGUMENT &&
         std::all_of(output.begin(), output.end(), [](float v) { return v == 7.0f; });
}

}  // namespace

TEST_CASE("attention refuses rows that are not there and leaves the output alone") {
  const Problem p = MakeProblem(97);
  for (const kvstrata_kernels* level : Levels()) {
    INFO(level->name);
    CHECK_FALSE(Refused(*level, MakeArgs(p, Global::kAll)));
    kvstrata_attention_args a = MakeArgs(p, Global::kAll);
    a.window_rows = kTokens - 1;
    CHECK(Refused(*level, a));
    a = MakeArgs(p, Global::kAll);
    a.entry_count -= 1;
    CHECK(Refused(*level, a));
    Problem bad = p;
    bad.picks[3 * 5] = 1;  // query 5 sees entry 0 only
    CHECK(Refused(*level, MakeArgs(bad, Global::kPicks)));
    bad.picks[3 * 5] = -2;
    CHECK(Refused(*level, MakeArgs(bad, Global::kPicks)));
    a = MakeArgs(p, Global::kAll);
    a.ratio = 0;
    a.pick_count = 3;
    CHECK(Refused(*level, a));
    a = MakeArgs(p, Global::kAll);
    REQUIRE(level->attention_workspace_bytes(&a, &a.workspace_bytes) == 0);
    a.workspace_bytes -= 1;
    CHECK(Refused(*level, a));
  }
}
