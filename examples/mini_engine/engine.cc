// SPDX-License-Identifier: Apache-2.0
#include "examples/mini_engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "examples/mini_engine/parallel.h"

namespace mini_engine {
namespace {

void CheckConfig(const ModelConfig& c) {
  const auto require = [&](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(c.name + ": " + what);
  };
  require(!c.layers.empty() && c.vocabulary != 0 && c.hidden != 0, "empty");
  require(c.heads != 0 && c.o_groups != 0 && c.heads % c.o_groups == 0, "heads must be a multiple of o_groups");
  require(c.rope_dims % 2 == 0 && c.rope_dims < c.width && (c.width - c.rope_dims) % 64 == 0, "width and rope_dims");
  require(c.window > c.csa_ratio, "the window must be longer than a CSA group");
  require(c.hca_ratio % std::max(c.csa_ratio, 1u) == 0, "hca_ratio must be a multiple of csa_ratio");
}

// SiLU as x * sigmoid(x) without libm, whose exp differs between machines: sigmoid from the rational x/(1+|x|) that
// has the same shape. The model is ours, so the curve may be too; what counts is that it is the same everywhere.
float Gate(float x) { return x * (0.5f + 0.5f * (x / (1.0f + std::fabs(x)))); }

}  // namespace

Model::Model(ModelConfig model_config, int32_t kernel_level)
    : config(std::move(model_config)),
      ops(kernel_level),
      row_format(ops, config, RowFormat::Kind::kRow),
      key_format(ops, config, RowFormat::Kind::kIndexKey),
      weights(MakeWeights(config)),
      plain_frequencies(ops.Frequencies(config.rope_dims, false)),
      yarn_frequencies(ops.Frequencies(config.rope_dims, true)),
      index_frequencies(ops.Frequencies(config.index_rope_dims, true)) {
  CheckConfig(config);
}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : model_(std::move(model)), options_(options) {
  const ModelConfig& c = model_->config;
  options_.chunk_tokens = std::max<uint64_t>(options_.chunk_tokens, 1);
  const uint64_t n = options_.chunk_tokens;
  for (size_t layer = 0; layer < c.layers.size(); ++layer) {
    memories_.emplace_back(c, layer, model_->row_format, model_->key_format, options_.max_tokens, n);
  }
  Scratch& s = scratch_;
  for (auto* rows : {&s.x, &s.hidden, &s.delta}) rows->resize(n * c.hidden);
  s.latent.resize(n * c.q_rank);
  for (auto* rows : {&s.queries, &s.attended}) rows->resize(n * c.heads * c.width);
  s.kv.resize(n * c.width);
  for (auto* rows : {&s.values, &s.gates}) rows->resize(n * 2 * c.width);
  for (auto* rows : {&s.index_values, &s.index_gates}) rows->resize(n * 2 * c.index_width);
  s.index_queries.resize(n * c.index_heads * c.index_width);
  s.index_weights.resize(n * c.index_heads);
  s.pooled.resize((n / std::max(c.csa_ratio, 1u) + 1) * std::max(c.width, c.index_width));
  s.low_rank.resize(n * c.o_groups * c.o_rank);
  for (auto* rows : {&s.mlp_gate, &s.mlp_up}) rows->resize(n * c.mlp_width);
  logits_.resize(c.vocabulary);
  Reset();
}

void Engine::Reset() { BeginRestored(Resume{}); }

void Engine::BeginRestored(const Resume& resume, Fault fault) {
  if (resume.usable_tokens > options_.max_tokens) throw std::length_error("more tokens than max_tokens");
  position_ = resume.replay_from;
  write_floor_ = resume.write_floor;
  bias_shift_ = fault == Fault::kShiftPositionBias ? 1 : 0;
  for (LayerMemory& memory : memories_) {
    if (!resume.has_state) memory.ForgetState(position_);
    memory.ReloadFloats(model_->row_format, model_->key_format, resume.usable_tokens, position_, resume.has_state);
    if (fault == Fault::kDropOverlap) {
      for (Carry* carry : {&memory.carry, &memory.index_carry}) {
        std::fill(carry->previous.begin(), carry->previous.end(), 0.0f);
      }
    }
    if (fault == Fault::kReverseWindow) {
      for (uint64_t i = 0; i < memory.recent_count / 2; ++i) {
        float* row = memory.recent.data() + i * memory.width;
        std::swap_ranges(row, row + memory.width, memory.recent.data() + (memory.recent_count - 1 - i) * memory.width);
      }
    }
  }
}

void Engine::Run(std::span<const int32_t> tokens) {
  if (tokens.size() > options_.max_tokens - std::min(position_, options_.max_tokens)) {
    throw std::length_error("more tokens than max_tokens");
  }
  for (const int32_t token : tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= model_->config.vocabulary) {
      throw std::out_of_range("token " + std::to_string(token) + " is not in the vocabulary");
    }
  }
  for (size_t begin = 0; begin < tokens.size(); begin += options_.chunk_tokens) {
    RunChunk(tokens.subspan(begin, std::min<size_t>(options_.chunk_tokens, tokens.size() - begin)));
  }
  if (!tokens.empty()) ComputeLogits((tokens.size() - 1) % options_.chunk_tokens);
}

int32_t Engine::NextToken() const {
  return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
}

void Engine::RunChunk(std::span<const int32_t> tokens) {
  const uint32_t hidden = model_->config.hidden;
  for (size_t n = 0; n < tokens.size(); ++n) {
    std::memcpy(scratch_.x.data() + n * hidden, model_->weights.embedding.data() + size_t(tokens[n]) * hidden,
                hidden * sizeof(float));
  }
  for (size_t layer = 0; layer < memories_.size(); ++layer) RunLayer(layer, tokens.size());
  position_ += tokens.size();
}

// Three steps: what each token computes alone; what runs along the sequence (compressors, window); what each token
// reads from the sequence. The first and the last are split over threads.
void Engine::RunLayer(size_t layer, uint64_t count) {
  const LayerWeights& w = model_->weights.layers[layer];
  LayerMemory& memory = memories_[layer];
  ParallelRanges(count, options_.threads, [&](uint64_t begin, uint64_t end) { ProjectTokens(layer, begin, end); });
  if (memory.kind != LayerKind::kWindow) {
    Compress(memory.carry, memory.entries, w.compressor, false, scratch_.values.data(), scratch_.gates.data(), count);
  }
  if (memory.kind == LayerKind::kCsa) {
    Compress(memory.index_carry, memory.keys, w.index, true, scratch_.index_values.data(), scratch_.index_gates.data(),
             count);
  }
  ParallelRanges(count, options_.threads, [&](uint64_t begin, uint64_t end) { AttendTokens(layer, begin, end); });
  memory.CommitWindow(model_->ops, model_->row_format, position_, count);
}

// Norm, queries, window row and compressor inputs of tokens begin..end-1 of the chunk.
void Engine::ProjectTokens(size_t layer, uint64_t begin, uint64_t end) {
  const ModelConfig& c = model_->config;
  const Ops& ops = model_->ops;
  const LayerWeights& w = model_->weights.layers[layer];
  LayerMemory& memory = memories_[layer];
  const uint64_t count = end - begin;
  const uint64_t position = position_ + begin;
  const std::vector<float>& frequencies = model_->frequencies(memory.kind);

  float* hidden = scratch_.hidden.data() + begin * c.hidden;
  ops.Norm(scratch_.x.data() + begin * c.hidden, count, c.hidden, w.attention_norm.data(), hidden);
  float* latent = scratch_.latent.data() + begin * c.q_rank;
  ops.Project(hidden, count, c.hidden, w.q_down, c.q_rank, latent);
  ops.Norm(latent, count, c.q_rank, w.q_norm.data(), latent);
  float* queries = scratch_.queries.data() + begin * c.heads * c.width;
  ops.Project(latent, count, c.q_rank, w.q_up, uint64_t{c.heads} * c.width, queries);
  ops.Norm(queries, count * c.heads, c.width, nullptr, queries);
  ops.Rope(queries, count, c.heads, c.width, c.rope_dims, position, frequencies);

  float* kv = scratch_.kv.data() + begin * c.width;
  ops.Project(hidden, count, c.hidden, w.kv, c.width, kv);
  auto emit = Sized<kvstrata_emit_entries_args>();
  emit.profile = kProfile;
  emit.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  emit.width = c.width;
  emit.rope_dims = c.rope_dims;
  emit.ratio = 1;
  emit.eps = kEpsilon;
  emit.first_entry = position;
  emit.rows = count;
  emit.pooled = kv;
  emit.norm_weight = w.kv_norm.data();
  emit.frequencies = frequencies.data();
  emit.entries = memory.recent.data() + (memory.recent_count + begin) * c.width;
  Check(ops.table().emit_entries(&emit, nullptr), "emit_entries");

  if (memory.kind == LayerKind::kWindow) return;
  const uint64_t channels = memory.carry.channels;
  ops.Project(hidden, count, c.hidden, w.compressor.values, channels, scratch_.values.data() + begin * channels, true);
  ops.Project(hidden, count, c.hidden, w.compressor.gates, channels, scratch_.gates.data() + begin * channels, true);
  if (memory.kind == LayerKind::kCsa) ProjectIndex(w, begin, end);
}

// The indexer's queries and weights, and the inputs of its compressor.
void Engine::ProjectIndex(const LayerWeights& w, uint64_t begin, uint64_t end) {
  const ModelConfig& c = model_->config;
  const Ops& ops = model_->ops;
  const uint64_t count = end - begin;
  const float* hidden = scratch_.hidden.data() + begin * c.hidden;
  const uint64_t channels = uint64_t{2} * c.index_width;
  ops.Project(hidden, count, c.hidden, w.index.values, channels, scratch_.index_values.data() + begin * channels, true);
  ops.Project(hidden, count, c.hidden, w.index.gates, channels, scratch_.index_gates.data() + begin * channels, true);
  float* queries = scratch_.index_queries.data() + begin * c.index_heads * c.index_width;
  ops.Project(scratch_.latent.data() + begin * c.q_rank, count, c.q_rank, w.index_q,
              uint64_t{c.index_heads} * c.index_width, queries);
  ops.Rope(queries, count, c.index_heads, c.index_width, c.index_rope_dims, position_ + begin,
           model_->index_frequencies);
  ops.HadamardFp4(queries, count * c.index_heads, c.index_width);
  ops.Project(hidden, count, c.hidden, w.index_weights, c.index_heads,
              scratch_.index_weights.data() + begin * c.index_heads);
}

// Pools the chunk's tokens; of the entries that complete, those at or above the write floor are kept.
void Engine::Compress(Carry& carry, GrowingRows& rows, const CompressorWeights& w, bool index, const float* values,
                      const float* gates, uint64_t count) {
  const ModelConfig& c = model_->config;
  const uint64_t first = position_ / carry.ratio;
  const uint64_t completed = (position_ + count) / carry.ratio - first;
  std::vector<float> shifted;
  if (bias_shift_ != 0) {
    shifted = w.bias;
    std::rotate(shifted.begin(), shifted.begin() + static_cast<ptrdiff_t>(bias_shift_ * carry.channels), shifted.end());
  }
  auto pool = Sized<kvstrata_pool_args>();
  pool.flags = carry.overlap ? KVSTRATA_KERNELS_POOL_OVERLAP : 0;
  pool.ratio = carry.ratio;
  pool.width = carry.width;
  pool.position = position_;
  pool.tokens = count;
  pool.values = values;
  pool.gates = gates;
  pool.ape = shifted.empty() ? w.bias.data() : shifted.data();
  pool.prev_values = carry.overlap ? carry.previous_values() : nullptr;
  pool.prev_gates = carry.overlap ? carry.previous_gates() : nullptr;
  pool.open_values = carry.open_values();
  pool.open_gates = carry.open_gates();
  pool.entries = scratch_.pooled.data();
  pool.entry_capacity = completed;
  const kvstrata_kernels& table = model_->ops.table();
  Check((carry.overlap ? table.csa_pool : table.hca_pool)(&pool, nullptr), "pool");
  if (completed == 0) return;

  auto emit = Sized<kvstrata_emit_entries_args>();
  emit.profile = kProfile;
  emit.flags = index ? KVSTRATA_KERNELS_EMIT_HADAMARD : 0;
  emit.format = index ? KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 : KVSTRATA_KERNELS_FORMAT_V4_ROW;
  emit.width = carry.width;
  emit.rope_dims = index ? c.index_rope_dims : c.rope_dims;
  emit.ratio = carry.ratio;
  emit.eps = kEpsilon;
  emit.first_entry = first;
  emit.rows = completed;
  emit.pooled = scratch_.pooled.data();
  emit.norm_weight = w.norm.data();
  emit.frequencies = (index ? model_->index_frequencies : model_->yarn_frequencies).data();
  emit.entries = scratch_.pooled.data();
  Check(table.emit_entries(&emit, nullptr), "emit_entries");
  const RowFormat& format = index ? model_->key_format : model_->row_format;
  for (uint64_t i = 0; i < completed; ++i) {
    rows.Offer(first + i, scratch_.pooled.data() + i * carry.width, write_floor_, format);
  }
}

void Engine::AttendTokens(size_t layer, uint64_t begin, uint64_t end) {
  const LayerWeights& w = model_->weights.layers[layer];
  Attend(layer, begin, end);
  AddOutput(w, begin, end);
  AddMlp(w, begin, end);
}

// The top-k visible entries of each token, [end-begin][top_k], ascending, -1 where there are fewer.
std::vector<int32_t> Engine::SelectEntries(const LayerMemory& memory, uint64_t begin, uint64_t end) const {
  const ModelConfig& c = model_->config;
  const kvstrata_kernels& table = model_->ops.table();
  const uint64_t entries = memory.keys.count;
  std::vector<float> scores((end - begin) * entries);
  auto score = Sized<kvstrata_index_scores_args>();
  score.heads = c.index_heads;
  score.width = c.index_width;
  score.ratio = c.csa_ratio;
  score.tokens = end - begin;
  score.first_position = position_ + begin;
  score.entries = entries;
  score.queries = scratch_.index_queries.data() + begin * c.index_heads * c.index_width;
  score.keys = memory.keys.rows.data();
  score.weights = scratch_.index_weights.data() + begin * c.index_heads;
  score.scores = scores.data();
  uint64_t score_bytes = 0;
  Check(table.index_scores_workspace_bytes(&score, &score_bytes), "index_scores_workspace_bytes");
  std::vector<uint64_t> score_workspace(score_bytes / sizeof(uint64_t) + 1);
  score.workspace = score_workspace.data();
  score.workspace_bytes = score_workspace.size() * sizeof(uint64_t);
  Check(table.index_scores(&score, nullptr), "index_scores");

  std::vector<int32_t> picks((end - begin) * c.top_k);
  auto topk = Sized<kvstrata_topk_args>();
  topk.flags = KVSTRATA_KERNELS_TOPK_SORT_ASCENDING;
  topk.k = c.top_k;
  topk.ratio = c.csa_ratio;
  topk.tokens = end - begin;
  topk.first_position = position_ + begin;
  topk.entries = entries;
  topk.scores = scores.data();
  topk.indices = picks.data();
  uint64_t bytes = 0;
  Check(table.topk_workspace_bytes(&topk, &bytes), "topk_workspace_bytes");
  std::vector<uint64_t> workspace(bytes / sizeof(uint64_t) + 1);
  topk.workspace = workspace.data();
  topk.workspace_bytes = workspace.size() * sizeof(uint64_t);
  Check(table.topk(&topk, nullptr), "topk");
  return picks;
}

void Engine::Attend(size_t layer, uint64_t begin, uint64_t end) {
  const ModelConfig& c = model_->config;
  const LayerMemory& memory = memories_[layer];
  const kvstrata_kernels& table = model_->ops.table();
  std::vector<int32_t> picks;
  if (memory.kind == LayerKind::kCsa && memory.keys.count != 0) picks = SelectEntries(memory, begin, end);
  const bool has_entries = memory.kind == LayerKind::kHca || !picks.empty();

  auto a = Sized<kvstrata_attention_args>();
  a.profile = kProfile;
  a.flags = KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE;
  a.heads = c.heads;
  a.width = c.width;
  a.rope_dims = c.rope_dims;
  a.window = c.window;
  a.ratio = has_entries ? c.ratio(memory.kind) : 0;
  a.pick_count = picks.empty() ? 0 : c.top_k;
  a.tokens = end - begin;
  a.first_position = position_ + begin;
  a.queries = scratch_.queries.data() + begin * c.heads * c.width;
  a.window_kv = memory.recent.data();
  a.window_first = memory.recent_first;
  a.window_rows = memory.recent_count + end;
  a.entries = has_entries ? memory.entries.rows.data() : nullptr;
  a.entry_count = has_entries ? memory.entries.count : 0;
  a.picks = picks.empty() ? nullptr : picks.data();
  a.sinks = model_->weights.layers[layer].sinks.data();
  a.frequencies = model_->frequencies(memory.kind).data();
  a.output = scratch_.attended.data() + begin * c.heads * c.width;
  uint64_t bytes = 0;
  Check(table.attention_workspace_bytes(&a, &bytes), "attention_workspace_bytes");
  std::vector<uint64_t> workspace(bytes / sizeof(uint64_t) + 1);
  a.workspace = workspace.data();
  a.workspace_bytes = workspace.size() * sizeof(uint64_t);
  Check(table.attention(&a, nullptr), "attention");
}

// Grouped output projection, added to the residual stream.
void Engine::AddOutput(const LayerWeights& w, uint64_t begin, uint64_t end) {
  const ModelConfig& c = model_->config;
  const Ops& ops = model_->ops;
  const uint64_t count = end - begin;
  const uint64_t row = uint64_t{c.heads} * c.width;
  const uint64_t group = row / c.o_groups;
  const uint64_t ranks = uint64_t{c.o_groups} * c.o_rank;
  for (uint64_t g = 0; g < c.o_groups; ++g) {
    ops.ProjectPart(scratch_.attended.data() + begin * row + g * group, row, count, group,
                    w.o_down.data() + g * c.o_rank * group, c.o_rank,
                    scratch_.low_rank.data() + begin * ranks + g * c.o_rank, ranks);
  }
  float* delta = scratch_.delta.data() + begin * c.hidden;
  ops.Project(scratch_.low_rank.data() + begin * ranks, count, ranks, w.o_up, c.hidden, delta);
  float* x = scratch_.x.data() + begin * c.hidden;
  for (uint64_t i = 0; i < count * c.hidden; ++i) x[i] += delta[i];
}

void Engine::AddMlp(const LayerWeights& w, uint64_t begin, uint64_t end) {
  const ModelConfig& c = model_->config;
  const Ops& ops = model_->ops;
  const uint64_t count = end - begin;
  float* x = scratch_.x.data() + begin * c.hidden;
  float* hidden = scratch_.hidden.data() + begin * c.hidden;
  ops.Norm(x, count, c.hidden, w.mlp_norm.data(), hidden);
  float* gate = scratch_.mlp_gate.data() + begin * c.mlp_width;
  float* up = scratch_.mlp_up.data() + begin * c.mlp_width;
  ops.Project(hidden, count, c.hidden, w.mlp_gate, c.mlp_width, gate);
  ops.Project(hidden, count, c.hidden, w.mlp_up, c.mlp_width, up);
  for (uint64_t i = 0; i < count * c.mlp_width; ++i) gate[i] = Gate(gate[i]) * up[i];
  float* delta = scratch_.delta.data() + begin * c.hidden;
  ops.Project(gate, count, c.mlp_width, w.mlp_down, c.hidden, delta);
  for (uint64_t i = 0; i < count * c.hidden; ++i) x[i] += delta[i];
}

void Engine::ComputeLogits(uint64_t last) {
  const ModelConfig& c = model_->config;
  std::vector<float> normed(c.hidden);
  model_->ops.Norm(scratch_.x.data() + last * c.hidden, 1, c.hidden, model_->weights.final_norm.data(), normed.data());
  model_->ops.Project(normed.data(), 1, c.hidden, model_->weights.head, c.vocabulary, logits_.data(), true);
}

}  // namespace mini_engine
