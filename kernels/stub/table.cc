// SPDX-License-Identifier: Apache-2.0
// The table of a level that this build lacks (CUDA, when it is off): complete, so that a caller that holds it by
// mistake gets a status instead of a null call.
#include "kernels/kernel_api.h"

namespace kvstrata::kernels::stub {
namespace {

template <typename... Arguments>
int32_t Unsupported(Arguments...) {
  return kUnsupported;
}

}  // namespace

const kvstrata_kernels* Table() {
  static constexpr kvstrata_kernels kTable = {
      .struct_size = sizeof(kvstrata_kernels),
      .level = KVSTRATA_KERNELS_LEVEL_CUDA,
      .name = "stub",
      .packed_shape = Unsupported,
      .pack_rows = Unsupported,
      .unpack_rows = Unsupported,
      .quantize_dequantize = Unsupported,
      .f32_to_bf16 = Unsupported,
      .bf16_to_f32 = Unsupported,
      .bf16_round = Unsupported,
      .hadamard = Unsupported,
      .rope_frequencies = Unsupported,
      .rope = Unsupported,
      .rms_norm = Unsupported,
      .csa_pool = Unsupported,
      .hca_pool = Unsupported,
      .emit_entries = Unsupported,
      .compress = Unsupported,
      .compress_workspace_bytes = Unsupported,
      .window_append = Unsupported,
      .window_import = Unsupported,
      .window_export = Unsupported,
      .index_scores = Unsupported,
      .index_scores_workspace_bytes = Unsupported,
      .topk = Unsupported,
      .topk_workspace_bytes = Unsupported,
      .attention = Unsupported,
      .attention_workspace_bytes = Unsupported,
      .gather_rows = Unsupported,
      .scatter_rows = Unsupported,
      .project = Unsupported,
      .project_workspace_bytes = Unsupported,
  };
  return &kTable;
}

}  // namespace kvstrata::kernels::stub
