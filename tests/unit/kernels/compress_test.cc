// SPDX-License-Identifier: Apache-2.0
// `compress` is pooling, emitting and converting, bit for bit on the same level: over formats, types, profiles, ratios
// and cuts. bf16 inputs mean what their widened floats mean. An error leaves everything untouched.
#include <algorithm>
#include <iterator>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

struct Shape {
  const char* name;
  uint32_t ratio;
  bool overlap;
  uint32_t width;
  uint32_t rope_dims;
  int32_t format;
  uint32_t emit_flags;
  int32_t profile;
  uint64_t channels() const { return overlap ? 2 * uint64_t{width} : width; }
};

constexpr uint32_t kHadamard = KVSTRATA_KERNELS_EMIT_HADAMARD;
constexpr uint32_t kNoNorm = KVSTRATA_KERNELS_EMIT_NO_NORM;

const Shape kShapes[] = {
    {"CSA entry", 4, true, 512, 64, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, KVSTRATA_KERNELS_PROFILE_Q},
    {"CSA entry, float", 4, true, 512, 64, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, KVSTRATA_KERNELS_PROFILE_F},
    {"HCA entry", 128, false, 512, 64, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, KVSTRATA_KERNELS_PROFILE_S},
    {"index key", 4, true, 128, 64, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, kHadamard, KVSTRATA_KERNELS_PROFILE_Q},
    {"index key, E4M3", 4, true, 128, 64, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, kHadamard, KVSTRATA_KERNELS_PROFILE_S},
    {"V4 window row", 1, false, 512, 64, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, KVSTRATA_KERNELS_PROFILE_Q},
    {"V4.1 window row", 1, false, 512, 64, KVSTRATA_KERNELS_FORMAT_V41_WINDOW, kNoNorm, KVSTRATA_KERNELS_PROFILE_Q},
    {"V4.1 entry", 2, false, 512, 64, KVSTRATA_KERNELS_FORMAT_V41_ENTRY, kNoNorm, KVSTRATA_KERNELS_PROFILE_S},
    {"V4.1 entry, float", 2, false, 512, 64, KVSTRATA_KERNELS_FORMAT_V41_ENTRY, 0, KVSTRATA_KERNELS_PROFILE_F},
    {"small model", 4, true, 72, 8, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, KVSTRATA_KERNELS_PROFILE_Q},
    {"no rope plane", 4, true, 64, 0, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, KVSTRATA_KERNELS_PROFILE_Q},
    {"narrow index key", 3, false, 8, 2, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, kHadamard, KVSTRATA_KERNELS_PROFILE_Q},
    {"other ratio", 10, true, 96, 6, KVSTRATA_KERNELS_FORMAT_V41_WINDOW, 0, KVSTRATA_KERNELS_PROFILE_Q},
};

// 0xA5 bytes stand for memory that nobody may write: between rows, behind them, in untouched state.
constexpr uint8_t kUntouched = 0xA5;

struct State {
  std::vector<float> prev_values, prev_gates, open_values, open_gates;
  bool operator==(const State& other) const {
    return SameBits(prev_values, other.prev_values) && SameBits(prev_gates, other.prev_gates) &&
           SameBits(open_values, other.open_values) && SameBits(open_gates, other.open_gates);
  }
};

State FreshState(const Shape& c) {
  State s;
  s.prev_values.assign(uint64_t{c.ratio} * c.width, kNan);
  s.prev_gates = s.prev_values;
  s.open_values.assign(c.ratio * c.channels(), kNan);
  s.open_gates = s.open_values;
  return s;
}

// What the contract says is kept after P tokens; the rest becomes NaN.
State Saved(const Shape& c, const State& s, uint64_t position) {
  State out = FreshState(c);
  if (c.ratio == 1 && !c.overlap) return out;
  if (c.overlap && position >= c.ratio) {
    out.prev_values = s.prev_values;
    out.prev_gates = s.prev_gates;
  }
  const auto open = static_cast<std::ptrdiff_t>(position % c.ratio * c.channels());
  std::copy(s.open_values.begin(), s.open_values.begin() + open, out.open_values.begin());
  std::copy(s.open_gates.begin(), s.open_gates.begin() + open, out.open_gates.begin());
  return out;
}

// Rows of values and gates with room between them, in one of the two types; and what both steps need besides.
struct Input {
  int32_t type;
  uint64_t stride;
  std::vector<float> values, gates;  // as floats
  std::vector<uint16_t> bf16_values, bf16_gates;
  std::vector<float> ape, weight, frequencies;
  const void* Values(uint64_t token) const {
    return type == KVSTRATA_KERNELS_F32 ? static_cast<const void*>(values.data() + token * stride)
                                        : static_cast<const void*>(bf16_values.data() + token * stride);
  }
  const void* Gates(uint64_t token) const {
    return type == KVSTRATA_KERNELS_F32 ? static_cast<const void*>(gates.data() + token * stride)
                                        : static_cast<const void*>(bf16_gates.data() + token * stride);
  }
};

// Rounds to numbers of bf16 and takes their upper halves.
std::vector<uint16_t> Halves(std::vector<float>& floats) {
  std::vector<uint16_t> out;
  for (float& value : floats) {
    value = ToBf16(value);
    out.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
  }
  return out;
}

Input MakeInput(const Shape& c, uint64_t tokens, int32_t type, uint64_t seed) {
  Random random(seed);
  Input in;
  in.type = type;
  in.stride = c.channels() + 3;
  in.values = random.Floats(tokens * in.stride, 2.0f);
  in.gates = random.Floats(tokens * in.stride, 4.0f);
  in.ape = random.Floats(c.ratio * c.channels(), 2.0f);
  in.weight = random.Floats(c.width, 2.0f);
  in.frequencies = random.Floats(c.rope_dims / 2 + 1, 1.0f);
  if (type == KVSTRATA_KERNELS_BF16) {
    in.bf16_values = Halves(in.values);
    in.bf16_gates = Halves(in.gates);
  }
  return in;
}

// Output memory of any type for some entries: floats, halves, or three planes with room between their rows.
struct Output {
  std::vector<uint8_t> bytes[3];
  bool operator==(const Output& other) const { return std::equal(bytes, bytes + 3, other.bytes); }
};

constexpr uint64_t kEntryGap = 5;
constexpr uint64_t kPlaneGap = 3;

kvstrata_packed_shape ShapeOf(const Shape& c) {
  auto shape = Args<kvstrata_packed_shape>();
  shape.format = c.format;
  shape.width = c.width;
  shape.rope_dims = c.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? c.rope_dims : 0;
  REQUIRE(Reference().packed_shape(&shape) == 0);
  return shape;
}

Output MakeOutput(const Shape& c, uint64_t entries) {
  Output out;
  const kvstrata_packed_shape shape = ShapeOf(c);
  // The first plane also serves as rows of floats or halves, which need their alignment: a vector's memory has it.
  out.bytes[0].assign(entries * (c.width + kEntryGap) * sizeof(float), kUntouched);
  out.bytes[1].assign(entries * (shape.rope_bytes + kPlaneGap), kUntouched);
  out.bytes[2].assign(entries * (shape.scale_bytes + kPlaneGap), kUntouched);
  return out;
}

kvstrata_packed_planes Planes(const Shape& c, Output& out, uint64_t entry) {
  const kvstrata_packed_shape shape = ShapeOf(c);
  kvstrata_packed_planes planes{};
  planes.code_stride_bytes = shape.code_bytes + kPlaneGap;
  planes.rope_stride_bytes = shape.rope_bytes + kPlaneGap;
  planes.scale_stride_bytes = shape.scale_bytes + kPlaneGap;
  planes.codes = out.bytes[0].data() + entry * planes.code_stride_bytes;
  planes.rope = shape.rope_bytes != 0 ? out.bytes[1].data() + entry * planes.rope_stride_bytes : nullptr;
  planes.scales = out.bytes[2].data() + entry * planes.scale_stride_bytes;
  return planes;
}

uint64_t ElementBytes(int32_t type) { return type == KVSTRATA_KERNELS_BF16 ? 2 : 4; }

kvstrata_compress_args CompressArgs(const Shape& c, const Input& in, State& s, uint64_t begin, uint64_t end,
                                    int32_t output_type, Output& out) {
  auto a = Args<kvstrata_compress_args>();
  a.profile = c.profile;
  a.pool_flags = c.overlap ? KVSTRATA_KERNELS_POOL_OVERLAP : 0;
  a.emit_flags = c.emit_flags;
  a.ratio = c.ratio;
  a.width = c.width;
  a.rope_dims = c.rope_dims;
  a.format = c.format;
  a.input_type = in.type;
  a.output_type = output_type;
  a.eps = 1e-6f;
  a.position = begin;
  a.tokens = end - begin;
  a.values = in.Values(begin);
  a.gates = in.Gates(begin);
  a.value_stride = a.gate_stride = in.stride;
  a.ape = in.ape.data();
  a.prev_values = s.prev_values.data();
  a.prev_gates = s.prev_gates.data();
  a.open_values = s.open_values.data();
  a.open_gates = s.open_gates.data();
  a.norm_weight = in.weight.data();
  a.frequencies = in.frequencies.data();
  a.entry_capacity = end / c.ratio - begin / c.ratio;
  if (output_type == KVSTRATA_KERNELS_PACKED) {
    a.packed = Planes(c, out, begin / c.ratio);
  } else {
    a.entry_stride = c.width + kEntryGap;
    a.entries = out.bytes[0].data() + begin / c.ratio * a.entry_stride * ElementBytes(output_type);
  }
  return a;
}

int32_t Run(const kvstrata_kernels& k, kvstrata_compress_args a) {
  uint64_t bytes = 0;
  if (const int32_t status = k.compress_workspace_bytes(&a, &bytes); status != 0) return status;
  std::vector<float> workspace(bytes / sizeof(float) + 1);
  a.workspace = workspace.data();
  a.workspace_bytes = bytes;
  return k.compress(&a, nullptr);
}

// The same by the calls that compress stands for.
void RunParts(const kvstrata_kernels& k, const Shape& c, const kvstrata_compress_args& a) {
  const uint64_t entries = a.entry_capacity;
  std::vector<float> rows(entries * c.width + 1);
  auto pool = Args<kvstrata_pool_args>();
  pool.flags = a.pool_flags;
  pool.ratio = a.ratio;
  pool.width = a.width;
  pool.position = a.position;
  pool.tokens = a.tokens;
  pool.values = a.values;
  pool.value_stride = a.value_stride;
  pool.gates = a.gates;
  pool.gate_stride = a.gate_stride;
  pool.ape = a.ape;
  pool.prev_values = a.prev_values;
  pool.prev_gates = a.prev_gates;
  pool.open_values = a.open_values;
  pool.open_gates = a.open_gates;
  pool.entries = rows.data();
  pool.entry_capacity = entries;
  pool.input_type = a.input_type;
  REQUIRE((c.ratio >= 8 && !c.overlap ? k.hca_pool : k.csa_pool)(&pool, nullptr) == 0);
  auto emit = Args<kvstrata_emit_entries_args>();
  emit.profile = a.profile;
  emit.flags = a.emit_flags;
  emit.format = a.format;
  emit.width = a.width;
  emit.rope_dims = a.rope_dims;
  emit.ratio = a.ratio;
  emit.eps = a.eps;
  emit.first_entry = a.position / a.ratio;
  emit.rows = entries;
  emit.pooled = emit.entries = rows.data();
  emit.norm_weight = a.norm_weight;
  emit.frequencies = a.frequencies;
  REQUIRE(k.emit_entries(&emit, nullptr) == 0);
  if (a.output_type == KVSTRATA_KERNELS_PACKED) {
    auto pack = Args<kvstrata_pack_rows_args>();
    pack.format = a.format;
    pack.width = a.width;
    pack.rope_dims = a.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? a.rope_dims : 0;
    pack.source_type = KVSTRATA_KERNELS_F32;
    pack.rows = entries;
    pack.source = rows.data();
    pack.codes = a.packed.codes;
    pack.code_stride_bytes = a.packed.code_stride_bytes;
    pack.rope = a.packed.rope;
    pack.rope_stride_bytes = a.packed.rope_stride_bytes;
    pack.scales = a.packed.scales;
    pack.scale_stride_bytes = a.packed.scale_stride_bytes;
    REQUIRE(k.pack_rows(&pack, nullptr) == 0);
    return;
  }
  for (uint64_t n = 0; n < entries; ++n) {
    uint8_t* to = static_cast<uint8_t*>(a.entries) + n * a.entry_stride * ElementBytes(a.output_type);
    if (a.output_type == KVSTRATA_KERNELS_F32) {
      std::memcpy(to, rows.data() + n * c.width, c.width * sizeof(float));
      continue;
    }
    auto convert = Args<kvstrata_convert_args>();
    convert.count = c.width;
    convert.source = rows.data() + n * c.width;
    convert.destination = to;
    REQUIRE(k.f32_to_bf16(&convert, nullptr) == 0);
  }
}

constexpr int32_t kOutputs[] = {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16, KVSTRATA_KERNELS_PACKED};

}  // namespace

TEST_CASE("compress is its three steps, bit for bit, and leaves the same state") {
  for (const kvstrata_kernels* k : Levels()) {
    for (const Shape& c : kShapes) {
      const uint64_t tokens = 7 * uint64_t{c.ratio} + c.ratio / 2;
      for (const int32_t input_type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
        const uint64_t seed = 81 + c.ratio;
        const Input in = MakeInput(c, tokens, input_type, seed);
        for (const int32_t output_type : kOutputs) {
          CAPTURE(k->name, c.name, input_type, output_type, seed);
          Output got = MakeOutput(c, tokens / c.ratio);
          Output expected = got;
          State state = FreshState(c);
          State expected_state = state;
          REQUIRE(Run(*k, CompressArgs(c, in, state, 0, tokens, output_type, got)) == 0);
          RunParts(*k, c, CompressArgs(c, in, expected_state, 0, tokens, output_type, expected));
          CHECK(got == expected);
          CHECK(state == expected_state);
        }
      }
    }
  }
}

TEST_CASE("blocks that round to half of the largest code, NaN, infinities and nothing pack as their quantised rows") {
  const Shape c = {"rows", 1, false, 64, 0, KVSTRATA_KERNELS_FORMAT_V41_WINDOW, kNoNorm, KVSTRATA_KERNELS_PROFILE_Q};
  // The largest number of a token's first block; the others of the block spread over all of E4M3's range below it.
  const float largest[] = {228.0f,  3.5f,   57.0f,  225.0f * 0x1p-30f, kNan, kInfinity, 0.0f, 1e-4f,
                           5.4e-5f, 232.0f, 448.0f, 225.0f * 0x1p100f};
  const uint64_t tokens = std::size(largest);
  Input in = MakeInput(c, tokens, KVSTRATA_KERNELS_F32, 141);
  for (uint64_t n = 0; n < tokens; ++n) {
    for (uint32_t j = 0; j < 32; ++j) {
      in.values[n * in.stride + j] = (j % 2 == 0 ? largest[n] : -largest[n]) *
                                     std::ldexp(1.0f + 0.03f * static_cast<float>(j), -1 - static_cast<int>(j) / 2);
    }
    in.values[n * in.stride + 7] = largest[n];
  }
  for (const kvstrata_kernels* k : Levels()) {
    CAPTURE(k->name);
    Output got = MakeOutput(c, tokens);
    Output expected = got;
    State state = FreshState(c);
    REQUIRE(Run(*k, CompressArgs(c, in, state, 0, tokens, KVSTRATA_KERNELS_PACKED, got)) == 0);
    RunParts(*k, c, CompressArgs(c, in, state, 0, tokens, KVSTRATA_KERNELS_PACKED, expected));
    CHECK(got == expected);
  }
}

TEST_CASE("rows with denormals, zeros, NaN and infinities emit as the single steps, with the norm too") {
  const Shape c = {"rows", 1, false, 128, 64, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, KVSTRATA_KERNELS_PROFILE_Q};
  // What some channels of a token hold, beside ordinary numbers or, of odd tokens, beside nothing but denormals.
  const float odd[] = {0.0f, -0.0f, 3e-39f, -1e-45f, 0x1.fffp-127f, kNan, kInfinity, 3e38f, 1e-30f, 0x1.01p-126f};
  const uint64_t tokens = 2 * std::size(odd);
  Input in = MakeInput(c, tokens, KVSTRATA_KERNELS_F32, 142);
  for (uint64_t n = 0; n < tokens; ++n) {
    for (uint32_t j = 0; j < c.width; ++j) {
      float& value = in.values[n * in.stride + j];
      if (n % 2 == 1) value *= 0x1p-127f;
      if (j % 37 == 5) value = odd[n / 2];
    }
  }
  for (const kvstrata_kernels* k : Levels()) {
    CAPTURE(k->name);
    Output got = MakeOutput(c, tokens);
    Output expected = got;
    State state = FreshState(c);
    REQUIRE(Run(*k, CompressArgs(c, in, state, 0, tokens, KVSTRATA_KERNELS_PACKED, got)) == 0);
    RunParts(*k, c, CompressArgs(c, in, state, 0, tokens, KVSTRATA_KERNELS_PACKED, expected));
    CHECK(got == expected);
  }
}

TEST_CASE("compress does not depend on how the tokens are cut: single steps, odd chunks, random ones") {
  for (const kvstrata_kernels* k : Levels()) {
    for (const Shape& c : kShapes) {
      const uint64_t tokens = 4 * uint64_t{c.ratio} + 3;
      const uint64_t seed = 91 + c.ratio;
      Random random(seed);
      const Input in = MakeInput(c, tokens, c.ratio == 4 ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32, seed);
      Output one_shot = MakeOutput(c, tokens / c.ratio);
      State one_state = FreshState(c);
      REQUIRE(Run(*k, CompressArgs(c, in, one_state, 0, tokens, KVSTRATA_KERNELS_PACKED, one_shot)) == 0);
      for (int way = 0; way < 8; ++way) {
        CAPTURE(k->name, c.name, seed, way);
        Output got = MakeOutput(c, tokens / c.ratio);
        State state = FreshState(c);
        for (uint64_t p = 0; p < tokens;) {
          uint64_t step = way == 0 ? 1 : way == 1 ? 3 : way == 2 ? c.ratio : 1 + random.Below(3 * uint64_t{c.ratio});
          step = std::min(step, tokens - p);
          REQUIRE(Run(*k, CompressArgs(c, in, state, p, p + step, KVSTRATA_KERNELS_PACKED, got)) == 0);
          p += step;
          // Only what the contract keeps survives from call to call.
          state = Saved(c, state, p);
        }
        CHECK(got == one_shot);
        CHECK(state == Saved(c, one_state, tokens));
      }
    }
  }
}

TEST_CASE("bf16 inputs mean their widened floats") {
  for (const kvstrata_kernels* k : Levels()) {
    for (const Shape& c : kShapes) {
      const uint64_t tokens = 5 * uint64_t{c.ratio} + 1;
      const uint64_t seed = 101 + c.ratio;
      CAPTURE(k->name, c.name, seed);
      Input in = MakeInput(c, tokens, KVSTRATA_KERNELS_BF16, seed);
      Output halves = MakeOutput(c, tokens / c.ratio);
      Output floats = halves;
      State state = FreshState(c);
      State float_state = state;
      REQUIRE(Run(*k, CompressArgs(c, in, state, 0, tokens, KVSTRATA_KERNELS_F32, halves)) == 0);
      in.type = KVSTRATA_KERNELS_F32;
      REQUIRE(Run(*k, CompressArgs(c, in, float_state, 0, tokens, KVSTRATA_KERNELS_F32, floats)) == 0);
      CHECK(halves == floats);
      CHECK(state == float_state);
    }
  }
}

TEST_CASE("a prompt cut into parts that start one block early gives the same entries") {
  const Shape& c = kShapes[0];
  const uint64_t seed = 111;
  INFO("seed " << seed);
  const Input in = MakeInput(c, 64, KVSTRATA_KERNELS_F32, seed);
  for (const kvstrata_kernels* k : Levels()) {
    Output whole = MakeOutput(c, 16);
    State state = FreshState(c);
    REQUIRE(Run(*k, CompressArgs(c, in, state, 0, 64, KVSTRATA_KERNELS_PACKED, whole)) == 0);
    // The second part begins at token 28, one block before its first entry, 8, with a state of no weight.
    Output parts = MakeOutput(c, 16);
    State second = FreshState(c);
    second.prev_values.assign(second.prev_values.size(), 0.0f);
    second.prev_gates.assign(second.prev_gates.size(), -kInfinity);
    REQUIRE(Run(*k, CompressArgs(c, in, second, 28, 64, KVSTRATA_KERNELS_PACKED, parts)) == 0);
    State first = FreshState(c);
    REQUIRE(Run(*k, CompressArgs(c, in, first, 0, 32, KVSTRATA_KERNELS_PACKED, parts)) == 0);
    CAPTURE(k->name);
    CHECK(parts == whole);
    CHECK(Saved(c, second, 64) == Saved(c, state, 64));
  }
}

TEST_CASE("an open block without state, gates of minus infinity, weighs nothing in a long block either") {
  const Shape& c = kShapes[2];
  const uint64_t seed = 112;
  INFO("seed " << seed);
  const Input in = MakeInput(c, 128, KVSTRATA_KERNELS_F32, seed);
  for (const kvstrata_kernels* k : Levels()) {
    CAPTURE(k->name);
    // Tokens 40 .. 127 alone, the open rows before them filled as kernels.h says.
    State state = FreshState(c);
    state.open_values.assign(state.open_values.size(), 0.0f);
    state.open_gates.assign(state.open_gates.size(), -kInfinity);
    Shape pooled = c;
    pooled.profile = KVSTRATA_KERNELS_PROFILE_F;
    pooled.emit_flags = kNoNorm;
    Output out = MakeOutput(c, 1);
    REQUIRE(Run(*k, CompressArgs(pooled, in, state, 40, 128, KVSTRATA_KERNELS_F32, out)) == 0);
    for (uint32_t j = 0; j < c.width - c.rope_dims; ++j) {
      double weights = 0;
      double sum = 0;
      for (uint64_t t = 40; t < 128; ++t) {
        const double weight = std::exp(static_cast<double>(in.gates[t * in.stride + j]) + in.ape[t * c.channels() + j]);
        weights += weight;
        sum += weight * in.values[t * in.stride + j];
      }
      float got;
      std::memcpy(&got, out.bytes[0].data() + j * sizeof got, sizeof got);
      // As in pooling_test: differences of gates below 6, exp, sums of 88 weights; values up to 2.
      REQUIRE(std::fabs(got - sum / weights) <= 2.0 * (2 * (12 + 4) + 2 * 88 + 2) * kUnit);
    }
  }
}

TEST_CASE("what compress refuses leaves outputs and state untouched") {
  const Shape& c = kShapes[0];
  const Input in = MakeInput(c, 16, KVSTRATA_KERNELS_F32, 121);
  std::vector<float> workspace(c.width);
  for (const kvstrata_kernels* k : Levels()) {
    CAPTURE(k->name);
    Output out = MakeOutput(c, 4);
    const Output untouched = out;
    State state = FreshState(c);
    const State fresh = state;
    kvstrata_compress_args good = CompressArgs(c, in, state, 0, 16, KVSTRATA_KERNELS_PACKED, out);
    uint64_t bytes = 0;
    REQUIRE(k->compress_workspace_bytes(&good, &bytes) == 0);
    workspace.resize(bytes / sizeof(float) + 1);
    good.workspace = workspace.data();
    good.workspace_bytes = bytes;
    const auto refuses = [&](auto&& change) {
      kvstrata_compress_args a = good;
      change(a);
      CHECK(k->compress(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    };
    refuses([](kvstrata_compress_args& a) { a.workspace = nullptr; });
    refuses([](kvstrata_compress_args& a) { a.workspace_bytes -= 1; });
    refuses([](kvstrata_compress_args& a) { a.workspace = static_cast<uint8_t*>(a.workspace) + 1; });
    refuses([](kvstrata_compress_args& a) { a.format = KVSTRATA_KERNELS_FORMAT_NONE; });
    refuses([](kvstrata_compress_args& a) { a.profile = 0; });
    refuses([](kvstrata_compress_args& a) { a.ratio = 0; });
    refuses([](kvstrata_compress_args& a) { a.entry_capacity = 3; });
    refuses([](kvstrata_compress_args& a) { a.packed.codes = nullptr; });
    refuses([](kvstrata_compress_args& a) { a.packed.rope = nullptr; });
    refuses([](kvstrata_compress_args& a) { a.prev_gates = nullptr; });
    refuses([](kvstrata_compress_args& a) { a.open_values = nullptr; });
    refuses([](kvstrata_compress_args& a) { a.frequencies = nullptr; });
    refuses([](kvstrata_compress_args& a) { a.input_type = KVSTRATA_KERNELS_PACKED; });
    refuses([](kvstrata_compress_args& a) { a.value_stride = 2 * 512 - 1; });
    refuses([](kvstrata_compress_args& a) { a.gates = static_cast<const uint8_t*>(a.gates) + 2; });
    CHECK(out == untouched);
    CHECK(state == fresh);
    CHECK(k->compress(&good, nullptr) == 0);
    CHECK_FALSE(out == untouched);
  }
}

namespace {

// The rows of three entries in profile F, tight.
std::vector<float> FloatRows(const kvstrata_kernels& k, Shape c, uint32_t emit_flags, const Input& in) {
  c.profile = KVSTRATA_KERNELS_PROFILE_F;
  c.emit_flags = emit_flags;
  Output out = MakeOutput(c, 3);
  State state = FreshState(c);
  REQUIRE(Run(k, CompressArgs(c, in, state, 0, 3 * uint64_t{c.ratio}, KVSTRATA_KERNELS_F32, out)) == 0);
  std::vector<float> rows(3 * uint64_t{c.width});
  for (uint64_t n = 0; n < 3; ++n) {
    const size_t row_bytes = c.width * sizeof(float);
    std::memcpy(rows.data() + n * c.width, out.bytes[0].data() + n * (row_bytes + kEntryGap * sizeof(float)),
                row_bytes);
  }
  return rows;
}

}  // namespace

TEST_CASE("levels agree: the rows of every level lie within rounding of the reference's") {
  for (const Shape& c : kShapes) {
    const uint64_t seed = 131 + c.ratio;
    const Input in = MakeInput(c, 3 * uint64_t{c.ratio}, KVSTRATA_KERNELS_F32, seed);
    const uint32_t flags = c.emit_flags & kNoNorm;
    const std::vector<float> expected = FloatRows(Reference(), c, flags, in);
    // Two pooled rows differ by at most twice the bound of pooling_test. The norm multiplies that by at most 2 (the
    // weights) over the row's root mean square (a rotation keeps both), and adds 30 roundings of the result.
    const std::vector<float> pooled = FloatRows(Reference(), c, kNoNorm, in);
    const double n = c.overlap ? 2.0 * c.ratio : c.ratio;
    const double pooled_bound = 2 * 2.0 * (2 * (12 + 4) + 2 * n + 2) * kUnit;
    for (const kvstrata_kernels* k : Levels()) {
      CAPTURE(k->name, c.name, seed);
      const std::vector<float> got = FloatRows(*k, c, flags, in);
      for (size_t row = 0; row < 3; ++row) {
        double squares = 0;
        double worst = 0;
        double largest = 0;
        for (size_t i = row * c.width; i < (row + 1) * c.width; ++i) {
          squares += static_cast<double>(pooled[i]) * pooled[i];
          worst = std::max(worst, std::fabs(double{got[i]} - expected[i]));
          largest = std::max(largest, std::fabs(double{expected[i]}));
        }
        const double gain = flags != 0 ? std::sqrt(2.0) : 2 * std::sqrt(2.0) / std::sqrt(squares / c.width);
        CHECK(worst <= gain * pooled_bound + 30 * kUnit * largest);
      }
    }
  }
}
