// SPDX-License-Identifier: Apache-2.0
// Who may enter a backend, and when it is empty: counts running calls and accepted requests, refuses both after Close,
// and refuses everything in a forked child.
//
// Invariants:
//   I1. In a forked child no lock is touched: another thread of the parent may have held it at the fork.
//   I2. Accepted requests never exceed max_requests.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "lib/base/mutex.h"

namespace kvstrata::core::storage {

class Gate {
 public:
  explicit Gate(uint64_t max_requests);

  bool InForkedChild() const;
  // kForked, kInvalidState after Close, and for requests kBusy above the bound. Every OK needs its Leave.
  absl::Status EnterCall();
  void LeaveCall();
  absl::Status EnterRequests(uint64_t count);
  void LeaveRequest();

  // See Storage::Close.
  absl::Status Close(std::chrono::nanoseconds patience);

 private:
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const pid_t owner_;
  const uint64_t max_requests_;
  base::Mutex mutex_;
  base::CondVar empty_;
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// One call's stay: leaves when it goes out of scope, if it was let in.
class GatePass {
 public:
  explicit GatePass(Gate& gate) : gate_(gate), status_(gate.EnterCall()) {}
  ~GatePass() {
    if (status_.ok()) gate_.LeaveCall();
  }
  GatePass(const GatePass&) = delete;
  GatePass& operator=(const GatePass&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  Gate& gate_;
  const absl::Status status_;
};

}  // namespace kvstrata::core::storage
