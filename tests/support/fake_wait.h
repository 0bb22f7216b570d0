// SPDX-License-Identifier: Apache-2.0
// Waiting for what another thread is about to do. Not a timed test: the limit only ends a hang.
//
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <thread>

namespace kvstrata::test {

// False when `done` has not become true within a minute.
template <typename Done>
bool WaitFor(const Done& done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!done()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace kvstrata::test
