// SPDX-License-Identifier: Apache-2.0
// RMSNorm (reference sections 2.3 step 2 and 5): mean of squares and product with the weight in fp32, one rounding.
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::reference {

void NormRow(const float* source, const float* weight, float eps, uint32_t width, bool round, float* destination) {
  const float mean = Dot(source, source, width) / static_cast<float>(width);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (uint32_t i = 0; i < width; ++i) {
    const float scaled = source[i] * inverse;
    destination[i] = weight != nullptr ? scaled * weight[i] : scaled;
  }
  if (round) RoundRow(destination, width);
}

int32_t RmsNorm(const kvstrata_rms_norm_args* args, void*) {
  kvstrata_rms_norm_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  for (uint64_t row = 0; row < a.rows; ++row) {
    NormRow(a.source + row * a.source_stride, a.weight, a.eps, a.width, Rounds(a.profile),
            a.destination + row * a.destination_stride);
  }
  return kOk;
}

}  // namespace kvstrata::kernels::reference
