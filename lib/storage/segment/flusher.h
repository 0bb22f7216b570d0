// SPDX-License-Identifier: Apache-2.0
// A thread that flushes what was put a while ago, so that little is lost when the process is killed. It sleeps while
// there is nothing to do.
//
// Thread rule: Notify on any thread; Start, Stop and the destructor on one at a time.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "lib/base/mutex.h"

namespace kvstrata::core::storage {

class Flusher {
 public:
  // `flush` runs on the thread, `patience` after the first change at the latest.
  Flusher(std::function<void()> flush, std::chrono::milliseconds patience);
  ~Flusher();
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;

  absl::Status Start();
  // Something has changed; `now` when there is so much of it that it should not wait.
  void Notify(bool now);
  void Stop();

 private:
  void Run();

  const std::function<void()> flush_;
  const std::chrono::milliseconds patience_;
  std::thread thread_;
  base::Mutex mutex_;
  base::CondVar changed_;
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;
  bool now_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvstrata::core::storage
