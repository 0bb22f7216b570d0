// SPDX-License-Identifier: Apache-2.0
// The file backend: what is on the disk, what of it is believed when it comes back, and how it shares the machine.
#include "lib/storage/file.h"

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
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/format/file_record.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
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

using Store = std::unique_ptr<storage::FileStorage>;

storage::FileOptions Options(const std::string& path) {
  storage::FileOptions options;
  options.path = path;
  return options;
}

Store Open(const storage::FileOptions& options) {
  auto opened = storage::FileStorage::Open(options);
  INFO(opened.status().ToString().c_str());
  REQUIRE(opened.ok());
  return std::move(*opened);
}

Store Open(const std::string& path) { return Open(Options(path)); }

Store OpenReadOnly(const std::string& path) {
  storage::FileOptions options = Options(path);
  options.read_only = true;
  return Open(options);
}

// As FORMAT.md says, not as the code does.
std::string FileOf(const std::string& root, const storage::Key& key) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  unsigned sum = 0;
  for (const std::byte byte : key.bytes) {
    const unsigned value = std::to_integer<unsigned>(byte);
    sum ^= value;
    name += kDigits[value / 16];
    name += kDigits[value % 16];
  }
  return root + "/records/" + kDigits[sum % 16] + "/" + name + ".rec";
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

TEST_CASE("the directory never takes more than the store says") {
  TempDir directory;
  const Store store = Open(directory / "store");
  for (uint64_t i = 0; i < 200; ++i) {
    REQUIRE(PutNow(*store, KeyOf(i), std::string(i * 37, 'p'), std::string(i % 100, 'm')).status.ok());
  }
  REQUIRE(store->Sync().ok());  // delayed allocation shows in the block counts only then
  uint64_t taken = 0;
  struct stat info {};
  for (const auto& entry : fs::recursive_directory_iterator(directory / "store")) {
    REQUIRE(lstat(entry.path().c_str(), &info) == 0);
    taken += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  REQUIRE(lstat((directory / "store").c_str(), &info) == 0);
  taken += static_cast<uint64_t>(info.st_blocks) * 512;
  CHECK(taken <= store->UsedBytes());
}

TEST_CASE("opening reads no payload") {
  TempDir directory;
  { REQUIRE(PutNow(*Open(directory / "store"), KeyOf(1), std::string(1 << 20, 'p'), "meta").status.ok()); }
  FaultyOs os;
  os.LimitTransfers(1);  // so that the number of reads is the number of bytes read
  storage::FileOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  CHECK(os.calls(OsCall::kRead) == 96 + 4);
}

TEST_CASE("E03: what is free is what the file system says, and unknown when it says nothing") {
  TempDir directory;
  FaultyOs os;
  storage::FileOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  // Not compared with a second reading: others write to the same file system.
  CHECK(store->FreeBytes().value_or(0) > 0);
  os.ReportFree([] { return int64_t{123'456}; });
  CHECK(store->FreeBytes() == uint64_t{123'456});
  os.ReportFree([] { return int64_t{-EIO}; });
  CHECK_FALSE(store->FreeBytes().has_value());
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
    CHECK(ModeOf(directory / "a") == 0700);
    CHECK(ModeOf(directory / "a/store") == 0700);
    CHECK(ModeOf(directory / "a/store/kvstrata.lock") == 0600);
    CHECK(ModeOf(directory / "a/store/staging") == 0700);
    CHECK(ModeOf(directory / "a/store/records") == 0700);
    CHECK(ModeOf(directory / "a/store/records/0") == 0700);
    CHECK(ModeOf(FileOf(directory / "a/store", KeyOf(1))) == 0600);
  }
}

TEST_CASE("sizes and offsets beyond 32 bits are right") {
  TempDir directory;
  const std::string root = directory / "store";
  Open(root)->Close(kForever).IgnoreError();
  constexpr uint64_t kPayload = 5ull << 30;
  constexpr uint64_t kPlace = (1ull << 32) + 12345;
  format::FileRecordHeader header;
  header.key = KeyOf(1).bytes;
  header.payload_bytes = kPayload;
  const auto bytes = format::EncodeFileRecordHeader(header);
  const int fd = open(FileOf(root, KeyOf(1)).c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(fd >= 0);
  REQUIRE(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  REQUIRE(ftruncate(fd, static_cast<off_t>(bytes.size() + kPayload)) == 0);  // a hole: takes no space
  REQUIRE(pwrite(fd, "there", 5, static_cast<off_t>(bytes.size() + kPlace)) == 5);
  close(fd);

  header.meta_checksum = 0;  // of no bytes it is not 0: a listing passes over this record, a range read does not care
  const Store store = OpenReadOnly(root);
  CHECK(store->Stat(KeyOf(1)).value() == kPayload);
  std::string room(7, '#');
  REQUIRE(GetNow(*store, KeyOf(1), kPlace - 1, std::as_writable_bytes(std::span(room))).status.ok());
  CHECK(room == std::string("\0there\0", 7));
  CHECK(CodeOf(GetNow(*store, KeyOf(1), kPayload - 6, std::as_writable_bytes(std::span(room))).status) ==
        Code::kCorrupt);
}

// ---- What is not believed ------------------------------------------------------------------------------------------

TEST_CASE("a record cut short anywhere is a miss, and gone at the next opening") {
  TempDir directory;
  const std::string root = directory / "store";
  const std::string payload(3000, 'p');
  const std::string meta(40, 'm');
  const uint64_t seed = 20250103;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  // Every length through header and meta, then some within the payload; key i stands for length lengths[i].
  std::vector<uint64_t> lengths;
  for (uint64_t length = 0; length <= 96 + meta.size(); ++length) lengths.push_back(length);
  for (int i = 0; i < 40; ++i) lengths.push_back(96 + meta.size() + random.Below(payload.size()));
  uint64_t empty = 0;
  {
    const Store store = Open(root);
    empty = store->UsedBytes();
    for (uint64_t i = 0; i < lengths.size(); ++i) REQUIRE(PutNow(*store, KeyOf(i), payload, meta).status.ok());
    for (uint64_t i = 0; i < lengths.size(); ++i) fs::resize_file(FileOf(root, KeyOf(i)), lengths[i]);
    std::string room(payload.size(), '#');
    for (uint64_t i = 0; i < lengths.size(); ++i) {
      CAPTURE(lengths[i]);
      CHECK(CodeOf(GetNow(*store, KeyOf(i), 0, std::as_writable_bytes(std::span(room))).status) == Code::kCorrupt);
      CHECK(CodeOf(GetNow(*store, KeyOf(i), 0, std::as_writable_bytes(std::span(room)).first(1)).status) ==
            Code::kCorrupt);
    }
    std::vector<storage::ListEntry> entries;
    uint64_t skipped = 0;
    REQUIRE(ListAll(*store, 10, &entries, &skipped).ok());
    CHECK(entries.empty());
    CHECK(skipped == lengths.size());
  }
  const Store store = Open(root);
  CHECK(store->stats().removed_at_open == lengths.size());
  CHECK(store->UsedBytes() == empty);
  CHECK_FALSE(fs::exists(FileOf(root, KeyOf(0))));
}

TEST_CASE("no flipped bit is ever delivered") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  const Store store = Open(root);
  const std::string payload = "some payload bytes";
  const std::string meta = "meta";
  REQUIRE(PutNow(*store, KeyOf(1), payload, meta).status.ok());
  const std::string file = FileOf(root, KeyOf(1));
  const std::string good = Slurp(file);
  REQUIRE(good.size() == 96 + meta.size() + payload.size());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    CAPTURE(bit / 8, bit % 8);
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    Spill(file, bad);
    const bool in_meta = bit / 8 >= 96 && bit / 8 < 96 + meta.size();
    const bool in_payload = bit / 8 >= 96 + meta.size();
    std::string room(payload.size(), '#');
    const storage::Result got = GetNow(*store, KeyOf(1), 0, std::as_writable_bytes(std::span(room)));
    REQUIRE(got.status.ok() == in_meta);
    if (in_meta) REQUIRE(room == payload);
    std::vector<storage::ListEntry> entries;
    REQUIRE(ListAll(*store, 10, &entries).ok());
    REQUIRE(entries.size() == (in_payload ? 1 : 0));
  }
  CHECK(store->stats().corrupt_records > 0);
}

TEST_CASE("a record under another key's name is a miss") {
  TempDir directory;
  const std::string root = directory / "store";
  {
    const Store store = Open(root);
    REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
    fs::copy_file(FileOf(root, KeyOf(1)), FileOf(root, KeyOf(2)));
    CHECK_FALSE(store->Stat(KeyOf(2)).value().has_value());
    CHECK(CodeOf(GetNow(*store, KeyOf(2), 0, {}).status) == Code::kNotFound);
    CHECK(Listed(*store) == 1);
  }
  const Store store = Open(root);
  CHECK(Listed(*store) == 1);
  CHECK(ReadNow(*store, KeyOf(1)).value() == "one");
  CHECK_FALSE(fs::exists(FileOf(root, KeyOf(2))));
}

TEST_CASE("an older writing's payload behind a newer header is found out") {
  TempDir directory;
  const std::string root = directory / "store";
  const Store store = Open(root);
  REQUIRE(PutNow(*store, KeyOf(1), "same bytes", "same meta").status.ok());
  const std::string older = Slurp(FileOf(root, KeyOf(1)));
  REQUIRE(PutNow(*store, KeyOf(1), "same bytes", "same meta").status.ok());
  const std::string newer = Slurp(FileOf(root, KeyOf(1)));
  REQUIRE(older.size() == newer.size());
  // The stored checksums of the two writings differ though the bytes are equal.
  CHECK(older.substr(72, 16) != newer.substr(72, 16));
  Spill(FileOf(root, KeyOf(1)), newer.substr(0, 72) + older.substr(72, 16) + newer.substr(88));
  CHECK(CodeOf(ReadNow(*store, KeyOf(1)).status()) == Code::kCorrupt);
}

TEST_CASE("what is not ours is skipped, counted and left alone") {
  TempDir directory;
  const std::string root = directory / "store";
  {
    const Store store = Open(root);
    REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  }
  const std::string hex(64, '0');
  // A folder, a pipe and a link where a record's file would be; other names; a record in the wrong folder.
  const std::vector<std::string> foreign = {FileOf(root, KeyOf(2)),       FileOf(root, KeyOf(3)),
                                            FileOf(root, KeyOf(4)),       root + "/records/0/notes.txt",
                                            root + "/records/1/" + hex,   root + "/records/2/" + hex + ".rec",
                                            root + "/staging/put-x.part", root + "/records/3/" + hex + ".REC"};
  fs::create_directory(foreign[0]);
  REQUIRE(mkfifo(foreign[1].c_str(), 0600) == 0);
  fs::create_symlink(FileOf(root, KeyOf(1)), foreign[2]);
  for (size_t i = 3; i < foreign.size(); ++i) Spill(foreign[i], "not ours");
  Spill(root + "/README", "not ours");

  const Store store = Open(root);
  CHECK(store->stats().foreign_entries == foreign.size());
  CHECK(store->stats().removed_at_open == 0);
  CHECK(Listed(*store) == 1);
  for (const uint64_t key : {2u, 3u, 4u}) CHECK(CodeOf(GetNow(*store, KeyOf(key), 0, {}).status) == Code::kNotFound);
  for (const std::string& path : foreign) CHECK(fs::symlink_status(path).type() != fs::file_type::not_found);
}

TEST_CASE("files of unfinished puts are removed by a writer only") {
  TempDir directory;
  const std::string root = directory / "store";
  Open(root)->Close(kForever).IgnoreError();
  Spill(root + "/staging/put-0123456789abcdef-0000000000000001", "half a rec");
  OpenReadOnly(root)->Close(kForever).IgnoreError();
  CHECK(FilesIn(root + "/staging") == 1);
  const Store store = Open(root);
  CHECK(FilesIn(root + "/staging") == 0);
  CHECK(store->stats().removed_staging == 1);
}

TEST_CASE("a record of a later version is a miss and is kept") {
  TempDir directory;
  const std::string root = directory / "store";
  { REQUIRE(PutNow(*Open(root), KeyOf(1), "one").status.ok()); }
  std::string bytes = Slurp(FileOf(root, KeyOf(1)));
  bytes[8] = 2;
  Spill(FileOf(root, KeyOf(1)), bytes);
  const Store store = Open(root);
  CHECK(CodeOf(GetNow(*store, KeyOf(1), 0, {}).status) == Code::kFormatTooNew);
  CHECK(Listed(*store) == 0);
  CHECK(Slurp(FileOf(root, KeyOf(1))) == bytes);
}

TEST_CASE("a file cut short under a reader is an error, not a signal") {
  TempDir directory;
  FaultyOs os;
  storage::FileOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  const std::string payload(100000, 'p');
  REQUIRE(PutNow(*store, KeyOf(1), payload).status.ok());
  std::string room(payload.size(), '#');
  // Between the header's read and the payload's.
  std::atomic<int> reads{0};
  os.FailWhere(
      [&](OsCall call, const char*) {
        if (call == OsCall::kRead && ++reads == 2) fs::resize_file(FileOf(options.path, KeyOf(1)), 5000);
        return false;
      },
      0);
  CHECK(CodeOf(GetNow(*store, KeyOf(1), 0, std::as_writable_bytes(std::span(room))).status) == Code::kCorrupt);
  os.FailNothing();
}

TEST_CASE("a file that somebody deletes is a miss") {
  TempDir directory;
  const Store store = Open(directory / "store");
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  fs::remove(FileOf(directory / "store", KeyOf(1)));
  CHECK(CodeOf(GetNow(*store, KeyOf(1), 0, {}).status) == Code::kNotFound);
  CHECK(store->Remove(KeyOf(1)).ok());
  CHECK(store->Sync().ok());
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
    const auto second = storage::FileStorage::Open(Options(path));
    CHECK(CodeOf(second.status()) == Code::kLocked);
    CHECK(std::string(second.status().message()).find("this process") != std::string::npos);
  }
  const Store reader = OpenReadOnly(alias);
  CHECK(ReadNow(*reader, KeyOf(1)).value() == "one");
  REQUIRE(PutNow(*store, KeyOf(2), "two").status.ok());
  CHECK(ReadNow(*reader, KeyOf(2)).value() == "two");
  REQUIRE(reader->Close(kForever).ok());
  // All those openings and closings here have not dropped the lock that keeps other processes out.
  CHECK(InChild([&] {
          const auto other = storage::FileStorage::Open(Options(root));
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
  CHECK(InChild([&] { return CodeOf(storage::FileStorage::Open(Options(root)).status()) == Code::kLocked ? 0 : 1; }) ==
        0);
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
  storage::FileOptions options = Options(root);
  options.os = &os;
  const auto writer = storage::FileStorage::Open(options);
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
  const auto writer = storage::FileStorage::Open(Options(root));
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
  storage::FileOptions options = Options(directory / "a/b/store");
  options.os = &os;
  const Store store = Open(options);
  for (const char* made : {"a", "a/b", "a/b/store"}) CHECK(ModeOf(directory / made) == 0700);
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  flushed.clear();
  REQUIRE(store->Sync().ok());
  for (const char* above : {"..", "../..", "../../.."}) CHECK(flushed.count(above) == 1);  // relative to the store
  CHECK(flushed.count("../../../..") == 0);
}

TEST_CASE("a directory that cannot be made says why, with the folder and the errno at fault") {
  TempDir directory;
  Spill(directory / "file", "");
  const auto failure = [](const storage::FileOptions& options) {
    const absl::Status status = storage::FileStorage::Open(options).status();
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
      storage::FileOptions options = Options(directory / path);
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
  storage::FileOptions options = Options(above + "/deep/store");
  options.os = &os;
  const absl::Status refused = storage::FileStorage::Open(options).status();
  CHECK(CodeOf(refused) == Code::kReadOnly);
  CHECK(base::NativeCodeOf(refused) == EACCES);
  CHECK(std::string(refused.message()).find(above + "/deep:") != std::string::npos);
  if (geteuid() == 0) {
    std::cout << "skipped: modes do not bind root\n";
    return;
  }
  REQUIRE(chmod(above.c_str(), 0555) == 0);
  const absl::Status status = storage::FileStorage::Open(Options(above + "/deep/store")).status();
  CHECK(CodeOf(status) == Code::kReadOnly);
  CHECK(base::NativeCodeOf(status) == EACCES);
}

TEST_CASE("a reader changes nothing") {
  TempDir directory;
  const std::string root = directory / "store";
  storage::FileOptions options = Options(root);
  options.read_only = true;
  CHECK(CodeOf(storage::FileStorage::Open(options).status()) == Code::kNotFound);
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
  storage::FileOptions options = Options(directory / "store");
  options.io_threads = 0;
  CHECK(base::FieldOf(storage::FileStorage::Open(options).status()) == "io_threads");
  options.io_threads = 65;
  CHECK(base::FieldOf(storage::FileStorage::Open(options).status()) == "io_threads");
  options = Options(directory / "store");
  options.max_requests = 0;
  CHECK(base::FieldOf(storage::FileStorage::Open(options).status()) == "max_requests");
  CHECK(base::FieldOf(storage::FileStorage::Open(Options("")).status()) == "path");
  Spill(directory / "file", "");
  CHECK(base::NativeCodeOf(storage::FileStorage::Open(Options(directory / "file")).status()) == ENOTDIR);
  CHECK(base::NativeCodeOf(storage::FileStorage::Open(Options(directory / "file/below")).status()) == ENOTDIR);
}

// ---- Full disks and flushes ----------------------------------------------------------------------------------------

TEST_CASE("a full disk refuses the put, leaves nothing behind and keeps the older record") {
  TempDir directory;
  FaultyOs os;
  storage::FileOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  REQUIRE(PutNow(*store, KeyOf(1), "older").status.ok());
  const uint64_t used = store->UsedBytes();
  os.LimitTransfers(50);  // the disk fills up in the middle
  for (const uint64_t nth : {1u, 3u}) {
    CAPTURE(nth);
    std::atomic<uint64_t> writes{0};
    os.FailWhere([&](OsCall call, const char*) { return call == OsCall::kWrite && ++writes >= nth; }, ENOSPC);
    const storage::Result put = PutNow(*store, KeyOf(1), std::string(1000, 'n'));
    os.FailNothing();
    CHECK(CodeOf(put.status) == Code::kNoSpace);
    CHECK(base::NativeCodeOf(put.status) == ENOSPC);
    CHECK(store->UsedBytes() == used);
    CHECK(FilesIn(options.path + "/staging") == 0);
    CHECK(ReadNow(*store, KeyOf(1)).value() == "older");
  }
}

TEST_CASE("sync flushes what was put since the last one, and its folders, once") {
  TempDir directory;
  FaultyOs os;
  storage::FileOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  const auto flushes = [&] {
    const uint64_t before = os.calls(OsCall::kSync);
    REQUIRE(store->Sync().ok());
    return os.calls(OsCall::kSync) - before;
  };
  // The store's folder, and those in it that hold others, were made just now.
  CHECK(flushes() == 3);
  CHECK(flushes() == 0);
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  REQUIRE(PutNow(*store, KeyOf(1), "one again").status.ok());
  CHECK(flushes() == 2);
  CHECK(flushes() == 0);
  REQUIRE(store->Remove(KeyOf(1)).ok());
  CHECK(flushes() == 1);
  CHECK(flushes() == 0);
}

TEST_CASE("a record whose flush fails becomes a miss, and nothing is flushed again") {
  TempDir directory;
  FaultyOs os;
  storage::FileOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  const uint64_t empty = store->UsedBytes();
  REQUIRE(PutNow(*store, KeyOf(1), "durable").status.ok());
  REQUIRE(store->Sync().ok());
  REQUIRE(PutNow(*store, KeyOf(2), "lost").status.ok());
  // The first flush is the record's, the second its folder's.
  const int failing = GENERATE(1, 2);
  std::atomic<int> flushes{0};
  os.FailWhere([&](OsCall call, const char*) { return call == OsCall::kSync && ++flushes == failing; }, EIO);
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

TEST_CASE("once the store's own folders cannot be flushed, nothing is called durable any more") {
  TempDir directory;
  FaultyOs os;
  storage::FileOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  REQUIRE(PutNow(*store, KeyOf(1), "one").status.ok());
  os.FailWhere([](OsCall call, const char*) { return call == OsCall::kSync; }, EIO);
  CHECK(CodeOf(store->Sync()) == Code::kIo);
  os.FailNothing();
  CHECK(CodeOf(store->Sync()) == Code::kIo);
  CHECK_FALSE(store->Stat(KeyOf(1)).value().has_value());
}

TEST_CASE("what waits for a flush is bounded: a put past the bound flushes its own") {
  TempDir directory(TempDir::Place::kMemory);
  FaultyOs os;
  storage::FileOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  const uint64_t before = os.calls(OsCall::kSync);
  // All in one folder: the exclusive or of each key's bytes is 0.
  const auto key_of = [](uint64_t number) {
    storage::Key key;
    base::StoreLittleEndian(key.bytes.data(), number);
    base::StoreLittleEndian(key.bytes.data() + 8, number);
    return key;
  };
  for (uint64_t i = 0; i < 2050; ++i) REQUIRE(PutNow(*store, key_of(i), "").status.ok());
  CHECK(os.calls(OsCall::kSync) - before == 2);
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
  storage::FileOptions options = Options(directory / "store");
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
          storage::FileOptions options = Options(directory / "store");
          options.io_threads = 8;
          auto opened = storage::FileStorage::Open(options);
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
          const storage::Result get = GetNow(store, KeyOf(1), 0, {});
          if (CodeOf(get.status) != Code::kIo || base::NativeCodeOf(get.status) != EMFILE) return 4;
          if (base::NativeCodeOf(PutNow(store, KeyOf(1), "new").status) != EMFILE) return 5;
          storage::ListPage page;
          if (base::NativeCodeOf(store.List({}, 10, &page)) != EMFILE) return 6;
          for (const int fd : taken) close(fd);
          if (ReadNow(store, KeyOf(1)).value_or("") != "payload") return 7;
          return store.Close(kForever).ok() ? 0 : 8;
        }) == 0);
}
