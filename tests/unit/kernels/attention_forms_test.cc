// SPDX-License-Identifier: Apache-2.0
// Attention over every form of rows and queries, at every level: against the reference within the tolerance of
// kernels.h, and independent of the form, of the other heads and of where the rows lie.
#include <algorithm>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

constexpr uint64_t kTokens = 3;
constexpr uint64_t kFirst = 700;
constexpr uint32_t kRatio = 4;
constexpr uint64_t kEntries = (kFirst + kTokens) / kRatio;

struct Shape {
  uint32_t heads;
  uint32_t width;
  uint32_t rope;
  uint32_t window;
  uint32_t picks;  // 0: all entries
};

// V4's row, a tile of heads and some more, and shapes at and beside the sizes that tiles have.
constexpr Shape kShapes[] = {{13, 512, 64, 40, 70}, {8, 512, 64, 128, 0}, {1, 128, 64, 1, 31},
                             {3, 192, 64, 33, 0},   {19, 64, 0, 16, 16},  {70, 96, 32, 31, 5}};

// What a row source is given as.
enum class Form { kF32, kBf16, kV4Row, kV41Window, kV41Entry };

int32_t FormatOf(Form form) {
  switch (form) {
    case Form::kV4Row: return KVSTRATA_KERNELS_FORMAT_V4_ROW;
    case Form::kV41Window: return KVSTRATA_KERNELS_FORMAT_V41_WINDOW;
    case Form::kV41Entry: return KVSTRATA_KERNELS_FORMAT_V41_ENTRY;
    default: return KVSTRATA_KERNELS_FORMAT_NONE;
  }
}

std::vector<uint16_t> Halves(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  for (float value : values) halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(ToBf16(value)) >> 16));
  return halves;
}

// The same rows three times: packed, and what they mean as floats and as bf16.
struct Rows {
  int32_t format = KVSTRATA_KERNELS_FORMAT_NONE;
  std::vector<uint8_t> packed;
  kvstrata_packed_shape shape{};
  std::vector<float> floats;
  std::vector<uint16_t> halves;

  Rows(Random& random, Form form, uint64_t count, const Shape& s) : format(FormatOf(form)) {
    floats = random.Floats(count * s.width, 1.0f);
    for (float& value : floats) value = ToBf16(value);
    if (format != KVSTRATA_KERNELS_FORMAT_NONE) Pack(count, s);
    halves = Halves(floats);
  }

  kvstrata_packed_planes Planes() {
    kvstrata_packed_planes planes{};
    planes.codes = packed.data();
    planes.rope = packed.data() + shape.code_bytes;
    planes.scales = planes.rope + shape.rope_bytes;
    planes.code_stride_bytes = planes.rope_stride_bytes = planes.scale_stride_bytes = shape.row_bytes;
    return planes;
  }

 private:
  void Pack(uint64_t count, const Shape& s) {
    shape = Args<kvstrata_packed_shape>();
    shape.format = format;
    shape.width = s.width;
    shape.rope_dims = format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? s.rope : 0;
    REQUIRE(Reference().packed_shape(&shape) == 0);
    packed.resize(count * shape.row_bytes);
    const kvstrata_packed_planes planes = Planes();
    auto pack = Args<kvstrata_pack_rows_args>();
    pack.format = format;
    pack.width = s.width;
    pack.rope_dims = shape.rope_dims;
    pack.rows = count;
    pack.source = floats.data();
    pack.codes = planes.codes;
    pack.rope = planes.rope;
    pack.scales = planes.scales;
    pack.code_stride_bytes = pack.rope_stride_bytes = pack.scale_stride_bytes = shape.row_bytes;
    REQUIRE(Reference().pack_rows(&pack, nullptr) == 0);
    Unpack(count);
  }

 public:
  void Unpack(uint64_t count) {
    const kvstrata_packed_planes planes = Planes();
    auto unpack = Args<kvstrata_unpack_rows_args>();
    unpack.format = format;
    unpack.width = shape.width;
    unpack.rope_dims = shape.rope_dims;
    unpack.rows = count;
    unpack.codes = planes.codes;
    unpack.rope = planes.rope;
    unpack.scales = planes.scales;
    unpack.code_stride_bytes = unpack.rope_stride_bytes = unpack.scale_stride_bytes = shape.row_bytes;
    unpack.destination = floats.data();
    REQUIRE(Reference().unpack_rows(&unpack, nullptr) == 0);
    halves = Halves(floats);
  }
};

// How a call gets its rows and queries.
enum class As { kFloats, kHalves, kPacked };

struct Problem {
  Shape shape;
  Rows window;
  Rows entries;
  std::vector<float> queries;  // bf16 numbers
  std::vector<uint16_t> query_halves;
  std::vector<float> sinks, frequencies;
  std::vector<int32_t> picks;

  Problem(Random& random, const Shape& s, Form window_form, Form entry_form)
      : shape(s),
        window(random, window_form, WindowRows(s), s),
        entries(random, entry_form, kEntries, s),
        queries(random.Floats(kTokens * s.heads * s.width, 2.0f)),
        sinks(random.Floats(s.heads, 3.0f)),
        frequencies(random.Floats(s.rope / 2 + 1, 0.5f)) {
    query_halves = Halves(queries);
    for (float& value : queries) value = ToBf16(value);
    for (uint64_t i = 0; i < kTokens * s.picks; ++i) {
      const bool none = random.Below(8) == 0;
      picks.push_back(none ? -1 : static_cast<int32_t>(random.Below((kFirst + 1) / kRatio)));
    }
  }

  static uint64_t WindowRows(const Shape& s) { return s.window + kTokens - 1; }
  uint64_t WindowFirst() const { return kFirst + 1 - shape.window; }

  kvstrata_attention_args Call(int32_t profile, bool half_queries, As as) {
    auto a = Args<kvstrata_attention_args>();
    a.profile = profile;
    a.heads = shape.heads;
    a.width = shape.width;
    a.rope_dims = shape.rope;
    a.window = shape.window;
    a.ratio = kRatio;
    a.tokens = kTokens;
    a.first_position = kFirst;
    a.query_type = half_queries ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32;
    a.queries = half_queries ? static_cast<const void*>(query_halves.data()) : queries.data();
    a.window_first = WindowFirst();
    a.window_rows = WindowRows(shape);
    a.entry_count = kEntries;
    a.pick_count = shape.picks;
    a.picks = shape.picks != 0 ? picks.data() : nullptr;
    a.sinks = sinks.data();
    a.frequencies = frequencies.data();
    Give(window, as, a.window_kv, a.window_type, a.window_format, a.packed_window);
    Give(entries, as, a.entries, a.entry_type, a.entry_format, a.packed_entries);
    return a;
  }

 private:
  static void Give(Rows& rows, As as, const void*& typed, int32_t& type, int32_t& format,
                   kvstrata_packed_planes& planes) {
    if (as == As::kPacked && rows.format != KVSTRATA_KERNELS_FORMAT_NONE) {
      format = rows.format;
      planes = rows.Planes();
    } else if (as == As::kFloats) {
      type = KVSTRATA_KERNELS_F32;
      typed = rows.floats.data();
    } else {
      type = KVSTRATA_KERNELS_BF16;
      typed = rows.halves.data();
    }
  }
};

std::vector<float> Run(const kvstrata_kernels& level, kvstrata_attention_args a) {
  uint64_t bytes = 0;
  REQUIRE(level.attention_workspace_bytes(&a, &bytes) == 0);
  std::vector<float> workspace((bytes + 3) / sizeof(float), kNan);
  std::vector<float> output(a.tokens * a.heads * a.width, kNan);
  a.workspace = workspace.data();
  a.workspace_bytes = bytes;
  a.output = output.data();
  REQUIRE(level.attention(&a, nullptr) == 0);
  return output;
}

// The tolerance of kernels.h for one call, with the largest |kv| and the largest sum of |q kv| of any row in place of
// those of the query's own.
double Tolerance(const Problem& p, int32_t profile, bool inverse) {
  double largest = 0;
  for (const Rows* rows : {&p.window, &p.entries}) {
    for (float value : rows->floats) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  double query = 0;
  for (uint64_t n = 0; n < kTokens * p.shape.heads; ++n) {
    double sum = 0;
    for (uint32_t c = 0; c < p.shape.width; ++c) sum += std::fabs(p.queries[n * p.shape.width + c]);
    query = std::max(query, sum);
  }
  const double entries = p.shape.picks != 0 ? p.shape.picks : static_cast<double>(kEntries);
  const double rows = p.shape.window + entries;
  const double logit = (p.shape.width + 4) * query * largest / std::sqrt(static_cast<double>(p.shape.width));
  double tolerance = 4 * (logit + rows + 96) * kUnit * largest;
  if (profile != KVSTRATA_KERNELS_PROFILE_F) tolerance += 0x1p-6 * largest;
  if (!inverse) return tolerance;
  return 1.5 * tolerance + (profile != KVSTRATA_KERNELS_PROFILE_F ? 0x1p-6 * largest : 0);
}

double Furthest(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double furthest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::isfinite(a[i]));
    furthest = std::max(furthest, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return furthest;
}

// Forms that a shape can be packed in.
std::vector<std::pair<Form, Form>> Forms(const Shape& s) {
  std::vector<std::pair<Form, Form>> forms = {{Form::kBf16, Form::kBf16}};
  if (s.width % 32 == 0) forms.push_back({Form::kV41Window, Form::kV41Entry});
  if ((s.width - s.rope) % 64 == 0) forms.push_back({Form::kV4Row, Form::kV4Row});
  return forms;
}

template <typename Function>
void ForAllProblems(uint64_t seed, Function&& function) {
  INFO("seed " << seed);
  Random random(seed);
  for (const Shape& shape : kShapes) {
    for (const auto& [window, entries] : Forms(shape)) {
      INFO("heads " << shape.heads << " width " << shape.width << " forms " << static_cast<int>(window) << " "
                    << static_cast<int>(entries));
      Problem problem(random, shape, window, entries);
      for (const kvstrata_kernels* level : Levels()) {
        INFO(level->name);
        function(problem, *level);
      }
    }
  }
}

}  // namespace

TEST_CASE("levels agree with the reference within the tolerance, whatever rows and queries are made of") {
  ForAllProblems(191, [](Problem& p, const kvstrata_kernels& level) {
    for (const int32_t profile : {KVSTRATA_KERNELS_PROFILE_F, KVSTRATA_KERNELS_PROFILE_Q}) {
      for (const bool inverse : {false, true}) {
        kvstrata_attention_args a = p.Call(profile, true, As::kPacked);
        if (inverse) a.flags = KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE;
        const double tolerance = Tolerance(p, profile, inverse);
        CHECK(Furthest(Run(level, a), Run(Reference(), a)) <= tolerance);
      }
    }
  });
}

TEST_CASE("rounding differences between levels are rare and single steps: the mean error is far below the bound") {
  ForAllProblems(192, [](Problem& p, const kvstrata_kernels& level) {
    const kvstrata_attention_args a = p.Call(KVSTRATA_KERNELS_PROFILE_Q, true, As::kPacked);
    const std::vector<float> got = Run(level, a);
    const std::vector<float> expected = Run(Reference(), a);
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::fabs(static_cast<double>(got[i]) - expected[i]);
      size += std::fabs(static_cast<double>(expected[i]));
    }
    // One step of bf16 (2^-8 of a number) in one of eight outputs.
    CHECK(error <= size * 0x1p-8 / 8);
  });
}

TEST_CASE("packed rows give the bits of the bf16 rows that they mean, and float rows with float queries likewise") {
  ForAllProblems(193, [](Problem& p, const kvstrata_kernels& level) {
    for (const int32_t profile : {KVSTRATA_KERNELS_PROFILE_F, KVSTRATA_KERNELS_PROFILE_S}) {
      const std::vector<float> halves = Run(level, p.Call(profile, true, As::kHalves));
      CHECK(SameBits(Run(level, p.Call(profile, true, As::kPacked)), halves));
      const std::vector<float> floats = Run(level, p.Call(profile, false, As::kFloats));
      CHECK(SameBits(Run(level, p.Call(profile, false, As::kPacked)), floats));
      CHECK(SameBits(Run(level, p.Call(profile, false, As::kHalves)), floats));
    }
  });
}

TEST_CASE("a head's output does not depend on the other heads, nor a token's on the other tokens") {
  ForAllProblems(194, [](Problem& p, const kvstrata_kernels& level) {
    for (const bool half_queries : {false, true}) {
      kvstrata_attention_args a = p.Call(KVSTRATA_KERNELS_PROFILE_Q, half_queries, As::kPacked);
      const std::vector<float> whole = Run(level, a);
      const uint64_t element = half_queries ? 2 : 4;
      for (const uint64_t token : {uint64_t{0}, kTokens - 1}) {
        for (const uint32_t head : {0u, a.heads / 2, a.heads - 1}) {
          kvstrata_attention_args one = a;
          one.heads = 1;
          one.tokens = 1;
          one.first_position = kFirst + token;
          one.query_token_stride = one.query_head_stride = a.width;
          const uint64_t place = (token * a.heads + head) * a.width;
          one.queries = static_cast<const uint8_t*>(a.queries) + place * element;
          one.sinks = a.sinks + head;
          if (a.picks != nullptr) one.picks = a.picks + token * a.pick_count;
          const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(place);
          CHECK(SameBits(Run(level, one), std::vector<float>(begin, begin + a.width)));
        }
      }
    }
  });
}

TEST_CASE("picks of -1 are as if they were not in the list") {
  ForAllProblems(195, [](Problem& p, const kvstrata_kernels& level) {
    if (p.shape.picks == 0) return;
    kvstrata_attention_args a = p.Call(KVSTRATA_KERNELS_PROFILE_Q, true, As::kPacked);
    a.tokens = 1;
    std::vector<int32_t> kept;
    std::copy_if(p.picks.begin(), p.picks.begin() + p.shape.picks, std::back_inserter(kept),
                 [](int32_t pick) { return pick != -1; });
    const std::vector<float> with = Run(level, a);
    a.picks = kept.data();
    a.pick_count = static_cast<uint32_t>(kept.size());
    CHECK(SameBits(Run(level, a), with));
  });
}

TEST_CASE("bf16 output is the float output rounded, and strides are obeyed") {
  ForAllProblems(196, [](Problem& p, const kvstrata_kernels& level) {
    for (const int32_t profile : {KVSTRATA_KERNELS_PROFILE_F, KVSTRATA_KERNELS_PROFILE_Q}) {
      kvstrata_attention_args a = p.Call(profile, true, As::kPacked);
      const std::vector<float> floats = Run(level, a);
      const uint64_t head_stride = a.width + 3;
      const uint64_t token_stride = a.heads * head_stride + 5;
      std::vector<uint16_t> output(kTokens * token_stride, 0x7777);
      uint64_t bytes = 0;
      a.output_type = KVSTRATA_KERNELS_BF16;
      a.output_head_stride = head_stride;
      a.output_token_stride = token_stride;
      REQUIRE(level.attention_workspace_bytes(&a, &bytes) == 0);
      std::vector<float> workspace((bytes + 3) / sizeof(float));
      a.workspace = workspace.data();
      a.workspace_bytes = bytes;
      a.output = output.data();
      REQUIRE(level.attention(&a, nullptr) == 0);
      uint64_t written = 0;
      for (uint64_t n = 0; n < kTokens * a.heads; ++n) {
        const uint64_t place = n / a.heads * token_stride + n % a.heads * head_stride;
        const auto begin = floats.begin() + static_cast<std::ptrdiff_t>(n * a.width);
        const std::vector<uint16_t> expected = Halves(std::vector<float>(begin, begin + a.width));
        REQUIRE(std::equal(expected.begin(), expected.end(), output.begin() + static_cast<std::ptrdiff_t>(place)));
        written += a.width;
      }
      CHECK(std::count(output.begin(), output.end(), 0x7777) >= static_cast<std::ptrdiff_t>(output.size() - written));
    }
  });
}

TEST_CASE("packed rows with NaN codes and extreme scales mean what unpack_rows gives") {
  for (const Form form : {Form::kV4Row, Form::kV41Window, Form::kV41Entry}) {
    Random random(197);
    const Shape shape{9, 512, 64, 4, 40};
    Problem p(random, shape, form, form);
    // Scales at both ends in some entries; products stay finite with queries this small.
    const kvstrata_packed_planes planes = p.entries.Planes();
    const bool e4m3_scales = form == Form::kV41Entry;
    for (uint64_t row = 0; row < kEntries; row += 3) {
      planes.scales[row * planes.scale_stride_bytes] = e4m3_scales ? 0x7E : 180;
      planes.scales[row * planes.scale_stride_bytes + 1] = e4m3_scales ? 1 : 3;
    }
    p.entries.Unpack(kEntries);
    for (uint16_t& half : p.query_halves) half = static_cast<uint16_t>(half & 0x8000u) | 0x2000u;  // 2^-63
    for (const kvstrata_kernels* level : Levels()) {
      INFO(level->name << " form " << static_cast<int>(form));
      const std::vector<float> got = Run(*level, p.Call(KVSTRATA_KERNELS_PROFILE_Q, true, As::kPacked));
      CHECK(SameBits(got, Run(*level, p.Call(KVSTRATA_KERNELS_PROFILE_Q, true, As::kHalves))));
      REQUIRE(std::all_of(got.begin(), got.end(), [](float v) { return std::isfinite(v); }));
    }
    if (e4m3_scales) continue;
    // A NaN in one channel of a picked entry: NaN logits, so NaN everywhere for that token.
    const int32_t pick = *std::find_if(p.picks.begin(), p.picks.end(), [](int32_t i) { return i != -1; });
    planes.codes[static_cast<uint64_t>(pick) * planes.code_stride_bytes + 7] = 0xFF;
    for (const kvstrata_kernels* level : Levels()) {
      INFO(level->name << " form " << static_cast<int>(form));
      kvstrata_attention_args a = p.Call(KVSTRATA_KERNELS_PROFILE_Q, true, As::kPacked);
      a.tokens = 1;
      const std::vector<float> got = Run(*level, a);
      REQUIRE(std::all_of(got.begin(), got.end(), [](float v) { return std::isnan(v); }));
    }
  }
}
