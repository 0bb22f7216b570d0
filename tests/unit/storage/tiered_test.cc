// SPDX-License-Identifier: Apache-2.0
// What a tier of memory adds to the storage below it: hits, promotion, eviction, write-back, and its one bound. What it
// must leave as it is, conformance_test.cc says.
#include "lib/storage/tiered.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/storage/memory.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/faulty_storage.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using base::Code;
using base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::FaultyStorage;
using kvstrata::test::GetNow;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::StorageCall;
using kvstrata::test::VisitAll;

namespace {

constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();
constexpr uint64_t kPage = 4096;

// A tiered storage, what lies below it, and faults between the two.
struct Tiers {
  std::shared_ptr<storage::Storage> bottom = std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{64 << 20});
  std::shared_ptr<FaultyStorage> lower = std::make_shared<FaultyStorage>(bottom, 20250105, /*close_inner=*/false);
  std::unique_ptr<storage::TieredStorage> store;

  explicit Tiers(storage::TieredOptions options) {
    options.lower = lower;
    if (options.memory_bytes == 0) options.memory_bytes = 1 << 20;
    auto opened = storage::TieredStorage::Open(std::move(options));
    REQUIRE(opened.ok());
    store = std::move(*opened);
  }
  storage::TierStats stats() const { return store->Tier().value(); }
  // Promotions happen behind the gets.
  void WaitForPromotions(uint64_t count) const {
    while (stats().promotions < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void WaitUntilWithheld(uint64_t count) const {
    while (lower->withheld() < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

storage::TieredOptions Back() {
  storage::TieredOptions options;
  options.write = storage::WritePolicy::kBack;
  return options;
}

// Of one page, so that it costs a page and what keeps it.
std::string Block(uint64_t number) { return std::string(kPage, static_cast<char>('a' + number % 26)); }

}  // namespace

TEST_CASE("what was put is read from memory, and the storage below is not asked") {
  Tiers tiers({});
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "0123456789", "meta").status.ok());
  CHECK(ReadNow(*tiers.bottom, KeyOf(1)).value() == "0123456789");
  std::string room(4, '#');
  const storage::Result got = GetNow(*tiers.store, KeyOf(1), 3, std::as_writable_bytes(std::span(room)));
  CHECK(got.from_memory);
  CHECK(room == "3456");
  CHECK(tiers.lower->calls(StorageCall::kGet) == 0);
  CHECK(tiers.stats().hits == 1);
  CHECK(tiers.stats().hit_bytes == 4);
  CHECK(tiers.stats().misses == 0);
}

TEST_CASE("R09: with room for one block in memory, a thousand blocks are found below") {
  constexpr uint64_t kBlocks = 1000;
  storage::TieredOptions options;
  options.memory_bytes = storage::TierMemory::Cost(kPage, 0);
  options.promotion = storage::Promotion::kNever;
  Tiers tiers(options);
  for (uint64_t i = 0; i < kBlocks; ++i) REQUIRE(PutNow(*tiers.store, KeyOf(i), Block(i)).status.ok());
  CHECK(tiers.stats().evictions == kBlocks - 1);
  // All but the last one put.
  for (uint64_t i = 0; i + 1 < kBlocks; ++i) REQUIRE(ReadNow(*tiers.store, KeyOf(i)).value() == Block(i));
  CHECK(tiers.stats().misses == kBlocks - 1);
  CHECK(tiers.stats().hits == 0);
}

TEST_CASE("the coldest record goes first, and reading keeps one warm") {
  storage::TieredOptions options;
  options.memory_bytes = 3 * storage::TierMemory::Cost(kPage, 0);
  options.promotion = storage::Promotion::kNever;
  Tiers tiers(options);
  for (uint64_t i = 0; i < 3; ++i) REQUIRE(PutNow(*tiers.store, KeyOf(i), Block(i)).status.ok());
  REQUIRE(ReadNow(*tiers.store, KeyOf(0)).ok());
  REQUIRE(PutNow(*tiers.store, KeyOf(3), Block(3)).status.ok());
  CHECK(tiers.store->Hold(KeyOf(0)) != nullptr);
  CHECK(tiers.store->Hold(KeyOf(1)) == nullptr);
  CHECK(tiers.store->Hold(KeyOf(2)) != nullptr);
  CHECK(tiers.store->Hold(KeyOf(3)) != nullptr);
}

TEST_CASE("the bound of memory holds at every moment, whatever is put, read, held and removed") {
  constexpr uint64_t kCapacity = 64 * 1024;
  const auto write = GENERATE(storage::WritePolicy::kThrough, storage::WritePolicy::kBack);
  storage::TieredOptions options;
  options.memory_bytes = kCapacity;
  options.write = write;
  Tiers tiers(options);
  const uint64_t seed = 20250106;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  std::vector<std::shared_ptr<storage::HeldRecord>> held;
  for (uint64_t i = 0; i < 3000; ++i) {
    const storage::Key key = KeyOf(random.Below(40));
    switch (random.Below(8)) {
      case 0: REQUIRE(tiers.store->Remove(key).ok()); break;
      case 1: held.push_back(tiers.store->Hold(key)); break;
      case 2: held.clear(); break;
      case 3:
      case 4: static_cast<void>(ReadNow(*tiers.store, key)); break;
      default: REQUIRE(PutNow(*tiers.store, key, std::string(random.Below(20000), 'p')).status.ok()); break;
    }
    REQUIRE(tiers.stats().used_bytes <= kCapacity);
    if (held.size() > 3) held.erase(held.begin());
  }
  CHECK(tiers.stats().evictions > 0);
}

TEST_CASE("a record that was read from below is brought into memory, at once or at the second use") {
  storage::TieredOptions options;
  options.promotion = GENERATE(storage::Promotion::kAlways, storage::Promotion::kSecondHit, storage::Promotion::kNever);
  Tiers tiers(options);
  REQUIRE(PutNow(*tiers.bottom, KeyOf(1), "0123456789").status.ok());
  std::string room(4, '#');
  const auto get = [&](uint64_t offset) {
    return GetNow(*tiers.store, KeyOf(1), offset, std::as_writable_bytes(std::span(room)));
  };
  // Ranges behind the first byte belong to a use that has begun already.
  REQUIRE(get(2).status.ok());
  REQUIRE(get(4).status.ok());
  CHECK(tiers.stats().promotions == 0);
  REQUIRE_FALSE(get(0).from_memory);
  if (options.promotion == storage::Promotion::kSecondHit) {
    REQUIRE_FALSE(get(6).from_memory);
    REQUIRE_FALSE(get(0).from_memory);
  }
  if (options.promotion == storage::Promotion::kNever) {
    CHECK_FALSE(get(0).from_memory);
    CHECK(tiers.stats().promotions == 0);
    return;
  }
  tiers.WaitForPromotions(1);
  CHECK(get(5).from_memory);
  CHECK(room == "5678");
  CHECK(tiers.stats().promoted_bytes == 10);
}

TEST_CASE("a promotion delays no get, and never brings back what was put over or removed meanwhile") {
  Tiers tiers({});
  REQUIRE(PutNow(*tiers.bottom, KeyOf(1), "old").status.ok());
  REQUIRE(PutNow(*tiers.bottom, KeyOf(2), "old").status.ok());
  Completions completions(2);
  std::string rooms[2] = {"###", "###"};
  tiers.lower->Stick();
  for (uint64_t i = 0; i < 2; ++i) {
    const storage::Request request = {storage::Get{KeyOf(i + 1), 0, std::as_writable_bytes(std::span(rooms[i]))},
                                      completions.Of(i)};
    REQUIRE(tiers.store->Submit({&request, 1}).ok());
  }
  tiers.lower->ReleaseOldest();
  tiers.lower->ReleaseOldest();
  completions.Wait();
  CHECK(rooms[0] == "old");
  // Both promotions have read their records, and are held up.
  tiers.WaitUntilWithheld(2);
  REQUIRE(tiers.store->Remove(KeyOf(2)).ok());
  Completions put(1);
  const std::string fresh = "fresh";
  const base::ByteView part = base::AsBytes(fresh);
  const storage::Request request = {storage::Put{KeyOf(1), {&part, 1}, {}}, put.Of(0)};
  REQUIRE(tiers.store->Submit({&request, 1}).ok());
  tiers.lower->Release();
  put.Wait();
  CHECK(ReadNow(*tiers.store, KeyOf(1)).value() == "fresh");
  CHECK(CodeOf(ReadNow(*tiers.store, KeyOf(2)).status()) == Code::kNotFound);
  REQUIRE(tiers.store->Close(kForever).ok());
  CHECK(tiers.stats().promotions == 0);
}

TEST_CASE("a put below that fails leaves nothing in memory") {
  Tiers tiers({});
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "old").status.ok());
  tiers.lower->FailNth(StorageCall::kPut, 1, Code::kIo);
  CHECK(CodeOf(PutNow(*tiers.store, KeyOf(1), "new").status) == Code::kIo);
  CHECK(tiers.store->Hold(KeyOf(1)) == nullptr);
  CHECK(ReadNow(*tiers.store, KeyOf(1)).value() == "old");
}

TEST_CASE("a batch that the storage below refuses leaves no trace") {
  const auto write = GENERATE(storage::WritePolicy::kThrough, storage::WritePolicy::kBack);
  storage::TieredOptions options;
  options.write = write;
  Tiers tiers(options);
  REQUIRE(PutNow(*tiers.bottom, KeyOf(7), "below").status.ok());
  tiers.lower->FailNth(StorageCall::kSubmit, 1, Code::kBusy);
  Completions completions(2);
  std::string room(5, '#');
  const std::string payload = "new";
  const base::ByteView part = base::AsBytes(payload);
  const std::vector<storage::Request> requests = {
      {storage::Put{KeyOf(1), {&part, 1}, {}}, completions.Of(0)},
      {storage::Get{KeyOf(7), 0, std::as_writable_bytes(std::span(room))}, completions.Of(1)}};
  CHECK(CodeOf(tiers.store->Submit(requests)) == Code::kBusy);
  CHECK_FALSE(tiers.store->Stat(KeyOf(1)).value().has_value());
  CHECK(tiers.stats().used_bytes == 0);
  CHECK(tiers.stats().dirty_bytes == 0);
  REQUIRE(tiers.store->Close(kForever).ok());
  CHECK(completions.Counts() == std::pair(0, 0));
}

TEST_CASE("writing back, a put is there before it is below, and a sync waits until it is") {
  Tiers tiers(Back());
  tiers.lower->Stick();
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "payload", "meta").status.ok());
  CHECK(ReadNow(*tiers.store, KeyOf(1)).value() == "payload");
  CHECK(tiers.stats().dirty_bytes == 7);
  CHECK(tiers.store->UsedBytes() >= tiers.store->StoredBytes(7, 4));
  tiers.WaitUntilWithheld(1);
  tiers.lower->Release();
  REQUIRE(tiers.store->Sync().ok());
  CHECK(tiers.stats().dirty_bytes == 0);
  CHECK(ReadNow(*tiers.bottom, KeyOf(1)).value() == "payload");
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(*tiers.bottom, 10, &entries).ok());
  CHECK(base::AsText(entries.at(0).meta) == "meta");
}

TEST_CASE("R16: closing at once brings all that was put down first") {
  Tiers tiers(Back());
  for (uint64_t i = 0; i < 100; ++i) REQUIRE(PutNow(*tiers.store, KeyOf(i), Block(i)).status.ok());
  REQUIRE(tiers.store->Close(kForever).ok());
  for (uint64_t i = 0; i < 100; ++i) REQUIRE(ReadNow(*tiers.bottom, KeyOf(i)).value() == Block(i));
}

TEST_CASE("what is not below yet is bounded; beyond the bound a put waits for the storage below") {
  storage::TieredOptions options = Back();
  options.dirty_bytes = 2 * kPage;
  Tiers tiers(options);
  tiers.lower->Stick();
  REQUIRE(PutNow(*tiers.store, KeyOf(1), Block(1)).status.ok());
  REQUIRE(PutNow(*tiers.store, KeyOf(2), Block(2)).status.ok());
  Completions completions(2);
  const std::string third = Block(3), second = Block(4);
  const base::ByteView parts[2] = {base::AsBytes(third), base::AsBytes(second)};
  // One through, and one over a record that is on its way: it has to come after that.
  const std::vector<storage::Request> requests = {{storage::Put{KeyOf(3), {&parts[0], 1}, {}}, completions.Of(0)},
                                                  {storage::Put{KeyOf(2), {&parts[1], 1}, {}}, completions.Of(1)}};
  REQUIRE(tiers.store->Submit(requests).ok());
  CHECK(tiers.stats().dirty_bytes == 2 * kPage);
  CHECK(completions.Counts() == std::pair(0, 0));
  tiers.lower->Release();
  completions.Wait();
  REQUIRE(tiers.store->Sync().ok());
  CHECK(ReadNow(*tiers.bottom, KeyOf(3)).value() == third);
  CHECK(ReadNow(*tiers.bottom, KeyOf(2)).value() == second);
  CHECK(ReadNow(*tiers.store, KeyOf(2)).value() == second);
}

TEST_CASE("E17: memory may hold more of a chain than what lies below, or less, and what comes next is taken") {
  constexpr uint64_t kBelow = 6, kInMemory = 10, kAll = 12;
  Tiers tiers(Back());
  const auto put = [&](uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i) REQUIRE(PutNow(*tiers.store, KeyOf(i), Block(i)).status.ok());
  };
  put(0, kBelow);
  REQUIRE(tiers.store->Sync().ok());
  tiers.lower->Stick();
  put(kBelow, kInMemory);
  for (uint64_t i = 0; i < kInMemory; ++i) REQUIRE(ReadNow(*tiers.store, KeyOf(i)).value() == Block(i));
  put(kInMemory, kAll);
  tiers.lower->Release();
  REQUIRE(tiers.store->Sync().ok());
  // Less: memory for two of the twelve.
  storage::TieredOptions small;
  small.lower = std::make_shared<FaultyStorage>(tiers.bottom, 1, /*close_inner=*/false);
  small.memory_bytes = 2 * storage::TierMemory::Cost(kPage, 0);
  const auto opened = storage::TieredStorage::Open(std::move(small));
  REQUIRE(opened.ok());
  REQUIRE(PutNow(**opened, KeyOf(kAll), Block(kAll)).status.ok());
  for (uint64_t i = 0; i <= kAll; ++i) REQUIRE(ReadNow(**opened, KeyOf(i)).value() == Block(i));
}

TEST_CASE("a record that cannot be written below is a miss, an older one does not come back, and the sync says so") {
  Tiers tiers(Back());
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "old").status.ok());
  REQUIRE(tiers.store->Sync().ok());
  const bool cannot_remove = GENERATE(false, true);
  tiers.lower->FailNth(StorageCall::kPut, 1, Code::kNoSpace);
  if (cannot_remove) tiers.lower->FailNth(StorageCall::kRemove, 1, Code::kIo);
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "new").status.ok());
  CHECK(CodeOf(tiers.store->Sync()) == Code::kIo);
  CHECK(tiers.stats().lost == 1);
  CHECK(CodeOf(ReadNow(*tiers.store, KeyOf(1)).status()) == Code::kNotFound);
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(*tiers.store, 10, &entries).ok());
  CHECK(entries.empty());
  uint64_t skipped = 0;
  REQUIRE(VisitAll(*tiers.store, &entries, &skipped).ok());
  CHECK(entries.empty());
  CHECK(tiers.store->Sync().ok());
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "newer").status.ok());
  REQUIRE(tiers.store->Sync().ok());
  CHECK(ReadNow(*tiers.bottom, KeyOf(1)).value() == "newer");
}

TEST_CASE("what is removed while it is on its way below does not stay there") {
  Tiers tiers(Back());
  tiers.lower->Stick();
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "payload").status.ok());
  tiers.WaitUntilWithheld(1);
  REQUIRE(tiers.store->Remove(KeyOf(1)).ok());
  CHECK_FALSE(tiers.store->Stat(KeyOf(1)).value().has_value());
  CHECK(CodeOf(GetNow(*tiers.store, KeyOf(1), 0, {}).status) == Code::kNotFound);
  tiers.lower->Release();
  REQUIRE(tiers.store->Sync().ok());
  CHECK_FALSE(tiers.bottom->Stat(KeyOf(1)).value().has_value());
}

TEST_CASE("puts of one key arrive below in their order") {
  Tiers tiers(Back());
  tiers.lower->CompleteAtRandom(true);
  for (int i = 0; i < 200; ++i) REQUIRE(PutNow(*tiers.store, KeyOf(1), std::to_string(i)).status.ok());
  REQUIRE(tiers.store->Sync().ok());
  CHECK(ReadNow(*tiers.bottom, KeyOf(1)).value() == "199");
}

TEST_CASE("a close that the storage below holds up says so, and can be called again") {
  Tiers tiers(Back());
  tiers.lower->Stick();
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "payload").status.ok());
  CHECK(CodeOf(tiers.store->Close(std::chrono::milliseconds(5))) == Code::kTimeout);
  tiers.lower->Release();
  REQUIRE(tiers.store->Close(kForever).ok());
  CHECK(ReadNow(*tiers.bottom, KeyOf(1)).value() == "payload");
}

TEST_CASE("a held record stays as it is when it is put anew and removed, and counts until it is let go") {
  Tiers tiers({});
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "first").status.ok());
  std::shared_ptr<storage::HeldRecord> held = tiers.store->Hold(KeyOf(1));
  REQUIRE(held != nullptr);
  held->set_note(std::make_shared<int>(7));
  CHECK(tiers.store->Hold(KeyOf(1))->note() != nullptr);
  REQUIRE(PutNow(*tiers.store, KeyOf(1), "second").status.ok());
  CHECK(base::AsText(held->payload()) == "first");
  CHECK(tiers.store->Hold(KeyOf(1))->note() == nullptr);
  REQUIRE(tiers.store->Remove(KeyOf(1)).ok());
  CHECK(base::AsText(held->payload()) == "first");
  CHECK(tiers.stats().used_bytes == storage::TierMemory::Cost(5, 0));
  held.reset();
  CHECK(tiers.stats().used_bytes == 0);
}

TEST_CASE("records that somebody holds are not evicted, and what finds no room goes past the memory") {
  storage::TieredOptions options;
  options.memory_bytes = 2 * storage::TierMemory::Cost(kPage, 0);
  Tiers tiers(options);
  REQUIRE(PutNow(*tiers.store, KeyOf(1), Block(1)).status.ok());
  REQUIRE(PutNow(*tiers.store, KeyOf(2), Block(2)).status.ok());
  const auto first = tiers.store->Hold(KeyOf(1)), second = tiers.store->Hold(KeyOf(2));
  REQUIRE(PutNow(*tiers.store, KeyOf(3), Block(3)).status.ok());
  CHECK(tiers.store->Hold(KeyOf(3)) == nullptr);
  CHECK(tiers.stats().bypasses == 1);
  CHECK(tiers.stats().evictions == 0);
  CHECK(ReadNow(*tiers.store, KeyOf(3)).value() == Block(3));
}

TEST_CASE("memory comes from the allocator that is given") {
  struct Counting final : base::Allocator {
    uint64_t taken = 0, given = 0;
    std::byte* Allocate(uint64_t bytes, uint64_t alignment) override {
      taken += bytes;
      return base::DefaultAllocator().Allocate(bytes, alignment);
    }
    void Release(std::byte* memory, uint64_t bytes, uint64_t alignment) override {
      given += bytes;
      base::DefaultAllocator().Release(memory, bytes, alignment);
    }
  } allocator;
  {
    storage::TieredOptions options;
    options.allocator = std::shared_ptr<base::Allocator>(std::shared_ptr<void>(), &allocator);
    Tiers tiers(options);
    REQUIRE(PutNow(*tiers.store, KeyOf(1), Block(1) + "x").status.ok());
    CHECK(allocator.taken == 2 * kPage);
    CHECK(ReadNow(*tiers.store, KeyOf(1)).value() == Block(1) + "x");
  }
  CHECK(allocator.given == 2 * kPage);
}
