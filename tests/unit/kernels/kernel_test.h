// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: the table under test, zeroed argument structs, seeded random floats, bit comparison.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/dispatch.h"
#include "tests/support/catch.hpp"

namespace kvstrata::kernels::test {

inline const kvstrata_kernels& Reference() { return *Get(KVSTRATA_KERNELS_LEVEL_REFERENCE); }

// The reference and every cpu level that this machine has; names the others on the error stream, once.
inline const std::vector<const kvstrata_kernels*>& Levels() {
  static const std::vector<const kvstrata_kernels*> kLevels = [] {
    std::vector<const kvstrata_kernels*> tables = {&Reference()};
    constexpr std::pair<int32_t, const char*> kCpu[] = {{KVSTRATA_KERNELS_LEVEL_CPU_PORTABLE, "cpu-portable"},
                                                        {KVSTRATA_KERNELS_LEVEL_CPU_AVX2, "cpu-avx2"},
                                                        {KVSTRATA_KERNELS_LEVEL_CPU_AVX512, "cpu-avx512"},
                                                        {KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16, "cpu-avx512_bf16"}};
    for (const auto& [level, name] : kCpu) {
      const kvstrata_kernels* table = Get(level);
      if (table != nullptr) {
        tables.push_back(table);
      } else {
        std::fprintf(stderr, "skipped: this machine has no kernels of level %s\n", name);
      }
    }
    return tables;
  }();
  return kLevels;
}

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Half an ulp of 1 in fp32: the unit of the derived tolerances.
inline constexpr double kUnit = 0x1p-24;

template <typename T>
T Args() {
  T args{};
  args.struct_size = sizeof args;
  return args;
}

// splitmix64; the seed is printed by the INFO of the test that owns it.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Bits() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  uint64_t Below(uint64_t limit) { return Bits() % limit; }
  // In [-scale, scale), with 24 random bits.
  float Float(float scale) { return scale * (static_cast<float>(Bits() >> 40) * 0x1p-23f - 1.0f); }
  std::vector<float> Floats(uint64_t count, float scale) {
    std::vector<float> out(count);
    for (float& value : out) value = Float(scale);
    return out;
  }

 private:
  uint64_t state_;
};

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Rounds to bf16 by way of double arithmetic: independent of the kernel's bit trick. Normal numbers only.
inline float ToBf16(float value) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(value), &exponent);  // in [0.5, 1)
  return static_cast<float>(std::ldexp(std::nearbyint(mantissa * 256.0), exponent - 8));
}

}  // namespace kvstrata::kernels::test
