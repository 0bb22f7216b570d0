// SPDX-License-Identifier: Apache-2.0
// The segment backend as a guest on the machine: bounds, threads, signals, descriptors.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::KeyOf;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::InChild;
using kvstrata::test::segment::kForever;
using kvstrata::test::segment::Listed;
using kvstrata::test::segment::Open;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Store;

namespace {

// A completion that waits until it is let go, so that a request stays unfinished.
struct Latch {
  base::Mutex mutex;
  base::CondVar changed;
  bool entered = false;
  bool open = false;
  std::string thread_name;
  sigset_t mask{};

  storage::Completion completion() { return {&Latch::Hold, this}; }
  static void Hold(void* user, const storage::Result&) {
    Latch& latch = *static_cast<Latch*>(user);
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    base::MutexLock lock(latch.mutex);
    latch.thread_name = name;
    pthread_sigmask(SIG_BLOCK, nullptr, &latch.mask);
    latch.entered = true;
    latch.changed.NotifyAll();
    while (!latch.open) latch.changed.Wait(latch.mutex);
  }
  void WaitUntilEntered() {
    base::MutexLock lock(mutex);
    while (!entered) changed.Wait(mutex);
  }
  void Open() {
    base::MutexLock lock(mutex);
    open = true;
    changed.NotifyAll();
  }
};

}  // namespace

TEST_CASE("accepted requests are bounded, a close that waits too long says so") {
  TempDir directory;
  storage::SegmentOptions options = Options(directory / "store");
  options.io_threads = 1;
  options.max_requests = 3;
  const Store store = Open(options);
  Latch latch;
  Completions completions(2);
  const storage::Request held = {storage::Put{KeyOf(0), {}, {}}, latch.completion()};
  const std::vector<storage::Request> two = {{storage::Put{KeyOf(1), {}, {}}, completions.Of(0)},
                                             {storage::Put{KeyOf(2), {}, {}}, completions.Of(1)}};
  const std::vector<storage::Request> four(4, two[0]);
  REQUIRE(store->Submit({&held, 1}).ok());
  latch.WaitUntilEntered();
  CHECK(CodeOf(store->Submit(four)) == Code::kTooLarge);
  REQUIRE(store->Submit(two).ok());
  CHECK(CodeOf(store->Submit({&two[0], 1})) == Code::kBusy);
  CHECK(CodeOf(store->Close(std::chrono::milliseconds(1))) == Code::kTimeout);
  CHECK(CodeOf(store->Submit({&two[0], 1})) == Code::kInvalidState);
  latch.Open();
  CHECK(store->Close(kForever).ok());
  CHECK(completions.Counts() == std::pair(1, 1));
  const Store again = Open(options);
  CHECK(Listed(*again) == 3);
}

TEST_CASE("threads are named and take no signal, the opener's mask stays") {
  TempDir directory;
  sigset_t before{};
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  const Store store = Open(directory / "store");
  sigset_t after{};
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1})
    CHECK(sigismember(&before, signal) == sigismember(&after, signal));
  Latch latch;
  const storage::Request request = {storage::Put{KeyOf(0), {}, {}}, latch.completion()};
  REQUIRE(store->Submit({&request, 1}).ok());
  latch.WaitUntilEntered();
  CHECK(latch.thread_name.substr(0, 11) == "kvstrata-io");
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) CHECK(sigismember(&latch.mask, signal) == 1);
  latch.Open();
}

TEST_CASE("64 descriptors are enough, and running out of them is an error") {
  TempDir directory(TempDir::Place::kMemory);
  CHECK(InChild([&] {
          rlimit limit{64, 64};
          if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
          storage::SegmentOptions options = Options(directory / "store");
          options.io_threads = 8;
          auto opened = storage::SegmentStorage::Open(options);
          if (!opened.ok()) return 2;
          storage::Storage& store = **opened;
          std::atomic<int> wrong{0};
          std::vector<std::thread> threads;
          for (uint64_t thread = 0; thread < 8; ++thread) {
            threads.emplace_back([&, thread] {
              for (uint64_t i = 0; i < 20; ++i) {
                if (!PutNow(store, KeyOf(thread * 100 + i), "payload").status.ok()) ++wrong;
                if (!ReadNow(store, KeyOf(thread * 100 + i)).ok()) ++wrong;
              }
            });
          }
          for (std::thread& thread : threads) thread.join();
          if (wrong != 0 || !store.Sync().ok()) return 3;
          // Somebody else takes all that are left.
          std::vector<int> taken;
          for (int fd = dup(0); fd >= 0; fd = dup(0)) taken.push_back(fd);
          // What is open is enough for everything but a new segment.
          if (ReadNow(store, KeyOf(1)).value_or("") != "payload") return 4;
          if (!PutNow(store, KeyOf(1), "new").status.ok() || !store.Sync().ok()) return 5;
          storage::ListPage page;
          if (!store.List({}, 10, &page).ok()) return 6;
          const std::string large(1 << 20, 'l');
          const storage::Result put = PutNow(store, KeyOf(2), large);
          if (base::NativeCodeOf(put.status) != EMFILE) return 7;
          for (const int fd : taken) close(fd);
          if (!PutNow(store, KeyOf(2), large).status.ok()) return 8;
          if (ReadNow(store, KeyOf(1)).value_or("") != "new") return 9;
          return store.Close(kForever).ok() ? 0 : 10;
        }) == 0);
}
