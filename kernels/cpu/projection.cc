// SPDX-License-Identifier: Apache-2.0
// y = x W^T in the order of summation that kernels.h states, in tiles.
//
// I1: every output is summed in 16 lanes by rounded products and sums (no fused multiply-add), ascending, whatever tile
//     it is in: the reference's bits. A vector of 8 or 4 floats is a part of the 16 lanes.
//
// Tiles: weights are read once per kBlockTokens tokens; the lanes of a block of tokens and outputs wait in memory while
// kDepth inputs of both are in the first-level cache; within that a tile of tokens and outputs keeps its lanes in
// registers.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/projection.cc"
#include "kernels/arguments.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/scalar.h"
// After targets-inl.h, whose toggle it follows.
#include "kernels/cpu/formats-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr uint64_t kLanes = reference::kLanes;
// Lanes of a block: 16 KiB.
constexpr uint64_t kBlockTokens = 32;
constexpr uint64_t kBlockOutputs = 8;
constexpr uint64_t kDepth = 512;
// Few tokens use a weight once or twice: longer runs through memory are worth more than the first-level cache.
constexpr uint64_t kDepthOfFew = 2048;

constexpr uint64_t kFloatLanes = HWY_MAX_BYTES / sizeof(float);
// Sums in registers, one part of the lanes at a time: 16 of 32 with AVX-512 and NEON, 8 of 16 with AVX2. Enough to hide
// the latency of an addition, with fewer loads than products.
constexpr uint64_t kTileTokens = 4;
constexpr uint64_t kTileOutputs = HWY_MAX_BYTES == 32 ? 2 : 4;

struct BlockLanes {
  alignas(64) float of[kBlockTokens][kBlockOutputs][kLanes];
};

// Relative to the lanes of a block's token and output.
HWY_INLINE float* LanesOf(float* lanes, uint64_t token, uint64_t output) {
  return lanes + (token * kBlockOutputs + output) * kLanes;
}

HWY_INLINE uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Adds `depth` inputs (a multiple of 16) to one part of the lanes of kT tokens and kO outputs.
template <uint64_t kT, uint64_t kO, typename W>
HWY_INLINE void AddPart(const float* x, uint64_t x_stride, const W* weights, uint64_t weight_stride, uint64_t depth,
                        float* lanes) {
  FloatVec sums[kT][kO];
  for (uint64_t t = 0; t < kT; ++t) {
    for (uint64_t o = 0; o < kO; ++o) sums[t][o] = LoadFloats(LanesOf(lanes, t, o));
  }
  for (uint64_t k = 0; k < depth; k += kLanes) {
    FloatVec inputs[kT];
    for (uint64_t t = 0; t < kT; ++t) inputs[t] = LoadFloats(x + t * x_stride + k);
    for (uint64_t o = 0; o < kO; ++o) {
      const FloatVec weight = LoadFloats(weights + o * weight_stride + k);
      for (uint64_t t = 0; t < kT; ++t) sums[t][o] = hn::Add(sums[t][o], hn::Mul(inputs[t], weight));
    }
  }
  for (uint64_t t = 0; t < kT; ++t) {
    for (uint64_t o = 0; o < kO; ++o) StoreFloats(sums[t][o], LanesOf(lanes, t, o));
  }
}

template <uint64_t kT, uint64_t kO, typename W>
HWY_INLINE void AddTile(const float* x, uint64_t x_stride, const W* weights, uint64_t weight_stride, uint64_t depth,
                        float* lanes) {
  for (uint64_t part = 0; part < kLanes; part += kFloatLanes) {
    AddPart<kT, kO>(x + part, x_stride, weights + part, weight_stride, depth, lanes + part);
  }
}

// kT tokens and all outputs of a block.
template <uint64_t kT, typename W>
void AddTokens(const float* x, uint64_t x_stride, const W* weights, uint64_t weight_stride, uint64_t outputs,
               uint64_t depth, float* lanes) {
  uint64_t o = 0;
  for (; o + kTileOutputs <= outputs; o += kTileOutputs) {
    AddTile<kT, kTileOutputs>(x, x_stride, weights + o * weight_stride, weight_stride, depth, LanesOf(lanes, 0, o));
  }
  for (; o < outputs; ++o) {
    AddTile<kT, 1>(x, x_stride, weights + o * weight_stride, weight_stride, depth, LanesOf(lanes, 0, o));
  }
}

// The products that are left over when `inputs` is no multiple of 16: the next in lanes 0, 1, ...
template <typename W>
void FinishBlock(const kvstrata_project_args& a, uint64_t n, uint64_t tokens, uint64_t o, uint64_t outputs,
                 BlockLanes& lanes) {
  const bool round = (a.flags & KVSTRATA_KERNELS_PROJECT_ROUND_BF16) != 0;
  const uint64_t whole = a.inputs / kLanes * kLanes;
  for (uint64_t t = 0; t < tokens; ++t) {
    const float* x = a.x + (n + t) * a.x_stride;
    for (uint64_t i = 0; i < outputs; ++i) {
      const W* weights = static_cast<const W*>(a.weights) + (o + i) * a.weight_stride;
      float(&sums)[kLanes] = lanes.of[t][i];
      for (uint64_t k = whole; k < a.inputs; ++k) sums[k - whole] += x[k] * reference::AsFloat(weights[k]);
      const float sum = reference::SumLanes(sums);
      a.y[(n + t) * a.y_stride + o + i] = round ? reference::RoundBf16(sum) : sum;
    }
  }
}

template <typename W>
void ProjectBlock(const kvstrata_project_args& a, uint64_t n, uint64_t tokens, uint64_t o, uint64_t outputs,
                  BlockLanes& lanes) {
  for (uint64_t t = 0; t < tokens; ++t) std::memset(lanes.of[t], 0, outputs * sizeof lanes.of[t][0]);
  const uint64_t whole = a.inputs / kLanes * kLanes;
  const uint64_t step = tokens < kTileTokens ? kDepthOfFew : kDepth;
  for (uint64_t k = 0; k < whole; k += step) {
    const uint64_t depth = Least(step, whole - k);
    const W* weights = static_cast<const W*>(a.weights) + o * a.weight_stride + k;
    const float* x = a.x + n * a.x_stride + k;
    uint64_t t = 0;
    for (; t + kTileTokens <= tokens; t += kTileTokens) {
      AddTokens<kTileTokens>(x + t * a.x_stride, a.x_stride, weights, a.weight_stride, outputs, depth, lanes.of[t][0]);
    }
    for (; t < tokens; ++t) {
      AddTokens<1>(x + t * a.x_stride, a.x_stride, weights, a.weight_stride, outputs, depth, lanes.of[t][0]);
    }
  }
  FinishBlock<W>(a, n, tokens, o, outputs, lanes);
}

template <typename W>
void ProjectAll(const kvstrata_project_args& a) {
  BlockLanes lanes;
  for (uint64_t n = 0; n < a.tokens; n += kBlockTokens) {
    const uint64_t tokens = Least(kBlockTokens, a.tokens - n);
    for (uint64_t o = 0; o < a.outputs; o += kBlockOutputs) {
      ProjectBlock<W>(a, n, tokens, o, Least(kBlockOutputs, a.outputs - o), lanes);
    }
  }
}

int32_t Project(const kvstrata_project_args* args, void*) {
  kvstrata_project_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.weight_type == KVSTRATA_KERNELS_BF16) {
    ProjectAll<uint16_t>(a);
  } else {
    ProjectAll<float>(a);
  }
  return kOk;
}

void Fill(kvstrata_kernels& table) { table.project = Project; }

}  // namespace
}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVSTRATA_CPU_VECTORS

#if HWY_ONCE
namespace kvstrata::kernels::cpu {
KVSTRATA_CPU_FILL(FillProjection, Fill)
}  // namespace kvstrata::kernels::cpu
#endif
