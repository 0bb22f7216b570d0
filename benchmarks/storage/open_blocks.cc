// SPDX-License-Identifier: Apache-2.0
// Opening a store of a million blocks until it can be asked, cold: the segment store with its listing, the engine above
// it with its index as the lane's writer has it, and as a reader has it; each against what nobody can do without: one
// read of the same checkpoint past the page cache, and a bare table of the same keys. Runs of one block, and of 64. So
// is the least that such an index can be built with (least_index.h): the ceiling.
// benchmarks/rivals has the same against other people's stores.
//
// usage: open_blocks_benchmark [RUN]    runs of so many blocks alone. The files go to the current directory.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "benchmarks/ratio.h"
#include "benchmarks/storage/index_world.h"

namespace {

namespace storage = kvstrata::core::storage;
using kvstrata::benchmarks::CoolAll;
using kvstrata::benchmarks::Fail;
using kvstrata::benchmarks::IndexWorld;
using kvstrata::benchmarks::PrintTimedPairs;
using kvstrata::benchmarks::SecondsOf;

constexpr int kPairs = 7;

double StoreSeconds(const IndexWorld& world) {
  CoolAll(world.path());
  uint64_t listed = 0, skipped = 0;
  std::unique_ptr<storage::SegmentStorage> store;
  const double seconds = SecondsOf([&] {
    store = kvstrata::benchmarks::OpenIndexStore(world.path(), true);
    if (!store->Visit([&](const storage::RecordView&) { ++listed; }, &skipped).ok()) Fail("cannot list");
  });
  if (listed != world.records() || skipped != 0) Fail("the listing is not whole");
  return seconds;
}

void PrintOpen(uint64_t run) {
  const IndexWorld world(run);
  const std::string name = "open_of_runs_of_" + std::to_string(run);
  const auto print = [&](const char* what, const auto& measured, const char* goal = "<=1.25") {
    const auto raw = [&] { return world.BareSeconds(); };
    PrintTimedPairs((name + what).c_str(), goal, kPairs, measured, raw, false);
  };
  print("_store_vs_raw", [&] { return StoreSeconds(world); });
  print("_engine_vs_raw", [&] { return world.EngineSeconds(false); });
  print("_reader_vs_raw", [&] { return world.EngineSeconds(true); });
  print("_least_vs_raw", [&] { return world.LeastSeconds(); }, "none");
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc > 1) {
    const uint64_t run = std::strtoull(argv[1], nullptr, 10);
    if (run == 0 || IndexWorld::kChainBlocks % run != 0) Fail("usage: open_blocks_benchmark [RUN], which divides 64");
    PrintOpen(run);
    return 0;
  }
  PrintOpen(64);
  PrintOpen(1);
  return 0;
}
