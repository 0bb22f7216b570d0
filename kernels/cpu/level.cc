// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/level.h"

namespace kvstrata::kernels::cpu {

// __builtin_cpu_supports also asks the operating system, by XGETBV, whether it saves the wide registers.
Level BestLevel() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
  if (!avx2) return Level::kPortable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (!avx512) return Level::kAvx2;
  const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
                    __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  return bf16 ? Level::kAvx512Bf16 : Level::kAvx512;
#else
  return Level::kPortable;
#endif
}

}  // namespace kvstrata::kernels::cpu
