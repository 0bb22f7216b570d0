// SPDX-License-Identifier: Apache-2.0
// Chooses a table of kernels by level (KVSTRATA_KERNELS_LEVEL_*). The only file of kernels/ that lib/ may include.
//
// Thread rule: pure function; tables live for ever.
#pragma once

#include <cstdint>

#include "kernels/kernel_api.h"

namespace kvstrata::kernels {

// The level's table, or nullptr where this build or machine lacks it. AUTO is the best level there is.
const kvstrata_kernels* Get(int32_t level);

}  // namespace kvstrata::kernels
