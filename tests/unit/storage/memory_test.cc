// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/memory.h"

#include <string>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using base::Code;
using base::CodeOf;
using kvstrata::test::KeyOf;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;

TEST_CASE("memory is bounded, also for one record above the bound and while one is replaced") {
  storage::MemoryStorage store(storage::MemoryOptions{10000});
  CHECK(CodeOf(PutNow(store, KeyOf(1), std::string(10001, 'p')).status) == Code::kTooLarge);
  CHECK(store.UsedBytes() == 0);
  REQUIRE(PutNow(store, KeyOf(1), std::string(6000, 'a')).status.ok());
  // Both would have to be held for a moment.
  CHECK(CodeOf(PutNow(store, KeyOf(1), std::string(6000, 'b')).status) == Code::kNoSpace);
  CHECK(ReadNow(store, KeyOf(1)).value() == std::string(6000, 'a'));
  CHECK(CodeOf(PutNow(store, KeyOf(2), std::string(6000, 'c')).status) == Code::kNoSpace);
  REQUIRE(store.Remove(KeyOf(1)).ok());
  CHECK(PutNow(store, KeyOf(2), std::string(6000, 'c')).status.ok());
}

TEST_CASE("full is normal: thousands of puts into a small memory keep its bound") {
  constexpr uint64_t kCapacity = 64 * 1024;
  storage::MemoryStorage store(storage::MemoryOptions{kCapacity});
  const uint64_t seed = 20250104;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  int stored = 0;
  int refused = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const storage::Result put = PutNow(store, KeyOf(i), std::string(random.Below(3000), 'p'));
    REQUIRE(store.UsedBytes() <= kCapacity);
    if (put.status.ok()) {
      ++stored;
      continue;
    }
    REQUIRE(CodeOf(put.status) == Code::kNoSpace);
    ++refused;
    REQUIRE(store.Remove(KeyOf(random.Below(i))).ok());
  }
  CHECK(stored > 0);
  CHECK(refused > 0);
}

TEST_CASE("the store in memory says that it forgets") {
  storage::MemoryStorage store(storage::MemoryOptions{1000});
  CHECK_FALSE(store.capabilities().durable_sync);
  CHECK_FALSE(store.capabilities().persistent);
  CHECK(store.Sync().ok());
  CHECK(store.StoredBytes(UINT64_MAX, 1) == UINT64_MAX);
}
