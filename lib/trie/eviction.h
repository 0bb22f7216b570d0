// SPDX-License-Identifier: Apache-2.0
// The order in which leaves go: how hot a block is, and how hot the coldest one that is still there. Owns the policy
// and what all tries whose leaves compete with each other must share.
//
// A block's *heat* is a tick in the future or the past, and the coldest leaf goes first. The *frontier* is the heat of
// the hottest block that has been evicted; so a block that is used at tick t and gets heat t lives until the frontier
// has come from where it is to t: t - frontier is the time that the store can keep something at present. Policies
// stretch this time:
//
//   heat = frontier + (t - frontier) * stretch          stretch = frequency * worth * priority, each 1 as a rule
//
//   frequency  kLru: 1. kFrequency: 1 + log2(uses): a block used 8 times stays for 4 turnovers of the store. Since the
//              frontier moves on, what is no longer used ages and goes, as in LFU with dynamic ageing (Arlitt et al.
//              2000: "Evaluating content management techniques for Web proxy caches").
//   worth      kLru: 1. kFrequency: tokens a byte of this block over tokens a byte of all blocks, within [1/8, 8]: what
//              it would cost to compute again what its bytes hold (Cao and Irani 1997: GreedyDual-Size). 1 where
//              all blocks are of one layout.
//   priority   low 1/4, normal 1, high 4.
//
// Thread rule: externally synchronised, under the lock of its tries. Pure: no clock, and integers only, each
// factor rounded down to 1/256; so the same calls give the same order everywhere.
//
// Invariants:
//   I1  Under kLru, heat is the tick of the last use for blocks of normal priority.
//   I2  The frontier never goes back, and is never ahead of the latest tick that it was given.
//   I3  cost and bytes are the sums over the live blocks of all tries that share this object.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace kvstrata::core::trie {

enum class EvictionPolicy : uint32_t { kLru = 0, kFrequency = 1 };
enum class Priority : uint32_t { kNormal = 0, kLow = 1, kHigh = 2 };

// What a trie says of a block when it asks for its heat.
struct BlockUse {
  uint64_t tick = 0;
  uint32_t uses = 1;  // this one included
  Priority priority = Priority::kNormal;
  uint64_t cost = 0;  // of computing the block again, in any unit: the engine counts tokens
  uint64_t bytes = 0;
};

class EvictionOrder {
 public:
  static constexpr uint64_t kMaxHeat = (uint64_t{1} << 48) - 1;

  explicit EvictionOrder(EvictionPolicy policy = EvictionPolicy::kLru) : policy_(policy) {}

  EvictionPolicy policy() const { return policy_; }
  uint64_t frontier() const { return frontier_; }

  uint64_t Heat(const BlockUse& use) const {
    const uint64_t tick = std::min(use.tick, kMaxHeat);
    if (tick <= frontier_) return tick;  // a late caller's: nothing to stretch
    uint64_t life = tick - frontier_;
    if (policy_ == EvictionPolicy::kFrequency) {
      // In steps of 1/256: < 2^48 * 2^13 / 2^8, then * 2^11 / 2^8; so no product reaches 2^64.
      life = life * (kOne + Log2(use.uses)) / kOne;
      life = life * Worth(use.cost, use.bytes) / kOne;
    }
    if (use.priority == Priority::kLow) life /= 4;
    if (use.priority == Priority::kHigh) life *= 4;
    return std::min(frontier_ + life, kMaxHeat);
  }

  // A block of this heat has been evicted to make room, at `tick`.
  void Evicted(uint64_t heat, uint64_t tick) { frontier_ = std::max(frontier_, std::min({heat, tick, kMaxHeat})); }

  // As it was when heats that are taken over now were made. `frontier` is no later than the latest tick.
  void GoOnFrom(uint64_t frontier) { frontier_ = std::max(frontier_, std::min(frontier, kMaxHeat)); }

  void Add(uint64_t cost, uint64_t bytes) {
    cost_ += cost;
    bytes_ += bytes;
  }
  void Remove(uint64_t cost, uint64_t bytes) {
    cost_ -= cost;
    bytes_ -= bytes;
  }

  // log2 in 1/256, linear between powers of two (at most 0.09 too small); 0 for 0.
  static uint64_t Log2(uint32_t value) {
    if (value == 0) return 0;
    const int whole = std::bit_width(value) - 1;
    return (static_cast<uint64_t>(whole) << 8) + ((uint64_t{value} << 8 >> whole) - kOne);
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr uint64_t kOne = 256;

  uint64_t Worth(uint64_t cost, uint64_t bytes) const {
    if (cost == 0 || bytes == 0 || cost_ == 0 || bytes_ == 0) return kOne;
    // Exact: 2^8 * 2^32 * 2^60 over 2^40 * 2^58 at most.
    const Wide quotient = Wide{kOne} * cost * bytes_ / (Wide{bytes} * cost_);
    return static_cast<uint64_t>(std::clamp<Wide>(quotient, kOne / 8, kOne * 8));
  }

  const EvictionPolicy policy_;
  uint64_t frontier_ = 0;
  uint64_t cost_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace kvstrata::core::trie
