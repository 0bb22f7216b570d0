// SPDX-License-Identifier: Apache-2.0
// The mini engine: runs tokens of one sequence through a small V4-style model and keeps what the next token needs.
//
//   cold:      Reset -> Run(prompt) -> logits -> Run(one token) -> logits ...
//   restored:  a cache fills the memories -> BeginRestored -> Run(prompt from replay_from on) -> logits
//
// I1. Logits and memories are the same bits however a sequence is cut into Run calls and chunks, and for any number of
//     threads.
// I2. While tokens below the write floor run again, the rows of those tokens are not written.
//
// Thread rule: an engine belongs to one thread; models are shared.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "examples/mini_engine/config.h"
#include "examples/mini_engine/layer_memory.h"
#include "examples/mini_engine/ops.h"
#include "examples/mini_engine/row_format.h"
#include "examples/mini_engine/weights.h"

namespace mini_engine {

// Weights, kernels and everything else that does not change. Shared by engines.
struct Model {
  Model(ModelConfig config, int32_t kernel_level);

  ModelConfig config;
  Ops ops;
  RowFormat row_format;
  RowFormat key_format;
  Weights weights;
  std::vector<float> plain_frequencies;  // window-only layers
  std::vector<float> yarn_frequencies;   // CSA and HCA layers, their queries and windows included
  std::vector<float> index_frequencies;

  const std::vector<float>& frequencies(LayerKind kind) const {
    return kind == LayerKind::kWindow ? plain_frequencies : yarn_frequencies;
  }
};

struct EngineOptions {
  uint64_t max_tokens = 8192;
  uint64_t chunk_tokens = 64;  // tokens that go through a layer together
  uint32_t threads = 1;
};

// Where a restored sequence goes on.
struct Resume {
  uint64_t usable_tokens = 0;  // rows of these are in the memories
  uint64_t replay_from = 0;    // the next token to run
  uint64_t write_floor = 0;    // rows of tokens below it are not written
  bool has_state = false;      // windows and carries hold the state at replay_from; else they start empty
};

// Faults on purpose, for tests that must fail: each breaks what a careless engine would break.
enum class Fault {
  kNone,
  kDropOverlap,        // the compressors' carry of the last complete group is left out
  kReverseWindow,      // window rows come back in the wrong order
  kShiftPositionBias,  // the position bias is taken one row too far from the resume point on
};

class Engine {
 public:
  Engine(std::shared_ptr<const Model> model, const EngineOptions& options);

  // An empty sequence.
  void Reset();
  // The memories have been filled from outside. `fault` is for tests.
  void BeginRestored(const Resume& resume, Fault fault = Fault::kNone);
  // Runs the next tokens of the sequence. Throws std::length_error beyond max_tokens, std::out_of_range for an id that
  // is no token.
  void Run(std::span<const int32_t> tokens);

  uint64_t position() const { return position_; }
  // Of the last token that ran.
  const std::vector<float>& logits() const { return logits_; }
  // The largest logit's index, the lowest of equal ones.
  int32_t NextToken() const;

  const Model& model() const { return *model_; }
  uint64_t max_tokens() const { return options_.max_tokens; }
  LayerMemory& memory(size_t layer) { return memories_[layer]; }
  const LayerMemory& memory(size_t layer) const { return memories_[layer]; }

 private:
  // Rows of one chunk on their way through a layer; [chunk][...] each.
  struct Scratch {
    std::vector<float> x, hidden, latent, queries, kv, values, gates, index_values, index_gates, index_queries,
        index_weights, pooled, attended, low_rank, delta, mlp_gate, mlp_up;
  };

  void RunChunk(std::span<const int32_t> tokens);
  void RunLayer(size_t layer, uint64_t count);
  void ProjectTokens(size_t layer, uint64_t begin, uint64_t end);
  void ProjectIndex(const LayerWeights& w, uint64_t begin, uint64_t end);
  void Compress(Carry& carry, GrowingRows& rows, const CompressorWeights& w, bool index, const float* values,
                const float* gates, uint64_t count);
  void AttendTokens(size_t layer, uint64_t begin, uint64_t end);
  std::vector<int32_t> SelectEntries(const LayerMemory& memory, uint64_t begin, uint64_t end) const;
  void Attend(size_t layer, uint64_t begin, uint64_t end);
  void AddOutput(const LayerWeights& w, uint64_t begin, uint64_t end);
  void AddMlp(const LayerWeights& w, uint64_t begin, uint64_t end);
  void ComputeLogits(uint64_t last);

  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  std::vector<LayerMemory> memories_;
  Scratch scratch_;
  std::vector<float> logits_;
  uint64_t position_ = 0;
  uint64_t write_floor_ = 0;
  uint32_t bias_shift_ = 0;  // rows; not 0 only as kShiftPositionBias
};

}  // namespace mini_engine
