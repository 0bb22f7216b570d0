// SPDX-License-Identifier: Apache-2.0
#include "examples/mini_engine/config.h"

#include <numeric>

#include "examples/mini_engine/tokenizer.h"

namespace mini_engine {

uint32_t ModelConfig::block_tokens() const {
  uint32_t common = 1;
  for (const LayerKind kind : layers) {
    if (kind != LayerKind::kWindow) common = std::lcm(common, ratio(kind));
  }
  return common;
}

ModelConfig DemoConfig() {
  ModelConfig c;
  c.name = "mini-v4-demo";
  c.layers = {LayerKind::kWindow, LayerKind::kCsa, LayerKind::kHca, LayerKind::kCsa, LayerKind::kHca};
  c.vocabulary = kVocabulary;
  c.hidden = 256;
  c.heads = 4;
  c.width = 512;
  c.rope_dims = 64;
  c.q_rank = 128;
  c.o_groups = 2;
  c.o_rank = 64;
  c.window = 64;
  c.csa_ratio = 4;
  c.hca_ratio = 128;
  c.index_heads = 8;
  c.index_width = 128;
  c.index_rope_dims = 64;
  c.top_k = 128;
  c.mlp_width = 512;
  c.storage = RowStorage::kPacked;
  c.seed = 20260814;
  return c;
}

ModelConfig TinyConfig() {
  ModelConfig c;
  c.name = "mini-v4-tiny";
  c.layers = {LayerKind::kWindow, LayerKind::kCsa, LayerKind::kHca, LayerKind::kCsa};
  c.vocabulary = kVocabulary;
  c.hidden = 32;
  c.heads = 2;
  c.width = 80;
  c.rope_dims = 16;
  c.q_rank = 16;
  c.o_groups = 1;
  c.o_rank = 16;
  c.window = 8;
  c.csa_ratio = 4;
  c.hca_ratio = 16;
  c.index_heads = 2;
  c.index_width = 32;
  c.index_rope_dims = 16;
  c.top_k = 16;
  c.mlp_width = 32;
  c.storage = RowStorage::kBf16;
  c.seed = 7;
  return c;
}

ModelConfig V4FlashWidthsConfig() {
  ModelConfig c;
  c.name = "mini-v4-flash-widths";
  c.layers = {LayerKind::kWindow, LayerKind::kCsa, LayerKind::kHca};
  c.vocabulary = kVocabulary;
  c.hidden = 256;
  c.heads = 4;
  c.width = 512;
  c.rope_dims = 64;
  c.q_rank = 64;
  c.o_groups = 2;
  c.o_rank = 64;
  c.window = 128;
  c.csa_ratio = 4;
  c.hca_ratio = 128;
  c.index_heads = 8;
  c.index_width = 128;
  c.index_rope_dims = 64;
  c.top_k = 512;
  c.mlp_width = 256;
  c.storage = RowStorage::kPacked;
  c.seed = 4;
  return c;
}

}  // namespace mini_engine
