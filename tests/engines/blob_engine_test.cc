// SPDX-License-Identifier: Apache-2.0
// The blob engine: opaque state of varying size, at the current position only, on each kind of store.
#include "tests/engines/random_operations.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_blob_engine.h"
#include "tests/support/fake_random.h"

namespace kvstrata::test {
namespace {

RandomRun BlobRun(const char* test, StoreKind store, uint64_t seed) {
  RandomRun run;
  run.kind = BlobEngine(64);
  run.store = store;
  run.seed = TestSeed(test, seed);
  run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", store == StoreKind::kFile ? 120 : 250);
  run.capacity_bytes = 64 << 20;
  run.max_tokens = 1500;
  run.max_step = 40;
  run.allowed_modes = 1u << KVSTRATA_MODE_SNAPSHOT;
  return run;
}

}  // namespace

TEST_CASE("blob engine on memory", "[engines]") { RunRandomOperations(BlobRun("blob memory", StoreKind::kMemory, 11)); }

TEST_CASE("blob engine on files", "[engines]") { RunRandomOperations(BlobRun("blob file", StoreKind::kFile, 12)); }

TEST_CASE("blob engine on a store of its own, written in C", "[engines]") {
  RunRandomOperations(BlobRun("blob user", StoreKind::kUser, 13));
}

TEST_CASE("blob engine under a budget that evicts", "[engines]") {
  RandomRun run = BlobRun("blob evict", StoreKind::kMemory, 14);
  run.capacity_bytes = 1 << 20;
  run.snapshot_bytes = 600 << 10;
  run.extra_keys = true;
  RunRandomOperations(run);
}

TEST_CASE("blob engine with a snapshot every 100 tokens", "[engines]") {
  RandomRun run = BlobRun("blob every", StoreKind::kUser, 15);
  run.snapshot_policy = KVSTRATA_SNAPSHOT_EVERY_N | KVSTRATA_SNAPSHOT_PROMPT_END;
  run.snapshot_every_tokens = 100;
  run.extra_keys = true;
  RunRandomOperations(run);
}

}  // namespace kvstrata::test
