// SPDX-License-Identifier: Apache-2.0
// Proof that what was read is what a match promised: a record's head against the index (life of the namespace,
// placement, keys, parent) and against the prompt (token ids, extra keys), a slice's bytes against the head's checksum.
//
// Thread rule: pure functions.
//
// Invariants:
//   I1  No answer rests on a digest: token ids and extra keys are compared themselves.
//   I2  A head that is proven gives slices that fit the layout, so that their offsets lie inside the record; none that
//       is coded is larger than a decoder takes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/engine/match.h"
#include "lib/format/record.h"

namespace kvstrata::core::engine {

// The part of a stored run that a match has found. Blocks are counted along the match's chain.
struct MatchedRun {
  uint64_t first = 0;   // the run's first block
  uint64_t end = 0;     // behind the last one that was matched
  uint64_t blocks = 1;  // of the whole run as it is stored

  bool is_whole() const { return end - first == blocks; }
};
// The run of a block of the match.
MatchedRun RunOf(const MatchState& match, uint64_t block);

// What is proven of a record once its head has been read; or, before it has, where everything must be.
struct SliceTable {
  uint64_t sequence = 0;
  uint64_t blocks = 1;  // of the run
  std::vector<format::Slice> slices;
  std::vector<uint64_t> starts;     // of slice i's block b, in bytes from the record's beginning: [i * blocks + b];
                                    // then the record's end
  std::vector<uint64_t> checksums;  // of slice i's block b: [i * blocks + b]

  // `block` may be the number of blocks: where the slice ends.
  uint64_t Start(size_t slice, uint64_t block) const { return starts[slice * blocks + block]; }
  // What blocks [from, to) of a slice take in the record: less than they have where some are coded.
  uint64_t StoredBytes(size_t slice, uint64_t from, uint64_t to) const { return Start(slice, to) - Start(slice, from); }
};

// A layout's rows streams, in the order of a run's slices: by layer, so that what an engine needs first comes first.
std::vector<uint32_t> RowStreams(const layout::Layout& layout);

// The size of a head follows from what it must say. Where a run was not matched to its end it may be larger: what is
// not matched may have extra keys. So it may be where slices are coded.
uint64_t RunHeadBytes(const MatchState& match, const MatchedRun& run);
uint64_t SnapshotHeadBytes(const MatchState& match, const trie::SnapshotInfo& snapshot, bool coded = false);
// Where the slices must be when every stream is there and none is coded; without checksums.
SliceTable ExpectedSlices(const MatchState& match, const MatchedRun& run);

// The parts of ProveRunHead, for who has decoded the head: is it what the match promises, and where do its slices lie?
absl::Status CheckRunHead(const MatchState& match, const MatchedRun& run, const format::RecordHead& head);
absl::Status PlaceSlices(const MatchState& match, const format::RecordHead& head, uint64_t head_bytes,
                         SliceTable* table);

// kCorrupt and kFormatTooNew: the bytes are wrong. kInvalidState: another placement. kIdentityMismatch: of another
// prefix. *table is untouched then.
absl::Status ProveRunHead(const MatchState& match, const MatchedRun& run, base::ByteView bytes, SliceTable* table);
absl::Status ProveSnapshotHead(const MatchState& match, const trie::SnapshotInfo& snapshot, base::ByteView bytes,
                               SliceTable* table);
// The bytes that a slice which is not absent has of one block of the run.
absl::Status ProveSlice(const SliceTable& table, size_t slice, uint64_t block, base::ByteView bytes);

}  // namespace kvstrata::core::engine
