// SPDX-License-Identifier: Apache-2.0
// y = x W^T in the order of summation that kernels.h states, in tiles.
//
// I1: every output is summed in 16 lanes by rounded products and sums (no fused multiply-add), ascending, whatever tile
//     it is in: the reference's bits. A vector of 8 or 4 floats is a part of the 16 lanes.
//
// Tiles: weights are read once per kBlockTokens tokens; the lanes of a block of tokens and outputs wait in memory while
// kDepth inputs of both are in the first-level cache; within that a tile of tokens and outputs keeps its lanes in
// registers. The weights of a block are first copied side by side (and widened): their rows lie a multiple of 4 KiB
// apart in every model, so more of them than a cache set has ways would push each other out.
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
constexpr uint64_t kBlockTokens = 32;
constexpr uint64_t kBlockOutputs = 16;
constexpr uint64_t kDepth = 256;

constexpr uint64_t kFloatLanes = HWY_MAX_BYTES / sizeof(float);
// Sums in registers, one part of the lanes at a time: 16 of 32 with AVX-512 and NEON, 8 of 16 with AVX2. Enough to hide
// the latency of an addition, with fewer loads than products.
constexpr uint64_t kTileTokens = 4;
constexpr uint64_t kTileOutputs = HWY_MAX_BYTES == 32 ? 2 : 4;
constexpr uint64_t kParts = kLanes / kFloatLanes;

// 32 KiB of lanes and 16 KiB of weights, on the stack.
struct Block {
  alignas(64) float lanes[kBlockTokens][kBlockOutputs][kLanes];
  alignas(64) float weights[kBlockOutputs][kDepth];
};

// Relative to the lanes of a block's token and output.
HWY_INLINE float* LanesOf(float* lanes, uint64_t token, uint64_t output) {
  return lanes + (token * kBlockOutputs + output) * kLanes;
}

HWY_INLINE uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Adds `depth` inputs (a multiple of 16) to one part of the lanes of kT tokens and kO outputs.
template <uint64_t kT, uint64_t kO>
HWY_INLINE void AddPart(const float* x, uint64_t x_stride, const float* weights, uint64_t depth, float* lanes) {
  FloatVec sums[kT][kO];
  for (uint64_t t = 0; t < kT; ++t) {
    for (uint64_t o = 0; o < kO; ++o) sums[t][o] = LoadFloats(LanesOf(lanes, t, o));
  }
  for (uint64_t k = 0; k < depth; k += kLanes) {
    FloatVec inputs[kT];
    for (uint64_t t = 0; t < kT; ++t) inputs[t] = LoadFloats(x + t * x_stride + k);
    for (uint64_t o = 0; o < kO; ++o) {
      const FloatVec weight = LoadFloats(weights + o * kDepth + k);
      for (uint64_t t = 0; t < kT; ++t) sums[t][o] = hn::Add(sums[t][o], hn::Mul(inputs[t], weight));
    }
  }
  for (uint64_t t = 0; t < kT; ++t) {
    for (uint64_t o = 0; o < kO; ++o) StoreFloats(sums[t][o], LanesOf(lanes, t, o));
  }
}

template <uint64_t kT, uint64_t kO>
HWY_INLINE void AddTile(const float* x, uint64_t x_stride, const float* weights, uint64_t depth, float* lanes) {
  for (uint64_t part = 0; part < kLanes; part += kFloatLanes) {
    AddPart<kT, kO>(x + part, x_stride, weights + part, depth, lanes + part);
  }
}

// kT tokens and all outputs of a block. A token alone needs more outputs to hide the latency of an addition.
template <uint64_t kT>
void AddTokens(const float* x, uint64_t x_stride, const float* weights, uint64_t outputs, uint64_t depth,
               float* lanes) {
  constexpr uint64_t kO = kT == 1 ? 8 : kTileOutputs;
  uint64_t o = 0;
  for (; o + kO <= outputs; o += kO) {
    AddTile<kT, kO>(x, x_stride, weights + o * kDepth, depth, LanesOf(lanes, 0, o));
  }
  for (; o < outputs; ++o) AddTile<kT, 1>(x, x_stride, weights + o * kDepth, depth, LanesOf(lanes, 0, o));
}

// The products that are left over when `inputs` is no multiple of 16: the next in lanes 0, 1, ...
template <typename W>
void FinishBlock(const kvstrata_project_args& a, uint64_t n, uint64_t tokens, uint64_t o, uint64_t outputs,
                 Block& block) {
  const bool round = (a.flags & KVSTRATA_KERNELS_PROJECT_ROUND_BF16) != 0;
  const uint64_t whole = a.inputs / kLanes * kLanes;
  for (uint64_t t = 0; t < tokens; ++t) {
    const float* x = a.x + (n + t) * a.x_stride;
    for (uint64_t i = 0; i < outputs; ++i) {
      const W* weights = static_cast<const W*>(a.weights) + (o + i) * a.weight_stride;
      float(&sums)[kLanes] = block.lanes[t][i];
      for (uint64_t k = whole; k < a.inputs; ++k) sums[k - whole] += x[k] * reference::AsFloat(weights[k]);
      const float sum = reference::SumLanes(sums);
      a.y[(n + t) * a.y_stride + o + i] = round ? reference::RoundBf16(sum) : sum;
    }
  }
}

template <typename W>
void CopyWeights(const W* weights, uint64_t weight_stride, uint64_t outputs, uint64_t depth, Block& block) {
  for (uint64_t o = 0; o < outputs; ++o) {
    for (uint64_t k = 0; k < depth; k += kFloatLanes) {
      StoreFloats(LoadFloats(weights + o * weight_stride + k), block.weights[o] + k);
    }
  }
}

// Into the second-level cache, while the tiles before them are worked on: no hardware follows so many short runs.
template <typename W>
void FetchWeights(const W* weights, uint64_t weight_stride, uint64_t outputs, uint64_t depth) {
  constexpr uint64_t kPerLine = 64 / sizeof(W);
  for (uint64_t o = 0; o < outputs; ++o) {
    for (uint64_t k = 0; k < depth; k += kPerLine) __builtin_prefetch(weights + o * weight_stride + k, 0, 2);
  }
}

void AddDepth(const kvstrata_project_args& a, uint64_t n, uint64_t tokens, uint64_t outputs, uint64_t k, uint64_t depth,
              Block& block) {
  const float* x = a.x + n * a.x_stride + k;
  uint64_t t = 0;
  for (; t + kTileTokens <= tokens; t += kTileTokens) {
    AddTokens<kTileTokens>(x + t * a.x_stride, a.x_stride, block.weights[0], outputs, depth, block.lanes[t][0]);
  }
  for (; t < tokens; ++t) {
    AddTokens<1>(x + t * a.x_stride, a.x_stride, block.weights[0], outputs, depth, block.lanes[t][0]);
  }
}

// All inputs of kO outputs of one token, weights from where they lie.
template <uint64_t kO, typename W>
void AddRows(const float* x, const W* weights, uint64_t weight_stride, uint64_t depth, float* lanes) {
  FloatVec sums[kO][kParts];
  for (uint64_t o = 0; o < kO; ++o) {
    for (uint64_t p = 0; p < kParts; ++p) sums[o][p] = hn::Zero(FloatTag());
  }
  for (uint64_t k = 0; k < depth; k += kLanes) {
    for (uint64_t p = 0; p < kParts; ++p) {
      const uint64_t at = k + p * kFloatLanes;
      const FloatVec inputs = LoadFloats(x + at);
      for (uint64_t o = 0; o < kO; ++o) {
        sums[o][p] = hn::Add(sums[o][p], hn::Mul(inputs, LoadFloats(weights + o * weight_stride + at)));
      }
    }
  }
  for (uint64_t o = 0; o < kO; ++o) {
    for (uint64_t p = 0; p < kParts; ++p) StoreFloats(sums[o][p], LanesOf(lanes, 0, o) + p * kFloatLanes);
  }
}

// Fewer tokens than a tile has: what counts is that weights come in long runs from memory.
template <typename W>
void AddFew(const kvstrata_project_args& a, uint64_t n, uint64_t tokens, uint64_t o, uint64_t outputs, uint64_t depth,
            Block& block) {
  constexpr uint64_t kRows = 4;
  const W* weights = static_cast<const W*>(a.weights) + o * a.weight_stride;
  uint64_t i = 0;
  for (; i + kRows <= outputs; i += kRows) {
    for (uint64_t t = 0; t < tokens; ++t) {
      AddRows<kRows>(a.x + (n + t) * a.x_stride, weights + i * a.weight_stride, a.weight_stride, depth,
                     block.lanes[t][i]);
    }
  }
  for (; i < outputs; ++i) {
    for (uint64_t t = 0; t < tokens; ++t) {
      AddRows<1>(a.x + (n + t) * a.x_stride, weights + i * a.weight_stride, a.weight_stride, depth, block.lanes[t][i]);
    }
  }
}

template <typename W>
void ProjectBlock(const kvstrata_project_args& a, uint64_t n, uint64_t tokens, uint64_t o, uint64_t outputs,
                  Block& block) {
  for (uint64_t t = 0; t < tokens; ++t) std::memset(block.lanes[t], 0, outputs * sizeof block.lanes[t][0]);
  const uint64_t whole = a.inputs / kLanes * kLanes;
  if (tokens < kTileTokens) {
    AddFew<W>(a, n, tokens, o, outputs, whole, block);
  } else {
    for (uint64_t k = 0; k < whole; k += kDepth) {
      const uint64_t depth = Least(kDepth, whole - k);
      const W* weights = static_cast<const W*>(a.weights) + o * a.weight_stride + k;
      CopyWeights(weights, a.weight_stride, outputs, depth, block);
      if (k + depth < whole) {
        FetchWeights(weights + depth, a.weight_stride, outputs, Least(kDepth, whole - k - depth));
      }
      AddDepth(a, n, tokens, outputs, k, depth, block);
    }
  }
  FinishBlock<W>(a, n, tokens, o, outputs, block);
}

template <typename W>
void ProjectAll(const kvstrata_project_args& a) {
  Block block;
  for (uint64_t n = 0; n < a.tokens; n += kBlockTokens) {
    const uint64_t tokens = Least(kBlockTokens, a.tokens - n);
    for (uint64_t o = 0; o < a.outputs; o += kBlockOutputs) {
      ProjectBlock<W>(a, n, tokens, o, Least(kBlockOutputs, a.outputs - o), block);
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
