// SPDX-License-Identifier: Apache-2.0
// y = x W^T in the order of summation that kernels.h states for the other levels, so with their very bits: what an
// engine checks a faster product against.
#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/rows.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::cuda {
namespace {

using reference::kLanes;

// A block has 16 tokens and 16 outputs, a thread one product of them; inputs come through shared memory, 64 at a time.
struct Multiply {
  static constexpr uint32_t kSide = 16;
  static constexpr uint32_t kThreads = kSide * kSide;
  static constexpr uint32_t kStep = 64;
  static constexpr uint32_t kStride = kStep + 1;  // neighbouring rows in different banks
  static constexpr uint32_t kMostSharedBytes = 2 * kSide * kStride * sizeof(float);

  Rows x, weights;
  uint64_t x_stride, weight_stride;
  float* y;
  uint64_t y_stride;
  uint64_t tokens, inputs, outputs;
  bool round;

  // Rows first .. first + 15 of a matrix, inputs k .. k + 63; zeros where there are none, which are never added.
  KVSTRATA_DEVICE void Bring(const Thread& t, const Rows& rows, uint64_t stride, uint64_t first, uint64_t count,
                             uint64_t k, float* tile) const {
    for (uint32_t i = t.thread(); i < kSide * kStep; i += kThreads) {
      const uint64_t row = first + i / kStep;
      const uint64_t input = k + i % kStep;
      float value[1] = {0};
      if (row < count && input < inputs) rows.Load(row * stride + input, value);
      tile[i / kStep * kStride + i % kStep] = value[0];
    }
  }

  KVSTRATA_DEVICE void Tile(const Thread& t, uint64_t first_token, uint64_t first_output) const {
    auto* x_tile = static_cast<float*>(t.shared());
    float* weight_tile = x_tile + kSide * kStride;
    const float* own_x = x_tile + t.thread() / kSide * kStride;
    const float* own_weights = weight_tile + t.thread() % kSide * kStride;
    float lanes[kLanes] = {};
    for (uint64_t k = 0; k < inputs; k += kStep) {
      Bring(t, x, x_stride, first_token, tokens, k, x_tile);
      Bring(t, weights, weight_stride, first_output, outputs, k, weight_tile);
      t.Sync();
      // Behind the last input nothing is added: even a zero would turn a sum of -0 into 0.
      const uint32_t step = inputs - k < kStep ? static_cast<uint32_t>(inputs - k) : kStep;
      for (uint32_t i = 0; i < kStep; i += kLanes) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
          if (i + lane < step) lanes[lane] += own_x[i + lane] * own_weights[i + lane];
        }
      }
      t.Sync();  // the next inputs come where these are read
    }
    const uint64_t token = first_token + t.thread() / kSide;
    const uint64_t output = first_output + t.thread() % kSide;
    if (token >= tokens || output >= outputs) return;
    const float sum = reference::SumLanes(lanes);
    y[token * y_stride + output] = round ? reference::RoundBf16(sum) : sum;
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint64_t across = (outputs + kSide - 1) / kSide;
    const uint64_t tiles = (tokens + kSide - 1) / kSide * across;
    for (uint64_t index = t.block(); index < tiles; index += t.blocks()) {
      Tile(t, index / across * kSide, index % across * kSide);
    }
  }
};

// Strided rows of bf16 or fp32 into strided rows of fp32, which may be the same; rounded to bf16 if `round`.
struct ConvertStrided {
  static constexpr uint32_t kThreads = 256;

  Rows from;
  uint64_t from_stride;
  float* to;
  uint64_t to_stride;
  uint64_t rows, width;
  bool round;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t index = t.first(); index < rows * width; index += t.step()) {
      const Quotient row = Divide(index, width);
      float value[1];
      from.Load(row.whole * from_stride + row.rest, value);
      to[row.whole * to_stride + row.rest] = round ? reference::RoundBf16(value[0]) : value[0];
    }
  }
};

int32_t LaunchConvertStrided(const ConvertStrided& kernel, void* stream) {
  return Launch(kernel, Grid::Over(kernel.rows * kernel.width, kernel.kThreads), stream);
}

}  // namespace

int32_t WidenRows(const Bf16Rows& rows, float* to, void* stream) {
  const Rows from{const_cast<void*>(rows.data), KVSTRATA_KERNELS_BF16};
  return LaunchConvertStrided({from, rows.stride, to, rows.width, rows.rows, rows.width, false}, stream);
}

int32_t RoundRows(float* values, uint64_t stride, uint64_t rows, uint64_t width, void* stream) {
  return LaunchConvertStrided({{values, KVSTRATA_KERNELS_F32}, stride, values, stride, rows, width, true}, stream);
}

int32_t ProjectWorkspaceBytes(const kvstrata_project_args* args, uint64_t* out_bytes) {
  kvstrata_project_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = 0;
  return kOk;
}

int32_t Project(const kvstrata_project_args* args, void* stream) {
  kvstrata_project_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const Multiply kernel{{const_cast<float*>(a.x), a.x_type},
                        {const_cast<void*>(a.weights), a.weight_type},
                        a.x_stride,
                        a.weight_stride,
                        a.y,
                        a.y_stride,
                        a.tokens,
                        a.inputs,
                        a.outputs,
                        (a.flags & KVSTRATA_KERNELS_PROJECT_ROUND_BF16) != 0};
  const uint64_t tiles = (a.tokens + kernel.kSide - 1) / kernel.kSide * ((a.outputs + kernel.kSide - 1) / kernel.kSide);
  return Launch(kernel, Grid::Over(tiles * kernel.kThreads, kernel.kThreads, kernel.kMostSharedBytes), stream);
}

}  // namespace kvstrata::kernels::cuda
