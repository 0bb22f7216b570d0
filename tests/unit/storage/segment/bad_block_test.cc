// SPDX-License-Identifier: Apache-2.0
// Logs and superblocks with blocks that the drive refuses to read: they cost what was in them and no more, nothing is
// lost by them for good that a later opening can read, and a drive that reads nothing is not taken for an empty store.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "tests/support/bad_block_os.h"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace fs = std::filesystem;
namespace storage = kvstrata::core::storage;
using kvstrata::test::BadBlockOs;
using kvstrata::test::FaultyOs;
using kvstrata::test::KeyOf;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::Listed;
using kvstrata::test::segment::Open;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Slurp;
using kvstrata::test::segment::Store;

namespace {

constexpr uint64_t kBlock = BadBlockOs::kBlock;

std::string PayloadOf(uint64_t i) { return "payload " + std::to_string(i); }

// Where the entry of a record begins and ends in a log; nothing where it has none. FORMAT.md: the key is the record's
// only 32 bytes that say which it is, 24 bytes behind the entry's beginning, whose first four are its size.
std::optional<std::pair<uint64_t, uint64_t>> EntryIn(const std::string& log, uint64_t i) {
  const storage::Key key = KeyOf(i);
  const std::string_view wanted(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
  const size_t at = log.find(wanted);
  if (at == std::string::npos) return std::nullopt;
  uint32_t bytes = 0;
  std::memcpy(&bytes, log.data() + at - 24, sizeof(bytes));
  return std::pair(at - 24, at - 24 + bytes);
}

constexpr uint64_t kRecords = 45;

// A checkpoint of 30 records and more, and a journal of the rest, some flushes of it of several blocks.
std::vector<std::string> MakeLogs(const std::string& root) {
  storage::SegmentOptions options = Options(root);
  options.journal_bytes = 18'000;
  {
    const Store store = Open(options);
    for (uint64_t i = 0; i < kRecords; ++i) {
      REQUIRE(PutNow(*store, KeyOf(i), PayloadOf(i), std::string(600, 'm')).status.ok());
      if (i == 29 || i == 32 || i == 33) REQUIRE(store->Sync().ok());
    }
    REQUIRE(store->Sync().ok());
  }
  std::vector<std::string> logs;
  for (const auto& file : fs::directory_iterator(root)) {
    const std::string name = file.path().filename();
    if (name.starts_with("journal-") || name.starts_with("checkpoint-")) logs.push_back(name);
  }
  std::ranges::sort(logs);
  return logs;
}

storage::SegmentOptions On(BadBlockOs* os, const std::string& root) {
  storage::SegmentOptions options = Options(root);
  options.os = os;
  return options;
}

}  // namespace

TEST_CASE("a block of a log that the drive refuses to read costs the entries in it, and all others come back") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  const std::vector<std::string> logs = MakeLogs(root);
  REQUIRE(logs.size() == 2);
  REQUIRE(logs[0].starts_with("checkpoint-"));
  const bool whole = GENERATE(false, true);
  for (const std::string& name : logs) {
    const std::string log = Slurp(root + "/" + name);
    // Of the journal's end, which is reserved, one block is enough.
    const uint64_t blocks = name == logs[0] ? (log.size() + kBlock - 1) / kBlock : 8;
    REQUIRE(blocks >= 6);
    for (uint64_t block = 0; block < blocks; ++block) {
      CAPTURE(name, block, whole);
      std::set<uint64_t> right;
      for (uint64_t i = 0; i < kRecords; ++i) {
        const auto entry = EntryIn(log, i);
        const bool touched =
            entry.has_value() && entry->first / kBlock <= block && block <= (entry->second - 1) / kBlock;
        if (!touched && (block > 0 || !entry.has_value())) right.insert(i);  // without its header, a log says nothing
      }
      BadBlockOs os;
      os.whole = whole;
      os.Refuse(name, block);
      const std::string copy = directory / "copy";
      fs::copy(root, copy, fs::copy_options::recursive);
      storage::SegmentOptions options = On(&os, copy);
      options.journal_bytes = 18'000;
      {
        const Store store = Open(options);
        CHECK(store->stats().unreadable_blocks == 1);
        CHECK(Listed(*store) == right.size());
        for (uint64_t i = 0; i < kRecords; ++i) {
          const auto read = ReadNow(*store, KeyOf(i));
          REQUIRE(read.ok() == right.contains(i));
          if (read.ok()) REQUIRE(*read == PayloadOf(i));
        }
      }
      // Nothing was put, so nothing was changed: who can read it all finds it all.
      os.RefuseNothing();
      CHECK(Listed(*Open(options)) == kRecords);
      os.Refuse(name, block);
      {
        // A checkpoint is written of what could be read, and nobody asks for the block again.
        const Store store = Open(options);
        const uint64_t refusals = os.refusals();
        for (uint64_t i = 100; i < 140; ++i) {
          REQUIRE(PutNow(*store, KeyOf(i), PayloadOf(i), std::string(600, 'm')).status.ok());
        }
        REQUIRE(store->Sync().ok());
        CHECK(store->stats().checkpoints == 1);
        if (!whole) CHECK(os.refusals() == refusals);
      }
      os.RefuseNothing();
      const Store store = Open(options);
      CHECK(store->stats().unreadable_blocks == 0);
      CHECK(store->stats().torn_logs == 0);
      CHECK(Listed(*store) == right.size() + 40);
      for (const uint64_t i : right) REQUIRE(ReadNow(*store, KeyOf(i)).value() == PayloadOf(i));
      fs::remove_all(copy);
    }
  }
}

TEST_CASE("a reader and its follower pass over a block that cannot be read, as the writer does") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  const std::vector<std::string> logs = MakeLogs(root);
  BadBlockOs os;
  os.Refuse(logs[0], 2);
  storage::SegmentOptions options = On(&os, root);
  options.read_only = true;
  const Store reader = Open(options);
  CHECK(reader->UnreadableBlocks() == 1);
  const size_t listed = Listed(*reader);
  CHECK(listed < kRecords);
  CHECK(listed + 8 > kRecords);  // a block has seven entries at most, whole or in part
  {
    const Store writer = Open(root);
    REQUIRE(PutNow(*writer, KeyOf(1000), "later", "meta").status.ok());
  }
  storage::FeedPage page;
  bool seen = false;
  do {
    REQUIRE(reader->Follow(100, &page).ok());
    for (const storage::FeedEntry& entry : page.entries) seen = seen || entry.record.key == KeyOf(1000);
  } while (!page.done);
  CHECK(seen);
}

TEST_CASE("a block that can be read at the second try is as good as any") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  MakeLogs(root);
  FaultyOs os;
  storage::SegmentOptions options = Options(root);
  options.os = &os;
  uint64_t reads = 0;
  {
    Open(options);
    reads = os.calls(kvstrata::test::OsCall::kRead);
  }
  for (uint64_t nth = 3; nth <= reads; ++nth) {  // the superblock's two have a rule of their own
    CAPTURE(nth);
    uint64_t read = 0;
    os.FailWhere([&](kvstrata::test::OsCall call,
                     const char*) { return call == kvstrata::test::OsCall::kRead && ++read == nth; },
                 EIO);
    const Store store = Open(options);
    CHECK(store->stats().unreadable_blocks == 0);
    CHECK(Listed(*store) == kRecords);
    os.FailNothing();
  }
}

TEST_CASE("a drive that reads none of the logs fails the opening with its errno, and so does one that reads too few") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  BadBlockOs os;
  const bool all = GENERATE(true, false);
  std::vector<std::string> logs;
  if (all) {
    logs = MakeLogs(root);
    for (const std::string& name : logs) os.RefuseAll(name);
  } else {
    // FORMAT.md says 4 MiB.
    constexpr uint64_t kEntries = 1200;
    storage::SegmentOptions options = Options(root);
    options.journal_bytes = 1 << 20;
    {
      const Store store = Open(options);
      for (uint64_t i = 0; i < kEntries; ++i) {
        REQUIRE(PutNow(*store, KeyOf(i), "", std::string(4096, 'm')).status.ok());
      }
    }
    logs = {"checkpoint-a.ckp"};
    REQUIRE(fs::file_size(root + "/" + logs[0]) > (4 << 20) + 10 * kBlock);
    for (uint64_t block = 8; block < 8 + 1025; ++block) os.Refuse(logs[0], block);
  }
  std::map<std::string, std::string> before;
  for (const std::string& name : logs) before[name] = Slurp(root + "/" + name);
  for (const bool read_only : {false, true}) {
    storage::SegmentOptions options = On(&os, root);
    options.read_only = read_only;
    const absl::Status status = storage::SegmentStorage::Open(options).status();
    CHECK(base::NativeCodeOf(status) == EIO);
    CHECK(std::string(status.message()).find(root) != std::string::npos);
    CHECK(os.open_descriptors() == 0);
  }
  for (const auto& [name, bytes] : before) CHECK(Slurp(root + "/" + name) == bytes);
}

TEST_CASE("of a superblock one copy may be unreadable, and its epoch is not used again") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  { REQUIRE(PutNow(*Open(root), KeyOf(1), "one").status.ok()); }  // epoch 1
  const auto epoch = [&](uint64_t copy) {
    uint64_t value = 0;
    std::memcpy(&value, Slurp(root + "/super").data() + copy * kBlock + 32, sizeof(value));
    return value;
  };
  CHECK(ReadNow(*Open(root), KeyOf(1)).value() == "one");  // 2
  const uint64_t bad = GENERATE(uint64_t{0}, uint64_t{1});
  const uint64_t good = epoch(1 - bad);
  REQUIRE(epoch(bad) + good == 3);
  BadBlockOs os;
  os.Refuse("super", bad);
  {
    const Store store = Open(On(&os, root));
    CHECK(store->stats().unreadable_blocks == 1);
    CHECK(ReadNow(*store, KeyOf(1)).value() == "one");
    REQUIRE(PutNow(*store, KeyOf(2), "two").status.ok());
  }
  CHECK(epoch(bad) > 2);
  CHECK(epoch(1 - bad) == good);
  os.Refuse("super", 1 - bad);
  CHECK(base::NativeCodeOf(storage::SegmentStorage::Open(On(&os, root)).status()) == EIO);
  os.RefuseNothing();
  CHECK(ReadNow(*Open(root), KeyOf(2)).value() == "two");
}
