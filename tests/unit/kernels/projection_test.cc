// SPDX-License-Identifier: Apache-2.0
// The projection: the product itself, the stated order of summation bit for bit, and independence from the batch.
#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

// The order that kernels.h states, written from its text: volatile, so that no compiler reorders or fuses it.
float InStatedOrder(const float* x, const float* w, uint64_t count) {
  float lanes[16] = {};
  for (uint64_t k = 0; k < count; ++k) {
    volatile float product = x[k] * w[k];
    volatile float sum = lanes[k % 16] + product;
    lanes[k % 16] = sum;
  }
  for (uint64_t half : {8u, 4u, 2u, 1u}) {
    for (uint64_t l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
  }
  return lanes[0];
}

kvstrata_project_args MakeArgs(const std::vector<float>& x, const std::vector<float>& w, uint64_t inputs) {
  auto a = Args<kvstrata_project_args>();
  a.inputs = inputs;
  a.tokens = x.size() / inputs;
  a.outputs = w.size() / inputs;
  a.x = x.data();
  a.weights = w.data();
  return a;
}

}  // namespace

TEST_CASE("projection: the product, in the stated order of summation") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 111;
  INFO("seed " << seed);
  Random random(seed);
  for (const uint64_t inputs : {1u, 15u, 16u, 17u, 64u, 333u, 2100u}) {
    const std::vector<float> x = random.Floats(21 * inputs, 1.0f);
    const std::vector<float> w = random.Floats(9 * inputs, 1.0f);
    std::vector<float> y(21 * 9);
    kvstrata_project_args a = MakeArgs(x, w, inputs);
    a.y = y.data();
    REQUIRE(k.project(&a, nullptr) == 0);
    for (uint64_t n = 0; n < 21; ++n) {
      for (uint64_t o = 0; o < 9; ++o) {
        REQUIRE(y[n * 9 + o] == InStatedOrder(x.data() + n * inputs, w.data() + o * inputs, inputs));
        double expected = 0;
        for (uint64_t i = 0; i < inputs; ++i) expected += static_cast<double>(x[n * inputs + i]) * w[o * inputs + i];
        const double terms = static_cast<double>(inputs);
        REQUIRE(std::fabs(y[n * 9 + o] - expected) <= (terms / 16 + 6) * terms * kUnit);
      }
    }
  }
}

TEST_CASE("projection: one token at a time, strided, or all at once: the same bits") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 112;
  INFO("seed " << seed);
  Random random(seed);
  const std::vector<float> x = random.Floats(37 * 50, 1.0f);
  const std::vector<float> w = random.Floats(11 * 40, 1.0f);
  std::vector<float> together(37 * 11), apart(37 * 13, 5.0f);
  kvstrata_project_args a = MakeArgs(x, w, 40);
  a.tokens = 37;
  a.x_stride = 50;
  a.y = together.data();
  REQUIRE(k.project(&a, nullptr) == 0);
  a.tokens = 1;
  for (uint64_t n = 0; n < 37; ++n) {
    a.x = x.data() + n * 50;
    a.y = apart.data() + n * 13;
    REQUIRE(k.project(&a, nullptr) == 0);
    REQUIRE(std::memcmp(apart.data() + n * 13, together.data() + n * 11, 44) == 0);
    REQUIRE(apart[n * 13 + 11] == 5.0f);
  }
}

TEST_CASE("projection: bf16 weights are the floats they stand for; rounding of the output") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 113;
  INFO("seed " << seed);
  Random random(seed);
  const std::vector<float> x = random.Floats(5 * 70, 1.0f);
  std::vector<float> w;
  std::vector<uint16_t> halves;
  for (float value : random.Floats(6 * 70, 1.0f)) {
    w.push_back(ToBf16(value));
    halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(w.back()) >> 16));
  }
  std::vector<float> y(30), y_half(30), y_round(30);
  kvstrata_project_args a = MakeArgs(x, w, 70);
  a.y = y.data();
  REQUIRE(k.project(&a, nullptr) == 0);
  a.flags = KVSTRATA_KERNELS_PROJECT_ROUND_BF16;
  a.y = y_round.data();
  REQUIRE(k.project(&a, nullptr) == 0);
  a.flags = 0;
  a.weight_type = KVSTRATA_KERNELS_BF16;
  a.weights = halves.data();
  a.y = y_half.data();
  REQUIRE(k.project(&a, nullptr) == 0);
  CHECK(SameBits(y, y_half));
  for (size_t i = 0; i < y.size(); ++i) CHECK(y_round[i] == ToBf16(y[i]));
}

TEST_CASE("projection over no inputs is zero") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  std::vector<float> y(6, 3.0f);
  auto a = Args<kvstrata_project_args>();
  a.tokens = 2;
  a.outputs = 3;
  a.y = y.data();
  REQUIRE(k.project(&a, nullptr) == 0);
  CHECK(y == std::vector<float>(6, 0.0f));
}

TEST_CASE("projection: blocks and tiles of every size give the reference's bits") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 114;
  INFO("seed " << seed);
  Random random(seed);
  for (const uint64_t tokens : {1u, 2u, 3u, 4u, 5u, 31u, 32u, 39u}) {
    for (const uint64_t outputs : {1u, 2u, 3u, 7u, 8u, 13u}) {
      const uint64_t inputs = 1 + random.Below(1200);
      std::vector<float> x = random.Floats(tokens * (inputs + 1), 1.0f);
      std::vector<float> w = random.Floats(outputs * (inputs + 3), 1.0f);
      // Infinities, NaN by way of infinity times zero, and denormal products.
      x[random.Below(x.size())] = kInfinity;
      w[random.Below(w.size())] = 0.0f;
      w[random.Below(w.size())] = 0x1p-140f;
      for (const int32_t type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
        auto a = Args<kvstrata_project_args>();
        a.weight_type = type;
        a.inputs = inputs;
        a.tokens = tokens;
        a.outputs = outputs;
        a.x = x.data();
        a.x_stride = inputs + 1;
        a.weights = w.data();
        a.weight_stride = inputs + 3;
        a.y_stride = outputs + 2;
        std::vector<float> y(tokens * a.y_stride, 5.0f), expected = y;
        a.y = y.data();
        REQUIRE(k.project(&a, nullptr) == 0);
        a.y = expected.data();
        REQUIRE(Reference().project(&a, nullptr) == 0);
        CAPTURE(tokens, outputs, inputs, type);
        for (size_t i = 0; i < y.size(); ++i) {
          REQUIRE((std::bit_cast<uint32_t>(y[i]) == std::bit_cast<uint32_t>(expected[i]) ||
                   (std::isnan(y[i]) && std::isnan(expected[i]))));
        }
      }
    }
  }
}
