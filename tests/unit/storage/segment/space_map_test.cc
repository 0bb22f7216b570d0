// SPDX-License-Identifier: Apache-2.0
// The map of free units against a plain array of flags.
#include "lib/storage/segment/space_map.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "lib/base/random.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using kvstrata::core::storage::SpaceMap;

namespace {

// The same questions, answered by looking at every unit.
struct Model {
  explicit Model(uint32_t units) : free(units, false) {}

  std::optional<uint32_t> Find(uint32_t run, uint32_t from) const {
    uint32_t length = 0;
    for (uint32_t i = from; i < free.size(); ++i) {
      length = free[i] ? length + 1 : 0;
      if (length == run) return i + 1 - run;
    }
    return std::nullopt;
  }
  uint32_t Longest() const {
    uint32_t longest = 0, length = 0;
    for (const bool is_free : free) {
      length = is_free ? length + 1 : 0;
      longest = std::max(longest, length);
    }
    return longest;
  }
  void Set(uint32_t first, uint32_t count, bool value) {
    for (uint32_t i = first; i < first + count; ++i) free[i] = value;
  }

  std::vector<bool> free;
};

void Compare(const SpaceMap& map, const Model& model, base::SeededRandom& random) {
  REQUIRE(map.longest() == model.Longest());
  REQUIRE(map.free_units() == static_cast<uint32_t>(std::count(model.free.begin(), model.free.end(), true)));
  for (int i = 0; i < 4; ++i) {
    const auto run = static_cast<uint32_t>(1 + random.Below(i % 2 == 0 ? 90 : model.free.size()));
    const auto from = static_cast<uint32_t>(random.Below(model.free.size() + 2));
    CAPTURE(run, from);
    REQUIRE(map.Find(run, from) == model.Find(run, from));
  }
}

}  // namespace

TEST_CASE("a space map begins full, and is one run when everything was given") {
  for (const uint32_t units : {1u, 63u, 64u, 65u, 1000u}) {
    CAPTURE(units);
    SpaceMap map(units);
    CHECK(map.longest() == 0);
    CHECK_FALSE(map.Find(1, 0).has_value());
    map.Give(0, units);
    CHECK(map.longest() == units);
    CHECK(map.Find(units, 0) == 0u);
    CHECK_FALSE(map.Find(units + 1, 0).has_value());
    CHECK_FALSE(map.Find(1, units).has_value());
  }
}

TEST_CASE("records of one odd size fill a segment to the last run, and again after every second was freed") {
  constexpr uint32_t kUnits = 3300, kRun = 33;
  SpaceMap map(kUnits);
  map.Give(0, kUnits);
  for (uint32_t i = 0; i < kUnits / kRun; ++i) {
    const std::optional<uint32_t> at = map.Find(kRun, 0);
    REQUIRE(at == i * kRun);
    map.Take(*at, kRun);
  }
  CHECK(map.free_units() == 0);
  for (uint32_t i = 0; i < kUnits / kRun; i += 2) map.Give(i * kRun, kRun);
  for (uint32_t i = 0; i < kUnits / kRun; i += 2) {
    REQUIRE(map.Find(kRun, 0) == i * kRun);
    map.Take(i * kRun, kRun);
  }
  CHECK(map.free_units() == 0);
}

TEST_CASE("a space map answers as a plain array does") {
  const uint64_t seed = GENERATE(1u, 2u, 3u, 4u, 5u, 6u);
  CAPTURE(seed);
  base::SeededRandom random(seed);
  const auto units = static_cast<uint32_t>(1 + random.Below(700));
  CAPTURE(units);
  SpaceMap map(units);
  Model model(units);
  map.Give(0, units);
  model.Set(0, units, true);
  std::vector<std::pair<uint32_t, uint32_t>> taken;
  for (int step = 0; step < 1500; ++step) {
    const auto run = static_cast<uint32_t>(1 + random.Below(step % 10 == 0 ? units : 40));
    const std::optional<uint32_t> at = map.Find(run, static_cast<uint32_t>(random.Below(units)));
    if (at.has_value() && random.Below(3) != 0) {
      REQUIRE(map.AllFree(*at, run));
      map.Take(*at, run);
      model.Set(*at, run, false);
      taken.push_back({*at, run});
    } else if (!taken.empty()) {
      const size_t which = random.Below(taken.size());
      REQUIRE_FALSE(map.AllFree(taken[which].first, taken[which].second));
      map.Give(taken[which].first, taken[which].second);
      model.Set(taken[which].first, taken[which].second, true);
      taken.erase(taken.begin() + static_cast<ptrdiff_t>(which));
    }
    Compare(map, model, random);
  }
}

TEST_CASE("a space map that is claimed in bulk is the one that was claimed piece by piece") {
  base::SeededRandom random(7);
  for (const uint32_t units : {1u, 64u, 700u, 5000u}) {
    CAPTURE(units);
    const auto there = static_cast<uint32_t>(1 + random.Below(units));
    SpaceMap map(units);
    Model model(units);
    map.BeginBulk(there);
    model.Set(0, there, true);
    for (int step = 0; step < 200; ++step) {
      const auto first = static_cast<uint32_t>(random.Below(units + 10));
      const auto count = static_cast<uint32_t>(1 + random.Below(70));
      const bool fits = first + count <= units &&
                        std::all_of(model.free.begin() + first, model.free.begin() + first + count, std::identity());
      CAPTURE(first, count);
      REQUIRE(map.TakeInBulk(first, count) == fits);
      if (fits) model.Set(first, count, false);
      if (fits && step % 5 == 0) {
        map.GiveInBulk(first, count);
        model.Set(first, count, true);
      }
    }
    map.EndBulk();
    Compare(map, model, random);
    map.BeginBulk(there);  // once more from the beginning
    map.EndBulk();
    CHECK(map.longest() == there);
    CHECK(map.free_units() == there);
  }
}
