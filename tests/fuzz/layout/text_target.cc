// SPDX-License-Identifier: Apache-2.0
// The layout's canonical text: refused, or canonical.
#include "lib/layout/layout.h"
#include "tests/fuzz/layout/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto layout = kvstrata::core::layout::Layout::FromText(AsText(data, size));
  if (layout.ok()) Promise(layout->ToText() == AsText(data, size));
  return 0;
}
