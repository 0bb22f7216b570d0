// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/io.h"

#include <thread>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {

absl::Status SubmitPatiently(storage::Storage& storage, const storage::Request& request, Deadline deadline) {
  while (true) {
    absl::Status status = storage.Submit(std::span(&request, 1));
    if (base::CodeOf(status) != base::Code::kBusy) return status;
    if (std::chrono::steady_clock::now() >= deadline) {
      return base::MakeStatus(base::Code::kTimeout, "storage", "its queue stayed full");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ReadOperation::ReadOperation(std::shared_ptr<storage::HeldRecord> held, uint64_t offset, uint64_t bytes,
                             StagingBuffer scratch)
    : key_{},
      held_(std::move(held)),
      offset_(offset),
      bytes_(bytes),
      begin_(offset),
      scratch_bytes_(scratch.size()),
      staging_(std::move(scratch)) {
  base::MutexLock lock(mutex_);
  done_ = true;
  from_memory_ = true;
  const uint64_t size = held_->payload().size();
  if (offset > size || bytes > size - offset) status_ = base::Corrupt("bytes", "the record has fewer than it should");
}

absl::Status ReadOperation::Submit(storage::Storage& storage, Deadline deadline) {
  // The completion owns a reference of its own; it gives it back when it runs.
  auto* self = new std::shared_ptr<ReadOperation>(shared_from_this());
  const base::MutableBytes to = staging_.bytes().subspan(begin_, bytes_);
  storage::Request request{storage::Get{key_, offset_, to}, {&ReadOperation::Complete, self}};
  absl::Status status = SubmitPatiently(storage, request, deadline);
  if (!status.ok()) delete self;
  return status;
}

absl::Status ReadOperation::Wait(Deadline deadline) {
  base::MutexLock lock(mutex_);
  while (!done_) {
    if (!done_changed_.WaitUntil(mutex_, deadline) && !done_) {
      return base::MakeStatus(base::Code::kTimeout, "read", "the storage did not answer in time");
    }
  }
  return status_;
}

void ReadOperation::Abandon() {
  base::MutexLock lock(mutex_);
  if (done_ || abandoned_) return;
  abandoned_ = true;
  staging_.MarkStuck();
}

void ReadOperation::Complete(void* user, const storage::Result& result) {
  const std::unique_ptr<std::shared_ptr<ReadOperation>> reference(static_cast<std::shared_ptr<ReadOperation>*>(user));
  ReadOperation& self = **reference;
  base::MutexLock lock(self.mutex_);
  self.done_ = true;
  self.status_ = result.status;
  self.from_memory_ = result.from_memory;
  if (result.status.ok() && result.bytes != self.bytes_) {
    self.status_ = base::Corrupt("bytes", "the storage delivered fewer than it was asked for");
  }
  if (self.abandoned_) self.staging_.Reset();
  self.done_changed_.NotifyAll();
}

}  // namespace kvstrata::core::engine
