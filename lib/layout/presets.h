// SPDX-License-Identifier: Apache-2.0
// Layouts of known models by name, and builders for the common kinds. Owns every number that is a fact about a model.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/layout/layout.h"

namespace kvstrata::core::layout {

struct PresetOptions {
  // kRaw: the model's packed format (584, 528 or 656 byte rows; FP4 keys, for V3.2 FP8 keys). Else kBf16 or kF32 for
  // rows; kBf16, kF32, kFp8Key132 or kFp4Key68 for keys. Windows follow the rows.
  Packing row_packing = Packing::kRaw;
  Packing index_packing = Packing::kRaw;
  uint32_t block_tokens = 0;   // 0: kDefaultBlockTokens, which is V4's lcm
  bool include_draft = false;  // the drafter's streams, flagged draft and optional
};

// "deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash", "deepseek-v3.2".
std::span<const std::string_view> PresetNames();
// kUnsupported naming the preset when there is none of that name.
absl::StatusOr<Layout> Preset(std::string_view name, const PresetOptions& options = {});

// A V4-style model: window rows in every layer; ratio 0 window only; a ratio below `hca_from` is CSA (overlapping,
// with index keys), at or above it HCA. The carry is fp32 always: u and z of one token in one row, for an overlap row
// the P half (2 * width), for an open CSA row both halves (2 * 2 * width), for an open HCA row 2 * width.
struct HybridOptions {
  std::span<const uint32_t> ratios;            // one per backbone layer
  std::span<const uint32_t> draft_ratios;      // one per draft layer, each 0; used when include_draft
  uint32_t width = 512;                        // c
  uint32_t index_width = 128;                  // cI
  uint32_t window = 128;                       // W
  uint32_t hca_from = 16;                      // smallest ratio that is HCA: V4 knows 4 and 128, test models 4 and 16
  Packing row_packing = Packing::kFp8Row584;   // or kBf16, kF32
  Packing index_packing = Packing::kFp4Key68;  // or kFp8Key132, kBf16, kF32
  uint32_t block_tokens = 0;                   // 0: lcm of the ratios
  bool include_draft = false;
};
absl::StatusOr<Layout> HybridLayout(const HybridOptions& options);

// A V4.1-style model: window rows in every layer, and entries with index keys only in the source layers, whose rows the
// layers after them share. A source of ratio r > 1 has an open group (no overlap); the replay is bounded.
struct SharedSourceOptions {
  std::span<const uint32_t> ratios;  // one per backbone layer; 0 window only
  std::span<const uint32_t>
      sources;                // layers with ratio >= 1, ascending; each compressed layer needs one at or below it
  uint32_t draft_layers = 0;  // used when include_draft
  uint32_t width = 512;
  uint32_t index_width = 128;
  uint32_t window = 128;
  Packing row_packing = Packing::kRaw;         // kRaw: window kFp8Row528, entries kFp4Row288; or kBf16, kF32 for both
  Packing index_packing = Packing::kFp4Key68;  // as for HybridOptions
  uint32_t block_tokens = 0;                   // 0: kDefaultBlockTokens
  bool include_draft = false;
};
absl::StatusOr<Layout> SharedSourceLayout(const SharedSourceOptions& options);

// A V3.2-style model: one latent row and one index key per token and layer, no state.
struct LatentIndexOptions {
  uint32_t layers = 0;
  uint32_t draft_layers = 0;  // used when include_draft: rows flagged draft and optional
  uint32_t kv_lora_rank = 512;
  uint32_t rope_dim = 64;
  uint32_t index_width = 128;
  Packing row_packing = Packing::kFp8Row656;    // or kBf16, kF32
  Packing index_packing = Packing::kFp8Key132;  // as for HybridOptions
  uint32_t block_tokens = 0;                    // 0: kDefaultBlockTokens
  bool include_draft = false;
};
absl::StatusOr<Layout> LatentIndexLayout(const LatentIndexOptions& options);

// K and V rows of every layer, ratio 1. MHA is kv_heads = query heads. block_tokens 0: kDefaultBlockTokens.
struct GqaOptions {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;  // of this shard when split
  uint32_t head_dim = 0;
  uint32_t bytes_per_element = 2;
  // kBf16, kF16 or kF32 (then of 2, 2 or 4 bytes per element); kRaw says nothing, so that the identity must.
  Packing packing = Packing::kRaw;
  uint32_t block_tokens = 0;
  bool split = false;  // tensor-parallel ranks hold different heads
  // Layers that keep only a sliding window (of `window` tokens): one window stream with K and V side by side instead.
  std::span<const uint32_t> window_layers;
  uint32_t window = 0;
};
absl::StatusOr<Layout> GqaLayout(const GqaOptions& options);

// MLA: one latent row of kv_lora_rank + rope_dim elements per token and layer.
struct MlaOptions {
  uint32_t layers = 0;
  uint32_t kv_lora_rank = 512;
  uint32_t rope_dim = 64;
  uint32_t bytes_per_element = 2;
  Packing packing = Packing::kRaw;  // as for GqaOptions
  uint32_t block_tokens = 0;
};
absl::StatusOr<Layout> MlaLayout(const MlaOptions& options);

// An engine whose state is one blob of varying size at its current position.
absl::StatusOr<Layout> OpaqueLayout(uint32_t block_tokens = 0);

}  // namespace kvstrata::core::layout
