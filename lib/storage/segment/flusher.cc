// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/flusher.h"

#include <new>
#include <utility>

#include "lib/storage/quiet_thread.h"

namespace kvstrata::core::storage {

Flusher::Flusher(std::function<void()> flush, std::chrono::milliseconds patience)
    : flush_(std::move(flush)), patience_(patience) {}

Flusher::~Flusher() { Stop(); }

absl::Status Flusher::Start() {
  absl::StatusOr<std::thread> thread = StartQuietThread("kvstrata-flush", [this] { Run(); });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

void Flusher::Notify(bool now) {
  base::MutexLock lock(mutex_);
  if (dirty_ && (now_ || !now)) return;
  dirty_ = true;
  now_ = now_ || now;
  changed_.NotifyOne();
}

void Flusher::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Flusher::Run() {
  for (;;) {
    {
      base::MutexLock lock(mutex_);
      while (!dirty_ && !stopping_) changed_.Wait(mutex_);
      const auto deadline = base::DeadlineAfter(patience_);
      while (!now_ && !stopping_ && changed_.WaitUntil(mutex_, deadline)) {
      }
      if (stopping_) return;
      dirty_ = false;
      now_ = false;
    }
    try {
      flush_();
    } catch (const std::bad_alloc&) {
      // What was not flushed waits for the next change, or for a sync.
    }
  }
}

}  // namespace kvstrata::core::storage
