// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/cuda/gpu.h"

namespace kvstrata::benchmarks {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kBlocks = 132 * 16;
constexpr uint32_t kInFlight = 8;

__global__ void Read(const uint4* words, uint64_t count, uint32_t* sum) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  uint32_t own = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += kInFlight * step) {
    uint4 some[kInFlight];
#pragma unroll
    for (uint32_t j = 0; j < kInFlight; ++j) some[j] = i + j * step < count ? words[i + j * step] : uint4{};
#pragma unroll
    for (uint32_t j = 0; j < kInFlight; ++j) own += some[j].x ^ some[j].y ^ some[j].z ^ some[j].w;
  }
  if (own == 0xFFFFFFFFu) atomicAdd(sum, own);  // kept, so that nothing is left out
}

}  // namespace

void ReadPass(const void* from, uint64_t bytes, uint32_t* sum) {
  Read<<<kBlocks, kThreads>>>(static_cast<const uint4*>(from), bytes / sizeof(uint4), sum);
}

}  // namespace kvstrata::benchmarks
