// SPDX-License-Identifier: Apache-2.0
// Requests that wait for a thread, and how threads take them: gets one by one; puts as many together as make one large
// write, since a drive writes a few MiB faster than as many bytes in pieces. A put waits for nothing where the drive
// has nothing to do: only while kFewJobs are being written do small ones wait, for each other or for one of those to
// end.
// Few at one time also end one after the other, so that who waits for a record's memory gets it back steadily.
//
// Invariants:
//   I1. Pushing and taking allocate nothing: the queues have their full size from the beginning.
//   I2. Puts are taken in the order in which they came, as are gets; of both, what came first and may be taken.
//   I3. While a put waits that may not be taken, kFewJobs of puts are in hand: the end of one lets it go.
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

class RequestQueue {
 public:
  // Of puts together; a larger one goes alone. Two writes of this size at one time go at a drive's full rate.
  static constexpr uint64_t kJobBytes = 4u << 20;
  // Each is two pieces of a write, as it lies in memory and its copied end, of which there are 64 (Gather::kBatch).
  static constexpr size_t kJobPuts = 31;
  static constexpr uint32_t kFewJobs = 2;
  // More jobs than few begin where so much waits, until so much is being written.
  static constexpr uint64_t kFullJobBytes = 1u << 20;
  static constexpr uint64_t kManyBytes = 8u << 20;

  // A get, or puts.
  struct Job {
    std::array<Request, kJobPuts> requests;
    size_t count = 0;
    // Of puts.
    uint64_t bytes = 0;

    std::span<const Request> all() const { return std::span(requests).first(count); }
  };

  // Room for so many requests at one time.
  explicit RequestQueue(uint64_t capacity) : gets_(capacity), puts_(capacity) {}

  void Push(const Request& request);
  bool empty() const { return gets_.count == 0 && puts_.count == 0; }
  // Whether there is something to take now.
  bool ready() const { return gets_.count > 0 || PutsReady(); }
  // Replaces `*job`; only where ready.
  void Take(Job* job);
  // What was taken is done, or failed.
  void End(const Job& job);

 private:
  struct Waiting {
    Request request;
    uint64_t arrival = 0;
    uint64_t bytes = 0;
  };
  struct Ring {
    explicit Ring(uint64_t capacity) : places(static_cast<size_t>(capacity)) {}
    const Waiting& front() const { return places[first]; }
    void Push(const Waiting& waiting);
    Waiting Pop();

    std::vector<Waiting> places;
    size_t first = 0;
    size_t count = 0;
  };

  bool PutsReady() const;

  Ring gets_;
  Ring puts_;
  uint64_t arrivals_ = 0;
  uint64_t waiting_bytes_ = 0;  // of puts
  uint32_t jobs_ = 0;           // of puts, in hand
  uint64_t job_bytes_ = 0;      // of these
};

}  // namespace kvstrata::core::storage
