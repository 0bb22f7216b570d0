// SPDX-License-Identifier: Apache-2.0
// What every level of the kernels shares: the public contract (<kvstrata/kernels.h>) and the tables of the levels.
// Kernels see this file and the standard library, nothing of lib/; they never allocate.
//
// Thread rule: pure functions and constant tables.
#pragma once

#include <cstdint>

#include "kvstrata/kernels.h"

// Functions that nvcc compiles for both sides.
#if defined(__CUDACC__)
#define KVSTRATA_HOST_DEVICE __host__ __device__
#else
#define KVSTRATA_HOST_DEVICE
#endif

namespace kvstrata::kernels {

inline constexpr int32_t kOk = KVSTRATA_KERNELS_OK;
inline constexpr int32_t kInvalidArgument = KVSTRATA_KERNELS_INVALID_ARGUMENT;
inline constexpr int32_t kStructTooNew = KVSTRATA_KERNELS_STRUCT_TOO_NEW;
inline constexpr int32_t kUnsupported = KVSTRATA_KERNELS_UNSUPPORTED;

namespace reference {
const kvstrata_kernels* Table();
}  // namespace reference

namespace cpu {
// The table of one KVSTRATA_KERNELS_LEVEL_CPU_* level, or nullptr where this machine or build lacks it.
const kvstrata_kernels* Table(int32_t level);
// The best of those at or below `most`, or nullptr when `most` is below all.
const kvstrata_kernels* BestTable(int32_t most);
}  // namespace cpu

namespace stub {
// A complete table for a level that this build lacks: every function returns UNSUPPORTED.
const kvstrata_kernels* Table();
}  // namespace stub

}  // namespace kvstrata::kernels
