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
constexpr uint32_t kShared = 8u << 10;

// Each thread takes its left neighbour's number, by way of shared memory.
template <bool kBarrier>
struct Shift {
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMostSharedBytes = kShared;
  uint32_t* out;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    auto* shared = static_cast<uint32_t*>(t.shared());
    shared[t.thread()] = static_cast<uint32_t>(t.first());
    if (kBarrier) t.Sync();
    out[t.first()] = shared[(t.thread() + t.threads() - 1) % t.threads()];
  }
};

// Each thread takes what a thread of the other warp has written between two exchanges.
template <bool kBarrier>
struct CrossWarps {
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMostSharedBytes = kShared;
  uint32_t* out;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    auto* shared = static_cast<uint32_t*>(t.shared());
    t.SyncWarp();
    shared[t.thread()] = t.thread();
    t.SyncWarp();
    if (kBarrier) t.Sync();
    out[t.thread()] = shared[(t.thread() + kWarp) % kThreads];
  }
};

// Each thread takes what its left neighbour has had copied, in two groups of which the first is `early`.
struct CopyShift {
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMostSharedBytes = kShared;
  const Word16* in;
  Word16* out;
  bool awaits;
  bool early;  // takes the first group, having awaited no more than that

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    auto* first = static_cast<Word16*>(t.shared());
    Word16* second = first + kBlockThreads;
    t.CopyAsync(&first[t.thread()], &in[t.thread()]);
    t.CommitCopies();
    t.CopyAsync(&second[t.thread()], &in[kBlockThreads + t.thread()]);
    t.CommitCopies();
    if (awaits && early) t.AwaitCopies<1>();
    if (awaits && !early) t.AwaitCopies<0>();
    t.Sync();
    const uint32_t left = (t.thread() + kBlockThreads - 1) % kBlockThreads;
    out[t.thread()] = early ? first[left] : second[left];
    t.AwaitCopies<0>();
  }
};

// Has 8 bytes copied to a place that is aligned for 4.
struct CopyAskew {
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMostSharedBytes = kShared;
  const Word16* in;
  KVSTRATA_DEVICE void operator()(Thread& t) const {
    t.CopyAsync(static_cast<uint32_t*>(t.shared()) + 2 * t.thread() + 1, in, 8);
    t.CommitCopies();
    t.AwaitCopies<0>();
  }
};

// Ends before what it has had copied has come.
struct CopyAndLeave {
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMostSharedBytes = kShared;
  const Word16* in;
  KVSTRATA_DEVICE void operator()(Thread& t) const {
    t.CopyAsync(static_cast<Word16*>(t.shared()) + t.thread(), in);
    t.CommitCopies();
  }
};

// A product of 16 x 16 and 16 x 8 whole numbers, by fragments that are loaded as matrices.
struct Product {
  static constexpr uint32_t kThreads = kWarp;
  static constexpr uint32_t kMostSharedBytes = kShared;
  const uint16_t* a;  // [16][16]
  const uint16_t* b;  // [16][8]: its fragment is of the transposed matrix
  float* c;           // [16][8]

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    auto* rows = static_cast<uint16_t*>(t.shared());
    for (uint32_t i = t.lane(); i < 16 * 16; i += kWarp) rows[i] = a[i];
    for (uint32_t i = t.lane(); i < 16 * 8; i += kWarp) rows[16 * 16 + i] = b[i];
    t.SyncWarp();
    FragmentA left;
    t.LoadMatrices(rows + (t.lane() % 16) * 16 + t.lane() / 16 * 8, left.pairs);
    uint32_t pairs[4];
    t.LoadTransposed(rows + 16 * 16 + (t.lane() % 16) * 8, pairs);
    FragmentC sums{};
    t.MultiplyAdd(left, {{pairs[0], pairs[1]}}, &sums);
    for (uint32_t i = 0; i < 4; ++i) c[(t.lane() / 4 + i / 2 * 8) * 8 + t.lane() % 4 * 2 + i % 2] = sums.values[i];
  }
};

// Sums the warp's lanes; the last lane of the block's last warp may stay away.
struct Sum {
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMostSharedBytes = kShared;
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
  static constexpr uint32_t kMostSharedBytes = kShared;
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
  static constexpr uint32_t kMostSharedBytes = kShared;
  uint32_t* out;
  KVSTRATA_DEVICE void operator()(Thread& t) const { out[t.thread()] = static_cast<uint32_t*>(t.shared())[t.thread()]; }
};

// Every block adds to the same cell: which one comes last is not said.
struct LastBlock {
  static constexpr uint32_t kThreads = kWarp;
  static constexpr uint32_t kMostSharedBytes = kShared;
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

TEST_CASE("warps that only meet within themselves do not wait for each other") {
  uint64_t wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<uint32_t> right(kBlockThreads), out(kBlockThreads);
    kvstrata::test::SeedGridModel(seed);
    REQUIRE(Launch(CrossWarps<true>{right.data()}, {1, kBlockThreads * 4}, nullptr) == kOk);
    REQUIRE(Launch(CrossWarps<false>{out.data()}, {1, kBlockThreads * 4}, nullptr) == kOk);
    for (uint32_t i = 0; i < kBlockThreads; ++i) CHECK(right[i] == (i + kWarp) % kBlockThreads);
    wrong += out != right ? 1 : 0;
  }
  CHECK(wrong == 20);
  CHECK(kvstrata::test::TakeGridFaults().empty());
}

TEST_CASE("what was copied and awaited is there for the block") {
  std::vector<Word16> in(2 * kBlockThreads), out(kBlockThreads);
  for (uint32_t i = 0; i < in.size(); ++i) in[i].parts[0] = 1000 + i;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const bool early : {false, true}) {
      kvstrata::test::SeedGridModel(seed);
      REQUIRE(Launch(CopyShift{in.data(), out.data(), true, early}, {1, 2 * kBlockThreads * 16}, nullptr) == kOk);
      for (uint32_t i = 0; i < out.size(); ++i) {
        const uint32_t left = (i + kBlockThreads - 1) % kBlockThreads;
        CHECK(out[i].parts[0] == 1000 + left + (early ? 0 : kBlockThreads));
      }
    }
  }
  CHECK(kvstrata::test::TakeGridFaults().empty());
}

TEST_CASE("a copy that is not awaited before the barrier is found, and one that is not awaited at all") {
  std::vector<Word16> in(2 * kBlockThreads), out(kBlockThreads);
  uint32_t wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    kvstrata::test::SeedGridModel(seed);
    REQUIRE(Launch(CopyShift{in.data(), out.data(), false, false}, {1, 2 * kBlockThreads * 16}, nullptr) == kOk);
    bool differs = false;
    for (const Word16& word : out) differs = differs || word.parts[0] != 0;
    wrong += differs ? 1 : 0;
  }
  CHECK(wrong == 20);
  CHECK(kvstrata::test::TakeGridFaults().empty());
  REQUIRE(Launch(CopyAndLeave{in.data()}, {1, kBlockThreads * 16}, nullptr) == kOk);
  const std::vector<std::string> faults = kvstrata::test::TakeGridFaults();
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].find("copies under way") != std::string::npos);
}

TEST_CASE("a copy that is not aligned for its size is found") {
  const std::vector<Word16> in(1);
  REQUIRE(Launch(CopyAskew{in.data()}, {1, kBlockThreads * 16}, nullptr) == kOk);
  const std::vector<std::string> faults = kvstrata::test::TakeGridFaults();
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].find("copies 8 bytes that are not aligned") != std::string::npos);
}

TEST_CASE("matrices are loaded as the fragments of a product want them") {
  std::vector<uint16_t> a(16 * 16), b(16 * 8);
  std::vector<float> c(16 * 8);
  const auto value = [](uint32_t row, uint32_t column) { return static_cast<float>((row * 7 + column * 3) % 11) - 5; };
  for (uint32_t i = 0; i < a.size(); ++i) a[i] = reference::F32ToBf16(value(i / 16, i % 16));
  for (uint32_t i = 0; i < b.size(); ++i) b[i] = reference::F32ToBf16(value(i / 8 + 2, i % 8));
  REQUIRE(Launch(Product{a.data(), b.data(), c.data()}, {1, (16 * 16 + 16 * 8) * 2}, nullptr) == kOk);
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t column = 0; column < 8; ++column) {
      float sum = 0;
      for (uint32_t k = 0; k < 16; ++k) sum += value(row, k) * value(k + 2, column);
      CHECK(c[row * 8 + column] == sum);
    }
  }
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

TEST_CASE("more shared memory than there is is found") {
  uint32_t out[kBlockThreads];
  REQUIRE(Launch(Unwritten{out}, {1, (227u << 10) + 1}, nullptr) == kOk);
  CHECK(kvstrata::test::TakeGridFaults() == std::vector<std::string>{"232449 bytes of shared memory"});
}

TEST_CASE("more shared memory than a kernel has announced is found") {
  uint32_t out[kBlockThreads];
  REQUIRE(Launch(Unwritten{out}, {1, kShared + 16}, nullptr) == kOk);
  CHECK(kvstrata::test::TakeGridFaults() ==
        std::vector<std::string>{"8208 bytes of shared memory, where at most 8192 were announced"});
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
