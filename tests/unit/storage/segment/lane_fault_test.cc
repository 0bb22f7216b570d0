// SPDX-License-Identifier: Apache-2.0
// A root with lanes and marks, of which every call to the operating system fails once, in turn: nothing crashes, no
// wrong byte is delivered, no descriptor stays open, what others have is not touched, and the marks are one value or
// the other.
#include <cerrno>
#include <filesystem>
#include <map>
#include <string>

#include "lib/base/status.h"
#include "lib/storage/segment/lane_storage.h"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace fs = std::filesystem;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::FaultyOs;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::OsCall;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::kForever;
using kvstrata::test::segment::Listed;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Slurp;

namespace {

constexpr uint32_t kOthers = 2;

const storage::MarkValue kOld{std::byte{1}}, kNew{std::byte{2}};

// Key 10 * lane + i of lane `lane`, and key 5 of all of them.
std::string PayloadOf(uint64_t key) { return std::string(700 + key * 400, static_cast<char>('a' + key % 26)); }

absl::StatusOr<std::unique_ptr<storage::LaneStorage>> Open(FaultyOs& os, const std::string& root, uint32_t lane,
                                                           bool read_only = false) {
  storage::SegmentOptions options = Options(root);
  options.os = &os;
  options.read_only = read_only;
  options.io_threads = 1;
  return storage::LaneStorage::Open(options, lane);
}

void Prepare(FaultyOs& os, const std::string& root) {
  for (uint32_t lane = 0; lane < kOthers; ++lane) {
    auto opened = Open(os, root, lane);
    REQUIRE(opened.ok());
    for (const uint64_t key : {uint64_t{5}, lane * uint64_t{10} + 1, lane * uint64_t{10} + 2}) {
      REQUIRE(PutNow(**opened, KeyOf(key), PayloadOf(key), "meta").status.ok());
    }
    REQUIRE((*opened)->marks()->Set(KeyOf(lane), kOld, false).ok());
    REQUIRE((*opened)->Sync().ok());
  }
}

std::map<std::string, std::string> FilesOfOthers(const std::string& root) {
  std::map<std::string, std::string> files;
  for (uint32_t lane = 0; lane < kOthers; ++lane) {
    for (const auto& entry : fs::directory_iterator(root + "/lanes/" + std::to_string(lane))) {
      files[entry.path().string()] = Slurp(entry.path().string());
    }
  }
  return files;
}

// What went well.
struct Outcome {
  bool opened = false, put = false, set = false, synced = false, followed = false, listed = false;
  bool all() const { return opened && put && set && synced && followed && listed; }
};

bool FollowAll(storage::Storage& store) {
  storage::FeedPage page;
  while (!page.done) {
    if (!store.Follow(2, &page).ok()) return false;
    for (const storage::FeedEntry& entry : page.entries) {
      if (!entry.gone) CHECK(base::AsText(entry.record.meta) == "meta");
    }
  }
  return true;
}

void CheckReads(storage::Storage& store) {
  for (const uint64_t key : {1u, 2u, 5u, 11u, 12u, 21u}) {
    const absl::StatusOr<std::string> read = ReadNow(store, KeyOf(key));
    if (read.ok()) CHECK((*read == PayloadOf(key)));
  }
}

void CheckMarks(storage::LaneStorage& store, const Outcome& outcome) {
  const auto taken = store.marks()->TakeNew();
  if (!taken.ok()) return;
  for (const storage::Mark& mark : *taken) {
    if (mark.key == KeyOf(0)) CHECK((mark.value == kOld || mark.value == kNew));
    if (mark.key == KeyOf(1)) CHECK(mark.value == kOld);
  }
  if (outcome.set) CHECK(store.marks()->Set(KeyOf(0), kOld, false).value_or(kNew) == kNew);
}

Outcome Run(FaultyOs& os, const std::string& root) {
  Outcome outcome;
  auto opened = Open(os, root, kOthers);
  if (opened.ok()) {
    outcome.opened = true;
    storage::LaneStorage& store = **opened;
    outcome.followed = FollowAll(store);
    CheckReads(store);
    outcome.put = PutNow(store, KeyOf(21), PayloadOf(21), "meta").status.ok();
    outcome.set = store.marks()->Set(KeyOf(0), kNew, true).ok();
    outcome.synced = store.Sync().ok();
    CheckReads(store);
    CheckMarks(store, outcome);
    std::vector<storage::ListEntry> entries;
    outcome.listed = ListAll(store, 1, &entries).ok();
    CHECK(store.Close(kForever).ok());
  }
  auto reader = Open(os, root, 0, /*read_only=*/true);
  if (reader.ok()) {
    outcome.followed = FollowAll(**reader) && outcome.followed;
    CheckReads(**reader);
    CheckMarks(**reader, {});
  }
  return outcome;
}

void CheckAfterwards(FaultyOs& os, const std::string& root, const Outcome& outcome) {
  auto reader = Open(os, root, 0, /*read_only=*/true);
  REQUIRE(reader.ok());
  REQUIRE(FollowAll(**reader));
  for (const uint64_t key : {1u, 2u, 5u, 11u, 12u}) CHECK((ReadNow(**reader, KeyOf(key)).value() == PayloadOf(key)));
  if (outcome.put && outcome.synced) CHECK((ReadNow(**reader, KeyOf(21)).value() == PayloadOf(21)));
  auto next = Open(os, root, kOthers);
  REQUIRE(next.ok());
  const storage::MarkValue value = (*next)->marks()->Set(KeyOf(0), kOld, false).value();
  CHECK((value == kNew || (!outcome.set && value == kOld)));
}

// Until a run in which nothing is left to fail; every `step`-th call.
void FailEachInTurn(int error, bool and_all_after, uint64_t step) {
  for (uint64_t nth = 1;; nth += step) {
    CAPTURE(nth, error, and_all_after);
    TempDir directory(TempDir::Place::kMemory);
    const std::string root = directory / "store";
    FaultyOs os;
    os.SkipFlushes();
    Prepare(os, root);
    const auto before = FilesOfOthers(root);
    os.FailNth(nth, error, and_all_after);
    const Outcome outcome = Run(os, root);
    CHECK(os.open_descriptors() == 0);
    const bool failed = os.failed();
    os.FailNothing();
    CHECK((FilesOfOthers(root) == before));
    CheckAfterwards(os, root, outcome);
    if (!failed) {
      CHECK(outcome.all());
      return;
    }
    REQUIRE(nth < 1000);
  }
}

}  // namespace

TEST_CASE("each call to the system fails once, in turn, on a root with lanes") { FailEachInTurn(EIO, false, 1); }

TEST_CASE("the system fails from some call on, for good, on a root with lanes") { FailEachInTurn(EIO, true, 3); }

TEST_CASE("the disk is full, or there are no descriptors, for one call in turn, on a root with lanes") {
  FailEachInTurn(GENERATE(ENOSPC, EMFILE), false, 3);
}

TEST_CASE("a root that may not be written to is read with all its lanes, and says why it is not written") {
  TempDir directory;
  const std::string root = directory / "store";
  FaultyOs os;
  Prepare(os, root);
  const auto before = FilesOfOthers(root);
  // As a read-only file system answers to whatever would change it.
  os.FailWhere(
      [](OsCall call, const char* path) {
        const bool lock = std::string(path) == "kvstrata.lock" && call == OsCall::kOpen;
        return lock || call == OsCall::kMakeFolder || call == OsCall::kWrite || call == OsCall::kMode;
      },
      EROFS);
  const auto writer = Open(os, root, kOthers);
  CHECK(CodeOf(writer.status()) == Code::kReadOnly);
  CHECK(base::NativeCodeOf(writer.status()) == EROFS);
  auto reader = Open(os, root, 0, /*read_only=*/true);
  REQUIRE(reader.ok());
  REQUIRE(FollowAll(**reader));
  for (const uint64_t key : {1u, 2u, 5u, 11u, 12u}) CHECK((ReadNow(**reader, KeyOf(key)).value() == PayloadOf(key)));
  CHECK(Listed(**reader) == 6);
  CHECK((*reader)->marks()->TakeNew().value().size() == kOthers);
  CHECK((FilesOfOthers(root) == before));
}

TEST_CASE("S06: a root that may not be read is an error, not an empty store") {
  TempDir directory;
  const std::string root = directory / "store";
  FaultyOs os;
  Prepare(os, root);
  for (const std::string& refused : {root, std::string("lanes")}) {
    CAPTURE(refused);
    os.FailWhere(
        [&](OsCall call, const char* path) {
          return (call == OsCall::kOpen || call == OsCall::kReadFolder) && path == refused;
        },
        EACCES);
    const auto reader = Open(os, root, 0, /*read_only=*/true);
    REQUIRE_FALSE(reader.ok());
    CHECK(base::NativeCodeOf(reader.status()) == EACCES);
    CHECK(std::string(reader.status().message()).find(refused) != std::string::npos);
  }
}
