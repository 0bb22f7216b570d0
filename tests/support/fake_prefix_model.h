// SPDX-License-Identifier: Apache-2.0
// The naive model beside the store: a set of all prefixes whose blocks, and of all positions whose snapshots, were
// handed over, and by brute force what a lookup can at best answer.
//
// A store may hold less than the model (evictions, drops) but never more: an answer longer than Expect's is wrong
// bytes in the making. While nothing was evicted and everything was committed, it must be equal.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "kvstrata/c_api.h"
#include "tests/support/fake_engine.h"
#include "tests/support/fake_sequence.h"

namespace kvstrata::test {

struct Expectation {
  uint64_t matched = 0;
  uint64_t usable = 0;
  uint64_t replay_from = 0;
  uint64_t snapshot_position = UINT64_MAX;
  int32_t mode = KVSTRATA_MODE_NONE;
};

class PrefixModel {
 public:
  explicit PrefixModel(const ModelLayout& layout);

  // All complete blocks of the first `length` tokens.
  void AddBlocks(const Sequence& sequence, uint64_t length);
  void AddSnapshot(const Sequence& sequence, uint64_t position);
  void Merge(const PrefixModel& other);
  void Clear();

  bool HasBlock(const Sequence& sequence, uint64_t end) const { return blocks_.contains(sequence.Digest(end)); }
  // With unknown speeds: the way that runs the fewest tokens, then the longest one.
  Expectation Expect(const Sequence& prompt, const kvstrata_lookup_options& options) const;

 private:
  void Offer(Expectation candidate, const kvstrata_lookup_options& options, Expectation* best) const;

  uint64_t block_tokens_;
  bool has_rows_;
  bool has_state_;
  uint64_t exact_replay_tokens_;                       // 0: replay cannot rebuild the state
  std::set<uint64_t> blocks_;                          // digest of the prefix that the block ends
  std::set<std::pair<uint64_t, uint64_t>> snapshots_;  // position and digest of the prefix
};

}  // namespace kvstrata::test
