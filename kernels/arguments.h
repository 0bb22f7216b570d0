// SPDX-License-Identifier: Apache-2.0
// The checks of every argument struct, once for all levels. Owns the size-first rule and the meaning of defaults.
//
// Prepare(in, out) copies the caller's struct, fills in defaults (tight strides, default scales and widths) and checks
// everything that can be checked without reading row data. A kernel calls it first and writes nothing if it fails.
// I1: after kOk every stride is at least its row, every product count * stride fits 2^62, and every pointer
//     that will be used is not null and is aligned for its type.
// I2: counts of 0 pass with null data pointers; the loops then do nothing.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kernels/kernel_api.h"

namespace kvstrata::kernels {

// What a workspace query looks at: it may come before the buffers exist.
enum class Checks { kAll, kShapesOnly };

int32_t Prepare(const kvstrata_packed_shape* in, kvstrata_packed_shape& out);
int32_t Prepare(const kvstrata_pack_rows_args* in, kvstrata_pack_rows_args& out);
int32_t Prepare(const kvstrata_unpack_rows_args* in, kvstrata_unpack_rows_args& out);
int32_t Prepare(const kvstrata_quantize_args* in, kvstrata_quantize_args& out);
// Alignments in bytes of the two sides, which differ between the three conversions.
int32_t Prepare(const kvstrata_convert_args* in, uint32_t source_align, uint32_t destination_align,
                kvstrata_convert_args& out);
int32_t Prepare(const kvstrata_hadamard_args* in, kvstrata_hadamard_args& out);
int32_t Prepare(const kvstrata_rope_frequencies_args* in, kvstrata_rope_frequencies_args& out);
int32_t Prepare(const kvstrata_rope_args* in, kvstrata_rope_args& out);
int32_t Prepare(const kvstrata_rms_norm_args* in, kvstrata_rms_norm_args& out);
int32_t Prepare(const kvstrata_pool_args* in, kvstrata_pool_args& out);
int32_t Prepare(const kvstrata_emit_entries_args* in, kvstrata_emit_entries_args& out);
// All but the workspace.
int32_t Prepare(const kvstrata_compress_args* in, kvstrata_compress_args& out, Checks checks = Checks::kAll);
int32_t Prepare(const kvstrata_window_args* in, kvstrata_window_args& out);
// All but the workspace.
int32_t Prepare(const kvstrata_index_scores_args* in, kvstrata_index_scores_args& out, Checks checks = Checks::kAll);
int32_t Prepare(const kvstrata_topk_args* in, kvstrata_topk_args& out, Checks checks = Checks::kAll);
// All but the workspace and the picks' values, which only the level can judge.
int32_t Prepare(const kvstrata_attention_args* in, kvstrata_attention_args& out, Checks checks = Checks::kAll);
// All but the page ids' values.
int32_t Prepare(const kvstrata_move_args* in, kvstrata_move_args& out);
int32_t Prepare(const kvstrata_project_args* in, kvstrata_project_args& out, Checks checks = Checks::kAll);

// floor((t+1)/ratio): how many entries the query at position t sees.
constexpr uint64_t VisibleEntries(uint64_t position, uint32_t ratio) { return (position + 1) / ratio; }

// Channels a token brings to a compressor: both halves with overlap.
inline uint64_t PoolChannels(const kvstrata_pool_args& a) {
  return (a.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0 ? 2 * uint64_t{a.width} : a.width;
}

// Entries that tokens position .. position+tokens-1 complete.
template <typename PoolOrCompress>
uint64_t EmittedEntries(const PoolOrCompress& a) {
  return (a.position + a.tokens) / a.ratio - a.position / a.ratio;
}

// The two steps of a compression; where the rows between them lie is left to the caller, and `first_entry`, `rows`.
kvstrata_pool_args PoolPart(const kvstrata_compress_args& a);
kvstrata_emit_entries_args EmitPart(const kvstrata_compress_args& a);

// A workspace is there, aligned for floats, and large enough.
inline bool WorkspaceValid(const void* workspace, uint64_t bytes, uint64_t needed) {
  if (needed == 0) return true;
  return workspace != nullptr && reinterpret_cast<uintptr_t>(workspace) % alignof(float) == 0 && bytes >= needed;
}

// One page id of either type; ids outside int64 do not exist.
inline int64_t PageId(const kvstrata_move_args& a, uint64_t index) {
  return a.page_id_type == KVSTRATA_KERNELS_INT64 ? static_cast<const int64_t*>(a.page_ids)[index]
                                                  : static_cast<const int32_t*>(a.page_ids)[index];
}

// True if every page id that rows first_row .. first_row+rows-1 need is -1 or lies in [0, page_limit).
bool PageIdsValid(const kvstrata_move_args& a);

}  // namespace kvstrata::kernels
