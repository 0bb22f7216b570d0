// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/hit_rate/replay.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "kvstrata/buffer.hpp"
#include "kvstrata/layout.hpp"
#include "kvstrata/storage.hpp"
#include "kvstrata/writer.hpp"

namespace kvstrata::hit_rate {
namespace {

// Takes every put, keeps nothing, and has nothing to list when it is opened.
class Void : public synchronous_storage<Void> {
 public:
  std::uint64_t capabilities() const { return 0; }
  errc put(const storage_request&, std::int64_t&) { return errc::ok; }
  errc get(const storage_request&, std::int64_t&) { return errc::not_found; }
  errc stat(const kvstrata_key&, bool& exists, std::uint64_t&) {
    exists = false;
    return errc::ok;
  }
  errc remove(const kvstrata_key&) { return errc::ok; }
  errc sync() { return errc::unsupported; }
  errc list(std::uint64_t& cursor, storage_listing&) {
    cursor = 0;
    return errc::ok;
  }
};

// What an open store holds before its first block, and how much a block adds.
struct Sizes {
  std::uint64_t empty = 0;
  std::uint64_t block = 0;
};

// In a run a record's head is shared: rows so large that it does not matter which blocks share one.
constexpr std::uint32_t kRunRowBytes = 8192;

class Player {
 public:
  // Rows for the longest request: of one byte, or large ones.
  Player(std::size_t longest, bool runs)
      : row_bytes_(runs ? kRunRowBytes : 1), rows_((longest + 1) * static_cast<std::size_t>(row_bytes_)) {}

  std::string Open(const Setting& setting, std::uint64_t capacity_bytes) {
    cache_options options;
    options.capacity_bytes = capacity_bytes;
    options.eviction = setting.policy;
    options.admit = setting.admit;
    // Room for the record of a block, and too little for runs, two of which are to fit: each block comes and goes by
    // itself, as in the reference.
    if (!setting.runs) options.staging_bytes = 256;
    // As many keys of blocks that are not there as of blocks that are, twice, in whole sets of 64 bytes.
    options.ghost_bytes = (setting.capacity_blocks * 2 + 7) / 8 * 64;
    storage_adapter<Void> storage(std::make_unique<Void>());
    auto cache = kvstrata::cache::open(options, storage);
    if (!cache) return cache.error().c_str();
    cache_ = std::move(cache).value();
    layout_builder builder;
    auto layout = builder.block_tokens(1).rows(role::other, 0, 1, row_bytes_).build();
    if (!layout) return layout.error().c_str();
    auto space = cache_.open_namespace(*layout, identity().set("model.weights", "none").set("tenant", ""));
    if (!space) return space.error().c_str();
    space_ = std::move(space).value();
    return {};
  }

  // Gives what the lookup hit, then stores the rest.
  std::string Play(const Request& request, std::uint64_t* hit) {
    Request prompt = request;
    prompt.push_back(-1);  // no match is longer than all tokens but one
    auto match = space_.lookup(prompt);
    if (!match) return match.error().c_str();
    const auto info = match->info();
    if (!info) return info.error().c_str();
    *hit = info->matched_tokens;
    auto writer = space_.open_writer(&*match);
    if (!writer) return writer.error().c_str();
    if (auto done = writer->set_source(buffer::linear(0, {rows_.data(), rows_.size()})); !done) {
      return done.error().c_str();
    }
    const auto from = static_cast<std::size_t>(info->usable_tokens);
    const token_view rest(request.data() + from, request.size() - from);
    if (auto done = writer->advance(rest, request.size()); !done) return done.error().c_str();
    if (auto done = writer->commit(); !done) return done.error().c_str();
    return {};
  }

  cache_stats Stats() const { return cache_.stats().value(); }

 private:
  std::uint32_t row_bytes_;
  std::vector<unsigned char> rows_;
  kvstrata::cache cache_;
  name_space space_;
};

// Measured, so that a capacity in blocks is one in bytes whatever a record's overhead is.
std::string Measure(bool runs, Sizes* sizes) {
  Player player(2, runs);
  Setting setting;
  setting.runs = runs;
  std::string fault = player.Open(setting, 1 << 20);
  if (!fault.empty()) return fault;
  sizes->empty = player.Stats().held_bytes;
  std::uint64_t hit = 0;
  fault = player.Play({1, 2}, &hit);
  sizes->block = player.Stats().held_row_bytes / 2;
  if (fault.empty() && sizes->block == 0) fault = "a block takes no bytes";
  return fault;
}

}  // namespace

Counts Replay(const std::vector<Request>& trace, const Setting& setting) {
  Counts counts;
  Sizes sizes;
  counts.fault = Measure(setting.runs, &sizes);
  if (!counts.fault.empty()) return counts;
  std::size_t longest = 0;
  for (const Request& request : trace) longest = std::max(longest, request.size());
  Player player(longest, setting.runs);
  const std::uint64_t capacity = sizes.empty + setting.capacity_blocks * sizes.block;
  counts.fault = player.Open(setting, capacity);
  for (std::size_t i = 0; i < trace.size() && counts.fault.empty(); ++i) {
    std::uint64_t hit = 0;
    counts.fault = player.Play(trace[i], &hit);
    counts.requested_blocks += trace[i].size();
    counts.hit_blocks += hit;
    if (!setting.runs) continue;
    const double unfreed = static_cast<double>(player.Stats().unfreed_bytes) / static_cast<double>(capacity);
    counts.unfreed_share = std::max(counts.unfreed_share, unfreed);
  }
  if (!counts.fault.empty()) return counts;
  const cache_stats stats = player.Stats();
  counts.stored_blocks = stats.blocks_stored;
  counts.dropped_blocks = stats.blocks_dropped;
  if (!setting.runs && stats.held_blocks > setting.capacity_blocks)
    counts.fault = "the store held more than its capacity";
  return counts;
}

std::uint64_t DistinctBlocks(const std::vector<Request>& trace) {
  std::map<std::pair<std::uint64_t, std::int32_t>, std::uint64_t> blocks;  // (parent, id) -> number, from 1
  for (const Request& request : trace) {
    std::uint64_t parent = 0;
    for (const std::int32_t id : request) parent = blocks.try_emplace({parent, id}, blocks.size() + 1).first->second;
  }
  return blocks.size();
}

}  // namespace kvstrata::hit_rate
