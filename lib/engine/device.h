// SPDX-License-Identifier: Apache-2.0
// Memory that the CPU cannot touch, as an interface: the engine moves rows to and from a device through this only, and
// so stays free of any device's headers. The C ABI's kvstrata_device is the one implementation outside tests.
//
// Thread rule: all member functions on any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace kvstrata::core::engine {

// `count` runs of `bytes` bytes, host_stride and memory_stride apart; offsets from the staging buffer's and from the
// engine memory's base.
struct CopyRun {
  uint64_t host_offset = 0;
  uint64_t memory_offset = 0;
  uint64_t bytes = 0;
  uint64_t host_stride = 0;
  uint64_t memory_stride = 0;
  uint64_t count = 1;
};

enum class CopyDirection { kToDevice, kFromDevice };

class Device {
 public:
  virtual ~Device() = default;
  // Null when it failed.
  virtual std::byte* AllocatePinned(int32_t device_id, uint64_t bytes, uint64_t alignment) = 0;
  virtual void ReleasePinned(int32_t device_id, std::byte* memory, uint64_t bytes) = 0;
  // Enqueues the copies on `stream`; `host` is pinned and stays untouched until an event recorded later has happened.
  virtual absl::Status Copy(int32_t device_id, void* stream, CopyDirection direction, std::byte* host,
                            std::byte* device_base, std::span<const CopyRun> runs) = 0;
  virtual absl::Status Record(int32_t device_id, void* stream, void** event) = 0;
  virtual absl::Status Wait(int32_t device_id, void* event, uint64_t timeout_ms) = 0;
  virtual void ReleaseEvent(int32_t device_id, void* event) = 0;
};

}  // namespace kvstrata::core::engine
