// SPDX-License-Identifier: Apache-2.0
// RoPE tables, rotation and RMSNorm against the formulas in double.
#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

std::vector<float> CompressTable() {
  auto a = Args<kvstrata_rope_frequencies_args>();
  a.rope_dims = 64;
  a.theta = 160000;
  a.yarn_factor = 16;
  a.original_length = 65536;
  a.beta_fast = 32;
  a.beta_slow = 1;
  std::vector<float> out(32);
  a.frequencies = out.data();
  REQUIRE(Reference().rope_frequencies(&a, nullptr) == 0);
  return out;
}

kvstrata_rope_args RopeArgs(std::vector<float>& values, const std::vector<float>& frequencies, uint32_t width) {
  auto a = Args<kvstrata_rope_args>();
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.width = width;
  a.rope_dims = static_cast<uint32_t>(2 * frequencies.size());
  a.tokens = values.size() / width;
  a.values = values.data();
  a.frequencies = frequencies.data();
  a.position_step = 1;
  return a;
}

}  // namespace

TEST_CASE("compress frequencies with YaRN: published check values") {
  const std::vector<float> f = CompressTable();
  const std::pair<size_t, double> expected[] = {{0, 1},
                                                {1, 0.687656022},
                                                {14, 0.00528685632},
                                                {15, 0.00363553858},
                                                {16, 0.002265625},
                                                {20, 2.96977778e-4},
                                                {24, 1.953125e-5},
                                                {25, 5.37231267e-6},
                                                {31, 5.68052904e-7}};
  for (const auto& [k, value] : expected) {
    CAPTURE(k);
    // fp32: a power, a reciprocal and the mix, each half an ulp; the published digits carry 5e-9 more.
    CHECK(std::fabs(f[k] - value) <= 4 * kUnit * value);
  }
}

TEST_CASE("plain frequencies") {
  auto a = Args<kvstrata_rope_frequencies_args>();
  a.rope_dims = 64;
  a.theta = 10000;
  std::vector<float> f(32);
  a.frequencies = f.data();
  REQUIRE(Reference().rope_frequencies(&a, nullptr) == 0);
  for (int k = 0; k < 32; ++k) {
    const double expected = std::pow(10000.0, -2.0 * k / 64);
    CHECK(std::fabs(f[static_cast<size_t>(k)] - expected) <= 3 * kUnit * expected);
  }
}

TEST_CASE("rotation: adjacent pairs of the last channels, by the fp32 product") {
  const uint64_t seed = 21;
  INFO("seed " << seed);
  const std::vector<float> f = CompressTable();
  for (const kvstrata_kernels* level : Levels()) {
    for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{4096}, int64_t{1048575}}) {
      std::vector<float> row = Random(seed).Floats(512, 1.0f);
      const std::vector<float> before = row;
      kvstrata_rope_args a = RopeArgs(row, f, 512);
      a.first_position = position;
      REQUIRE(level->rope(&a, nullptr) == 0);
      for (size_t i = 0; i < 448; ++i) REQUIRE(row[i] == before[i]);
      for (size_t k = 0; k < 32; ++k) {
        const double angle = static_cast<float>(position) * f[k];  // a float product on purpose
        const double x = before[448 + 2 * k];
        const double y = before[449 + 2 * k];
        CAPTURE(level->name, position, k);
        // cos and sin rounded, two products, one sum: at most 4 roundings of numbers below 2.
        CHECK(std::fabs(row[448 + 2 * k] - (x * std::cos(angle) - y * std::sin(angle))) < 5 * kUnit);
        CHECK(std::fabs(row[449 + 2 * k] - (x * std::sin(angle) + y * std::cos(angle))) < 5 * kUnit);
      }
    }
  }
}

TEST_CASE("rotation of any number of pairs and heads touches the rotated channels alone; rounding is the last step") {
  const uint64_t seed = 27;
  INFO("seed " << seed);
  Random random(seed);
  for (const kvstrata_kernels* level : Levels()) {
    for (const uint32_t dims : {2u, 6u, 16u, 30u, 64u, 126u, 130u, 300u}) {
      const std::vector<float> f = random.Floats(dims / 2, 0.5f);
      const uint32_t width = dims + 3;
      // Two tokens of three heads, each head followed by 5 floats and each token by 7 more that are nobody's.
      const uint64_t head_stride = width + 5;
      const uint64_t token_stride = 3 * head_stride + 7;
      const std::vector<float> before = random.Floats(2 * token_stride, 1.0f);
      std::vector<float> exact = before;
      std::vector<float> rounded = before;
      kvstrata_rope_args a = RopeArgs(exact, f, width);
      a.heads = 3;
      a.tokens = 2;
      a.head_stride = head_stride;
      a.token_stride = token_stride;
      a.first_position = 77;
      a.position_step = 1000;
      REQUIRE(level->rope(&a, nullptr) == 0);
      a.values = rounded.data();
      a.profile = KVSTRATA_KERNELS_PROFILE_S;
      REQUIRE(level->rope(&a, nullptr) == 0);
      std::vector<double> expected(before.begin(), before.end());
      for (size_t n = 0; n < 6; ++n) {
        const size_t first = n / 3 * token_stride + n % 3 * head_stride + 3;
        for (size_t k = 0; k < dims / 2; ++k) {
          const double angle = static_cast<float>(77 + n / 3 * 1000) * f[k];
          const double x = before[first + 2 * k];
          const double y = before[first + 2 * k + 1];
          expected[first + 2 * k] = x * std::cos(angle) - y * std::sin(angle);
          expected[first + 2 * k + 1] = x * std::sin(angle) + y * std::cos(angle);
        }
      }
      CAPTURE(level->name, dims);
      double worst = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        if (expected[i] == before[i]) REQUIRE(exact[i] == before[i]);
        REQUIRE(rounded[i] == (exact[i] == before[i] ? before[i] : ToBf16(exact[i])));
        worst = std::fmax(worst, std::fabs(exact[i] - expected[i]));
      }
      CHECK(worst < 5 * kUnit);
    }
  }
}

TEST_CASE("at a million tokens the fp32 product is not the exact angle, and the fp32 one is used") {
  const std::vector<float> f = CompressTable();
  double worst = 0;
  for (size_t k = 0; k < 8; ++k) {
    const float product = 1048575.0f * f[k];
    worst = std::fmax(worst, std::fabs(product - 1048575.0 * static_cast<double>(f[k])));
  }
  CHECK(worst > 1e-3);
  CHECK(worst < 0.04);
}

TEST_CASE("sin and cos are right to the last bit but one for any angle of a position") {
  const uint64_t seed = 22;
  INFO("seed " << seed);
  for (const kvstrata_kernels* level : Levels()) {
    INFO(level->name);
    Random random(seed);
    double worst = 0;
    for (int i = 0; i < 20000; ++i) {
      const std::vector<float> f = {std::fabs(random.Float(1.0f))};
      std::vector<float> pair = {1.0f, 0.0f};
      kvstrata_rope_args a = RopeArgs(pair, f, 2);
      a.first_position = static_cast<int64_t>(random.Below(i % 2 == 0 ? 1500000 : 300));
      REQUIRE(level->rope(&a, nullptr) == 0);
      const float angle = static_cast<float>(a.first_position) * f[0];
      worst = std::fmax(worst, std::fabs(pair[0] - std::cos(static_cast<double>(angle))));
      worst = std::fmax(worst, std::fabs(pair[1] - std::sin(static_cast<double>(angle))));
    }
    CHECK(worst <= 1.001 * kUnit);
  }
}

TEST_CASE("inverse rotation undoes rotation; heads share the token's position; a position list equals steps") {
  const uint64_t seed = 23;
  INFO("seed " << seed);
  const std::vector<float> f = CompressTable();
  const std::vector<float> before = Random(seed).Floats(3 * 2 * 128, 1.0f);
  for (const kvstrata_kernels* level : Levels()) {
    INFO(level->name);
    std::vector<float> stepped = before;
    kvstrata_rope_args a = RopeArgs(stepped, f, 128);
    a.heads = 2;
    a.tokens = 3;
    a.first_position = 40;
    a.position_step = 4;
    REQUIRE(level->rope(&a, nullptr) == 0);

    std::vector<float> listed = before;
    const std::vector<int64_t> positions = {40, 44, 48};
    kvstrata_rope_args b = a;
    b.values = listed.data();
    b.positions = positions.data();
    b.first_position = 7;
    REQUIRE(level->rope(&b, nullptr) == 0);
    CHECK(SameBits(stepped, listed));

    for (size_t token = 0; token < 3; ++token) {
      for (size_t head = 0; head < 2; ++head) {
        const auto begin = before.begin() + static_cast<std::ptrdiff_t>((token * 2 + head) * 128);
        std::vector<float> one(begin, begin + 128);
        kvstrata_rope_args c = RopeArgs(one, f, 128);
        c.first_position = positions[token];
        REQUIRE(level->rope(&c, nullptr) == 0);
        CHECK(std::memcmp(one.data(), stepped.data() + (token * 2 + head) * 128, 512) == 0);
      }
    }
    a.flags = KVSTRATA_KERNELS_ROPE_INVERSE;
    REQUIRE(level->rope(&a, nullptr) == 0);
    for (size_t i = 0; i < before.size(); ++i) CHECK(std::fabs(stepped[i] - before[i]) < 8 * kUnit);
    CHECK_FALSE(SameBits(listed, before));
  }
}

TEST_CASE("RMSNorm: formula, weight, rounding, in place, any width") {
  const uint64_t seed = 24;
  INFO("seed " << seed);
  Random random(seed);
  for (const kvstrata_kernels* level : Levels()) {
    for (const uint32_t width : {1u, 7u, 16u, 100u, 128u, 500u, 512u}) {
      CAPTURE(level->name, width);
      const std::vector<float> x = random.Floats(2 * uint64_t{width}, 3.0f);
      const std::vector<float> weight = random.Floats(width, 2.0f);
      auto a = Args<kvstrata_rms_norm_args>();
      a.width = width;
      a.rows = 2;
      a.eps = 1e-6f;
      for (const bool weighted : {false, true}) {
        a.weight = weighted ? weight.data() : nullptr;
        std::vector<float> f(x.size()), q(x.size()), in_place = x;
        a.source = x.data();
        a.profile = KVSTRATA_KERNELS_PROFILE_F;
        a.destination = f.data();
        REQUIRE(level->rms_norm(&a, nullptr) == 0);
        a.profile = KVSTRATA_KERNELS_PROFILE_Q;
        a.destination = q.data();
        REQUIRE(level->rms_norm(&a, nullptr) == 0);
        a.profile = KVSTRATA_KERNELS_PROFILE_F;
        a.source = a.destination = in_place.data();
        REQUIRE(level->rms_norm(&a, nullptr) == 0);
        CHECK(SameBits(f, in_place));
        for (size_t row = 0; row < 2; ++row) {
          double squares = 0;
          for (size_t i = row * width; i < (row + 1) * width; ++i) squares += static_cast<double>(x[i]) * x[i];
          const double inverse = 1 / std::sqrt(squares / width + 1e-6);
          for (size_t i = 0; i < width; ++i) {
            const double expected = x[row * width + i] * inverse * (weighted ? weight[i] : 1.0f);
            // At most 512 positive terms in 16 lanes (37 roundings, fewer with more lanes), halved by the root, and 5
            // more.
            CHECK(std::fabs(f[row * width + i] - expected) <= 25 * kUnit * std::fabs(expected));
            CHECK(q[row * width + i] == ToBf16(f[row * width + i]));
          }
        }
      }
    }
  }
}
