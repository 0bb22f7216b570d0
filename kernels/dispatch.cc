// SPDX-License-Identifier: Apache-2.0
#include "kernels/dispatch.h"

namespace kvstrata::kernels {

const kvstrata_kernels* Get(int32_t level) {
  switch (level) {
    case KVSTRATA_KERNELS_LEVEL_AUTO:
    case KVSTRATA_KERNELS_LEVEL_REFERENCE: return reference::Table();
    default: return nullptr;
  }
}

}  // namespace kvstrata::kernels
