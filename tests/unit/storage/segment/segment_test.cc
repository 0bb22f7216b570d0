// SPDX-License-Identifier: Apache-2.0
// The segment backend: what is on the disk, how space is used again, and what is believed when it comes back.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/format/segment.h"
#include "tests/support/fake_wait.h"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace format = kvstrata::core::format;
namespace fs = std::filesystem;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::FaultyOs;
using kvstrata::test::GetNow;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::OsCall;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::FilesIn;
using kvstrata::test::segment::kForever;
using kvstrata::test::segment::Listed;
using kvstrata::test::segment::ModeOf;
using kvstrata::test::segment::Open;
using kvstrata::test::segment::OpenReadOnly;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Slurp;
using kvstrata::test::segment::Spill;
using kvstrata::test::segment::Store;

// ---- What is on the disk -------------------------------------------------------------------------------------------

TEST_CASE("records survive reopening, in another place too, and are counted before the first put") {
  TempDir directory;
  const std::string first = directory / "deep/down/store";
  uint64_t used = 0;
  {
    const Store store = Open(first);
    for (uint64_t i = 0; i < 50; ++i) {
      REQUIRE(PutNow(*store, KeyOf(i), std::string(i * 100, 'p'), std::to_string(i)).status.ok());
    }
    REQUIRE(store->Remove(KeyOf(7)).ok());
    REQUIRE(store->Sync().ok());
    used = store->UsedBytes();
    REQUIRE(store->Close(kForever).ok());
    CHECK(store->UsedBytes() == used);
  }
  const std::string second = directory / "elsewhere";
  fs::rename(first, second);
  const Store store = Open(second);
  CHECK(store->UsedBytes() == used);
  CHECK(Listed(*store) == 49);
  for (uint64_t i = 0; i < 50; ++i) {
    CAPTURE(i);
    const auto read = ReadNow(*store, KeyOf(i));
    if (i == 7) {
      CHECK(CodeOf(read.status()) == Code::kNotFound);
    } else {
      CHECK(read.value() == std::string(i * 100, 'p'));
    }
  }
}

TEST_CASE("the directory never takes more than the store says, with what it keeps free for later") {
  TempDir directory;
  const Store store = Open(directory / "store");
  for (uint64_t i = 0; i < 200; ++i) {
    REQUIRE(PutNow(*store, KeyOf(i), std::string(i * 37, 'p'), std::string(i % 100, 'm')).status.ok());
  }
  REQUIRE(store->Sync().ok());
  uint64_t taken = 0;
  struct stat info {};
  for (const auto& entry : fs::recursive_directory_iterator(directory / "store")) {
    REQUIRE(lstat(entry.path().c_str(), &info) == 0);
    taken += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  CHECK(taken <= store->UsedBytes() + store->stats().free_bytes);
  // A store is no larger than it needs to be: far from its capacity of 8 MiB.
  CHECK(taken < 2 << 20);
}

TEST_CASE("opening reads no payload") {
  TempDir directory(TempDir::Place::kMemory);
  { REQUIRE(PutNow(*Open(directory / "store"), KeyOf(1), std::string(900'000, 'p'), "meta").status.ok()); }
  FaultyOs os;
  os.LimitTransfers(1);  // so that the number of reads is the number of bytes read
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  CHECK(Listed(*store) == 1);
  // The superblock, and a journal whose space is reserved ahead by 256 KiB, once to open it and once to list it.
  CHECK(os.calls(OsCall::kRead) < 600'000);
}

TEST_CASE("files and folders have their modes whatever the umask, which stays as it was") {
  for (const mode_t mask : {mode_t{0}, mode_t{077}, mode_t{0777}}) {
    CAPTURE(mask);
    TempDir directory(TempDir::Place::kMemory);
    const mode_t before = umask(mask);
    {
      const Store store = Open(directory / "a/store");
      REQUIRE(PutNow(*store, KeyOf(1), "p").status.ok());
    }
    CHECK(umask(before) == mask);
    for (const char* folder : {"a", "a/store"}) {
      CHECK(ModeOf(directory / folder) == 0700);
    }
    for (const char* file : {"kvstrata.lock", "super", "data-0000.seg", "journal-0001.log"}) {
      CHECK(ModeOf(directory / "a/store/" + file) == 0600);
    }
  }
}

TEST_CASE("sizes and offsets beyond 32 bits are right") {
  TempDir directory;
  const std::string root = directory / "store";
  fs::create_directories(root);
  constexpr uint64_t kPayload = 5ull << 30;
  constexpr uint64_t kPlace = (1ull << 32) + 12345;
  const auto text = [](base::ByteView bytes) { return std::string(base::AsText(bytes)); };
  const auto super = format::EncodeSuperblock({{}, 2, 8ull << 30});
  Spill(root + "/super", text(super));
  const format::LogHeader header{format::LogKind::kJournal, {}, 2, 1, 77, 0, 0};
  format::LogEntry entry;
  entry.key = KeyOf(1).bytes;
  entry.sequence = 2ull << 40;
  entry.payload_bytes = kPayload;
  entry.extents = {{0, 1, kPayload / 4096}};
  std::vector<std::byte> bytes;
  format::AppendEntry(entry, 77, 4096, &bytes);
  const std::string start = text(format::EncodeLogHeader(header));
  Spill(root + "/journal-0001.log", start + std::string(4096 - start.size(), '\0') + text(bytes));
  const int fd = open((root + "/data-0000.seg").c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(fd >= 0);
  REQUIRE(ftruncate(fd, static_cast<off_t>(4096 + kPayload)) == 0);  // a hole: takes no space
  REQUIRE(pwrite(fd, "there", 5, static_cast<off_t>(4096 + kPlace)) == 5);
  close(fd);

  const Store store = OpenReadOnly(root);
  CHECK(store->Stat(KeyOf(1)).value() == kPayload);
  std::string room(7, '#');
  REQUIRE(GetNow(*store, KeyOf(1), kPlace - 1, std::as_writable_bytes(std::span(room))).status.ok());
  CHECK(room == std::string("\0there\0", 7));
  CHECK(CodeOf(GetNow(*store, KeyOf(1), kPayload - 6, std::as_writable_bytes(std::span(room))).status) ==
        Code::kCorrupt);
}

TEST_CASE("a store that was written from the format's description alone is read") {
  TempDir directory;
  const std::string root = directory / "store";
  fs::copy(KVSTRATA_GOLDEN_FORMAT "/store/lanes/0", root, fs::copy_options::recursive);
  for (const bool read_only : {true, false, false}) {
    CAPTURE(read_only);
    storage::SegmentOptions options = Options(root);
    options.read_only = read_only;
    const Store store = Open(options);
    CHECK(store->stats().torn_logs == 0);
    CHECK(store->stats().dropped_at_open == 0);
    CHECK(store->stats().foreign_entries == 0);
    std::vector<storage::ListEntry> entries;
    REQUIRE(ListAll(*store, 10, &entries).ok());
    std::map<std::string, std::string> found;
    for (const storage::ListEntry& entry : entries) {
      found[std::string(base::AsText(entry.meta))] = ReadNow(*store, entry.key).value();
    }
    // As store.json beside it says.
    CHECK(found == std::map<std::string, std::string>{
                       {"meta one", "first"}, {"meta two", std::string(4096, 'A') + "second"}, {"", ""}});
  }
}

TEST_CASE("ranges come back past the page cache and through it, and where direct I/O is refused in the middle") {
  TempDir directory;
  std::string payload(3'300'000, '\0');  // in several buffers and segments
  REQUIRE(base::SeededRandom(9).Fill(std::as_writable_bytes(std::span(payload))).ok());
  enum class Mode { kAsItIs, kNeverDirect, kRefusedOnce };
  const Mode mode = GENERATE(Mode::kAsItIs, Mode::kNeverDirect, Mode::kRefusedOnce);
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  std::atomic<int> reads{0};
  os.FailWhere(
      [&](OsCall call, const char*) {
        if (mode == Mode::kNeverDirect) return call == OsCall::kSetDirect;
        return mode == Mode::kRefusedOnce && call == OsCall::kRead && ++reads == 5;
      },
      EINVAL);
  const Store store = Open(options);
  const std::vector<base::ByteView> parts = {base::AsBytes(payload).first(1'000'001),
                                             base::AsBytes(payload).subspan(1'000'001)};
  Completions completions(1);
  const storage::Request request = {storage::Put{KeyOf(1), parts, {}}, completions.Of(0)};
  REQUIRE(store->Submit({&request, 1}).ok());
  completions.Wait();
  REQUIRE(completions.result(0).status.ok());
  base::SeededRandom random(10);
  for (int i = 0; i < 100; ++i) {
    const size_t offset = random.Below(payload.size());
    const size_t size =
        random.Below(i % 4 == 0 ? payload.size() - offset : std::min<size_t>(9000, payload.size() - offset));
    CAPTURE(offset, size);
    // Every second destination lies as the file does, so that the read may go straight into it.
    std::string room(size + 3 * 4096, '#');
    const size_t unit = 4096 - reinterpret_cast<uintptr_t>(room.data()) % 4096;
    const size_t begin = i % 2 == 0 ? 1 : unit + offset % 4096;
    const auto middle = std::as_writable_bytes(std::span(room)).subspan(begin, size);
    std::string expected = room;
    expected.replace(begin, size, payload, offset, size);
    REQUIRE(GetNow(*store, KeyOf(1), offset, middle).status.ok());
    REQUIRE((room == expected));
  }
  if (mode != Mode::kAsItIs) CHECK(store->stats().direct == 0);
  os.FailNothing();
}

// ---- Space ---------------------------------------------------------------------------------------------------------

TEST_CASE("units of removed records are used again at once, and the files stay as they are") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  const Store store = Open(root);
  // A capacity of 8 MiB, a 16th of it and 1 MiB: 9.5 MiB for records of 25 units.
  const std::string payload(100'000, 'p');
  uint64_t stored = 0;
  for (; PutNow(*store, KeyOf(stored), payload).status.ok(); ++stored) REQUIRE(stored < 200);
  CHECK(stored >= 80);
  CHECK(CodeOf(PutNow(*store, KeyOf(stored), payload).status) == Code::kNoSpace);
  REQUIRE(store->Sync().ok());
  for (uint64_t round = 0; round < 30; ++round) {
    // Without a Sync in between: the put that needs the units flushes the removal itself.
    REQUIRE(store->Remove(KeyOf(round)).ok());
    REQUIRE(PutNow(*store, KeyOf(1000 + round), payload).status.ok());
  }
  CHECK(store->stats().segment_bytes <= (8 << 20) + (8 << 20) / 16 + (1 << 20));
  CHECK(ReadNow(*store, KeyOf(1029)).value() == payload);
}

TEST_CASE("a record that no free run is long enough for lies in pieces") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  std::string big(5 * 40'000, '\0');
  REQUIRE(base::SeededRandom(5).Fill(std::as_writable_bytes(std::span(big))).ok());
  {
    const Store store = Open(root);
    uint64_t stored = 0;
    for (; PutNow(*store, KeyOf(stored), std::string(40'000, 'p')).status.ok(); ++stored) REQUIRE(stored < 500);
    // No two neighbours, so that no hole is longer than a record of ten units.
    for (uint64_t i = 0; i < 12; ++i) REQUIRE(store->Remove(KeyOf(2 * i)).ok());
    REQUIRE(PutNow(*store, KeyOf(1000), big, "in pieces").status.ok());
    CHECK(ReadNow(*store, KeyOf(1000)).value() == big);
    // More pieces than a record may have.
    CHECK(CodeOf(PutNow(*store, KeyOf(1001), big + big).status) == Code::kNoSpace);
  }
  const Store store = Open(root);
  CHECK(store->stats().dropped_at_open == 0);
  std::string room(50'000, '#');
  REQUIRE(GetNow(*store, KeyOf(1000), 70'000, std::as_writable_bytes(std::span(room))).status.ok());
  CHECK(room == big.substr(70'000, 50'000));
}

TEST_CASE("a record that is read while it is replaced keeps its units until the read has ended") {
  TempDir directory(TempDir::Place::kMemory);
  FaultyOs os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  const std::string older(300'000, 'o');
  REQUIRE(PutNow(*store, KeyOf(1), older).status.ok());
  REQUIRE(store->Sync().ok());
  std::atomic<int> reads{0};
  os.FailWhere(
      [&](OsCall call, const char*) {
        if (call != OsCall::kRead || ++reads != 1) return false;
        // In the middle of the get: the record is removed, that is made durable, and the store is filled up.
        REQUIRE(store->Remove(KeyOf(1)).ok());
        REQUIRE(store->Sync().ok());
        for (uint64_t i = 0; PutNow(*store, KeyOf(100 + i), std::string(300'000, 'n')).status.ok(); ++i) {
        }
        return false;
      },
      0);
  std::string room(older.size(), '#');
  REQUIRE(GetNow(*store, KeyOf(1), 0, std::as_writable_bytes(std::span(room))).status.ok());
  CHECK(room == older);
  os.FailNothing();
  // Now they are free.
  CHECK(PutNow(*store, KeyOf(2), older).status.ok());
}

TEST_CASE("journals end in a checkpoint, and what they held stays, also where it is listed meanwhile") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  storage::SegmentOptions options = Options(root);
  options.journal_bytes = 20'000;
  {
    const Store store = Open(options);
    for (uint64_t i = 0; i < 2000; ++i) {
      REQUIRE(PutNow(*store, KeyOf(i % 50), std::to_string(i), "meta " + std::to_string(i)).status.ok());
      if (i % 20 == 0) REQUIRE(store->Sync().ok());
    }
    CHECK(store->stats().checkpoints > 3);
    CHECK(Listed(*store) == 50);
  }
  CHECK(FilesIn(root) <= 6);  // lock, superblock, a segment, two checkpoints, a journal
  const Store store = Open(options);
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(*store, 7, &entries).ok());
  CHECK(entries.size() == 50);
  for (const storage::ListEntry& entry : entries) {
    CHECK(base::AsText(entry.meta) == "meta " + ReadNow(*store, entry.key).value());
  }
}

TEST_CASE("a listing that begins after checkpoints have replaced the logs of the opening is whole") {
  TempDir directory(TempDir::Place::kMemory);
  storage::SegmentOptions options = Options(directory / "store");
  options.journal_bytes = 20'000;
  {
    const Store store = Open(options);
    for (uint64_t i = 0; i < 100; ++i) REQUIRE(PutNow(*store, KeyOf(i), "old", "meta of old").status.ok());
  }
  // Each of them goes to the place of a log that an earlier one has replaced.
  for (uint64_t checkpoints = 1; checkpoints <= 5; ++checkpoints) {
    CAPTURE(checkpoints);
    const Store store = Open(options);
    for (uint64_t i = 0; store->stats().checkpoints < checkpoints; ++i) {
      REQUIRE(PutNow(*store, KeyOf(200 + i % 50), "new", "meta " + std::to_string(i)).status.ok());
      if (i % 20 == 0) REQUIRE(store->Sync().ok());
    }
    uint64_t old_ones = 0, new_ones = 0, skipped = 0;
    const auto visit = [&](const storage::RecordView& record) {
      (base::AsText(record.meta) == "meta of old" ? old_ones : new_ones) += 1;
    };
    REQUIRE(store->Visit(visit, &skipped).ok());
    CHECK(old_ones == 100);
    CHECK(new_ones == 50);
    CHECK(skipped == 0);
  }
}

TEST_CASE("what was put a while ago becomes durable by itself") {
  TempDir directory(TempDir::Place::kMemory);
  storage::SegmentOptions options = Options(directory / "store");
  options.flush_ms = 1;
  const Store store = Open(options);
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  CHECK(kvstrata::test::WaitFor([&] { return store->stats().flushes > 0; }));
  const Store reader = OpenReadOnly(directory / "store");
  CHECK(ReadNow(*reader, KeyOf(1)).value() == "one");
}

// ---- What is not believed ------------------------------------------------------------------------------------------

TEST_CASE("one damaged copy of the superblock does no harm, two close the store, a later version is told") {
  TempDir directory;
  const std::string root = directory / "store";
  { REQUIRE(PutNow(*Open(root), KeyOf(1), "one").status.ok()); }
  Open(root)->Close(kForever).IgnoreError();
  const std::string good = Slurp(root + "/super");
  REQUIRE(good.size() == 4096 + 64);
  for (const size_t copy : {size_t{0}, size_t{4096}}) {
    std::string bad = good;
    bad[copy + 40] ^= 1;
    Spill(root + "/super", bad);
    CHECK(ReadNow(*Open(root), KeyOf(1)).value() == "one");
  }
  std::string bad = good;
  bad[40] ^= 1;
  bad[4096 + 40] ^= 1;
  Spill(root + "/super", bad);
  CHECK(CodeOf(storage::SegmentStorage::Open(Options(root)).status()) == Code::kCorrupt);
  fs::remove(root + "/super");
  CHECK(CodeOf(storage::SegmentStorage::Open(Options(root)).status()) == Code::kCorrupt);
  std::string later = good;
  later[8] = 2;
  Spill(root + "/super", later);
  CHECK(CodeOf(storage::SegmentStorage::Open(Options(root)).status()) == Code::kFormatTooNew);
  CHECK(Slurp(root + "/super") == later);
}

TEST_CASE("a flipped bit of a journal costs one record, and one flush where more of it may come, and changes none") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  const auto payload_of = [](uint64_t i) { return "payload " + std::to_string(i); };
  {
    const Store store = Open(root);
    for (uint64_t i = 0; i < 4; ++i) {
      REQUIRE(PutNow(*store, KeyOf(i), payload_of(i), "meta " + std::to_string(i)).status.ok());
      if (i != 1) REQUIRE(store->Sync().ok());  // 1 and 2 together
    }
  }
  const std::string journal = root + "/journal-0001.log";
  const std::string good = Slurp(journal);
  // A bit or two of each byte of the second flush's first entry: 72 + 12 + 6 bytes, up to a multiple of 8.
  for (size_t bit = 0; bit < 8 * 96; bit += 7) {
    CAPTURE(bit);
    std::string bad = good;
    bad[8192 + bit / 8] = static_cast<char>(bad[8192 + bit / 8] ^ (1 << bit % 8));
    Spill(journal, bad);
    const Store reader = OpenReadOnly(root);
    REQUIRE(reader->stats().torn_logs == 1);
    REQUIRE(Listed(*reader) == 1);
    REQUIRE(ReadNow(*reader, KeyOf(0)).value() == payload_of(0));
    if (bit % 2 == 0) continue;  // half of them are enough for what takes a folder of its own
    const std::string copy = directory / "copy";
    fs::copy(root, copy, fs::copy_options::recursive);
    const auto all_but_one = [&](storage::Storage& store) {
      REQUIRE(Listed(store) == 3);
      REQUIRE(ReadNow(store, KeyOf(0)).value() == payload_of(0));
      REQUIRE(ReadNow(store, KeyOf(3)).value() == payload_of(3));
      const uint64_t kept = store.Stat(KeyOf(1)).value().has_value() ? 1 : 2;
      REQUIRE(ReadNow(store, KeyOf(kept)).value() == payload_of(kept));
    };
    {
      const Store writer = Open(copy);
      REQUIRE(writer->stats().torn_logs == 1);
      all_but_one(*writer);
      REQUIRE(PutNow(*writer, KeyOf(9), "later").status.ok());
    }
    // To the damaged journal nothing is added any more.
    const Store later = OpenReadOnly(copy);
    REQUIRE(ReadNow(*later, KeyOf(9)).value() == "later");
    REQUIRE(Listed(*later) == 4);
    fs::remove_all(copy);
  }
}

TEST_CASE("a damaged sector of a checkpoint costs the records whose entries it touches, and changes none") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  constexpr uint64_t kRecords = 30;
  const auto payload_of = [](uint64_t i) { return "payload " + std::to_string(i); };
  storage::SegmentOptions options = Options(root);
  options.journal_bytes = 10'000;
  {
    const Store store = Open(options);
    for (uint64_t i = 0; i < kRecords; ++i) {
      REQUIRE(PutNow(*store, KeyOf(i), payload_of(i), std::string(600, 'm')).status.ok());
    }
    REQUIRE(store->Sync().ok());
  }
  const std::string checkpoint = root + "/checkpoint-a.ckp";
  REQUIRE_FALSE(fs::exists(root + "/checkpoint-b.ckp"));
  const std::string good = Slurp(checkpoint);
  REQUIRE(good.size() > 4096 + kRecords * 600);
  const char filler = GENERATE('\0', '\1', '\xff');
  for (size_t sector = 4096; sector < good.size(); sector += 512) {
    CAPTURE(sector);
    std::string bad = good;
    const size_t bytes = std::min<size_t>(512, good.size() - sector);
    bad.replace(sector, bytes, bytes, filler);
    Spill(checkpoint, bad);
    const Store store = OpenReadOnly(root);
    CHECK(store->stats().torn_logs == 1);
    // An entry has more bytes than a sector.
    const size_t listed = Listed(*store);
    CHECK(listed < kRecords);
    CHECK(listed + 2 >= kRecords);
    size_t right = 0;
    for (uint64_t i = 0; i < kRecords; ++i) {
      if (!store->Stat(KeyOf(i)).value().has_value()) continue;
      CHECK(ReadNow(*store, KeyOf(i)).value() == payload_of(i));
      ++right;
    }
    CHECK(right == listed);
  }
}

TEST_CASE("a log is looked through behind damage for some megabytes, and no further") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  constexpr uint64_t kRecords = 1200;
  storage::SegmentOptions options = Options(root);
  options.journal_bytes = 1 << 20;
  {
    const Store store = Open(options);
    for (uint64_t i = 0; i < kRecords; ++i) {
      REQUIRE(PutNow(*store, KeyOf(i), "", std::string(4096, 'm')).status.ok());
    }
    REQUIRE(store->Sync().ok());
  }
  const std::string checkpoint = root + "/checkpoint-a.ckp";
  std::string bytes = Slurp(checkpoint);
  REQUIRE(bytes.size() > kRecords * 4096);
  // FORMAT.md says 4 MiB.
  constexpr size_t kPatience = 4u << 20;
  const auto [damage, listed] = GENERATE(std::pair<size_t, bool>(kPatience - 8192, true),
                                         std::pair<size_t, bool>(kPatience + 8192, false));
  bytes.replace(4096, damage, damage, '\0');
  Spill(checkpoint, bytes);
  CHECK((Listed(*OpenReadOnly(root)) > 0) == listed);
}

TEST_CASE("of two records that a damaged journal gives the same units, the later one is right, and the other a miss") {
  TempDir directory;
  const std::string root = directory / "store";
  // Each more than half of the store, so the second lies where the first was.
  const std::string first(5 << 20, '1');
  const std::string second(5 << 20, '2');
  {
    const Store store = Open(root);
    REQUIRE(PutNow(*store, KeyOf(1), first).status.ok());
    REQUIRE(store->Sync().ok());
    REQUIRE(store->Remove(KeyOf(1)).ok());
  }
  {
    const Store store = Open(root);  // begins another journal
    REQUIRE(PutNow(*store, KeyOf(2), second).status.ok());
  }
  // Nothing tells any more that the first record was removed.
  const std::string journal = root + "/journal-0001.log";
  std::string bytes = Slurp(journal);
  REQUIRE(bytes[8192] == 56);  // a removal
  bytes.replace(8192, 4096, 4096, '\0');
  Spill(journal, bytes);
  {
    const Store store = Open(root);
    CHECK(store->stats().dropped_at_open == 1);
    CHECK_FALSE(store->Stat(KeyOf(1)).value().has_value());
    CHECK(ReadNow(*store, KeyOf(2)).value() == second);
    // Its units are not given away.
    CHECK(CodeOf(PutNow(*store, KeyOf(3), first).status) != Code::kOk);
  }
  const Store store = Open(root);
  CHECK(store->stats().dropped_at_open == 0);
  CHECK(Listed(*store) == 1);
  CHECK(ReadNow(*store, KeyOf(2)).value() == second);
}

TEST_CASE("a segment that is gone or cut short makes misses of its records, and they are forgotten") {
  TempDir directory;
  const std::string root = directory / "store";
  {
    const Store store = Open(root);
    for (uint64_t i = 0; i < 4; ++i) REQUIRE(PutNow(*store, KeyOf(i), std::string(400'000, 'p')).status.ok());
  }
  REQUIRE(fs::exists(root + "/data-0001.seg"));
  fs::remove(root + "/data-0001.seg");
  fs::resize_file(root + "/data-0000.seg", 500'000);
  {
    const Store store = Open(root);
    CHECK(store->stats().dropped_at_open == 3);
    CHECK(Listed(*store) == 1);
    CHECK(ReadNow(*store, KeyOf(0)).value() == std::string(400'000, 'p'));
    REQUIRE(PutNow(*store, KeyOf(9), std::string(400'000, '9')).status.ok());
  }
  const Store store = Open(root);
  CHECK(store->stats().dropped_at_open == 0);
  CHECK(Listed(*store) == 2);
}

TEST_CASE("a segment cut short under a reader is an error, not a signal") {
  TempDir directory;
  const Store store = Open(directory / "store");
  const std::string payload(100'000, 'p');
  REQUIRE(PutNow(*store, KeyOf(1), payload).status.ok());
  fs::resize_file(directory / "store/data-0000.seg", 5000);
  std::string room(payload.size(), '#');
  CHECK(CodeOf(GetNow(*store, KeyOf(1), 0, std::as_writable_bytes(std::span(room))).status) == Code::kCorrupt);
}

TEST_CASE("what is not ours is skipped, counted and left alone") {
  TempDir directory;
  const std::string root = directory / "store";
  {
    const Store store = Open(root);
    REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  }
  const std::vector<std::string> foreign = {root + "/notes.txt", root + "/journal-1.log", root + "/journal-00001.log"};
  for (const std::string& path : foreign) Spill(path, "not ours");
  const Store store = Open(root);
  CHECK(store->stats().foreign_entries == foreign.size());
  CHECK(Listed(*store) == 1);
  for (const std::string& path : foreign) CHECK(Slurp(path) == "not ours");
}
