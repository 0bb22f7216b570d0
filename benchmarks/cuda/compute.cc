// SPDX-License-Identifier: Apache-2.0
// What computes on a GPU against what bounds it there: compressors and top-k against a pass that reads their input,
// index scores against cuBLAS's bf16 product of the same shape, sparse attention against the rate of a large product.
// Each kernel's result is compared with the CPU's on a part of the work.
#include <algorithm>
#include <cmath>
#include <random>

#include "benchmarks/cuda/gpu.h"

namespace kvstrata::benchmarks {
namespace {

const kvstrata_kernels* gpu = nullptr;
const kvstrata_kernels* cpu = nullptr;
kvstrata_cuda_projector* blas = nullptr;

std::vector<float> Normal(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> few(1u << 16);
  for (float& value : few) value = normal(random);
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = few[(i * 40503 + i / few.size() * 7) % few.size()];
  return values;
}

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  auto args = Args<kvstrata_convert_args>();
  args.count = values.size();
  args.source = values.data();
  args.destination = out.data();
  Ok(cpu->f32_to_bf16(&args, nullptr), "f32_to_bf16");
  return out;
}

void Near(const std::vector<float>& got, const std::vector<float>& want, double tolerance, const char* what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const bool both = std::isinf(want[i]) && got[i] == want[i];
    if (!both && !(std::fabs(got[i] - want[i]) <= tolerance * (1 + std::fabs(want[i])))) {
      FailGpu(std::string(what) + " differs from the CPU's at " + std::to_string(i));
    }
  }
}

// ---- compressors -------------------------------------------------------------------------------------------------

struct Compressor {
  const char* name;
  uint32_t ratio;
  uint32_t flags;
  int32_t type;
};

constexpr uint32_t kWidth = 512;
constexpr uint32_t kRopeDims = 64;

struct Planes {
  const void *values, *gates;
  float *prev_values, *prev_gates, *open_values, *open_gates;
  const float* frequencies;
  float* entries;
  void* workspace;
};

kvstrata_compress_args CompressArgs(const Compressor& c, uint64_t tokens, const Planes& planes) {
  auto args = Args<kvstrata_compress_args>();
  args.profile = KVSTRATA_KERNELS_PROFILE_F;
  args.pool_flags = c.flags;
  args.ratio = c.ratio;
  args.width = kWidth;
  args.rope_dims = kRopeDims;
  args.input_type = c.type;
  args.output_type = KVSTRATA_KERNELS_F32;
  args.eps = 1e-6f;
  args.tokens = tokens;
  args.values = planes.values;
  args.gates = planes.gates;
  args.prev_values = planes.prev_values;
  args.prev_gates = planes.prev_gates;
  args.open_values = planes.open_values;
  args.open_gates = planes.open_gates;
  args.frequencies = planes.frequencies;
  args.entries = planes.entries;
  args.entry_capacity = tokens / c.ratio;
  args.workspace = planes.workspace;
  return args;
}

std::vector<float> Frequencies() {
  std::vector<float> frequencies(kRopeDims / 2);
  auto args = Args<kvstrata_rope_frequencies_args>();
  args.rope_dims = kRopeDims;
  args.theta = 10000;
  args.frequencies = frequencies.data();
  Ok(cpu->rope_frequencies(&args, nullptr), "rope_frequencies");
  return frequencies;
}

// The first entries, of as many tokens, on the CPU.
std::vector<float> CompressedOnHost(const Compressor& c, uint64_t tokens, const void* values, const void* gates) {
  const uint64_t channels = (c.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0 ? 2 * kWidth : kWidth;
  std::vector<float> state(4 * c.ratio * channels), entries(tokens / c.ratio * kWidth);
  const std::vector<float> frequencies = Frequencies();
  float* at = state.data();
  const uint64_t part = c.ratio * channels;
  kvstrata_compress_args args = CompressArgs(
      c, tokens,
      {values, gates, at, at + part, at + 2 * part, at + 3 * part, frequencies.data(), entries.data(), nullptr});
  Ok(cpu->compress_workspace_bytes(&args, &args.workspace_bytes), "compress_workspace_bytes");
  std::vector<float> workspace(args.workspace_bytes / sizeof(float) + 1);
  args.workspace = workspace.data();
  Ok(cpu->compress(&args, nullptr), "compress on the CPU");
  return entries;
}

void MeasureCompressor(const Compressor& c) {
  constexpr uint64_t kTokens = 65'536;
  constexpr uint64_t kChecked = 1024;
  const uint64_t channels = (c.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0 ? 2 * kWidth : kWidth;
  const std::vector<float> values = Normal(kTokens * channels, 1);
  const std::vector<float> gates = Normal(kTokens * channels, 2);
  const bool bf16 = c.type == KVSTRATA_KERNELS_BF16;
  const std::vector<uint16_t> narrow_values = bf16 ? ToBf16(values) : std::vector<uint16_t>();
  const std::vector<uint16_t> narrow_gates = bf16 ? ToBf16(gates) : std::vector<uint16_t>();
  const uint64_t bytes = kTokens * channels * (bf16 ? 2 : 4);
  const DeviceMemory inputs = Allocate(2 * bytes);
  auto* at = static_cast<std::byte*>(inputs.get());
  ToDevice(at, bf16 ? static_cast<const void*>(narrow_values.data()) : values.data(), bytes);
  ToDevice(at + bytes, bf16 ? static_cast<const void*>(narrow_gates.data()) : gates.data(), bytes);
  const uint64_t part = c.ratio * channels;
  const DeviceMemory state = Upload(std::vector<float>(4 * part));
  const DeviceMemory frequencies = Upload(Frequencies());
  const DeviceMemory entries = Allocate(kTokens / c.ratio * kWidth * sizeof(float));
  auto* s = static_cast<float*>(state.get());
  kvstrata_compress_args args =
      CompressArgs(c, kTokens,
                   {at, at + bytes, s, s + part, s + 2 * part, s + 3 * part, static_cast<float*>(frequencies.get()),
                    static_cast<float*>(entries.get()), nullptr});
  Ok(gpu->compress_workspace_bytes(&args, &args.workspace_bytes), "compress_workspace_bytes");
  const DeviceMemory workspace = Allocate(args.workspace_bytes);
  args.workspace = workspace.get();
  const DeviceMemory sum = Allocate(sizeof(uint32_t));
  PrintDevicePairs(
      c.name, ">=0.7", [&] { Ok(gpu->compress(&args, nullptr), "compress"); },
      [&] { ReadPass(inputs.get(), 2 * bytes, static_cast<uint32_t*>(sum.get())); }, true);
  const std::vector<float> want = bf16 ? CompressedOnHost(c, kChecked, narrow_values.data(), narrow_gates.data())
                                       : CompressedOnHost(c, kChecked, values.data(), gates.data());
  Near(Download<float>(entries.get(), want.size()), want, 1e-4, c.name);
}

// ---- selection ---------------------------------------------------------------------------------------------------

void MeasureTopK() {
  constexpr uint64_t kQueries = 264, kEntries = 262'144;
  constexpr uint32_t kChosen = 512;
  const std::vector<float> scores = Normal(kQueries * kEntries, 4);
  const DeviceMemory device_scores = Upload(scores);
  const DeviceMemory indices = Allocate(kQueries * kChosen * sizeof(int32_t));
  auto args = Args<kvstrata_topk_args>();
  args.k = kChosen;
  args.ratio = 4;
  args.tokens = kQueries;
  args.first_position = 4 * kEntries;
  args.entries = kEntries;
  args.scores = static_cast<const float*>(device_scores.get());
  args.indices = static_cast<int32_t*>(indices.get());
  uint64_t needed = 0;
  Ok(gpu->topk_workspace_bytes(&args, &needed), "topk_workspace_bytes");
  const DeviceMemory workspace = Allocate(std::max<uint64_t>(needed, 1));
  args.workspace = workspace.get();
  args.workspace_bytes = needed;
  const DeviceMemory sum = Allocate(sizeof(uint32_t));
  PrintDevicePairs(
      "cuda_topk_over_read_pass", "<=3", [&] { Ok(gpu->topk(&args, nullptr), "topk"); },
      [&] { ReadPass(device_scores.get(), scores.size() * sizeof(float), static_cast<uint32_t*>(sum.get())); }, false);
  constexpr uint64_t kChecked = 4;
  std::vector<int32_t> want(kChecked * kChosen);
  args.tokens = kChecked;
  args.scores = scores.data();
  args.indices = want.data();
  Ok(cpu->topk_workspace_bytes(&args, &args.workspace_bytes), "topk_workspace_bytes");
  std::vector<uint64_t> host(args.workspace_bytes / 8 + 1);
  args.workspace = host.data();
  Ok(cpu->topk(&args, nullptr), "topk on the CPU");
  if (Download<int32_t>(indices.get(), want.size()) != want) FailGpu("the chosen differ from the CPU's");
}

// y = x w^T by cuBLAS, all in device memory of its own.
class Product {
 public:
  Product(uint64_t rows, uint64_t depth, uint64_t columns, const void* x, const void* weights)
      : y_(Allocate(rows * columns * 4)) {
    args_ = Args<kvstrata_project_args>();
    args_.x_type = args_.weight_type = KVSTRATA_KERNELS_BF16;
    args_.tokens = rows;
    args_.inputs = depth;
    args_.outputs = columns;
    args_.x = static_cast<const float*>(x);
    args_.weights = weights;
    args_.y = static_cast<float*>(y_.get());
    Ok(kvstrata_cuda_projector_workspace_bytes(blas, &args_, &args_.workspace_bytes, nullptr), "cuBLAS's workspace");
    workspace_ = Allocate(args_.workspace_bytes);
    args_.workspace = workspace_.get();
  }
  void Queue() const { Ok(kvstrata_cuda_projector_project(blas, &args_, nullptr, nullptr), "cuBLAS"); }

 private:
  kvstrata_project_args args_{};
  DeviceMemory y_, workspace_;
};

void MeasureScores() {
  constexpr uint64_t kQueries = 64, kHeads = 64, kDims = 128, kEntries = 65'536;
  const std::vector<float> floats = Normal(kQueries * kHeads * kDims, 5);
  const std::vector<uint16_t> queries = ToBf16(floats);
  const std::vector<uint16_t> keys = ToBf16(Normal(kEntries * kDims, 6));
  const std::vector<float> weights = Normal(kQueries * kHeads, 7);
  const DeviceMemory q = Upload(queries), k = Upload(keys), w = Upload(weights);
  const DeviceMemory scores = Allocate(kQueries * kEntries * sizeof(float));
  auto args = Args<kvstrata_index_scores_args>();
  args.heads = kHeads;
  args.width = kDims;
  args.ratio = 4;
  args.tokens = kQueries;
  args.first_position = 4 * kEntries;
  args.entries = kEntries;
  args.queries = q.get();
  args.query_type = args.key_type = KVSTRATA_KERNELS_BF16;
  args.keys = k.get();
  args.weights = static_cast<const float*>(w.get());
  args.scores = static_cast<float*>(scores.get());
  const Product product(kQueries * kHeads, kDims, kEntries, q.get(), k.get());
  PrintDevicePairs(
      "cuda_scores_of_cublas_bf16", ">=0.5", [&] { Ok(gpu->index_scores(&args, nullptr), "index_scores"); },
      [&] { product.Queue(); }, true);
  constexpr uint64_t kChecked = 2048;
  std::vector<float> want(kChecked);
  args.tokens = 1;
  args.entries = kChecked;
  args.queries = queries.data();
  args.keys = keys.data();
  args.weights = weights.data();
  args.scores = want.data();
  Ok(cpu->index_scores_workspace_bytes(&args, &args.workspace_bytes), "index_scores_workspace_bytes");
  std::vector<float> host(args.workspace_bytes / sizeof(float) + 1);
  args.workspace = host.data();
  Ok(cpu->index_scores(&args, nullptr), "index_scores on the CPU");
  Near(Download<float>(scores.get(), want.size()), want, 1e-3, "index scores");
}

// ---- attention ---------------------------------------------------------------------------------------------------

constexpr uint64_t kHeads = 64, kQueries = 512, kEntries = 32'768, kPicks = 512, kWindow = 128;

struct AttentionData {
  const void *queries, *window, *entries;
  const int32_t* picks;
  const float *sinks, *frequencies;
  void* output;
};

kvstrata_attention_args AttentionArgs(const AttentionData& data, uint64_t tokens) {
  auto args = Args<kvstrata_attention_args>();
  args.profile = KVSTRATA_KERNELS_PROFILE_Q;
  args.flags = KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE;
  args.heads = kHeads;
  args.width = kWidth;
  args.rope_dims = kRopeDims;
  args.window = kWindow;
  args.ratio = 4;
  args.pick_count = kPicks;
  args.tokens = tokens;
  args.first_position = 4 * kEntries;
  args.queries = data.queries;
  args.query_type = args.window_type = args.entry_type = KVSTRATA_KERNELS_BF16;
  args.window_kv = data.window;
  args.window_first = 4 * kEntries + 1 - kWindow;
  args.window_rows = kWindow + kQueries;
  args.entries = data.entries;
  args.entry_count = kEntries;
  args.picks = data.picks;
  args.sinks = data.sinks;
  args.frequencies = data.frequencies;
  args.output = data.output;
  args.output_type = KVSTRATA_KERNELS_F32;
  return args;
}

void MeasureAttention() {
  constexpr uint64_t kSide = 8192;
  const std::vector<uint16_t> queries = ToBf16(Normal(kQueries * kHeads * kWidth, 8));
  const std::vector<uint16_t> window = ToBf16(Normal((kWindow + kQueries) * kWidth, 9));
  const std::vector<uint16_t> entries = ToBf16(Normal(kEntries * kWidth, 10));
  std::mt19937 random(11);
  std::vector<int32_t> picks(kQueries * kPicks);
  for (int32_t& pick : picks) pick = static_cast<int32_t>(random() % kEntries);
  const std::vector<float> sinks(kHeads, 0.5f), frequencies = Frequencies();
  const DeviceMemory q = Upload(queries), r = Upload(window), e = Upload(entries), p = Upload(picks);
  const DeviceMemory s = Upload(sinks), f = Upload(frequencies);
  const DeviceMemory output = Allocate(kQueries * kHeads * kWidth * sizeof(float));
  const kvstrata_attention_args args =
      AttentionArgs({q.get(), r.get(), e.get(), static_cast<int32_t*>(p.get()), static_cast<float*>(s.get()),
                     static_cast<float*>(f.get()), output.get()},
                    kQueries);
  const DeviceMemory square = Upload(ToBf16(Normal(kSide * kSide, 12)));
  const Product product(kSide, kSide, kSide, square.get(), square.get());
  // Products and additions of both, so that the reference's time is that of attention's at cuBLAS's rate.
  const double flops = 4.0 * kQueries * kHeads * (kWindow + kPicks) * kWidth;
  PrintDevicePairs(
      "cuda_attention_of_bf16_peak", ">=0.4", [&] { Ok(gpu->attention(&args, nullptr), "attention"); },
      [&] { product.Queue(); }, true, flops / (2.0 * kSide * kSide * kSide));
  std::vector<float> want(kHeads * kWidth);
  kvstrata_attention_args host = AttentionArgs(
      {queries.data(), window.data(), entries.data(), picks.data(), sinks.data(), frequencies.data(), want.data()}, 1);
  Ok(cpu->attention_workspace_bytes(&host, &host.workspace_bytes), "attention_workspace_bytes");
  std::vector<float> workspace(host.workspace_bytes / sizeof(float) + 1);
  host.workspace = workspace.data();
  Ok(cpu->attention(&host, nullptr), "attention on the CPU");
  // Outputs are some hundredths; roundings to bf16, of which there are three, are some ten-thousandths of that size.
  const std::vector<float> first = Download<float>(output.get(), want.size());
  Near(first, want, 0x1p-9, "attention");

  // One query, by as many blocks as the workspace lets it have and by one: both must give the very floats of above.
  kvstrata_attention_args one = args;
  one.tokens = 1;
  kvstrata_attention_args split = one;
  Ok(gpu->attention_workspace_bytes(&split, &split.workspace_bytes), "attention_workspace_bytes");
  const DeviceMemory logits = Allocate(std::max<uint64_t>(split.workspace_bytes, 1));
  split.workspace = logits.get();
  const auto run = [&](const kvstrata_attention_args& query) { Ok(gpu->attention(&query, nullptr), "attention"); };
  for (const kvstrata_attention_args& query : {one, split}) {
    ToDevice(output.get(), std::vector<float>(first.size()).data(), first.size() * sizeof(float));
    run(query);
    if (Download<float>(output.get(), first.size()) != first) FailGpu("one query's floats are not those of many");
  }
  PrintDevicePairs(
      "cuda_attention_of_one_query_split_over_one_block", ">=2", [&] { run(split); }, [&] { run(one); }, true);
}

void Run() {
  NeedDevice();
  Ok(kvstrata_cuda_kernels(0, &gpu, nullptr), "kvstrata_cuda_kernels");
  cpu = kvstrata_kernels_get(KVSTRATA_KERNELS_LEVEL_AUTO);
  MeasureCompressor({"cuda_csa_f32_of_read_pass", 4, KVSTRATA_KERNELS_POOL_OVERLAP, KVSTRATA_KERNELS_F32});
  MeasureCompressor({"cuda_csa_bf16_of_read_pass", 4, KVSTRATA_KERNELS_POOL_OVERLAP, KVSTRATA_KERNELS_BF16});
  MeasureCompressor({"cuda_hca_f32_of_read_pass", 128, 0, KVSTRATA_KERNELS_F32});
  MeasureCompressor({"cuda_hca_bf16_of_read_pass", 128, 0, KVSTRATA_KERNELS_BF16});
  MeasureTopK();
  const kvstrata_status made = kvstrata_cuda_projector_create(nullptr, &blas, nullptr);
  if (made == KVSTRATA_E_UNSUPPORTED) {
    std::puts("skipped: no cuBLAS, so index scores and attention have nothing to be measured against");
    return;
  }
  Ok(made, "cuBLAS");
  MeasureScores();
  MeasureAttention();
  kvstrata_cuda_projector_destroy(blas);
}

}  // namespace
}  // namespace kvstrata::benchmarks

int main() { kvstrata::benchmarks::Run(); }
