// SPDX-License-Identifier: Apache-2.0
#include "lib/trie/snapshot_index.h"

#include <vector>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/unit/trie/trie_keys.h"

namespace {

using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::core::base::Digest128;
using kvstrata::core::base::FieldOf;
using kvstrata::core::trie::BlockInfo;
using kvstrata::core::trie::NodeRef;
using kvstrata::core::trie::SnapshotIndex;
using kvstrata::core::trie::SnapshotInfo;
using kvstrata::core::trie::SnapshotRef;
using kvstrata::core::trie::Trie;
using kvstrata::test::ChildKey;
using kvstrata::test::TestRoot;

constexpr uint64_t kBlockTokens = 128;

// A chain of four blocks and an index beside it.
struct Fixture {
  Trie trie{TestRoot()};
  SnapshotIndex index{&trie, kBlockTokens};
  std::vector<NodeRef> chain;
  uint64_t sequence = 0;

  Fixture() {
    NodeRef parent = trie.root();
    for (int32_t i = 0; i < 4; ++i) {
      parent = trie.Insert(parent, ChildKey(trie.Get(parent)->key, i), 1, 10, 1)->node;
      chain.push_back(parent);
    }
  }
  SnapshotRef Add(NodeRef node, uint64_t position, uint64_t tail = 0, uint64_t tick = 1) {
    const auto added = index.Add(node, position, Digest128{tail, tail}, ++sequence, 100, tick);
    REQUIRE(added.ok());
    CHECK(added->inserted);
    return added->snapshot;
  }
};

std::vector<uint64_t> Positions(const std::vector<SnapshotInfo>& infos) {
  std::vector<uint64_t> positions;
  for (const SnapshotInfo& info : infos) positions.push_back(info.position);
  return positions;
}

}  // namespace

TEST_CASE("snapshots on a path come newest position first, up to a limit and a count") {
  Fixture f;
  f.Add(f.chain[1], 256);
  f.Add(f.chain[3], 512);
  f.Add(f.chain[1], 300, 7);
  f.Add(f.trie.root(), 100, 8);
  f.Add(f.chain[0], 128);
  CHECK(Positions(f.index.FindOnPath(f.chain[3], UINT64_MAX)) == std::vector<uint64_t>{512, 300, 256, 128, 100});
  CHECK(Positions(f.index.FindOnPath(f.chain[2], UINT64_MAX)) == std::vector<uint64_t>{300, 256, 128, 100});
  CHECK(Positions(f.index.FindOnPath(f.chain[2], 299)) == std::vector<uint64_t>{256, 128, 100});
  CHECK(Positions(f.index.FindOnPath(f.chain[2], 299, 2)) == std::vector<uint64_t>{256, 128});
  CHECK(Positions(f.index.FindOnPath(f.trie.root(), 127)) == std::vector<uint64_t>{100});
  CHECK(f.index.FindOnPath(f.trie.root(), 99).empty());
  CHECK(f.index.FindOnPath(NodeRef{}, 1000).empty());
  CHECK(f.index.Validate().ok());
}

TEST_CASE("inside a block the tail decides; at a boundary there is none") {
  Fixture f;
  f.Add(f.chain[1], 300, 7);
  f.Add(f.chain[1], 300, 8);
  f.Add(f.chain[1], 299, 9);
  f.Add(f.chain[1], 256, 1234);
  uint64_t calls = 0;
  const auto found = f.index.FindOnPath(f.chain[1], 1000, 10, [&](NodeRef boundary, uint64_t position) {
    ++calls;
    CHECK(boundary == f.chain[1]);
    return position == 300 ? Digest128{7, 7} : Digest128{};
  });
  CHECK(Positions(found) == std::vector<uint64_t>{300, 256});
  CHECK(found[0].tail_digest == Digest128{7, 7});
  CHECK(found[1].tail_digest == Digest128{});
  CHECK(calls == 2);
  CHECK(f.index.FindOnPath(f.chain[1], 1000).size() == 4);
}

TEST_CASE("a snapshot lies within its node's next block and is known once") {
  Fixture f;
  const auto too_far = f.index.Add(f.chain[0], 256, {}, 1, 1, 1);
  CHECK(CodeOf(too_far.status()) == Code::kInvalidArgument);
  CHECK(FieldOf(too_far.status()) == "position");
  CHECK(CodeOf(f.index.Add(f.chain[0], 127, {}, 1, 1, 1).status()) == Code::kInvalidArgument);
  CHECK(CodeOf(f.index.Add(NodeRef{}, 0, {}, 1, 1, 1).status()) == Code::kNotFound);
  const SnapshotRef snapshot = f.Add(f.chain[0], 255, 3);
  const auto again = f.index.Add(f.chain[0], 255, {3, 3}, 50, 999, 1);
  REQUIRE(again.ok());
  CHECK_FALSE(again->inserted);
  CHECK(again->snapshot == snapshot);
  CHECK(f.index.Get(snapshot)->sequence == 1);
  CHECK(f.index.bytes() == 100);
}

TEST_CASE("snapshots have an eviction order of their own") {
  Fixture f;
  const SnapshotRef a = f.Add(f.chain[0], 128, 0, 5);
  const SnapshotRef b = f.Add(f.chain[3], 512, 0, 6);
  const SnapshotRef c = f.Add(f.chain[3], 513, 1, 6);
  CHECK(f.index.ColdestUnleased() == a);
  REQUIRE(f.index.Touch(a, 7));
  CHECK(f.index.ColdestUnleased() == b);  // as cold as c, but placed before it
  REQUIRE(f.index.Lease(b).ok());
  CHECK(f.index.ColdestUnleased() == c);
  REQUIRE(f.index.Touch(b, 9));
  CHECK(f.index.LeasedBytes() == 100);
  CHECK(CodeOf(f.index.Remove(b).status()) == Code::kBusy);
  REQUIRE(f.index.Remove(c).ok());
  REQUIRE(f.index.Remove(a).ok());
  CHECK_FALSE(f.index.ColdestUnleased().has_value());
  CHECK(CodeOf(f.index.Remove(a).status()) == Code::kNotFound);
  CHECK_FALSE(f.index.Touch(a, 1));
  REQUIRE(f.index.Release(b).ok());
  CHECK(CodeOf(f.index.Release(b)) == Code::kInvalidState);
  CHECK(f.index.ColdestUnleased() == b);
  CHECK(f.index.Get(b)->last_use == 9);
  CHECK(f.index.count() == 1);
  // Rows are untouched by all this.
  CHECK(f.trie.Get(f.chain[0])->heat == 1);
  CHECK(f.index.Validate().ok());
}

TEST_CASE("a snapshot never outlives its node; a leased one is dead until its release") {
  Fixture f;
  const SnapshotRef free = f.Add(f.chain[2], 384);
  const SnapshotRef leased = f.Add(f.chain[2], 400, 1);
  const SnapshotRef above = f.Add(f.chain[0], 128);
  REQUIRE(f.index.Lease(leased).ok());
  std::vector<SnapshotInfo> removed;
  const auto on_removed = [&](const BlockInfo& block) {
    f.index.RemoveAt(block.node, [&](const SnapshotInfo& info) { removed.push_back(info); });
  };
  REQUIRE(f.trie.DetachSubtree(f.chain[1], on_removed).ok());
  REQUIRE(removed.size() == 2);
  CHECK(removed[0].snapshot == leased);
  CHECK(removed[0].dead);
  CHECK(removed[1].snapshot == free);
  CHECK_FALSE(removed[1].dead);
  CHECK(f.index.count() == 1);
  CHECK(f.index.dead_bytes() == 100);
  CHECK(f.index.Get(above).has_value());
  CHECK_FALSE(f.index.Get(free).has_value());
  CHECK(CodeOf(f.index.Lease(leased)) == Code::kNotFound);
  CHECK(f.index.Validate().ok());

  std::vector<SnapshotRef> freed;
  REQUIRE(f.index.Release(leased, [&](const SnapshotInfo& info) { freed.push_back(info.snapshot); }).ok());
  CHECK(freed == std::vector<SnapshotRef>{leased});
  CHECK(f.index.dead_bytes() == 0);
  CHECK(f.index.LeasedBytes() == 0);
  CHECK(f.index.Validate().ok());
}

TEST_CASE("a corrupt snapshot is detached although it is leased") {
  Fixture f;
  const SnapshotRef snapshot = f.Add(f.chain[2], 384);
  REQUIRE(f.index.Lease(snapshot).ok());
  const auto detached = f.index.Detach(snapshot);
  REQUIRE(detached.ok());
  CHECK(detached->dead);
  CHECK_FALSE(f.trie.IsMarked(f.chain[2]));
  CHECK(f.index.FindOnPath(f.chain[3], UINT64_MAX).empty());
  const SnapshotRef again = f.Add(f.chain[2], 384);
  CHECK(again != snapshot);
  REQUIRE(f.index.Release(snapshot).ok());
  CHECK(f.index.count() == 1);
  CHECK(f.index.Validate().ok());
}

TEST_CASE("validation sees a node removed behind the index's back") {
  Fixture f;
  f.Add(f.chain[3], 512);
  REQUIRE(f.trie.Remove(f.chain[3]).ok());
  CHECK_FALSE(f.index.Validate().ok());
  CHECK(f.index.FindOnPath(f.chain[3], UINT64_MAX).empty());
}
