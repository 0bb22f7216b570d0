// SPDX-License-Identifier: Apache-2.0
// Core attention (reference section 5, steps 3 to 5): one softmax over window rows, compressed entries and a sink.
#include <algorithm>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {
namespace {

// The rows that one query sees, in the order of summation: window by position, then entries in list order.
class KeyList {
 public:
  KeyList(const kvstrata_attention_args& a, uint64_t n) : a_(a), position_(a.first_position + n) {
    const uint64_t oldest = position_ + 1 > a.window ? position_ + 1 - a.window : 0;
    window_begin_ = std::max(oldest, a.window_first);
    if (a.picks != nullptr) picks_ = a.picks + n * a.pick_stride;
    listed_ = a.ratio == 0 ? 0 : (picks_ != nullptr ? a.pick_count : VisibleEntries(position_, a.ratio));
  }
  uint64_t size() const { return window_size() + listed_; }
  // nullptr for a pick of -1.
  const float* Row(uint64_t i) const {
    if (i < window_size()) {
      const uint64_t position = window_begin_ + i;
      const uint64_t row = a_.window_ring != 0 ? position % a_.window_ring : position - a_.window_first;
      return a_.window_kv + row * a_.window_stride;
    }
    const uint64_t listed = i - window_size();
    if (picks_ == nullptr) return a_.entries + listed * a_.entry_stride;
    return picks_[listed] < 0 ? nullptr : a_.entries + static_cast<uint64_t>(picks_[listed]) * a_.entry_stride;
  }

 private:
  uint64_t window_size() const { return position_ + 1 - window_begin_; }

  const kvstrata_attention_args& a_;
  uint64_t position_;
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

// One logit for each row that the last query of the call can see. The picks themselves may be missing yet.
uint64_t WorkspaceBytes(const kvstrata_attention_args& a) {
  if (a.tokens == 0) return 0;
  uint64_t listed = a.pick_count;
  if (a.ratio != 0 && listed == 0) listed = VisibleEntries(a.first_position + a.tokens - 1, a.ratio);
  return (std::min<uint64_t>(a.window, a.window_rows) + listed) * sizeof(float);
}

}  // namespace

int32_t AttentionWorkspaceBytes(const kvstrata_attention_args* args, uint64_t* out_bytes) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = WorkspaceBytes(a);
  return kOk;
}

int32_t Attention(const kvstrata_attention_args* args, void*) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.tokens == 0) return kOk;
  const bool aligned = a.workspace != nullptr && reinterpret_cast<uintptr_t>(a.workspace) % alignof(float) == 0;
  if (!aligned || a.workspace_bytes < WorkspaceBytes(a) || !PicksValid(a)) return kInvalidArgument;
  const bool inverse = (a.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0;
  for (uint64_t n = 0; n < a.tokens; ++n) {
    const KeyList keys(a, n);
    for (uint64_t h = 0; h < a.heads; ++h) {
      float* output = a.output + n * a.output_token_stride + h * a.output_head_stride;
      AttendHead(a, keys, a.queries + n * a.query_token_stride + h * a.query_head_stride,
                 a.sinks != nullptr ? a.sinks + h : nullptr, static_cast<float*>(a.workspace), output);
    }
    if (!inverse || a.rope_dims == 0) continue;
    kvstrata_rope_args rope{};
    rope.struct_size = sizeof rope;
    rope.profile = a.profile;
    rope.flags = KVSTRATA_KERNELS_ROPE_INVERSE;
    rope.heads = a.heads;
    rope.width = a.width;
    rope.rope_dims = a.rope_dims;
    rope.tokens = 1;
    rope.values = a.output + n * a.output_token_stride;
    rope.head_stride = a.output_head_stride;
    rope.first_position = static_cast<int64_t>(a.first_position + n);
    rope.frequencies = a.frequencies;
    if (const int32_t status = Rope(&rope, nullptr); status != kOk) return status;
  }
  return kOk;
}

}  // namespace kvstrata::kernels::reference
