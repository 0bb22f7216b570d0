// SPDX-License-Identifier: Apache-2.0
// A root with two lanes and its marks against a model, on a simulated disk: stopped at every single call that changes
// the disk, with and without a loss of power; and each call of one process failing while another goes on.
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/storage/segment/lane_storage.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/crash_model.h"
#include "tests/support/sim_disk.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::test::CrashMeta;
using kvstrata::test::CrashModel;
using kvstrata::test::CrashPayload;
using kvstrata::test::CrashPoints;
using kvstrata::test::kAbsent;
using kvstrata::test::kCrashStep;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::SimDisk;

namespace {

constexpr uint64_t kKeys = 6, kMarks = 3, kLanes = 2;
// So many changes of the making of the root are tried in its first life.
constexpr uint64_t kMaking = 60;

using Lane = std::unique_ptr<storage::LaneStorage>;
using Versions = std::map<uint64_t, uint64_t>;

storage::MarkValue ValueOf(uint64_t number) {
  storage::MarkValue value{};
  std::memcpy(value.data(), &number, sizeof number);
  return value;
}

uint64_t NumberOf(const storage::MarkValue& value) {
  uint64_t number = 0;
  std::memcpy(&number, value.data(), sizeof number);
  return number;
}

Lane Open(SimDisk& disk, uint32_t lane, bool read_only = false) {
  storage::SegmentOptions options;
  options.path = "/root";
  options.read_only = read_only;
  options.capacity_bytes = 384 * 1024;
  options.segment_bytes = 128 * 1024;
  options.journal_bytes = 3000;
  options.io_threads = 1;
  options.flush_ms = 0;
  options.os = &disk;
  auto opened = storage::LaneStorage::Open(options, lane);
  return opened.ok() ? std::move(*opened) : nullptr;
}

// The key and version that a record's meta tells.
std::pair<uint64_t, uint64_t> Told(base::ByteView meta) {
  const std::string text(base::AsText(meta));
  return {std::stoull(text), std::stoull(text.substr(text.find(' ')))};
}

struct Model {
  std::vector<CrashModel> lanes{kLanes, CrashModel(kKeys)};
  // What each mark may be; 0: there is none.
  std::vector<std::set<uint64_t>> marks{kMarks, {0}};
  uint64_t version = 0;

  void SetMark(storage::LaneStorage& lane, uint64_t mark, bool replace) {
    const uint64_t mine = ++version;
    const std::set<uint64_t> before = marks[mark];
    marks[mark].insert(mine);
    const auto agreed = lane.marks()->Set(KeyOf(mark), ValueOf(mine), replace);
    if (!agreed.ok()) return;
    const uint64_t value = NumberOf(*agreed);
    // One that is there stays, unless it is to be replaced.
    CHECK((value == mine ? replace || before.contains(0) : !replace && before.contains(value)));
    marks[mark] = {value};
  }
};

void FollowAll(storage::LaneStorage& lane, Versions* told) {
  storage::FeedPage page;
  while (!page.done && lane.Follow(3, &page).ok()) {
    for (const storage::FeedEntry& entry : page.entries) {
      if (entry.gone) continue;
      const auto [key, version] = Told(entry.record.meta);
      (*told)[key] = version;
    }
  }
}

void Step(storage::LaneStorage& lane, CrashModel& records, Model& model, base::SeededRandom& random) {
  const uint64_t key = random.Below(kKeys), choice = random.Below(12);
  if (choice < 5) {
    const uint64_t mine = ++model.version;
    records.Began(key, mine);
    const auto result = PutNow(lane, KeyOf(key), CrashPayload(key, mine), CrashMeta(key, mine));
    if (result.status.ok()) records.Completed(key, mine);
  } else if (choice < 7) {
    records.Began(key, kAbsent);
    if (lane.Remove(KeyOf(key)).ok()) records.Completed(key, kAbsent);
  } else if (choice < 9) {
    if (lane.Sync().ok()) records.Synced();
  } else if (choice < 11) {
    model.SetMark(lane, key % kMarks, choice == 9);
  } else {
    Versions told;
    FollowAll(lane, &told);
    for (const auto& [other, version] : told) static_cast<void>(ReadNow(lane, KeyOf(other)));
  }
}

void Work(SimDisk& disk, Model& model, base::SeededRandom& random) {
  std::vector<Lane> lanes;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    lanes.push_back(Open(disk, lane));
    if (lanes.back() == nullptr) return;
  }
  for (int step = 0; step < 50 && !disk.stopped(); ++step) {
    const uint64_t lane = random.Below(kLanes);
    Step(*lanes[lane], model.lanes[lane], model, random);
  }
}

// The records of a lane are those that its model allows, whole.
Versions CheckLane(storage::LaneStorage& lane, CrashModel& records) {
  std::vector<storage::ListEntry> entries;
  uint64_t skipped = 0;
  REQUIRE(ListAll(lane, 4, &entries, &skipped).ok());
  CHECK(skipped == 0);
  Versions found;
  for (const storage::ListEntry& entry : entries) {
    const auto [key, version] = Told(entry.meta);
    CAPTURE(key, version);
    CHECK(entry.key == KeyOf(key));
    CHECK(records.Allows(key, version));
    CHECK((ReadNow(lane, entry.key).value() == CrashPayload(key, version)));
    CHECK(found.emplace(key, version).second);
  }
  for (uint64_t key = 0; key < kKeys; ++key) {
    CAPTURE(key);
    if (!found.contains(key)) CHECK(records.Allows(key, kAbsent));
  }
  REQUIRE(lane.Sync().ok());
  records.Adopt(found);
  return found;
}

void Check(SimDisk& disk, Model& model) {
  Versions all;
  std::vector<Lane> lanes;
  for (uint32_t number = 0; number < kLanes; ++number) {
    CAPTURE(number);
    lanes.push_back(Open(disk, number));
    REQUIRE(lanes.back() != nullptr);
    all.merge(CheckLane(*lanes.back(), model.lanes[number]));  // of a key that both have, the lower lane's
  }
  for (uint64_t mark = 0; mark < kMarks; ++mark) {
    CAPTURE(mark);
    model.SetMark(*lanes[mark % kLanes], mark, /*replace=*/false);
  }
  const Lane reader = Open(disk, 0, /*read_only=*/true);
  REQUIRE(reader != nullptr);
  Versions told;
  FollowAll(*reader, &told);
  CHECK(told == all);
  for (const auto& [key, version] : told) CHECK((ReadNow(*reader, KeyOf(key)).value() == CrashPayload(key, version)));
  std::map<storage::Key, uint64_t> marks;
  const auto taken = reader->marks()->TakeNew();
  REQUIRE(taken.ok());
  for (const storage::Mark& mark : *taken) marks[mark.key] = NumberOf(mark.value);
  for (uint64_t mark = 0; mark < kMarks; ++mark) CHECK(marks[KeyOf(mark)] == *model.marks[mark].begin());
}

void End(SimDisk& disk, bool power, uint64_t seed) {
  if (power) {
    disk.LosePower(seed);
  } else {
    disk.Restart();
  }
}

// A root that stops at its `nth` change. False when it did not come so far.
bool StopAt(uint64_t nth, uint64_t seed, bool power, CrashPoints* points) {
  CAPTURE(nth, seed, power);
  SimDisk disk;
  Model model;
  base::SeededRandom random(seed);
  const bool in_first_life = nth <= kMaking;
  if (!in_first_life) Work(disk, model, random);
  if (!in_first_life) Check(disk, model);
  disk.StopAt(in_first_life ? nth : nth - kMaking, seed);
  Work(disk, model, random);
  const bool stopped = disk.stopped();
  if (stopped) points->Count(disk.stopped_in());
  End(disk, power, seed * 31 + nth);
  Check(disk, model);
  // What was found then is durable.
  disk.LosePower(seed * 37 + nth);
  Check(disk, model);
  return stopped;
}

void StopEverywhere(bool power, std::initializer_list<uint64_t> seeds, const char* what) {
  CrashPoints points;
  for (const uint64_t seed : seeds) {
    for (uint64_t nth = 1 + seed % kCrashStep; StopAt(nth, seed, power, &points);) nth += kCrashStep;
  }
  points.Print(what);
  CHECK(points.all() >= 200 / kCrashStep);
  CHECK(points.of("marks") >= 10 / kCrashStep);
}

}  // namespace

TEST_CASE("two lanes and their marks, killed at any write, are what the model allows") {
  StopEverywhere(/*power=*/false, {1, 2}, "killed at every change of two lanes");
}

TEST_CASE("two lanes and their marks, power lost at any write, are what the model allows") {
  StopEverywhere(/*power=*/true, {3, 4}, "power lost at every change of two lanes");
}

TEST_CASE("many crashes of two lanes one after another, each from where the last one left off") {
  SimDisk disk;
  Model model;
  base::SeededRandom random(20261130);
  for (int life = 0; life < 60; ++life) {
    CAPTURE(life);
    disk.StopAt(1 + random.Below(160), random.Below(1u << 30));
    Work(disk, model, random);
    End(disk, random.Below(2) == 0, random.Below(1u << 30));
    Check(disk, model);
    disk.Restart();
  }
}

TEST_CASE("who builds on a mark makes it durable first, wherever its writer was killed") {
  const bool by_sync = GENERATE(false, true);
  const uint64_t seed = GENERATE(1u, 2u, 3u, 4u);
  CAPTURE(by_sync, seed);
  bool failed = true;
  for (uint64_t nth = 1; failed; ++nth) {
    CAPTURE(nth);
    REQUIRE(nth < 100);
    SimDisk disk;
    {
      const Lane a = Open(disk, 0), b = Open(disk, 1);
      REQUIRE(a->marks()->Set(KeyOf(0), ValueOf(1), true).ok());
      REQUIRE(b->Sync().ok());
      disk.FailAt(nth, seed);
      const bool set = a->marks()->Set(KeyOf(0), ValueOf(2), true).ok();
      failed = disk.failed();
      CHECK(set == !failed);
      disk.FailAt(0, seed);  // no more
    }
    uint64_t relied_on = 1;
    {
      const Lane b = Open(disk, 1);
      if (by_sync) {
        const auto seen = b->marks()->TakeNew();
        REQUIRE(seen.ok());
        relied_on = NumberOf(seen->back().value);
        REQUIRE(PutNow(*b, KeyOf(1), "of that life", "meta").status.ok());
        REQUIRE(b->Sync().ok());
      } else {
        relied_on = NumberOf(b->marks()->Set(KeyOf(0), ValueOf(3), false).value());
      }
    }
    disk.LosePower(seed * 41 + nth);
    const Lane c = Open(disk, 2);
    CHECK(NumberOf(c->marks()->Set(KeyOf(0), ValueOf(4), false).value()) == relied_on);
  }
}
