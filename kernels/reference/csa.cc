// SPDX-License-Identifier: Apache-2.0
// CSA: overlapping gated pooling, ratio 4 in V4 (reference section 2); ratio 2 without overlap in V4.1 (11.2).
#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/pooling.h"

namespace kvstrata::kernels::reference {

int32_t CsaPool(const kvstrata_pool_args* args, void*) {
  kvstrata_pool_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  PoolTokens(a);
  return kOk;
}

}  // namespace kvstrata::kernels::reference
