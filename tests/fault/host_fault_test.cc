// SPDX-License-Identifier: Apache-2.0
// Every allocation through the caller's allocator, and every call to the caller's device, fails once, in turn.
#include <memory>
#include <string>

#include "tests/fault/scenario.h"
#include "tests/support/c_store.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_allocator.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_paged_engine.h"

namespace kvstrata::test {
namespace {

constexpr uint64_t kMostCalls = 20'000;

using Store = std::unique_ptr<c_store, void (*)(c_store*)>;

bool RunWithAllocationFailing(uint64_t n) {
  Store store(c_store_create(), c_store_free);
  CountingAllocator allocator;
  CAPTURE(n);
  {
    Scenario scenario{SmallPagedEngine(), c_store_table(store.get()), allocator.table(), nullptr, false};
    allocator.FailNth(n);
    const ScenarioResult result = RunScenario(scenario);
    if (allocator.failed()) {
      CHECK(result.failed_calls + result.shortened + result.dropped > 0);
    } else {
      CHECK(result.failed_calls + result.shortened + result.dropped == 0);
    }
  }
  CHECK(allocator.live() == 0);
  CHECK(allocator.mismatches() == 0);
  return allocator.failed();
}

bool RunWithDeviceFailing(uint64_t n) {
  Store store(c_store_create(), c_store_free);
  FakeDevice device(uint64_t{8} << 20);  // a few times what the engines of the scenario take
  CAPTURE(n);
  {
    Scenario scenario{SmallPagedEngine(), c_store_table(store.get()), nullptr, &device, false};
    device.FailNth(n);
    const ScenarioResult result = RunScenario(scenario);
    if (device.failed()) CHECK(result.failed_calls + result.shortened + result.dropped > 0);
  }
  for (const std::string& violation : device.violations()) FAIL_CHECK(violation);
  for (const std::string& leftover : device.leftovers()) FAIL_CHECK("left over: " << leftover);
  return device.failed();
}

}  // namespace

TEST_CASE("fail-Nth: an allocation of staging memory", "[fault]") {
  uint64_t n = 1;
  while (n < kMostCalls && RunWithAllocationFailing(n)) ++n;
  CHECK(n > 1);
  CHECK(n < kMostCalls);
}

TEST_CASE("fail-Nth: a call to the device", "[fault]") {
  uint64_t n = 1;
  // Each block and stream is a copy of its own, so there are many calls of one sort: after the first hundred every
  // seventh will do.
  while (n < kMostCalls && RunWithDeviceFailing(n)) n += n < 100 ? 1 : 7;
  CHECK(n > 1);
  CHECK(n < kMostCalls);
}

}  // namespace kvstrata::test
