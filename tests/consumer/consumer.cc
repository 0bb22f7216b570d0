// SPDX-License-Identifier: Apache-2.0
// A consumer in C++: the same questions as consumer.c.
#include <cstdio>

#include "kvstrata/c_api.h"
#include "kvstrata/kernels.h"

int main() {
  static_assert(__cplusplus >= 201703L, "the package asks for C++17");
  const kvstrata_kernels* kernels = kvstrata_kernels_get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  if (kvstrata_abi_version() != KVSTRATA_ABI_VERSION || kernels == nullptr) return 1;
  std::printf("kvstrata %s, kernels %s\n", kvstrata_version_string(), kernels->name);
  return 0;
}
