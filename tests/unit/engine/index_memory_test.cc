// SPDX-License-Identifier: Apache-2.0
// What a stored block costs in memory: the index and the store's table of records together, by their own account.
#include "lib/base/hash.h"
#include "lib/storage/segment/record_table.h"
#include "lib/trie/trie.h"
#include "tests/support/catch.hpp"

namespace {

using kvstrata::core::base::BlockDigest;
using kvstrata::core::storage::Record;
using kvstrata::core::storage::RecordTable;
using kvstrata::core::trie::NodeRef;
using kvstrata::core::trie::Trie;

constexpr uint64_t kChainBlocks = 64;

// Well-spread keys without the cost of hashing.
BlockDigest FakeKey(uint64_t i) {
  const uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15;  // odd: a bijection
  return {{mixed ^ (mixed >> 29), mixed}, i};
}

}  // namespace

TEST_CASE("a block that is a record by itself costs at most 96 bytes from 32,768 blocks on, its record included") {
  Trie trie(kvstrata::core::base::RootDigest({}));
  RecordTable table;
  NodeRef last = trie.root();
  Record record;
  record.log = 1;
  for (uint64_t i = 0; i < 300'000; ++i) {
    const auto added = trie.Insert(i % kChainBlocks == 0 ? trie.root() : last, FakeKey(i), i, 1000, 1);
    REQUIRE(added.ok());
    last = added->node;
    REQUIRE(table.AddLogged(FakeKey(i).digest.lo, record, {}).has_value());
    const uint64_t bytes = trie.MemoryBytes() + table.MemoryBytes();
    // What is not filled of the last chunks counts for more where there are few.
    if (i + 1 >= 1000) REQUIRE(bytes <= 108 * (i + 1));
    if (i + 1 >= 32'768) REQUIRE(bytes <= 96 * (i + 1));
  }
}
