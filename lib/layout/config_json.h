// SPDX-License-Identifier: Apache-2.0
// Reads a model's Hugging Face config.json text into a Layout. The text is not trusted: size and depth are bounded,
// nothing throws.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/layout/layout.h"
#include "lib/layout/presets.h"

namespace kvstrata::core::layout {

inline constexpr size_t kMaxConfigBytes = 4u << 20;
inline constexpr int kMaxConfigDepth = 32;

// kInvalidArgument names the config field at fault; kUnsupported names a model_type (or feature) that is not known;
// kTooLarge when the text is. `options` as for presets; row packing kRaw means the model's packed format where it has
// one, else 2 bytes per element (4 for torch_dtype float32).
absl::StatusOr<Layout> FromConfigJson(std::string_view text, const PresetOptions& options = {});

}  // namespace kvstrata::core::layout
