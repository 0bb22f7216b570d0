// SPDX-License-Identifier: Apache-2.0
// Rotary positions: frequency tables and rotation (reference section 2.4).
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {
namespace {

constexpr double kPi = 3.14159265358979323846;

// The (fractional) index of the frequency that turns `rotations` times within the original length.
double YarnBoundary(const kvstrata_rope_frequencies_args& a, double rotations) {
  return a.rope_dims * std::log(a.original_length / (rotations * 2.0 * kPi)) / (2.0 * std::log(a.theta));
}

}  // namespace

int32_t RopeFrequencies(const kvstrata_rope_frequencies_args* args, void*) {
  kvstrata_rope_frequencies_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  double low = 0;
  double high = 0;
  if (a.yarn_factor > 0) {
    low = std::fmax(std::floor(YarnBoundary(a, a.beta_fast)), 0.0);
    high = std::fmin(std::ceil(YarnBoundary(a, a.beta_slow)), a.rope_dims - 1.0);
    if (low == high) high += 0.001;  // a step instead of a division by zero
  }
  const float factor = static_cast<float>(a.yarn_factor);
  for (uint32_t k = 0; k < a.rope_dims / 2; ++k) {
    // The power in double, rounded once: the same float on every machine; everything after it in fp32, as in the
    // reference.
    const float exponent = static_cast<float>(2 * k) / static_cast<float>(a.rope_dims);
    const float plain = 1.0f / static_cast<float>(std::pow(a.theta, static_cast<double>(exponent)));
    if (a.yarn_factor > 0) {
      const double position = (static_cast<double>(k) - low) / (high - low);
      const float ramp = static_cast<float>(std::fmin(std::fmax(position, 0.0), 1.0));
      a.frequencies[k] = plain / factor * ramp + plain * (1.0f - ramp);
    } else {
      a.frequencies[k] = plain;
    }
  }
  return kOk;
}

namespace {

// (a + ib) * e^(i angle), or its conjugate.
void RotatePair(float* pair, SinCos turn, bool inverse, bool round) {
  const float sin = inverse ? -turn.sin : turn.sin;
  const float a = pair[0] * turn.cos - pair[1] * sin;
  const float b = pair[0] * sin + pair[1] * turn.cos;
  pair[0] = round ? RoundBf16(a) : a;
  pair[1] = round ? RoundBf16(b) : b;
}

}  // namespace

void RopeRow(float* pairs, const float* frequencies, uint32_t rope_dims, int64_t position, bool inverse, bool round) {
  for (uint32_t k = 0; k < rope_dims / 2; ++k) {
    RotatePair(pairs + 2 * k, SinCosOf(static_cast<float>(position) * frequencies[k]), inverse, round);
  }
}

int32_t Rope(const kvstrata_rope_args* args, void*) {
  kvstrata_rope_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const bool inverse = (a.flags & KVSTRATA_KERNELS_ROPE_INVERSE) != 0;
  for (uint64_t n = 0; n < a.tokens; ++n) {
    // Unsigned, so that a caller's nonsense wraps instead of being undefined.
    const uint64_t stepped = static_cast<uint64_t>(a.first_position) + n * static_cast<uint64_t>(a.position_step);
    const int64_t position = a.positions != nullptr ? a.positions[n] : static_cast<int64_t>(stepped);
    float* first = a.values + n * a.token_stride + (a.width - a.rope_dims);
    for (uint32_t k = 0; k < a.rope_dims / 2; ++k) {
      const SinCos turn = SinCosOf(static_cast<float>(position) * a.frequencies[k]);
      for (uint64_t h = 0; h < a.heads; ++h) {
        RotatePair(first + h * a.head_stride + 2 * k, turn, inverse, Rounds(a.profile));
      }
    }
  }
  return kOk;
}

}  // namespace kvstrata::kernels::reference
