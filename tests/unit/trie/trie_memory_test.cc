// SPDX-License-Identifier: Apache-2.0
// What the trie takes from the allocator, measured at the allocator: operator new counts what malloc sets aside.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "lib/base/status.h"
#include "lib/trie/trie.h"
#include "tests/support/catch.hpp"
#include "tests/unit/trie/trie_keys.h"

namespace {

uint64_t g_held = 0;
uint64_t g_peak = 0;
int64_t g_until_failure = -1;  // nothrow allocations until one fails; < 0: none does

// A 64-bit malloc puts an 8-byte header before each piece and hands out pieces of at least 32, in steps of 16 bytes.
uint64_t Footprint(size_t size) { return std::max<uint64_t>(32, (size + 8 + 15) / 16 * 16); }

// The size stands before the memory; 16 bytes keep malloc's alignment.
constexpr size_t kPrefix = 16;
constexpr size_t kLine = 64;  // the largest alignment that is asked for

uint64_t LineFootprint(size_t size) { return (size + 8 + kLine - 1) / kLine * kLine; }

void* Allocate(size_t size) noexcept {
  auto* memory = static_cast<unsigned char*>(std::malloc(size + kPrefix));
  if (memory == nullptr) return nullptr;
  *reinterpret_cast<size_t*>(memory) = size;
  g_held += Footprint(size);
  g_peak = std::max(g_peak, g_held);
  return memory + kPrefix;
}

void Deallocate(void* memory) noexcept {
  if (memory == nullptr) return;
  auto* start = static_cast<unsigned char*>(memory) - kPrefix;
  g_held -= Footprint(*reinterpret_cast<size_t*>(start));
  std::free(start);
}

}  // namespace

void* operator new(size_t size) {
  void* memory = Allocate(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (g_until_failure >= 0 && g_until_failure-- == 0) return nullptr;
  return Allocate(size);
}
// Beyond malloc's own alignment, a piece is cut out of a larger one: up to the line that leaves room for a header.
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  if (static_cast<size_t>(alignment) <= kPrefix) return ::operator new(size, std::nothrow);
  if (g_until_failure >= 0 && g_until_failure-- == 0) return nullptr;
  auto* start = static_cast<unsigned char*>(std::aligned_alloc(kLine, (size + 2 * kLine - 1) / kLine * kLine));
  if (start == nullptr || static_cast<size_t>(alignment) > kLine) return nullptr;
  *reinterpret_cast<size_t*>(start) = size;
  g_held += LineFootprint(size);
  g_peak = std::max(g_peak, g_held);
  return start + kLine;
}
void operator delete(void* memory, std::align_val_t alignment) noexcept {
  if (static_cast<size_t>(alignment) <= kPrefix) return ::operator delete(memory);
  if (memory == nullptr) return;
  auto* start = static_cast<unsigned char*>(memory) - kLine;
  g_held -= LineFootprint(*reinterpret_cast<size_t*>(start));
  std::free(start);
}
void operator delete(void* memory) noexcept { Deallocate(memory); }
void operator delete(void* memory, size_t) noexcept { Deallocate(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { Deallocate(memory); }

namespace {

using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::core::trie::BlockKey;
using kvstrata::core::trie::NodeRef;
using kvstrata::core::trie::Trie;
using kvstrata::test::TestRoot;

constexpr uint64_t kBytesPerBlockMax = 96;
// Where no block but the root's children has siblings; a chunk is 64 nodes of 64 bytes.
constexpr uint64_t kBytesPerLoneBlockMax = 76;

// Well-spread keys without the cost of hashing.
BlockKey FakeKey(uint64_t i) {
  const uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15;  // odd: a bijection
  return {{mixed ^ (mixed >> 29), mixed}, i};
}

enum class Shape { kChain, kFan, kBushes };

NodeRef ParentFor(Shape shape, uint64_t i, NodeRef root, NodeRef last) {
  switch (shape) {
    case Shape::kChain: return last;
    case Shape::kFan: return root;
    case Shape::kBushes: return i % 64 == 0 ? root : last;
  }
  return root;
}

// Grows a trie to `count` blocks and returns the worst peak per live block seen at `from` blocks and above, times 100.
uint64_t WorstHundredths(Shape shape, uint64_t from, uint64_t count) {
  const uint64_t before = g_held;
  uint64_t worst = 0;
  Trie trie(TestRoot());
  NodeRef last = trie.root();
  for (uint64_t i = 0; i < count; ++i) {
    g_peak = g_held;
    const auto added = trie.Insert(ParentFor(shape, i, trie.root(), last), FakeKey(i), i, 1000, 1);
    REQUIRE(added.ok());
    last = added->node;
    if (i + 1 < from) continue;
    worst = std::max(worst, (g_peak - before + sizeof(Trie)) * 100 / (i + 1));
  }
  // The trie's own account: all but what malloc adds, which is below 2.5 percent at this size.
  const uint64_t held = g_held - before + sizeof(Trie);
  CHECK(trie.MemoryBytes() <= held);
  CHECK(trie.MemoryBytes() + held / 40 >= held);
  return worst;
}

}  // namespace

TEST_CASE("a block costs at most 96 bytes of peak memory, 76 without siblings, up to 1,000,000 blocks") {
  const auto shape = GENERATE(Shape::kChain, Shape::kFan, Shape::kBushes);
  const uint64_t worst = WorstHundredths(shape, shape == Shape::kFan ? 2000 : 1000, 1'000'000);
  std::printf("shape %d: at most %.2f bytes of memory per indexed block\n", static_cast<int>(shape),
              static_cast<double>(worst) / 100);
  CHECK(worst <= (shape == Shape::kFan ? kBytesPerBlockMax : kBytesPerLoneBlockMax) * 100);
}

TEST_CASE("memory is used again after evictions") {
  Trie trie(TestRoot());
  uint64_t next = 0;
  for (; next < 5000; ++next) REQUIRE(trie.Insert(trie.root(), FakeKey(next), next, 1, next).ok());
  const uint64_t memory = trie.MemoryBytes();
  for (; next < 50'000; ++next) {
    REQUIRE(trie.Remove(*trie.ColdestLeaf()).ok());
    REQUIRE(trie.Insert(trie.root(), FakeKey(next), next, 1, next).ok());
  }
  CHECK(trie.MemoryBytes() == memory);
  CHECK(trie.Validate().ok());
}

TEST_CASE("each allocation may fail: insert says so, nothing is lost, the next one succeeds") {
  for (int64_t n = 0; n < 400; ++n) {
    g_until_failure = n;
    Trie trie(TestRoot());
    uint64_t stored = 0, refused = 0;
    NodeRef last = trie.root();
    while (stored < 3000) {
      const auto added = trie.Insert(stored % 5 == 0 ? trie.root() : last, FakeKey(stored), stored, 1, stored);
      if (added.ok()) {
        last = added->node;
        ++stored;
        continue;
      }
      REQUIRE(CodeOf(added.status()) == Code::kOutOfMemory);
      REQUIRE(++refused == 1);
      REQUIRE(trie.Validate().ok());
    }
    const bool all_succeeded = g_until_failure >= 0;
    g_until_failure = -1;
    REQUIRE(trie.block_count() == 3000);
    REQUIRE(trie.Validate().ok());
    for (uint64_t i = 0; i < stored; ++i) REQUIRE(trie.Find(FakeKey(i)).has_value());
    if (all_succeeded) return;
  }
  FAIL("more allocations than expected");
}
