// SPDX-License-Identifier: Apache-2.0
// y = x W^T in the order of summation that kernels.h states, in tiles.
//
// I1: every output is summed in 16 lanes by rounded products and sums (no fused multiply-add), ascending, whatever tile
//     it is in: the reference's bits. A vector of 8 or 4 floats is a part of the 16 lanes.
//
// Tiles: weights are read once per kBlockTokens tokens; the lanes of a block of tokens and outputs wait in memory while
// kDepth inputs of both are in the first-level cache; within that a tile of tokens and outputs keeps its lanes in
// registers. The weights of a block are first copied side by side (and widened): their rows lie a multiple of 4 KiB
// apart in every model, so more of them than a cache set has ways would push each other out. The next weights are asked
// for a few lines a tile: in one burst they would hold up the loads for as long as memory needs.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/projection.cc"
#include "kernels/arguments.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"
// After targets-inl.h, whose toggle it follows.
#include "kernels/cpu/formats-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr uint64_t kLanes = reference::kLanes;
constexpr uint64_t kDepth = 256;
constexpr uint64_t kLine = 64;

constexpr uint64_t kFloatLanes = HWY_MAX_BYTES / sizeof(float);
// Sums in registers, one part of the lanes at a time: 16 of 32 with AVX-512 and NEON, 9 of 16 with AVX2. Enough to hide
// the latency of an addition (two a cycle, three cycles each), with fewer loads than products.
constexpr uint64_t kTileTokens = HWY_MAX_BYTES == 32 ? 3 : 4;
constexpr uint64_t kTileOutputs = HWY_MAX_BYTES == 32 ? 3 : 4;
constexpr uint64_t kParts = kLanes / kFloatLanes;
// Whole tiles, whose lanes, weights and inputs nearly fill a first-level cache of 32 KiB; the tokens' inputs (4096 or
// 7168 each) a second-level cache of 1 MiB.
constexpr uint64_t kBlockTokens = 36;
constexpr uint64_t kBlockOutputs = HWY_MAX_BYTES == 32 ? 9 : 8;

// 20 KiB of lanes and 9 KiB of weights, on the stack.
struct Block {
  alignas(kLine) float lanes[kBlockTokens][kBlockOutputs][kLanes];
  alignas(kLine) float weights[kBlockOutputs][kDepth];
};

// Rows of weights on their way to the second-level cache.
class RowsAhead {
 public:
  RowsAhead() = default;
  RowsAhead(const void* first, uint64_t stride_bytes, uint64_t rows, uint64_t row_bytes)
      : row_(static_cast<const uint8_t*>(first)), stride_(stride_bytes), rows_(rows), bytes_(row_bytes) {}

  HWY_NOINLINE void Ask(uint64_t lines) {
    for (; lines != 0 && rows_ != 0; --lines) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += kLine;
      if (at_ < bytes_) continue;
      at_ = 0;
      row_ += stride_;
      --rows_;
    }
  }

 private:
  const uint8_t* row_ = nullptr;
  uint64_t stride_ = 0;
  uint64_t rows_ = 0;  // that are left
  uint64_t bytes_ = 0;
  uint64_t at_ = 0;
};

// Relative to the lanes of a block's token and output.
HWY_INLINE float* LanesOf(float* lanes, uint64_t token, uint64_t output) {
  return lanes + (token * kBlockOutputs + output) * kLanes;
}

HWY_INLINE uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// A value that was loaded. GCC would rather load it again for each product, as an operand from memory, and then there
// are more loads than products.
HWY_INLINE FloatVec KeepInRegister(FloatVec value) {
#if defined(__x86_64__)
  asm("" : "+v"(value.raw));
#endif
  return value;
}

// Adds `depth` inputs (a multiple of 16) to one part of the lanes of kT tokens and kO outputs.
template <uint64_t kT, uint64_t kO>
HWY_INLINE void AddPart(const float* x, uint64_t x_stride, const float* weights, uint64_t depth, float* lanes) {
  FloatVec sums[kT][kO];
  for (uint64_t t = 0; t < kT; ++t) {
    for (uint64_t o = 0; o < kO; ++o) sums[t][o] = LoadFloats(LanesOf(lanes, t, o));
  }
  for (uint64_t k = 0; k < depth; k += kLanes) {
    FloatVec inputs[kT];
    for (uint64_t t = 0; t < kT; ++t) inputs[t] = KeepInRegister(LoadFloats(x + t * x_stride + k));
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
void AddTokens(const float* x, uint64_t x_stride, const float* weights, uint64_t outputs, uint64_t depth, float* lanes,
               RowsAhead& ahead) {
  constexpr uint64_t kO = kT == 1 ? 8 : kTileOutputs;
  // All of kBlockOutputs rows in the time of half the tiles of kBlockTokens tokens.
  constexpr uint64_t kTiles = kBlockTokens / kTileTokens * (kBlockOutputs / kTileOutputs);
  constexpr uint64_t kLines = 2 * kBlockOutputs * kDepth * sizeof(float) / kLine / kTiles;
  uint64_t o = 0;
  for (; o + kO <= outputs; o += kO) {
    ahead.Ask(kLines);
    AddTile<kT, kO>(x, x_stride, weights + o * kDepth, depth, LanesOf(lanes, 0, o));
  }
  for (; o < outputs; ++o) AddTile<kT, 1>(x, x_stride, weights + o * kDepth, depth, LanesOf(lanes, 0, o));
}

using QuadTag = hn::CappedTag<float, 4>;
using Quad = hn::Vec<QuadTag>;

// The first two steps of SumLanes: eight lanes on eight, four on four.
HWY_INLINE Quad SumToQuad(const float* lanes) {
  const QuadTag quad;
  const Quad even = hn::Add(hn::Load(quad, lanes), hn::Load(quad, lanes + 8));
  return hn::Add(even, hn::Add(hn::Load(quad, lanes + 4), hn::Load(quad, lanes + 12)));
}

// What SumLanes gives of each of four outputs: the last two steps on a transposed square.
HWY_INLINE void SumFour(const float (*lanes)[kLanes], float* sums) {
  const QuadTag quad;
  const Quad a = SumToQuad(lanes[0]);
  const Quad b = SumToQuad(lanes[1]);
  const Quad c = SumToQuad(lanes[2]);
  const Quad d = SumToQuad(lanes[3]);
  const Quad ab = hn::Add(hn::InterleaveLower(quad, a, b), hn::InterleaveUpper(quad, a, b));
  const Quad cd = hn::Add(hn::InterleaveLower(quad, c, d), hn::InterleaveUpper(quad, c, d));
  hn::StoreU(hn::Add(hn::ConcatLowerLower(quad, cd, ab), hn::ConcatUpperUpper(quad, cd, ab)), quad, sums);
}

// The products that are left over when `inputs` is no multiple of 16, the next in lanes 0, 1, ...; then the sums.
template <typename W>
void FinishBlock(const kvstrata_project_args& a, uint64_t n, uint64_t tokens, uint64_t o, uint64_t outputs,
                 Block& block) {
  const bool round = (a.flags & KVSTRATA_KERNELS_PROJECT_ROUND_BF16) != 0;
  const uint64_t whole = a.inputs / kLanes * kLanes;
  for (uint64_t t = 0; t < tokens; ++t) {
    const float* x = a.x + (n + t) * a.x_stride;
    for (uint64_t k = whole; k < a.inputs; ++k) {
      const W* weights = static_cast<const W*>(a.weights) + o * a.weight_stride + k;
      for (uint64_t i = 0; i < outputs; ++i) {
        block.lanes[t][i][k - whole] += x[k] * reference::AsFloat(weights[i * a.weight_stride]);
      }
    }
    float sums[kBlockOutputs];
    uint64_t i = 0;
    for (; i + 4 <= outputs; i += 4) SumFour(block.lanes[t] + i, sums + i);
    for (; i < outputs; ++i) sums[i] = reference::SumLanes(block.lanes[t][i]);
    float* y = a.y + (n + t) * a.y_stride + o;
    for (i = 0; i < outputs; ++i) y[i] = round ? reference::RoundBf16(sums[i]) : sums[i];
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

void AddDepth(const kvstrata_project_args& a, uint64_t n, uint64_t tokens, uint64_t outputs, uint64_t k, uint64_t depth,
              RowsAhead ahead, Block& block) {
  const float* x = a.x + n * a.x_stride + k;
  uint64_t t = 0;
  for (; t + kTileTokens <= tokens; t += kTileTokens) {
    AddTokens<kTileTokens>(x + t * a.x_stride, a.x_stride, block.weights[0], outputs, depth, block.lanes[t][0], ahead);
  }
  for (; t < tokens; ++t) {
    AddTokens<1>(x + t * a.x_stride, a.x_stride, block.weights[0], outputs, depth, block.lanes[t][0], ahead);
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

// The weights after those of `outputs` outputs from o and `depth` inputs from k: of the next inputs, or of the first
// inputs of the next outputs.
template <typename W>
RowsAhead WeightsAfter(const kvstrata_project_args& a, uint64_t o, uint64_t outputs, uint64_t k, uint64_t depth) {
  const W* weights = static_cast<const W*>(a.weights);
  const uint64_t whole = a.inputs / kLanes * kLanes;
  const uint64_t stride = a.weight_stride * sizeof(W);
  if (k + depth < whole) {
    const uint64_t bytes = Least(kDepth, whole - k - depth) * sizeof(W);
    return {weights + o * a.weight_stride + k + depth, stride, outputs, bytes};
  }
  const uint64_t next = o + outputs;
  if (next >= a.outputs) return {};
  const uint64_t bytes = Least(kDepth, whole) * sizeof(W);
  return {weights + next * a.weight_stride, stride, Least(kBlockOutputs, a.outputs - next), bytes};
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
      CopyWeights(static_cast<const W*>(a.weights) + o * a.weight_stride + k, a.weight_stride, outputs, depth, block);
      AddDepth(a, n, tokens, outputs, k, depth, WeightsAfter<W>(a, o, outputs, k, depth), block);
    }
  }
  FinishBlock<W>(a, n, tokens, o, outputs, block);
}

template <typename W>
void ProjectAll(const kvstrata_project_args& a) {
  Block block;
  if (a.tokens == 0) return;
  // Blocks of about as many tokens each: every block reads all weights.
  const uint64_t blocks = (a.tokens + kBlockTokens - 1) / kBlockTokens;
  const uint64_t tiles = (a.tokens + blocks * kTileTokens - 1) / (blocks * kTileTokens);
  for (uint64_t n = 0; n < a.tokens; n += tiles * kTileTokens) {
    const uint64_t tokens = Least(tiles * kTileTokens, a.tokens - n);
    for (uint64_t o = 0; o < a.outputs; o += kBlockOutputs) {
      ProjectBlock<W>(a, n, tokens, o, Least(kBlockOutputs, a.outputs - o), block);
    }
  }
}

int32_t Project(const kvstrata_project_args* args, void* stream) {
  kvstrata_project_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  // Loops over floats alone: what is projected on a CPU comes from a normalisation, which gives floats.
  if (a.x_type == KVSTRATA_KERNELS_BF16) return reference::Project(args, stream);
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
