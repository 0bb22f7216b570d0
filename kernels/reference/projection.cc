// SPDX-License-Identifier: Apache-2.0
// y = x W^T in a fixed order of summation (the 16-lane dot product of scalar.h, stated in kernels.h).
#include <algorithm>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {
namespace {

// Tokens that share one pass over the weights: their rows stay in cache while the weights stream by. Changes nothing
// in any output, as each is a dot product of its own.
constexpr uint64_t kTokenTile = 16;

template <typename X, typename T>
void ProjectTyped(const kvstrata_project_args& a) {
  const X* x = reinterpret_cast<const X*>(a.x);
  const bool round = (a.flags & KVSTRATA_KERNELS_PROJECT_ROUND_BF16) != 0;
  for (uint64_t begin = 0; begin < a.tokens; begin += kTokenTile) {
    const uint64_t end = std::min(begin + kTokenTile, a.tokens);
    for (uint64_t o = 0; o < a.outputs; ++o) {
      const T* weights = static_cast<const T*>(a.weights) + o * a.weight_stride;
      for (uint64_t n = begin; n < end; ++n) {
        const float sum = Dot(x + n * a.x_stride, weights, a.inputs);
        a.y[n * a.y_stride + o] = round ? RoundBf16(sum) : sum;
      }
    }
  }
}

template <typename X>
void ProjectInputs(const kvstrata_project_args& a) {
  if (a.weight_type == KVSTRATA_KERNELS_BF16) {
    ProjectTyped<X, uint16_t>(a);
  } else {
    ProjectTyped<X, float>(a);
  }
}

}  // namespace

int32_t Project(const kvstrata_project_args* args, void*) {
  kvstrata_project_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.x_type == KVSTRATA_KERNELS_BF16) {
    ProjectInputs<uint16_t>(a);
  } else {
    ProjectInputs<float>(a);
  }
  return kOk;
}

int32_t ProjectWorkspaceBytes(const kvstrata_project_args* args, uint64_t* out_bytes) {
  kvstrata_project_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = 0;
  return kOk;
}

}  // namespace kvstrata::kernels::reference
