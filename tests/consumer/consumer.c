/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer in C: what it was compiled against is what it runs with, and a kernel can be called. */
#include <stdio.h>

#include "kvstrata/c_api.h"
#include "kvstrata/kernels.h"

int main(void) {
  const kvstrata_kernels* kernels = kvstrata_kernels_get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  kvstrata_packed_shape shape = {0};
  if (kvstrata_abi_version() != KVSTRATA_ABI_VERSION || kvstrata_format_version() != KVSTRATA_FORMAT_VERSION) return 1;
  if (kernels == NULL) return 2;
  shape.struct_size = sizeof shape;
  shape.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  if (kernels->packed_shape(&shape) != KVSTRATA_KERNELS_OK || shape.row_bytes != 584) return 3;
  printf("kvstrata %s\n", kvstrata_version_string());
  return 0;
}
