// SPDX-License-Identifier: Apache-2.0
// The least that a store could do: one file of values one behind the other, in the order of their numbers, written
// with direct I/O and read through io_uring by one thread. No index but the number; a checksum of every value on both
// ways, as in ours.cc.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "benchmarks/rivals/rival.h"
#include "benchmarks/storage/drive.h"
#include "lib/base/checksum.h"
#include "lib/storage/read_ring.h"

namespace kvstrata::benchmarks {
namespace {

// A value that has come is replaced before it is looked at, as in ours.cc.
constexpr size_t kRooms = 2 * kGetsInFlight;

class Bare final : public Rival {
 public:
  std::string name() const override { return "a bare file"; }
  void Open(const std::string& folder) override {
    fd_ = open((folder + "/bare").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
    ring_ = core::storage::MakeIoUring(kGetsInFlight);
    if (fd_ < 0 || ring_ == nullptr) Fail("no direct I/O or no io_uring here");
  }
  void Close() override {
    ring_.reset();
    close(fd_);
  }

  void PutAll(const Work& work) override {
    if (fallocate(fd_, 0, 0, static_cast<off_t>(work.count * work.value_bytes)) != 0) Fail("no room for a bare file");
    sums_.resize(work.count);
    InThreads(work.count, kInFlight, work.value_bytes, [&](uint64_t i, std::byte*) {
      const core::base::ByteView value = work.ValueOf(i);
      sums_[i] = core::base::Checksum(value, i);
      const ssize_t written = pwrite(fd_, value.data(), value.size(), static_cast<off_t>(i * work.value_bytes));
      if (written != static_cast<ssize_t>(value.size())) Fail("a bare file could not be written");
    });
    if (fdatasync(fd_) != 0) Fail("a bare file could not be flushed");
  }

  void GetAll(const Work& work) override {
    std::array<iovec, kRooms> rooms;
    std::array<uint64_t, kRooms> values{};
    std::vector<uint64_t> free, come;
    for (size_t room = 0; room < kRooms; ++room) {
      rooms[room] = {rooms_ + room * kMostValueBytes, work.value_bytes};
      free.push_back(room);
    }
    uint64_t next = 0;
    size_t in_flight = 0;
    const auto refill = [&] {
      for (; next < work.count && in_flight < kGetsInFlight && !free.empty(); ++next, ++in_flight) {
        const uint64_t room = free.back();
        free.pop_back();
        values[room] = work.order[next];
        ring_->Add(fd_, {&rooms[room], 1}, values[room] * work.value_bytes, room);
      }
    };
    for (uint64_t checked = 0; checked < work.count; checked += come.size()) {
      refill();
      come.clear();
      const bool going = ring_->Wait([&](uint64_t room, int64_t result) {
        if (result != static_cast<int64_t>(work.value_bytes)) Fail("a bare read failed");
        come.push_back(room);
        --in_flight;
      });
      if (!going) Fail("the bare reads were refused");
      refill();
      ring_->Begin();
      for (const uint64_t room : come) CheckValue(work, values[room], rooms_ + room * kMostValueBytes);
      free.insert(free.end(), come.begin(), come.end());
    }
  }

 private:
  void CheckValue(const Work& work, uint64_t value, const std::byte* got) const {
    if (core::base::Checksum({got, work.value_bytes}, value) != sums_[value]) Fail("a bare checksum is wrong");
    work.Check(value, got);
  }

  int fd_ = -1;
  std::vector<uint64_t> sums_;
  std::unique_ptr<core::storage::ReadRing> ring_;
  std::byte* const rooms_ = HugePages(kRooms * kMostValueBytes);
};

}  // namespace

std::unique_ptr<Rival> MakeBare(const std::string& folder) {
  const std::string path = folder + "/tried";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (fd >= 0) close(fd);
  unlink(path.c_str());
  if (fd < 0 || core::storage::MakeIoUring(kGetsInFlight) == nullptr) return nullptr;
  return std::make_unique<Bare>();
}

}  // namespace kvstrata::benchmarks
