// SPDX-License-Identifier: Apache-2.0
// The run-time library of CUDA as an interface: all that libkvstrata_cuda asks of it beside the launches of its
// kernels. On a GPU it is cuda_runtime.cc; tests put a model in its place and compile the rest of this folder as it is.
//
// Thread rule: all functions on any thread at once. None changes the calling thread's current device.
#pragma once

#include <cstdint>
#include <string>

namespace kvstrata::kernels::cuda {

// A cudaError_t.
using Error = int32_t;
inline constexpr Error kSuccess = 0;
inline constexpr Error kInsufficientDriver = 35;
inline constexpr Error kNoDevice = 100;

struct DeviceFacts {
  std::string name;
  int32_t major = 0;  // compute capability
  int32_t minor = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  // What the run-time library says about an error.
  virtual std::string Text(Error error) = 0;
  // The newest CUDA that the driver and this library know, as 1000 * major + 10 * minor; 0: there is no driver.
  virtual Error DriverVersion(int32_t* version) = 0;
  virtual int32_t LibraryVersion() = 0;
  virtual Error DeviceCount(int32_t* count) = 0;
  virtual Error Describe(int32_t device, DeviceFacts* facts) = 0;
};

// Of this process. Lives for ever.
Runtime& SystemRuntime();

}  // namespace kvstrata::kernels::cuda
