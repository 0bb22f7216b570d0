// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/functions.h"

namespace kvstrata::kernels::reference {

const kvstrata_kernels* Table() {
  static constexpr kvstrata_kernels kTable = {
      .struct_size = sizeof(kvstrata_kernels),
      .level = KVSTRATA_KERNELS_LEVEL_REFERENCE,
      .name = "reference",
      .packed_shape = PackedShape,
      .pack_rows = PackRows,
      .unpack_rows = UnpackRows,
      .quantize_dequantize = QuantizeDequantize,
      .f32_to_bf16 = ConvertF32ToBf16,
      .bf16_to_f32 = ConvertBf16ToF32,
      .bf16_round = ConvertRoundBf16,
      .hadamard = Hadamard,
      .rope_frequencies = RopeFrequencies,
      .rope = Rope,
      .rms_norm = RmsNorm,
      .csa_pool = CsaPool,
      .hca_pool = HcaPool,
      .emit_entries = EmitEntries,
      .compress = Compress,
      .compress_workspace_bytes = CompressWorkspaceBytes,
      .window_append = WindowAppend,
      .window_import = WindowImport,
      .window_export = WindowExport,
      .index_scores = IndexScores,
      .index_scores_workspace_bytes = IndexScoresWorkspaceBytes,
      .topk = TopK,
      .topk_workspace_bytes = TopKWorkspaceBytes,
      .attention = Attention,
      .attention_workspace_bytes = AttentionWorkspaceBytes,
      .gather_rows = GatherRows,
      .scatter_rows = ScatterRows,
      .project = Project,
      .project_workspace_bytes = ProjectWorkspaceBytes,
  };
  return &kTable;
}

}  // namespace kvstrata::kernels::reference
