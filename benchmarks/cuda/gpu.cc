// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/cuda/gpu.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "benchmarks/ratio.h"

namespace kvstrata::benchmarks {
namespace {

void Must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) FailGpu(what + (": " + std::string(cudaGetErrorString(error))));
}

}  // namespace

void FailGpu(const std::string& what) {
  std::fprintf(stderr, "benchmark: %s\n", what.c_str());
  std::exit(1);
}

void NeedDevice() {
  kvstrata_error error{};
  error.struct_size = sizeof error;
  if (kvstrata_cuda_available(0, &error) != KVSTRATA_OK) {
    std::printf("skipped: no device: %s\n", error.message);
    std::exit(0);
  }
  Must(cudaSetDevice(0), "cudaSetDevice");
}

void DeviceFree::operator()(void* memory) const { cudaFree(memory); }

DeviceMemory Allocate(uint64_t bytes) {
  void* memory = nullptr;
  Must(cudaMalloc(&memory, bytes), "cudaMalloc");
  return DeviceMemory(memory);
}

void ToDevice(void* to, const void* from, uint64_t bytes) {
  Must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void ToHost(void* to, const void* from, uint64_t bytes) {
  Must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void Wait() { Must(cudaDeviceSynchronize(), "the device"); }

void Ok(int32_t status, const char* what) {
  if (status != 0) FailGpu(what + (": status " + std::to_string(status)));
}

double DeviceSeconds(const std::function<void()>& queue, int repeats) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Must(cudaEventCreate(&begin), "cudaEventCreate");
  Must(cudaEventCreate(&end), "cudaEventCreate");
  Must(cudaEventRecord(begin, nullptr), "cudaEventRecord");
  for (int i = 0; i < repeats; ++i) queue();
  Must(cudaEventRecord(end, nullptr), "cudaEventRecord");
  Must(cudaEventSynchronize(end), "cudaEventSynchronize");
  float milliseconds = 0;
  Must(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds / 1e3 / repeats;
}

void PrintDevicePairs(const char* name, const char* goal, const std::function<void()>& measured,
                      const std::function<void()>& reference, bool share, double scale) {
  DeviceSeconds(measured, 1);
  DeviceSeconds(reference, 1);
  PrintTimedPairs(
      name, goal, kPairs, [&] { return DeviceSeconds(measured); }, [&] { return scale * DeviceSeconds(reference); },
      share);
}

void CopyPass(void* to, const void* from, uint64_t bytes) {
  Must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr), "cudaMemcpyAsync");
}

}  // namespace kvstrata::benchmarks
