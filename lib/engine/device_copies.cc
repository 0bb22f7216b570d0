// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/device_copies.h"

#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {

absl::Status DeviceCopies::Queue(const BufferDesc& buffer, CopyDirection direction, std::byte* host,
                                 std::span<const CopyRun> runs) {
  if (runs.empty()) return absl::OkStatus();
  if (lost_) return base::MakeStatus(base::Code::kDevice, "device", "an earlier copy was lost");
  // An event is recorded on one device.
  if (queued_ && device_id_ != buffer.device_id) {
    if (absl::Status status = WaitQueued(); !status.ok()) return status;
  }
  // Also where it fails: some of the copies may be under way.
  queued_ = true;
  device_id_ = buffer.device_id;
  return device_->Copy(buffer.device_id, stream_, direction, host, buffer.base, runs);
}

absl::Status DeviceCopies::Keep(StagingBuffer* staging, bool* kept) {
  *kept = false;
  if (lost_) {
    staging->Forfeit();
    return base::MakeStatus(base::Code::kDevice, "device", "an earlier copy was lost");
  }
  if (!std::exchange(queued_, false)) return absl::OkStatus();
  void* event = nullptr;
  if (absl::Status status = device_->Record(device_id_, stream_, &event); !status.ok()) {
    staging->Forfeit();
    return status;
  }
  kept_.push_back({event, device_id_, std::move(*staging)});
  *kept = true;
  return absl::OkStatus();
}

absl::Status DeviceCopies::WaitFor(int32_t device_id, void* event) {
  absl::Status status = device_->Wait(device_id, event, timeout_ms_);
  device_->ReleaseEvent(device_id, event);
  return status;
}

absl::Status DeviceCopies::WaitOldest() {
  if (kept_.empty()) return absl::OkStatus();
  Kept oldest = std::move(kept_.front());
  kept_.pop_front();
  absl::Status status = WaitFor(oldest.device_id, oldest.event);
  if (status.ok()) return status;
  // What is behind it on the stream has not been done either.
  oldest.staging.Forfeit();
  lost_ = true;
  Lose();
  return status;
}

absl::Status DeviceCopies::WaitQueued() {
  if (!std::exchange(queued_, false)) return absl::OkStatus();
  void* event = nullptr;
  absl::Status status = device_->Record(device_id_, stream_, &event);
  if (status.ok()) status = WaitFor(device_id_, event);
  if (!status.ok()) {
    lost_ = true;
    Lose();
  }
  return status;
}

absl::Status DeviceCopies::WaitAll() {
  absl::Status status;
  while (!kept_.empty()) {
    if (absl::Status waited = WaitOldest(); status.ok()) status = waited;
  }
  if (absl::Status waited = WaitQueued(); status.ok()) status = waited;
  return status;
}

// Nobody waits for what is left.
void DeviceCopies::Lose() {
  for (Kept& left : kept_) {
    device_->ReleaseEvent(left.device_id, left.event);
    left.staging.Forfeit();
  }
  kept_.clear();
  queued_ = false;
}

}  // namespace kvstrata::core::engine
