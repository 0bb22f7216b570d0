// SPDX-License-Identifier: Apache-2.0
// An engine with V4's state for the position where it is and no other: windows, overlaps and open groups lie in rings
// (larger than what a snapshot needs, as engines with draft tokens make them), rows in slots or in one linear run. It
// restarts only on its prefill chunk grid of 2,048 tokens.
//
// Thread rule: pure functions.
#pragma once

#include "tests/support/fake_engine.h"

namespace kvstrata::test {

inline constexpr uint32_t kRingRestartTokens = 2048;

// In V4-Flash's full widths.
EngineKind RingEngine();

}  // namespace kvstrata::test
