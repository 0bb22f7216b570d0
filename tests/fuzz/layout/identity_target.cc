// SPDX-License-Identifier: Apache-2.0
// An identity's canonical bytes: refused, or canonical.
#include "lib/layout/identity.h"
#include "tests/fuzz/layout/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto identity = kvstrata::core::layout::Identity::FromCanonicalBytes(AsText(data, size));
  if (identity.ok()) Promise(identity->CanonicalBytes() == AsText(data, size));
  return 0;
}
