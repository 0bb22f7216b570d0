// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/io_pool.h"

#include <array>
#include <cassert>
#include <new>
#include <string>

#include "lib/base/status.h"
#include "lib/storage/quiet_thread.h"

namespace kvstrata::core::storage {

IoPool::IoPool(uint64_t capacity, Handler handler, Done done)
    : handler_(std::move(handler)), done_(std::move(done)), queue_(capacity) {}

IoPool::~IoPool() { Stop(); }

absl::Status IoPool::Start(uint32_t threads) {
  threads_.reserve(threads);
  for (uint32_t i = 0; i < threads; ++i) {
    // 13 bytes at most.
    absl::StatusOr<std::thread> thread = StartQuietThread("kvstrata-io" + std::to_string(i % 100), [this] { Run(); });
    if (!thread.ok()) {
      Stop();
      return thread.status();
    }
    threads_.push_back(*std::move(thread));
  }
  return absl::OkStatus();
}

void IoPool::Push(std::span<const Request> requests) {
  base::MutexLock lock(mutex_);
  assert(!stopping_);
  for (const Request& request : requests) queue_.Push(request);
  // Who takes one wakes the next.
  if (queue_.ready()) changed_.NotifyOne();
}

bool IoPool::Take(RequestQueue::Job* job) {
  base::MutexLock lock(mutex_);
  while (!queue_.ready()) {
    if (stopping_ && queue_.empty()) return false;
    changed_.Wait(mutex_);
  }
  queue_.Take(job);
  if (queue_.ready()) changed_.NotifyOne();
  return true;
}

void IoPool::Carry(const RequestQueue::Job& job) {
  std::array<std::optional<Result>, RequestQueue::kJobPuts> results;
  try {
    handler_(job.all(), std::span(results).first(job.count));
  } catch (const std::bad_alloc&) {
    // Those that have no result were not carried out.
  }
  {
    base::MutexLock lock(mutex_);
    queue_.End(job);
    if (stopping_) {
      changed_.NotifyAll();
    } else if (queue_.ready()) {
      changed_.NotifyOne();
    }
  }
  for (size_t i = 0; i < job.count; ++i) {
    if (!results[i].has_value()) {
      results[i] = {base::MakeStatus(base::Code::kOutOfMemory, "request", "no memory to carry it out"), 0};
    }
    job.requests[i].completion.Run(*results[i]);
    done_();
  }
}

void IoPool::Run() {
  RequestQueue::Job job;
  while (Take(&job)) Carry(job);
}

void IoPool::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace kvstrata::core::storage
