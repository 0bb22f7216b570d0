// SPDX-License-Identifier: Apache-2.0
// Runs the target without a fuzzer: random bytes, or files that a fuzzer has found. A run that fails ends the program;
// the line before it says which bytes they were.
//
// usage: PROGRAM             random bytes of many seeds
//        PROGRAM --one SEED  of one
//        PROGRAM FILE...     what is in these files
// KVSTRATA_SEED is the first seed (1), KVSTRATA_FUZZ_RUNS the number of seeds.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/layout/target.h"

namespace {

constexpr uint64_t kRuns = 250;

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void RunRandom(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(200 + random() % 3000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 32);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

void RunFile(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was begun is seen when it crashes
  if (argc == 3 && std::strcmp(argv[1], "--one") == 0) return RunRandom(std::strtoull(argv[2], nullptr, 10)), 0;
  for (int i = 1; i < argc; ++i) RunFile(argv[i]);
  if (argc > 1) return 0;
  const uint64_t first = Setting("KVSTRATA_SEED", 1);
  const uint64_t runs = Setting("KVSTRATA_FUZZ_RUNS", kRuns);
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    RunRandom(seed);
  }
  return 0;
}
