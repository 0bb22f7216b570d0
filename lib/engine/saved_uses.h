// SPDX-License-Identifier: Apache-2.0
// What an earlier process wrote down of the use of blocks and snapshots, while an index is rebuilt. Filled part by
// part, then asked.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/format/uses.h"

namespace kvstrata::core::engine {

class SavedUses {
 public:
  // Parts are added in the order in which they were written: of two entries for one block the later one counts.
  void Add(const format::Uses& part);
  // After the last part, before the first question.
  void Prepare();

  uint64_t tick() const { return tick_; }
  uint64_t frontier() const { return frontier_; }
  // Null where nothing is known. Costs little where blocks are asked for in order.
  const format::BlockUses* Block(uint64_t sequence, uint32_t index) const;
  const format::SnapshotUses* Snapshot(uint64_t sequence) const;

 private:
  uint64_t tick_ = 0;
  uint64_t frontier_ = 0;
  std::vector<format::BlockUses> blocks_;        // by sequence, then by place in the run
  mutable size_t asked_ = 0;                     // the entry that was looked at last
  std::vector<format::SnapshotUses> snapshots_;  // by sequence
};

}  // namespace kvstrata::core::engine
