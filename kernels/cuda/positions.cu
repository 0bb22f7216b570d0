// SPDX-License-Identifier: Apache-2.0
// RoPE and RMSNorm.
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/words.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::cuda {
namespace {

struct Frequencies {
  static constexpr uint32_t kThreads = 32;

  float* frequencies;
  uint32_t rope_dims;
  double theta;
  float yarn_factor;
  double low, high;

  // The formula of kernels.h: the power in double, rounded once; the mix in fp32.
  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t k = t.first(); k < rope_dims / 2; k += t.step()) {
      const float exponent = static_cast<float>(2 * k) / static_cast<float>(rope_dims);
      const float plain = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
      const double position = (static_cast<double>(k) - low) / (high - low);
      const float ramp = static_cast<float>(position < 0 ? 0 : position > 1 ? 1 : position);
      frequencies[k] = yarn_factor > 0 ? plain / yarn_factor * ramp + plain * (1.0f - ramp) : plain;
    }
  }
};

struct Rotate {
  static constexpr uint32_t kThreads = 128;
  // Heads that share one computation of sine and cosine: few enough that one token of 64 heads fills a warp per pair.
  static constexpr uint32_t kHeads = 8;

  float* values;  // of the first rotated channel
  uint64_t token_stride, head_stride;
  const int64_t* positions;
  int64_t first_position, position_step;
  const float* frequencies;
  uint64_t tokens;
  uint32_t heads, pairs;
  bool inverse, round;

  KVSTRATA_HOST_DEVICE uint32_t head_groups() const { return (heads + kHeads - 1) / kHeads; }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint64_t per_token = uint64_t{head_groups()} * pairs;
    for (uint64_t index = t.first(); index < tokens * per_token; index += t.step()) {
      const Quotient token = Divide(index, per_token);
      const uint32_t group = static_cast<uint32_t>(token.rest) / pairs;
      const uint32_t pair = static_cast<uint32_t>(token.rest) % pairs;
      // Unsigned, so that a caller's nonsense wraps instead of being undefined.
      const uint64_t stepped =
          static_cast<uint64_t>(first_position) + token.whole * static_cast<uint64_t>(position_step);
      const int64_t position = positions != nullptr ? positions[token.whole] : static_cast<int64_t>(stepped);
      const reference::SinCos turn = reference::SinCosOf(static_cast<float>(position) * frequencies[pair]);
      float* channels = values + token.whole * token_stride + 2 * pair;
      for (uint32_t h = group * kHeads; h < heads && h < (group + 1) * kHeads; ++h) {
        RotatePair(turn, inverse, round, channels + h * head_stride);
      }
    }
  }
};

// A warp has a row.
struct Normalise {
  static constexpr uint32_t kThreads = 128;

  const float* source;
  uint64_t source_stride;
  const float* weight;
  float* destination;
  uint64_t destination_stride;
  uint64_t rows;
  uint32_t width;
  float eps;
  bool round;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t row = t.first() / kWarp; row < rows; row += t.step() / kWarp) {
      const float* from = source + row * source_stride;
      const float inverse = InverseNorm(t, from, width, eps);
      float* to = destination + row * destination_stride;
      for (uint32_t c = t.lane(); c < width; c += kWarp) to[c] = Scaled(from[c], inverse, weight, c, round);
    }
  }
};

// The (fractional) index of the frequency that turns `rotations` times within the original length.
double YarnBoundary(const kvstrata_rope_frequencies_args& a, double rotations) {
  constexpr double kPi = 3.14159265358979323846;
  return a.rope_dims * std::log(a.original_length / (rotations * 2.0 * kPi)) / (2.0 * std::log(a.theta));
}

}  // namespace

int32_t RopeFrequencies(const kvstrata_rope_frequencies_args* args, void* stream) {
  kvstrata_rope_frequencies_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  Frequencies kernel{a.frequencies, a.rope_dims, a.theta, static_cast<float>(a.yarn_factor), 0, 1};
  if (a.yarn_factor > 0) {
    kernel.low = std::fmax(std::floor(YarnBoundary(a, a.beta_fast)), 0.0);
    kernel.high = std::fmin(std::ceil(YarnBoundary(a, a.beta_slow)), a.rope_dims - 1.0);
    if (kernel.low == kernel.high) kernel.high += 0.001;  // a step instead of a division by zero
  }
  return Launch(kernel, Grid::Over(a.rope_dims / 2, kernel.kThreads), stream);
}

int32_t Rope(const kvstrata_rope_args* args, void* stream) {
  kvstrata_rope_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.rope_dims == 0 || a.tokens == 0) return kOk;
  const Rotate kernel{a.values + (a.width - a.rope_dims),
                      a.token_stride,
                      a.head_stride,
                      a.positions,
                      a.first_position,
                      a.position_step,
                      a.frequencies,
                      a.tokens,
                      a.heads,
                      a.rope_dims / 2,
                      (a.flags & KVSTRATA_KERNELS_ROPE_INVERSE) != 0,
                      a.profile != KVSTRATA_KERNELS_PROFILE_F};
  return Launch(kernel, Grid::Over(a.tokens * kernel.head_groups() * kernel.pairs, kernel.kThreads), stream);
}

int32_t RmsNorm(const kvstrata_rms_norm_args* args, void* stream) {
  kvstrata_rms_norm_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const Normalise kernel{a.source,
                         a.source_stride,
                         a.weight,
                         a.destination,
                         a.destination_stride,
                         a.rows,
                         a.width,
                         a.eps,
                         a.profile != KVSTRATA_KERNELS_PROFILE_F};
  return Launch(kernel, Grid::Over(a.rows * kWarp, kernel.kThreads), stream);
}

}  // namespace kvstrata::kernels::cuda
