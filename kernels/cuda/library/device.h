// SPDX-License-Identifier: Apache-2.0
// The kvstrata_device of libkvstrata_cuda: pinned memory, copies and events, over a Runtime.
//
// Thread rule: all functions on any thread at once.
//
// Invariants:
//   I1  A copy queues at most kMostEngineCopies copies for the copy engines, and as few launches as its runs fit into.
//   I2  Nothing but `capacity` bytes of pinned memory and the events of stream_queue.h is held, from their first use on
//       until the end.
//   I3  A call that fails leaves the stream as usable as the driver does; what it had queued before is still done, and
//       an event that is recorded afterwards tells when.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/cuda/library/outcome.h"
#include "kernels/cuda/library/pinned_pool.h"
#include "kernels/cuda/library/runtime.h"
#include "kernels/cuda/library/stream_queue.h"
#include "kvstrata/cuda.h"

namespace kvstrata::kernels::cuda {

class Device {
 public:
  static constexpr uint32_t kMostEngineCopies = 16;

  Device(Runtime& runtime, uint64_t capacity) : runtime_(runtime), pool_(runtime, capacity) {}

  void* AllocatePinned(int32_t device, uint64_t bytes, uint64_t alignment) {
    return pool_.Allocate(device, bytes, alignment);
  }
  void ReleasePinned(void* memory) { pool_.Release(memory); }
  kvstrata_status Copy(int32_t device, void* stream, int32_t direction, void* host, void* base,
                       const kvstrata_copy* copies, uint64_t count, uint64_t stride);
  kvstrata_status Record(int32_t device, void* stream, void** event);
  kvstrata_status Wait(int32_t device, void* event, uint64_t timeout_ms);
  void ReleaseEvent(int32_t device, void* event) { QueueOf(device).GiveBackEvent(event); }

  uint64_t pinned_bytes() const { return pool_.held_bytes(); }

 private:
  class Batch;
  StreamQueue& QueueOf(int32_t device);
  Error CopyAll(int32_t device, void* stream, CopyWay way, std::byte* host, std::byte* base,
                const kvstrata_copy* copies, uint64_t count, uint64_t stride);

  Runtime& runtime_;
  PinnedPool pool_;
  std::mutex mutex_;
  std::map<int32_t, std::unique_ptr<StreamQueue>> queues_;
};

struct DeviceOptions {
  uint64_t pinned_bytes = uint64_t{256} << 20;
};

// A caller's options, which may be null, shorter or, with zeros, longer than today's.
Outcome ReadOptions(const kvstrata_cuda_device_options* given, DeviceOptions* options);

// Fills `out` with a table whose ctx is a new Device; its `destroy` ends that.
Outcome MakeDevice(Runtime& runtime, const DeviceOptions& options, kvstrata_device* out);

}  // namespace kvstrata::kernels::cuda
