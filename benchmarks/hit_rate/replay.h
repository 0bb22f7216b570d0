// SPDX-License-Identifier: Apache-2.0
// Replays a trace of requests through a cache of this library and counts what it hits. Each request is looked up, then
// its missing blocks are stored, as a serving engine does it; but a block has one token (the trace's id of that block)
// and one byte, and the storage throws all bytes away. So index, eviction and admission are the real ones. Each block
// is a record of its own, as the references have it; or the blocks of a request go in runs, as they do in use.
//
// Thread rule: one thread; pure but for the cache that it opens and closes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvstrata/cache.hpp"

namespace kvstrata::hit_rate {

// The ids of a request's blocks; an id names a block and all before it.
using Request = std::vector<std::int32_t>;

struct Setting {
  std::uint64_t capacity_blocks = 1;
  eviction_policy policy = eviction_policy::lru;
  admission admit = admission::always;
  bool runs = false;
};

struct Counts {
  std::uint64_t requested_blocks = 0;
  std::uint64_t hit_blocks = 0;     // of the longest stored prefix of each request, at the time of its lookup
  std::uint64_t stored_blocks = 0;  // put into storage
  std::uint64_t dropped_blocks = 0;
  double unfreed_share = 0;  // of the capacity, the most at any time: evicted, but in records that are still needed
  std::string fault;  // why the replay could not be done; else empty

  double hit_rate() const { return Share(hit_blocks); }
  double stored_share() const { return Share(stored_blocks); }

 private:
  double Share(std::uint64_t blocks) const {
    return requested_blocks == 0 ? 0 : static_cast<double>(blocks) / static_cast<double>(requested_blocks);
  }
};

Counts Replay(const std::vector<Request>& trace, const Setting& setting);

// Number of blocks that differ, a block being its id and those before it.
std::uint64_t DistinctBlocks(const std::vector<Request>& trace);

}  // namespace kvstrata::hit_rate
