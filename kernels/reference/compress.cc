// SPDX-License-Identifier: Apache-2.0
// A compressor from end to end: pooling, norm, position, quantisation, packing (reference sections 2, 4, 7 and 11).
#include <algorithm>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/pooling.h"

namespace kvstrata::kernels::reference {
namespace {

// Entry `n` of the call, in its output form.
int32_t StoreEntry(const kvstrata_compress_args& a, uint64_t n, const float* row) {
  if (a.output_type != KVSTRATA_KERNELS_PACKED) {
    StoreRow(row, a.output_type, n * a.entry_stride, a.width, a.entries);
    return kOk;
  }
  kvstrata_pack_rows_args pack{};
  pack.struct_size = sizeof pack;
  pack.format = a.format;
  pack.width = a.width;
  pack.rope_dims = a.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? a.rope_dims : 0;
  pack.source_type = KVSTRATA_KERNELS_F32;
  pack.rows = 1;
  pack.source = row;
  pack.codes = a.packed.codes + n * a.packed.code_stride_bytes;
  pack.rope = a.packed.rope != nullptr ? a.packed.rope + n * a.packed.rope_stride_bytes : nullptr;
  pack.scales = a.packed.scales + n * a.packed.scale_stride_bytes;
  return PackRows(&pack, nullptr);
}

}  // namespace

int32_t CompressWorkspaceBytes(const kvstrata_compress_args* args, uint64_t* out_bytes) {
  kvstrata_compress_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = uint64_t{a.width} * sizeof(float);
  return kOk;
}

// The three steps entry by entry, on one row of workspace: pooling does not depend on how the tokens are cut.
int32_t Compress(const kvstrata_compress_args* args, void*) {
  kvstrata_compress_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, uint64_t{a.width} * sizeof(float))) return kInvalidArgument;
  float* row = static_cast<float*>(a.workspace);
  const kvstrata_emit_entries_args emit = EmitPart(a);
  const uint64_t element = a.input_type == KVSTRATA_KERNELS_F32 ? 4 : 2;
  kvstrata_pool_args pool = PoolPart(a);
  pool.entries = row;
  pool.entry_stride = a.width;
  for (uint64_t done = 0; done < a.tokens; done += pool.tokens) {
    pool.position = a.position + done;
    pool.tokens = std::min(a.tokens - done, a.ratio - pool.position % a.ratio);
    pool.values = static_cast<const char*>(a.values) + done * a.value_stride * element;
    pool.gates = a.gates != nullptr ? static_cast<const char*>(a.gates) + done * a.gate_stride * element : nullptr;
    PoolTokens(pool);
    const uint64_t end = pool.position + pool.tokens;
    if (end % a.ratio != 0) continue;
    EmitRow(emit, static_cast<int64_t>(end - a.ratio), row);
    const uint64_t entry = end / a.ratio - 1 - a.position / a.ratio;
    if (const int32_t status = StoreEntry(a, entry, row); status != kOk) return status;
  }
  return kOk;
}

}  // namespace kvstrata::kernels::reference
