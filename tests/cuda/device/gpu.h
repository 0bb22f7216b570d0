// SPDX-License-Identifier: Apache-2.0
// The GPU that the device tests run on, if there is one.
//
// Thread rule: main thread, but for GpuDevice's member functions: any thread.
#pragma once

#include <string>

#include "kvstrata/cuda.h"
#include "tests/support/engine_device.h"

namespace kvstrata::test {

// Why no test can run here; "": the first device will do.
std::string NoDevice();

// Ends the program with a line where CUDA does not do what it is asked to.
void MustWork(int cuda_error, const char* what);

// Memory of the first device, and libkvstrata_cuda's table for it, which any number of caches may be given: what they
// destroy is only theirs to look at.
class GpuDevice final : public EngineDevice {
 public:
  GpuDevice();
  ~GpuDevice() override;

  const kvstrata_device* table() const override { return &table_; }
  std::byte* Allocate(uint64_t bytes) override;
  void Free(std::byte* memory) override;
  void Write(std::byte* device, const std::byte* host, uint64_t bytes) override;
  void Read(std::byte* host, const std::byte* device, uint64_t bytes) override;

 private:
  kvstrata_device table_{};
  void (*destroy_)(void* ctx) = nullptr;
};

// From now on the device reaches the memory of guarded buffers, under the same address.
void RegisterGuardedBuffers();

// The kernels of libkvstrata_cuda, each of which waits until its work is done.
const kvstrata_kernels& WaitingKernels();

}  // namespace kvstrata::test
