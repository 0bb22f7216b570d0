// SPDX-License-Identifier: Apache-2.0
#include "examples/mini_engine/layer_memory.h"

#include <algorithm>
#include <cstring>

namespace mini_engine {

Carry::Carry(uint32_t group, uint32_t row_width, bool overlaps)
    : ratio(group),
      width(row_width),
      channels(overlaps ? 2 * row_width : row_width),
      overlap(overlaps),
      previous(overlaps ? size_t{2} * group * row_width : 0),
      open(size_t{2} * group * channels) {}

void Carry::Clear() {
  std::fill(previous.begin(), previous.end(), 0.0f);
  std::fill(open.begin(), open.end(), 0.0f);
}

GrowingRows::GrowingRows(uint32_t group, uint32_t row_width, uint32_t row_bytes, uint64_t max_tokens)
    : ratio(group), width(row_width), bytes(max_tokens / group * row_bytes), rows(max_tokens / group * row_width) {}

void GrowingRows::Offer(uint64_t index, const float* row, uint64_t write_floor, const RowFormat& format) {
  if ((index + 1) * ratio <= write_floor || index != count) return;
  std::memcpy(rows.data() + index * width, row, width * sizeof(float));
  format.Store(row, 1, bytes.data() + index * format.row_bytes());
  ++count;
}

void GrowingRows::Reload(uint64_t tokens, const RowFormat& format) {
  count = ratio == 0 ? 0 : tokens / ratio;
  format.Load(bytes.data(), count, rows.data());
}

LayerMemory::LayerMemory(const ModelConfig& config, size_t layer, const RowFormat& row, const RowFormat& key,
                         uint64_t max_tokens, uint64_t chunk_tokens)
    : kind(config.layers[layer]),
      window(config.window),
      width(config.width),
      ring(size_t{config.window} * row.row_bytes()),
      recent((config.window - 1 + chunk_tokens) * config.width) {
  if (kind == LayerKind::kWindow) return;
  entries = GrowingRows(config.ratio(kind), config.width, row.row_bytes(), max_tokens);
  carry = Carry(config.ratio(kind), config.width, kind == LayerKind::kCsa);
  if (kind == LayerKind::kHca) return;
  keys = GrowingRows(config.csa_ratio, config.index_width, key.row_bytes(), max_tokens);
  index_carry = Carry(config.csa_ratio, config.index_width, true);
}

void LayerMemory::ForgetState(uint64_t position) {
  recent_first = position;
  recent_count = 0;
  carry.Clear();
  index_carry.Clear();
}

void LayerMemory::ReloadFloats(const RowFormat& row, const RowFormat& key, uint64_t usable, uint64_t position,
                               bool with_state) {
  if (kind != LayerKind::kWindow) entries.Reload(usable, row);
  if (kind == LayerKind::kCsa) keys.Reload(usable, key);
  if (!with_state) return;
  recent_count = std::min<uint64_t>(position, window - 1);
  recent_first = position - recent_count;
  for (uint64_t i = 0; i < recent_count; ++i) {
    const uint64_t slot = (recent_first + i) % window;
    row.Load(ring.data() + slot * row.row_bytes(), 1, recent.data() + i * width);
  }
}

void LayerMemory::CommitWindow(const Ops& ops, const RowFormat& row, uint64_t position, uint64_t count) {
  std::vector<uint8_t> packed(count * row.row_bytes());
  row.Store(recent.data() + recent_count * width, count, packed.data());
  auto a = Sized<kvstrata_window_args>();
  a.row_bytes = row.row_bytes();
  a.capacity = window;
  a.position = position;
  a.rows = count;
  a.ring = ring.data();
  a.linear = packed.data();
  Check(ops.table().window_append(&a, nullptr), "window_append");

  const uint64_t have = recent_count + count;
  const uint64_t keep = std::min<uint64_t>(have, window - 1);
  std::memmove(recent.data(), recent.data() + (have - keep) * width, keep * width * sizeof(float));
  recent_first += have - keep;
  recent_count = keep;
}

}  // namespace mini_engine
