// SPDX-License-Identifier: Apache-2.0
#include "kernels/dispatch.h"

#include <cstdlib>
#include <cstring>

namespace kvstrata::kernels {
namespace {

struct Bound {
  const char* name;
  int32_t level;
};

constexpr Bound kBounds[] = {{"reference", KVSTRATA_KERNELS_LEVEL_REFERENCE},
                             {"portable", KVSTRATA_KERNELS_LEVEL_CPU_PORTABLE},
                             {"avx2", KVSTRATA_KERNELS_LEVEL_CPU_AVX2},
                             {"avx512", KVSTRATA_KERNELS_LEVEL_CPU_AVX512},
                             {"avx512_bf16", KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16}};

int32_t ReadBound() {
  const char* text = std::getenv("KVSTRATA_KERNELS_MAX_LEVEL");
  for (const Bound& bound : kBounds) {
    if (text != nullptr && std::strcmp(text, bound.name) == 0) return bound.level;
  }
  return KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16;
}

// Once: a program whose kernels changed midway would compute other bits for the same rows.
int32_t MostLevel() {
  static const int32_t kMost = ReadBound();
  return kMost;
}

}  // namespace

const kvstrata_kernels* Get(int32_t level) {
  switch (level) {
    case KVSTRATA_KERNELS_LEVEL_AUTO: {
      const kvstrata_kernels* cpu = cpu::BestTable(MostLevel());
      return cpu != nullptr ? cpu : reference::Table();
    }
    case KVSTRATA_KERNELS_LEVEL_REFERENCE: return reference::Table();
    case KVSTRATA_KERNELS_LEVEL_CPU: return cpu::BestTable(MostLevel());
    default: return cpu::Table(level);
  }
}

}  // namespace kvstrata::kernels
