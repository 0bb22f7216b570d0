// SPDX-License-Identifier: Apache-2.0
// Gated pooling with state, for both compressors (reference sections 2.2, 2.6, 2.7 and 4).
//
// Thread rule: pure functions over the caller's state.
#pragma once

#include "kernels/kernel_api.h"

namespace kvstrata::kernels::reference {

// `a` has passed Prepare. Feeds the tokens one after the other, so cutting a prompt differently cannot change a row.
void PoolTokens(const kvstrata_pool_args& a);

}  // namespace kvstrata::kernels::reference
