// SPDX-License-Identifier: Apache-2.0
// Copies between staging memory and a device, queued on one stream: which staging memory they use, and until when. The
// thread that queues goes on while the device copies, and waits later, in order.
//
// Thread rule: externally synchronised.
//
// Invariants:
//   I1  Staging memory that a queued copy uses is kept here until an event recorded behind it has happened. Where that
//       cannot be known any more it is forfeited: never used again, nor given back before the pool's end.
//   I2  Every event that was recorded is released, once.
#pragma once

#include <cstdint>
#include <deque>
#include <span>

#include "absl/status/status.h"
#include "lib/engine/buffer.h"
#include "lib/engine/device.h"
#include "lib/engine/staging.h"

namespace kvstrata::core::engine {

class DeviceCopies {
 public:
  // `device` may be null where nothing will be queued. `timeout_ms`: of one wait.
  DeviceCopies(Device* device, void* stream, uint64_t timeout_ms)
      : device_(device), stream_(stream), timeout_ms_(timeout_ms) {}
  ~DeviceCopies() { Lose(); }
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Queues copies; all between two calls of Keep use the same staging memory, of the same device.
  absl::Status Queue(const BufferDesc& buffer, CopyDirection direction, std::byte* host, std::span<const CopyRun> runs);
  // Takes the staging memory that was queued since the last call, for as long as the device needs it. *kept: there is
  // something to wait for; otherwise the memory stays the caller's. On failure it is forfeited.
  absl::Status Keep(StagingBuffer* staging, bool* kept);
  // Waits for the oldest that was kept, and lets go of its memory. Nothing kept: nothing happens.
  absl::Status WaitOldest();
  // Waits for what was queued since the last Keep, whose memory is then the caller's to use again.
  absl::Status WaitQueued();
  // All of it.
  absl::Status WaitAll();
  // Some wait has failed: what the device still does is not known.
  bool lost() const { return lost_; }

 private:
  struct Kept {
    void* event = nullptr;
    int32_t device_id = 0;
    StagingBuffer staging;
  };

  absl::Status WaitFor(int32_t device_id, void* event);
  void Lose();

  Device* const device_;
  void* const stream_;
  const uint64_t timeout_ms_;
  std::deque<Kept> kept_;
  int32_t device_id_ = 0;  // of what is queued
  bool queued_ = false;    // since the last Keep
  bool lost_ = false;
};

}  // namespace kvstrata::core::engine
