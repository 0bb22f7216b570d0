// SPDX-License-Identifier: Apache-2.0
// Every call to the storage fails once, in turn, until the scenario passes without the fault being met: no crash, no
// wrong byte, and what failed is reported or shortens the result.
#include <memory>

#include "tests/fault/scenario.h"
#include "tests/support/c_store.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_faulty_table.h"
#include "tests/support/fake_paged_engine.h"

namespace kvstrata::test {
namespace {

constexpr uint64_t kMostCalls = 5000;  // of one kind in the scenario: a bound on the loop, never reached

using Store = std::unique_ptr<c_store, void (*)(c_store*)>;

// One run with the n-th call failing, where one without gives back `whole` tokens. False when it was not met.
bool RunWithFault(StorageFault fault, uint64_t n, bool drop, uint64_t whole) {
  Store store(c_store_create(), c_store_free);
  FaultyTable faulty(c_store_table(store.get()));
  Scenario scenario{SmallPagedEngine(), faulty.Table(), nullptr, nullptr, drop};
  faulty.Arm(fault, n);
  CAPTURE(FaultName(fault), n, drop);
  const ScenarioResult result = RunScenario(scenario);
  const bool hit = faulty.hit();
  CAPTURE(result.failed_calls, result.shortened, result.dropped, result.skipped, result.restored_tokens);
  if (!hit) {
    CHECK(result.failed_calls + result.shortened + result.dropped + result.skipped == 0);
    CHECK(result.restored_tokens == whole);
  }
  // A flipped byte must never go unnoticed, and a failed read never be taken for a whole one. Met while opening, it
  // costs what the record stood for: a whole namespace, and later lookups find less; or what was known of uses, and
  // the statistics say so.
  if (hit && (fault == StorageFault::kGetFlipsByte || fault == StorageFault::kGetFails)) {
    CHECK((result.failed_calls + result.shortened + result.skipped > 0 || result.restored_tokens < whole));
  }
  faulty.Arm(StorageFault::kNone, 0);
  const uint64_t left = RestoreWhatIsThere(scenario);
  if (result.forgotten) CHECK(left == 0);
  return hit;
}

void FailEachInTurn(StorageFault fault, bool drop) {
  Store store(c_store_create(), c_store_free);
  const uint64_t whole =
      RunScenario({SmallPagedEngine(), c_store_table(store.get()), nullptr, nullptr, drop}).restored_tokens;
  REQUIRE(whole > 0);
  uint64_t n = 1;
  // Later reads are much like the first sixty, but for which record they are of.
  while (n < kMostCalls && RunWithFault(fault, n, drop, whole)) n += n < 60 ? 1 : 3;
  CHECK(n < kMostCalls);
}

}  // namespace

TEST_CASE("fail-Nth: a refused submit", "[fault]") { FailEachInTurn(StorageFault::kSubmitRefused, true); }
TEST_CASE("fail-Nth: a put", "[fault]") { FailEachInTurn(StorageFault::kPutFails, true); }
TEST_CASE("fail-Nth: a get", "[fault]") { FailEachInTurn(StorageFault::kGetFails, false); }
TEST_CASE("fail-Nth: a get with a flipped byte", "[fault]") { FailEachInTurn(StorageFault::kGetFlipsByte, false); }
TEST_CASE("fail-Nth: a stat", "[fault]") { FailEachInTurn(StorageFault::kStatFails, true); }
TEST_CASE("fail-Nth: a remove", "[fault]") { FailEachInTurn(StorageFault::kRemoveFails, true); }
TEST_CASE("fail-Nth: a sync", "[fault]") { FailEachInTurn(StorageFault::kSyncFails, true); }
TEST_CASE("fail-Nth: a list", "[fault]") { FailEachInTurn(StorageFault::kListFails, true); }

}  // namespace kvstrata::test
