// SPDX-License-Identifier: Apache-2.0
// A model's config.json: refused, or a layout that its own text gives back.
#include "lib/layout/config_json.h"
#include "tests/fuzz/layout/target.h"

namespace layout = kvstrata::core::layout;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto given = layout::FromConfigJson(AsText(data, size));
  if (!given.ok()) return 0;
  const auto read = layout::Layout::FromText(given->ToText());
  Promise(read.ok() && *read == *given);
  return 0;
}
