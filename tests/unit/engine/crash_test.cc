// SPDX-License-Identifier: Apache-2.0
// A cache on a lane of a simulated disk, stopped at every single call that changes the disk, with and without a loss of
// power, while it stores runs and snapshots, flushes and drops its namespace: what had been made durable is restored,
// byte for byte; what had been dropped is not.
#include <map>
#include <memory>

#include "lib/base/random.h"
#include "lib/storage/segment/lane_storage.h"
#include "tests/support/crash_model.h"
#include "tests/support/sim_disk.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;

namespace {

// Eight blocks, which are one run, and what follows them.
constexpr uint64_t kPromptTokens = 70, kBlockTokens = 64;
constexpr uint64_t kMaking = 40;
constexpr uint64_t kCapacity = 4 << 20;  // so that eight blocks are no more than a run may be

class CrashStore : public Store {
 public:
  explicit CrashStore(SimDisk& disk) : Store(HybridLayout(), kCapacity) {
    open_storage = [&disk]() -> std::shared_ptr<storage::Storage> {
      storage::SegmentOptions given;
      given.path = "/root";
      given.capacity_bytes = kCapacity;
      given.segment_bytes = 256 << 10;
      given.journal_bytes = 3000;
      given.io_threads = 1;
      given.flush_ms = 0;
      given.os = &disk;
      auto opened = storage::LaneStorage::Open(given, 0);
      if (opened.ok()) return std::shared_ptr<storage::Storage>(*std::move(opened));
      // The disk has stopped: so does the opening.
      auto nothing = std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{kCapacity});
      auto broken = std::make_shared<FaultyStorage>(std::move(nothing), 1);
      broken->FailNth(StorageCall::kAny, 1, base::Code::kIo, /*and_all_after=*/true);
      return broken;
    };
  }
};

// By the prompt's seed: whether it is stored whole, has to be found, or may be.
struct Known {
  bool whole = false, must = false, may = false;
};
using Model = std::map<uint64_t, Known>;

void Drop(Store& store, Model* model) {
  for (auto& [seed, known] : *model) known.must = false;
  if (!store.cache().DropNamespace(store.space()).ok()) return;
  for (auto& [seed, known] : *model) known = {};
}

void Work(CrashStore& store, SimDisk& disk, base::SeededRandom& random, Model* model) {
  StoreOptions at_once;
  at_once.chunk = kPromptTokens;
  at_once.at_wanted_positions = false;
  at_once.output_end = true;
  for (int step = 0; step < 14 && !disk.stopped(); ++step) {
    const uint64_t choice = random.Below(12);
    if (choice < 7) {
      const uint64_t seed = 1 + model->size();
      (*model)[seed].may = true;
      const CommitInfo info = store.StorePrompt(MakeTokens(kPromptTokens, seed), at_once);
      (*model)[seed].whole = info.progress.blocks_stored == 8;
    } else if (choice < 11) {
      if (!store.cache().Sync().ok()) continue;
      for (auto& [seed, known] : *model) known.must = known.must || (known.whole && known.may);
    } else {
      Drop(store, model);
    }
  }
}

void Check(SimDisk& disk, Model* model) {
  CrashStore store(disk);
  store.Open();
  CHECK(store.stats().skipped_corrupt == 0);
  for (auto& [seed, known] : *model) {
    CAPTURE(seed);
    const uint64_t restored = store.RestoredTokens(MakeTokens(kPromptTokens, seed));
    if (known.must) CHECK(restored >= kBlockTokens);
    if (!known.may) CHECK(restored == 0);
    const bool found = restored >= kBlockTokens;
    known = {found, found, restored > 0};
  }
  CHECK(store.stats().reads_corrupt == 0);
  const auto verified = store.cache().Verify(nullptr);
  REQUIRE(verified.ok());
  CHECK(verified->corrupt == 0);
}

// False when the `nth` change was not reached.
bool StopAt(uint64_t nth, uint64_t seed, bool power, CrashPoints* points) {
  CAPTURE(nth, seed, power);
  SimDisk disk;
  Model model;
  base::SeededRandom random(seed);
  const auto live = [&] {
    CrashStore store(disk);
    if (store.TryOpen().ok()) Work(store, disk, random, &model);
    // The last completion may hold the cache a moment longer than the commit that it has ended.
    if (store.cache_handle() != nullptr) store.cache().Close(std::chrono::seconds(60), nullptr).IgnoreError();
    store.Abandon();
  };
  const bool in_first_life = nth <= kMaking;
  if (!in_first_life) live();
  if (!in_first_life) Check(disk, &model);
  disk.StopAt(in_first_life ? nth : nth - kMaking, seed);
  live();
  const bool stopped = disk.stopped();
  if (stopped) points->Count(disk.stopped_in());
  if (power) {
    disk.LosePower(seed * 31 + nth);
  } else {
    disk.Restart();
  }
  Check(disk, &model);
  disk.LosePower(seed * 37 + nth);
  Check(disk, &model);
  return stopped;
}

void StopEverywhere(bool power, std::initializer_list<uint64_t> seeds, const char* what) {
  CrashPoints points;
  for (const uint64_t seed : seeds) {
    for (uint64_t nth = 1 + seed % kCrashStep; StopAt(nth, seed, power, &points);) nth += kCrashStep;
  }
  points.Print(what);
  CHECK(points.all() >= 200 / kCrashStep);
  for (const char* kind : {"data-.seg", "journal-.log", "marks"}) CHECK(points.of(kind) > 0);
}

}  // namespace

TEST_CASE("R06: a cache that is killed at any write restores what was durable, and nothing that was dropped") {
  StopEverywhere(/*power=*/false, {1, 2, 3}, "killed at every change of a cache");
}

TEST_CASE("R06: a cache that loses power at any write restores what was durable, and nothing that was dropped") {
  StopEverywhere(/*power=*/true, {4, 5, 6}, "power lost at every change of a cache");
}
