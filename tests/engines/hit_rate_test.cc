// SPDX-License-Identifier: Apache-2.0
// The replay of benchmarks/hit_rate on small traces made here: under LRU it hits and stores exactly what a naive
// simulation does, which knows nothing of this library.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "benchmarks/hit_rate/replay.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"

namespace kvstrata::test {
namespace {

using hit_rate::Counts;
using hit_rate::DistinctBlocks;
using hit_rate::Replay;
using hit_rate::Request;
using hit_rate::Setting;

// Conversations over a few system prompts: each grows by some blocks a turn, and they alternate at random.
std::vector<Request> Conversations(uint64_t seed, int requests) {
  Rng rng(seed);
  std::vector<Request> trace, running;
  int32_t next = 1'000;
  for (int i = 0; i < requests; ++i) {
    if (running.empty() || rng.Below(4) == 0) {
      const auto system = static_cast<int32_t>(rng.Below(3));
      running.push_back({10 * system, 10 * system + 1});
    }
    Request& one = running[rng.Below(running.size())];
    for (uint64_t more = 1 + rng.Below(4); more > 0; --more) one.push_back(next++);
    trace.push_back(one);
    if (one.size() > 20) one.resize(2);
  }
  return trace;
}

// A set of prefixes. A prefix goes only when no longer one begins with it, never one of the request at hand, and the
// one whose last request is longest ago goes first.
Counts SimulateLru(const std::vector<Request>& trace, uint64_t capacity) {
  std::map<Request, size_t> stored;  // prefix -> its last request
  Counts counts;
  for (size_t now = 0; now < trace.size(); ++now) {
    std::vector<Request> prefixes;
    for (size_t length = 1; length <= trace[now].size(); ++length) {
      prefixes.emplace_back(trace[now].begin(), trace[now].begin() + static_cast<std::ptrdiff_t>(length));
    }
    size_t hit = 0;
    while (hit < prefixes.size() && stored.count(prefixes[hit]) != 0) stored[prefixes[hit++]] = now;
    counts.requested_blocks += prefixes.size();
    counts.hit_blocks += hit;
    for (size_t i = hit; i < prefixes.size(); ++i) {
      auto oldest = stored.end();
      for (auto at = stored.begin(); stored.size() >= capacity && at != stored.end(); ++at) {
        const auto after = std::next(at);
        const bool leaf = after == stored.end() || after->first.size() <= at->first.size() ||
                          !std::equal(at->first.begin(), at->first.end(), after->first.begin());
        if (leaf && at->second != now && (oldest == stored.end() || at->second < oldest->second)) oldest = at;
      }
      if (stored.size() >= capacity && oldest == stored.end()) {
        counts.dropped_blocks += 1;  // the rest hangs on it and is not even tried
        break;
      }
      if (oldest != stored.end()) stored.erase(oldest);
      stored[prefixes[i]] = now;
      counts.stored_blocks += 1;
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("P13: a replay under LRU hits and stores what a naive simulation does") {
  const uint64_t capacity = GENERATE(3, 8, 20, 60, 150, 100'000);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    CAPTURE(capacity, seed);
    const std::vector<Request> trace = Conversations(seed, 150);
    const Counts expected = SimulateLru(trace, capacity);
    Setting setting;
    setting.capacity_blocks = capacity;
    const Counts counts = Replay(trace, setting);
    REQUIRE(counts.fault == "");
    CHECK(counts.requested_blocks == expected.requested_blocks);
    CHECK(counts.hit_blocks == expected.hit_blocks);
    CHECK(counts.stored_blocks == expected.stored_blocks);
    CHECK(counts.dropped_blocks == expected.dropped_blocks);
    if (capacity == 100'000) CHECK(counts.stored_blocks == DistinctBlocks(trace));
  }
}

TEST_CASE("P13: with room for everything, every policy hits the same; with admission, one use fewer") {
  const std::vector<Request> trace = Conversations(7, 150);
  std::map<Request, int> uses;
  uint64_t seen_twice = 0, used_again = 0;
  for (const Request& request : trace) {
    for (size_t length = 1; length <= request.size(); ++length) {
      const int before = uses[Request(request.begin(), request.begin() + static_cast<std::ptrdiff_t>(length))]++;
      seen_twice += before == 1 ? 1 : 0;
      used_again += before >= 2 ? 1 : 0;
    }
  }
  Setting setting;
  setting.capacity_blocks = 100'000;
  const Counts lru = Replay(trace, setting);
  setting.policy = eviction_policy::frequency;
  const Counts frequency = Replay(trace, setting);
  CHECK(frequency.hit_blocks == lru.hit_blocks);
  CHECK(frequency.hit_blocks == seen_twice + used_again);
  setting.admit = admission::second_sight;
  const Counts admitted = Replay(trace, setting);
  REQUIRE(admitted.fault == "");
  CHECK(admitted.hit_blocks == used_again);
  CHECK(admitted.stored_blocks == seen_twice);
}

}  // namespace kvstrata::test
