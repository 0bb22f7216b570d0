// SPDX-License-Identifier: Apache-2.0
// The segment backend: who may open a directory, and what an open makes and says.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace fs = std::filesystem;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::FaultyOs;
using kvstrata::test::KeyOf;
using kvstrata::test::OsCall;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::FilesIn;
using kvstrata::test::segment::InChild;
using kvstrata::test::segment::kForever;
using kvstrata::test::segment::Listed;
using kvstrata::test::segment::ModeOf;
using kvstrata::test::segment::Open;
using kvstrata::test::segment::OpenReadOnly;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Spill;
using kvstrata::test::segment::Store;

namespace {

// Counts what is read of segments, and of everything else.
class ReadingOs final : public FaultyOs {
 public:
  int OpenAt(int directory, const char* path, int flags, mode_t mode) override {
    const int fd = FaultyOs::OpenAt(directory, path, flags, mode);
    const base::MutexLock lock(mutex_);
    if (fd >= 0) segments_[fd] = std::string_view(path).find("data-") != std::string_view::npos;
    return fd;
  }
  int64_t Pread(int fd, base::MutableBytes to, uint64_t offset) override {
    return Count(fd, FaultyOs::Pread(fd, to, offset));
  }
  int64_t Preadv(int fd, std::span<const iovec> to, uint64_t offset) override {
    return Count(fd, FaultyOs::Preadv(fd, to, offset));
  }
  uint64_t of_segments() const { return of_segments_; }
  uint64_t of_others() const { return of_others_; }

 private:
  int64_t Count(int fd, int64_t bytes) {
    const base::MutexLock lock(mutex_);
    if (bytes > 0) (segments_[fd] ? of_segments_ : of_others_) += static_cast<uint64_t>(bytes);
    return bytes;
  }

  base::Mutex mutex_;
  std::map<int, bool> segments_;
  std::atomic<uint64_t> of_segments_{0};
  std::atomic<uint64_t> of_others_{0};
};

}  // namespace

TEST_CASE("R02: an open and a listing read the logs, and no payload") {
  TempDir directory;
  const std::string root = directory / "store";
  constexpr uint64_t kRecords = 300;
  const std::string payload(20'000, 'p');
  {
    const Store store = Open(root);
    for (uint64_t i = 0; i < kRecords; ++i) {
      REQUIRE(PutNow(*store, KeyOf(i), payload, std::string(100, 'm')).status.ok());
      // A checkpoint and several journals, not one journal alone.
      if (i % 50 == 49) REQUIRE(store->Sync().ok());
    }
    REQUIRE(store->Close(kForever).ok());
  }
  ReadingOs os;
  storage::SegmentOptions options = Options(root);
  options.os = &os;
  {
    const Store store = Open(options);
    CHECK(Listed(*store) == kRecords);
    CHECK(os.of_segments() == 0);
    CHECK(os.of_others() > kRecords * 100);
    CHECK(ReadNow(*store, KeyOf(7)).value() == payload);
    CHECK(os.of_segments() >= payload.size());
  }
}

TEST_CASE("R02: a long log is read once for an open and a listing, and in pieces where it cannot be read at once") {
  TempDir directory;
  const std::string root = directory / "store";
  // More than what is read without a thread.
  constexpr uint64_t kRecords = 1200;
  const auto meta_of = [](uint64_t i) { return std::string(4000, 'm') + std::to_string(i); };
  {
    const Store store = Open(root);
    for (uint64_t i = 0; i < kRecords; ++i) REQUIRE(PutNow(*store, KeyOf(i), "", meta_of(i)).status.ok());
    REQUIRE(store->Close(kForever).ok());
  }
  enum class Fault { kNone, kNeverDirect, kDirectRefusedLater, kReadFailsOnce };
  const Fault fault = GENERATE(Fault::kNone, Fault::kNeverDirect, Fault::kDirectRefusedLater, Fault::kReadFailsOnce);
  CAPTURE(fault);
  ReadingOs os;
  std::atomic<int> reads{0};
  os.FailWhere(
      [&](OsCall call, const char*) {
        if (fault == Fault::kNeverDirect) return call == OsCall::kSetDirect;
        // Of the superblock and of the header there are three.
        return fault > Fault::kNeverDirect && call == OsCall::kRead && ++reads == 6;
      },
      fault == Fault::kReadFailsOnce ? EIO : EINVAL);
  storage::SegmentOptions options = Options(root);
  options.os = &os;
  options.read_only = GENERATE(false, true);
  const Store store = Open(options);
  std::set<std::string> found;
  uint64_t skipped = 0;
  const auto visit = [&](const storage::RecordView& record) { found.emplace(base::AsText(record.meta)); };
  REQUIRE(store->Visit(visit, &skipped).ok());
  CHECK(skipped == 0);
  REQUIRE(found.size() == kRecords);
  for (uint64_t i = 0; i < kRecords; ++i) CHECK(found.contains(meta_of(i)));
  const uint64_t log_bytes = kRecords * 4100;
  if (fault == Fault::kNone && !options.read_only) CHECK(os.of_others() < log_bytes * 3 / 2);
  // And from the file again.
  CHECK(Listed(*store) == kRecords);
}

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
