// SPDX-License-Identifier: Apache-2.0
// Rotation and norm. Tolerances, u = 2^-24 half an ulp of 1:
//   frequency   4 u f: the power may be off by an ulp, two more operations
//   rotation    8 u (|a| + |b|): sin and cos within 2 ulp, two products and a sum
//   norm        (width + 16) u |y|: each level sums width positive squares in an order of its own, half of which comes
//               through the root; five more operations
// In profiles Q and S one bf16 step on top: a last bit before the rounding may flip it.
#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {
namespace {

constexpr Fill kFinite[] = {Fill::kPlain, Fill::kWide};

// The rotated channels of one row, from the values before.
void TolerateRotation(Case& c, const Matrix& values, uint64_t begin, uint32_t rope_dims, bool round) {
  for (uint64_t i = begin; i < begin + rope_dims; i += 2) {
    const double size = std::fabs(values.floats[i]) + std::fabs(values.floats[i + 1]);
    const double tolerance = 8 * kUnit * size + (round ? Bf16Step(size) : 0);
    c.Tolerate(i, tolerance);
    c.Tolerate(i + 1, tolerance);
  }
}

}  // namespace

void FuzzRopeFrequencies(Case& c) {
  const uint32_t rope_dims = static_cast<uint32_t>(2 * c.rng.Below(40));
  kvstrata_rope_frequencies_args a = Args<kvstrata_rope_frequencies_args>();
  a.rope_dims = rope_dims;
  a.theta = static_cast<double>(c.rng.Between(2, 1000000));
  if (c.rng.Chance(60)) {
    a.yarn_factor = static_cast<double>(c.rng.Between(1, 40));
    a.original_length = static_cast<double>(c.rng.Between(64, 131072));
    a.beta_fast = 32;
    a.beta_slow = 1;
  }
  const Matrix to = c.OutputRows("rope_frequencies", KVSTRATA_KERNELS_F32, 1, rope_dims / 2, Match::kTolerance);
  a.frequencies = static_cast<float*>(to.data);
  c.Ok(c.k.rope_frequencies(&a, nullptr), "rope_frequencies");
  for (uint32_t i = 0; i < rope_dims / 2; ++i) c.Tolerate(i, 4 * kUnit * std::fabs(a.frequencies[i]));
}

void FuzzRope(Case& c) {
  const uint32_t width = c.rng.Chance(50) ? 512 : static_cast<uint32_t>(c.rng.Between(1, 150));
  const uint32_t rope_dims = width == 512 ? 64 : static_cast<uint32_t>(2 * c.rng.Below(width / 2 + 1));
  const uint64_t tokens = c.rng.Below(6);
  const uint64_t heads = c.rng.Between(1, 5);
  // A row of the matrix is a token with all its heads.
  const uint64_t head_stride = c.Stride(width);
  const Matrix values = c.InPlace(tokens, (heads - 1) * head_stride + width, c.OneOf(kFinite));
  std::vector<float> table;
  const float* frequencies = Frequencies(c, rope_dims, table);
  std::vector<int64_t> positions(tokens);
  for (int64_t& position : positions) position = static_cast<int64_t>(c.rng.Below(uint64_t{1} << c.rng.Below(21)));
  const int64_t* list = c.rng.Chance(50) ? c.Input(positions) : nullptr;
  const int64_t first = static_cast<int64_t>(c.rng.Below(1000000));
  const int64_t step = static_cast<int64_t>(c.rng.Between(1, 128));
  const int32_t profile = static_cast<int32_t>(c.rng.Between(1, 3));
  const uint32_t flags = c.rng.Chance(50) ? KVSTRATA_KERNELS_ROPE_INVERSE : 0;
  c.AddOutput("rope", Element::kFloat, Match::kTolerance, values.data, values.floats.size() * 4);
  for (uint64_t row = 0; row < tokens * heads; ++row) {
    const uint64_t begin = row / heads * values.stride + row % heads * head_stride + (width - rope_dims);
    TolerateRotation(c, values, begin, rope_dims, profile != KVSTRATA_KERNELS_PROFILE_F);
  }
  c.Freeze();
  for (uint64_t n = 0, piece = 0; n < tokens; n += piece) {
    piece = c.Piece(tokens - n);
    for (uint64_t h = 0, part = 0; h < heads; h += part) {
      part = c.Piece(heads - h);
      kvstrata_rope_args a = Args<kvstrata_rope_args>();
      a.profile = profile;
      a.flags = flags;
      a.heads = static_cast<uint32_t>(part);
      a.width = width;
      a.rope_dims = rope_dims;
      a.tokens = piece;
      a.values = static_cast<float*>(values.At(n, h * head_stride));
      a.token_stride = values.stride;
      a.head_stride = head_stride;
      a.positions = list != nullptr ? list + n : nullptr;
      a.first_position = first + static_cast<int64_t>(n) * step;
      a.position_step = step;
      a.frequencies = frequencies;
      c.Ok(c.k.rope(&a, nullptr), "rope");
    }
  }
}

void FuzzRmsNorm(Case& c) {
  constexpr uint32_t kWidths[] = {512, 512, 128, 1536};
  const uint32_t width = c.rng.Chance(50) ? c.OneOf(kWidths) : static_cast<uint32_t>(c.rng.Between(1, 300));
  const uint64_t rows = c.rng.Below(8);
  const bool in_place = c.rng.Chance(30);
  const Fill fill = c.OneOf(kFinite);
  const Matrix source = in_place ? c.InPlace(rows, width, fill) : c.Rows(KVSTRATA_KERNELS_F32, rows, width, fill);
  const float* weight = c.rng.Chance(80) ? c.Input(c.Numbers(width, Fill::kPlain)) : nullptr;
  const int32_t profile = static_cast<int32_t>(c.rng.Between(1, 3));
  const float eps = c.rng.Chance(50) ? 1e-6f : 1e-20f;
  Matrix to = source;
  if (in_place) {
    c.AddOutput("rms_norm in place", Element::kFloat, Match::kTolerance, to.data, to.floats.size() * 4);
  } else {
    to = c.OutputRows("rms_norm", KVSTRATA_KERNELS_F32, rows, width, Match::kTolerance);
  }
  c.Freeze();
  for (uint64_t row = 0, piece = 0; row < rows; row += piece) {
    piece = c.Piece(rows - row);
    kvstrata_rms_norm_args a = Args<kvstrata_rms_norm_args>();
    a.profile = profile;
    a.width = width;
    a.eps = eps;
    a.rows = piece;
    a.source = static_cast<const float*>(source.At(row));
    a.source_stride = source.stride;
    a.weight = weight;
    a.destination = static_cast<float*>(to.At(row));
    a.destination_stride = to.stride;
    c.Ok(c.k.rms_norm(&a, nullptr), "rms_norm");
  }
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t i = 0; i < width; ++i) {
      const double size = std::fabs(static_cast<const float*>(to.At(row))[i]);
      const double round = profile == KVSTRATA_KERNELS_PROFILE_F ? 0 : Bf16Step(size);
      c.Tolerate(row * to.stride + i, (width + 16) * kUnit * size + round);
    }
  }
}

}  // namespace kvstrata::kernels::test
