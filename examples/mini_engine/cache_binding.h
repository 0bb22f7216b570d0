// SPDX-License-Identifier: Apache-2.0
// Between the mini engine and kvstrata: which streams the model has, what names it, and where each stream's rows lie.
// An engine of your own needs the same four functions.
//
// Streams, in this order, for each layer: entries and keys (rows streams), window, carry of the main compressor, carry
// of the index compressor (state streams). A carry row is one token's value and gate side by side, as fp32.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/mini_engine/engine.h"
#include "kvstrata/kvstrata.hpp"

namespace mini_engine {

kvstrata::result<kvstrata::layout> MakeLayout(const ModelConfig& config);

// `tenant` is the wall between users of one store.
kvstrata::identity MakeIdentity(const Model& model, const std::string& tenant);

// One descriptor per stream, as source and as destination alike. They stay true while the engine lives: memory never
// moves, and rings and carries are addressed by position.
std::vector<kvstrata::buffer> MakeBuffers(Engine& engine);

// What a finished restore means for the engine.
Resume ToResume(const kvstrata::plan_result& result);

// Bytes per token that full attention of the same shape would keep: K and V of every head and layer as bf16.
uint64_t FullKvBytesPerToken(const ModelConfig& config);

}  // namespace mini_engine
