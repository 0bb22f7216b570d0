// SPDX-License-Identifier: Apache-2.0
// Attention over window and entries in every form of rows. Tolerance, u = 2^-24, V the largest |kv| a query sees:
//   logits   d = 2 width u scale sum_c |q kv|, the largest over the rows: any order of summation on either side
//   profile F   V (2 d + 2 (rows + 16) u): d goes through exp into numerator and denominator, sums of `rows` terms each
//   profile Q   and two bf16 roundings of each probability, relative 2^-8 each (of another maximum in an online
//               softmax), then of the output; 2 V 2^-8 + a bf16 step
//   INVERSE_ROPE: both channels' tolerances, the rotation's own, and a bf16 step once more
// That lets a single row of many be left out in profile Q, so there the root mean square of a head's differences must
// also be what independent roundings give: 3 * 2^-8 * |p| V for the probabilities' vector p, and a bf16 step of the
// largest output.
#include <algorithm>

#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {
namespace {

constexpr int32_t kTypes[] = {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16};

// Rows of a type or packed, and what they mean.
struct KvRows {
  Matrix rows;
  Packed packed;
  int32_t format = KVSTRATA_KERNELS_FORMAT_NONE;

  const float* Row(uint64_t row) const { return rows.Row(row); }
};

struct Attention {
  int32_t profile = KVSTRATA_KERNELS_PROFILE_F;
  uint32_t heads = 1, width = 1, rope_dims = 0, window = 1, ratio = 0, pick_count = 0;
  bool inverse = false;
  float scale = 0;
  uint64_t tokens = 0, first_position = 0;
  uint64_t window_first = 0, window_rows = 0, window_ring = 0, entry_count = 0;
  uint64_t head_stride = 0;
  Matrix queries;
  KvRows kv, entries;
  std::vector<int32_t> picks;
  const int32_t* pick_data = nullptr;
  std::vector<float> sinks, table;
  const float* sink_data = nullptr;
  const float* frequencies = nullptr;

  uint64_t Visible(uint64_t n) const { return ratio == 0 ? 0 : (first_position + n + 1) / ratio; }
  uint64_t Oldest(uint64_t n) const {
    const uint64_t t = first_position + n;
    return std::max(window_first, t + 1 > window ? t + 1 - window : 0);
  }
  uint64_t Slot(uint64_t position) const { return window_ring != 0 ? position % window_ring : position - window_first; }
};

// Rows `used` are numbers, the others NaN, which must not reach a result.
KvRows MakeRows(Case& c, const Attention& a, const std::vector<bool>& used) {
  constexpr int32_t kRowFormats[] = {KVSTRATA_KERNELS_FORMAT_V4_ROW, KVSTRATA_KERNELS_FORMAT_V41_WINDOW,
                                     KVSTRATA_KERNELS_FORMAT_V41_ENTRY};
  KvRows kv;
  if (a.width != 512 || c.rng.Chance(40)) {
    kv.rows = c.Rows(c.OneOf(kTypes), used.size(), a.width, Fill::kPlain);
    for (uint64_t row = 0; row < used.size(); ++row) {
      if (used[row]) continue;
      std::memset(kv.rows.At(row), 0xFF, a.width * kv.rows.element());  // NaN in both types
    }
    return kv;
  }
  kv.format = c.OneOf(kRowFormats);
  kv.rows.stride = kv.rows.width = a.width;
  std::vector<float> floats(used.size() * a.width, kNan);
  for (uint64_t row = 0; row < used.size(); ++row) {
    if (!used[row]) continue;
    for (uint32_t i = 0; i < a.width; ++i) floats[row * a.width + i] = c.Number(Fill::kPlain);
  }
  const uint32_t rope_dims = kv.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? a.rope_dims : 0;
  kv.packed = c.PackedRows(kv.format, a.width, rope_dims, used.size(), floats);
  for (uint64_t row = 0; row < used.size(); ++row) {
    // Scales that no packer writes: blocks of denormal numbers.
    if (used[row] && c.rng.Chance(5))
      kv.packed.From(row).scales[c.rng.Below(7)] = static_cast<uint8_t>(c.rng.Below(13));
  }
  kv.rows.floats = c.Unpacked(kv.packed, used.size());
  return kv;
}

void MakeWindow(Case& c, Attention& a) {
  const uint64_t last = a.first_position + a.tokens - 1;
  const uint64_t full = a.Oldest(0);  // with window_first 0
  a.window_first = c.rng.Chance(60) ? full : c.rng.Between(full > 3 ? full - 3 : 0, a.first_position);
  a.window_rows = last + 1 - a.window_first + c.rng.Below(3);
  if (c.rng.Chance(50)) a.window_ring = a.window_rows + c.rng.Below(4);
  std::vector<bool> used(a.window_ring != 0 ? a.window_ring : a.window_rows);
  for (uint64_t p = a.Oldest(0); p <= last; ++p) used[a.Slot(p)] = true;
  a.kv = MakeRows(c, a, used);
}

void MakeEntries(Case& c, Attention& a) {
  if (a.ratio == 0) return;
  const uint64_t visible = a.Visible(a.tokens - 1);
  a.entry_count = visible + c.rng.Below(3);
  std::vector<bool> used(a.entry_count);
  std::fill(used.begin(), used.begin() + static_cast<ptrdiff_t>(visible), true);
  a.entries = MakeRows(c, a, used);
  if (c.rng.Chance(40)) return;  // all visible ones
  a.pick_count = static_cast<uint32_t>(c.rng.Between(1, c.rng.Chance(20) ? 300 : 40));
  a.picks.resize(a.tokens * a.pick_count);
  for (uint64_t i = 0; i < a.picks.size(); ++i) {
    const uint64_t seen = a.Visible(i / a.pick_count);
    a.picks[i] = seen == 0 || c.rng.Chance(10) ? -1 : static_cast<int32_t>(c.rng.Below(seen));
  }
  a.pick_data = c.Input(a.picks);
}

Attention MakeAttention(Case& c) {
  Attention a;
  const bool v4 = c.rng.Chance(60);
  a.profile = static_cast<int32_t>(c.rng.Between(1, 3));
  a.width = v4 ? 512 : static_cast<uint32_t>(c.rng.Between(1, 100));
  a.rope_dims = v4 ? 64 : static_cast<uint32_t>(2 * c.rng.Below(a.width / 2 + 1));
  a.heads = static_cast<uint32_t>(c.rng.Chance(15)  ? 64
                                  : c.rng.Chance(4) ? c.rng.Between(65, 130)
                                                    : c.rng.Between(1, 20));
  a.window = c.rng.Chance(50) ? 128 : static_cast<uint32_t>(c.rng.Between(1, 20));
  constexpr uint32_t kRatios[] = {0, 1, 4, 4, 128};
  a.ratio = c.OneOf(kRatios);
  a.tokens = c.rng.Between(1, v4 ? 2 : 4);
  a.first_position = c.rng.Below(a.ratio == 1 ? 60 : a.ratio == 128 ? 3000 : 400);
  a.inverse = c.rng.Chance(50);
  a.scale = c.rng.Chance(70) ? 0.0f : 0.11f;
  a.head_stride = c.Stride(a.width);
  const int32_t query_type = c.OneOf(kTypes);
  a.queries = c.Rows(query_type, a.tokens, (a.heads - 1) * a.head_stride + a.width, Fill::kPlain);
  MakeWindow(c, a);
  MakeEntries(c, a);
  if (c.rng.Chance(70)) {
    a.sinks = c.Numbers(a.heads, Fill::kPlain);
    a.sink_data = c.Input(a.sinks);
  }
  a.frequencies = Frequencies(c, a.rope_dims, a.table);
  return a;
}

std::vector<const float*> SeenRows(const Attention& a, uint64_t n) {
  std::vector<const float*> rows;
  for (uint64_t p = a.Oldest(n); p <= a.first_position + n; ++p) rows.push_back(a.kv.Row(a.Slot(p)));
  if (a.pick_data == nullptr) {
    for (uint64_t e = 0; e < a.Visible(n); ++e) rows.push_back(a.entries.Row(e));
  } else {
    for (uint64_t i = n * a.pick_count; i < (n + 1) * a.pick_count; ++i) {
      if (a.picks[i] >= 0) rows.push_back(a.entries.Row(static_cast<uint64_t>(a.picks[i])));
    }
  }
  return rows;
}

// One head in double: what its output may differ by, channel by channel and as a root mean square.
struct HeadBound {
  std::vector<double> channel;
  double root_mean_square = 0;
};

HeadBound BoundHead(const Attention& a, uint64_t n, uint64_t head, const std::vector<const float*>& rows) {
  const float* query = a.queries.Row(n) + head * a.head_stride;
  const double scale = a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(a.width));
  std::vector<double> p(rows.size());
  double d = 0;
  double largest = a.sink_data != nullptr ? a.sinks[head] : -1e300;
  double value = 0;
  for (size_t s = 0; s < rows.size(); ++s) {
    double absolute = 0;
    for (uint32_t i = 0; i < a.width; ++i) {
      const double product = static_cast<double>(query[i]) * rows[s][i];
      p[s] += product * scale;
      absolute += std::fabs(product) * scale;
      value = std::max(value, std::fabs(static_cast<double>(rows[s][i])));
    }
    d = std::max(d, 2 * a.width * kUnit * absolute);
    largest = std::max(largest, p[s]);
  }
  double total = a.sink_data != nullptr ? std::exp(a.sinks[head] - largest) : 0;
  for (double& logit : p) total += logit = std::exp(logit - largest);
  std::vector<double> output(a.width);
  double squares = 0;
  for (size_t s = 0; s < rows.size(); ++s) {
    squares += p[s] / total * (p[s] / total);
    for (uint32_t i = 0; i < a.width; ++i) output[i] += p[s] / total * rows[s][i];
  }
  HeadBound bound;
  const bool round = a.profile != KVSTRATA_KERNELS_PROFILE_F;
  // The last term: denormal bf16 numbers may count as 0.
  const double exact = value * (2 * d + 2 * (static_cast<double>(rows.size()) + 16) * kUnit) + 0x1p-100;
  const double rounded = round ? 2 * value * 0x1p-8 : 0;
  double peak = 0;
  for (const double o : output) {
    bound.channel.push_back(exact + rounded + (round ? Bf16Step(std::fabs(o) + exact + rounded) : 0));
    peak = std::max(peak, std::fabs(o));
  }
  if (round) bound.root_mean_square = exact + 3 * 0x1p-8 * std::sqrt(squares) * value + 2 * Bf16Step(peak);
  if (!a.inverse) return bound;
  for (size_t i = a.width - a.rope_dims; i < a.width; i += 2) {
    const double size = std::fabs(output[i]) + std::fabs(output[i + 1]);
    const double both = bound.channel[i] + bound.channel[i + 1] + 8 * kUnit * size;
    bound.channel[i] = bound.channel[i + 1] = both + (round ? Bf16Step(size + both) : 0);
  }
  return bound;
}

kvstrata_attention_args MakeArgs(const Attention& a, uint64_t n, uint64_t tokens, uint64_t head, uint64_t heads) {
  kvstrata_attention_args args = Args<kvstrata_attention_args>();
  args.profile = a.profile;
  args.flags = a.inverse ? KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE : 0;
  args.heads = static_cast<uint32_t>(heads);
  args.width = a.width;
  args.rope_dims = a.rope_dims;
  args.window = a.window;
  args.ratio = a.ratio;
  args.pick_count = a.pick_count;
  args.scale = a.scale;
  args.tokens = tokens;
  args.first_position = a.first_position + n;
  args.queries = a.queries.At(n, head * a.head_stride);
  args.query_type = a.queries.type;
  args.query_token_stride = a.queries.stride;
  args.query_head_stride = a.head_stride;
  args.window_first = a.window_first;
  args.window_rows = a.window_rows;
  args.window_ring = a.window_ring;
  args.window_format = a.kv.format;
  args.window_kv = a.kv.rows.data;
  args.window_type = a.kv.rows.type;
  args.window_stride = a.kv.rows.stride;
  args.packed_window = a.kv.packed.planes;
  args.entry_count = a.entry_count;
  args.entry_format = a.entries.format;
  args.entries = a.entries.rows.data;
  args.entry_type = a.entries.rows.type;
  args.entry_stride = a.entries.rows.stride;
  args.packed_entries = a.entries.packed.planes;
  args.picks = a.pick_data == nullptr ? nullptr : a.pick_data + n * a.pick_count;
  args.sinks = a.sink_data == nullptr ? nullptr : a.sink_data + head;
  args.frequencies = a.frequencies;
  return args;
}

}  // namespace

void FuzzAttention(Case& c) {
  const Attention a = MakeAttention(c);
  const Matrix output =
      c.OutputRows("attention", c.OneOf(kTypes), a.tokens, uint64_t{a.heads} * a.width, Match::kTolerance);
  const bool narrow = output.type == KVSTRATA_KERNELS_BF16;
  for (uint64_t n = 0; c.tolerances() && n < a.tokens; ++n) {
    const std::vector<const float*> rows = SeenRows(a, n);
    for (uint64_t h = 0; h < a.heads; ++h) {
      const HeadBound bound = BoundHead(a, n, h, rows);
      const uint64_t begin = n * output.stride + h * a.width;
      // A float that goes out as bf16 may be rounded either way.
      for (uint32_t i = 0; i < a.width; ++i) c.Tolerate(begin + i, bound.channel[i] + (narrow ? 0x1p-6 : 0));
      if (a.profile != KVSTRATA_KERNELS_PROFILE_F) c.TolerateRootMeanSquare(begin, a.width, bound.root_mean_square);
    }
  }
  c.Freeze();
  for (uint64_t n = 0, piece = 0; n < a.tokens; n += piece) {
    piece = c.Piece(a.tokens - n);
    for (uint64_t h = 0, part = 0; h < a.heads; h += part) {
      part = c.Piece(a.heads - h);
      kvstrata_attention_args args = MakeArgs(a, n, piece, h, part);
      args.output = output.At(n, h * a.width);
      args.output_type = output.type;
      args.output_token_stride = output.stride;
      args.output_head_stride = a.width;
      c.Ok(c.k.attention_workspace_bytes(&args, &args.workspace_bytes), "attention_workspace_bytes");
      args.workspace = c.Workspace(args.workspace_bytes);
      c.Ok(c.k.attention(&args, nullptr), "attention");
    }
  }
}

}  // namespace kvstrata::kernels::test
