// SPDX-License-Identifier: Apache-2.0
// The exported functions of libkvstrata_cuda, on the machine's own CUDA.
//
// Thread rule: any thread.
#include "kernels/cuda/functions.h"
#include "kernels/cuda/library/available.h"
#include "kernels/cuda/library/device.h"
#include "kvstrata/cuda.h"

namespace cuda = kvstrata::kernels::cuda;

extern "C" kvstrata_status kvstrata_cuda_available(int32_t device_id, kvstrata_error* error) {
  return cuda::Fence(error, [&] { return cuda::Available(cuda::SystemDevices(), device_id); });
}

extern "C" kvstrata_status kvstrata_cuda_kernels(int32_t device_id, const kvstrata_kernels** out_kernels,
                                                 kvstrata_error* error) {
  return cuda::Fence(error, [&]() -> cuda::Outcome {
    if (out_kernels == nullptr) return cuda::InvalidArgument("out_kernels", "NULL");
    cuda::Outcome outcome = cuda::Available(cuda::SystemDevices(), device_id);
    if (outcome.ok()) *out_kernels = cuda::Table();
    return outcome;
  });
}

extern "C" kvstrata_status kvstrata_cuda_device(int32_t device_id, const kvstrata_cuda_device_options* options,
                                                kvstrata_device* out_device, kvstrata_error* error) {
  return cuda::Fence(error, [&]() -> cuda::Outcome {
    cuda::DeviceOptions read;
    if (cuda::Outcome outcome = cuda::ReadOptions(options, &read); !outcome.ok()) return outcome;
    if (cuda::Outcome outcome = cuda::Available(cuda::SystemDevices(), device_id); !outcome.ok()) return outcome;
    return cuda::MakeDevice(cuda::SystemRuntime(), read, out_device);
  });
}
