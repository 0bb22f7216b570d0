// SPDX-License-Identifier: Apache-2.0
// What one layer remembers of one sequence: the part of an engine that a cache stores and restores.
//
//   bytes, in the storage of the config             floats, for the kernels (derived, never stored)
//   window ring [W][row], slot = position mod W     recent [W-1+chunk][c], oldest first
//   entries [max_tokens/ratio][row]   (CSA, HCA)    entry_rows
//   keys [max_tokens/m][key]          (CSA)         key_rows
//   carry: previous group and open group, fp32, both of the main and of the index compressor
//
// I1. The bytes alone decide what comes next: ReloadFloats(...) rebuilds all floats from them.
// I2. Entry i is written exactly once, when its last token i*ratio+ratio-1 runs at or above the write floor.
//
// Thread rule: used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "examples/mini_engine/config.h"
#include "examples/mini_engine/row_format.h"

namespace mini_engine {

// The state of one compressor, as kvstrata_pool_args wants it; cc = channels of the projection.
struct Carry {
  uint32_t ratio = 0;
  uint32_t width = 0;
  uint32_t channels = 0;
  bool overlap = false;
  std::vector<float> previous;  // values [ratio][width], then gates [ratio][width]; empty without overlap
  std::vector<float> open;      // values [ratio][channels], then gates [ratio][channels]

  Carry() = default;
  Carry(uint32_t ratio, uint32_t width, bool overlap);

  float* previous_values() { return previous.data(); }
  float* previous_gates() { return previous.data() + previous.size() / 2; }
  float* open_values() { return open.data(); }
  float* open_gates() { return open.data() + open.size() / 2; }
  // No token seen: values and gates 0, which is finite, so that what a replay computes and discards is finite too.
  void Clear();
};

// Rows that grow with the sequence, one per `ratio` tokens.
struct GrowingRows {
  uint32_t ratio = 0;
  uint32_t width = 0;
  uint64_t count = 0;
  std::vector<uint8_t> bytes;
  std::vector<float> rows;

  GrowingRows() = default;
  GrowingRows(uint32_t ratio, uint32_t width, uint32_t row_bytes, uint64_t max_tokens);
  // Takes entry `index` if it is the next one and its last token is not below `write_floor`; else drops it.
  void Offer(uint64_t index, const float* row, uint64_t write_floor, const RowFormat& format);
  void Reload(uint64_t tokens, const RowFormat& format);
};

struct LayerMemory {
  LayerKind kind;
  uint32_t window = 0;
  uint32_t width = 0;
  std::vector<uint8_t> ring;
  std::vector<float> recent;
  uint64_t recent_first = 0;  // position of recent's row 0
  uint64_t recent_count = 0;
  GrowingRows entries;
  GrowingRows keys;
  Carry carry;
  Carry index_carry;

  LayerMemory(const ModelConfig& config, size_t layer, const RowFormat& row, const RowFormat& key, uint64_t max_tokens,
              uint64_t chunk_tokens);

  // An empty sequence, or the start of a replay at `position`: no window, no carry; entries stay.
  void ForgetState(uint64_t position);
  // Floats from bytes: entries and keys of `usable` tokens; with_state also the window at `position`.
  void ReloadFloats(const RowFormat& row, const RowFormat& key, uint64_t usable, uint64_t position, bool with_state);
  // Rows of `count` tokens at `position` were put behind the `recent_count` rows of recent: into the ring with them,
  // and only the last W-1 stay in recent.
  void CommitWindow(const Ops& ops, const RowFormat& row, uint64_t position, uint64_t count);
};

}  // namespace mini_engine
