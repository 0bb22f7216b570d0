// SPDX-License-Identifier: Apache-2.0
// The reference functions of the table, and the per-row steps that the composed ones (emit_entries) share.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#pragma once

#include "kernels/kernel_api.h"

namespace kvstrata::kernels::reference {

int32_t PackedShape(kvstrata_packed_shape* shape);
int32_t PackRows(const kvstrata_pack_rows_args* args, void* stream);
int32_t UnpackRows(const kvstrata_unpack_rows_args* args, void* stream);
int32_t QuantizeDequantize(const kvstrata_quantize_args* args, void* stream);
int32_t ConvertF32ToBf16(const kvstrata_convert_args* args, void* stream);
int32_t ConvertBf16ToF32(const kvstrata_convert_args* args, void* stream);
int32_t ConvertRoundBf16(const kvstrata_convert_args* args, void* stream);
int32_t Hadamard(const kvstrata_hadamard_args* args, void* stream);
int32_t RopeFrequencies(const kvstrata_rope_frequencies_args* args, void* stream);
int32_t Rope(const kvstrata_rope_args* args, void* stream);
int32_t RmsNorm(const kvstrata_rms_norm_args* args, void* stream);
int32_t CsaPool(const kvstrata_pool_args* args, void* stream);
int32_t HcaPool(const kvstrata_pool_args* args, void* stream);
int32_t EmitEntries(const kvstrata_emit_entries_args* args, void* stream);
int32_t Compress(const kvstrata_compress_args* args, void* stream);
int32_t CompressWorkspaceBytes(const kvstrata_compress_args* args, uint64_t* out_bytes);
int32_t WindowAppend(const kvstrata_window_args* args, void* stream);
int32_t WindowImport(const kvstrata_window_args* args, void* stream);
int32_t WindowExport(const kvstrata_window_args* args, void* stream);
int32_t IndexScores(const kvstrata_index_scores_args* args, void* stream);
int32_t IndexScoresWorkspaceBytes(const kvstrata_index_scores_args* args, uint64_t* out_bytes);
int32_t TopK(const kvstrata_topk_args* args, void* stream);
int32_t TopKWorkspaceBytes(const kvstrata_topk_args* args, uint64_t* out_bytes);
int32_t Attention(const kvstrata_attention_args* args, void* stream);
int32_t AttentionWorkspaceBytes(const kvstrata_attention_args* args, uint64_t* out_bytes);
int32_t GatherRows(const kvstrata_move_args* args, void* stream);
int32_t ScatterRows(const kvstrata_move_args* args, void* stream);
int32_t Project(const kvstrata_project_args* args, void* stream);
int32_t ProjectWorkspaceBytes(const kvstrata_project_args* args, uint64_t* out_bytes);

// Profiles Q and S have rounding points, F has none.
inline bool Rounds(int32_t profile) { return profile != KVSTRATA_KERNELS_PROFILE_F; }

// A row from or to an element type; `begin` counts elements. bf16 is widened exactly and rounded to.
void LoadRow(const void* rows, int32_t type, uint64_t begin, uint64_t width, float* row);
void StoreRow(const float* row, int32_t type, uint64_t begin, uint64_t width, void* rows);
// Row `row` of packed planes whose strides are filled in.
void UnpackRow(int32_t format, const kvstrata_packed_planes& planes, uint64_t row, uint32_t width, uint32_t rope_dims,
               float* values);
// One row each; `round` rounds the result to bf16. In place, but for NormRow, which may be.
void RoundRow(float* row, uint64_t width);
void QuantizeRow(int32_t format, float* row, uint32_t width, uint32_t rope_dims);
void HadamardRow(float* row, uint32_t width, bool round);
void NormRow(const float* source, const float* weight, float eps, uint32_t width, bool round, float* destination);
// `pairs` is the first rotated channel.
void RopeRow(float* pairs, const float* frequencies, uint32_t rope_dims, int64_t position, bool inverse, bool round);

// One pooled row to a stored one, in place; `a` has passed Prepare.
void EmitRow(const kvstrata_emit_entries_args& a, int64_t position, float* row);

}  // namespace kvstrata::kernels::reference
