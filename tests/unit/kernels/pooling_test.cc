// SPDX-License-Identifier: Apache-2.0
// The compressors: formula in double, independence from chunking bit for bit, what the saved state must hold, and
// what goes wrong without it.
#include <algorithm>
#include <utility>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

struct Config {
  uint32_t ratio;
  uint32_t width;
  bool overlap;
  bool ape;
  bool hca;
  uint64_t channels() const { return overlap ? 2 * uint64_t{width} : width; }
};

struct State {
  std::vector<float> prev_values, prev_gates, open_values, open_gates;
};

// NaN everywhere: what is not defined must not be read.
State FreshState(const Config& c) {
  State s;
  s.prev_values.assign(uint64_t{c.ratio} * c.width, kNan);
  s.prev_gates = s.prev_values;
  s.open_values.assign(c.ratio * c.channels(), kNan);
  s.open_gates = s.open_values;
  return s;
}

struct Input {
  std::vector<float> values, gates, ape;
};

Input MakeInput(const Config& c, uint64_t tokens, uint64_t seed) {
  Random random(seed);
  Input in;
  in.values = random.Floats(tokens * c.channels(), 2.0f);
  in.gates = random.Floats(tokens * c.channels(), 4.0f);
  in.ape = random.Floats(c.ratio * c.channels(), 2.0f);
  return in;
}

// Feeds tokens [begin, end) at positions begin + shift and returns the emitted rows.
std::vector<float> Feed(const kvstrata_kernels& k, const Config& c, const Input& in, State& s, uint64_t begin,
                        uint64_t end, uint64_t shift = 0) {
  auto a = Args<kvstrata_pool_args>();
  a.flags = c.overlap ? KVSTRATA_KERNELS_POOL_OVERLAP : 0;
  a.ratio = c.ratio;
  a.width = c.width;
  a.position = begin + shift;
  a.tokens = end - begin;
  a.values = in.values.data() + begin * c.channels();
  a.gates = in.gates.data() + begin * c.channels();
  a.ape = c.ape ? in.ape.data() : nullptr;
  a.prev_values = s.prev_values.data();
  a.prev_gates = s.prev_gates.data();
  a.open_values = s.open_values.data();
  a.open_gates = s.open_gates.data();
  a.entry_capacity = (end + shift) / c.ratio - (begin + shift) / c.ratio;
  std::vector<float> entries(a.entry_capacity * c.width);
  a.entries = entries.data();
  REQUIRE((c.hca ? k.hca_pool : k.csa_pool)(&a, nullptr) == 0);
  return entries;
}

void Append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// What a snapshot keeps: P half of the last block from P = m on, and the open rows; all else becomes NaN.
State Saved(const Config& c, const State& s, uint64_t position) {
  State out = FreshState(c);
  if (c.overlap && position >= c.ratio) {
    out.prev_values = s.prev_values;
    out.prev_gates = s.prev_gates;
  }
  const auto open = static_cast<std::ptrdiff_t>(position % c.ratio * c.channels());
  std::copy(s.open_values.begin(), s.open_values.begin() + open, out.open_values.begin());
  std::copy(s.open_gates.begin(), s.open_gates.begin() + open, out.open_gates.begin());
  return out;
}

// Entry i, channel j by the formula over all tokens, in double.
double Expected(const Config& c, const Input& in, uint64_t i, uint32_t j) {
  double weights = 0;
  double sum = 0;
  const auto add = [&](uint64_t token, uint64_t channel) {
    const uint64_t at = token * c.channels() + channel;
    double gate = in.gates[at];
    if (c.ape) gate += in.ape[token % c.ratio * c.channels() + channel];
    weights += std::exp(gate);
    sum += std::exp(gate) * in.values[at];
  };
  for (uint64_t s = 0; s < c.ratio; ++s) {
    if (c.overlap && i > 0) add((i - 1) * c.ratio + s, j);
    add(i * c.ratio + s, c.channels() - c.width + j);
  }
  return sum / weights;
}

// The same for gates of any size: relative to the greatest, gates as floats. `spread` is of what differences have a
// weight that counts.
struct Softmax {
  double mean;
  double spread;
  double largest;
};
Softmax ShiftedSoftmax(const Config& c, const Input& in, uint64_t i, uint32_t j) {
  std::vector<std::pair<double, double>> rows;
  for (uint64_t s = 0; s < c.ratio; ++s) {
    const uint64_t now = (i * c.ratio + s) * c.channels() + c.channels() - c.width + j;
    rows.emplace_back(in.gates[now], in.values[now]);
    if (i == 0 || !c.overlap) continue;
    const uint64_t before = ((i - 1) * c.ratio + s) * c.channels() + j;
    rows.emplace_back(in.gates[before], in.values[before]);
  }
  double greatest = rows[0].first;
  for (const auto& row : rows) greatest = std::max(greatest, row.first);
  double weights = 0;
  double sum = 0;
  Softmax result{};
  for (const auto& [gate, value] : rows) {
    weights += std::exp(gate - greatest);
    sum += std::exp(gate - greatest) * value;
    result.largest = std::max(result.largest, std::fabs(value));
    if (greatest - gate < 88) result.spread = std::max(result.spread, greatest - gate);
  }
  result.mean = sum / weights;
  return result;
}

const Config kConfigs[] = {
    {4, 32, true, true, false},    // V4's CSA
    {4, 200, true, true, false},   // a width that is no multiple of the tile
    {2, 64, false, false, false},  // V4.1, ratio 2
    {1, 64, false, false, false},  // V4.1, ratio 1
    {128, 24, false, true, true},  // V4's HCA
    {16, 24, false, true, true},
    // Whatever else the contract allows: every ratio with and without overlap and bias, widths that are no multiple
    // of anything, more channels than one pass of a level may take at once.
    {1, 19, true, true, false},
    {2, 47, true, false, false},
    {3, 33, false, true, true},
    {12, 35, true, true, false},
    {13, 530, false, true, true},
};

std::vector<size_t> DifferentRows(const std::vector<float>& a, const std::vector<float>& b, uint32_t width) {
  std::vector<size_t> rows;
  for (size_t row = 0; row * width < a.size(); ++row) {
    if (std::memcmp(a.data() + row * width, b.data() + row * width, width * sizeof(float)) != 0) rows.push_back(row);
  }
  return rows;
}

}  // namespace

TEST_CASE("pooled entries follow the formula") {
  for (const kvstrata_kernels* k : Levels()) {
    INFO(k->name);
    for (const Config& c : kConfigs) {
      const uint64_t seed = 31 + c.ratio;
      const uint64_t tokens = 5 * uint64_t{c.ratio} + 1;
      INFO("seed " << seed << " ratio " << c.ratio);
      const Input in = MakeInput(c, tokens, seed);
      State s = FreshState(c);
      const std::vector<float> entries = Feed(*k, c, in, s, 0, tokens);
      REQUIRE(entries.size() == tokens / c.ratio * c.width);
      // Gates below 6 in size: differences carry 12 * 2^-24 absolute error into exp, which adds 2 ulp; each sum of n
      // positive weights n/2 on average, bounded by n. Values up to 2.
      const double n = c.overlap ? 2.0 * c.ratio : c.ratio;
      const double tolerance = 2.0 * (2 * (12 + 4) + 2 * n + 2) * kUnit;
      double worst = 0;
      for (size_t i = 0; i < entries.size() / c.width; ++i) {
        for (uint32_t j = 0; j < c.width; ++j) {
          worst = std::max(worst, std::fabs(entries[i * c.width + j] - Expected(c, in, i, j)));
        }
      }
      CHECK(worst <= tolerance);
    }
  }
}

TEST_CASE("one shot, single steps and chunks give the same bits, and so does the state") {
  for (const kvstrata_kernels* k : Levels()) {
    INFO(k->name);
    for (const Config& c : kConfigs) {
      const uint64_t seed = 41 + c.ratio;
      const uint64_t tokens = 3 * uint64_t{c.ratio} + 7;
      INFO("seed " << seed << " ratio " << c.ratio);
      const Input in = MakeInput(c, tokens, seed);
      State one_shot = FreshState(c);
      const std::vector<float> expected = Feed(*k, c, in, one_shot, 0, tokens);
      Random random(seed);
      for (int way = 0; way < 12; ++way) {
        State s = FreshState(c);
        std::vector<float> got;
        for (uint64_t p = 0; p < tokens;) {
          uint64_t step = way == 0 ? 1 : way == 1 ? 3 : way == 2 ? c.ratio : 1 + random.Below(2 * uint64_t{c.ratio});
          step = std::min(step, tokens - p);
          Append(got, Feed(*k, c, in, s, p, p + step));
          p += step;
        }
        CHECK(SameBits(got, expected));
        const State a = Saved(c, s, tokens);
        const State b = Saved(c, one_shot, tokens);
        CHECK(SameBits(a.prev_values, b.prev_values));
        CHECK(SameBits(a.prev_gates, b.prev_gates));
        CHECK(SameBits(a.open_values, b.open_values));
        CHECK(SameBits(a.open_gates, b.open_gates));
      }
    }
  }
}

TEST_CASE("resuming at any position from the saved state gives the same bits") {
  for (const kvstrata_kernels* k : Levels()) {
    INFO(k->name);
    for (const Config& c : kConfigs) {
      const uint64_t seed = 51 + c.ratio;
      const uint64_t tokens = 3 * uint64_t{c.ratio} + 5;
      INFO("seed " << seed << " ratio " << c.ratio);
      const Input in = MakeInput(c, tokens, seed);
      State all = FreshState(c);
      const std::vector<float> expected = Feed(*k, c, in, all, 0, tokens);
      for (uint64_t p = 0; p <= tokens; ++p) {
        State s = FreshState(c);
        std::vector<float> got = Feed(*k, c, in, s, 0, p);
        State restored = Saved(c, s, p);
        Append(got, Feed(*k, c, in, restored, p, tokens));
        REQUIRE(SameBits(got, expected));
      }
    }
  }
}

TEST_CASE("negative control: without the overlap carry exactly the first entry after the resume is wrong") {
  for (const kvstrata_kernels* k : Levels()) {
    INFO(k->name);
    const Config c{4, 32, true, true, false};
    const uint64_t seed = 61;
    INFO("seed " << seed);
    const uint64_t tokens = 40;
    const Input in = MakeInput(c, tokens, seed);
    State all = FreshState(c);
    const std::vector<float> expected = Feed(*k, c, in, all, 0, tokens);
    for (uint64_t p = 4; p < 37; ++p) {
      State s = FreshState(c);
      std::vector<float> got = Feed(*k, c, in, s, 0, p);
      State restored = Saved(c, s, p);
      restored.prev_values.assign(restored.prev_values.size(), 0.0f);
      restored.prev_gates.assign(restored.prev_gates.size(), -kInfinity);
      Append(got, Feed(*k, c, in, restored, p, tokens));
      CAPTURE(p);
      CHECK(DifferentRows(got, expected, c.width) == std::vector<size_t>{p / 4});
    }
  }
}

TEST_CASE("negative control: position bias restarted at 0 after a resume changes the entries") {
  for (const kvstrata_kernels* k : Levels()) {
    INFO(k->name);
    const Config c{4, 32, true, true, false};
    const uint64_t seed = 62;
    INFO("seed " << seed);
    const Input in = MakeInput(c, 32, seed);
    State all = FreshState(c);
    const std::vector<float> expected = Feed(*k, c, in, all, 0, 32);
    // Resume at P = 10 with the bias of slot (t - 10) mod 4 instead of t mod 4: two slots off.
    Input shifted = in;
    for (uint64_t slot = 0; slot < 4; ++slot) {
      const auto from = in.ape.begin() + static_cast<std::ptrdiff_t>((slot + 2) % 4 * c.channels());
      std::copy(from, from + static_cast<std::ptrdiff_t>(c.channels()),
                shifted.ape.begin() + static_cast<std::ptrdiff_t>(slot * c.channels()));
    }
    State s = FreshState(c);
    std::vector<float> got = Feed(*k, c, in, s, 0, 10);
    Append(got, Feed(*k, c, shifted, s, 10, 32));
    CHECK(DifferentRows(got, expected, c.width) == std::vector<size_t>{2, 3, 4, 5, 6, 7});
  }
}

TEST_CASE("a gate of minus infinity has no weight; equal gates give the mean") {
  for (const kvstrata_kernels* k : Levels()) {
    INFO(k->name);
    const Config c{4, 8, true, false, false};
    Input in;
    in.values.assign(8 * c.channels(), 0.0f);
    in.gates.assign(8 * c.channels(), 0.0f);
    for (uint64_t t = 0; t < 8; ++t) {
      for (uint64_t j = 0; j < c.channels(); ++j) in.values[t * c.channels() + j] = static_cast<float>(t);
    }
    for (uint64_t j = 0; j < 8; ++j) in.gates[7 * c.channels() + 8 + j] = -kInfinity;
    State s = FreshState(c);
    const std::vector<float> entries = Feed(*k, c, in, s, 0, 8);
    CHECK(entries[0] == 1.5f);          // tokens 0..3
    CHECK(entries[8] == 21.0f / 7.0f);  // tokens 0..6
  }
}

TEST_CASE("gates and values of any size: the softmax is that of the differences") {
  const Config c{4, 83, true, false, false};
  const uint64_t seed = 37;
  INFO("seed " << seed);
  Random random(seed);
  for (const float first : {-3e38f, -200.0f, -1e5f, 2e5f, 1e30f}) {
    for (const float step : {0.0f, 30.0f, 50.0f, 100.0f, 1e5f, 1e31f}) {
      Input in = MakeInput(c, 12, seed);
      // Every fifth channel: two tokens with gates of their own, far from the others'. Every seventh: a huge value.
      for (uint64_t t = 0; t < 12; ++t) {
        for (uint64_t j = 0; j < c.channels(); ++j) {
          const float large = t == 0 ? first : t == 1 ? first + step : 0.25f * in.gates[t * c.channels() + j] - 2e4f;
          in.gates[t * c.channels() + j] = j % 5 == 0 ? large : in.gates[t * c.channels() + j];
          if (t == 1 && j % 7 == 0) in.values[t * c.channels() + j] = 3e38f;
        }
      }
      for (const kvstrata_kernels* k : Levels()) {
        CAPTURE(k->name, first, step);
        State s = FreshState(c);
        const std::vector<float> entries = Feed(*k, c, in, s, 0, 12);
        for (size_t i = 0; i < 3 * size_t{c.width}; ++i) {
          const auto j = static_cast<uint32_t>(i % c.width);
          const Softmax exact = ShiftedSoftmax(c, in, i / c.width, j);
          CAPTURE(i / c.width, j);
          REQUIRE(std::fabs(entries[i] - exact.mean) <= 4.0 * (2 * exact.spread + 4 + 3 * 8) * kUnit * exact.largest);
        }
      }
    }
  }
}

namespace {

struct Emit {
  std::vector<float> weight, frequencies;
  kvstrata_emit_entries_args args;
};

Emit EmitArgs(uint32_t width, uint64_t seed) {
  Random random(seed);
  Emit e{random.Floats(width, 2.0f), random.Floats(32, 1.0f), Args<kvstrata_emit_entries_args>()};
  e.args.width = width;
  e.args.rope_dims = 64;
  e.args.ratio = 4;
  e.args.eps = 1e-6f;
  e.args.first_entry = 100;
  return e;
}

// The rounding points of profile Q one by one, through the single functions.
std::vector<float> StepByStep(const kvstrata_kernels& k, const Emit& e, std::vector<float> rows) {
  const uint32_t width = e.args.width;
  auto convert = Args<kvstrata_convert_args>();
  convert.count = rows.size();
  convert.source = convert.destination = rows.data();
  REQUIRE(k.bf16_round(&convert, nullptr) == 0);
  auto norm = Args<kvstrata_rms_norm_args>();
  norm.profile = KVSTRATA_KERNELS_PROFILE_Q;
  norm.width = width;
  norm.eps = e.args.eps;
  norm.rows = rows.size() / width;
  norm.source = norm.destination = rows.data();
  norm.weight = e.weight.data();
  REQUIRE(k.rms_norm(&norm, nullptr) == 0);
  auto rope = Args<kvstrata_rope_args>();
  rope.profile = KVSTRATA_KERNELS_PROFILE_Q;
  rope.width = width;
  rope.rope_dims = 64;
  rope.tokens = norm.rows;
  rope.values = rows.data();
  rope.first_position = 400;
  rope.position_step = 4;
  rope.frequencies = e.frequencies.data();
  REQUIRE(k.rope(&rope, nullptr) == 0);
  if ((e.args.flags & KVSTRATA_KERNELS_EMIT_HADAMARD) != 0) {
    auto hadamard = Args<kvstrata_hadamard_args>();
    hadamard.profile = KVSTRATA_KERNELS_PROFILE_Q;
    hadamard.width = width;
    hadamard.rows = norm.rows;
    hadamard.values = rows.data();
    REQUIRE(k.hadamard(&hadamard, nullptr) == 0);
  }
  auto quantize = Args<kvstrata_quantize_args>();
  quantize.format = e.args.format;
  quantize.width = width;
  quantize.rope_dims = e.args.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? 64 : 0;
  quantize.rows = norm.rows;
  quantize.values = rows.data();
  REQUIRE(k.quantize_dequantize(&quantize, nullptr) == 0);
  return rows;
}

}  // namespace

TEST_CASE("emit_entries is the composition of its steps, for main entries and index keys") {
  for (const kvstrata_kernels* k : Levels()) {
    INFO(k->name);
    for (const bool index : {false, true}) {
      const uint64_t seed = index ? 72 : 71;
      INFO("seed " << seed);
      Emit e = EmitArgs(index ? 128 : 512, seed);
      e.args.format = index ? KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 : KVSTRATA_KERNELS_FORMAT_V4_ROW;
      e.args.flags = index ? KVSTRATA_KERNELS_EMIT_HADAMARD : 0;
      const std::vector<float> pooled = Random(seed + 10).Floats(3 * uint64_t{e.args.width}, 3.0f);
      e.args.rows = 3;
      e.args.pooled = pooled.data();
      e.args.norm_weight = e.weight.data();
      e.args.frequencies = e.frequencies.data();
      for (const int32_t profile : {KVSTRATA_KERNELS_PROFILE_Q, KVSTRATA_KERNELS_PROFILE_S}) {
        std::vector<float> out(pooled.size());
        e.args.profile = profile;
        e.args.entries = out.data();
        REQUIRE(k->emit_entries(&e.args, nullptr) == 0);
        CHECK(SameBits(out, StepByStep(*k, e, pooled)));
      }
      std::vector<float> f(pooled.size());
      e.args.profile = KVSTRATA_KERNELS_PROFILE_F;
      e.args.entries = f.data();
      REQUIRE(k->emit_entries(&e.args, nullptr) == 0);
      // Profile F in double, row 2: its position is (100 + 2) * 4.
      const float* row = pooled.data() + 2 * uint64_t{e.args.width};
      double squares = 0;
      for (uint32_t i = 0; i < e.args.width; ++i) squares += static_cast<double>(row[i]) * row[i];
      const double inverse = 1 / std::sqrt(squares / e.args.width + 1e-6);
      const auto normed = [&](uint32_t i) { return row[i] * inverse * e.weight[i]; };
      for (uint32_t i = 0; i < e.args.width; i += 2) {
        double x = normed(i);
        double y = normed(i + 1);
        if (i >= e.args.width - 64) {
          const double angle = 408.0f * e.frequencies[(i - (e.args.width - 64)) / 2];
          const double turned = x * std::cos(angle) - y * std::sin(angle);
          y = x * std::sin(angle) + y * std::cos(angle);
          x = turned;
        }
        // 30 roundings of numbers up to 2 * 2 * sqrt(3).
        CHECK(std::fabs(f[2 * uint64_t{e.args.width} + i] - x) < 30 * kUnit * 7);
        CHECK(std::fabs(f[2 * uint64_t{e.args.width} + i + 1] - y) < 30 * kUnit * 7);
      }
    }
  }
}
