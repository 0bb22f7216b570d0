// SPDX-License-Identifier: Apache-2.0
// Locks. Owns the annotated wrappers around std::mutex and std::condition_variable that all of lib/ uses, so that
// clang's thread-safety analysis can check ABSL_GUARDED_BY and its kin (absl/base/thread_annotations.h).
//
// std::mutex and not absl::Mutex: ThreadSanitizer understands it in every build, and a thread that outlives a
// dlclose() of the library leaves nothing behind in it.
//
// Thread rule: as std::mutex and std::condition_variable.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace kvstrata::core::base {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex from construction to destruction.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits are written as loops by the caller (`while (!condition) cond.Wait(mutex);`), never with a predicate: the
// analysis cannot see through a lambda.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False when `deadline` had passed before a notification came.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status result = condition_.wait_until(lock, deadline);
    lock.release();
    return result == std::cv_status::no_timeout;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

// The point in time `patience` from now; a patience too long to be represented means "never".
inline std::chrono::steady_clock::time_point DeadlineAfter(std::chrono::nanoseconds patience) {
  using Time = std::chrono::steady_clock::time_point;
  const Time now = std::chrono::steady_clock::now();
  // A year short of the clock's end, so that the standard library's own arithmetic on it cannot overflow either.
  const std::chrono::nanoseconds longest = Time::max() - now - std::chrono::hours(24 * 365);
  return patience < longest ? now + patience : now + longest;
}

}  // namespace kvstrata::core::base
