// SPDX-License-Identifier: Apache-2.0
// The segment backend: what is on the disk, what of it is believed when it comes back, and how it shares the machine.
#include "lib/storage/segment/segment_storage.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/format/segment.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_wait.h"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"

namespace base = kvstrata::core::base;
namespace format = kvstrata::core::format;
namespace fs = std::filesystem;
namespace storage = kvstrata::core::storage;
using base::Code;
using base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::FaultyOs;
using kvstrata::test::GetNow;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::OsCall;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;

namespace {

constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

using Store = std::unique_ptr<storage::SegmentStorage>;

storage::SegmentOptions Options(const std::string& path) {
  storage::SegmentOptions options;
  options.path = path;
  options.capacity_bytes = 8 << 20;
  options.segment_bytes = 1 << 20;
  options.flush_ms = 0;  // so that only what a test does happens
  return options;
}

Store Open(const storage::SegmentOptions& options) {
  auto opened = storage::SegmentStorage::Open(options);
  INFO(opened.status().ToString().c_str());
  REQUIRE(opened.ok());
  return std::move(*opened);
}

Store Open(const std::string& path) { return Open(Options(path)); }

Store OpenReadOnly(const std::string& path) {
  storage::SegmentOptions options = Options(path);
  options.read_only = true;
  return Open(options);
}

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void Spill(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  REQUIRE(out.good());
}

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  REQUIRE(lstat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

size_t FilesIn(const std::string& path) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
}

size_t Listed(storage::Storage& store) {
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(store, 100, &entries).ok());
  return entries.size();
}

// Runs `body` in a forked child; its answer is the child's exit status.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(body());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

}  // namespace

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
    for (const char* folder : {"a", "a/store", "a/store/lanes", "a/store/lanes/0"}) {
      CHECK(ModeOf(directory / folder) == 0700);
    }
    for (const char* file : {"kvstrata.lock", "super", "lanes/0/data-0000.seg", "lanes/0/journal-0001.log"}) {
      CHECK(ModeOf(directory / "a/store/" + file) == 0600);
    }
  }
}

TEST_CASE("sizes and offsets beyond 32 bits are right") {
  TempDir directory;
  const std::string root = directory / "store";
  fs::create_directories(root + "/lanes/0");
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
  Spill(root + "/lanes/0/journal-0001.log", start + std::string(4096 - start.size(), '\0') + text(bytes));
  const int fd = open((root + "/lanes/0/data-0000.seg").c_str(), O_CREAT | O_WRONLY, 0600);
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
  fs::copy(KVSTRATA_GOLDEN_FORMAT "/store", root, fs::copy_options::recursive);
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
  CHECK(FilesIn(root + "/lanes/0") <= 4);  // a segment, two checkpoints, a journal
  const Store store = Open(options);
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(*store, 7, &entries).ok());
  CHECK(entries.size() == 50);
  for (const storage::ListEntry& entry : entries) {
    CHECK(base::AsText(entry.meta) == "meta " + ReadNow(*store, entry.key).value());
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

TEST_CASE("a flipped bit of a journal costs the records of its flush at most, and changes none") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  {
    const Store store = Open(root);
    for (uint64_t i = 0; i < 3; ++i) {
      REQUIRE(PutNow(*store, KeyOf(i), "payload " + std::to_string(i), "meta " + std::to_string(i)).status.ok());
      REQUIRE(store->Sync().ok());
    }
  }
  const std::string journal = root + "/lanes/0/journal-0001.log";
  const std::string good = Slurp(journal);
  // Every bit of the second flush's entry: 72 + 12 + 6 bytes, up to a multiple of 8.
  for (size_t bit = 0; bit < 8 * 96; ++bit) {
    CAPTURE(bit);
    std::string bad = good;
    bad[8192 + bit / 8] = static_cast<char>(bad[8192 + bit / 8] ^ (1 << bit % 8));
    Spill(journal, bad);
    const Store store = OpenReadOnly(root);
    REQUIRE(store->stats().torn_logs == 1);
    REQUIRE(ReadNow(*store, KeyOf(0)).value() == "payload 0");
    REQUIRE_FALSE(store->Stat(KeyOf(1)).value().has_value());
  }
}

TEST_CASE("a segment that is gone or cut short makes misses of its records, and they are forgotten") {
  TempDir directory;
  const std::string root = directory / "store";
  {
    const Store store = Open(root);
    for (uint64_t i = 0; i < 4; ++i) REQUIRE(PutNow(*store, KeyOf(i), std::string(400'000, 'p')).status.ok());
  }
  REQUIRE(fs::exists(root + "/lanes/0/data-0001.seg"));
  fs::remove(root + "/lanes/0/data-0001.seg");
  fs::resize_file(root + "/lanes/0/data-0000.seg", 500'000);
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
  fs::resize_file(directory / "store/lanes/0/data-0000.seg", 5000);
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
  const std::vector<std::string> foreign = {root + "/lanes/0/notes.txt", root + "/lanes/0/journal-1.log",
                                            root + "/lanes/0/journal-00001.log"};
  for (const std::string& path : foreign) Spill(path, "not ours");
  Spill(root + "/README", "not ours");
  const Store store = Open(root);
  CHECK(store->stats().foreign_entries == foreign.size());
  CHECK(Listed(*store) == 1);
  for (const std::string& path : foreign) CHECK(Slurp(path) == "not ours");
}

// ---- Who may open it -----------------------------------------------------------------------------------------------

TEST_CASE("a directory has one writer, by whatever path, and readers beside it") {
  TempDir directory;
  const std::string root = directory / "store";
  const std::string alias = directory / "alias";
  const Store store = Open(root);
  fs::create_directory_symlink(root, alias);
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  for (const std::string& path : {root, alias, root + "/"}) {
    CAPTURE(path);
    const auto second = storage::SegmentStorage::Open(Options(path));
    CHECK(CodeOf(second.status()) == Code::kLocked);
    CHECK(std::string(second.status().message()).find("this process") != std::string::npos);
  }
  // A reader sees what was durable when it opened.
  REQUIRE(store->Sync().ok());
  REQUIRE(PutNow(*store, KeyOf(2), "two").status.ok());
  const Store reader = OpenReadOnly(alias);
  CHECK(ReadNow(*reader, KeyOf(1)).value() == "one");
  CHECK(CodeOf(ReadNow(*reader, KeyOf(2)).status()) == Code::kNotFound);
  REQUIRE(reader->Close(kForever).ok());
  // All those openings and closings here have not dropped the lock that keeps other processes out.
  CHECK(InChild([&] {
          const auto other = storage::SegmentStorage::Open(Options(root));
          const bool told = std::string(other.status().message()).find("another process") != std::string::npos;
          return CodeOf(other.status()) == Code::kLocked && told ? 0 : 1;
        }) == 0);
  REQUIRE(store->Close(kForever).ok());
  const Store next = Open(root);
  CHECK(Listed(*next) == 2);
}

TEST_CASE("a forked child is told so and changes nothing for its parent") {
  TempDir directory;
  const std::string root = directory / "store";
  Store store = Open(root);
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  CHECK(InChild([&] {
          Completions completions(1);
          const storage::Request request = {storage::Get{KeyOf(1), 0, {}}, completions.Of(0)};
          storage::ListPage page;
          const std::vector<absl::Status> statuses = {store->Submit({&request, 1}), store->Stat(KeyOf(1)).status(),
                                                      store->Remove(KeyOf(1)),      store->Sync(),
                                                      store->List({}, 1, &page),    store->Close(kForever)};
          for (const absl::Status& status : statuses) {
            if (CodeOf(status) != Code::kForked) return 1;
          }
          store.reset();
          return 0;
        }) == 0);
  CHECK(ReadNow(*store, KeyOf(1)).value() == "one");
  CHECK(InChild([&] {
          return CodeOf(storage::SegmentStorage::Open(Options(root)).status()) == Code::kLocked ? 0 : 1;
        }) == 0);
}

TEST_CASE("a directory that may not be written to opens for reading only, and says why") {
  TempDir directory;
  const std::string root = directory / "store";
  { REQUIRE(PutNow(*Open(root), KeyOf(1), "one").status.ok()); }
  FaultyOs os;
  // As a read-only file system answers.
  os.FailWhere(
      [](OsCall call, const char* path) {
        return call == OsCall::kMakeFolder || (call == OsCall::kOpen && std::string(path) == "kvstrata.lock");
      },
      EROFS);
  storage::SegmentOptions options = Options(root);
  options.os = &os;
  const auto writer = storage::SegmentStorage::Open(options);
  CHECK(CodeOf(writer.status()) == Code::kReadOnly);
  CHECK(base::NativeCodeOf(writer.status()) == EROFS);
  CHECK(std::string(writer.status().message()).find(root) != std::string::npos);
  options.read_only = true;
  const Store reader = Open(options);
  CHECK(ReadNow(*reader, KeyOf(1)).value() == "one");
}

TEST_CASE("a folder of mode 0555 is read-only with its errno") {
  if (geteuid() == 0) {
    std::cout << "skipped: modes do not bind root\n";
    return;
  }
  TempDir directory;
  const std::string root = directory / "store";
  fs::create_directory(root);
  REQUIRE(chmod(root.c_str(), 0555) == 0);
  const auto writer = storage::SegmentStorage::Open(Options(root));
  CHECK(CodeOf(writer.status()) == Code::kReadOnly);
  CHECK(base::NativeCodeOf(writer.status()) == EACCES);
}

TEST_CASE("missing folders above the directory are made, are the owner's alone, and are flushed") {
  TempDir directory;
  FaultyOs os;
  std::set<std::string> flushed;
  os.FailWhere(
      [&](OsCall call, const char* path) {
        if (call == OsCall::kOpen) flushed.insert(path);
        return false;
      },
      EIO);
  storage::SegmentOptions options = Options(directory / "a/b/store");
  options.os = &os;
  const Store store = Open(options);
  const std::set<std::string> opened = flushed;
  for (const char* made : {"a", "a/b", "a/b/store"}) CHECK(ModeOf(directory / made) == 0700);
  for (const char* above : {"..", "../..", "../../.."}) CHECK(opened.count(above) == 1);  // relative to the store
  CHECK(opened.count("../../../..") == 0);
}

TEST_CASE("a directory that cannot be made says why, with the folder and the errno at fault") {
  TempDir directory;
  Spill(directory / "file", "");
  const auto failure = [](const storage::SegmentOptions& options) {
    const absl::Status status = storage::SegmentStorage::Open(options).status();
    return std::tuple(CodeOf(status), base::NativeCodeOf(status), std::string(status.message()));
  };
  for (const char* below : {"file/store", "file/deep/store"}) {
    const auto [code, error, message] = failure(Options(directory / below));
    CHECK(code == Code::kIo);
    CHECK(error == ENOTDIR);
    CHECK(message.find(directory / "file") != std::string::npos);
  }
  // Nothing can be made in a folder, be it the last one or one further up.
  for (const int refusal : {EACCES, EROFS, ENOSPC, ENOENT}) {
    for (const char* path : {"store", "deep/store", "deep/down/store"}) {
      CAPTURE(refusal, path);
      FaultyOs os;
      os.FailWhere(
          [&](OsCall call, const char* made) {
            return call == OsCall::kMakeFolder && std::string(made).find(directory.path()) == 0 &&
                   std::string(made) != directory.path();
          },
          refusal);
      // Those further down are then missing for another reason than the first.
      storage::SegmentOptions options = Options(directory / path);
      options.os = &os;
      const auto [code, error, message] = failure(options);
      CHECK(code == (refusal == ENOSPC ? Code::kNoSpace : refusal == ENOENT ? Code::kIo : Code::kReadOnly));
      CHECK(error == refusal);
    }
  }
  CHECK(FilesIn(directory.path()) == 1);
  fs::create_symlink(directory / "nowhere", directory / "link");
  for (const char* path : {"link", "link/store"}) {
    const auto [code, error, message] = failure(Options(directory / path));
    CHECK(code == Code::kIo);
    CHECK(error == ENOENT);
  }
}

TEST_CASE("below a folder that may not be written to, the folder that could not be made is named") {
  TempDir directory;
  const std::string above = directory / "above";
  fs::create_directory(above);
  FaultyOs os;
  os.FailWhere([&](OsCall call, const char* made) { return call == OsCall::kMakeFolder && above + "/deep" == made; },
               EACCES);
  storage::SegmentOptions options = Options(above + "/deep/store");
  options.os = &os;
  const absl::Status refused = storage::SegmentStorage::Open(options).status();
  CHECK(CodeOf(refused) == Code::kReadOnly);
  CHECK(base::NativeCodeOf(refused) == EACCES);
  CHECK(std::string(refused.message()).find(above + "/deep:") != std::string::npos);
  if (geteuid() == 0) {
    std::cout << "skipped: modes do not bind root\n";
    return;
  }
  REQUIRE(chmod(above.c_str(), 0555) == 0);
  const absl::Status status = storage::SegmentStorage::Open(Options(above + "/deep/store")).status();
  CHECK(CodeOf(status) == Code::kReadOnly);
  CHECK(base::NativeCodeOf(status) == EACCES);
}

TEST_CASE("a reader changes nothing") {
  TempDir directory;
  const std::string root = directory / "store";
  storage::SegmentOptions options = Options(root);
  options.read_only = true;
  CHECK(CodeOf(storage::SegmentStorage::Open(options).status()) == Code::kNotFound);
  CHECK_FALSE(fs::exists(root));
  fs::create_directory(root);
  const Store reader = Open(options);
  CHECK(FilesIn(root) == 0);
  CHECK(Listed(*reader) == 0);
  CHECK(reader->capabilities().read_only);
  CHECK(CodeOf(PutNow(*reader, KeyOf(1), "p").status) == Code::kReadOnly);
  CHECK(CodeOf(reader->Remove(KeyOf(1))) == Code::kReadOnly);
  CHECK(reader->Sync().ok());
}

TEST_CASE("options out of range are named") {
  TempDir directory;
  storage::SegmentOptions options = Options(directory / "store");
  options.io_threads = 0;
  CHECK(base::FieldOf(storage::SegmentStorage::Open(options).status()) == "io_threads");
  options.io_threads = 65;
  CHECK(base::FieldOf(storage::SegmentStorage::Open(options).status()) == "io_threads");
  options = Options(directory / "store");
  options.max_requests = 0;
  CHECK(base::FieldOf(storage::SegmentStorage::Open(options).status()) == "max_requests");
  options = Options(directory / "store");
  options.capacity_bytes = 0;
  CHECK(base::FieldOf(storage::SegmentStorage::Open(options).status()) == "capacity_bytes");
  options = Options(directory / "store");
  options.segment_bytes = 4095;
  CHECK(base::FieldOf(storage::SegmentStorage::Open(options).status()) == "segment_bytes");
  CHECK(base::FieldOf(storage::SegmentStorage::Open(Options("")).status()) == "path");
  Spill(directory / "file", "");
  CHECK(base::NativeCodeOf(storage::SegmentStorage::Open(Options(directory / "file")).status()) == ENOTDIR);
  CHECK(base::NativeCodeOf(storage::SegmentStorage::Open(Options(directory / "file/below")).status()) == ENOTDIR);
}

// ---- Full disks and flushes ----------------------------------------------------------------------------------------

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

// ---- A guest on the machine ----------------------------------------------------------------------------------------

namespace {

// A completion that waits until it is let go, so that a request stays unfinished.
struct Latch {
  base::Mutex mutex;
  base::CondVar changed;
  bool entered = false;
  bool open = false;
  std::string thread_name;
  sigset_t mask{};

  storage::Completion completion() { return {&Latch::Hold, this}; }
  static void Hold(void* user, const storage::Result&) {
    Latch& latch = *static_cast<Latch*>(user);
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    base::MutexLock lock(latch.mutex);
    latch.thread_name = name;
    pthread_sigmask(SIG_BLOCK, nullptr, &latch.mask);
    latch.entered = true;
    latch.changed.NotifyAll();
    while (!latch.open) latch.changed.Wait(latch.mutex);
  }
  void WaitUntilEntered() {
    base::MutexLock lock(mutex);
    while (!entered) changed.Wait(mutex);
  }
  void Open() {
    base::MutexLock lock(mutex);
    open = true;
    changed.NotifyAll();
  }
};

}  // namespace

TEST_CASE("accepted requests are bounded, a close that waits too long says so") {
  TempDir directory;
  storage::SegmentOptions options = Options(directory / "store");
  options.io_threads = 1;
  options.max_requests = 3;
  const Store store = Open(options);
  Latch latch;
  Completions completions(2);
  const storage::Request held = {storage::Put{KeyOf(0), {}, {}}, latch.completion()};
  const std::vector<storage::Request> two = {{storage::Put{KeyOf(1), {}, {}}, completions.Of(0)},
                                             {storage::Put{KeyOf(2), {}, {}}, completions.Of(1)}};
  const std::vector<storage::Request> four(4, two[0]);
  REQUIRE(store->Submit({&held, 1}).ok());
  latch.WaitUntilEntered();
  CHECK(CodeOf(store->Submit(four)) == Code::kTooLarge);
  REQUIRE(store->Submit(two).ok());
  CHECK(CodeOf(store->Submit({&two[0], 1})) == Code::kBusy);
  CHECK(CodeOf(store->Close(std::chrono::milliseconds(1))) == Code::kTimeout);
  CHECK(CodeOf(store->Submit({&two[0], 1})) == Code::kInvalidState);
  latch.Open();
  CHECK(store->Close(kForever).ok());
  CHECK(completions.Counts() == std::pair(1, 1));
  const Store again = Open(options);
  CHECK(Listed(*again) == 3);
}

TEST_CASE("threads are named and take no signal, the opener's mask stays") {
  TempDir directory;
  sigset_t before{};
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  const Store store = Open(directory / "store");
  sigset_t after{};
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1})
    CHECK(sigismember(&before, signal) == sigismember(&after, signal));
  Latch latch;
  const storage::Request request = {storage::Put{KeyOf(0), {}, {}}, latch.completion()};
  REQUIRE(store->Submit({&request, 1}).ok());
  latch.WaitUntilEntered();
  CHECK(latch.thread_name.substr(0, 11) == "kvstrata-io");
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) CHECK(sigismember(&latch.mask, signal) == 1);
  latch.Open();
}

TEST_CASE("64 descriptors are enough, and running out of them is an error") {
  TempDir directory(TempDir::Place::kMemory);
  CHECK(InChild([&] {
          rlimit limit{64, 64};
          if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
          storage::SegmentOptions options = Options(directory / "store");
          options.io_threads = 8;
          auto opened = storage::SegmentStorage::Open(options);
          if (!opened.ok()) return 2;
          storage::Storage& store = **opened;
          std::atomic<int> wrong{0};
          std::vector<std::thread> threads;
          for (uint64_t thread = 0; thread < 8; ++thread) {
            threads.emplace_back([&, thread] {
              for (uint64_t i = 0; i < 20; ++i) {
                if (!PutNow(store, KeyOf(thread * 100 + i), "payload").status.ok()) ++wrong;
                if (!ReadNow(store, KeyOf(thread * 100 + i)).ok()) ++wrong;
              }
            });
          }
          for (std::thread& thread : threads) thread.join();
          if (wrong != 0 || !store.Sync().ok()) return 3;
          // Somebody else takes all that are left.
          std::vector<int> taken;
          for (int fd = dup(0); fd >= 0; fd = dup(0)) taken.push_back(fd);
          // What is open is enough for everything but a new segment.
          if (ReadNow(store, KeyOf(1)).value_or("") != "payload") return 4;
          if (!PutNow(store, KeyOf(1), "new").status.ok() || !store.Sync().ok()) return 5;
          storage::ListPage page;
          if (!store.List({}, 10, &page).ok()) return 6;
          const std::string large(1 << 20, 'l');
          const storage::Result put = PutNow(store, KeyOf(2), large);
          if (base::NativeCodeOf(put.status) != EMFILE) return 7;
          for (const int fd : taken) close(fd);
          if (!PutNow(store, KeyOf(2), large).status.ok()) return 8;
          if (ReadNow(store, KeyOf(1)).value_or("") != "new") return 9;
          return store.Close(kForever).ok() ? 0 : 10;
        }) == 0);
}
