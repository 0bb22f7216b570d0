// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"

namespace kvstrata::kernels::cuda {
namespace {

// On the host: shapes are not data.
int32_t PackedShape(kvstrata_packed_shape* shape) {
  kvstrata_packed_shape filled;
  if (const int32_t status = Prepare(shape, filled); status != kOk) return status;
  filled.struct_size = shape->struct_size;
  std::memcpy(shape, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
  return kOk;
}

kvstrata_kernels MakeTable() {
  kvstrata_kernels table = *stub::Table();
  table.name = "cuda";
  table.packed_shape = PackedShape;
  table.pack_rows = PackRows;
  table.unpack_rows = UnpackRows;
  table.quantize_dequantize = QuantizeDequantize;
  table.f32_to_bf16 = ConvertF32ToBf16;
  table.bf16_to_f32 = ConvertBf16ToF32;
  table.bf16_round = ConvertRoundBf16;
  table.hadamard = Hadamard;
  table.rope_frequencies = RopeFrequencies;
  table.rope = Rope;
  table.rms_norm = RmsNorm;
  table.csa_pool = CsaPool;
  table.hca_pool = HcaPool;
  table.emit_entries = EmitEntries;
  table.compress = Compress;
  table.compress_workspace_bytes = CompressWorkspaceBytes;
  table.window_append = WindowAppend;
  table.window_import = WindowImport;
  table.window_export = WindowExport;
  table.index_scores = IndexScores;
  table.index_scores_workspace_bytes = IndexScoresWorkspaceBytes;
  table.topk = TopK;
  table.topk_workspace_bytes = TopKWorkspaceBytes;
  table.attention = Attention;
  table.attention_workspace_bytes = AttentionWorkspaceBytes;
  table.project = Project;
  table.project_workspace_bytes = ProjectWorkspaceBytes;
  table.gather_rows = GatherRows;
  table.scatter_rows = ScatterRows;
  return table;
}

}  // namespace

const kvstrata_kernels* Table() {
  static const kvstrata_kernels kTable = MakeTable();
  return &kTable;
}

}  // namespace kvstrata::kernels::cuda
