// SPDX-License-Identifier: Apache-2.0
// The runs that a storage has listed, until an index has been built of them: what an index needs of each, in chunks, so
// that a million of them cost no copying.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/base/chunked_array.h"
#include "lib/base/hash.h"
#include "lib/format/record.h"

namespace kvstrata::core::engine {

struct FoundRun {
  uint64_t sequence = 0;
  uint64_t position = 0;
  uint64_t payload_bytes = 0;
  base::BlockDigest key;
  base::BlockDigest parent;
  uint64_t first_more = 0;
  uint32_t life = 0;  // a number of FoundRuns::lives
  uint16_t blocks = 0;
  bool coded = false;
};

class FoundRuns {
 public:
  // False: no memory.
  bool Add(const format::RecordMeta& meta);
  // Once all are there: by sequence, which is the order of writing, and each once, since a storage may list a record
  // more than once. Then they may be asked for.
  void PutInOrder();

  uint64_t size() const { return ordered_ ? count_ : order_.size(); }
  const FoundRun& operator[](uint64_t i) const { return runs_[ordered_ ? i : order_[i]]; }
  std::span<const base::BlockDigest> More(const FoundRun& run) const {
    if (run.blocks == 1) return {};
    return {&more_[run.first_more], run.blocks - size_t{1}};
  }
  const std::vector<format::NamespaceId>& lives() const { return lives_; }
  // How many blocks of a run are its own: what was evicted of it may have been stored anew, as the beginning of a newer
  // one.
  uint32_t OwnBlocks(const FoundRun& run) const;

 private:
  void IndexFirstKeys();

  template <typename T, uint32_t kChunkLog2>
  static bool Grow(base::ChunkedArray<T, kChunkLog2>* array, uint64_t count);

  base::ChunkedArray<FoundRun, 9> runs_;
  uint64_t count_ = 0;
  base::ChunkedArray<base::BlockDigest, 10> more_;  // a run's lie in one chunk
  uint64_t more_count_ = 0;
  std::vector<format::NamespaceId> lives_;
  uint32_t last_life_ = 0;
  bool ordered_ = true;
  std::vector<uint64_t> order_;  // where they did not come in order
  // By the first block's digest, and a bit for each of these: most keys that are asked for are none of them. Empty
  // where no run has more than one block.
  absl::flat_hash_map<base::Digest128, uint64_t> by_first_;
  std::vector<uint64_t> first_bits_;
};

}  // namespace kvstrata::core::engine
