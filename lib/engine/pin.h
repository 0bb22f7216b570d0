// SPDX-License-Identifier: Apache-2.0
// Rows of a match where they lie in memory: no copy. Owns the hold on their records, and the rule that a record's bytes
// are proven once, by the first who pins it after it came into memory: what was found is kept with the bytes, and goes
// with them.
//
// Thread rule: immutable once made; all member functions on any thread at once.
//
// Invariants:
//   I1  No row is given out that is not proven to be the match's: checksums once for each stay of a record in memory,
//       identity, token ids and extra keys each time.
//   I2  What is given out stays where it is, unchanged, as long as the pin lives, whatever is evicted, put anew,
//       dropped or closed meanwhile.
//   I3  All pins of a cache hold at most half of its tier of memory; of a store in memory, as much as leases may.
//   I4  A record with coded slices is not pinned: its rows do not lie in memory. A restore decodes them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/engine/destinations.h"
#include "lib/engine/match.h"
#include "lib/engine/record_proof.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::engine {

class Pin {
 public:
  // The leading blocks of what the match's plan reads whose records are in memory, not coded, and proven; none is no
  // failure.
  static absl::StatusOr<std::unique_ptr<Pin>> Create(const Match& match);
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  bool InOwnerProcess() const { return match_->cache->InOwnerProcess(); }
  uint64_t first_token() const { return match_->name_space->BlockEnd(first_block_); }
  uint64_t end_token() const { return match_->name_space->BlockEnd(end_block_); }
  uint64_t held_bytes() const { return held_bytes_; }

  // Consecutive rows of one stream, as many as lie back to back: one range for each record and rows stream.
  struct Range {
    uint32_t stream = 0;
    RowRange rows;
    base::ByteView bytes;  // none, and no rows, of a stream that the record is without
  };
  uint64_t range_count() const { return parts_.size() * row_streams_.size(); }
  Range range(uint64_t index) const;

 private:
  struct ProvenRun;
  // The pinned blocks of one record, counted along the match's chain.
  struct Part {
    std::shared_ptr<storage::HeldRecord> record;
    std::shared_ptr<const ProvenRun> run;
    uint64_t run_first = 0;
    uint64_t first = 0;
    uint64_t end = 0;
  };

  explicit Pin(std::shared_ptr<MatchState> match);
  bool Add(const MatchedRun& run, uint64_t end_block);
  std::shared_ptr<const ProvenRun> Prove(const MatchedRun& run, storage::HeldRecord& record) const;

  const std::shared_ptr<MatchState> match_;
  const std::vector<uint32_t> row_streams_;
  uint64_t first_block_ = 0;
  uint64_t end_block_ = 0;
  uint64_t held_bytes_ = 0;
  std::vector<Part> parts_;
};

}  // namespace kvstrata::core::engine
