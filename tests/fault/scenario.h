// SPDX-License-Identifier: Apache-2.0
// The fixed scenario of the fail-Nth tests: store two sequences that share a prefix, close, open again, restore both,
// evict, restore again, forget the namespace. Any call may fail; no call may crash and no restored byte may be wrong.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>

#include "kvstrata/c_api.h"
#include "tests/support/engine_device.h"
#include "tests/support/fake_engine.h"

namespace kvstrata::test {

struct Scenario {
  EngineKind kind;
  kvstrata_storage storage{};
  const kvstrata_allocator* allocator = nullptr;
  EngineDevice* device = nullptr;
  bool drop = true;  // forget the namespace at the end
};

struct ScenarioResult {
  uint64_t failed_calls = 0;  // calls that reported a failure
  uint64_t shortened = 0;     // restores that gave less than promised, or failed
  uint64_t restored_tokens = 0;
  uint64_t skipped = 0;    // records that the second open did not take
  uint64_t dropped = 0;    // blocks and snapshots
  bool forgotten = false;  // the drop said so
};

// Runs the scenario, all of it or up to where the store cannot be opened. Checks bytes with Catch2.
ScenarioResult RunScenario(const Scenario& scenario);

// With nothing failing: what is found now must be right; tokens restored.
uint64_t RestoreWhatIsThere(const Scenario& scenario);

}  // namespace kvstrata::test
