// SPDX-License-Identifier: Apache-2.0
// The CUDA level's functions of the table. Pointers in argument structs are device pointers, but for the structs
// themselves and a move's `segments`, which are read before the call returns.
//
// What lies in device memory cannot be looked at before the work is queued: a page id that is negative or not below
// page_limit skips its row, and a pick that is no visible entry its place, where the other levels refuse the call.
//
// Thread rule: any host thread; work is queued on the stream and not waited for.
#pragma once

#include "kernels/kernel_api.h"

namespace kvstrata::kernels::cuda {

const kvstrata_kernels* Table();

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
int32_t Project(const kvstrata_project_args* args, void* stream);
int32_t ProjectWorkspaceBytes(const kvstrata_project_args* args, uint64_t* out_bytes);
int32_t GatherRows(const kvstrata_move_args* args, void* stream);
int32_t ScatterRows(const kvstrata_move_args* args, void* stream);

// Rows of bf16 numbers, widened into tight rows of floats.
struct Bf16Rows {
  const void* data;
  uint64_t stride;
  uint64_t rows;
  uint64_t width;
};
int32_t WidenRows(const Bf16Rows& rows, float* to, void* stream);
// Floats, in place, to the nearest bf16 numbers.
int32_t RoundRows(float* values, uint64_t stride, uint64_t rows, uint64_t width, void* stream);

// Arguments that have passed Prepare.
int32_t PoolTokens(const kvstrata_pool_args& a, void* stream);

}  // namespace kvstrata::kernels::cuda
