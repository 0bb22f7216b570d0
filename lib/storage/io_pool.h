// SPDX-License-Identifier: Apache-2.0
// The threads that carry out the requests of a backend whose calls block. Few, named, with every signal blocked;
// started when the backend opens and joined when it closes.
//
// Invariants:
//   I1. Pushing allocates nothing: the queue is a ring of its full size from the beginning.
//   I2. An exception out of a handler (memory ran out) becomes a result, so each pushed request completes.
//
// Thread rule: Push on any thread; Start, Stop and the destructor on one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

class IoPool {
 public:
  // Carries out one request: runs on a pool thread.
  using Handler = std::function<Result(const Request& request)>;
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
  bool Pop(Request* out);

  const Handler handler_;
  const Done done_;
  std::vector<std::thread> threads_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<Request> ring_ ABSL_GUARDED_BY(mutex_);
  uint64_t first_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvstrata::core::storage
