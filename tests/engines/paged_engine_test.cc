// SPDX-License-Identifier: Apache-2.0
// The paged engine: streams in planar pages of 256, 64, 4 and 8 rows with holes, a prefix already held, layers given
// out as they arrive; V4-Flash and V4-Pro in full widths, and a small model whose full replays are 21 tokens.
#include "tests/engines/random_operations.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_device.h"
#include "tests/support/fake_paged_engine.h"
#include "tests/support/fake_random.h"

namespace kvstrata::test {
namespace {

constexpr uint32_t kAllExactModes =
    1u << KVSTRATA_MODE_SNAPSHOT | 1u << KVSTRATA_MODE_SNAPSHOT_REPLAY | 1u << KVSTRATA_MODE_FULL_REPLAY;

RandomRun LargeRun(const char* test, const char* preset, StoreKind store, uint64_t seed) {
  RandomRun run;
  run.kind = PagedEngine(preset);
  run.store = store;
  run.seed = TestSeed(test, seed);
  run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", 24);
  run.capacity_bytes = 512 << 20;
  run.max_tokens = 900;
  run.max_step = 140;
  run.allowed_modes = kAllExactModes;
  run.hole_percent = 25;
  return run;
}

RandomRun SmallRun(const char* test, StoreKind store, uint64_t seed) {
  RandomRun run = LargeRun(test, "deepseek-v4-flash", store, seed);
  run.kind = SmallPagedEngine();
  // Each put on files flushes to the disk.
  run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", store == StoreKind::kFile ? 100 : 300);
  run.capacity_bytes = 64 << 20;
  run.max_tokens = 700;
  run.max_step = 40;
  run.extra_keys = true;
  return run;
}

void CheckDevice(const FakeDevice& device) {
  for (const std::string& violation : device.violations()) FAIL_CHECK(violation);
  for (const std::string& leftover : device.leftovers()) FAIL_CHECK("left over: " << leftover);
  CHECK(device.copies() > 0);
  CHECK(device.destroyed() > 0);
}

}  // namespace

TEST_CASE("paged engine with V4-Flash on memory", "[engines]") {
  RunRandomOperations(LargeRun("paged memory", "deepseek-v4-flash", StoreKind::kMemory, 31));
}

TEST_CASE("paged engine with V4-Flash on files", "[engines]") {
  RunRandomOperations(LargeRun("paged file", "deepseek-v4-flash", StoreKind::kFile, 32));
}

TEST_CASE("paged engine with V4-Flash on files, compressed", "[engines]") {
  RandomRun run = LargeRun("paged compressed", "deepseek-v4-flash", StoreKind::kFile, 42);
  run.compress = true;
  RunRandomOperations(run);
}

TEST_CASE("paged engine with V4-Pro on a store of its own, written in C", "[engines]") {
  RunRandomOperations(LargeRun("paged user", "deepseek-v4-pro", StoreKind::kUser, 33));
}

TEST_CASE("paged engine with a small model on memory", "[engines]") {
  RunRandomOperations(SmallRun("small memory", StoreKind::kMemory, 34));
}

TEST_CASE("paged engine with a small model on files", "[engines]") {
  RunRandomOperations(SmallRun("small file", StoreKind::kFile, 35));
}

TEST_CASE("paged engine with a small model on a store of its own, written in C", "[engines]") {
  RunRandomOperations(SmallRun("small user", StoreKind::kUser, 36));
}

TEST_CASE("paged engine with no snapshots at all lives from replay", "[engines]") {
  RandomRun run = SmallRun("small replay", StoreKind::kUser, 37);
  run.allowed_modes = 1u << KVSTRATA_MODE_FULL_REPLAY;
  run.snapshot_policy = KVSTRATA_SNAPSHOT_NEVER;
  RunRandomOperations(run);
}

TEST_CASE("paged engine under a budget that evicts", "[engines]") {
  RandomRun run = SmallRun("small evict", StoreKind::kFile, 38);
  run.capacity_bytes = 400 << 10;
  run.snapshot_bytes = 120 << 10;
  RunRandomOperations(run);
}

TEST_CASE("paged engine under a budget that evicts, compressed", "[engines]") {
  RandomRun run = SmallRun("small compressed", StoreKind::kFile, 43);
  run.capacity_bytes = 400 << 10;
  run.snapshot_bytes = 120 << 10;
  run.compress = true;
  RunRandomOperations(run);
}

TEST_CASE("paged engine on a restart grid that is no multiple of the block", "[engines]") {
  RandomRun run = SmallRun("small grid", StoreKind::kMemory, 39);
  run.kind.restart_multiple = 24;  // lcm(24, 32) = 96
  run.snapshot_policy = KVSTRATA_SNAPSHOT_EVERY_N | KVSTRATA_SNAPSHOT_OUTPUT_END | KVSTRATA_SNAPSHOT_COMMON_PREFIX;
  run.snapshot_every_tokens = 96;
  RunRandomOperations(run);
}

TEST_CASE("paged engine with all its memory on a device", "[engines]") {
  FakeDevice device(uint64_t{1} << 30);
  {
    RandomRun run = SmallRun("small device", StoreKind::kUser, 40);
    run.device = &device;
    run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", 120);
    RunRandomOperations(run);
  }
  CheckDevice(device);
}

TEST_CASE("paged engine with all its memory on a device, compressed", "[engines]") {
  FakeDevice device(uint64_t{1} << 30);
  {
    RandomRun run = SmallRun("small compressed device", StoreKind::kMemory, 44);
    run.device = &device;
    run.compress = true;
    run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", 120);
    RunRandomOperations(run);
  }
  CheckDevice(device);
}

TEST_CASE("paged engine with V4-Flash on a device", "[engines]") {
  FakeDevice device(uint64_t{1} << 30);
  {
    RandomRun run = LargeRun("paged device", "deepseek-v4-flash", StoreKind::kMemory, 41);
    run.device = &device;
    run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", 20);
    RunRandomOperations(run);
  }
  CheckDevice(device);
}

}  // namespace kvstrata::test
