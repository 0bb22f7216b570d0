// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/storage/drive.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <system_error>
#include <thread>

#include "lib/base/bytes.h"
#include "lib/base/copy.h"

namespace kvstrata::benchmarks {
namespace {

constexpr size_t kHugePageBytes = 2u << 20;
// What is read, and what has been and is not used yet.
constexpr size_t kRooms = kInFlight + kInFlight / 2;

}  // namespace

void Fail(const char* what) {
  std::fprintf(stderr, "benchmark: %s\n", what);
  std::exit(1);
}

std::byte* HugePages(size_t bytes) {
  bytes = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* memory = mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("no memory");
  const size_t beyond = reinterpret_cast<uintptr_t>(memory) % kHugePageBytes;
  std::byte* const begin = static_cast<std::byte*>(memory) + (kHugePageBytes - beyond) % kHugePageBytes;
  madvise(begin, bytes, MADV_HUGEPAGE);
  std::memset(begin, 1, bytes);
  return begin;
}

core::storage::Key KeyOf(uint64_t number) {
  core::storage::Key key;
  core::base::StoreLittleEndian(key.bytes.data(), number * 0x9E3779B97F4A7C15u);
  core::base::StoreLittleEndian(key.bytes.data() + 8, number);
  return key;
}

Folder::Folder() {
  if (mkdtemp(path_.data()) == nullptr) Fail("cannot make a folder here");
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

// ---- Requests in flight --------------------------------------------------------------------------------------------

Window::Window(uint64_t bytes, size_t in_flight) : bytes_(bytes), slots_(in_flight) {
  core::base::MutexLock lock(mutex_);
  for (size_t slot = 0; slot < in_flight; ++slot) {
    slots_[slot] = {this, slot};
    free_.push_back(slot);
  }
}

void Window::Done(void* user, const core::storage::Result& result) {
  const Slot& slot = *static_cast<Slot*>(user);
  Window& window = *slot.window;
  core::base::MutexLock lock(window.mutex_);
  window.failed_ = window.failed_ || !result.status.ok() || result.bytes != window.bytes_;
  window.free_.push_back(slot.number);
  window.changed_.NotifyOne();
}

size_t Window::Take() {
  core::base::MutexLock lock(mutex_);
  while (free_.empty()) changed_.Wait(mutex_);
  const size_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Window::Finish() {
  core::base::MutexLock lock(mutex_);
  while (free_.size() < slots_.size()) changed_.Wait(mutex_);
  if (failed_) Fail("a request failed");
}

// ---- The bare drive ------------------------------------------------------------------------------------------------

RawFile::RawFile(const std::string& path, uint64_t records, uint64_t record_bytes)
    : records_(records),
      record_bytes_(record_bytes),
      memory_(HugePages(kRooms * record_bytes)),
      ring_(core::storage::MakeIoUring(kInFlight)) {
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (fd_ < 0 || fallocate(fd_, 0, 0, static_cast<off_t>(records_ * record_bytes_)) != 0) Fail("no direct I/O here");
}

RawFile::~RawFile() { close(fd_); }

template <typename Move>
void RawFile::RunThreads(const Move& move) {
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kInFlight; ++thread) {
    threads.emplace_back([&, thread] {
      std::byte* const memory = memory_ + thread * record_bytes_;
      for (uint64_t i = next++; i < records_; i = next++) {
        const ssize_t moved = move(fd_, memory, record_bytes_, static_cast<off_t>(i * record_bytes_));
        if (moved != static_cast<ssize_t>(record_bytes_)) Fail("a raw transfer failed");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void RawFile::Write() {
  RunThreads([](int fd, std::byte* memory, size_t bytes, off_t at) { return pwrite(fd, memory, bytes, at); });
  if (fdatasync(fd_) != 0) Fail("a raw flush failed");
}

void RawFile::WriteCopied(const std::byte* source) {
  RunThreads([source](int fd, std::byte* memory, size_t bytes, off_t at) {
    core::base::CopyBytes(memory, source + static_cast<size_t>(at) / bytes * kUnitBytes, bytes);
    return pwrite(fd, memory, bytes, at);
  });
  if (fdatasync(fd_) != 0) Fail("a raw flush failed");
}

void RawFile::Read() {
  if (ring_ != nullptr) return ReadRing();
  RunThreads([](int fd, std::byte* memory, size_t bytes, off_t at) { return pread(fd, memory, bytes, at); });
}

void RawFile::ReadRing() {
  std::array<iovec, kInFlight> rooms;
  for (size_t slot = 0; slot < kInFlight; ++slot) rooms[slot] = {memory_ + slot * record_bytes_, record_bytes_};
  uint64_t next = 0;
  uint64_t done = 0;
  const auto begin = [&](uint64_t slot) {
    if (next < records_) ring_->Add(fd_, {&rooms[slot], 1}, next++ * record_bytes_, slot);
  };
  for (uint64_t slot = 0; slot < kInFlight; ++slot) begin(slot);
  while (done < records_) {
    const bool going = ring_->Wait([&](uint64_t slot, int64_t result) {
      if (result != static_cast<int64_t>(record_bytes_)) Fail("a raw transfer failed");
      ++done;
      begin(slot);
    });
    if (!going) Fail("a raw transfer failed");
  }
}

void RawFile::ReadFor(uint64_t first, uint64_t count,
                      const std::function<void(uint64_t number, core::base::ByteView record)>& use) {
  if (ring_ == nullptr) Fail("no io_uring here");
  std::array<iovec, kRooms> rooms;
  std::array<uint64_t, kRooms> numbers{};
  // The one that was used last is in the caches still.
  std::vector<uint64_t> free;
  for (size_t room = 0; room < kRooms; ++room) {
    rooms[room] = {memory_ + room * record_bytes_, record_bytes_};
    free.push_back(room);
  }
  std::deque<uint64_t> come;
  uint64_t next = first;
  uint64_t in_flight = 0;
  const auto refill = [&] {
    for (; next < first + count && in_flight < kInFlight && !free.empty(); ++next, ++in_flight) {
      const uint64_t room = free.back();
      free.pop_back();
      numbers[room] = next;
      ring_->Add(fd_, {&rooms[room], 1}, next * record_bytes_, room);
    }
  };
  for (uint64_t used = 0; used < count; ++used) {
    refill();
    while (come.empty()) {
      const bool going = ring_->Wait([&](uint64_t room, int64_t result) {
        if (result != static_cast<int64_t>(record_bytes_)) Fail("a raw transfer failed");
        come.push_back(room);
        --in_flight;
      });
      if (!going) Fail("a raw transfer failed");
    }
    refill();
    ring_->Begin();
    const uint64_t room = come.front();
    come.pop_front();
    use(numbers[room], {memory_ + room * record_bytes_, record_bytes_});
    free.push_back(room);
  }
}

}  // namespace kvstrata::benchmarks
