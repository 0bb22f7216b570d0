// SPDX-License-Identifier: Apache-2.0
// Prints what shared memory the launches of the CUDA kernels ask for, in the geometry of DeepSeek-V4-Flash and V4-Pro:
// the launches are the library's own, seen by the model of a GPU and not run. For tests/cuda/ptxas_report.py, a line
// each: GEOMETRY KERNEL (mangled) THREADS BYTES MOST, MOST being what the kernel announces as its most.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/functions.h"
#include "kernels/cuda/runs.h"
#include "tests/support/grid_model.h"

namespace kvstrata::kernels::cuda {
namespace {

struct Geometry {
  const char* name;
  uint32_t heads, top_k;
  uint64_t hidden;
};

constexpr uint32_t kWidth = 512, kRopeDims = 64, kWindow = 128, kIndexHeads = 64, kIndexWidth = 128;
constexpr uint32_t kCsaRatio = 4, kHcaRatio = 128;
constexpr uint64_t kTokens = 256, kPosition = 1u << 16;

// An address that nothing looks at: kernels do not run, and shapes are all that a launch is made of.
alignas(4096) unsigned char somewhere[4096];
unsigned char* At(uint64_t offset = 0) { return somewhere + offset; }
template <typename T>
T* Some() {
  return reinterpret_cast<T*>(somewhere);
}

template <typename T>
T Sized() {
  T args{};
  args.struct_size = sizeof args;
  return args;
}

void Ok(int32_t status, const char* what) {
  if (status == kOk) return;
  std::fprintf(stderr, "%s: status %d\n", what, status);
  std::exit(1);
}

void Formats(int32_t element_type, uint64_t offset) {
  auto pack = Sized<kvstrata_pack_rows_args>();
  pack.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  pack.width = kWidth;
  pack.rope_dims = kRopeDims;
  pack.source_type = element_type;
  pack.rows = kTokens;
  pack.source = At(offset);
  pack.codes = pack.rope = pack.scales = At();
  Ok(PackRows(&pack, nullptr), "pack_rows");
  auto unpack = Sized<kvstrata_unpack_rows_args>();
  unpack.format = pack.format;
  unpack.width = kWidth;
  unpack.rope_dims = kRopeDims;
  unpack.destination_type = element_type;
  unpack.rows = kTokens;
  unpack.codes = unpack.rope = unpack.scales = At();
  unpack.destination = At(offset);
  Ok(UnpackRows(&unpack, nullptr), "unpack_rows");
  auto quantize = Sized<kvstrata_quantize_args>();
  quantize.format = pack.format;
  quantize.width = kWidth;
  quantize.rope_dims = kRopeDims;
  quantize.rows = kTokens;
  quantize.values = reinterpret_cast<float*>(At(2 * offset));
  Ok(QuantizeDequantize(&quantize, nullptr), "quantize_dequantize");
}

void Rows() {
  Formats(KVSTRATA_KERNELS_BF16, 0);
  Formats(KVSTRATA_KERNELS_BF16, 2);  // two channels at a time
  auto convert = Sized<kvstrata_convert_args>();
  convert.count = kTokens * kWidth;
  convert.source = At();
  convert.destination = At();
  Ok(ConvertF32ToBf16(&convert, nullptr), "f32_to_bf16");
  auto hadamard = Sized<kvstrata_hadamard_args>();
  hadamard.profile = KVSTRATA_KERNELS_PROFILE_Q;
  hadamard.width = kIndexWidth;
  hadamard.rows = kTokens;
  hadamard.values = Some<float>();
  Ok(Hadamard(&hadamard, nullptr), "hadamard");
  auto norm = Sized<kvstrata_rms_norm_args>();
  norm.profile = KVSTRATA_KERNELS_PROFILE_Q;
  norm.width = kWidth;
  norm.rows = kTokens;
  norm.source = Some<float>();
  norm.destination = Some<float>();
  Ok(RmsNorm(&norm, nullptr), "rms_norm");
}

void Positions(const Geometry& g) {
  auto frequencies = Sized<kvstrata_rope_frequencies_args>();
  frequencies.rope_dims = kRopeDims;
  frequencies.theta = 10'000;
  frequencies.frequencies = Some<float>();
  Ok(RopeFrequencies(&frequencies, nullptr), "rope_frequencies");
  auto rope = Sized<kvstrata_rope_args>();
  rope.profile = KVSTRATA_KERNELS_PROFILE_Q;
  rope.heads = g.heads;
  rope.width = kWidth;
  rope.rope_dims = kRopeDims;
  rope.tokens = kTokens;
  rope.position_step = 1;
  rope.values = Some<float>();
  rope.frequencies = Some<float>();
  Ok(Rope(&rope, nullptr), "rope");
}

void Compressor(uint32_t ratio, uint32_t flags) {
  auto args = Sized<kvstrata_compress_args>();
  args.profile = KVSTRATA_KERNELS_PROFILE_Q;
  args.pool_flags = flags;
  args.ratio = ratio;
  args.width = kWidth;
  args.rope_dims = kRopeDims;
  args.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  args.input_type = KVSTRATA_KERNELS_BF16;
  args.output_type = KVSTRATA_KERNELS_F32;
  args.eps = 1e-6f;
  args.tokens = kTokens;
  args.values = args.gates = At();
  args.prev_values = args.prev_gates = args.open_values = args.open_gates = Some<float>();
  args.frequencies = Some<float>();
  args.norm_weight = Some<float>();
  args.entries = At();
  args.entry_capacity = kTokens;
  args.workspace = At();
  args.workspace_bytes = UINT64_MAX;
  Ok(Compress(&args, nullptr), "compress");
}

void Movement() {
  const kvstrata_segment segment{0, 0, 64, 64};
  auto move = Sized<kvstrata_move_args>();
  move.page_id_type = KVSTRATA_KERNELS_INT32;
  move.rows = kTokens;
  move.rows_per_page = 64;
  move.page_ids = At();
  move.page_id_count = kTokens;
  move.pages = At();
  move.page_stride_bytes = 64 * 64;
  move.block = At();
  move.block_stride_bytes = 64;
  move.segments = &segment;
  move.segment_count = 1;
  Ok(GatherRows(&move, nullptr), "gather_rows");
  Ok(ScatterRows(&move, nullptr), "scatter_rows");
  auto window = Sized<kvstrata_window_args>();
  window.row_bytes = 584;
  window.capacity = kWindow;
  window.rows = kWindow;
  window.ring = window.linear = At();
  Ok(WindowAppend(&window, nullptr), "window_append");
  Ok(WindowExport(&window, nullptr), "window_export");
  Ok(MoveRuns(Some<const Run>(), 1, nullptr), "runs");
}

void Selection(const Geometry& g, int32_t query_type) {
  auto scores = Sized<kvstrata_index_scores_args>();
  scores.heads = kIndexHeads;
  scores.width = kIndexWidth;
  scores.ratio = kCsaRatio;
  scores.tokens = kTokens;
  scores.first_position = kPosition;
  scores.entries = kPosition / kCsaRatio;
  scores.queries = scores.keys = At();
  scores.query_type = query_type;
  scores.key_type = KVSTRATA_KERNELS_BF16;
  scores.weights = Some<float>();
  scores.scores = Some<float>();
  Ok(IndexScores(&scores, nullptr), "index_scores");
  auto topk = Sized<kvstrata_topk_args>();
  topk.k = g.top_k;
  topk.ratio = kCsaRatio;
  topk.tokens = kTokens;
  topk.first_position = kPosition;
  topk.entries = kPosition / kCsaRatio;
  topk.scores = Some<float>();
  topk.indices = Some<int32_t>();
  Ok(TopK(&topk, nullptr), "topk");
}

void Attend(const Geometry& g, int32_t query_type, uint64_t tokens) {
  auto args = Sized<kvstrata_attention_args>();
  args.profile = KVSTRATA_KERNELS_PROFILE_Q;
  args.heads = g.heads;
  args.width = kWidth;
  args.rope_dims = kRopeDims;
  args.window = kWindow;
  args.ratio = kCsaRatio;
  args.pick_count = g.top_k;
  args.tokens = tokens;
  args.first_position = kPosition;
  args.queries = args.window_kv = At();
  args.query_type = query_type;
  args.window_type = KVSTRATA_KERNELS_BF16;
  args.window_first = kPosition + 1 - kWindow;
  args.window_rows = kWindow + tokens;
  args.entry_count = (kPosition + tokens) / kCsaRatio;
  args.entry_format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  args.packed_entries = {At(), 576, At(), 576, At(), 8};
  args.picks = Some<int32_t>();
  args.output = At();
  args.workspace = At();
  Ok(AttentionWorkspaceBytes(&args, &args.workspace_bytes), "attention_workspace_bytes");
  Ok(Attention(&args, nullptr), "attention");
}

void Products(const Geometry& g) {
  auto args = Sized<kvstrata_project_args>();
  args.tokens = kTokens;
  args.inputs = g.hidden;
  args.outputs = kWidth;
  args.x = Some<float>();
  args.weights = At();
  args.y = Some<float>();
  Ok(Project(&args, nullptr), "project");
  Ok(RoundRows(Some<float>(), kWidth, kTokens, kWidth, nullptr), "rounding");
}

void All(const Geometry& g) {
  kvstrata::test::OnLaunch([&g](const Grid& grid, const ModelKernel& kernel) {
    std::printf("%s %s %u %u %u\n", g.name, kernel.name, kernel.threads, grid.shared_bytes, kernel.most_shared_bytes);
  });
  kvstrata::test::SetMultiprocessors(132);
  Rows();
  Positions(g);
  Compressor(kCsaRatio, KVSTRATA_KERNELS_POOL_OVERLAP);
  Compressor(kHcaRatio, 0);
  Compressor(1, 0);
  Movement();
  for (const int32_t type : {KVSTRATA_KERNELS_BF16, KVSTRATA_KERNELS_F32}) {
    Selection(g, type);
    Attend(g, type, kTokens);
    Attend(g, type, 1);
  }
  Products(g);
}

}  // namespace
}  // namespace kvstrata::kernels::cuda

int main() {
  kvstrata::kernels::cuda::All({"V4-Flash", 64, 512, 4096});
  kvstrata::kernels::cuda::All({"V4-Pro", 128, 1024, 7168});
}
