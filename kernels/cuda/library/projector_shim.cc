// SPDX-License-Identifier: Apache-2.0
// The exported functions of projections by cuBLAS.
//
// Thread rule: as <kvstrata/cuda.h> says.
#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/cuda/library/available.h"
#include "kernels/cuda/library/projector.h"
#include "kvstrata/cuda.h"

struct kvstrata_cuda_projector {
  std::unique_ptr<kvstrata::kernels::cuda::Projector> projector;
};

namespace kvstrata::kernels::cuda {
namespace {

Outcome CreateOnCurrentDevice(uint32_t flags, std::unique_ptr<Projector>* out) {
  int32_t device = 0;
  // Where there is no driver this fails too; device 0 then tells what is missing.
  if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  Devices& devices = SystemDevices();
  if (Outcome outcome = Available(devices, device); !outcome.ok()) return outcome;
  DeviceFacts facts;
  if (const Error error = devices.Describe(device, &facts); error != kSuccess) {
    return DeviceFailure(devices, "the device's properties", error);
  }
  Blas* blas = nullptr;
  if (Outcome outcome = SystemBlas(&blas); !outcome.ok()) return outcome;
  return Projector::Create(*blas, facts.major, (flags & KVSTRATA_CUDA_PROJECTOR_TF32) != 0, out);
}

}  // namespace
}  // namespace kvstrata::kernels::cuda

namespace cuda = kvstrata::kernels::cuda;

extern "C" kvstrata_status kvstrata_cuda_projector_create(const kvstrata_cuda_projector_options* options,
                                                          kvstrata_cuda_projector** out_projector,
                                                          kvstrata_error* error) {
  return cuda::Fence(error, [&]() -> cuda::Outcome {
    if (out_projector == nullptr) return cuda::InvalidArgument("out_projector", "NULL");
    uint32_t flags = 0;
    if (cuda::Outcome outcome = cuda::ReadProjectorFlags(options, &flags); !outcome.ok()) return outcome;
    auto made = std::make_unique<kvstrata_cuda_projector>();
    cuda::Outcome outcome = cuda::CreateOnCurrentDevice(flags, &made->projector);
    if (outcome.ok()) *out_projector = made.release();
    return outcome;
  });
}

extern "C" void kvstrata_cuda_projector_destroy(kvstrata_cuda_projector* projector) { delete projector; }

extern "C" kvstrata_status kvstrata_cuda_projector_workspace_bytes(const kvstrata_cuda_projector* projector,
                                                                   const kvstrata_project_args* args,
                                                                   uint64_t* out_bytes, kvstrata_error* error) {
  return cuda::Fence(error, [&]() -> cuda::Outcome {
    if (projector == nullptr) return cuda::InvalidArgument("projector", "NULL");
    return projector->projector->WorkspaceBytes(args, out_bytes);
  });
}

extern "C" kvstrata_status kvstrata_cuda_projector_project(kvstrata_cuda_projector* projector,
                                                           const kvstrata_project_args* args, void* stream,
                                                           kvstrata_error* error) {
  return cuda::Fence(error, [&]() -> cuda::Outcome {
    if (projector == nullptr) return cuda::InvalidArgument("projector", "NULL");
    return projector->projector->Project(args, stream);
  });
}
