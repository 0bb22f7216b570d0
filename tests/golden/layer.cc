// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/catch.hpp"

namespace kvstrata::golden {
namespace {

constexpr float kEps = 1e-6f;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Record& Require(const VectorFile& file, const std::string& name) {
  INFO(name);
  const Record* record = file.Find(name);
  REQUIRE(record != nullptr);
  return *record;
}

uint32_t Size(const VectorFile& file, const std::string& name) {
  return static_cast<uint32_t>(Require(file, "config." + name).ints.at(0));
}

template <typename Args>
Args NewArgs() {
  Args args{};
  args.struct_size = sizeof args;
  return args;
}

// Calls a kernel that needs no workspace.
template <typename Args>
void Run(int32_t (*kernel)(const Args*, void*), const Args& args) {
  REQUIRE(kernel(&args, nullptr) == KVSTRATA_KERNELS_OK);
}

// Calls a kernel with the workspace that it asks for.
template <typename Args>
void Run(int32_t (*kernel)(const Args*, void*), int32_t (*workspace_bytes)(const Args*, uint64_t*), Args args) {
  uint64_t bytes = 0;
  REQUIRE(workspace_bytes(&args, &bytes) == KVSTRATA_KERNELS_OK);
  std::vector<uint64_t> workspace(bytes / sizeof(uint64_t) + 1);
  args.workspace = workspace.data();
  args.workspace_bytes = bytes;
  Run(kernel, args);
}

}  // namespace

Config::Config(const VectorFile& file)
    : hidden(Size(file, "hidden")),
      heads(Size(file, "heads")),
      width(Size(file, "width")),
      rope_dims(Size(file, "rope_dims")),
      q_rank(Size(file, "q_rank")),
      o_groups(Size(file, "o_groups")),
      o_rank(Size(file, "o_rank")),
      window(Size(file, "window")),
      csa_ratio(Size(file, "csa_ratio")),
      hca_ratio(Size(file, "hca_ratio")),
      index_heads(Size(file, "index_heads")),
      index_width(Size(file, "index_width")),
      top_k(Size(file, "top_k")),
      original_length(Size(file, "original_length")),
      decided_gap(Require(file, "config.decided_gap").floats.at(0)) {
  for (const int32_t kind : Require(file, "config.layer_kinds").ints) {
    layer_kinds.push_back(static_cast<LayerKind>(kind));
  }
}

std::vector<float> Layer::Weight(const VectorFile& file, const std::string& name) const {
  return Require(file, prefix_ + name).floats;
}

Layer::Compressor Layer::LoadCompressor(const VectorFile& file, const std::string& name, uint32_t width) const {
  return {.width = width,
          .channels = kind_ == LayerKind::kCsa ? 2 * width : width,
          .values = Weight(file, name + "kv_proj.weight"),
          .gates = Weight(file, name + "gate_proj.weight"),
          .bias = Weight(file, name + "position_bias"),
          .norm = Weight(file, name + "kv_norm.weight")};
}

Layer::Layer(const VectorFile& file, const Config& config, uint64_t index, const kvstrata_kernels& kernels)
    : config_(config),
      kernels_(kernels),
      prefix_("model.layers." + std::to_string(index) + ".self_attn."),
      kind_(config.layer_kinds.at(index)) {
  const Record& hidden = Require(file, "layers." + std::to_string(index) + ".hidden");
  tokens_ = hidden.shape.at(0);
  hidden_ = hidden.floats;
  frequencies_ =
      Require(file, std::string("config.frequencies.") + (kind_ == LayerKind::kWindow ? "main" : "compress")).floats;
  q_a_ = Weight(file, "q_a_proj.weight");
  q_a_norm_ = Weight(file, "q_a_norm.weight");
  q_b_ = Weight(file, "q_b_proj.weight");
  kv_ = Weight(file, "kv_proj.weight");
  kv_norm_ = Weight(file, "kv_norm.weight");
  sinks_ = Weight(file, "sinks");
  o_a_ = Weight(file, "o_a_proj.weight");
  o_b_ = Weight(file, "o_b_proj.weight");
  if (kind_ == LayerKind::kWindow) return;
  ratio_ = kind_ == LayerKind::kCsa ? config.csa_ratio : config.hca_ratio;
  main_ = LoadCompressor(file, "compressor.", config.width);
  if (kind_ != LayerKind::kCsa) return;
  index_ = LoadCompressor(file, "compressor.indexer.", config.index_width);
  index_q_ = Weight(file, "compressor.indexer.q_b_proj.weight");
  index_weights_ = Weight(file, "compressor.indexer.scorer.weights_proj.weight");
}

CompressorState Layer::NewCompressorState(const Compressor& compressor) const {
  // NaN, so that state which the kernels promise not to read is seen if they do.
  CompressorState state;
  if (compressor.channels != compressor.width) {
    state.prev_values.assign(uint64_t{ratio_} * compressor.width, kNaN);
    state.prev_gates = state.prev_values;
  }
  state.open_values.assign(uint64_t{ratio_} * compressor.channels, kNaN);
  state.open_gates = state.open_values;
  return state;
}

LayerState Layer::NewState() const {
  LayerState state;
  state.ring.assign(uint64_t{config_.window} * config_.width, kNaN);
  state.main = NewCompressorState(main_);
  state.index = NewCompressorState(index_);
  return state;
}

LayerOutput Layer::NewOutput() const {
  LayerOutput output;
  output.q_latent.assign(tokens_ * config_.q_rank, kNaN);
  output.q.assign(tokens_ * config_.heads * config_.width, kNaN);
  output.kv.assign(tokens_ * config_.width, kNaN);
  output.attention = output.q;
  output.attention_unrotated = output.q;
  output.o_a.assign(tokens_ * config_.o_groups * config_.o_rank, kNaN);
  output.output.assign(tokens_ * config_.hidden, kNaN);
  if (kind_ == LayerKind::kCsa) {
    output.scores.assign(tokens_ * entries(), kNaN);
    output.top_k.assign(tokens_ * config_.top_k, -1);
  }
  return output;
}

void Layer::Step(LayerState& state, uint64_t tokens, LayerOutput& output, const Faults& faults) const {
  const uint64_t position = state.position;
  REQUIRE(position + tokens <= tokens_);
  ComputeQueries(position, tokens, output);
  ComputeWindowRows(position, tokens, output);
  if (kind_ != LayerKind::kWindow) Compress(main_, position, tokens, faults, state.main);
  if (kind_ == LayerKind::kCsa) {
    Compress(index_, position, tokens, faults, state.index);
    Select(state, tokens, output);
  }
  Attend(state, tokens, faults, output);
  ProjectOutput(position, tokens, output);

  auto append = NewArgs<kvstrata_window_args>();
  append.row_bytes = config_.width * sizeof(float);
  append.capacity = config_.window;
  append.position = position;
  append.rows = tokens;
  append.ring = state.ring.data();
  append.linear = output.kv.data() + position * config_.width;
  Run(kernels_.window_append, append);
  state.position += tokens;
}

void Layer::Project(const std::vector<float>& weights, uint64_t outputs, const float* x, uint64_t inputs,
                    uint64_t tokens, float* y) const {
  REQUIRE(weights.size() == outputs * inputs);
  auto args = NewArgs<kvstrata_project_args>();
  args.weight_type = KVSTRATA_KERNELS_F32;
  args.tokens = tokens;
  args.inputs = inputs;
  args.outputs = outputs;
  args.x = x;
  args.weights = weights.data();
  args.y = y;
  Run(kernels_.project, kernels_.project_workspace_bytes, args);
}

void Layer::Rotate(uint64_t position, uint64_t tokens, uint32_t heads, uint32_t width, float* rows,
                   bool inverse) const {
  auto args = NewArgs<kvstrata_rope_args>();
  args.profile = KVSTRATA_KERNELS_PROFILE_F;
  args.flags = inverse ? KVSTRATA_KERNELS_ROPE_INVERSE : 0;
  args.heads = heads;
  args.width = width;
  args.rope_dims = config_.rope_dims;
  args.tokens = tokens;
  args.values = rows;
  args.first_position = static_cast<int64_t>(position);
  args.position_step = 1;
  args.frequencies = frequencies_.data();
  Run(kernels_.rope, args);
}

void Layer::ComputeQueries(uint64_t position, uint64_t tokens, LayerOutput& output) const {
  float* latent = output.q_latent.data() + position * config_.q_rank;
  Project(q_a_, config_.q_rank, Hidden(position), config_.hidden, tokens, latent);
  auto norm = NewArgs<kvstrata_rms_norm_args>();
  norm.profile = KVSTRATA_KERNELS_PROFILE_F;
  norm.width = config_.q_rank;
  norm.eps = kEps;
  norm.rows = tokens;
  norm.source = latent;
  norm.weight = q_a_norm_.data();
  norm.destination = latent;
  Run(kernels_.rms_norm, norm);

  float* q = output.q.data() + position * config_.heads * config_.width;
  Project(q_b_, uint64_t{config_.heads} * config_.width, latent, config_.q_rank, tokens, q);
  norm.width = config_.width;
  norm.rows = tokens * config_.heads;
  norm.source = q;
  norm.weight = nullptr;
  norm.destination = q;
  Run(kernels_.rms_norm, norm);
  Rotate(position, tokens, config_.heads, config_.width, q, false);
}

void Layer::ComputeWindowRows(uint64_t position, uint64_t tokens, LayerOutput& output) const {
  float* rows = output.kv.data() + position * config_.width;
  Project(kv_, config_.width, Hidden(position), config_.hidden, tokens, rows);
  auto args = NewArgs<kvstrata_emit_entries_args>();
  args.profile = KVSTRATA_KERNELS_PROFILE_F;
  args.width = config_.width;
  args.rope_dims = config_.rope_dims;
  args.ratio = 1;
  args.eps = kEps;
  args.first_entry = position;
  args.rows = tokens;
  args.pooled = rows;
  args.norm_weight = kv_norm_.data();
  args.frequencies = frequencies_.data();
  args.entries = rows;
  Run(kernels_.emit_entries, args);
}

void Layer::Compress(const Compressor& compressor, uint64_t position, uint64_t tokens, const Faults& faults,
                     CompressorState& state) const {
  std::vector<float> values(tokens * compressor.channels);
  std::vector<float> gates(values.size());
  Project(compressor.values, compressor.channels, Hidden(position), config_.hidden, tokens, values.data());
  Project(compressor.gates, compressor.channels, Hidden(position), config_.hidden, tokens, gates.data());
  // Row s of the rotated table is row s - shift of the bias.
  std::vector<float> bias = compressor.bias;
  const uint64_t shift = faults.position_bias_shift % ratio_ * compressor.channels;
  std::rotate(bias.begin(), bias.end() - static_cast<ptrdiff_t>(shift), bias.end());

  const uint64_t first = position / ratio_;
  const uint64_t emitted = (position + tokens) / ratio_ - first;
  REQUIRE(state.entries.size() == first * compressor.width);
  state.entries.resize((first + emitted) * compressor.width);

  auto pool = NewArgs<kvstrata_pool_args>();
  pool.flags = kind_ == LayerKind::kCsa ? KVSTRATA_KERNELS_POOL_OVERLAP : 0;
  pool.ratio = ratio_;
  pool.width = compressor.width;
  pool.position = position;
  pool.tokens = tokens;
  pool.values = values.data();
  pool.gates = gates.data();
  pool.ape = bias.data();
  pool.prev_values = state.prev_values.data();
  pool.prev_gates = state.prev_gates.data();
  pool.open_values = state.open_values.data();
  pool.open_gates = state.open_gates.data();
  pool.entries = state.entries.data() + first * compressor.width;
  pool.entry_capacity = emitted;
  Run(kind_ == LayerKind::kCsa ? kernels_.csa_pool : kernels_.hca_pool, pool);

  auto emit = NewArgs<kvstrata_emit_entries_args>();
  emit.profile = KVSTRATA_KERNELS_PROFILE_F;
  emit.flags = &compressor == &index_ ? KVSTRATA_KERNELS_EMIT_HADAMARD : 0;  // without effect in profile F
  emit.width = compressor.width;
  emit.rope_dims = config_.rope_dims;
  emit.ratio = ratio_;
  emit.eps = kEps;
  emit.first_entry = first;
  emit.rows = emitted;
  emit.pooled = pool.entries;
  emit.norm_weight = compressor.norm.data();
  emit.frequencies = frequencies_.data();
  emit.entries = pool.entries;
  Run(kernels_.emit_entries, emit);
}

void Layer::Select(const LayerState& state, uint64_t tokens, LayerOutput& output) const {
  const uint64_t position = state.position;
  const uint32_t query_width = config_.index_heads * config_.index_width;
  std::vector<float> queries(tokens * query_width);
  Project(index_q_, query_width, output.q_latent.data() + position * config_.q_rank, config_.q_rank, tokens,
          queries.data());
  Rotate(position, tokens, config_.index_heads, config_.index_width, queries.data(), false);
  std::vector<float> weights(tokens * config_.index_heads);
  Project(index_weights_, config_.index_heads, Hidden(position), config_.hidden, tokens, weights.data());

  auto scores = NewArgs<kvstrata_index_scores_args>();
  scores.heads = config_.index_heads;
  scores.width = config_.index_width;
  scores.ratio = ratio_;
  scores.tokens = tokens;
  scores.first_position = position;
  scores.entries = state.index.entries.size() / config_.index_width;
  scores.queries = queries.data();
  scores.keys = state.index.entries.data();
  scores.weights = weights.data();
  scores.scores = output.scores.data() + position * entries();
  scores.score_stride = entries();
  Run(kernels_.index_scores, kernels_.index_scores_workspace_bytes, scores);

  auto topk = NewArgs<kvstrata_topk_args>();
  topk.k = config_.top_k;
  topk.ratio = ratio_;
  topk.tokens = tokens;
  topk.first_position = position;
  topk.entries = scores.entries;
  topk.scores = scores.scores;
  topk.score_stride = entries();
  topk.indices = output.top_k.data() + position * config_.top_k;
  Run(kernels_.topk, kernels_.topk_workspace_bytes, topk);
}

void Layer::Attend(const LayerState& state, uint64_t tokens, const Faults& faults, LayerOutput& output) const {
  const uint64_t position = state.position;
  const std::vector<float> old_rows = ExportWindow(state);
  std::vector<float> rows = old_rows;
  const float* new_rows = output.kv.data() + position * config_.width;
  rows.insert(rows.end(), new_rows, new_rows + tokens * config_.width);

  auto args = NewArgs<kvstrata_attention_args>();
  args.profile = KVSTRATA_KERNELS_PROFILE_F;
  args.heads = config_.heads;
  args.width = config_.width;
  args.rope_dims = config_.rope_dims;
  args.window = static_cast<uint32_t>(static_cast<int>(config_.window) + faults.window_delta);
  args.ratio = ratio_;
  args.tokens = tokens;
  args.first_position = position;
  args.queries = output.q.data() + position * config_.heads * config_.width;
  args.window_kv = rows.data();
  args.window_first = position - old_rows.size() / config_.width;
  args.window_rows = rows.size() / config_.width;
  args.entries = state.main.entries.data();
  args.entry_count = state.main.entries.size() / config_.width;
  if (kind_ == LayerKind::kCsa) {
    args.picks = output.top_k.data() + position * config_.top_k;
    args.pick_count = config_.top_k;
  }
  args.sinks = sinks_.data();
  args.frequencies = frequencies_.data();
  args.output = output.attention.data() + position * config_.heads * config_.width;
  Run(kernels_.attention, kernels_.attention_workspace_bytes, args);
  args.flags = KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE;
  args.output = output.attention_unrotated.data() + position * config_.heads * config_.width;
  Run(kernels_.attention, kernels_.attention_workspace_bytes, args);
}

void Layer::ProjectOutput(uint64_t position, uint64_t tokens, LayerOutput& output) const {
  const uint64_t head_channels = uint64_t{config_.heads} * config_.width;
  const uint64_t inputs = head_channels / config_.o_groups;
  const uint64_t ranks = uint64_t{config_.o_groups} * config_.o_rank;
  REQUIRE(o_a_.size() == ranks * inputs);
  auto args = NewArgs<kvstrata_project_args>();
  args.weight_type = KVSTRATA_KERNELS_F32;
  args.tokens = tokens;
  args.inputs = inputs;
  args.outputs = config_.o_rank;
  args.x_stride = head_channels;
  args.y_stride = ranks;
  for (uint64_t group = 0; group < config_.o_groups; ++group) {
    args.x = output.attention_unrotated.data() + position * head_channels + group * inputs;
    args.weights = o_a_.data() + group * config_.o_rank * inputs;
    args.y = output.o_a.data() + position * ranks + group * config_.o_rank;
    Run(kernels_.project, kernels_.project_workspace_bytes, args);
  }
  Project(o_b_, config_.hidden, output.o_a.data() + position * ranks, ranks, tokens,
          output.output.data() + position * config_.hidden);
}

std::vector<float> Layer::ExportWindow(const LayerState& state) const {
  const uint64_t count = std::min<uint64_t>(state.position, config_.window - 1);
  std::vector<float> rows(count * config_.width);
  auto args = NewArgs<kvstrata_window_args>();
  args.row_bytes = config_.width * sizeof(float);
  args.capacity = config_.window;
  args.position = state.position - count;
  args.rows = count;
  args.ring = const_cast<float*>(state.ring.data());  // export only reads it
  args.linear = rows.data();
  Run(kernels_.window_export, args);
  return rows;
}

void Layer::ImportWindow(const std::vector<float>& rows, LayerState& state) const {
  const uint64_t count = rows.size() / config_.width;
  auto args = NewArgs<kvstrata_window_args>();
  args.row_bytes = config_.width * sizeof(float);
  args.capacity = config_.window;
  args.position = state.position - count;
  args.rows = count;
  args.ring = state.ring.data();
  args.linear = const_cast<float*>(rows.data());  // import only reads it
  Run(kernels_.window_import, args);
}

}  // namespace kvstrata::golden
