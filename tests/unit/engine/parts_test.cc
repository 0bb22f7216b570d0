// SPDX-License-Identifier: Apache-2.0
// Staging memory and prompts.
#include <atomic>
#include <optional>
#include <thread>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/engine/found_runs.h"
#include "lib/engine/prompt.h"
#include "lib/engine/saved_uses.h"
#include "lib/engine/staging.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using namespace kvstrata::core::engine;

namespace {

// Counts what it gave out, and fails on request.
class CountingAllocator final : public Allocator {
 public:
  std::byte* Allocate(uint64_t bytes, uint64_t alignment) override {
    if (fail) return nullptr;
    live_bytes += bytes;
    ++live;
    return DefaultAllocator().Allocate(bytes, alignment);
  }
  void Release(std::byte* memory, uint64_t bytes, uint64_t alignment) override {
    live_bytes -= bytes;
    --live;
    DefaultAllocator().Release(memory, bytes, alignment);
  }
  std::atomic<bool> fail = false;
  std::atomic<uint64_t> live_bytes = 0;
  std::atomic<int64_t> live = 0;
};

auto Soon() { return base::DeadlineAfter(std::chrono::milliseconds(5)); }
auto Later() { return base::DeadlineAfter(std::chrono::seconds(60)); }

}  // namespace

TEST_CASE("staging memory is bounded, and gone when idle") {
  CountingAllocator allocator;
  const auto pool = std::make_shared<StagingPool>(100, &allocator, nullptr);
  CHECK(base::CodeOf(pool->Acquire(101, -1, Later()).status()) == base::Code::kTooLarge);
  CHECK(base::CodeOf(pool->TryAcquire(101, -1).status()) == base::Code::kBusy);
  {
    StagingBuffer first = pool->Acquire(60, -1, Later()).value();
    CHECK(first.bytes().size() == 60);
    CHECK(reinterpret_cast<uintptr_t>(first.data()) % 4096 == 0);
    CHECK(base::CodeOf(pool->TryAcquire(41, -1).status()) == base::Code::kBusy);
    CHECK(base::CodeOf(pool->Acquire(41, -1, Soon()).status()) == base::Code::kTimeout);
    StagingBuffer second = pool->TryAcquire(40, -1).value();
    CHECK(pool->usage().used == 100);
    StagingBuffer moved = std::move(second);
    CHECK(pool->usage().used == 100);
    moved = std::move(first);  // gives back the 40
    CHECK(pool->usage().used == 60);
    CHECK(allocator.live == 1);
    moved.Reset();
    moved.Reset();
    CHECK(pool->usage().used == 0);
    // An empty buffer costs nothing and has an address all the same.
    StagingBuffer empty = pool->Acquire(0, -1, Later()).value();
    CHECK(empty.data() != nullptr);
    CHECK(pool->usage().used == 0);
  }
  CHECK(allocator.live == 0);
  CHECK(allocator.live_bytes == 0);
  CHECK(pool->usage().peak == 100);
}

TEST_CASE("a failed allocation gives its share back") {
  CountingAllocator allocator;
  const auto pool = std::make_shared<StagingPool>(100, &allocator, nullptr);
  allocator.fail = true;
  for (int i = 0; i < 3; ++i) {
    CHECK(base::CodeOf(pool->Acquire(100, -1, Soon()).status()) == base::Code::kOutOfMemory);
    CHECK(base::CodeOf(pool->TryAcquire(100, -1).status()) == base::Code::kOutOfMemory);
  }
  CHECK(pool->usage().used == 0);
  allocator.fail = false;
  CHECK(pool->TryAcquire(100, -1).ok());
}

TEST_CASE("stuck memory is counted once, until it is released") {
  CountingAllocator allocator;
  const auto pool = std::make_shared<StagingPool>(100, &allocator, nullptr);
  StagingBuffer buffer = pool->TryAcquire(30, -1).value();
  buffer.MarkStuck();
  buffer.MarkStuck();
  CHECK(pool->usage().stuck == 30);
  StagingBuffer moved = std::move(buffer);
  CHECK(pool->usage().stuck == 30);
  moved.Reset();
  CHECK(pool->usage().stuck == 0);
  CHECK(pool->usage().used == 0);
  // The next buffer is not stuck because this one was.
  moved = pool->TryAcquire(30, -1).value();
  moved.Reset();
  CHECK(pool->usage().stuck == 0);
}

TEST_CASE("who waits for staging memory gets what another gives back") {
  CountingAllocator allocator;
  const auto pool = std::make_shared<StagingPool>(10, &allocator, nullptr);
  StagingBuffer all = pool->TryAcquire(10, -1).value();
  std::thread waiter([&] { CHECK(pool->Acquire(10, -1, Later()).ok()); });
  all.Reset();
  waiter.join();
  CHECK(pool->usage().used == 0);
}

TEST_CASE("extra keys are refused by their place in the list, and nothing is appended then") {
  const std::vector<int32_t> four = {1, 2, 3, 4};
  const auto field_of = [&](std::vector<ExtraKey> keys) {
    Prompt prompt;
    REQUIRE(prompt.Append(four, {{2, 1, "a"}}).ok());
    const absl::Status status = prompt.Append(four, std::move(keys));
    CHECK(base::CodeOf(status) == base::Code::kInvalidArgument);
    CHECK(prompt.size() == 4);
    CHECK(prompt.Extra(0, 8).size() == 17);
    return base::FieldOf(status);
  };
  CHECK(field_of({{3, 0, ""}}) == "tokens.extra_keys[0]");  // among the older tokens
  CHECK(field_of({{1, 0, ""}}) == "tokens.extra_keys[0]");  // before the last key
  CHECK(field_of({{8, 0, ""}}) == "tokens.extra_keys[0]");  // behind the end
  CHECK(field_of({{UINT64_MAX, 0, ""}}) == "tokens.extra_keys[0]");
  CHECK(field_of({{6, 0, ""}, {5, 0, ""}}) == "tokens.extra_keys[1]");
  CHECK(field_of({{6, 0, std::string(1025, 'x')}}) == "tokens.extra_keys[0]");
  CHECK(field_of(std::vector<ExtraKey>(9, ExtraKey{5, 0, ""})) == "tokens.extra_keys[8]");
  Prompt prompt;
  CHECK(prompt.Append(four, std::vector<ExtraKey>(8, ExtraKey{3, 0, std::string(1024, 'x')})).ok());
}

TEST_CASE("extra keys belong to the block that holds their position") {
  const std::vector<int32_t> eight(8, 5);
  const auto with = [&](std::vector<ExtraKey> keys) {
    Prompt prompt;
    REQUIRE(prompt.Append(eight, std::move(keys)).ok());
    return prompt;
  };
  const Prompt plain = with({}), early = with({{3, 1, "k"}}), late = with({{4, 1, "k"}});
  CHECK(plain.Extra(0, 4).empty());
  CHECK(early.Extra(4, 4).empty());
  CHECK(late.Extra(0, 4).empty());
  // Relative positions: the same key at the same place of another block has the same bytes.
  CHECK(with({{7, 1, "k"}}).Extra(4, 4) == early.Extra(0, 4));
  CHECK(late.Extra(4, 4) != early.Extra(0, 4));
  CHECK(with({{3, 2, "k"}}).Extra(0, 4) != early.Extra(0, 4));
  CHECK(with({{3, 1, "kk"}}).Extra(0, 4) != early.Extra(0, 4));
  // Cut differently, the same keys have other bytes: each carries its length.
  CHECK(with({{3, 1, "ab"}, {3, 1, "c"}}).Extra(0, 4) != with({{3, 1, "a"}, {3, 1, "bc"}}).Extra(0, 4));

  Prompt cut = with({{3, 1, "k"}, {4, 1, "l"}, {7, 1, "m"}});
  cut.Truncate(5);
  CHECK(cut.size() == 5);
  CHECK(cut.Extra(0, 8) == with({{3, 1, "k"}, {4, 1, "l"}}).Extra(0, 8));
  cut.Truncate(3);
  CHECK(cut.Extra(0, 8).empty());
  // Keys after a truncation may begin again where the sequence ends.
  CHECK(cut.Append(eight, {{3, 1, "n"}}).ok());
}

TEST_CASE("the tail's digest tells tokens, keys and boundary apart, and there is none at a boundary") {
  const base::BlockDigest boundary{{1, 2}, 3}, other{{1, 3}, 3};
  Prompt prompt;
  REQUIRE(prompt.Append(std::vector<int32_t>{1, 2, 3, 4, 5, 6}, {{5, 1, "k"}}).ok());
  CHECK(TailOf(prompt, boundary, 4, 4) == base::Digest128{});
  const base::Digest128 tail = TailOf(prompt, boundary, 4, 6);
  CHECK(tail != TailOf(prompt, other, 4, 6));
  CHECK(tail != TailOf(prompt, boundary, 4, 5));
  Prompt without;
  REQUIRE(without.Append(std::vector<int32_t>{1, 2, 3, 4, 5, 6}, {}).ok());
  CHECK(tail != TailOf(without, boundary, 4, 6));
  CHECK(TailOf(prompt, boundary, 4, 5) == TailOf(without, boundary, 4, 5));
}

TEST_CASE("what is known of a block's use is found in whatever order it is asked for") {
  namespace format = kvstrata::core::format;
  base::SeededRandom random(20261201);
  format::Uses uses;
  for (uint64_t i = 0; i < 400; ++i) {
    format::BlockUses block;
    block.sequence = 10 + random.Below(150);
    block.first = static_cast<uint8_t>(random.Below(12));
    block.more = static_cast<uint8_t>(random.Below(4));
    block.heat = i;
    uses.blocks.push_back(block);
  }
  SavedUses saved;
  saved.Add(uses);
  saved.Prepare();
  // Of entries that begin at or before the block, the one that begins last counts, the later of two.
  const auto expected = [&](uint64_t sequence, uint32_t index) -> std::optional<uint64_t> {
    const format::BlockUses* found = nullptr;
    for (const format::BlockUses& block : uses.blocks) {
      if (block.sequence != sequence || block.first > index) continue;
      if (found == nullptr || block.first >= found->first) found = &block;
    }
    if (found == nullptr || index > found->first + uint32_t{found->more}) return std::nullopt;
    return found->heat;
  };
  const auto check = [&](uint64_t sequence, uint32_t index) {
    const format::BlockUses* found = saved.Block(sequence, index);
    const auto heat = found == nullptr ? std::nullopt : std::optional<uint64_t>(found->heat);
    REQUIRE(heat == expected(sequence, index));
  };
  for (uint64_t sequence = 0; sequence < 180; ++sequence) {
    for (uint32_t index = 0; index < 18; ++index) check(sequence, index);
  }
  for (int i = 0; i < 2000; ++i) check(random.Below(180), static_cast<uint32_t>(random.Below(18)));
}

TEST_CASE("runs of all lengths come back from where they were gathered, in the order of writing, once each") {
  namespace format = kvstrata::core::format;
  constexpr uint64_t kRuns = 3000;
  // Of run number `run`, block number `i`; runs 7 and on have a length of their own, up to the longest.
  const auto key = [](uint64_t run, uint64_t i) { return base::BlockDigest{{run * 1000 + i, run}, i}; };
  const auto length = [](uint64_t run) { return 1 + run * 37 % format::kMaxRunBlocks; };
  FoundRuns runs;
  for (uint64_t step = 0; step < kRuns + 1; ++step) {
    const uint64_t run = step == kRuns ? 11 : step * 1009 % kRuns;  // out of order; one comes twice
    format::RecordMeta meta;
    meta.identity.kind = format::RecordKind::kBlock;
    meta.identity.sequence = run + 5;
    meta.identity.key = key(run, 0);
    for (uint64_t i = 1; i < length(run); ++i) meta.more.push_back(key(run, i));
    REQUIRE(runs.Add(meta));
  }
  runs.PutInOrder();
  REQUIRE(runs.size() == kRuns);
  for (uint64_t run = 0; run < kRuns; ++run) {
    REQUIRE(runs[run].sequence == run + 5);
    REQUIRE(runs[run].key == key(run, 0));
    const auto more = runs.More(runs[run]);
    REQUIRE(more.size() + 1 == length(run));
    for (uint64_t i = 0; i < more.size(); ++i) REQUIRE(more[i] == key(run, i + 1));
    REQUIRE(runs.OwnBlocks(runs[run]) == length(run));
  }
}
