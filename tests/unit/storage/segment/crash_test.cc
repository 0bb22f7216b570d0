// SPDX-License-Identifier: Apache-2.0
// The segment store against a model, on a simulated disk: the process stops at every single call that changes the disk,
// with and without a loss of power, and whatever the next opening finds must be what the model allows.
#include <array>
#include <map>
#include <string>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/storage/segment/segment_storage.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/crash_model.h"
#include "tests/support/sim_disk.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::test::Completions;
using kvstrata::test::CrashMeta;
using kvstrata::test::CrashModel;
using kvstrata::test::CrashPayload;
using kvstrata::test::CrashPoints;
using kvstrata::test::kAbsent;
using kvstrata::test::kCrashStep;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::SimDisk;

namespace {

constexpr uint64_t kKeys = 9;

// By default with a checkpoint after a few flushes.
std::unique_ptr<storage::SegmentStorage> Open(SimDisk& disk, uint64_t journal_bytes = 3000) {
  storage::SegmentOptions options;
  options.path = "/deep/store";
  options.capacity_bytes = 384 * 1024;
  options.segment_bytes = 128 * 1024;
  options.journal_bytes = journal_bytes;
  options.io_threads = 1;
  options.flush_ms = 0;
  options.os = &disk;
  auto opened = storage::SegmentStorage::Open(options);
  return opened.ok() ? std::move(*opened) : nullptr;
}

// Three keys at once, which one thread writes together.
void PutTogether(storage::SegmentStorage& store, CrashModel& model, uint64_t first, uint64_t* version) {
  constexpr uint64_t kTogether = 3;
  std::array<std::string, kTogether> payloads, metas;
  std::array<base::ByteView, kTogether> parts;
  std::array<uint64_t, kTogether> versions;
  std::vector<storage::Request> requests;
  Completions completions(kTogether);
  for (uint64_t i = 0; i < kTogether; ++i) {
    const uint64_t key = (first + i) % kKeys;
    versions[i] = ++*version;
    model.Began(key, versions[i]);
    payloads[i] = CrashPayload(key, versions[i]);
    metas[i] = CrashMeta(key, versions[i]);
    parts[i] = base::AsBytes(payloads[i]);
    requests.push_back({storage::Put{KeyOf(key), {&parts[i], 1}, base::AsBytes(metas[i])}, completions.Of(i)});
  }
  REQUIRE(store.Submit(requests).ok());
  completions.Wait();
  for (uint64_t i = 0; i < kTogether; ++i) {
    if (completions.result(i).status.ok()) model.Completed((first + i) % kKeys, versions[i]);
  }
}

// Random puts, removals, gets and syncs, until the process stops or all is done. `*version` goes on from run to run.
void Work(storage::SegmentStorage& store, SimDisk& disk, CrashModel& model, base::SeededRandom& random,
          uint64_t* version) {
  for (int step = 0; step < 40 && !disk.stopped(); ++step) {
    const uint64_t key = random.Below(kKeys);
    const uint64_t choice = random.Below(10);
    if (choice < 2) {
      PutTogether(store, model, key, version);
    } else if (choice < 6) {
      const uint64_t mine = ++*version;
      model.Began(key, mine);
      const std::string payload = CrashPayload(key, mine);
      if (PutNow(store, KeyOf(key), payload, CrashMeta(key, mine)).status.ok()) model.Completed(key, mine);
    } else if (choice < 8) {
      model.Began(key, kAbsent);
      if (store.Remove(KeyOf(key)).ok()) model.Completed(key, kAbsent);
    } else if (store.Sync().ok()) {
      model.Synced();
    }
  }
}

// Every record is one that the model allows, whole; and all units are free or theirs.
void Check(SimDisk& disk, CrashModel& model) {
  const auto store = Open(disk);
  REQUIRE(store != nullptr);
  CHECK(store->stats().dropped_at_open == 0);
  std::vector<storage::ListEntry> entries;
  uint64_t skipped = 0;
  REQUIRE(ListAll(*store, 4, &entries, &skipped).ok());
  CHECK(skipped == 0);
  std::map<uint64_t, uint64_t> found;
  for (const storage::ListEntry& entry : entries) {
    const std::string meta(base::AsText(entry.meta));
    const uint64_t key = std::stoull(meta), version = std::stoull(meta.substr(meta.find(' ')));
    CAPTURE(key, version);
    CHECK(entry.key == KeyOf(key));
    CHECK(model.Allows(key, version));
    // In parentheses, since thousands of bytes are not to be printed.
    CHECK((ReadNow(*store, entry.key).value() == CrashPayload(key, version)));
    CHECK(found.emplace(key, version).second);
  }
  for (uint64_t key = 0; key < kKeys; ++key) {
    CAPTURE(key);
    if (!found.contains(key)) CHECK(model.Allows(key, kAbsent));
  }
  model.Adopt(found);
  // Nothing was lost for ever: without the records all units are free.
  for (const storage::ListEntry& entry : entries) REQUIRE(store->Remove(entry.key).ok());
  REQUIRE(store->Sync().ok());
  CHECK(store->stats().free_bytes == store->stats().segment_bytes);
  for (const auto& [key, version] : found) {
    REQUIRE(PutNow(*store, KeyOf(key), CrashPayload(key, version), CrashMeta(key, version)).status.ok());
  }
  REQUIRE(store->Sync().ok());
}

enum class End { kKilled, kPowerLost };

// Two lives of a store, the second of which stops at its `nth` change. False when it did not come so far.
bool StopAt(uint64_t nth, uint64_t seed, End end, CrashPoints* points) {
  CAPTURE(nth, seed);
  SimDisk disk;
  CrashModel model(kKeys);
  base::SeededRandom random(seed);
  uint64_t version = 0;
  const bool in_first_life = nth <= 25;  // the making of the store
  if (!in_first_life) {
    const auto store = Open(disk);
    REQUIRE(store != nullptr);
    Work(*store, disk, model, random, &version);
    REQUIRE(store->Sync().ok());
    model.Synced();
  }
  disk.StopAt(in_first_life ? nth : nth - 25, seed);
  if (const auto store = Open(disk); store != nullptr) Work(*store, disk, model, random, &version);
  const bool stopped = disk.stopped();
  if (stopped) points->Count(disk.stopped_in());
  if (end == End::kKilled) {
    disk.Restart();
  } else {
    disk.LosePower(seed * 31 + nth);
  }
  Check(disk, model);
  disk.Restart();
  Check(disk, model);
  return stopped;
}

void StopEverywhere(End end, std::initializer_list<uint64_t> seeds, const char* what) {
  CrashPoints points;
  for (const uint64_t seed : seeds) {
    for (uint64_t nth = 1 + seed % kCrashStep; StopAt(nth, seed, end, &points);) nth += kCrashStep;
  }
  points.Print(what);
  CHECK(points.all() >= 200 / kCrashStep);
  for (const char* kind : {"data-.seg", "journal-.log", "super", "folder"}) CHECK(points.of(kind) > 0);
  CHECK(points.of("checkpoint-a.ckp") + points.of("checkpoint-b.ckp") > 0);
}

}  // namespace

TEST_CASE("a process that is killed at any write leaves what the model allows") {
  StopEverywhere(End::kKilled, {1, 2}, "killed at every change of a store");
}

TEST_CASE("power that is lost at any write leaves what the model allows") {
  StopEverywhere(End::kPowerLost, {3, 4, 5}, "power lost at every change of a store");
}

TEST_CASE("many crashes one after another, each from where the last one left off") {
  const uint64_t seed = GENERATE(6u, 7u);
  CAPTURE(seed);
  SimDisk disk;
  CrashModel model(kKeys);
  base::SeededRandom random(seed);
  uint64_t version = 0, checkpoints = 0;
  for (int life = 0; life < 60; ++life) {
    CAPTURE(life);
    disk.StopAt(1 + random.Below(120), random.Below(1u << 30));
    if (const auto store = Open(disk); store != nullptr) {
      Work(*store, disk, model, random, &version);
      checkpoints += store->stats().checkpoints;
    }
    if (random.Below(2) == 0) {
      disk.Restart();
    } else {
      disk.LosePower(random.Below(1u << 30));
    }
    Check(disk, model);
    disk.Restart();
  }
  CHECK(checkpoints > 10);
}

TEST_CASE("a journal cut off at any sector is read up to there, and nothing else is lost") {
  SimDisk disk;
  {
    const auto store = Open(disk, 1 << 20);
    REQUIRE(store != nullptr);
    for (uint64_t key = 0; key < kKeys; ++key) {
      REQUIRE(PutNow(*store, KeyOf(key), CrashPayload(key, 1), std::string(600, 'm')).status.ok());
    }
    REQUIRE(store->Sync().ok());
    for (uint64_t key = 0; key < 4; ++key) {
      REQUIRE(PutNow(*store, KeyOf(100 + key), "later", std::string(600, 'm')).status.ok());
    }
  }
  const std::string name = "/deep/store/journal-0001.log";
  REQUIRE(disk.BytesOf(name) != nullptr);
  const std::vector<std::byte> whole = *disk.BytesOf(name);
  size_t before = 0;
  // Each entry of 704 bytes or so: 9 from 4096 on, 4 from the next multiple of 4096 behind them on.
  for (size_t end = 0; end <= 20 * 1024; end += 512) {
    CAPTURE(end);
    disk.Restart();
    std::vector<std::byte>* bytes = disk.BytesOf(name);
    *bytes = whole;
    std::fill(bytes->begin() + static_cast<ptrdiff_t>(end), bytes->end(),
              end % 1024 == 0 ? std::byte{0} : std::byte{0xA5});
    storage::SegmentOptions options;
    options.path = "/deep/store";
    options.read_only = true;
    options.os = &disk;
    const auto store = storage::SegmentStorage::Open(options);
    REQUIRE(store.ok());
    std::vector<storage::ListEntry> entries;
    REQUIRE(ListAll(**store, 100, &entries).ok());
    CHECK(entries.size() >= before);
    before = entries.size();
    for (const storage::ListEntry& entry : entries) CHECK(ReadNow(**store, entry.key).ok());
    if (end < 4096 + 512) CHECK(entries.empty());
  }
  CHECK(before == kKeys + 4);
}
