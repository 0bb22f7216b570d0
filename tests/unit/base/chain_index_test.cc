// SPDX-License-Identifier: Apache-2.0
// Hash chains beside a map: of elements that keep all of their hash, and of those that leave its lowest bits to the
// chain that they are in.
#include "lib/base/chain_index.h"

#include <map>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"

namespace {

using kvstrata::core::base::ChainIndex;

struct Element {
  uint64_t hash = 0;
  uint32_t next = UINT32_MAX;
};

template <int kToldBits>
struct Links {
  uint64_t HashOf(uint32_t index) const { return (*elements)[index].hash >> kToldBits << kToldBits; }
  uint32_t NextOf(uint32_t index) const { return (*elements)[index].next; }
  void SetNext(uint32_t index, uint32_t next) const { (*elements)[index].next = next; }
  void Prefetch(uint32_t) const {}
  std::vector<Element>* elements;
};

// Hashes of few bits lie in few chains, so that these are long.
template <int kToldBits>
void CompareWithMap(uint64_t hash_mask, uint64_t reserve) {
  std::vector<Element> elements(4000);
  ChainIndex<Links<kToldBits>, kToldBits> index{Links<kToldBits>{&elements}};
  REQUIRE(index.Prepare());
  if (reserve != 0) index.Reserve(reserve);
  kvstrata::test::Rng random(20261201);
  std::map<uint64_t, uint32_t> model;  // by hash
  std::vector<uint32_t> unused;
  for (uint32_t i = 0; i < elements.size(); ++i) unused.push_back(i);
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t hash = random.Next() & hash_mask;
    // What an element keeps; the chain in which it is found tells the rest.
    const auto same = [&](uint32_t at) { return elements[at].hash >> kToldBits == hash >> kToldBits; };
    const uint32_t found = index.Find(hash, same);
    const auto known = model.find(hash);
    REQUIRE(found == (known == model.end() ? index.kNone : known->second));
    uint32_t tried = 0;
    REQUIRE(index.TryFind(hash, same, &tried));
    REQUIRE(tried == found);
    if (found != index.kNone) {
      REQUIRE(index.ToldBitsOf(found) == (hash & ((uint64_t{1} << kToldBits) - 1)));
      index.Erase(found);
      unused.push_back(found);
      model.erase(known);
    } else if (!unused.empty()) {
      const uint32_t fresh = unused.back();
      unused.pop_back();
      elements[fresh].hash = hash;
      model[hash] = fresh;
      index.Insert(fresh, hash, model.size());
    }
  }
  uint64_t visited = 0;
  index.ForEach([&](uint32_t) { ++visited; });
  CHECK(visited == model.size());
}

}  // namespace

TEST_CASE("hash chains answer as a map does, also where they tell the lowest bits of a hash") {
  const uint64_t mask = GENERATE(uint64_t{0x7FF}, uint64_t{0xFFFF}, UINT64_MAX);
  const uint64_t reserve = GENERATE(uint64_t{0}, uint64_t{3000});
  CompareWithMap<0>(mask, reserve);
  CompareWithMap<3>(mask, reserve);
  CompareWithMap<8>(mask, reserve);
}
