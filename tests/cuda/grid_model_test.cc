// SPDX-License-Identifier: Apache-2.0
// The model of a GPU itself: what kernels may rely on holds there, and kernels with a planted fault are found.
#include "tests/support/grid_model.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/grid.h"
#include "tests/support/catch.hpp"

namespace kvstrata::kernels::cuda {
namespace {

constexpr uint32_t kBlockThreads = 64;

// Each thread takes its left neighbour's number, by way of shared memory.
template <bool kBarrier>
struct Shift {
  static constexpr uint32_t kThreads = kBlockThreads;
  uint32_t* out;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    auto* shared = static_cast<uint32_t*>(t.shared());
    shared[t.thread()] = static_cast<uint32_t>(t.first());
    if (kBarrier) t.Sync();
    out[t.first()] = shared[(t.thread() + t.threads() - 1) % t.threads()];
  }
};

// Sums the warp's lanes; the last lane of the block's last warp may stay away.
struct Sum {
  static constexpr uint32_t kThreads = kBlockThreads;
  uint64_t* out;
  bool last_stays_away;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    if (last_stays_away && t.thread() + 1 == t.threads()) return;
    uint64_t sum = t.first();
    for (uint32_t mask = 1; mask < kWarp; mask *= 2) sum += t.ExchangeXor(sum, mask);
    out[t.first()] = sum;
  }
};

// A barrier that only the even threads reach.
struct HalfBarrier {
  static constexpr uint32_t kThreads = kBlockThreads;
  KVSTRATA_DEVICE void operator()(Thread& t) const {
    if (t.thread() % 2 == 0) t.Sync();
  }
};

struct Odd {
  static constexpr uint32_t kThreads = 48;
  KVSTRATA_DEVICE void operator()(Thread& /*t*/) const {}
};

// Reads shared memory that nobody has written.
struct Unwritten {
  static constexpr uint32_t kThreads = kBlockThreads;
  uint32_t* out;
  KVSTRATA_DEVICE void operator()(Thread& t) const { out[t.thread()] = static_cast<uint32_t*>(t.shared())[t.thread()]; }
};

// Every block adds to the same cell: which one comes last is not said.
struct LastBlock {
  static constexpr uint32_t kThreads = kWarp;
  uint32_t* out;
  KVSTRATA_DEVICE void operator()(Thread& t) const {
    if (t.thread() == 0) *out = t.block();
  }
};

template <bool kBarrier>
std::vector<uint32_t> RunShift(uint64_t seed) {
  constexpr uint32_t kBlocks = 3;
  std::vector<uint32_t> out(kBlocks * kBlockThreads);
  kvstrata::test::SeedGridModel(seed);
  REQUIRE(Launch(Shift<kBarrier>{out.data()}, {kBlocks, kBlockThreads * 4}, nullptr) == kOk);
  return out;
}

TEST_CASE("a barrier makes what was written before it visible to the block, whatever the order") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<uint32_t> out = RunShift<true>(seed);
    for (uint32_t i = 0; i < out.size(); ++i) {
      const uint32_t thread = i % kBlockThreads;
      CHECK(out[i] == i - thread + (thread + kBlockThreads - 1) % kBlockThreads);
    }
  }
  CHECK(kvstrata::test::TakeGridFaults().empty());
}

TEST_CASE("a missing barrier is found: the result is wrong, and another for another order") {
  const std::vector<uint32_t> right = RunShift<true>(1);
  std::set<std::vector<uint32_t>> results;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<uint32_t> out = RunShift<false>(seed);
    CHECK(out != right);
    results.insert(out);
  }
  CHECK(results.size() == 20);
}

TEST_CASE("a warp's exchange gives every lane what its partner gave") {
  std::vector<uint64_t> out(2 * kBlockThreads);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    kvstrata::test::SeedGridModel(seed);
    REQUIRE(Launch(Sum{out.data(), false}, {2, 0}, nullptr) == kOk);
    for (uint64_t i = 0; i < out.size(); ++i) {
      const uint64_t first = i / kWarp * kWarp;
      CHECK(out[i] == kWarp * first + kWarp * (kWarp - 1) / 2);
    }
  }
  CHECK(kvstrata::test::TakeGridFaults().empty());
}

TEST_CASE("a lane that stays away from an exchange is found") {
  std::vector<uint64_t> out(kBlockThreads, 7);
  REQUIRE(Launch(Sum{out.data(), true}, {1, 0}, nullptr) == kOk);
  const std::vector<std::string> faults = kvstrata::test::TakeGridFaults();
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].find("31 at an exchange, 33 have ended") != std::string::npos);
  CHECK(out[0] != 7);   // the first warp has met
  CHECK(out[32] == 7);  // the second never will
}

TEST_CASE("a barrier that some threads do not reach is found") {
  REQUIRE(Launch(HalfBarrier{}, {5, 0}, nullptr) == kOk);
  const std::vector<std::string> faults = kvstrata::test::TakeGridFaults();
  REQUIRE(faults.size() == 1);  // the grid is given up at its first block
  CHECK(faults[0].find("32 threads wait at a barrier") != std::string::npos);
}

TEST_CASE("a block that is no whole number of warps is found") {
  REQUIRE(Launch(Odd{}, {1, 0}, nullptr) == kOk);
  CHECK(kvstrata::test::TakeGridFaults() == std::vector<std::string>{"48 threads in a block"});
}

TEST_CASE("shared memory has no contents at first, and blocks have no order") {
  std::set<uint32_t> values, last;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    kvstrata::test::SeedGridModel(seed);
    std::vector<uint32_t> out(kBlockThreads);
    REQUIRE(Launch(Unwritten{out.data()}, {1, kBlockThreads * 4}, nullptr) == kOk);
    values.insert(out[0]);
    uint32_t block = 0;
    REQUIRE(Launch(LastBlock{&block}, {8, 0}, nullptr) == kOk);
    last.insert(block);
  }
  CHECK(values.size() > 10);
  CHECK(last.size() > 3);
}

TEST_CASE("no blocks: nothing runs") {
  const uint64_t before = kvstrata::test::GridLaunches();
  REQUIRE(Launch(HalfBarrier{}, {0, 0}, nullptr) == kOk);
  CHECK(kvstrata::test::GridLaunches() == before);
}

}  // namespace
}  // namespace kvstrata::kernels::cuda
