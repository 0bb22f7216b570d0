// SPDX-License-Identifier: Apache-2.0
// Gets through io_uring: one thread hands them to the kernel and completes them. They land straight in their
// destination, past the page cache, or in memory from which they are copied where the destination does not lie as the
// file does. For what finds no such memory, and for whatever the kernel does not read, there are the pool's threads,
// which also know what to say about a failure.
//
// Invariants:
//   I1. A request that was taken completes once, or is handed on once.
//   I2. At most kDepth are taken at one time; another is refused. Of these the kernel has kBytesInFlight, or one, and
//       the others wait, first come, first begun.
//   I3. Taking one allocates no more than its record's extents.
//   I4. What waits is begun before what has been read is completed: the drive is not to wait for whoever asked.
//
// Thread rule: Take, running and completed on any thread at once; Start, Stop and the destructor on one at a time, Stop
// when nothing is taken any more (the gate is closed and empty).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/storage/huge_arena.h"
#include "lib/storage/segment/landing.h"
#include "lib/storage/segment/store.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

class RingReader {
 public:
  // Reads of 256 KiB are at a drive's full rate with 8 in flight, small ones with 32.
  static constexpr uint32_t kDepth = 32;
  // Eight reads of a MiB are a drive's full rate, too. One that says of many reads at once that they are done, as
  // drives of virtual machines do, would else leave those who asked with nothing to do, and then have nothing itself.
  static constexpr uint64_t kBytesInFlight = 8u << 20;
  // What is copied: of one get, and of all at one time.
  static constexpr uint64_t kMostCopied = 1u << 20;
  static constexpr uint64_t kCopyBytes = 8u << 20;

  // `done` after the completion of a request has returned. `hand_on` gets a request that is to be done by other means.
  RingReader(SegmentStore& store, std::function<void()> done, std::function<void(const Request&)> hand_on);
  ~RingReader();
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  // Where there is no ring, nothing runs and nothing is taken. Fails when the system refuses the thread.
  absl::Status Start(Os& os);
  void Stop();

  // False when the request is not for here, or not now.
  bool Take(const Request& request);
  bool running() const { return running_; }
  // Gets that were read here.
  uint64_t completed() const { return completed_; }

 private:
  struct Slot {
    Request request;
    // Where it is read to: its destination, or memory that is copied from, which begins at `copied_from`.
    base::MutableBytes to;
    std::byte* copied_from = nullptr;
    std::optional<SegmentStore::Pin> pin;
    // The part that is being read, and how much of the destination is read or being read.
    std::optional<Landing> landing;
    int fd = -1;
    uint64_t taken = 0;
  };
  struct alignas(4096) Spare {
    std::array<std::byte, Landing::kSpareUnits * 4096> bytes;
  };

  void Run();
  // Moves what was handed over since to waiting_; whether the thread is to end.
  bool Collect();
  void BeginWaiting();
  // False when something has been handed over since.
  bool MaySleep();
  // Nothing more is taken; what has been is handed on, or comes in.
  void End();
  void Begin(uint32_t number);
  // Adds the next part of a get; one that has none is finished.
  void Next(uint32_t number);
  void OnRead(uint32_t number, int64_t result);
  void CompleteOldest();
  static uint64_t CopyRoom(const Get& get);
  // Both give the number back first.
  void Complete(uint32_t number, const Result& result);
  void HandOn(uint32_t number);
  Request Release(uint32_t number);

  SegmentStore& store_;
  const std::function<void()> done_;
  const std::function<void(const Request&)> hand_on_;
  std::unique_ptr<ReadRing> ring_;
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::atomic<uint64_t> completed_{0};
  // Each belongs to who has its number: the free list, a Take, the list of the new, the thread.
  std::vector<Slot> slots_;
  std::unique_ptr<Spare[]> spares_;
  HugeArena copied_{kCopyBytes, kCopyBytes};
  // The thread's own: gets to be begun; those that are, as many as the ring's reads, and their bytes; those that have
  // been read.
  std::vector<uint32_t> waiting_;
  uint32_t in_flight_ = 0;
  uint64_t bytes_in_flight_ = 0;
  std::vector<uint32_t> finished_;

  base::Mutex mutex_;
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> new_ ABSL_GUARDED_BY(mutex_);
  // The thread waits and could begin something; else it looks by itself, or when a read is done.
  bool sleeps_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvstrata::core::storage
