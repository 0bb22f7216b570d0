// SPDX-License-Identifier: Apache-2.0
// From a pooled row to a stored entry (reference section 2.3, steps 1 to 4; section 4; section 11.2 with NO_NORM).
#include <cstring>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"

namespace kvstrata::kernels::reference {
void EmitRow(const kvstrata_emit_entries_args& a, int64_t position, float* row) {
  const bool round = Rounds(a.profile);
  if (round) RoundRow(row, a.width);
  if ((a.flags & KVSTRATA_KERNELS_EMIT_NO_NORM) == 0) NormRow(row, a.norm_weight, a.eps, a.width, round, row);
  RopeRow(row + (a.width - a.rope_dims), a.frequencies, a.rope_dims, position, false, round);
  if (!round) return;
  if ((a.flags & KVSTRATA_KERNELS_EMIT_HADAMARD) != 0) HadamardRow(row, a.width, true);
  if (a.format == KVSTRATA_KERNELS_FORMAT_NONE) return;
  QuantizeRow(a.format, row, a.width, a.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? a.rope_dims : 0);
}

int32_t EmitEntries(const kvstrata_emit_entries_args* args, void*) {
  kvstrata_emit_entries_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  for (uint64_t n = 0; n < a.rows; ++n) {
    float* row = a.entries + n * a.entry_stride;
    std::memmove(row, a.pooled + n * a.pooled_stride, a.width * sizeof(float));
    // The entry carries the position of the first token of its own block.
    EmitRow(a, static_cast<int64_t>((a.first_entry + n) * a.ratio), row);
  }
  return kOk;
}

}  // namespace kvstrata::kernels::reference
