// SPDX-License-Identifier: Apache-2.0
// The least that an index which finds both records and blocks can be built with, as quickly as is known: each entry of
// a checkpoint checked as it comes, each record in one bare table and each block, with what has to be known of it, in
// another. Both are told of many keys before they are asked for the first.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/base/bytes.h"
#include "lib/base/hash.h"
#include "lib/format/record.h"
#include "lib/format/segment.h"

namespace kvstrata::benchmarks {

class LeastIndex {
 public:
  LeastIndex(uint64_t records, uint64_t blocks) {
    records_.reserve(records);
    blocks_.reserve(blocks);
  }

  // `log` has what has come of the checkpoint, at least the entry at `offset`. How long that is; 0: damaged.
  uint64_t Take(core::base::ByteView log, uint64_t salt, uint64_t offset);
  void TakeRest();
  uint64_t records() const { return records_.size(); }
  uint64_t blocks() const { return blocks_.size(); }

 private:
  static constexpr size_t kAhead = 64;
  struct Place {
    uint64_t log_offset = 0;
    uint64_t sequence = 0;
    core::format::Extent extent;
  };
  struct Node {
    uint64_t sequence = 0;
    uint64_t heat = 0;
    uint64_t bytes = 0;
    uint32_t depth = 0;
    uint32_t parent = 0;
  };

  absl::flat_hash_map<core::base::Digest128, Place> records_;
  absl::flat_hash_map<core::base::Digest128, Node> blocks_;
  std::vector<std::pair<core::format::RecordMeta, Place>> ahead_;
};

}  // namespace kvstrata::benchmarks
