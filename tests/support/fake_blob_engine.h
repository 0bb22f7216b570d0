// SPDX-License-Identifier: Apache-2.0
// An engine that can hand out nothing but its whole state as bytes, of another size at each position, and only for the
// position where it is: the least that an engine can offer.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "tests/support/fake_engine.h"

namespace kvstrata::test {

EngineKind BlobEngine(uint32_t block_tokens);

}  // namespace kvstrata::test
