// SPDX-License-Identifier: Apache-2.0
// The segment store against the bare drive: cold gets with eight in flight (into memory that has to be copied to, into
// memory that the drive reads into by io_uring, and the same by the store's threads) against one thread that reads as
// many bytes through io_uring into 2 MiB pages, eight in flight; durable puts (from memory as the engine stages
// records, and from any; 64 in flight, a fourth of what an engine stages unless it is told otherwise) against eight
// threads that write as much, a MiB at a time, into a file of the same state (space that was written before). No index,
// no checksum, no journal in the references.
//
// The files go to the current directory. The page cache takes no part on either side where the store reports direct
// I/O; where it does not, this says so and the ratios mean little.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/ratio.h"
#include "benchmarks/storage/drive.h"
#include "lib/base/random.h"
#include "lib/storage/segment/segment_storage.h"

namespace {

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::benchmarks::Fail;
using kvstrata::benchmarks::Folder;
using kvstrata::benchmarks::HugePages;
using kvstrata::benchmarks::KeyOf;
using kvstrata::benchmarks::kBarePutBytes;
using kvstrata::benchmarks::kInFlight;
using kvstrata::benchmarks::kPutsInFlight;
using kvstrata::benchmarks::kUnitBytes;
using kvstrata::benchmarks::RawFile;
using kvstrata::benchmarks::Window;

constexpr uint64_t kRecords = 640;
// A block of 64 tokens of V4-Flash with its head (limits: 225 to 246 KB); no multiple of anything.
constexpr uint64_t kPayload = 240'123;
constexpr uint64_t kUnits = (kPayload + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
// What a slot of landing memory has.
constexpr size_t kRoom = 1u << 20;

// Where the payloads begin in memory, beyond a unit's boundary.
enum Shift : size_t { kStaged = 0, kAnywhere = 64 };

struct World {
  Folder folder;
  std::unique_ptr<storage::SegmentStorage> store;
  RawFile raw{folder.path() + "/raw", kRecords, kUnits};
  RawFile raw_put{folder.path() + "/raw_put", (kRecords * kUnits + kBarePutBytes - 1) / kBarePutBytes,
                  kBarePutBytes};
  std::byte* source = HugePages(kRecords * kUnitBytes + kUnits + kAnywhere);
  Shift shift = kStaged;
  // Where gets go: memory that the store cannot read into directly, and units on huge pages as staging has them.
  std::vector<std::vector<std::byte>> rooms;
  std::byte* landing = HugePages(kInFlight * kRoom);

  explicit World(bool ring = true) : rooms(kInFlight, std::vector<std::byte>(kPayload)) {
    storage::SegmentOptions options;
    options.path = folder.path() + "/store";
    options.capacity_bytes = 1u << 30;
    options.flush_ms = 0;
    options.ring = ring;
    auto opened = storage::SegmentStorage::Open(options);
    if (!opened.ok()) Fail("cannot open the store");
    store = *std::move(opened);
    static_cast<void>(base::SeededRandom(1).Fill({source, kRecords * kUnitBytes + kPayload + kAnywhere}));
  }

  // Each record's bytes are its own: the same random bytes from another place on.
  base::ByteView PayloadOf(uint64_t number) const {
    return {source + static_cast<size_t>(number) * kUnitBytes + shift, kPayload};
  }

  void Put(Shift from) {
    shift = from;
    std::vector<base::ByteView> parts(kRecords);
    Window(kPayload, kPutsInFlight).Run(*store, kRecords, [&](uint64_t i, size_t, storage::Completion completion) {
      parts[i] = PayloadOf(i);
      return storage::Request{storage::Put{KeyOf(i), {&parts[i], 1}, PayloadOf(i).first(128)}, completion};
    });
    if (!store->Sync().ok()) Fail("a sync failed");
  }
  void GetInto(std::byte* memory) {
    Window(kPayload, kInFlight).Run(*store, kRecords, [&](uint64_t i, size_t slot, storage::Completion completion) {
      return storage::Request{storage::Get{KeyOf(i), 0, {memory + slot * kRoom, kPayload}}, completion};
    });
  }
  void Get() {
    Window(kPayload, kInFlight).Run(*store, kRecords, [&](uint64_t i, size_t slot, storage::Completion completion) {
      return storage::Request{storage::Get{KeyOf(i), 0, rooms[slot]}, completion};
    });
  }
  // One after another, whole.
  void CheckGets() {
    for (uint64_t i = 0; i < kRecords; i += 7) {
      std::vector<std::byte>& room = rooms[0];
      std::fill(room.begin(), room.end(), std::byte{0});
      Window(kPayload, 1).Run(*store, 1, [&](uint64_t, size_t, storage::Completion completion) {
        return storage::Request{storage::Get{KeyOf(i), 0, room}, completion};
      });
      if (!std::equal(room.begin(), room.end(), PayloadOf(i).begin())) Fail("a get delivered other bytes");
    }
  }
  void CheckLanding() {
    // What a run leaves in the rooms: the last records, one each.
    GetInto(landing);
    std::vector<bool> found(kRecords);
    for (size_t slot = 0; slot < kInFlight; ++slot) {
      const base::ByteView room(landing + slot * kRoom, kPayload);
      for (uint64_t i = kRecords - 64; i < kRecords; ++i) {
        const base::ByteView payload = PayloadOf(i);
        if (std::equal(room.begin(), room.end(), payload.begin())) found[i] = true;
      }
    }
    if (std::count(found.begin(), found.end(), true) != kInFlight) Fail("a get delivered other bytes");
  }
};

void BM_Get(benchmark::State& state) {
  World world;
  world.Put(kStaged);
  for (auto _ : state) world.Get();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kRecords * kPayload));
}
BENCHMARK(BM_Get)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  {
    World world;
    World threads(false);
    threads.Put(kStaged);
    // Twice, so that later puts find units that have been written before, on both sides.
    for (int i = 0; i < 3; ++i) {
      world.Put(kStaged);
      world.raw.Write();
      world.raw_put.Write();
    }
    if (world.store->stats().direct == 0)
      std::printf("segment_store: no direct I/O here, the page cache is measured\n");
    if (world.store->stats().ring == 0) std::printf("segment_store: no io_uring here, threads alone are measured\n");
    const auto read = [&] { world.raw.Read(); };
    const auto write = [&] { world.raw_put.Write(); };
    kvstrata::benchmarks::PrintShare(
        "segment_store.cold_get", ">=0.90", [&] { world.Get(); }, read);
    kvstrata::benchmarks::PrintShare(
        "segment_store.cold_get_landing", ">=0.90", [&] { world.GetInto(world.landing); }, read);
    kvstrata::benchmarks::PrintShare(
        "segment_store.cold_get_landing_threads", ">=0.90", [&] { threads.GetInto(threads.landing); }, read);
    kvstrata::benchmarks::PrintShare(
        "segment_store.durable_put", ">=0.90", [&] { world.Put(kStaged); }, write);
    world.CheckGets();
    kvstrata::benchmarks::PrintShare(
        "segment_store.durable_put_copied", ">=0.90", [&] { world.Put(kAnywhere); }, write);
    world.CheckGets();
    // The most that it could be.
    kvstrata::benchmarks::PrintShare(
        "segment_store.raw_put_copied", "none", [&] { world.raw_put.WriteCopied(world.source + kAnywhere); }, write);
    world.CheckLanding();
    threads.CheckLanding();
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
