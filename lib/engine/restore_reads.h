// SPDX-License-Identifier: Apache-2.0
// Which reads a restore makes, and in which order: contiguous pieces of records, large where a drive wants them large,
// layer by layer where the engine wants to begin early.
//
// Thread rule: pure functions.
//
// Invariants:
//   I1  Every wanted slice is in exactly one read, whole.
//   I2  A record's head is not in a later read than any of its slices.
//   I3  With early release, all reads that have a slice of one layer or of those before it come before the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/engine/record_proof.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::engine {

// Eight reads of this size at a time reach what a drive gives; larger ones give no more (reference, limits 1.2:
// 3.8 GB/s at 1 MiB, 3.6 at 256 KiB, 2.1 at 64 KiB).
inline constexpr uint64_t kReadBytes = 1u << 20;

// A record of which something is wanted.
struct SourceRecord {
  storage::Key key;
  bool snapshot = false;
  MatchedRun run;             // of a run
  uint64_t from = 0, to = 0;  // of a run: the blocks whose rows are wanted, counted along the chain
  uint64_t head_bytes = 0;    // 0: the head is proven already
  SliceTable table;
};

// A slice of a record's table that is wanted, and the layer that waits for it.
struct WantedSlice {
  uint32_t slice = 0;
  uint32_t layer = 0;
};

// Blocks [from, to) of one slice; counted from the run's first (a snapshot: 0 and 1).
struct ReadPart {
  uint32_t slice = 0;
  uint64_t from = 0, to = 0;
  uint64_t offset = 0;  // in the read
};

struct RecordRead {
  size_t record = 0;    // number of its SourceRecord
  uint64_t offset = 0;  // in the record
  uint64_t bytes = 0;
  bool has_head = false;      // begins with it
  uint32_t layer = 0;         // the lowest one that waits for it
  uint64_t decode_bytes = 0;  // of memory beside the read's own, for the part whose decoding takes most
  std::vector<ReadPart> parts;
};

// Adds the reads of one record. `wanted` is in the table's order; a record whose head is not proven is read at least
// there.
struct ReadShape {
  bool early_release = false;
  uint64_t most_bytes = 0;  // of one read, and of one part's rows, where a single slice is not larger; at most
                            // kReadBytes
};
void AddReads(size_t number, const SourceRecord& record, std::span<const WantedSlice> wanted, const ReadShape& shape,
              std::vector<RecordRead>* reads);

// By layer; else they stay by record.
void OrderForEarlyRelease(std::vector<RecordRead>* reads);

}  // namespace kvstrata::core::engine
