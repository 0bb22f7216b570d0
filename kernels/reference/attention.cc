// SPDX-License-Identifier: Apache-2.0
// Core attention (reference section 5, steps 3 to 5): one softmax over window rows, compressed entries and a sink.
#include <algorithm>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {
namespace {

// Rows that one query could see, at most.
struct RowCounts {
  uint64_t window;
  uint64_t listed;
};

// The picks themselves may be missing yet.
RowCounts MostRows(const kvstrata_attention_args& a) {
  uint64_t listed = a.pick_count;
  if (a.ratio != 0 && listed == 0) listed = VisibleEntries(a.first_position + a.tokens - 1, a.ratio);
  return {std::min<uint64_t>(a.window, a.window_rows), listed};
}

bool IsFloatRows(int32_t type, int32_t format) {
  return format == KVSTRATA_KERNELS_FORMAT_NONE && type == KVSTRATA_KERNELS_F32;
}

// What the workspace holds, one after the other, in floats.
struct Workspace {
  float* logits;  // of all rows of a query
  float* query;   // [width]
  float* output;  // [width]
  float* window;  // [rows][width], where the caller's rows are not floats
  float* entries;
};

uint64_t LayWorkspace(const kvstrata_attention_args& a, Workspace* out) {
  if (a.tokens == 0) return 0;
  const RowCounts rows = MostRows(a);
  const uint64_t window = IsFloatRows(a.window_type, a.window_format) ? 0 : rows.window * a.width;
  const uint64_t entries = IsFloatRows(a.entry_type, a.entry_format) ? 0 : rows.listed * a.width;
  float* next = static_cast<float*>(a.workspace);
  if (out != nullptr) {
    out->logits = next;
    out->query = out->logits + rows.window + rows.listed;
    out->output = out->query + a.width;
    out->window = out->output + a.width;
    out->entries = out->window + window;
  }
  return (rows.window + rows.listed + 2 * uint64_t{a.width} + window + entries) * sizeof(float);
}

// The rows that one query sees, in the order of summation: window by position, then entries in list order. Rows that
// are not floats are brought into the workspace once, for all heads.
class KeyList {
 public:
  KeyList(const kvstrata_attention_args& a, uint64_t n, const Workspace& work)
      : a_(a), position_(a.first_position + n), work_(work) {
    const uint64_t oldest = position_ + 1 > a.window ? position_ + 1 - a.window : 0;
    window_begin_ = std::max(oldest, a.window_first);
    if (a.picks != nullptr) picks_ = a.picks + n * a.pick_stride;
    listed_ = a.ratio == 0 ? 0 : (picks_ != nullptr ? a.pick_count : VisibleEntries(position_, a.ratio));
    if (!IsFloatRows(a.window_type, a.window_format)) {
      for (uint64_t i = 0; i < window_size(); ++i) {
        Bring(a.window_kv, a.window_type, a.window_format, a.packed_window, a.window_stride, WindowRow(i),
              work.window + i * a.width);
      }
    }
    if (IsFloatRows(a.entry_type, a.entry_format)) return;
    for (uint64_t i = 0; i < listed_; ++i) {
      const int64_t row = EntryRow(i);
      if (row < 0) continue;
      Bring(a.entries, a.entry_type, a.entry_format, a.packed_entries, a.entry_stride, static_cast<uint64_t>(row),
            work.entries + i * a.width);
    }
  }
  uint64_t size() const { return window_size() + listed_; }
  // nullptr for a pick of -1.
  const float* Row(uint64_t i) const {
    if (i < window_size()) {
      if (!IsFloatRows(a_.window_type, a_.window_format)) return work_.window + i * a_.width;
      return static_cast<const float*>(a_.window_kv) + WindowRow(i) * a_.window_stride;
    }
    const uint64_t listed = i - window_size();
    const int64_t row = EntryRow(listed);
    if (row < 0) return nullptr;
    if (!IsFloatRows(a_.entry_type, a_.entry_format)) return work_.entries + listed * a_.width;
    return static_cast<const float*>(a_.entries) + static_cast<uint64_t>(row) * a_.entry_stride;
  }

 private:
  uint64_t window_size() const { return position_ + 1 - window_begin_; }
  uint64_t WindowRow(uint64_t i) const {
    const uint64_t position = window_begin_ + i;
    return a_.window_ring != 0 ? position % a_.window_ring : position - a_.window_first;
  }
  int64_t EntryRow(uint64_t listed) const {
    return picks_ != nullptr ? int64_t{picks_[listed]} : static_cast<int64_t>(listed);
  }
  void Bring(const void* rows, int32_t type, int32_t format, const kvstrata_packed_planes& planes, uint64_t stride,
             uint64_t row, float* out) const {
    if (format == KVSTRATA_KERNELS_FORMAT_NONE) {
      LoadRow(rows, type, row * stride, a_.width, out);
    } else {
      UnpackRow(format, planes, row, a_.width, format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? a_.rope_dims : 0, out);
    }
  }

  const kvstrata_attention_args& a_;
  uint64_t position_;
  const Workspace& work_;
  uint64_t window_begin_;
  const int32_t* picks_ = nullptr;
  uint64_t listed_;
};

// output += sum of p * row over four rows, added one after the other; four at a time only to load the output once.
void AddRows(const float* const (&rows)[4], const float (&p)[4], uint32_t width, float* output) {
  for (uint32_t c = 0; c < width; ++c) {
    output[c] = (((output[c] + p[0] * rows[0][c]) + p[1] * rows[1][c]) + p[2] * rows[2][c]) + p[3] * rows[3][c];
  }
}

void AddRow(const float* row, float p, uint32_t width, float* output) {
  for (uint32_t c = 0; c < width; ++c) output[c] += p * row[c];
}

// logits[i] of all rows, -infinity where there is none; returns their maximum, the sink included.
float Logits(const kvstrata_attention_args& a, const KeyList& keys, const float* query, const float* sink,
             float* logits) {
  float largest = sink != nullptr ? *sink : -INFINITY;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    const float* row = keys.Row(i);
    logits[i] = row != nullptr ? Dot(query, row, a.width) * a.scale : -INFINITY;
    largest = logits[i] > largest ? logits[i] : largest;
  }
  return largest;
}

// sum of p_i * row_i in order.
void SumRows(const KeyList& keys, const float* probabilities, uint32_t width, float* output) {
  std::fill(output, output + width, 0.0f);
  const float* rows[4];
  float p[4];
  uint32_t pending = 0;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    const float* row = keys.Row(i);
    if (row == nullptr) continue;
    rows[pending] = row;
    p[pending++] = probabilities[i];
    if (pending < 4) continue;
    AddRows(rows, p, width, output);
    pending = 0;
  }
  for (uint32_t i = 0; i < pending; ++i) AddRow(rows[i], p[i], width, output);
}

// o = sum_s exp(l_s - mx) kv_s / (sum_s exp(l_s - mx) + exp(sink - mx)).
void AttendHead(const kvstrata_attention_args& a, const KeyList& keys, const float* query, const float* sink,
                float* logits, float* output) {
  const bool round = Rounds(a.profile);
  const float largest = Logits(a, keys, query, sink, logits);
  const uint64_t count = keys.size();
  for (uint64_t i = 0; i < count; ++i) logits[i] = ExpNonPositive(logits[i] - largest);
  float total = 0;
  for (uint64_t i = 0; i < count; ++i) total += logits[i];
  if (sink != nullptr) total += ExpNonPositive(*sink - largest);
  if (round) RoundRow(logits, count);
  SumRows(keys, logits, a.width, output);
  for (uint32_t c = 0; c < a.width; ++c) output[c] = round ? RoundBf16(output[c] / total) : output[c] / total;
}

// Every pick is -1 or an entry that is there and visible.
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

}  // namespace

int32_t AttentionWorkspaceBytes(const kvstrata_attention_args* args, uint64_t* out_bytes) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = LayWorkspace(a, nullptr);
  return kOk;
}

int32_t Attention(const kvstrata_attention_args* args, void*) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.tokens == 0) return kOk;
  Workspace work;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, LayWorkspace(a, &work)) || !PicksValid(a)) {
    return kInvalidArgument;
  }
  const bool inverse = (a.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0;
  for (uint64_t n = 0; n < a.tokens; ++n) {
    const KeyList keys(a, n, work);
    for (uint64_t h = 0; h < a.heads; ++h) {
      LoadRow(a.queries, a.query_type, n * a.query_token_stride + h * a.query_head_stride, a.width, work.query);
      AttendHead(a, keys, work.query, a.sinks != nullptr ? a.sinks + h : nullptr, work.logits, work.output);
      if (inverse) {
        RopeRow(work.output + (a.width - a.rope_dims), a.frequencies, a.rope_dims,
                static_cast<int64_t>(a.first_position + n), true, Rounds(a.profile));
      }
      StoreRow(work.output, a.output_type, n * a.output_token_stride + h * a.output_head_stride, a.width, a.output);
    }
  }
  return kOk;
}

}  // namespace kvstrata::kernels::reference
