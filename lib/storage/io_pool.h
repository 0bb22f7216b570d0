// SPDX-License-Identifier: Apache-2.0
// The threads that carry out the requests of a backend whose calls block. Few, named, with every signal blocked;
// started when the backend opens and joined when it closes.
//
// Invariants:
//   I1. Pushing allocates nothing (RequestQueue).
//   I2. An exception out of a handler (memory ran out) becomes a result, so each pushed request completes.
//
// Thread rule: Push on any thread; Start, Stop and the destructor on one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/storage/request_queue.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

class IoPool {
 public:
  // Carries out a job of the queue, a get or puts, and says how each request went; runs on a pool thread.
  using Results = std::span<std::optional<Result>>;
  using Handler = std::function<void(std::span<const Request> requests, Results results)>;
  // After the completion of a request has returned.
  using Done = std::function<void()>;

  IoPool(uint64_t capacity, Handler handler, Done done);
  // Stops.
  ~IoPool();
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;

  // Fails, with no thread left running, when the system refuses a thread.
  absl::Status Start(uint32_t threads);
  // The caller has made sure that the ring has room (Gate counts).
  void Push(std::span<const Request> requests);
  // Carries out what is queued, then ends the threads.
  void Stop();

 private:
  void Run();
  bool Take(RequestQueue::Job* job);
  void Carry(const RequestQueue::Job& job);

  const Handler handler_;
  const Done done_;
  std::vector<std::thread> threads_;
  base::Mutex mutex_;
  base::CondVar changed_;
  RequestQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvstrata::core::storage
