// SPDX-License-Identifier: Apache-2.0
// The segment backend: full disks, and flushes that fail.

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include "lib/base/status.h"
#include "tests/support/fake_wait.h"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::FaultyOs;
using kvstrata::test::KeyOf;
using kvstrata::test::OsCall;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::kForever;
using kvstrata::test::segment::Listed;
using kvstrata::test::segment::Open;
using kvstrata::test::segment::OpenReadOnly;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Store;

TEST_CASE("a full disk refuses the put and keeps the older record; the store goes on") {
  TempDir directory;
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  REQUIRE(PutNow(*store, KeyOf(1), "older").status.ok());
  REQUIRE(store->Sync().ok());
  const uint64_t used = store->UsedBytes();
  // While the store grows, and where nothing could be reserved, in the middle of the writing.
  for (const OsCall full : {OsCall::kAllocate, OsCall::kWrite}) {
    os.FailWhere([&](OsCall call, const char*) { return call == full; }, ENOSPC);
    const storage::Result put = PutNow(*store, KeyOf(1), std::string(200'000, 'n'));
    os.FailNothing();
    CHECK(CodeOf(put.status) == Code::kNoSpace);
    CHECK(base::NativeCodeOf(put.status) == ENOSPC);
    CHECK(store->UsedBytes() == used);
    CHECK(ReadNow(*store, KeyOf(1)).value() == "older");
  }
  REQUIRE(PutNow(*store, KeyOf(1), std::string(200'000, 'n')).status.ok());
  CHECK(store->Sync().ok());
}

namespace {

// A file system that others fill, as far as it tells.
class FullerDisk : public FaultyOs {
 public:
  std::atomic<uint64_t> free_bytes{64 << 20};
  int64_t FreeBytes(int) override { return static_cast<int64_t>(free_bytes); }
  int Allocate(int fd, uint64_t offset, uint64_t bytes) override {
    free_bytes -= std::min<uint64_t>(free_bytes, bytes);
    return FaultyOs::Allocate(fd, offset, bytes);
  }
};

}  // namespace

TEST_CASE("E03: segments do not grow into the floor that is kept free, and what is there stays of use") {
  constexpr uint64_t kFloor = 40 << 20;
  TempDir directory(TempDir::Place::kMemory);
  FullerDisk os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  options.capacity_bytes = 64 << 20;
  options.keep_free_bytes = kFloor;
  const Store store = Open(options);
  const std::string megabyte(1 << 20, 'm');
  uint64_t stored = 0;
  absl::Status status;
  while (status.ok() && stored < 100) {
    status = PutNow(*store, KeyOf(stored), megabyte).status;
    stored += status.ok() ? 1 : 0;
  }
  CHECK(CodeOf(status) == Code::kNoSpace);
  CHECK(stored >= 20);
  CHECK(stored <= 24);
  CHECK(os.free_bytes >= kFloor - (1 << 20));  // the journal may
  // Others take the floor: reads go on, and so do puts in place of what is removed.
  os.free_bytes = 1 << 20;
  for (uint64_t key = 0; key < stored; ++key) REQUIRE(ReadNow(*store, KeyOf(key)).value() == megabyte);
  for (uint64_t key = 0; key < 5; ++key) REQUIRE(store->Remove(KeyOf(key)).ok());
  REQUIRE(store->Sync().ok());
  for (uint64_t key = 0; key < 5; ++key) REQUIRE(PutNow(*store, KeyOf(1000 + key), megabyte).status.ok());
}

TEST_CASE("where space cannot be reserved the store grows all the same") {
  TempDir directory(TempDir::Place::kMemory);
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  os.FailWhere([](OsCall call, const char*) { return call == OsCall::kAllocate; }, EOPNOTSUPP);
  {
    const Store store = Open(options);
    REQUIRE(PutNow(*store, KeyOf(1), std::string(200'000, 'n')).status.ok());
    CHECK(store->Sync().ok());
  }
  const Store store = Open(options);
  CHECK(ReadNow(*store, KeyOf(1)).value() == std::string(200'000, 'n'));
  os.FailNothing();
}

TEST_CASE("a full disk at a flush loses what the flush was for, and no more") {
  TempDir directory(TempDir::Place::kMemory);
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  REQUIRE(PutNow(*store, KeyOf(1), "lost").status.ok());
  // The journal's own space, and then its making.
  os.FailWhere([](OsCall call, const char*) { return call == OsCall::kAllocate; }, ENOSPC);
  CHECK(CodeOf(store->Sync()) == Code::kNoSpace);
  CHECK_FALSE(store->Stat(KeyOf(1)).value().has_value());
  os.FailNothing();
  REQUIRE(PutNow(*store, KeyOf(2), "kept").status.ok());
  CHECK(store->Sync().ok());
  CHECK(ReadNow(*OpenReadOnly(options.path), KeyOf(2)).value() == "kept");
}

TEST_CASE("sync flushes the segment, then the journal, and nothing when nothing has changed") {
  TempDir directory;
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  const auto flushes = [&] {
    const uint64_t before = os.calls(OsCall::kSync);
    REQUIRE(store->Sync().ok());
    return os.calls(OsCall::kSync) - before;
  };
  CHECK(flushes() == 0);
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  // The segment and its name; the journal's header and its name; the entry.
  CHECK(flushes() == 5);
  CHECK(flushes() == 0);
  REQUIRE(PutNow(*store, KeyOf(1), "one again").status.ok());
  REQUIRE(PutNow(*store, KeyOf(2), "two").status.ok());
  CHECK(flushes() == 2);
  REQUIRE(store->Remove(KeyOf(1)).ok());
  CHECK(flushes() == 1);
  // Put and removed between two flushes: no journal ever knows of it.
  REQUIRE(PutNow(*store, KeyOf(3), "").status.ok());
  REQUIRE(store->Remove(KeyOf(3)).ok());
  CHECK(flushes() == 0);
}

TEST_CASE("records whose flush fails become misses, and nothing is flushed again") {
  TempDir directory;
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  const uint64_t empty = store->UsedBytes();
  REQUIRE(PutNow(*store, KeyOf(1), "durable").status.ok());
  REQUIRE(store->Sync().ok());
  REQUIRE(PutNow(*store, KeyOf(2), "lost").status.ok());
  std::atomic<int> flushes{0};
  os.FailWhere([&](OsCall call, const char*) { return call == OsCall::kSync && ++flushes == 1; }, EIO);
  const absl::Status status = store->Sync();
  os.FailNothing();
  CHECK(CodeOf(status) == Code::kIo);
  CHECK(base::NativeCodeOf(status) == EIO);
  CHECK(store->stats().dropped_by_sync == 1);
  CHECK_FALSE(store->Stat(KeyOf(2)).value().has_value());
  CHECK(ReadNow(*store, KeyOf(1)).value() == "durable");
  CHECK(store->UsedBytes() == empty + store->StoredBytes(7, 0));
  CHECK(store->Sync().ok());
}

TEST_CASE("a late flush that fails is told by the next sync, once") {
  TempDir directory(TempDir::Place::kMemory);
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  options.flush_ms = 1;
  const Store store = Open(options);
  REQUIRE(PutNow(*store, KeyOf(0), "durable").status.ok());
  REQUIRE(store->Sync().ok());  // the segment's name, too, whose loss would never be made good
  os.FailWhere([](OsCall call, const char*) { return call == OsCall::kSync; }, EIO);
  REQUIRE(PutNow(*store, KeyOf(1), "lost").status.ok());
  REQUIRE(kvstrata::test::WaitFor([&] { return store->stats().dropped_by_sync == 1; }));
  REQUIRE_FALSE(store->Sync().ok());  // waits for the late one to end
  os.FailNothing();
  CHECK(store->Sync().ok());
}

TEST_CASE("a flush that a lack of units brought about fails, and the next sync tells") {
  TempDir directory(TempDir::Place::kMemory);
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  const std::string payload(300'000, 'p');
  REQUIRE(PutNow(*store, KeyOf(0), payload).status.ok());
  REQUIRE(store->Sync().ok());
  REQUIRE(store->Remove(KeyOf(0)).ok());
  // One flush fails: the one that is to free the first record's units when the store is full.
  std::atomic<bool> failed{false};
  os.FailWhere([&](OsCall call, const char*) { return call == OsCall::kSync && !failed.exchange(true); }, EIO);
  uint64_t stored = 1;
  for (; PutNow(*store, KeyOf(stored), payload).status.ok() && !failed; ++stored) REQUIRE(stored < 100);
  os.FailNothing();
  REQUIRE(failed);
  CHECK_FALSE(store->Stat(KeyOf(1)).value().has_value());
  CHECK(CodeOf(store->Sync()) == Code::kIo);
  CHECK(store->Sync().ok());
}

TEST_CASE("a large record goes in large pieces before it waits for a flush, and in one where that has made room") {
  TempDir directory(TempDir::Place::kMemory);
  storage::SegmentOptions options = Options(directory / "store");
  options.capacity_bytes = 12 << 20;
  options.segment_bytes = 4 << 20;
  const Store store = Open(options);
  // One in each segment, and then nowhere to grow.
  const std::string payload(2560 << 10, 'p');
  for (uint64_t i = 0; i < 3; ++i) REQUIRE(PutNow(*store, KeyOf(i), payload).status.ok());
  REQUIRE(store->Sync().ok());
  REQUIRE(store->Remove(KeyOf(2)).ok());
  const uint64_t flushes = store->stats().flushes;
  const std::string in_pieces(2560 << 10, 'q');
  REQUIRE(PutNow(*store, KeyOf(3), in_pieces).status.ok());
  CHECK(store->stats().flushes == flushes);
  const std::string in_one(2560 << 10, 'r');
  REQUIRE(PutNow(*store, KeyOf(4), in_one).status.ok());
  CHECK(store->stats().flushes == flushes + 1);
  CHECK(ReadNow(*store, KeyOf(3)).value() == in_pieces);
  CHECK(ReadNow(*store, KeyOf(4)).value() == in_one);
}

TEST_CASE("removing much brings a flush about, so that no put has to wait for one") {
  TempDir directory(TempDir::Place::kMemory);
  storage::SegmentOptions options = Options(directory / "store");
  options.flush_ms = 3'600'000;
  const Store store = Open(options);
  for (uint64_t i = 0; i < 8; ++i) REQUIRE(PutNow(*store, KeyOf(i), std::string(100'000, 'p')).status.ok());
  REQUIRE(store->Sync().ok());
  const uint64_t flushes = store->stats().flushes, free_bytes = store->stats().free_bytes;
  for (uint64_t i = 0; i < 8; ++i) REQUIRE(store->Remove(KeyOf(i)).ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (store->stats().flushes == flushes && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  CHECK(store->stats().flushes == flushes + 1);
  CHECK(store->stats().free_bytes == free_bytes + 8 * 102'400);
}

TEST_CASE("a flush that fails while a put is being written fails the put") {
  TempDir directory(TempDir::Place::kMemory);
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  std::atomic<int> writes{0};
  os.FailWhere(
      [&](OsCall call, const char*) {
        if (call == OsCall::kWrite && ++writes == 1) CHECK_FALSE(store->Sync().ok());
        return call == OsCall::kSync;
      },
      EIO);
  CHECK(CodeOf(PutNow(*store, KeyOf(2), "two").status) == Code::kIo);
  os.FailNothing();
  CHECK(Listed(*store) == 0);
}

TEST_CASE("a journal that cannot be written makes the store read-only, with the reason") {
  TempDir directory(TempDir::Place::kMemory);
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  REQUIRE(PutNow(*store, KeyOf(1), "durable").status.ok());
  REQUIRE(store->Sync().ok());
  REQUIRE(PutNow(*store, KeyOf(2), "lost").status.ok());
  std::atomic<int> flushes{0};
  os.FailWhere([&](OsCall call, const char*) { return call == OsCall::kSync && ++flushes == 2; }, EIO);
  CHECK(CodeOf(store->Sync()) == Code::kIo);
  os.FailNothing();
  const absl::Status refused = PutNow(*store, KeyOf(3), "three").status;
  CHECK(CodeOf(refused) == Code::kReadOnly);
  CHECK(base::NativeCodeOf(refused) == EIO);
  CHECK(CodeOf(store->Sync()) == Code::kIo);
  CHECK_FALSE(store->Stat(KeyOf(2)).value().has_value());
  CHECK(ReadNow(*store, KeyOf(1)).value() == "durable");
  REQUIRE(store->Close(kForever).ok());
  const Store again = Open(options);
  CHECK(ReadNow(*again, KeyOf(1)).value() == "durable");
  CHECK(PutNow(*again, KeyOf(3), "three").status.ok());
  CHECK(again->Sync().ok());
}
