// SPDX-License-Identifier: Apache-2.0
// Gets through io_uring, and that they give what the threads give when it is refused, fails or breaks (P07).
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/storage/segment/segment_storage.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using base::Code;
using base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::FaultyOs;
using kvstrata::test::KeyOf;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;

namespace {

constexpr size_t kUnit = 4096;

// A ring of preads, with what a kernel may do to one.
class FakeRing final : public storage::ReadRing {
 public:
  struct Manners {
    // Units at most in one read; 0: all.
    size_t short_units = 0;
    // Each so-manyth read fails; 0: none.
    uint64_t fail_each = 0;
    // After so many reads nothing is taken any more; 0: never.
    uint64_t break_after = 0;
  };
  // What a test sees of it.
  struct Sight {
    std::atomic<bool> held{false};  // no read is carried out
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> most_bytes{0};  // noted at one time
  };
  explicit FakeRing(Manners manners, Sight* sight = nullptr) : manners_(manners), sight_(sight) {}

  void Add(int fd, std::span<const iovec> to, uint64_t offset, uint64_t number) override {
    added_.push_back({fd, to, offset, number});
    noted_ += 1;
  }
  // Carries nothing out before a Wait.
  void Begin() override {
    if (sight_ == nullptr) return;
    uint64_t bytes = 0;
    for (const Read& read : added_) {
      for (const iovec& piece : read.to) bytes += piece.iov_len;
    }
    sight_->begun = noted_;
    sight_->most_bytes = std::max<uint64_t>(sight_->most_bytes, bytes);
  }
  bool Wait(absl::FunctionRef<void(uint64_t, int64_t)> done) override {
    Begin();
    while (sight_ != nullptr && sight_->held) std::this_thread::yield();
    {
      base::MutexLock lock(mutex_);
      while (added_.empty() && !woken_) changed_.Wait(mutex_);
      woken_ = false;
    }
    bool broken = false;
    for (size_t left = added_.size(); left > 0; --left) {
      const Read read = added_.front();
      added_.pop_front();
      ++reads_;
      broken = broken || (manners_.break_after != 0 && reads_ > manners_.break_after);
      const bool fails = broken || (manners_.fail_each != 0 && reads_ % manners_.fail_each == 0);
      done(read.number, fails ? -EIO : Carry(read));
    }
    return !broken;
  }
  void Wake() override {
    base::MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyAll();
  }

 private:
  struct Read {
    int fd;
    std::span<const iovec> to;
    uint64_t offset;
    uint64_t number;
  };
  int64_t Carry(const Read& read) const {
    if (manners_.short_units == 0)
      return preadv(read.fd, read.to.data(), static_cast<int>(read.to.size()), read.offset);
    const iovec& first = read.to.front();
    return pread(read.fd, first.iov_base, std::min(first.iov_len, manners_.short_units * kUnit), read.offset);
  }

  const Manners manners_;
  Sight* const sight_;
  uint64_t noted_ = 0;
  uint64_t reads_ = 0;
  std::deque<Read> added_;
  base::Mutex mutex_;
  base::CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

class RingOs : public FaultyOs {
 public:
  explicit RingOs(FakeRing::Manners manners, FakeRing::Sight* sight = nullptr) : manners_(manners), sight_(sight) {}
  std::unique_ptr<storage::ReadRing> MakeReadRing(uint32_t) override {
    return std::make_unique<FakeRing>(manners_, sight_);
  }
  // The fake ring reads what is written on any file system, so any is as good as one with direct I/O.
  int SetDirect(int, bool) override { return 0; }

 private:
  const FakeRing::Manners manners_;
  FakeRing::Sight* const sight_;
};

storage::SegmentOptions Options(const std::string& path, storage::Os* os) {
  storage::SegmentOptions options;
  options.path = path;
  options.capacity_bytes = 8 << 20;
  options.segment_bytes = 1 << 20;
  options.flush_ms = 0;
  options.os = os;
  return options;
}

std::unique_ptr<storage::SegmentStorage> Open(const storage::SegmentOptions& options) {
  auto opened = storage::SegmentStorage::Open(options);
  INFO(opened.status().ToString().c_str());
  REQUIRE(opened.ok());
  return std::move(*opened);
}

// Memory in units, as staging memory is.
class Rooms {
 public:
  Rooms(size_t count, size_t bytes)
      : room_(bytes / kUnit * kUnit + 3 * kUnit),
        memory_(static_cast<std::byte*>(::operator new(count* room_, std::align_val_t(kUnit)))) {}
  ~Rooms() { ::operator delete(memory_, std::align_val_t(kUnit)); }
  Rooms(const Rooms&) = delete;
  Rooms& operator=(const Rooms&) = delete;
  // For what lies at `offset` in its record.
  std::byte* At(size_t number, uint64_t offset) const { return memory_ + number * room_ + offset % kUnit; }

 private:
  const size_t room_;
  std::byte* const memory_;
};

// Puts a record in several segments, then gets ranges of it, many at one time: how many came back otherwise than as
// they were put, of `kGets`.
constexpr size_t kGets = 200;
int WrongGets(storage::Storage& store) {
  std::string payload(2'700'000, '\0');
  if (!base::SeededRandom(21).Fill(std::as_writable_bytes(std::span(payload))).ok()) return -1;
  if (!PutNow(store, KeyOf(1), payload, "meta").status.ok()) return -1;
  base::SeededRandom random(22);
  constexpr size_t kLongest = 300'000;
  const Rooms rooms(kGets, kLongest);
  std::vector<storage::Request> requests;
  Completions completions(kGets);
  for (size_t i = 0; i < kGets; ++i) {
    const uint64_t offset = random.Below(payload.size());
    const size_t size = random.Below(std::min<size_t>(i % 2 == 0 ? 9000 : kLongest, payload.size() - offset) + 1);
    // A few are where nothing can land.
    std::byte* const to = rooms.At(i, offset) + (i % 10 == 7 ? 1 : 0);
    requests.push_back({storage::Get{KeyOf(i % 20 == 3 ? 2 : 1), offset, {to, size}}, completions.Of(i)});
  }
  if (!store.Submit(requests).ok()) return -1;
  completions.Wait();
  if (completions.Counts() != std::pair(1, 1)) return -1;
  int wrong = 0;
  for (size_t i = 0; i < kGets; ++i) {
    const storage::Get& get = std::get<storage::Get>(requests[i].operation);
    const storage::Result result = completions.result(i);
    const bool good = i % 20 == 3 ? CodeOf(result.status) == Code::kNotFound
                                  : result.status.ok() && result.bytes == get.destination.size() &&
                                        base::AsText(get.destination) ==
                                            std::string_view(payload).substr(get.offset, get.destination.size());
    wrong += good ? 0 : 1;
  }
  return wrong;
}

// From now on this thread, and those that it starts, get `error` from the system call. False when it cannot be had.
bool Refuse(uint32_t call, uint32_t error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

TEST_CASE("gets through the kernel's ring deliver what the threads deliver") {
  TempDir directory;
  const auto store = Open(Options(directory / "store", &storage::SystemOs()));
  CHECK(WrongGets(*store) == 0);
  const storage::SegmentStats stats = store->stats();
  const bool expected = stats.direct == 1 && storage::MakeIoUring(1) != nullptr;
  CHECK(stats.ring == (expected ? 1 : 0));
  CHECK((stats.ring_gets > 0) == expected);
  REQUIRE(store->Close(std::chrono::nanoseconds::max()).ok());
  CHECK(store->stats().ring == 0);
}

TEST_CASE("where io_uring is refused, gets go through the threads") {
  TempDir directory;
  const auto refused = GENERATE(std::pair(SYS_io_uring_setup, EPERM), std::pair(SYS_io_uring_setup, ENOSYS),
                                std::pair(SYS_io_uring_enter, EPERM));
  CAPTURE(refused.first, refused.second);
  bool filtered = false, opened = false;
  int wrong = -1;
  storage::SegmentStats stats;
  // A filter holds for a thread and those that it starts.
  std::thread guest([&] {
    filtered = Refuse(static_cast<uint32_t>(refused.first), static_cast<uint32_t>(refused.second));
    auto store = storage::SegmentStorage::Open(Options(directory / "store", &storage::SystemOs()));
    opened = store.ok();
    if (!opened) return;
    wrong = WrongGets(**store);
    stats = (*store)->stats();
  });
  guest.join();
  REQUIRE(filtered);
  REQUIRE(opened);
  CHECK(wrong == 0);
  CHECK(stats.ring == 0);
  CHECK(stats.ring_gets == 0);
}

TEST_CASE("reads that the ring cuts short go on, and those that it fails are done by the threads") {
  TempDir directory;
  FakeRing::Manners manners;
  manners.short_units = GENERATE(0u, 1u, 7u);
  manners.fail_each = GENERATE(0u, 1u, 3u);
  CAPTURE(manners.short_units, manners.fail_each);
  RingOs os(manners);
  const auto store = Open(Options(directory / "store", &os));
  CHECK(WrongGets(*store) == 0);
  const storage::SegmentStats stats = store->stats();
  CHECK(stats.ring == 1);
  CHECK((stats.ring_gets > 0) == (manners.fail_each != 1));
}

TEST_CASE("a ring that breaks is left alone, and nothing is lost") {
  TempDir directory;
  FakeRing::Manners manners;
  manners.break_after = GENERATE(1u, 5u, 40u);
  CAPTURE(manners.break_after);
  RingOs os(manners);
  const auto store = Open(Options(directory / "store", &os));
  for (int round = 0; round < 3; ++round) CHECK(WrongGets(*store) == 0);
  CHECK(store->stats().ring == 0);
  CHECK(store->stats().ring_gets <= manners.break_after);
}

TEST_CASE("the drive has its next reads before the last ones are told of, eight mebibytes at a time") {
  TempDir directory;
  FakeRing::Sight sight;
  RingOs os({}, &sight);
  const auto store = Open(Options(directory / "store", &os));
  static constexpr size_t kBytes = 1 << 20, kCount = 32, kAtDrive = 8;
  const std::string payload(kBytes, 'p');
  REQUIRE(PutNow(*store, KeyOf(1), payload).status.ok());
  struct Told {
    const FakeRing::Sight* sight;
    std::atomic<uint64_t> count{0};
    std::atomic<uint64_t> late{0};  // of reads that had been done: the drive had not the next ones then
  } told{&sight};
  const auto tell = [](void* user, const storage::Result& result) {
    Told& to = *static_cast<Told*>(user);
    const uint64_t before = to.count++;
    if (!result.status.ok() || to.sight->begun < std::min<uint64_t>(kCount, before + 1 + kAtDrive)) ++to.late;
  };
  const Rooms rooms(kCount, kBytes);
  std::vector<storage::Request> requests;
  for (size_t i = 0; i < kCount; ++i) {
    requests.push_back({storage::Get{KeyOf(1), 0, {rooms.At(i, 0), kBytes}}, {tell, &told}});
  }
  // All are there before the first is done.
  sight.held = true;
  REQUIRE(store->Submit(requests).ok());
  sight.held = false;
  while (told.count < kCount) std::this_thread::yield();
  CHECK(told.late == 0);
  CHECK(sight.most_bytes == kAtDrive * kBytes);
  REQUIRE(store->Close(std::chrono::nanoseconds::max()).ok());
  CHECK(store->stats().ring_gets == kCount);
  for (size_t i = 0; i < kCount; ++i) CHECK(base::AsText({rooms.At(i, 0), kBytes}) == payload);
}

TEST_CASE("gets into memory that lies otherwise than the file go through the ring, but for large ones") {
  TempDir directory;
  RingOs os({});
  const auto store = Open(Options(directory / "store", &os));
  std::string payload(1'300'000, '\0');
  REQUIRE(base::SeededRandom(23).Fill(std::as_writable_bytes(std::span(payload))).ok());
  REQUIRE(PutNow(*store, KeyOf(1), payload).status.ok());
  // Twice as much as is copied at one time: what finds no room is done by the threads.
  constexpr size_t kBytes = 240'123, kCount = 64;
  const Rooms rooms(kCount + 1, payload.size());
  std::vector<storage::Request> requests;
  Completions completions(kCount + 1);
  for (size_t i = 0; i < kCount; ++i) {
    requests.push_back({storage::Get{KeyOf(1), i * 1001, {rooms.At(i, i * 1001) + 1 + i, kBytes}}, completions.Of(i)});
  }
  requests.push_back({storage::Get{KeyOf(1), 0, {rooms.At(kCount, 1), payload.size()}}, completions.Of(kCount)});
  REQUIRE(store->Submit(requests).ok());
  completions.Wait();
  for (size_t i = 0; i <= kCount; ++i) {
    const storage::Get& get = std::get<storage::Get>(requests[i].operation);
    REQUIRE(completions.result(i).status.ok());
    REQUIRE(base::AsText(get.destination) == std::string_view(payload).substr(get.offset, get.destination.size()));
  }
  REQUIRE(store->Close(std::chrono::nanoseconds::max()).ok());
  CHECK(store->stats().ring_gets >= 30);
  CHECK(store->stats().ring_gets <= kCount);
}

TEST_CASE("a record replaced and removed while the ring reads it comes back as one of those that were put") {
  TempDir directory;
  RingOs os({1, 0, 0});
  const auto store = Open(Options(directory / "store", &os));
  constexpr size_t kBytes = 200'000;
  const std::vector<std::string> payloads = {std::string(kBytes, 'a'), std::string(kBytes, 'b')};
  REQUIRE(PutNow(*store, KeyOf(1), payloads[0]).status.ok());
  const Rooms rooms(8, kBytes);
  for (size_t round = 0; round < 30; ++round) {
    Completions completions(8);
    for (size_t i = 0; i < 8; ++i) {
      const storage::Request request = {storage::Get{KeyOf(1), 0, {rooms.At(i, 0), kBytes}}, completions.Of(i)};
      REQUIRE(store->Submit({&request, 1}).ok());
    }
    if (round % 5 == 4) REQUIRE(store->Remove(KeyOf(1)).ok());
    REQUIRE(PutNow(*store, KeyOf(1), payloads[round % 2]).status.ok());
    // Units of what has gone are used again as soon as they may be.
    REQUIRE(store->Sync().ok());
    REQUIRE(PutNow(*store, KeyOf(2), std::string(kBytes, 'x')).status.ok());
    completions.Wait();
    for (size_t i = 0; i < 8; ++i) {
      const Code code = CodeOf(completions.result(i).status);
      REQUIRE((code == Code::kOk || (code == Code::kNotFound && round % 5 == 4)));
      const std::string_view got = base::AsText({rooms.At(i, 0), kBytes});
      if (code == Code::kOk) REQUIRE((got == payloads[0] || got == payloads[1]));
    }
  }
  // All places are given back: what is there is two records.
  REQUIRE(store->Remove(KeyOf(1)).ok());
  REQUIRE(store->Remove(KeyOf(2)).ok());
  REQUIRE(store->Sync().ok());
  CHECK(store->stats().free_bytes == store->stats().segment_bytes);
}
