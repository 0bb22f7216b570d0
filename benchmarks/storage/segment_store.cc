// SPDX-License-Identifier: Apache-2.0
// The segment store against the bare drive: cold gets with eight in flight (into memory that has to be copied to, into
// memory that the drive reads into by io_uring, and the same by the store's threads) against eight threads that read
// the same bytes with direct I/O into 2 MiB pages, and durable puts against such threads that write them into files of
// the same state (space that was written before). No index, no checksum, no journal in the reference.
//
// The files go to the current directory: a file system in memory would measure nothing. The page cache takes no part on
// either side where the store reports direct I/O; where it does not, this says so and the ratios mean little.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/ratio.h"
#include "lib/base/mutex.h"
#include "lib/base/random.h"
#include "lib/storage/segment/segment_storage.h"

namespace {

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;

constexpr uint64_t kRecords = 640;
// A block of 64 tokens of V4-Flash with its head (limits: 225 to 246 KB); no multiple of anything.
constexpr uint64_t kPayload = 240'123;
constexpr uint64_t kUnits = (kPayload + 4095) / 4096 * 4096;
constexpr size_t kInFlight = 8;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "segment_store: %s\n", what);
  std::exit(1);
}

std::byte* HugePages(size_t bytes) {
  void* memory = mmap(nullptr, bytes + (2u << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("no memory");
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + (2u << 20) - 1) >> 21 << 21;
  madvise(reinterpret_cast<void*>(begin), bytes, MADV_HUGEPAGE);
  auto* const bytes_begin = reinterpret_cast<std::byte*>(begin);
  std::memset(bytes_begin, 1, bytes);
  return bytes_begin;
}

storage::Key KeyOf(uint64_t number) {
  storage::Key key;
  base::StoreLittleEndian(key.bytes.data(), number * 0x9E3779B97F4A7C15u);
  base::StoreLittleEndian(key.bytes.data() + 8, number);
  return key;
}

// Eight requests at a time, the next one when any has completed.
class Window {
 public:
  template <typename Make>
  void Run(storage::Storage& store, uint64_t count, const Make& make) {
    for (uint64_t i = 0; i < count; ++i) {
      size_t slot = 0;
      {
        base::MutexLock lock(mutex_);
        while (free_.empty()) changed_.Wait(mutex_);
        slot = free_.back();
        free_.pop_back();
      }
      slots_[slot] = {this, slot};
      const storage::Request request = make(i, slot, storage::Completion{&Window::Done, &slots_[slot]});
      if (!store.Submit({&request, 1}).ok()) Fail("a request was refused");
    }
    base::MutexLock lock(mutex_);
    while (free_.size() < kInFlight) changed_.Wait(mutex_);
    if (failed_) Fail("a request failed");
  }

 private:
  struct Slot {
    Window* window = nullptr;
    size_t number = 0;
  };
  static void Done(void* user, const storage::Result& result) {
    const Slot& slot = *static_cast<Slot*>(user);
    base::MutexLock lock(slot.window->mutex_);
    slot.window->failed_ = slot.window->failed_ || !result.status.ok() || result.bytes != kPayload;
    slot.window->free_.push_back(slot.number);
    slot.window->changed_.NotifyOne();
  }

  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<size_t> free_ = {0, 1, 2, 3, 4, 5, 6, 7};
  Slot slots_[kInFlight];
  bool failed_ = false;
};

struct World {
  std::string folder = "kvstrata-benchmark-XXXXXX";
  std::unique_ptr<storage::SegmentStorage> store;
  int raw = -1;
  std::vector<std::byte> source;
  // Where gets go: memory that the store cannot read into directly, and units on huge pages as staging has them.
  std::vector<std::vector<std::byte>> rooms;
  std::byte* landing = HugePages(kInFlight << 20);
  std::byte* raw_memory = HugePages(kInFlight << 20);

  explicit World(bool ring = true)
      : source(kRecords * 64 + kPayload), rooms(kInFlight, std::vector<std::byte>(kPayload)) {
    if (mkdtemp(folder.data()) == nullptr) Fail("cannot make a folder here");
    storage::SegmentOptions options;
    options.path = folder + "/store";
    options.capacity_bytes = 1u << 30;
    options.flush_ms = 0;
    options.ring = ring;
    auto opened = storage::SegmentStorage::Open(options);
    if (!opened.ok()) Fail("cannot open the store");
    store = *std::move(opened);
    raw = open((folder + "/raw").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (raw < 0 || fallocate(raw, 0, 0, static_cast<off_t>(kRecords * kUnits)) != 0) Fail("no direct I/O here");
    static_cast<void>(base::SeededRandom(1).Fill(source));
  }
  ~World() {
    store.reset();
    close(raw);
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }

  // Each record's bytes are its own: the same random bytes from another place on.
  base::ByteView PayloadOf(uint64_t number) const {
    return base::ByteView(source).subspan(static_cast<size_t>(number) * 64, kPayload);
  }

  void Put() {
    std::vector<base::ByteView> parts(kRecords);
    Window window;
    window.Run(*store, kRecords, [&](uint64_t i, size_t, storage::Completion completion) {
      parts[i] = PayloadOf(i);
      return storage::Request{storage::Put{KeyOf(i), {&parts[i], 1}, PayloadOf(i).first(128)}, completion};
    });
    if (!store->Sync().ok()) Fail("a sync failed");
  }
  void GetInto(std::byte* memory) {
    Window window;
    window.Run(*store, kRecords, [&](uint64_t i, size_t slot, storage::Completion completion) {
      return storage::Request{storage::Get{KeyOf(i), 0, {memory + (slot << 20), kPayload}}, completion};
    });
  }
  void Get() {
    Window window;
    window.Run(*store, kRecords, [&](uint64_t i, size_t slot, storage::Completion completion) {
      return storage::Request{storage::Get{KeyOf(i), 0, rooms[slot]}, completion};
    });
  }
  // One after another, whole.
  void CheckGets() {
    for (uint64_t i = 0; i < kRecords; i += 7) {
      Window window;
      std::vector<std::byte>& room = rooms[0];
      std::fill(room.begin(), room.end(), std::byte{0});
      window.Run(*store, 1, [&](uint64_t, size_t, storage::Completion completion) {
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
      const base::ByteView room(landing + (slot << 20), kPayload);
      for (uint64_t i = kRecords - 64; i < kRecords; ++i) {
        const base::ByteView payload = PayloadOf(i);
        if (std::equal(room.begin(), room.end(), payload.begin())) found[i] = true;
      }
    }
    if (std::count(found.begin(), found.end(), true) != kInFlight) Fail("a get delivered other bytes");
  }
  void Raw(bool write) {
    std::atomic<uint64_t> next{0};
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kInFlight; ++thread) {
      threads.emplace_back([&, thread] {
        std::byte* const memory = raw_memory + (thread << 20);
        for (uint64_t i = next++; i < kRecords; i = next++) {
          const auto at = static_cast<off_t>(i * kUnits);
          const ssize_t moved = write ? pwrite(raw, memory, kUnits, at) : pread(raw, memory, kUnits, at);
          if (moved != static_cast<ssize_t>(kUnits)) Fail("a raw transfer failed");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (write && fdatasync(raw) != 0) Fail("a raw flush failed");
  }
};

void BM_Get(benchmark::State& state) {
  World world;
  world.Put();
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
    threads.Put();
    // Twice, so that later puts find units that have been written before, on both sides.
    for (int i = 0; i < 3; ++i) {
      world.Put();
      world.Raw(true);
    }
    if (world.store->stats().direct == 0)
      std::printf("segment_store: no direct I/O here, the page cache is measured\n");
    if (world.store->stats().ring == 0) std::printf("segment_store: no io_uring here, threads alone are measured\n");
    kvstrata::benchmarks::PrintShare(
        "segment_store.cold_get", ">=0.90", [&] { world.Get(); }, [&] { world.Raw(false); });
    kvstrata::benchmarks::PrintShare(
        "segment_store.cold_get_landing", ">=0.90", [&] { world.GetInto(world.landing); }, [&] { world.Raw(false); });
    kvstrata::benchmarks::PrintShare(
        "segment_store.cold_get_landing_threads", ">=0.90", [&] { threads.GetInto(threads.landing); },
        [&] { world.Raw(false); });
    kvstrata::benchmarks::PrintShare(
        "segment_store.durable_put", ">=0.90", [&] { world.Put(); }, [&] { world.Raw(true); });
    world.CheckGets();
    world.CheckLanding();
    threads.CheckLanding();
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
