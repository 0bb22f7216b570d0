// SPDX-License-Identifier: Apache-2.0
// The kernels' packing of rows, as the engine calls it.
//
// Thread rule: pure functions.
#pragma once

#include "lib/codec/slice_codec.h"

namespace kvstrata::capi {

// A codec::FindPacker. Every level of the kernels packs to the same bytes, and unpacks to the same floats, so it does
// not matter which process has packed a row.
const core::codec::RowPacker* FindRowPacker(core::layout::Packing packed, core::layout::Packing source);

}  // namespace kvstrata::capi
