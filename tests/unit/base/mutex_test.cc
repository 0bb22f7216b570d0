// SPDX-License-Identifier: Apache-2.0
#include "lib/base/mutex.h"

#include <thread>

#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;

TEST_CASE("a waiter sees what was written before the notification") {
  base::Mutex mutex;
  base::CondVar changed;
  int value = 0;
  std::thread writer([&] {
    base::MutexLock lock(mutex);
    value = 7;
    changed.NotifyAll();
  });
  {
    base::MutexLock lock(mutex);
    while (value == 0) changed.Wait(mutex);
    CHECK(value == 7);
  }
  writer.join();
}

TEST_CASE("a wait ends at its deadline and holds the mutex again") {
  base::Mutex mutex;
  base::CondVar never;
  base::MutexLock lock(mutex);
  const auto deadline = base::DeadlineAfter(std::chrono::milliseconds(1));
  while (never.WaitUntil(mutex, deadline)) {
  }
  CHECK(std::chrono::steady_clock::now() >= deadline);
}

TEST_CASE("a patience beyond all time is a far deadline, not one in the past") {
  CHECK(base::DeadlineAfter(std::chrono::nanoseconds::max()) >
        std::chrono::steady_clock::now() + std::chrono::hours(1));
  const auto at_once = base::DeadlineAfter(std::chrono::nanoseconds(0));
  CHECK(at_once <= std::chrono::steady_clock::now());
}
