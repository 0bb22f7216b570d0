// SPDX-License-Identifier: Apache-2.0
// The stored form of a namespace: identity and layout, each framed by its length. Its digest is the root of the
// namespace's chain, so everything that identifies a namespace is in every key.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/codec/meta_frame.h"
#include "lib/engine/io.h"
#include "lib/layout/identity.h"
#include "lib/layout/layout.h"

namespace kvstrata::core::engine {

std::vector<std::byte> EncodeNamespace(const layout::Identity& identity, const layout::Layout& layout);
absl::StatusOr<std::pair<layout::Identity, layout::Layout>> DecodeNamespace(base::ByteView bytes);

}  // namespace kvstrata::core::engine
