// SPDX-License-Identifier: Apache-2.0
// Opening the engine over a store whose writer was killed in the middle of its puts, against opening one that was
// closed, with one read of the journals behind the checkpoint: nobody can know without it what they hold. Both stores
// have the same blocks in their checkpoint and as many behind it; what the killed writer had been told is durable must
// be there, byte for byte.
//
// The files go to the current directory.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/ratio.h"
#include "benchmarks/storage/index_world.h"
#include "lib/base/random.h"

namespace {

namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace format = kvstrata::core::format;
namespace storage = kvstrata::core::storage;
using kvstrata::benchmarks::CoolAll;
using kvstrata::benchmarks::Fail;
using kvstrata::benchmarks::IndexWorld;
using kvstrata::benchmarks::OpenIndexCache;
using kvstrata::benchmarks::OpenIndexStore;
using kvstrata::benchmarks::SecondsOf;

constexpr int kPairs = 11;
constexpr uint64_t kRun = 8;
// Runs put behind the checkpoint; so many are made durable at one time.
constexpr uint64_t kPuts = 32;
constexpr uint64_t kPutsOfSync = 4;
constexpr uint64_t kUnit = format::kUnitBytes;

class Reopening {
 public:
  Reopening() : acknowledged_(MakeShared()) {
    bytes_.resize(kRun * IndexWorld::kBlockUnits * kUnit + 1024 * kUnit);
    if (!base::SeededRandom(5).Fill(bytes_).ok()) Fail("no random bytes");
  }

  double KilledSeconds() {
    const uint64_t puts = RunWriter(/*kill=*/true);
    CoolAll(world_.path());
    std::shared_ptr<engine::Cache> cache;
    const double seconds = SecondsOf([&] { cache = OpenIndexCache(world_.path(), false); });
    if (cache->stats().recovered_blocks < world_.blocks() + puts * kRun) Fail("an acknowledged block is lost");
    Close(*cache);
    CheckPayloads(puts);
    acknowledged_total_ += puts * kRun;
    world_.RemoveLaterJournals();
    return seconds;
  }

  double CleanSeconds() {
    RunWriter(/*kill=*/false);
    CoolAll(world_.path());
    std::shared_ptr<engine::Cache> cache;
    const double tail = SecondsOf([&] { ReadJournals(); });
    CoolAll(world_.path());
    const double seconds = SecondsOf([&] { cache = OpenIndexCache(world_.path(), false); });
    if (cache->stats().recovered_blocks != world_.blocks() + kPuts * kRun) Fail("the index is not whole");
    Close(*cache);
    world_.RemoveLaterJournals();
    return seconds + tail;
  }

  uint64_t acknowledged_total() const { return acknowledged_total_; }

 private:
  static std::atomic<uint64_t>* MakeShared() {
    void* const page = mmap(nullptr, kUnit, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) Fail("no shared memory");
    return new (page) std::atomic<uint64_t>(0);
  }

  static void Close(engine::Cache& cache) {
    if (!cache.Close(std::chrono::minutes(1), nullptr).ok()) Fail("cannot close");
  }

  format::LogEntry EntryOf(uint64_t put) const { return world_.EntryOf(world_.blocks() + put * kRun); }
  base::ByteView PayloadOf(uint64_t put) const {
    return base::ByteView(bytes_).subspan(put % 1024 * kUnit, kRun * IndexWorld::kBlockUnits * kUnit);
  }

  // In a process of its own. How many puts it was told are durable.
  uint64_t RunWriter(bool kill_it) {
    acknowledged_->store(0);
    const pid_t child = fork();
    if (child < 0) Fail("cannot fork");
    if (child == 0) {
      const std::unique_ptr<storage::SegmentStorage> store = OpenIndexStore(world_.path(), false);
      for (uint64_t put = 0; kill_it || put < kPuts; ++put) {
        if (!PutNow(*store, put)) _exit(1);
        if (put % kPutsOfSync != kPutsOfSync - 1) continue;
        if (!store->Sync().ok()) _exit(1);
        acknowledged_->store(put + 1);
      }
      _exit(store->Close(std::chrono::minutes(1)).ok() ? 0 : 1);
    }
    while (kill_it && acknowledged_->load() < kPuts) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (kill_it && kill(child, SIGKILL) != 0) Fail("cannot kill the writer");
    int state = 0;
    if (waitpid(child, &state, 0) != child) Fail("the writer is lost");
    const bool as_wanted = kill_it ? WIFSIGNALED(state) : WIFEXITED(state) && WEXITSTATUS(state) == 0;
    if (!as_wanted) Fail("the writer has failed");
    return acknowledged_->load();
  }

  bool PutNow(storage::Storage& store, uint64_t put) const {
    const format::LogEntry entry = EntryOf(put);
    const base::ByteView payload = PayloadOf(put);
    std::atomic<int> done{0};
    const auto completed = [](void* user, const storage::Result& result) {
      static_cast<std::atomic<int>*>(user)->store(result.status.ok() ? 1 : 2);
    };
    const storage::Request request{storage::Put{{entry.key}, {&payload, 1}, entry.meta}, {completed, &done}};
    if (!store.Submit({&request, 1}).ok()) return false;
    while (done.load() == 0) std::this_thread::yield();
    return done.load() == 1;
  }

  void CheckPayloads(uint64_t puts) const {
    const std::unique_ptr<storage::SegmentStorage> store = OpenIndexStore(world_.path(), true);
    std::vector<std::byte> got(PayloadOf(0).size());
    for (uint64_t put = 0; put < puts; ++put) {
      std::atomic<int> done{0};
      const auto completed = [](void* user, const storage::Result& result) {
        static_cast<std::atomic<int>*>(user)->store(result.status.ok() ? 1 : 2);
      };
      const storage::Request request{storage::Get{{EntryOf(put).key}, 0, got}, {completed, &done}};
      if (!store->Submit({&request, 1}).ok()) Fail("a get was refused");
      while (done.load() == 0) std::this_thread::yield();
      if (done.load() != 1 || std::memcmp(got.data(), PayloadOf(put).data(), got.size()) != 0) {
        Fail("an acknowledged block has other bytes");
      }
    }
  }

  void ReadJournals() const {
    static std::byte* const room = kvstrata::benchmarks::HugePages(IndexWorld::kReadBytes);
    for (const auto& file : std::filesystem::directory_iterator(world_.path())) {
      if (!file.path().filename().string().starts_with("journal-")) continue;
      const int fd = open(file.path().c_str(), O_RDONLY | O_DIRECT);
      off_t offset = 0;
      for (ssize_t got = 1; got > 0; offset += got) got = pread(fd, room, IndexWorld::kReadBytes, offset);
      close(fd);
    }
  }

  IndexWorld world_{kRun};
  std::atomic<uint64_t>* const acknowledged_;
  std::vector<std::byte> bytes_;
  uint64_t acknowledged_total_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  Reopening reopening;
  kvstrata::benchmarks::PrintTimedPairs(
      "reopen_after_kill_vs_clean_open_and_tail", "<=1.2", kPairs, [&] { return reopening.KilledSeconds(); },
      [&] { return reopening.CleanSeconds(); }, false);
  std::printf("acknowledged blocks %llu, of which lost 0\n",
              static_cast<unsigned long long>(reopening.acknowledged_total()));
  return 0;
}
