// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_keys.h"

#include <algorithm>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::cpu {
namespace {

constexpr uint64_t kLineBytes = 64;
// Of one row; the hardware fetches the rest of a longer one.
constexpr uint64_t kRowLines = 40;

RowSource MakeSource(const kvstrata_attention_args& a, const void* rows, uint64_t stride, int32_t type, int32_t format,
                     const kvstrata_packed_planes& planes) {
  RowSource source{};
  source.format = format;
  source.type = type;
  source.rows = static_cast<const uint8_t*>(rows);
  source.stride_bytes = stride * (type == KVSTRATA_KERNELS_F32 ? sizeof(float) : sizeof(uint16_t));
  source.planes = planes;
  source.width = a.width;
  if (!source.IsPacked()) return source;
  source.shape.struct_size = sizeof source.shape;
  source.shape.format = format;
  source.shape.width = a.width;
  source.shape.rope_dims = format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? a.rope_dims : 0;
  reference::PackedShape(&source.shape);  // cannot fail: Prepare asked the same
  return source;
}

// The lines that `bytes` bytes (not 0) touch, `most` at most.
uint64_t SpanLines(const uint8_t* begin, uint64_t bytes, uint64_t most, const uint8_t** lines) {
  const uint64_t lead = reinterpret_cast<uintptr_t>(begin) % kLineBytes;
  const uint64_t count = std::min((lead + bytes + kLineBytes - 1) / kLineBytes, most);
  for (uint64_t i = 0; i < count; ++i) lines[i] = i == 0 ? begin : begin - lead + i * kLineBytes;
  return count;
}

// An address in each of a row's cache lines, `most` at most; returns how many.
uint64_t RowLines(const RowSource& source, uint64_t row, uint64_t most, const uint8_t** lines) {
  if (!source.IsPacked()) {
    const uint64_t element = source.type == KVSTRATA_KERNELS_F32 ? sizeof(float) : sizeof(uint16_t);
    return SpanLines(source.rows + row * source.stride_bytes, source.width * element, most, lines);
  }
  const kvstrata_packed_planes& planes = source.planes;
  const kvstrata_packed_shape& shape = source.shape;
  uint64_t count = SpanLines(planes.codes + row * planes.code_stride_bytes, shape.code_bytes, most, lines);
  if (shape.rope_bytes != 0) {
    count += SpanLines(planes.rope + row * planes.rope_stride_bytes, shape.rope_bytes, most - count, lines + count);
  }
  return count +
         SpanLines(planes.scales + row * planes.scale_stride_bytes, shape.scale_bytes, most - count, lines + count);
}

}  // namespace

WorkspaceParts::WorkspaceParts(void* workspace)
    : begin_((reinterpret_cast<uintptr_t>(workspace) + kPartAlign - 1) / kPartAlign * kPartAlign) {}

void* WorkspaceParts::NextBytes(uint64_t count, uint64_t row, uint64_t element_bytes) {
  if (row != 0 && count > kPartMaxBytes / element_bytes / row) {
    too_large_ = true;
    return nullptr;
  }
  const uintptr_t part = begin_ + bytes_;
  bytes_ += (count * row * element_bytes + kPartAlign - 1) / kPartAlign * kPartAlign;
  return reinterpret_cast<void*>(part);
}

RowSources SourcesOf(const kvstrata_attention_args& a) {
  const RowSource window = MakeSource(a, a.window_kv, a.window_stride, a.window_type, a.window_format, a.packed_window);
  // Of entries that no query has, nothing was checked.
  if (a.ratio == 0) return {window, window};
  return {window, MakeSource(a, a.entries, a.entry_stride, a.entry_type, a.entry_format, a.packed_entries)};
}

uint64_t MostKeys(const kvstrata_attention_args& a) {
  if (a.tokens == 0) return 0;
  uint64_t listed = a.pick_count;
  if (a.ratio != 0 && listed == 0) listed = VisibleEntries(a.first_position + a.tokens - 1, a.ratio);
  return std::min<uint64_t>(a.window, a.window_rows) + listed;
}

KeyList ListKeys(const kvstrata_attention_args& a, uint64_t n, uint64_t* keys) {
  const uint64_t position = a.first_position + n;
  const uint64_t oldest = position + 1 > a.window ? position + 1 - a.window : 0;
  KeyList list{keys, 0, 0};
  for (uint64_t p = std::max(oldest, a.window_first); p <= position; ++p) {
    keys[list.window++] = a.window_ring != 0 ? p % a.window_ring : p - a.window_first;
  }
  list.total = list.window;
  const int32_t* picks = a.picks != nullptr ? a.picks + n * a.pick_stride : nullptr;
  const uint64_t dense = a.ratio != 0 ? VisibleEntries(position, a.ratio) : 0;
  const uint64_t listed = picks != nullptr ? a.pick_count : dense;
  for (uint64_t i = 0; i < listed; ++i) {
    if (picks == nullptr) {
      keys[list.total++] = i;
    } else if (picks[i] != -1) {
      keys[list.total++] = static_cast<uint64_t>(picks[i]);
    }
  }
  return list;
}

bool PicksValid(const kvstrata_attention_args& a) {
  if (a.picks == nullptr) return true;
  for (uint64_t n = 0; n < a.tokens; ++n) {
    const uint64_t limit = std::min(VisibleEntries(a.first_position + n, a.ratio), a.entry_count);
    for (uint32_t i = 0; i < a.pick_count; ++i) {
      const int32_t pick = a.picks[n * a.pick_stride + i];
      if (pick != -1 && (pick < 0 || static_cast<uint64_t>(pick) >= limit)) return false;
    }
  }
  return true;
}

LineQueue ListLines(const RowSources& sources, const KeyList& list, uint64_t begin, uint64_t end, uint64_t most,
                    const uint8_t** lines) {
  uint64_t count = 0;
  for (uint64_t i = begin; i < std::min(end, list.total); ++i) {
    count += RowLines(sources.Of(list, i), list.keys[i], most - count, lines + count);
  }
  return {lines, lines + count};
}

void PrefetchFirstLines(const RowSources& sources, const KeyList& list, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < std::min(end, list.total); ++i) {
    const uint8_t* line = nullptr;
    if (RowLines(sources.Of(list, i), list.keys[i], 1, &line) != 0) __builtin_prefetch(line);
  }
}

void PrefetchRows(const RowSources& sources, const KeyList& list, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < std::min(end, list.total); ++i) {
    const uint8_t* lines[kRowLines];
    const uint64_t count = RowLines(sources.Of(list, i), list.keys[i], kRowLines, lines);
    for (uint64_t line = 0; line < count; ++line) __builtin_prefetch(lines[line]);
  }
}

void InverseRotation(const kvstrata_attention_args& a, uint64_t n, float* cosines, float* sines) {
  const float position = static_cast<float>(a.first_position + n);
  for (uint32_t k = 0; k < a.rope_dims / 2; ++k) {
    const reference::SinCos turn = reference::SinCosOf(position * a.frequencies[k]);
    cosines[2 * k] = cosines[2 * k + 1] = turn.cos;
    // a cos - b (-sin), a (-sin) + b cos
    sines[2 * k] = turn.sin;
    sines[2 * k + 1] = -turn.sin;
  }
}

}  // namespace kvstrata::kernels::cpu
