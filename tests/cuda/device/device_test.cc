// SPDX-License-Identifier: Apache-2.0
// On a GPU, where there is one: the kernels' fuzz against the reference, each buffer against pages that the GPU cannot
// reach either; projections by cuBLAS; and an engine with V4-Flash's layout in pages of device memory under random
// operations, every restored byte compared. Without a GPU the program says why and ends with 77.
//
//   cuda_device_test [CATCH2'S ARGUMENTS]      compute-sanitizer runs it too (sanitize.sh)
#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/reference/scalar.h"
#include "tests/cuda/device/gpu.h"
#include "tests/engines/random_operations.h"
#include "tests/kernels/fuzz_run.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_paged_engine.h"

namespace kvstrata::test {
namespace {

void FuzzDevice(const char* name, kernels::test::Fuzz fuzz, uint64_t cases) {
  kernels::test::FuzzFunction(name, fuzz, cases, {&WaitingKernels()});
}

}  // namespace

TEST_CASE("gpu: kernels", "[kernels]") {
  namespace k = kernels::test;
  RegisterGuardedBuffers();
  FuzzDevice("pack_rows", k::FuzzPackRows, 60);
  FuzzDevice("unpack_rows", k::FuzzUnpackRows, 60);
  FuzzDevice("quantize_dequantize", k::FuzzQuantize, 60);
  FuzzDevice("conversions", k::FuzzConvert, 60);
  FuzzDevice("hadamard", k::FuzzHadamard, 60);
  FuzzDevice("rope_frequencies", k::FuzzRopeFrequencies, 60);
  FuzzDevice("rope", k::FuzzRope, 60);
  FuzzDevice("rms_norm", k::FuzzRmsNorm, 60);
  FuzzDevice("pool", k::FuzzPool, 60);
  FuzzDevice("emit_entries", k::FuzzEmitEntries, 60);
  FuzzDevice("compress", k::FuzzCompress, 60);
  FuzzDevice("window", k::FuzzWindow, 60);
  FuzzDevice("index_scores", k::FuzzIndexScores, 60);
  FuzzDevice("topk", k::FuzzTopK, 60);
  FuzzDevice("attention", k::FuzzAttention, 60);
  FuzzDevice("project", k::FuzzProject, 60);
  FuzzDevice("move", k::FuzzMove, 60);
}

// Not among the kernels: memcheck counts the failed allocation as an error of the program.
TEST_CASE("gpu: a launch is not blamed for an error before it", "[launch]") {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, uint64_t{1} << 60) == cudaErrorMemoryAllocation);  // stays the thread's last error
  REQUIRE(cudaMalloc(&memory, 64) == cudaSuccess);
  kvstrata_convert_args args{};
  args.struct_size = sizeof args;
  args.count = 8;
  args.source = memory;
  args.destination = static_cast<std::byte*>(memory) + 32;
  CHECK(WaitingKernels().bf16_to_f32(&args, nullptr) == KVSTRATA_KERNELS_OK);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaFree(memory) == cudaSuccess);
}

// Small whole numbers: every order of summation gives the same sums, and TF32 or bf16 hold them.
TEST_CASE("gpu: projections by cuBLAS", "[projections]") {
  kvstrata_cuda_projector* projector = nullptr;
  kvstrata_error error{};
  error.struct_size = sizeof error;
  MustWork(cudaSetDevice(0), "cudaSetDevice");
  const kvstrata_status made = kvstrata_cuda_projector_create(nullptr, &projector, &error);
  if (made == KVSTRATA_E_UNSUPPORTED) {
    WARN("skipped: " << error.message);
    return;
  }
  REQUIRE(made == KVSTRATA_OK);
  constexpr uint64_t kTokens = 37, kInputs = 515, kOutputs = 129;
  std::vector<float> x(kTokens * kInputs), weights(kOutputs * kInputs), want(kTokens * kOutputs), got(want.size());
  for (uint64_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 15) - 7;
  for (uint64_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i * 5 % 13) - 6;
  for (uint64_t n = 0; n < kTokens; ++n) {
    for (uint64_t o = 0; o < kOutputs; ++o) {
      for (uint64_t k = 0; k < kInputs; ++k) want[n * kOutputs + o] += x[n * kInputs + k] * weights[o * kInputs + k];
    }
  }
  std::vector<uint16_t> narrow;
  for (const float value : x) narrow.push_back(kernels::reference::F32ToBf16(value));
  GpuDevice device;
  const auto put = [&](const void* data, uint64_t bytes) {
    std::byte* memory = device.Allocate(bytes);
    REQUIRE(memory != nullptr);
    if (data != nullptr) device.Write(memory, static_cast<const std::byte*>(data), bytes);
    return memory;
  };
  for (const int32_t type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
    kvstrata_project_args a{};
    a.struct_size = sizeof a;
    a.tokens = kTokens;
    a.inputs = kInputs;
    a.outputs = kOutputs;
    a.x_type = type;
    std::vector<std::byte*> memories = {
        type == KVSTRATA_KERNELS_F32 ? put(x.data(), x.size() * 4) : put(narrow.data(), narrow.size() * 2),
        put(weights.data(), weights.size() * 4), put(got.data(), got.size() * 4)};
    a.x = reinterpret_cast<const float*>(memories[0]);
    a.weights = memories[1];
    a.y = reinterpret_cast<float*>(memories[2]);
    REQUIRE(kvstrata_cuda_projector_workspace_bytes(projector, &a, &a.workspace_bytes, &error) == KVSTRATA_OK);
    memories.push_back(put(nullptr, a.workspace_bytes));
    a.workspace = memories[3];
    const kvstrata_status status = kvstrata_cuda_projector_project(projector, &a, nullptr, &error);
    INFO(error.message);
    REQUIRE(status == KVSTRATA_OK);
    MustWork(cudaStreamSynchronize(nullptr), "a projection");
    device.Read(reinterpret_cast<std::byte*>(got.data()), memories[2], got.size() * 4);
    CHECK(got == want);
    for (std::byte* memory : memories) device.Free(memory);
  }
  kvstrata_cuda_projector_destroy(projector);
}

TEST_CASE("gpu: an engine with V4-Flash in pages of device memory", "[restore]") {
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kFile}) {
    GpuDevice device;
    RandomRun run;
    run.kind = PagedEngine("deepseek-v4-flash");
    run.store = store;
    run.device = &device;
    run.seed = TestSeed("gpu engine", 41);
    run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", 40);
    run.capacity_bytes = 512 << 20;
    run.max_tokens = 2000;
    run.max_step = 300;
    run.allowed_modes =
        1u << KVSTRATA_MODE_SNAPSHOT | 1u << KVSTRATA_MODE_SNAPSHOT_REPLAY | 1u << KVSTRATA_MODE_FULL_REPLAY;
    run.hole_percent = 25;
    RunRandomOperations(run);
  }
}

}  // namespace kvstrata::test
