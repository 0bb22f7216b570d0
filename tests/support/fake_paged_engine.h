// SPDX-License-Identifier: Apache-2.0
// An engine that keeps every stream in pages, as the large serving engines do: pages of 256, 64, 4 and 8 rows with
// ids in any order, planar inside (all data, then all scales, then padding to a multiple of 576 bytes), guard bytes
// after each page.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "tests/support/fake_engine.h"

namespace kvstrata::test {

// `preset` as in kvstrata_layout_from_preset.
EngineKind PagedEngine(const std::string& preset);
// The same memory for a small model of one window, one CSA and one HCA layer with a window of 8 tokens (replay length
// 7 * 3 = 21 tokens) and ratios 4 and 16, so that full replays are short and blocks small (32 tokens).
EngineKind SmallPagedEngine();

}  // namespace kvstrata::test
