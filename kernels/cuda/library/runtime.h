// SPDX-License-Identifier: Apache-2.0
// The run-time library of CUDA as an interface: all that libkvstrata_cuda asks of it beside the launches of its
// kernels. On a GPU it is cuda_runtime.cc; tests put a model in its place and compile the rest of this folder as it is.
//
// Thread rule: all functions on any thread at once. None changes the calling thread's current device.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/runs.h"

namespace kvstrata::kernels::cuda {

// A cudaError_t.
using Error = int32_t;
inline constexpr Error kSuccess = 0;
inline constexpr Error kMemoryAllocation = 2;
inline constexpr Error kInsufficientDriver = 35;
inline constexpr Error kNoDevice = 100;
inline constexpr Error kNotReady = 600;

struct DeviceFacts {
  std::string name;
  int32_t major = 0;  // compute capability
  int32_t minor = 0;
};

// What devices there are.
class Devices {
 public:
  virtual ~Devices() = default;
  // What the run-time library says about an error.
  virtual std::string Text(Error error) = 0;
  // The newest CUDA that the driver and this library know, as 1000 * major + 10 * minor; 0: there is no driver.
  virtual Error DriverVersion(int32_t* version) = 0;
  virtual int32_t LibraryVersion() = 0;
  virtual Error DeviceCount(int32_t* count) = 0;
  virtual Error Describe(int32_t device, DeviceFacts* facts) = 0;
};

enum class CopyWay { kToDevice, kFromDevice };

// Rows between the host and a device: `rows` of `bytes` bytes, the strides apart.
struct RowsCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t to_stride = 0;
  uint64_t from_stride = 0;
  uint64_t bytes = 0;
  uint64_t rows = 1;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // Page-aligned host memory that every device reaches under the same address.
  virtual Error AllocatePinned(int32_t device, uint64_t bytes, void** memory) = 0;
  // Work that uses the memory ends first. The device as for AllocatePinned.
  virtual void ReleasePinned(int32_t device, void* memory) = 0;

  // Queue on `stream`, of that device, and do not wait. Any of them may tell of work that failed before.
  virtual Error Copy(int32_t device, void* stream, CopyWay way, const RowsCopy& rows) = 0;
  // One launch; the runs lie in pinned memory and are read when it runs.
  virtual Error Move(int32_t device, void* stream, const Run* runs, uint32_t count) = 0;
  virtual Error RecordEvent(int32_t device, void* stream, void* event) = 0;

  virtual Error CreateEvent(int32_t device, void** event) = 0;
  virtual void DestroyEvent(int32_t device, void* event) = 0;
  // kSuccess: what was queued before the event was last recorded is done. kNotReady: not yet.
  virtual Error QueryEvent(int32_t device, void* event) = 0;

  // A clock for deadlines, and giving way to others for about so long.
  virtual uint64_t NowNs() = 0;
  virtual void Pause(uint64_t ns) = 0;
};

// Of this process. They live for ever.
Devices& SystemDevices();
Runtime& SystemRuntime();

}  // namespace kvstrata::kernels::cuda
