// SPDX-License-Identifier: Apache-2.0
// The kernel tables, reachable from C.
//
// Thread rule: pure function; tables live for ever.
#include "kernels/dispatch.h"
#include "kvstrata/kernels.h"

extern "C" const kvstrata_kernels* kvstrata_kernels_get(int32_t level) { return kvstrata::kernels::Get(level); }
