// SPDX-License-Identifier: Apache-2.0
// Proof that what was read is what a match promised: a record's head against the index (life of the namespace,
// placement, key, parent) and against the prompt (token ids, extra keys), a slice's bytes against the head's checksum.
//
// Thread rule: pure functions.
//
// Invariants:
//   I1  No answer rests on a digest: token ids and extra keys are compared themselves.
//   I2  A head that is proven gives slices that fit the layout, so that their offsets lie inside the record.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/engine/match.h"
#include "lib/format/record.h"

namespace kvstrata::core::engine {

// What is proven of a record once its head has been read.
struct SliceTable {
  uint64_t sequence = 0;
  std::vector<format::Slice> slices;
  std::vector<uint64_t> offsets;  // bytes from the record's beginning
};

// A layout's rows streams, in the order of a block's slices.
std::vector<uint32_t> RowStreams(const layout::Layout& layout);

// The size of a head follows from what it must say.
uint64_t BlockHeadBytes(const MatchState& match, uint64_t block);
uint64_t SnapshotHeadBytes(const MatchState& match, const trie::SnapshotInfo& snapshot);

// kCorrupt and kFormatTooNew: the bytes are wrong. kInvalidState: another placement. kIdentityMismatch: of another
// prefix. *table is untouched then.
absl::Status ProveBlockHead(const MatchState& match, uint64_t block, base::ByteView bytes, SliceTable* table);
absl::Status ProveSnapshotHead(const MatchState& match, const trie::SnapshotInfo& snapshot, base::ByteView bytes,
                               SliceTable* table);
// The bytes of a slice that is not absent.
absl::Status ProveSlice(const SliceTable& table, size_t slice, base::ByteView bytes);

}  // namespace kvstrata::core::engine
