// SPDX-License-Identifier: Apache-2.0
// Replays a corpus without a fuzzer: every file of the folder as it is, every truncation of it, and every single
// byte of it inverted (evenly spread ones of a long file).
//
// usage: PROGRAM CORPUS_FOLDER
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/layout/target.h"

namespace {

void Run(const std::string& bytes) {
  // A buffer of exactly this size, so that a sanitizer sees the first byte read past it.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void RunNeighbours(const std::string& bytes) {
  constexpr size_t kMostPositions = 1000;
  const size_t step = std::max<size_t>(1, bytes.size() / kMostPositions);
  for (size_t i = 0; i < bytes.size(); i += step) {
    Run(bytes.substr(0, i));
    std::string changed = bytes;
    changed[i] = static_cast<char>(~changed[i]);
    Run(changed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    std::printf("%s: %zu bytes\n", entry.path().filename().c_str(), bytes.size());
    std::fflush(stdout);
    Run(bytes);
    RunNeighbours(bytes);
    ++files;
  }
  // A corpus that is not found would pass silently.
  return files == 0 ? 1 : 0;
}
