// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device/gpu.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/guarded_buffer.h"

namespace kvstrata::test {
namespace {

const kvstrata_kernels* device_kernels = nullptr;

int32_t Waited(int32_t status) {
  if (status == KVSTRATA_KERNELS_OK) MustWork(cudaStreamSynchronize(nullptr), "a kernel");
  return status;
}

// Puts a function in the table's place that calls the device's and waits.
template <auto kMember, typename Args>
void Wrap(kvstrata_kernels* table, int32_t (*kvstrata_kernels::*)(const Args*, void*)) {
  table->*kMember = [](const Args* args, void*) { return Waited((device_kernels->*kMember)(args, nullptr)); };
}
template <auto kMember>
void WrapMember(kvstrata_kernels* table) {
  Wrap<kMember>(table, kMember);
}
template <auto... kMembers>
void WrapAll(kvstrata_kernels* table) {
  (WrapMember<kMembers>(table), ...);
}

// Every second call without a workspace: cases are small, so that with one all would be split over blocks, and those of
// one block must give the same bits.
int32_t AttentionOfEitherForm(const kvstrata_attention_args* args, void* /*stream*/) {
  static bool split = false;
  kvstrata_attention_args call = *args;
  if (!split) call.workspace_bytes = 0;
  split = !split;
  return Waited(device_kernels->attention(&call, nullptr));
}

void Register(void* memory, size_t bytes) {
  MustWork(cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable), "cudaHostRegister");
}

void Unregister(void* memory) { MustWork(cudaHostUnregister(memory), "cudaHostUnregister"); }

}  // namespace

void MustWork(int cuda_error, const char* what) {
  if (cuda_error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(cuda_error)));
  std::fflush(stdout);
  std::_Exit(1);
}

std::string NoDevice() {
  kvstrata_error error{};
  error.struct_size = sizeof error;
  if (kvstrata_cuda_available(0, &error) == KVSTRATA_OK) return "";
  return error.message;
}

GpuDevice::GpuDevice() {
  table_.struct_size = sizeof table_;
  kvstrata_error error{};
  error.struct_size = sizeof error;
  if (kvstrata_cuda_device(0, nullptr, &table_, &error) != KVSTRATA_OK) {
    std::printf("kvstrata_cuda_device: %s\n", error.message);
    std::_Exit(1);
  }
  destroy_ = table_.destroy;
  table_.destroy = [](void*) {};
}

GpuDevice::~GpuDevice() { destroy_(table_.ctx); }

std::byte* GpuDevice::Allocate(uint64_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) return nullptr;
  return static_cast<std::byte*>(memory);
}

void GpuDevice::Free(std::byte* memory) { MustWork(cudaFree(memory), "cudaFree"); }

void GpuDevice::Write(std::byte* device, const std::byte* host, uint64_t bytes) {
  MustWork(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void GpuDevice::Read(std::byte* host, const std::byte* device, uint64_t bytes) {
  MustWork(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void RegisterGuardedBuffers() {
  GuardedBuffer::made = Register;
  GuardedBuffer::gone = Unregister;
}

const kvstrata_kernels& WaitingKernels() {
  static const kvstrata_kernels kTable = [] {
    MustWork(kvstrata_cuda_kernels(0, &device_kernels, nullptr), "kvstrata_cuda_kernels");
    using K = kvstrata_kernels;
    kvstrata_kernels table = *device_kernels;
    WrapAll<&K::pack_rows, &K::unpack_rows, &K::quantize_dequantize, &K::f32_to_bf16, &K::bf16_to_f32, &K::bf16_round,
            &K::hadamard, &K::rope_frequencies, &K::rope, &K::rms_norm, &K::csa_pool, &K::hca_pool, &K::emit_entries,
            &K::compress, &K::window_append, &K::window_import, &K::window_export, &K::index_scores, &K::topk,
            &K::gather_rows, &K::scatter_rows, &K::project>(&table);
    table.attention = AttentionOfEitherForm;
    return table;
  }();
  return kTable;
}

}  // namespace kvstrata::test
