// SPDX-License-Identifier: Apache-2.0
// io_uring by its system calls: one operation (a vectored read) needs no library. As io_uring(7) has it, the kernel
// reads the submission ring's tail and writes its head, and the other way round in the completion ring.
//
// An eventfd that the ring itself reads wakes a Wait. One slot beyond the reads is for it.
#include <linux/io_uring.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>

#include "lib/storage/read_ring.h"

namespace kvstrata::core::storage {
namespace {

constexpr uint64_t kWakeNumber = UINT64_MAX;
// When the kernel takes nothing for the moment, or nothing can be waited for any more.
constexpr auto kPause = std::chrono::milliseconds(1);

class Mapping {
 public:
  Mapping() = default;
  ~Mapping() {
    if (memory_ != nullptr) munmap(memory_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool Map(int fd, size_t bytes, uint64_t offset) {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
    if (memory == MAP_FAILED) return false;
    memory_ = memory;
    bytes_ = bytes;
    return true;
  }
  template <typename T>
  T* At(uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
  }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

uint32_t Load(uint32_t* shared) { return std::atomic_ref<uint32_t>(*shared).load(std::memory_order_acquire); }
void Store(uint32_t* shared, uint32_t value) {
  std::atomic_ref<uint32_t>(*shared).store(value, std::memory_order_release);
}

class IoUring final : public ReadRing {
 public:
  ~IoUring() override {
    if (ring_ >= 0) close(ring_);
    if (event_ >= 0) close(event_);
  }

  bool Open(uint32_t depth) {
    io_uring_params params{};
    ring_ = static_cast<int>(syscall(SYS_io_uring_setup, std::bit_ceil(depth + 1), &params));
    // Two mappings in one since 5.4; completions are never lost since 5.5.
    constexpr uint32_t kWanted = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP;
    if (ring_ < 0 || (params.features & kWanted) != kWanted) return false;
    event_ = eventfd(0, EFD_CLOEXEC);
    if (event_ < 0) return false;
    const size_t submissions = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    const size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    if (!rings_.Map(ring_, submissions > completions ? submissions : completions, IORING_OFF_SQ_RING)) return false;
    if (!entries_.Map(ring_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)) return false;
    head_ = rings_.At<uint32_t>(params.sq_off.head);
    tail_ = rings_.At<uint32_t>(params.sq_off.tail);
    mask_ = *rings_.At<uint32_t>(params.sq_off.ring_mask);
    done_head_ = rings_.At<uint32_t>(params.cq_off.head);
    done_tail_ = rings_.At<uint32_t>(params.cq_off.tail);
    done_mask_ = *rings_.At<uint32_t>(params.cq_off.ring_mask);
    done_ = rings_.At<io_uring_cqe>(params.cq_off.cqes);
    auto* const order = rings_.At<uint32_t>(params.sq_off.array);
    for (uint32_t i = 0; i < params.sq_entries; ++i) order[i] = i;
    return true;
  }

  // Whether calls that follow the first are let through as well: a read of the eventfd comes back.
  bool Probe() {
    Wake();
    bool woken = false;
    while (!broken_ && !woken) {
      Enter(1);
      woken = Reap([](uint64_t, int64_t) {}) > 0;
    }
    return woken;
  }

  void Add(int fd, std::span<const iovec> to, uint64_t offset, uint64_t number) override {
    const uint32_t tail = *tail_;
    io_uring_sqe& entry = entries_.At<io_uring_sqe>(0)[tail & mask_];
    entry = io_uring_sqe{};
    entry.opcode = IORING_OP_READV;
    entry.fd = fd;
    entry.addr = reinterpret_cast<uintptr_t>(to.data());
    entry.len = static_cast<uint32_t>(to.size());
    entry.off = offset;
    entry.user_data = number;
    Store(tail_, tail + 1);
  }

  void Begin() override {
    if (!broken_ && *tail_ != Load(head_)) Enter(0);
  }

  bool Wait(absl::FunctionRef<void(uint64_t, int64_t)> done) override {
    if (!broken_) Enter(1);
    if (broken_) {
      TakeBack(done);
      // What is in flight comes in all the same, but nothing tells when.
      std::this_thread::sleep_for(kPause);
    }
    Reap(done);
    return !broken_;
  }

  void Wake() override {
    const uint64_t one = 1;
    // Cannot fail: far fewer than 2^64 calls.
    static_cast<void>(!write(event_, &one, sizeof one));
  }

 private:
  // Hands all that was added to the kernel, and waits until `wanted` things are done.
  void Enter(uint32_t wanted) {
    if (!armed_) {
      armed_ = true;
      Add(event_, {&event_room_, 1}, 0, kWakeNumber);
    }
    const uint32_t added = *tail_ - Load(head_);
    const long result = syscall(SYS_io_uring_enter, ring_, added, wanted, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (result >= 0 || errno == EINTR) return;
    if (errno == EAGAIN || errno == EBUSY) {
      std::this_thread::sleep_for(kPause);
    } else {
      broken_ = true;
    }
  }

  // How many were done, the wake included.
  uint32_t Reap(absl::FunctionRef<void(uint64_t, int64_t)> done) {
    uint32_t head = *done_head_;
    uint32_t count = 0;
    for (; head != Load(done_tail_); ++count) {
      const io_uring_cqe entry = done_[head & done_mask_];
      Store(done_head_, ++head);
      if (entry.user_data == kWakeNumber) {
        armed_ = false;
      } else {
        done(entry.user_data, entry.res);
      }
    }
    return count;
  }

  // What the kernel has not taken, and will not.
  void TakeBack(absl::FunctionRef<void(uint64_t, int64_t)> done) {
    const uint32_t head = Load(head_);
    const uint32_t tail = *tail_;
    Store(tail_, head);
    for (uint32_t at = head; at != tail; ++at) {
      const uint64_t number = entries_.At<io_uring_sqe>(0)[at & mask_].user_data;
      if (number != kWakeNumber) done(number, -EIO);
    }
  }

  int ring_ = -1;
  int event_ = -1;
  // While the ring reads the eventfd.
  bool armed_ = false;
  bool broken_ = false;
  uint64_t event_value_ = 0;
  iovec event_room_{&event_value_, sizeof event_value_};
  Mapping rings_;
  Mapping entries_;
  uint32_t* head_ = nullptr;
  uint32_t* tail_ = nullptr;
  uint32_t mask_ = 0;
  uint32_t* done_head_ = nullptr;
  uint32_t* done_tail_ = nullptr;
  uint32_t done_mask_ = 0;
  io_uring_cqe* done_ = nullptr;
};

}  // namespace

std::unique_ptr<ReadRing> MakeIoUring(uint32_t depth) {
  auto ring = std::make_unique<IoUring>();
  if (!ring->Open(depth) || !ring->Probe()) return nullptr;
  return ring;
}

}  // namespace kvstrata::core::storage
