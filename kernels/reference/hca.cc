// SPDX-License-Identifier: Apache-2.0
// HCA: gated pooling over 128 tokens without overlap (reference section 4).
#include "kernels/arguments.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/pooling.h"

namespace kvstrata::kernels::reference {

int32_t HcaPool(const kvstrata_pool_args* args, void*) {
  kvstrata_pool_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if ((a.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0) return kInvalidArgument;
  PoolTokens(a);
  return kOk;
}

}  // namespace kvstrata::kernels::reference
