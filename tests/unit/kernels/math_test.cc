// SPDX-License-Identifier: Apache-2.0
// The vector exp, sin and cos of every target that this machine has, against libm in double.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/kernels/math_test.cc"
#include <algorithm>
#include <functional>

#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"
#include "tests/unit/kernels/kernel_test.h"
// After targets-inl.h, whose toggle it follows.
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {

// What does not fill a vector goes lane by lane, as in the kernels.
void ExpAll(const float* x, size_t count, float* y) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(ExpNonPositive(d, hn::LoadU(d, x + i)), d, y + i);
  }
  for (; i < count; ++i) hn::StoreU(ExpNonPositive(one, hn::LoadU(one, x + i)), one, y + i);
}

#if KVSTRATA_CPU_VECTORS
// Weights relative to x0's base; returns the base. The last of y is the weight of x0 itself.
float WeightAll(float x0, const float* x, size_t count, float* y) {
  const hn::ScalableTag<float> d;
  const auto anchor = Exp2Anchor(d, hn::Set(d, x0));
  std::vector<float> padded(hn::Lanes(d));
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const size_t lanes = std::min(count - i, hn::Lanes(d));
    std::copy(x + i, x + i + lanes, padded.begin());
    hn::StoreU(Exp2Weight(d, hn::LoadU(d, padded.data()), anchor), d, padded.data());
    std::copy(padded.begin(), padded.begin() + static_cast<std::ptrdiff_t>(lanes), y + i);
  }
  y[count] = hn::GetLane(Exp2AnchorWeight(d, hn::Set(d, x0), anchor));
  return Exp2Steps::kMagic - hn::GetLane(anchor);
}
#else
[[maybe_unused]] float WeightAll(float, const float*, size_t, float*) { return 0; }  // no level calls it
#endif

void SinCosAll(const float* x, size_t count, float* sin, float* cos) {
  const hn::ScalableTag<double> d;
  const hn::CappedTag<double, 1> one;
  size_t i = 0;
  const auto step = [&](auto doubles) {
    const FloatsOf<decltype(doubles)> floats;
    hn::Vec<decltype(floats)> s;
    hn::Vec<decltype(floats)> c;
    SinCos(doubles, hn::LoadU(floats, x + i), s, c);
    hn::StoreU(s, floats, sin + i);
    hn::StoreU(c, floats, cos + i);
    i += hn::Lanes(doubles);
  };
  while (i + hn::Lanes(d) <= count) step(d);
  while (i < count) step(one);
}

}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
using namespace kvstrata::kernels;
using namespace kvstrata::kernels::test;

namespace {

struct Target {
  const char* name;
  void (*exp)(const float*, size_t, float*);
  float (*weight)(float, const float*, size_t, float*);
  void (*sin_cos)(const float*, size_t, float*, float*);
};

std::vector<Target> Targets() {
  std::vector<Target> targets;
#if HWY_TARGETS & HWY_AVX2
  if (cpu::BestLevel() >= cpu::Level::kAvx2) {
    targets.push_back({"avx2", cpu::N_AVX2::ExpAll, cpu::N_AVX2::WeightAll, cpu::N_AVX2::SinCosAll});
  }
#endif
#if HWY_TARGETS & HWY_AVX3
  if (cpu::BestLevel() >= cpu::Level::kAvx512) {
    targets.push_back({"avx512", cpu::N_AVX3::ExpAll, cpu::N_AVX3::WeightAll, cpu::N_AVX3::SinCosAll});
  }
#endif
#if HWY_STATIC_TARGET == HWY_NEON
  targets.push_back({"neon", cpu::HWY_NAMESPACE::ExpAll, cpu::HWY_NAMESPACE::WeightAll, cpu::HWY_NAMESPACE::SinCosAll});
#endif
  return targets;
}

// The distance of a float to the exact value in units of the value's last place.
double Ulps(float got, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

std::vector<float> One(const std::function<void(const float*, size_t, float*)>& function, float x) {
  std::vector<float> y(1);
  function(&x, 1, y.data());
  return y;
}

}  // namespace

TEST_CASE("vector exp: within 2 ulp on [-87, 0], 0 below, NaN kept, 1 at 0") {
  const uint64_t seed = 25;
  INFO("seed " << seed);
  Random random(seed);
  std::vector<float> x;
  for (int i = 0; i < 200000; ++i) x.push_back(-std::fabs(random.Float(i % 3 == 0 ? 1.0f : 87.0f)));
  for (float small = 1.0f; small > 1e-30f; small *= 0.37f) x.push_back(-small);
  // Both sides of every half of ln 2, where the rounding of n changes.
  for (int n = 1; n < 251; ++n) {
    const float middle = -static_cast<float>(0.34657359027997264 * n);
    x.insert(x.end(), {std::nextafterf(middle, 0), middle, std::nextafterf(middle, -100)});
  }
  x.push_back(-87.0f);
  for (const Target& target : Targets()) {
    INFO(target.name);
    std::vector<float> y(x.size());
    target.exp(x.data(), x.size(), y.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); i += 97) REQUIRE(SameBits(One(target.exp, x[i]), {y[i]}));
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, Ulps(y[i], std::exp(static_cast<double>(x[i]))));
    CHECK(worst <= 1.0);
    CHECK(worst > 0.5);
    CHECK(One(target.exp, 0.0f)[0] == 1.0f);
    CHECK(One(target.exp, -0.0f)[0] == 1.0f);
    for (const float below : {std::nextafterf(-87.0f, -100), -88.0f, -104.0f, -1e10f, -3e38f, -kInfinity}) {
      CHECK(One(target.exp, below)[0] == 0.0f);
    }
    CHECK(std::isnan(One(target.exp, kNan)[0]));
    CHECK(std::isnan(One(target.exp, std::bit_cast<float>(0xFFFFFFFFu))[0]));
  }
}

TEST_CASE("softmax weights: e^x over a power of two near e^x0, 0 far below, never finite far above or for NaN") {
  const uint64_t seed = 28;
  INFO("seed " << seed);
  Random random(seed);
  for (const float x0 : {0.0f, 0.3f, -5.7f, 87.3f, -1000.5f, 131071.0f, -131071.0f}) {
    INFO(x0);
    std::vector<float> x;
    for (int i = 0; i < 60000; ++i) x.push_back(x0 + random.Float(i % 3 == 0 ? 1.0f : i % 3 == 1 ? 10.0f : 80.0f));
    // Both sides of the halves between the table's entries.
    for (int n = -200; n < 200; ++n) {
      const float middle = x0 + static_cast<float>(n) / 32 * 0.69314718f;
      x.insert(x.end(), {std::nextafterf(middle, 1e9f), middle, std::nextafterf(middle, -1e9f)});
    }
    for (const Target& target : Targets()) {
      INFO(target.name);
      std::vector<float> y(x.size() + 1);
      const double base = target.weight(x0, x.data(), x.size(), y.data());
      x.push_back(x0);  // whose weight follows the others
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double exponent = x[i] * 1.4426950408889634074;
        const double exact = std::exp2(exponent - base);
        const double of_product = exact * 0x1p-26 * std::fabs(exponent) * 0.6931471805599453094;
        worst = std::max(worst, (std::fabs(y[i] - exact) - of_product) / (kUnit * (1 + 3 * exact)));
      }
      x.pop_back();
      CHECK(worst <= 1.0);
      CHECK(std::fabs(y.back() - 1) <= 0.5);
    }
  }
  for (const Target& target : Targets()) {
    INFO(target.name);
    const auto weight = [&](float x) {
      std::vector<float> y(2);
      target.weight(1.0f, &x, 1, y.data());
      return y[0];
    };
    for (const float below : {-88.0f, -150.0f, -3000.0f, -1e6f, -1e10f, -1e18f}) CHECK(weight(below) == 0.0f);
    for (const float beyond : {91.0f, 150.0f, 3000.0f, 1e6f, 1e10f, 1e18f, 3e38f, kInfinity, -kInfinity, kNan}) {
      CHECK(!std::isfinite(weight(beyond)));
    }
    CHECK(!std::isfinite(weight(std::bit_cast<float>(0xFFFFFFFFu))));
  }
}

TEST_CASE("vector sin and cos: rounded from double for every angle of a position; the rest is the reference's") {
  const uint64_t seed = 26;
  INFO("seed " << seed);
  Random random(seed);
  std::vector<float> x;
  for (int i = 0; i < 200000; ++i) {
    const float scales[] = {1.0f, 10.0f, 4000.0f, 1.6e6f};
    x.push_back(random.Float(scales[i % 4]));
  }
  // The floats nearest to multiples of a quarter turn, where one of the two is small.
  for (int n = 1; n < 1000000; n += 37) {
    const float middle = static_cast<float>(1.5707963267948966 * n);
    x.insert(x.end(), {std::nextafterf(middle, 0), middle, -middle});
  }
  const size_t exact_count = x.size();
  for (const float beyond : {1.7e6f, -2e7f, 3e38f, 0.0f, 1.0f}) x.push_back(beyond);
  for (const Target& target : Targets()) {
    INFO(target.name);
    std::vector<float> sin(x.size()), cos(x.size());
    target.sin_cos(x.data(), x.size(), sin.data(), cos.data());
    double worst = 0;
    for (size_t i = 0; i < exact_count; ++i) {
      worst = std::max(worst, Ulps(sin[i], std::sin(static_cast<double>(x[i]))));
      worst = std::max(worst, Ulps(cos[i], std::cos(static_cast<double>(x[i]))));
    }
    CHECK(worst <= 0.501);
    for (size_t i = exact_count; i < x.size(); ++i) {
      CHECK(sin[i] == std::sin(x[i]));
      CHECK(cos[i] == std::cos(x[i]));
    }
    // Beside lanes within the range, lanes beyond it do not change them.
    std::vector<float> mixed(64, 3e7f), mixed_sin(64), mixed_cos(64);
    for (size_t i = 0; i < 64; i += 3) mixed[i] = x[i];
    mixed[1] = kInfinity;
    mixed[2] = kNan;
    target.sin_cos(mixed.data(), 64, mixed_sin.data(), mixed_cos.data());
    CHECK(std::isnan(mixed_sin[1]));
    CHECK(std::isnan(mixed_cos[2]));
    for (size_t i = 0; i < 64; i += 3) {
      CHECK(SameBits({mixed_sin[i]}, {sin[i]}));
      CHECK(SameBits({mixed_cos[i]}, {cos[i]}));
    }
  }
}
#endif
