// SPDX-License-Identifier: Apache-2.0
// Every call to the operating system fails once, in turn: nothing crashes, no wrong byte is delivered, no descriptor
// stays open, and what is left is right at the next opening.
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/storage/segment/segment_storage.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using base::Code;
using base::CodeOf;
using kvstrata::test::FaultyOs;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;

namespace {

constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

const std::string kOlder = std::string(500, 'o');
const std::string kNewer = std::string(5000, 'n');
const std::string kOther = "other";

// What went well in one run of the scenario.
struct Outcome {
  bool opened = false;
  bool put = false;
  bool removed = false;
  bool synced = false;
  bool listed = false;
};

void Prepare(FaultyOs& os, const std::string& path) {
  storage::SegmentOptions options;
  options.path = path;
  options.os = &os;
  options.capacity_bytes = 8 << 20;
  options.flush_ms = 0;
  auto store = storage::SegmentStorage::Open(options);
  REQUIRE(store.ok());
  REQUIRE(PutNow(**store, KeyOf(1), kOlder, "meta").status.ok());
  REQUIRE(PutNow(**store, KeyOf(2), kOther, "meta").status.ok());
  REQUIRE((*store)->Sync().ok());
}

// Any right value, or a miss or an error; never anything else.
void CheckRead(storage::Storage& store, uint64_t key, const std::vector<std::string>& right) {
  const absl::StatusOr<std::string> read = ReadNow(store, KeyOf(key));
  if (!read.ok()) return;
  bool known = false;
  for (const std::string& value : right) known = known || *read == value;
  CHECK(known);
}

Outcome Run(FaultyOs& os, const std::string& path) {
  Outcome outcome;
  storage::SegmentOptions options;
  options.path = path;
  options.os = &os;
  options.capacity_bytes = 8 << 20;
  options.flush_ms = 0;
  options.io_threads = 1;
  auto opened = storage::SegmentStorage::Open(options);
  if (!opened.ok()) return outcome;
  outcome.opened = true;
  storage::Storage& store = **opened;
  CheckRead(store, 1, {kOlder});
  outcome.put = PutNow(store, KeyOf(1), kNewer, "meta").status.ok();
  CheckRead(store, 1, {outcome.put ? kNewer : kOlder});
  outcome.removed = store.Remove(KeyOf(2)).ok();
  CheckRead(store, 2, {kOther});
  outcome.synced = store.Sync().ok();
  std::vector<storage::ListEntry> entries;
  outcome.listed = ListAll(store, 1, &entries).ok();
  for (const storage::ListEntry& entry : entries) CHECK(base::AsText(entry.meta) == "meta");
  CHECK(store.Close(kForever).ok());
  return outcome;
}

void CheckAfterwards(FaultyOs& os, const std::string& path, const Outcome& outcome) {
  storage::SegmentOptions options;
  options.path = path;
  options.os = &os;
  options.capacity_bytes = 8 << 20;
  options.flush_ms = 0;
  auto store = storage::SegmentStorage::Open(options);
  REQUIRE(store.ok());
  CheckRead(**store, 1, {kOlder, kNewer});
  CheckRead(**store, 2, {kOther});
  if (!outcome.opened) CHECK(ReadNow(**store, KeyOf(1)).value_or("") == kOlder);
  if (outcome.put && outcome.synced) CHECK(ReadNow(**store, KeyOf(1)).value_or("") == kNewer);
  if (outcome.removed && outcome.synced) CHECK_FALSE((*store)->Stat(KeyOf(2)).value().has_value());
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(**store, 10, &entries).ok());
  for (const storage::ListEntry& entry : entries) CHECK(ReadNow(**store, entry.key).ok());
  // Nothing lies about that is not counted: the same store without those records is empty.
  for (const storage::ListEntry& entry : entries) REQUIRE((*store)->Remove(entry.key).ok());
  TempDir fresh(TempDir::Place::kMemory);
  options.path = fresh / "store";
  auto empty = storage::SegmentStorage::Open(options);
  REQUIRE(empty.ok());
  CHECK((*store)->UsedBytes() == (*empty)->UsedBytes());
}

// Until a run in which nothing is left to fail.
void FailEachInTurn(int error, bool and_all_after) {
  for (uint64_t nth = 1;; ++nth) {
    CAPTURE(nth, error, and_all_after);
    TempDir directory(TempDir::Place::kMemory);
    const std::string path = directory / "store";
    FaultyOs os;
    os.SkipFlushes();
    Prepare(os, path);
    os.FailNth(nth, error, and_all_after);
    const Outcome outcome = Run(os, path);
    CHECK(os.open_descriptors() == 0);
    const bool failed = os.failed();
    os.FailNothing();
    CheckAfterwards(os, path, outcome);
    if (!failed) {
      CHECK((outcome.put && outcome.removed && outcome.synced && outcome.listed));
      return;
    }
    REQUIRE(nth < 1000);
  }
}

}  // namespace

TEST_CASE("each call to the system fails once, in turn") { FailEachInTurn(EIO, false); }

TEST_CASE("the system fails from some call on, for good") { FailEachInTurn(EIO, true); }

TEST_CASE("the disk is full, or there are no descriptors, for one call in turn") {
  FailEachInTurn(GENERATE(ENOSPC, EMFILE), false);
}
