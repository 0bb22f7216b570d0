// SPDX-License-Identifier: Apache-2.0
// The ring engine: V4-Flash in its full widths, state in rings and at the current position only, a restart grid of
// 2,048 tokens. One block weighs 449,824 bytes and one snapshot 3.6 MB, so the runs are short.
#include "tests/engines/random_operations.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/support/fake_ring_engine.h"

namespace kvstrata::test {
namespace {

RandomRun RingRun(const char* test, StoreKind store, uint64_t seed) {
  RandomRun run;
  run.kind = RingEngine();
  run.store = store;
  run.seed = TestSeed(test, seed);
  run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", 14);
  run.capacity_bytes = 512 << 20;
  run.max_tokens = 2 * kRingRestartTokens + 600;
  run.max_step = 300;
  run.allowed_modes = 1u << KVSTRATA_MODE_SNAPSHOT | 1u << KVSTRATA_MODE_SNAPSHOT_REPLAY;
  return run;
}

}  // namespace

TEST_CASE("ring engine on memory", "[engines]") { RunRandomOperations(RingRun("ring memory", StoreKind::kMemory, 21)); }

TEST_CASE("ring engine on files", "[engines]") { RunRandomOperations(RingRun("ring file", StoreKind::kFile, 22)); }

TEST_CASE("ring engine on a store of its own, written in C", "[engines]") {
  RunRandomOperations(RingRun("ring user", StoreKind::kUser, 23));
}

TEST_CASE("ring engine under a budget that evicts", "[engines]") {
  RandomRun run = RingRun("ring evict", StoreKind::kMemory, 24);
  // Room for about one sequence and two snapshots.
  run.capacity_bytes = 24 << 20;
  run.snapshot_bytes = 8 << 20;
  RunRandomOperations(run);
}

}  // namespace kvstrata::test
