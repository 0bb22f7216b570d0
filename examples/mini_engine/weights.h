// SPDX-License-Identifier: Apache-2.0
// Seeded weights: every number is a hash of (seed, tensor, index), so a model needs no file and is the same on every
// machine. Matrices are scaled so that rows of unit variance stay so; norms, sinks and position biases are random too,
// as zeros and ones would hide errors.
//
// Thread rule: immutable after MakeWeights; shared by any number of engines and threads.
#pragma once

#include <vector>

#include "examples/mini_engine/config.h"

namespace mini_engine {

// Row-major [outputs][inputs], as the project kernel wants it.
using Matrix = std::vector<float>;

// Reads the layer's attention input. cc = 2*width with overlap (CSA), else width.
struct CompressorWeights {
  Matrix values;            // [cc][d]
  Matrix gates;             // [cc][d]
  std::vector<float> bias;  // [ratio][cc], the additive position bias of the gates
  std::vector<float> norm;  // [width]
};

struct LayerWeights {
  std::vector<float> attention_norm;  // [d]
  Matrix q_down;                      // [q_rank][d]
  std::vector<float> q_norm;          // [q_rank]
  Matrix q_up;                        // [heads*c][q_rank]
  Matrix kv;                          // [c][d]
  std::vector<float> kv_norm;         // [c]
  std::vector<float> sinks;           // [heads]
  Matrix o_down;                      // [o_groups][o_rank][heads/o_groups*c]
  Matrix o_up;                        // [d][o_groups*o_rank]
  CompressorWeights compressor;       // CSA, HCA
  CompressorWeights index;            // CSA
  Matrix index_q;                     // [index_heads*cI][q_rank]
  Matrix index_weights;               // [index_heads][d]
  std::vector<float> mlp_norm;        // [d]
  Matrix mlp_gate;                    // [mlp][d]
  Matrix mlp_up;                      // [mlp][d]
  Matrix mlp_down;                    // [d][mlp]
};

struct Weights {
  Matrix embedding;  // [vocabulary][d]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [d]
  Matrix head;                    // [vocabulary][d]
};

Weights MakeWeights(const ModelConfig& config);

// 64-bit FNV-1a over all weights in order: the identity of the model for a cache.
uint64_t DigestOf(const Weights& weights);

}  // namespace mini_engine
