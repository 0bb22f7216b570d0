// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_blob_engine.h"

namespace kvstrata::test {

EngineKind BlobEngine(uint32_t block_tokens) {
  LayoutHandle layout;
  kvstrata_layout_opaque(block_tokens, Out(layout), nullptr);
  EngineKind kind;
  kind.name = "blob";
  kind.layout = ModelLayout::Read(std::move(layout));
  kind.geometry = [](const kvstrata_stream&, uint64_t, Rng&) { return Geometry{}; };
  return kind;
}

}  // namespace kvstrata::test
