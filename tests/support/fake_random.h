// SPDX-License-Identifier: Apache-2.0
// Randomness of the random tests: one seed per run, printed, and settable by the environment. No library code, so that
// a test of the public API depends on nothing else.
//
//   KVSTRATA_SEED        the seed; without it each test has a fixed one of its own, so that a red run repeats itself
//   KVSTRATA_ENGINE_OPS  operations per random run, for long runs by hand
//
// Thread rule: one thread at a time for each Rng.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace kvstrata::test {

// The finaliser of SplitMix64: every input bit reaches every output bit.
constexpr uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

constexpr uint64_t Mix(uint64_t a, uint64_t b) { return Mix(a ^ Mix(b)); }

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Mix(state_++); }
  // In [0, bound); bound 0 gives 0.
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : Next() % bound; }
  // In [low, high].
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool Chance(uint64_t percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

inline uint64_t EnvironmentNumber(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

inline uint64_t TestSeed(const char* test, uint64_t otherwise) {
  const uint64_t seed = EnvironmentNumber("KVSTRATA_SEED", otherwise);
  std::printf("%s: KVSTRATA_SEED=%" PRIu64 "\n", test, seed);
  std::fflush(stdout);
  return seed;
}

}  // namespace kvstrata::test
