// SPDX-License-Identifier: Apache-2.0
// The main function of the tests on a GPU: without one it says why, and skips them all.
#define CATCH_CONFIG_RUNNER
#include <cstdio>

#include "tests/cuda/device/gpu.h"
#include "tests/support/catch.hpp"

namespace {
constexpr int kSkipped = 77;
}  // namespace

int main(int argc, char** argv) {
  const std::string reason = kvstrata::test::NoDevice();
  if (reason.empty()) return Catch::Session().run(argc, argv);
  std::printf("skipped: no device: %s\n", reason.c_str());
  return kSkipped;
}
