// SPDX-License-Identifier: Apache-2.0
// The projection: its order of summation is part of the contract, so the bits are equal on every level.
#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {

void FuzzProject(Case& c) {
  const uint64_t tokens = c.rng.Below(c.rng.Chance(20) ? 70 : 20);
  const uint64_t inputs = c.rng.Chance(30) ? c.rng.Between(250, 600) : c.rng.Below(90);
  const uint64_t outputs = c.rng.Below(40);
  constexpr Fill kFills[] = {Fill::kPlain, Fill::kWide, Fill::kTiny, Fill::kEdges};
  const Fill fill = c.OneOf(kFills);
  const int32_t weight_type = c.rng.Chance(50) ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32;
  const int32_t x_type = c.rng.Chance(30) ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32;
  const Matrix x = c.Rows(x_type, tokens, inputs, fill);
  const Matrix weights = c.Rows(weight_type, outputs, inputs, fill);
  const Matrix y = c.OutputRows("project", KVSTRATA_KERNELS_F32, tokens, outputs, Match::kBitsOrNan);
  const uint32_t flags = c.rng.Chance(30) ? KVSTRATA_KERNELS_PROJECT_ROUND_BF16 : 0;
  c.Freeze();
  for (uint64_t n = 0, piece = 0; n < tokens; n += piece) {
    piece = c.Piece(tokens - n);
    for (uint64_t o = 0, part = 0; o < outputs; o += part) {
      part = c.Piece(outputs - o);
      kvstrata_project_args a = Args<kvstrata_project_args>();
      a.weight_type = weight_type;
      a.x_type = x_type;
      a.flags = flags;
      a.tokens = piece;
      a.inputs = inputs;
      a.outputs = part;
      a.x = static_cast<const float*>(x.At(n));
      a.x_stride = x.stride;
      a.weights = weights.At(o);
      a.weight_stride = weights.stride;
      a.y = static_cast<float*>(y.At(n, o));
      a.y_stride = y.stride;
      c.Ok(c.k.project_workspace_bytes(&a, &a.workspace_bytes), "project_workspace_bytes");
      a.workspace = c.Workspace(a.workspace_bytes);
      c.Ok(c.k.project(&a, nullptr), "project");
    }
  }
}

}  // namespace kvstrata::kernels::test
