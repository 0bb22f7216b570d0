// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/io_pool.h"

#include <pthread.h>
#include <signal.h>

#include <cassert>
#include <new>
#include <string>
#include <system_error>

#include "lib/base/status.h"

namespace kvstrata::core::storage {
namespace {

// Threads inherit the mask of the one that makes them, so that no signal can reach them even for a moment.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

void NameThread(std::thread& thread, uint32_t number) {
  // 13 bytes at most; the kernel takes 15.
  const std::string name = "kvstrata-io" + std::to_string(number % 100);
  pthread_setname_np(thread.native_handle(), name.c_str());
}

}  // namespace

IoPool::IoPool(uint64_t capacity, Handler handler, Done done)
    : handler_(std::move(handler)), done_(std::move(done)), ring_(static_cast<size_t>(capacity)) {}

IoPool::~IoPool() { Stop(); }

absl::Status IoPool::Start(uint32_t threads) {
  const AllSignalsBlocked blocked;
  try {
    threads_.reserve(threads);
    for (uint32_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Run(); });
      NameThread(threads_.back(), i);
    }
  } catch (const std::system_error& error) {
    Stop();
    return base::IoError("start an I/O thread", "io_threads", error.code().value());
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
