// SPDX-License-Identifier: Apache-2.0
// Index scores at every level: against a direct computation in double, in all forms of queries and keys; that a score
// does not depend on how a prompt is cut; causal visibility; rows whose bytes no packing of floats gives.
#include <algorithm>
#include <string>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

using ScoreArgs = kvstrata_index_scores_args;

enum class Keys { kF32, kBf16, kFp8, kFp4 };

struct Shape {
  uint32_t heads;
  uint32_t width;
  uint64_t tokens;
  uint64_t entries;
  bool bf16_queries;
  Keys keys;
};

// Inputs of one shape, in the form that is asked for and as the floats that they mean.
struct Problem {
  Shape shape;
  uint64_t first_position = 0;
  uint32_t ratio = 4;
  uint64_t key_stride = 0;
  std::vector<float> queries, keys, weights;
  std::vector<uint16_t> queries16, keys16;
  std::vector<uint8_t> codes, scales;
  uint64_t code_bytes = 0;
  uint64_t scale_bytes = 0;
};

std::vector<uint16_t> Halves(std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ToBf16(values[i]);
    halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
  }
  return halves;
}

int32_t FormatOf(Keys keys) {
  if (keys == Keys::kFp8) return KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8;
  return keys == Keys::kFp4 ? KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 : KVSTRATA_KERNELS_FORMAT_NONE;
}

// The floats of the packed rows.
void Unpack(Problem& p) {
  auto a = Args<kvstrata_unpack_rows_args>();
  a.format = FormatOf(p.shape.keys);
  a.destination_type = KVSTRATA_KERNELS_F32;
  a.rows = p.shape.entries;
  a.codes = p.codes.data();
  a.scales = p.scales.data();
  a.destination = p.keys.data();
  REQUIRE(Reference().unpack_rows(&a, nullptr) == 0);
}

void Pack(Problem& p) {
  const bool fp8 = p.shape.keys == Keys::kFp8;
  p.code_bytes = fp8 ? 128 : 64;
  p.scale_bytes = 4;
  p.codes.resize(p.shape.entries * p.code_bytes);
  p.scales.resize(p.shape.entries * p.scale_bytes);
  auto a = Args<kvstrata_pack_rows_args>();
  a.format = FormatOf(p.shape.keys);
  a.source_type = KVSTRATA_KERNELS_F32;
  a.rows = p.shape.entries;
  a.source = p.keys.data();
  a.codes = p.codes.data();
  a.scales = p.scales.data();
  REQUIRE(Reference().pack_rows(&a, nullptr) == 0);
  Unpack(p);
}

Problem Make(Random& random, const Shape& shape) {
  Problem p;
  p.shape = shape;
  p.first_position = 4 * shape.entries;
  const bool packed = shape.keys == Keys::kFp8 || shape.keys == Keys::kFp4;
  p.key_stride = shape.width + (packed ? 0 : random.Below(4));
  p.queries = random.Floats(shape.tokens * shape.heads * shape.width, 2.0f);
  p.keys = random.Floats(shape.entries * p.key_stride, 1.0f);
  p.weights = random.Floats(shape.tokens * shape.heads, 1.0f);
  if (shape.bf16_queries) p.queries16 = Halves(p.queries);
  if (shape.keys == Keys::kBf16) p.keys16 = Halves(p.keys);
  if (packed && shape.entries != 0) Pack(p);
  return p;
}

ScoreArgs ArgsOf(const Problem& p) {
  auto a = Args<ScoreArgs>();
  a.heads = p.shape.heads;
  a.width = p.shape.width;
  a.ratio = p.ratio;
  a.tokens = p.shape.tokens;
  a.first_position = p.first_position;
  a.entries = p.shape.entries;
  a.query_type = p.shape.bf16_queries ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32;
  a.queries = p.queries.data();
  if (p.shape.bf16_queries) a.queries = p.queries16.data();
  a.weights = p.weights.data();
  a.key_format = FormatOf(p.shape.keys);
  if (a.key_format != KVSTRATA_KERNELS_FORMAT_NONE) {
    a.packed_keys.codes = const_cast<uint8_t*>(p.codes.data());
    a.packed_keys.scales = const_cast<uint8_t*>(p.scales.data());
    return a;
  }
  a.key_type = p.shape.keys == Keys::kBf16 ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32;
  a.keys = p.keys.data();
  if (p.shape.keys == Keys::kBf16) a.keys = p.keys16.data();
  a.key_stride = p.key_stride;
  return a;
}

// With the workspace that the level asks for, not aligned beyond 4.
void Run(const kvstrata_kernels& level, ScoreArgs a) {
  uint64_t bytes = 1;
  REQUIRE(level.index_scores_workspace_bytes(&a, &bytes) == 0);
  std::vector<uint32_t> workspace(bytes / 4 + 2);
  a.workspace = workspace.data() + 1;
  a.workspace_bytes = bytes;
  REQUIRE(level.index_scores(&a, nullptr) == 0);
}

std::vector<float> Scores(const kvstrata_kernels& level, ScoreArgs a) {
  std::vector<float> scores(a.tokens * a.entries, 7.0f);
  a.scores = scores.data();
  Run(level, a);
  return scores;
}

struct Exact {
  double score;
  double tolerance;  // of kernels.h: 2 (width + heads) 2^-24 sum_h |weight * scale| * sum_c |q k|
};

Exact ExactScore(const Problem& p, uint64_t n, uint64_t s) {
  const Shape& shape = p.shape;
  const double scale = 1 / (std::sqrt(static_cast<double>(shape.width)) * std::sqrt(static_cast<double>(shape.heads)));
  Exact exact{0, 0};
  for (uint32_t h = 0; h < shape.heads; ++h) {
    double dot = 0;
    double magnitude = 0;
    for (uint32_t c = 0; c < shape.width; ++c) {
      const double product = static_cast<double>(p.queries[(n * shape.heads + h) * shape.width + c]) *
                             static_cast<double>(p.keys[s * p.key_stride + c]);
      dot += product;
      magnitude += std::fabs(product);
    }
    const double weight = static_cast<double>(p.weights[n * shape.heads + h]) * scale;
    exact.score += weight * std::fmax(0.0, dot);
    exact.tolerance += std::fabs(weight) * magnitude;
  }
  exact.tolerance *= 2.0 * (shape.width + shape.heads) * kUnit;
  return exact;
}

void CheckAll(const Problem& p) {
  for (const kvstrata_kernels* level : Levels()) {
    INFO("level " << level->name << ", heads " << p.shape.heads << ", width " << p.shape.width << ", entries "
                  << p.shape.entries << ", keys " << static_cast<int>(p.shape.keys) << ", bf16 queries "
                  << p.shape.bf16_queries);
    const std::vector<float> scores = Scores(*level, ArgsOf(p));
    for (uint64_t i = 0; i < scores.size(); ++i) {
      const uint64_t n = i / p.shape.entries;
      const uint64_t s = i % p.shape.entries;
      const Exact exact = ExactScore(p, n, s);
      REQUIRE(std::fabs(static_cast<double>(scores[i]) - exact.score) <= exact.tolerance);
    }
  }
}

bool IsPacked(Keys keys) { return keys == Keys::kFp8 || keys == Keys::kFp4; }

}  // namespace

TEST_CASE("index scores: ReLU on the dot product, then the head's weight, which may be negative") {
  const uint64_t seed = 82;
  INFO("seed " << seed);
  Random random(seed);
  Problem p = Make(random, {3, 40, 9, 5, false, Keys::kF32});
  p.first_position = 14;
  for (const kvstrata_kernels* level : Levels()) {
    INFO("level " << level->name);
    ScoreArgs a = ArgsOf(p);
    const std::vector<float> scores = Scores(*level, a);
    a.flags = KVSTRATA_KERNELS_SCORES_ROUND_BF16;
    const std::vector<float> rounded = Scores(*level, a);
    size_t zeros = 0;
    for (uint64_t i = 0; i < scores.size(); ++i) {
      const uint64_t n = i / p.shape.entries;
      const uint64_t s = i % p.shape.entries;
      if (s >= (p.first_position + n + 1) / p.ratio) {
        CHECK(scores[i] == -kInfinity);
        continue;
      }
      const Exact exact = ExactScore(p, n, s);
      CHECK(std::fabs(static_cast<double>(scores[i]) - exact.score) <= exact.tolerance);
      CHECK(rounded[i] == ToBf16(scores[i]));
      zeros += scores[i] == 0.0f;
    }
    // Half the dots are negative; a head sum of exactly 0 is then common, which is why the tie rule matters.
    CHECK(zeros > 0);
  }
}

// Heads around whole vectors and groups of them, widths around pairs and lines, entries around tiles and chunks.
TEST_CASE("index scores of all forms and odd shapes are within the tolerance at every level") {
  const uint64_t seed = 83;
  INFO("seed " << seed);
  Random random(seed);
  for (const bool bf16_queries : {false, true}) {
    for (const Keys keys : {Keys::kF32, Keys::kBf16, Keys::kFp8, Keys::kFp4}) {
      for (const uint32_t heads : {1u, 8u, 15u, 17u, 32u, 48u, 64u, 81u, 130u}) {
        const uint32_t width = IsPacked(keys) ? 128 : 1 + static_cast<uint32_t>(random.Below(70));
        CheckAll(Make(random, {heads, width, 2, 1 + random.Below(70), bf16_queries, keys}));
      }
      CheckAll(Make(random, {64, 128, 1, 67, bf16_queries, keys}));
      CheckAll(Make(random, {3, 128, 35, 9, bf16_queries, keys}));
    }
  }
}

TEST_CASE("a score is the same bits however tokens and entries are cut, at every level") {
  const uint64_t seed = 84;
  INFO("seed " << seed);
  Random random(seed);
  for (int round = 0; round < 12; ++round) {
    const auto keys = static_cast<Keys>(round % 4);
    const uint32_t heads = round < 4 ? 64 : 1 + static_cast<uint32_t>(random.Below(90));
    const uint32_t width = IsPacked(keys) || round < 4 ? 128 : 1 + static_cast<uint32_t>(random.Below(90));
    Problem p = Make(random, {heads, width, 40, 150, round % 3 != 0, keys});
    p.first_position = 500;  // the first query sees 125 entries, the last 135
    for (const kvstrata_kernels* level : Levels()) {
      INFO("level " << level->name << ", heads " << heads << ", width " << width << ", round " << round);
      const ScoreArgs whole = ArgsOf(p);
      const std::vector<float> expected = Scores(*level, whole);
      std::vector<float> pieces(expected.size(), 7.0f);
      for (uint64_t n = 0; n < whole.tokens;) {
        const uint64_t tokens = std::min(whole.tokens - n, 1 + random.Below(20));
        for (uint64_t s = 0; s < whole.entries;) {
          ScoreArgs a = whole;
          a.tokens = tokens;
          a.first_position += n;
          a.entries = std::min(whole.entries - s, 1 + random.Below(50));
          a.first_entry = s;
          const uint64_t query = n * heads * width;
          a.queries = p.shape.bf16_queries ? static_cast<const void*>(p.queries16.data() + query)
                                           : static_cast<const void*>(p.queries.data() + query);
          a.weights += n * heads;
          if (keys == Keys::kF32) a.keys = p.keys.data() + s * p.key_stride;
          if (keys == Keys::kBf16) a.keys = p.keys16.data() + s * p.key_stride;
          if (IsPacked(keys)) {
            a.packed_keys.codes += s * p.code_bytes;
            a.packed_keys.scales += s * p.scale_bytes;
          }
          a.scores = pieces.data() + n * whole.entries + s;
          a.score_stride = whole.entries;
          Run(*level, a);
          s += a.entries;
        }
        n += tokens;
      }
      REQUIRE(SameBits(pieces, expected));
    }
  }
}

TEST_CASE("index scores write their rows and nothing between them, and -infinity where nothing is visible") {
  Random random(85);
  Problem p = Make(random, {2, 8, 3, 7, false, Keys::kF32});
  p.first_position = 0;  // entry 0 ends with token 3
  for (const kvstrata_kernels* level : Levels()) {
    INFO("level " << level->name);
    ScoreArgs a = ArgsOf(p);
    std::vector<float> scores(3 * 10, 7.0f);
    a.scores = scores.data();
    a.score_stride = 10;
    Run(*level, a);
    for (uint64_t i = 0; i < scores.size(); ++i) CHECK(scores[i] == (i % 10 < 7 ? -kInfinity : 7.0f));
    a.workspace_bytes = 0;
    a.entries = 0;
    CHECK(level->index_scores(&a, nullptr) == 0);
  }
}

TEST_CASE("a workspace too small is refused before anything is written, where one is needed") {
  Random random(86);
  const Problem p = Make(random, {2, 128, 1, 7, true, Keys::kFp8});
  for (const kvstrata_kernels* level : Levels()) {
    INFO("level " << level->name);
    ScoreArgs a = ArgsOf(p);
    uint64_t bytes = 0;
    REQUIRE(level->index_scores_workspace_bytes(&a, &bytes) == 0);
    REQUIRE(bytes != 0);
    std::vector<uint32_t> workspace(bytes / 4 + 1);
    std::vector<float> scores(7, 7.0f);
    a.scores = scores.data();
    a.workspace = workspace.data();
    a.workspace_bytes = bytes - 1;
    CHECK(level->index_scores(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    CHECK(scores == std::vector<float>(7, 7.0f));
  }
}

// An infinite key meets the lanes of heads that do not exist, and padding of odd widths: they must stay out of the sum.
TEST_CASE("infinities and NaN in rows of floats give what the reference gives") {
  for (const bool bf16 : {false, true}) {
    Random random(87);
    Problem p = Make(random, {3, 7, 1, 4, bf16, bf16 ? Keys::kBf16 : Keys::kF32});
    for (float& query : p.queries) query = 1.0f;
    for (float& weight : p.weights) weight = 1.0f;
    p.keys[0] = kInfinity;
    p.keys[p.key_stride + 6] = -kInfinity;
    p.keys[2 * p.key_stride] = kNan;
    if (bf16) {
      p.queries16 = Halves(p.queries);
      p.keys16 = Halves(p.keys);
    }
    for (const kvstrata_kernels* level : Levels()) {
      INFO("level " << level->name << ", bf16 " << bf16);
      const std::vector<float> scores = Scores(*level, ArgsOf(p));
      CHECK(scores[0] == kInfinity);
      CHECK(scores[1] == 0.0f);
      CHECK(std::isnan(scores[2]));
      CHECK(std::isfinite(scores[3]));
    }
  }
}

// Bytes that a packing never gives, but a store may hold: every level must read them as unpack_rows does.
TEST_CASE("packed keys with any codes and any scales are scored as what they unpack to") {
  const uint64_t seed = 88;
  INFO("seed " << seed);
  Random random(seed);
  for (const Keys keys : {Keys::kFp8, Keys::kFp4}) {
    Problem p = Make(random, {20, 128, 2, 64, true, keys});
    // Small queries, so that no sum overflows: that would depend on the order.
    for (float& query : p.queries) query *= 0x1p-20f;
    p.queries16 = Halves(p.queries);
    for (uint8_t& code : p.codes) code = static_cast<uint8_t>(random.Bits());
    // One row of zeros has the smallest scale that packing gives, the others odd ones.
    std::fill(p.codes.begin(), p.codes.begin() + static_cast<int64_t>(p.code_bytes), uint8_t{0});
    constexpr float kScales[8] = {0x1p-22f, 3.0f, -2.0f, 0.0f, 0x1p-120f, 0x1.8p+10f, 0x1p+119f, 0x1p-133f};
    constexpr uint8_t kBytes[8] = {1, 0, 2, 120, 130, 252, 253, 254};
    for (uint64_t s = 0; s < p.shape.entries; ++s) {
      uint8_t* scales = p.scales.data() + s * 4;
      if (keys == Keys::kFp8) std::memcpy(scales, &kScales[s % 8], 4);
      if (keys == Keys::kFp4) std::fill(scales, scales + 4, kBytes[s % 8]);
    }
    if (keys == Keys::kFp8) {
      // NaN codes would make every score NaN: one row shows that they do.
      for (uint64_t i = p.code_bytes * 2; i < p.codes.size(); ++i) p.codes[i] &= static_cast<uint8_t>(~1u);
      p.codes[p.code_bytes + 5] = 0x7F;
    }
    Unpack(p);
    const std::vector<float> expected = Scores(Reference(), ArgsOf(p));
    for (const kvstrata_kernels* level : Levels()) {
      const std::vector<float> scores = Scores(*level, ArgsOf(p));
      for (uint64_t i = 0; i < scores.size(); ++i) {
        INFO("level " << level->name << ", score " << i << ", " << scores[i] << " for " << expected[i]);
        const Exact exact = ExactScore(p, i / p.shape.entries, i % p.shape.entries);
        // Sums of numbers around 2^-126 may count as 0: as many as there are products, with weights below 1.
        const double denormal = 20.0 * 128 * 0x1p-125;
        if (std::isfinite(expected[i])) {
          REQUIRE(std::fabs(static_cast<double>(scores[i] - expected[i])) <= exact.tolerance + denormal);
        } else {
          REQUIRE(std::isnan(expected[i]) == std::isnan(scores[i]));
          REQUIRE((std::isnan(scores[i]) || scores[i] == expected[i]));
        }
      }
    }
  }
}
