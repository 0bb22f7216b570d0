// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "kernels/cuda/library/runtime.h"

namespace kvstrata::kernels::cuda {
namespace {

static_assert(kSuccess == cudaSuccess && kInsufficientDriver == cudaErrorInsufficientDriver &&
              kNoDevice == cudaErrorNoDevice);

// An error that was returned is also kept for the thread's next cudaGetLastError, which belongs to the host.
Error Taken(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

class CudaRuntime final : public Runtime {
 public:
  std::string Text(Error error) override { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
  Error DriverVersion(int32_t* version) override { return Taken(cudaDriverGetVersion(version)); }
  int32_t LibraryVersion() override { return CUDART_VERSION; }
  Error DeviceCount(int32_t* count) override { return Taken(cudaGetDeviceCount(count)); }

  Error Describe(int32_t device, DeviceFacts* facts) override {
    cudaDeviceProp properties;
    const Error error = Taken(cudaGetDeviceProperties(&properties, device));
    if (error == kSuccess) *facts = {properties.name, properties.major, properties.minor};
    return error;
  }
};

}  // namespace

// Never destroyed: a host's threads may call while the process ends.
Runtime& SystemRuntime() {
  static Runtime& runtime = *new CudaRuntime;
  return runtime;
}

}  // namespace kvstrata::kernels::cuda
