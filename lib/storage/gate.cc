// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/gate.h"

#include <unistd.h>

#include <cassert>
#include <string>

#include "lib/base/status.h"

namespace kvstrata::core::storage {
namespace {

absl::Status Forked() {
  return base::MakeStatus(base::Code::kForked, "storage", "was opened by the parent process; open it again here");
}

}  // namespace

Gate::Gate(uint64_t max_requests) : owner_(getpid()), max_requests_(max_requests) {}

bool Gate::InForkedChild() const { return getpid() != owner_; }

absl::Status Gate::CheckOpen() const {
  return closed_ ? base::MakeStatus(base::Code::kInvalidState, "storage", "is closed") : absl::OkStatus();
}

absl::Status Gate::EnterCall() {
  if (InForkedChild()) return Forked();
  base::MutexLock lock(mutex_);
  absl::Status status = CheckOpen();
  if (status.ok()) ++calls_;
  return status;
}

void Gate::LeaveCall() {
  base::MutexLock lock(mutex_);
  assert(calls_ > 0);
  if (--calls_ == 0 && requests_ == 0) empty_.NotifyAll();
}

absl::Status Gate::EnterRequests(uint64_t count) {
  if (InForkedChild()) return Forked();
  base::MutexLock lock(mutex_);
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (count > max_requests_ - requests_) {
    return base::MakeStatus(base::Code::kBusy, "requests",
                            std::to_string(requests_) + " of " + std::to_string(max_requests_) + " are running, " +
                                std::to_string(count) + " more do not fit");
  }
  requests_ += count;
  return absl::OkStatus();
}

void Gate::LeaveRequest() {
  base::MutexLock lock(mutex_);
  assert(requests_ > 0);
  if (--requests_ == 0 && calls_ == 0) empty_.NotifyAll();
}

absl::Status Gate::Close(std::chrono::nanoseconds patience) {
  if (InForkedChild()) return Forked();
  const auto deadline = base::DeadlineAfter(patience);
  base::MutexLock lock(mutex_);
  closed_ = true;
  while (requests_ != 0 || calls_ != 0) {
    const bool notified = empty_.WaitUntil(mutex_, deadline);
    if (!notified && (requests_ != 0 || calls_ != 0)) {
      return base::MakeStatus(
          base::Code::kTimeout, "patience",
          std::to_string(requests_) + " requests and " + std::to_string(calls_) + " calls still run");
    }
  }
  return absl::OkStatus();
}

}  // namespace kvstrata::core::storage
