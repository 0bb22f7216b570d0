// SPDX-License-Identifier: Apache-2.0
// The shapes of the mini engine's models. Owns every number of a model that is not a weight.
//
// All models are DeepSeek-V4 in kind: one KV vector per token and layer that is key and value, shared by all heads; a
// sliding window in every layer; CSA layers with overlapping compressor and indexer; HCA layers with a dense one.
// Hyper-connections and experts are left out: they have no part in what a cache stores.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mini_engine {

enum class LayerKind { kWindow, kCsa, kHca };

// How rows lie in the engine's memory, and so in the store. All three hold the same numbers exactly, as rows are on
// the quantisation grid already (profile Q).
enum class RowStorage {
  kPacked,  // 584 bytes a row, 68 bytes a key: needs width 512 with 64 RoPE dims, and index width 128
  kBf16,
  kF32,
};

struct ModelConfig {
  std::string name;
  std::vector<LayerKind> layers;
  uint32_t vocabulary = 0;
  uint32_t hidden = 0;     // d
  uint32_t heads = 0;      // query heads; there is one KV head
  uint32_t width = 0;      // c: head width = KV width
  uint32_t rope_dims = 0;  // the last ones of c; c - rope_dims is a multiple of 64 (the FP8 scale block)
  uint32_t q_rank = 0;     // width of the query latent
  uint32_t o_groups = 0;
  uint32_t o_rank = 0;     // per group
  uint32_t window = 0;     // W, counts the query itself; above csa_ratio, so that a replay rebuilds the carry
  uint32_t csa_ratio = 0;  // m
  uint32_t hca_ratio = 0;  // M
  uint32_t index_heads = 0;
  uint32_t index_width = 0;  // cI, a power of two and a multiple of 32 (the FP4 scale block)
  uint32_t index_rope_dims = 0;
  uint32_t top_k = 0;
  uint32_t mlp_width = 0;
  RowStorage storage = RowStorage::kBf16;
  bool bounded_replay = false;  // declares the layout as trained for bounded replay (V4.1's rule)
  uint64_t seed = 1;            // of the weights

  uint32_t ratio(LayerKind kind) const {
    return kind == LayerKind::kCsa ? csa_ratio : kind == LayerKind::kHca ? hca_ratio : 0;
  }
  uint32_t ratio(size_t layer) const { return ratio(layers[layer]); }
  uint32_t block_tokens() const;  // the least common multiple of the ratios that occur
  // Tokens of full replay that make every window row exact.
  uint64_t exact_replay_tokens() const { return uint64_t{window - 1} * layers.size(); }
};

// For the demonstration: V4's row and key formats, ratios 4 and 128; a prefill of 4,096 tokens takes seconds.
ModelConfig DemoConfig();
// For the tests: the shapes of a toy (window 8, ratios 4 and 16, bf16 rows), thousands of tokens a second.
ModelConfig TinyConfig();
// V4-Flash's numbers wherever the cache sees them: c 512, RoPE 64, W 128, ratios 4 and 128, index width 128, top-k 512;
// one layer of each kind. What the cache does not see is smaller so that a CPU can run it: hidden 256 (of 4096), 4
// query heads (of 64), 8 index heads (of 64), ranks 64 (of 1024), byte vocabulary.
ModelConfig V4FlashWidthsConfig();

}  // namespace mini_engine
