// SPDX-License-Identifier: Apache-2.0
// One attention layer of a golden file, computed with our kernels the way an engine would: projections, window,
// compressors, indexer, attention, output projections. Numeric profile F.
//
// Owns: the order of the kernel calls, and the state that a layer carries from call to call.
// Thread rule: a Layer is immutable, a LayerState belongs to one caller.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvstrata/kernels.h"
#include "tests/golden/vector_file.h"

namespace kvstrata::golden {

enum class LayerKind : int32_t { kWindow = 0, kCsa = 1, kHca = 2 };

struct Config {
  explicit Config(const VectorFile& file);

  uint32_t hidden, heads, width, rope_dims, q_rank, o_groups, o_rank, window, csa_ratio, hca_ratio, index_heads;
  uint32_t index_width, top_k, original_length;
  std::vector<LayerKind> layer_kinds;
  float decided_gap;
};

// State of one compressor after P tokens, as csa_pool and hca_pool keep it (kernels.h), and the entries so far.
struct CompressorState {
  std::vector<float> prev_values, prev_gates, open_values, open_gates, entries;
};

struct LayerState {
  uint64_t position = 0;    // P
  std::vector<float> ring;  // [window][width], slot = position mod window
  CompressorState main, index;
};

// What the layer computed, row t for position t, under the names of the vectors. Rows that were not run stay NaN.
// A row of `scores` has room for the entries of the longest run, a row of `top_k` has config.top_k places.
struct LayerOutput {
  std::vector<float> q_latent, q, kv, scores, attention, attention_unrotated, o_a, output;
  std::vector<int32_t> top_k;
};

// Deliberate errors, for controls that must fail.
struct Faults {
  int window_delta = 0;              // the attention sees window + delta rows
  uint64_t position_bias_shift = 0;  // token t takes the bias row of token t - shift
};

class Layer {
 public:
  // Layer `index` of the file, whose input has as many tokens as a run may have. Keeps both references.
  Layer(const VectorFile& file, const Config& config, uint64_t index, const kvstrata_kernels& kernels);

  LayerKind kind() const { return kind_; }
  uint32_t ratio() const { return ratio_; }
  uint64_t tokens() const { return tokens_; }
  uint64_t entries() const { return ratio_ == 0 ? 0 : tokens_ / ratio_; }
  // Position bias [ratio][channels] of the main and of the indexer's compressor.
  const std::vector<float>& main_bias() const { return main_.bias; }
  const std::vector<float>& index_bias() const { return index_.bias; }

  LayerState NewState() const;
  LayerOutput NewOutput() const;

  // The next `tokens` tokens in one call of every kernel.
  void Step(LayerState& state, uint64_t tokens, LayerOutput& output, const Faults& faults = {}) const;

  // The last min(P, window-1) window rows, oldest first, by window_export; and back into an empty state.
  std::vector<float> ExportWindow(const LayerState& state) const;
  void ImportWindow(const std::vector<float>& rows, LayerState& state) const;

 private:
  struct Compressor {
    uint32_t width = 0;
    uint32_t channels = 0;  // 2 * width with overlap
    std::vector<float> values, gates, bias, norm;
  };

  std::vector<float> Weight(const VectorFile& file, const std::string& name) const;
  Compressor LoadCompressor(const VectorFile& file, const std::string& name, uint32_t width) const;
  CompressorState NewCompressorState(const Compressor& compressor) const;

  // Row `position` of the layer's input.
  const float* Hidden(uint64_t position) const { return hidden_.data() + position * config_.hidden; }
  void Project(const std::vector<float>& weights, uint64_t outputs, const float* x, uint64_t inputs, uint64_t tokens,
               float* y) const;
  void Rotate(uint64_t position, uint64_t tokens, uint32_t heads, uint32_t width, float* rows, bool inverse) const;

  void ComputeQueries(uint64_t position, uint64_t tokens, LayerOutput& output) const;
  void ComputeWindowRows(uint64_t position, uint64_t tokens, LayerOutput& output) const;
  void Compress(const Compressor& compressor, uint64_t position, uint64_t tokens, const Faults& faults,
                CompressorState& state) const;
  void Select(const LayerState& state, uint64_t tokens, LayerOutput& output) const;
  void Attend(const LayerState& state, uint64_t tokens, const Faults& faults, LayerOutput& output) const;
  void ProjectOutput(uint64_t position, uint64_t tokens, LayerOutput& output) const;

  const Config& config_;
  const kvstrata_kernels& kernels_;
  std::string prefix_;  // of the weights' names
  LayerKind kind_;
  uint32_t ratio_ = 0;  // 0: window only
  uint64_t tokens_;
  std::vector<float> hidden_, frequencies_;
  std::vector<float> q_a_, q_a_norm_, q_b_, kv_, kv_norm_, sinks_, o_a_, o_b_, index_q_, index_weights_;
  Compressor main_, index_;
};

}  // namespace kvstrata::golden
