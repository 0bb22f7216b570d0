// SPDX-License-Identifier: Apache-2.0
// Pooling with state, emission, and both in one pass. Tolerances, u = 2^-24:
//   pooled rows  2 (2 (D + 4) + 2 n + 2) u V for n gates within D of each other and values below V: a difference of
//                gates carries D u absolute error into exp, which adds up to 4; both sums have n terms
//   state        equal bits: copies, and one sum with the position bias
//   emission     step by step, what a last bit becomes (Propagate); and over a whole run only a small share of the
//                rounded numbers may differ at all (kernels_fuzz_test.cc)
//   compress     equal bits to the three calls on the same level
#include <algorithm>

#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {
namespace {

struct Shape {
  uint32_t ratio = 1, width = 0, rope_dims = 0;
  bool overlap = false;
  int32_t format = KVSTRATA_KERNELS_FORMAT_NONE;
  uint32_t emit_flags = 0;
  float eps = 1e-6f;

  uint64_t channels() const { return (overlap ? 2 : 1) * uint64_t{width}; }
  uint64_t Emitted(uint64_t position, uint64_t tokens) const { return (position + tokens) / ratio - position / ratio; }
};

Shape SmallShape(Case& c) {
  Shape s;
  s.ratio = static_cast<uint32_t>(c.rng.Between(1, 6));
  s.overlap = c.rng.Chance(50);
  s.rope_dims = static_cast<uint32_t>(2 * c.rng.Below(12));
  if (c.rng.Chance(50)) {
    s.width = s.rope_dims + static_cast<uint32_t>(c.rng.Between(1, 90));
  } else {
    s.width = s.rope_dims + static_cast<uint32_t>(64 * c.rng.Between(1, 3));
    s.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  }
  if (c.rng.Chance(20)) s.emit_flags = KVSTRATA_KERNELS_EMIT_NO_NORM;
  return s;
}

// The compressors of V4 and V4.1 (reference sections 2, 4 and 11.2), and small ones of any shape.
Shape AnyShapeOfCompressor(Case& c) {
  using S = Shape;
  const uint32_t hadamard = KVSTRATA_KERNELS_EMIT_HADAMARD;
  const uint32_t no_norm = KVSTRATA_KERNELS_EMIT_NO_NORM;
  switch (c.rng.Below(9)) {
    case 0:
    case 1: return S{4, 512, 64, true, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, 1e-6f};
    case 2: return S{128, c.rng.Chance(30) ? 512u : 128u, 64, false, KVSTRATA_KERNELS_FORMAT_V4_ROW, 0, 1e-6f};
    case 3: return S{4, 128, 64, true, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, hadamard, 1e-6f};
    case 4: return S{4, 128, 64, true, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, hadamard, 1e-6f};
    case 5: return S{1, 512, 64, false, KVSTRATA_KERNELS_FORMAT_V41_WINDOW, 0, 1e-20f};
    case 6:
      return S{static_cast<uint32_t>(c.rng.Between(1, 2)),
               512,
               64,
               false,
               KVSTRATA_KERNELS_FORMAT_V41_ENTRY,
               c.rng.Chance(50) ? no_norm : 0,
               1e-20f};
    default: return SmallShape(c);
  }
}

// Tokens, position bias and a state that is only there where the contract reads it.
struct PoolData {
  uint64_t position = 0, tokens = 0;
  Matrix values, gates;
  std::vector<float> ape;
  const float* ape_data = nullptr;
  std::vector<float> prev_values, prev_gates, open_values, open_gates;  // before the call
};

// One set of state buffers; calls on different levels and in different pieces each have their own.
struct State {
  float *prev_values, *prev_gates, *open_values, *open_gates;
};

PoolData MakePoolData(Case& c, const Shape& s) {
  PoolData d;
  const uint64_t m = s.ratio;
  d.position = c.rng.Chance(30) ? 0 : c.rng.Below(c.rng.Chance(50) ? 3 * m : 1000000);
  d.tokens = c.rng.Below(2 * m + m / 2 + 4);
  const int32_t type = c.rng.Chance(50) ? KVSTRATA_KERNELS_F32 : KVSTRATA_KERNELS_BF16;
  d.values = c.Rows(type, d.tokens, s.channels(), Fill::kPlain);
  d.gates = c.Rows(type, d.tokens, s.channels(), Fill::kPlain);
  if (c.rng.Chance(70)) {
    d.ape = c.Numbers(m * s.channels(), Fill::kPlain);
    d.ape_data = c.Input(d.ape);
  }
  const uint64_t open = d.position % m * s.channels();
  const bool has_previous = s.overlap && d.position >= m;
  for (std::vector<float>* state : {&d.open_values, &d.open_gates}) {
    *state = c.Numbers(open, Fill::kPlain);
    state->resize(m * s.channels(), kNan);
  }
  for (std::vector<float>* state : {&d.prev_values, &d.prev_gates}) {
    if (has_previous) *state = c.Numbers(m * s.width, Fill::kPlain);
    state->resize(m * s.width, kNan);
  }
  return d;
}

State CopyState(Case& c, const PoolData& d) {
  return {c.Copy(d.prev_values), c.Copy(d.prev_gates), c.Copy(d.open_values), c.Copy(d.open_gates)};
}

// The part of the state that means something after all tokens.
void AddState(Case& c, const Shape& s, const PoolData& d, const State& state, const std::string& name) {
  if (s.ratio == 1 && !s.overlap) return;
  const uint64_t end = d.position + d.tokens;
  const uint64_t open = end % s.ratio * s.channels() * sizeof(float);
  c.AddOutput(name + " open_values", Element::kFloat, Match::kBits, state.open_values, open);
  c.AddOutput(name + " open_gates", Element::kFloat, Match::kBits, state.open_gates, open);
  if (!s.overlap || end < s.ratio) return;
  const uint64_t previous = uint64_t{s.ratio} * s.width * sizeof(float);
  c.AddOutput(name + " prev_values", Element::kFloat, Match::kBits, state.prev_values, previous);
  c.AddOutput(name + " prev_gates", Element::kFloat, Match::kBits, state.prev_gates, previous);
}

kvstrata_pool_args PoolArgs(const Shape& s, const PoolData& d, const State& state, uint64_t done, uint64_t piece) {
  kvstrata_pool_args a = Args<kvstrata_pool_args>();
  a.flags = s.overlap ? KVSTRATA_KERNELS_POOL_OVERLAP : 0;
  a.ratio = s.ratio;
  a.width = s.width;
  a.position = d.position + done;
  a.tokens = piece;
  a.values = d.values.At(done);
  a.value_stride = d.values.stride;
  a.gates = d.gates.At(done);
  a.gate_stride = d.gates.stride;
  a.ape = d.ape_data;
  a.prev_values = state.prev_values;
  a.prev_gates = state.prev_gates;
  a.open_values = state.open_values;
  a.open_gates = state.open_gates;
  a.input_type = d.values.type;
  return a;
}

// Gates plain, bias plain: all within 16 of each other; values below 4.
double PoolTolerance(const Shape& s) {
  const double n = (s.overlap ? 2.0 : 1.0) * s.ratio;
  return s.ratio == 1 && !s.overlap ? 0 : 2 * (2 * (16 + 4) + 2 * n + 2) * kUnit * 4;
}

// What a row may differ by, with the row itself in double: `value` after each step of emit_entries.
struct Propagated {
  std::vector<double> value, error;
  bool round;

  void Round() {
    if (!round) return;
    for (size_t i = 0; i < value.size(); ++i) error[i] += Bf16Step(std::fabs(value[i]) + error[i]);
  }
  void Norm(const float* weight, float eps) {
    double squares = 0;
    for (const double v : value) squares += v * v;
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(value.size()) + eps);
    for (size_t i = 0; i < value.size(); ++i) {
      value[i] *= inverse * (weight != nullptr ? weight[i] : 1.0);
      error[i] = static_cast<double>(value.size() + 16) * kUnit * std::fabs(value[i]);
    }
    Round();
  }
  void Rotate(uint32_t rope_dims, const float* frequencies, uint64_t position) {
    for (size_t k = 0, i = value.size() - rope_dims; k < rope_dims / 2; ++k, i += 2) {
      const double angle = static_cast<float>(position) * frequencies[k];
      const double a = value[i] * std::cos(angle) - value[i + 1] * std::sin(angle);
      const double b = value[i] * std::sin(angle) + value[i + 1] * std::cos(angle);
      const double size = std::fabs(value[i]) + std::fabs(value[i + 1]);
      error[i] = error[i + 1] = error[i] + error[i + 1] + 8 * kUnit * size;
      value[i] = a;
      value[i + 1] = b;
    }
    Round();
  }
  void Hadamard() {
    double errors = 0;
    double sizes = 0;
    for (const double e : error) errors += e;
    for (const double v : value) sizes += std::fabs(v);
    for (size_t half = 1; half < value.size(); half *= 2) {
      for (size_t i = 0; i < value.size(); ++i) {
        if ((i & half) != 0) continue;
        const double a = value[i];
        const double b = value[i + half];
        value[i] = a + b;
        value[i + half] = a - b;
      }
    }
    const double scale = 1 / std::sqrt(static_cast<double>(value.size()));
    for (double& v : value) v *= scale;
    for (double& e : error) e = (errors + 18 * kUnit * sizes) * scale;
    Round();
  }
  // Both sides round to a code of their own scale, of which one may be twice the other: half a step each. E4M3 steps
  // are 2^-3 of the number or 2^-9 of the scale, E2M1 steps at most half the number and half the scale at least; an
  // E4M3 scale, itself rounded by up to 2^-4, may cut the largest off.
  void Quantize(uint32_t begin, uint32_t end, bool e2m1) {
    double amax = 0;
    for (uint32_t i = begin; i < end; ++i) amax = std::max(amax, std::fabs(value[i]) + error[i]);
    const double scale = e2m1 ? 2 * amax / 6 : 2 * std::max(amax, 1e-4) / 448;
    for (uint32_t i = begin; i < end; ++i) {
      const double size = std::fabs(value[i]) + error[i];
      error[i] += e2m1 ? 2 * std::max(size / 4, scale / 4) + amax / 8 + 0x1p-9 : 2 * std::max(size / 16, scale / 1024);
    }
  }
};

// The largest differences of one emitted row.
std::vector<double> Propagate(const Shape& s, int32_t profile, const float* pooled, const float* weight,
                              const float* frequencies, uint64_t position) {
  Propagated p{std::vector<double>(pooled, pooled + s.width), std::vector<double>(s.width), profile != 1};
  if (p.round) {  // equal floats round to equal bf16 numbers: no error yet
    for (double& v : p.value) v = ToBf16(static_cast<float>(v));
  }
  if ((s.emit_flags & KVSTRATA_KERNELS_EMIT_NO_NORM) == 0) p.Norm(weight, s.eps);
  p.Rotate(s.rope_dims, frequencies, position);
  if (!p.round) return p.error;
  if ((s.emit_flags & KVSTRATA_KERNELS_EMIT_HADAMARD) != 0) p.Hadamard();
  const bool e2m1 = s.format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 || s.format == KVSTRATA_KERNELS_FORMAT_V41_ENTRY;
  uint32_t block = s.width;
  if (s.format == KVSTRATA_KERNELS_FORMAT_NONE) return p.error;
  if (s.format == KVSTRATA_KERNELS_FORMAT_V4_ROW) block = 64;
  if (s.format == KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 || s.format == KVSTRATA_KERNELS_FORMAT_V41_WINDOW) block = 32;
  if (s.format == KVSTRATA_KERNELS_FORMAT_V41_ENTRY) block = 16;
  const uint32_t quantised = s.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? s.width - s.rope_dims : s.width;
  for (uint32_t begin = 0; begin < quantised; begin += block) p.Quantize(begin, begin + block, e2m1);
  return p.error;
}

kvstrata_emit_entries_args EmitArgs(const Shape& s, int32_t profile) {
  kvstrata_emit_entries_args a = Args<kvstrata_emit_entries_args>();
  a.profile = profile;
  a.flags = s.emit_flags;
  a.format = s.format;
  a.width = s.width;
  a.rope_dims = s.rope_dims;
  a.ratio = s.ratio;
  a.eps = s.eps;
  return a;
}

// What compress is called with beside the pool's data.
struct Emission {
  int32_t profile, output_type;
  const float* weight;
  const float* frequencies;
  kvstrata_packed_shape packed_shape;
};

kvstrata_compress_args CompressArgs(const Shape& s, const PoolData& d, const State& state, const Emission& e,
                                    uint64_t done, uint64_t piece) {
  const kvstrata_pool_args pool = PoolArgs(s, d, state, done, piece);
  kvstrata_compress_args a = Args<kvstrata_compress_args>();
  a.profile = e.profile;
  a.pool_flags = pool.flags;
  a.emit_flags = s.emit_flags;
  a.ratio = s.ratio;
  a.width = s.width;
  a.rope_dims = s.rope_dims;
  a.format = s.format;
  a.input_type = pool.input_type;
  a.output_type = e.output_type;
  a.eps = s.eps;
  a.position = pool.position;
  a.tokens = pool.tokens;
  a.values = pool.values;
  a.value_stride = pool.value_stride;
  a.gates = pool.gates;
  a.gate_stride = pool.gate_stride;
  a.ape = pool.ape;
  a.prev_values = pool.prev_values;
  a.prev_gates = pool.prev_gates;
  a.open_values = pool.open_values;
  a.open_gates = pool.open_gates;
  a.norm_weight = e.weight;
  a.frequencies = e.frequencies;
  return a;
}

// The three calls that compress stands for: rows [emitted][width] in floats.
std::vector<float> ThreeCalls(Case& c, const Shape& s, const PoolData& d, const State& state, const Emission& e) {
  const uint64_t emitted = s.Emitted(d.position, d.tokens);
  std::vector<float> rows(emitted * s.width + 1);
  kvstrata_pool_args pool = PoolArgs(s, d, state, 0, d.tokens);
  pool.entries = rows.data();
  pool.entry_capacity = emitted;
  c.Ok(c.k.csa_pool(&pool, nullptr), "csa_pool");
  kvstrata_emit_entries_args emit = EmitArgs(s, e.profile);
  emit.first_entry = d.position / s.ratio;
  emit.rows = emitted;
  emit.pooled = rows.data();
  emit.entries = rows.data();
  emit.norm_weight = e.weight;
  emit.frequencies = e.frequencies;
  c.Ok(c.k.emit_entries(&emit, nullptr), "emit_entries");
  return rows;
}

bool SameBytes(const void* a, const void* b, uint64_t bytes) { return bytes == 0 || std::memcmp(a, b, bytes) == 0; }

// Compares compress's rows with `rows` in the form that was asked for.
void ExpectRows(Case& c, const Shape& s, const Emission& e, const std::vector<float>& rows, const Matrix& entries,
                const Packed& packed, uint64_t emitted) {
  for (uint64_t n = 0; n < emitted; ++n) {
    const float* row = rows.data() + n * s.width;
    if (e.output_type == KVSTRATA_KERNELS_F32) {
      c.Expect(SameBytes(entries.At(n), row, s.width * 4), "compress differs from the three calls");
    } else if (e.output_type == KVSTRATA_KERNELS_BF16) {
      std::vector<uint16_t> bits(s.width);
      kvstrata_convert_args a = Args<kvstrata_convert_args>();
      a.count = s.width;
      a.source = row;
      a.destination = bits.data();
      c.Ok(c.k.f32_to_bf16(&a, nullptr), "f32_to_bf16");
      c.Expect(SameBytes(entries.At(n), bits.data(), s.width * 2), "compress to bf16 differs from the three calls");
    } else {
      const kvstrata_packed_shape& shape = e.packed_shape;
      std::vector<uint8_t> bytes(shape.row_bytes);
      kvstrata_pack_rows_args a = Args<kvstrata_pack_rows_args>();
      a.format = shape.format;
      a.width = shape.width;
      a.rope_dims = shape.rope_dims;
      a.rows = 1;
      a.source = row;
      a.codes = bytes.data();
      a.rope = bytes.data() + shape.code_bytes;
      a.scales = bytes.data() + shape.code_bytes + shape.rope_bytes;
      c.Ok(c.k.pack_rows(&a, nullptr), "pack_rows");
      const kvstrata_packed_planes at = packed.From(n);
      c.Expect(SameBytes(at.codes, a.codes, shape.code_bytes) && SameBytes(at.rope, a.rope, shape.rope_bytes) &&
                   SameBytes(at.scales, a.scales, shape.scale_bytes),
               "packed compress differs from the three calls");
    }
  }
}

Emission MakeEmission(Case& c, const Shape& s) {
  Emission e{};
  e.profile = static_cast<int32_t>(c.rng.Between(1, 3));
  std::vector<float> weights = c.Numbers(s.width, Fill::kPlain);
  if (c.rng.Chance(25)) {  // rows around and below the floor of a block's largest magnitude
    for (float& weight : weights) weight = std::ldexp(weight, -static_cast<int>(c.rng.Between(10, 20)));
  }
  e.weight = c.rng.Chance(80) ? c.Input(weights) : nullptr;
  std::vector<float> table;
  e.frequencies = Frequencies(c, s.rope_dims, table);
  e.output_type = static_cast<int32_t>(c.rng.Below(s.format == KVSTRATA_KERNELS_FORMAT_NONE ? 2 : 3));
  e.packed_shape = Args<kvstrata_packed_shape>();
  if (e.output_type != KVSTRATA_KERNELS_PACKED) return e;
  e.packed_shape.format = s.format;
  e.packed_shape.width = s.width;
  e.packed_shape.rope_dims = s.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? s.rope_dims : 0;
  REQUIRE(Reference().packed_shape(&e.packed_shape) == 0);
  return e;
}

// A workspace that is a byte too small: refused, and nothing has happened (the state would tell).
void ExpectRefusal(Case& c, kvstrata_compress_args a) {
  if (a.workspace_bytes == 0) return;
  --a.workspace_bytes;
  c.Expect(c.k.compress(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT, "compress took a short workspace");
}

}  // namespace

void FuzzPool(Case& c) {
  const Shape s = AnyShapeOfCompressor(c);
  const PoolData d = MakePoolData(c, s);
  const State state = CopyState(c, d);
  const auto pool = !s.overlap && c.rng.Chance(50) ? c.k.hca_pool : c.k.csa_pool;
  const uint64_t emitted = s.Emitted(d.position, d.tokens);
  AddState(c, s, d, state, "pool");
  const Matrix entries = c.OutputRows("pool entries", KVSTRATA_KERNELS_F32, emitted, s.width, Match::kTolerance);
  for (uint64_t n = 0; n < emitted; ++n) {
    for (uint64_t i = 0; i < s.width; ++i) c.Tolerate(n * entries.stride + i, PoolTolerance(s));
  }
  c.Freeze();
  for (uint64_t done = 0, piece = 0; done < d.tokens; done += piece) {
    piece = c.Piece(d.tokens - done);
    kvstrata_pool_args a = PoolArgs(s, d, state, done, piece);
    const uint64_t before = s.Emitted(d.position, done);
    a.entries = static_cast<float*>(entries.At(before));
    a.entry_stride = entries.stride;
    a.entry_capacity = emitted - before;
    c.Ok(pool(&a, nullptr), "pool");
  }
}

void FuzzEmitEntries(Case& c) {
  const Shape s = AnyShapeOfCompressor(c);
  const uint64_t rows = c.rng.Below(7);
  const uint64_t first = c.rng.Below(1000000 / s.ratio);
  const Matrix pooled = c.Rows(KVSTRATA_KERNELS_F32, rows, s.width, Fill::kPlain);
  const std::vector<float> weights = c.Numbers(s.width, Fill::kPlain);
  const float* weight = c.rng.Chance(80) ? c.Input(weights) : nullptr;
  std::vector<float> table;
  const float* frequencies = Frequencies(c, s.rope_dims, table);
  const int32_t profile = static_cast<int32_t>(c.rng.Between(1, 3));
  const char* name = profile == KVSTRATA_KERNELS_PROFILE_F ? "emit_entries" : "emit_entries, rounded";
  const Matrix entries = c.OutputRows(name, KVSTRATA_KERNELS_F32, rows, s.width, Match::kTolerance);
  for (uint64_t n = 0; c.tolerances() && n < rows; ++n) {
    const std::vector<double> errors =
        Propagate(s, profile, pooled.Row(n), weight, table.data(), (first + n) * s.ratio);
    for (uint64_t i = 0; i < s.width; ++i) c.Tolerate(n * entries.stride + i, errors[i]);
  }
  c.Freeze();
  for (uint64_t n = 0, piece = 0; n < rows; n += piece) {
    piece = c.Piece(rows - n);
    kvstrata_emit_entries_args a = EmitArgs(s, profile);
    a.first_entry = first + n;
    a.rows = piece;
    a.pooled = static_cast<const float*>(pooled.At(n));
    a.pooled_stride = pooled.stride;
    a.norm_weight = weight;
    a.frequencies = frequencies;
    a.entries = static_cast<float*>(entries.At(n));
    a.entry_stride = entries.stride;
    c.Ok(c.k.emit_entries(&a, nullptr), "emit_entries");
  }
}

void FuzzCompress(Case& c) {
  const Shape s = AnyShapeOfCompressor(c);
  const PoolData d = MakePoolData(c, s);
  const State state = CopyState(c, d);
  const State other = CopyState(c, d);
  const Emission e = MakeEmission(c, s);
  const uint64_t emitted = s.Emitted(d.position, d.tokens);
  AddState(c, s, d, state, "compress");
  Matrix entries;
  Packed packed;
  if (e.output_type == KVSTRATA_KERNELS_PACKED) {
    packed = c.PackedOutput("compress", e.packed_shape, emitted, Match::kSameLevelOnly);
  } else {
    entries = c.OutputRows("compress", e.output_type, emitted, s.width, Match::kSameLevelOnly);
  }
  c.Freeze();
  for (uint64_t done = 0, piece = 0; done < d.tokens; done += piece) {
    piece = c.Piece(d.tokens - done);
    kvstrata_compress_args a = CompressArgs(s, d, state, e, done, piece);
    const uint64_t before = s.Emitted(d.position, done);
    a.entry_capacity = emitted - before;
    if (e.output_type == KVSTRATA_KERNELS_PACKED) {
      a.packed = packed.From(before);
    } else {
      a.entries = entries.At(before);
      a.entry_stride = entries.stride;
    }
    c.Ok(c.k.compress_workspace_bytes(&a, &a.workspace_bytes), "compress_workspace_bytes");
    a.workspace = c.Workspace(a.workspace_bytes);
    if (c.whole()) ExpectRefusal(c, a);
    c.Ok(c.k.compress(&a, nullptr), "compress");
  }
  if (!c.whole()) return;
  ExpectRows(c, s, e, ThreeCalls(c, s, d, other, e), entries, packed, emitted);
}

}  // namespace kvstrata::kernels::test
