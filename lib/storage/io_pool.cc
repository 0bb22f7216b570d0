// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/io_pool.h"

#include <cassert>
#include <new>
#include <string>

#include "lib/base/status.h"
#include "lib/storage/quiet_thread.h"

namespace kvstrata::core::storage {
IoPool::IoPool(uint64_t capacity, Handler handler, Done done)
    : handler_(std::move(handler)), done_(std::move(done)), ring_(static_cast<size_t>(capacity)) {}

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
  assert(requests.size() <= ring_.size() - count_ && !stopping_);
  for (const Request& request : requests) {
    ring_[static_cast<size_t>((first_ + count_) % ring_.size())] = request;
    ++count_;
  }
  if (requests.size() == 1) {
    changed_.NotifyOne();
  } else {
    changed_.NotifyAll();
  }
}

bool IoPool::Pop(Request* out) {
  base::MutexLock lock(mutex_);
  while (count_ == 0 && !stopping_) changed_.Wait(mutex_);
  if (count_ == 0) return false;
  *out = ring_[static_cast<size_t>(first_)];
  first_ = (first_ + 1) % ring_.size();
  --count_;
  return true;
}

void IoPool::Run() {
  Request request;
  while (Pop(&request)) {
    Result result;
    try {
      result = handler_(request);
    } catch (const std::bad_alloc&) {
      result = {base::MakeStatus(base::Code::kOutOfMemory, "request", "no memory to carry it out"), 0};
    }
    request.completion.Run(result);
    done_();
  }
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
