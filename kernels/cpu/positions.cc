// SPDX-License-Identifier: Apache-2.0
// RoPE and RMSNorm of the cpu levels. Tables of frequencies are made once per model: they stay the reference's.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/positions.cc"
#include "kernels/arguments.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/functions.h"
// After targets-inl.h, whose toggle it follows.
#include "kernels/cpu/positions-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace {

int32_t Rope(const kvstrata_rope_args* args, void*) {
  kvstrata_rope_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const bool inverse = (a.flags & KVSTRATA_KERNELS_ROPE_INVERSE) != 0;
  const bool round = reference::Rounds(a.profile);
  for (uint64_t n = 0; n < a.tokens; ++n) {
    // Unsigned, so that a caller's nonsense wraps instead of being undefined.
    const uint64_t stepped = static_cast<uint64_t>(a.first_position) + n * static_cast<uint64_t>(a.position_step);
    const int64_t position = a.positions != nullptr ? a.positions[n] : static_cast<int64_t>(stepped);
    float* first = a.values + n * a.token_stride + (a.width - a.rope_dims);
    RopeHeads(first, a.heads, a.head_stride, a.frequencies, a.rope_dims, position, inverse, round);
  }
  return kOk;
}

int32_t RmsNorm(const kvstrata_rms_norm_args* args, void*) {
  kvstrata_rms_norm_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  NormRows(a);
  return kOk;
}

void Fill(kvstrata_kernels& table) {
  table.rope = Rope;
  table.rms_norm = RmsNorm;
}

}  // namespace
}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace kvstrata::kernels::cpu {
KVSTRATA_CPU_FILL(FillPositions, Fill)
}  // namespace kvstrata::kernels::cpu
#endif
