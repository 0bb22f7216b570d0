// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/mark_file.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "lib/base/status.h"

namespace kvstrata::core::storage {
namespace {

using format::kMarkBytes;

constexpr char kMarkFile[] = "marks";
constexpr char kLockFile[] = "kvstrata.lock";
constexpr size_t kMarksRead = 64;
// What a loss of power may tear.
constexpr uint64_t kSectorBytes = 512;
// A change takes a few flushes: of a drive that is busy, a second at most.
constexpr std::chrono::seconds kLockPatience(10);
constexpr std::chrono::milliseconds kLockStep(1);

// Record locks never exclude their own process, and closing any descriptor of the file drops them (I1).
base::Mutex& ThisProcess() {
  static base::Mutex& mutex = *new base::Mutex();  // never destroyed: caches in statics of the caller may still use it
  return mutex;
}

absl::StatusOr<Descriptor> Lock(const Directory& directory) {
  Descriptor file(directory.os, directory.os.OpenAt(directory.root, kLockFile,
                                                    O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, kFileMode));
  if (!file.ok()) return WriteError(directory, "open", kLockFile, file.get());
  int result = directory.os.Fchmod(file.get(), kFileMode);
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (result >= 0 && (result = directory.os.LockFile(file.get())) == -EAGAIN) {
    if (std::chrono::steady_clock::now() > deadline) {
      return base::MakeStatus(base::Code::kTimeout, "marks", "another process keeps " + directory.path + " locked");
    }
    std::this_thread::sleep_for(kLockStep);
    result = 0;
  }
  if (result < 0) return WriteError(directory, "lock", kLockFile, result);
  return file;
}

}  // namespace

absl::StatusOr<std::vector<Mark>> MarkFile::TakeNew() {
  base::MutexLock lock(mutex_);
  if (absl::Status status = ReadOn(); !status.ok()) return status;
  return std::exchange(new_, {});
}

absl::StatusOr<MarkValue> MarkFile::Set(const Key& key, const MarkValue& value, bool replace) {
  base::MutexLock process(ThisProcess());
  const absl::StatusOr<Descriptor> held = Lock(directory_);
  if (!held.ok()) return held.status();
  base::MutexLock lock(mutex_);
  if (absl::Status status = ReadOn(); !status.ok()) return status;
  const auto found = values_.find(key);
  const bool stays = found != values_.end() && !replace;
  const MarkValue agreed = stays ? found->second : value;
  if (!stays) {
    if (absl::Status status = Append({key.bytes, value}); !status.ok()) return status;
    if (absl::Status status = ReadOn(); !status.ok()) return status;
  }
  if (absl::Status status = FlushRead(); !status.ok()) return status;
  return agreed;
}

absl::Status MarkFile::Flush() {
  base::MutexLock lock(mutex_);
  return FlushRead();
}

absl::Status MarkFile::FlushRead() {
  if (durable_end_ == end_) return absl::OkStatus();
  int result = directory_.os.Fsync(file_->get());
  if (result >= 0) result = directory_.os.Fsync(directory_.root);
  if (result < 0) return WriteError(directory_, "flush", kMarkFile, result);
  durable_end_ = end_;
  return absl::OkStatus();
}

absl::Status MarkFile::ReadOn() {
  if (!file_.has_value()) {
    Descriptor file(directory_.os,
                    directory_.os.OpenAt(directory_.root, kMarkFile, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0));
    if (file.get() == -ENOENT) return absl::OkStatus();
    if (!file.ok()) return ReadError(directory_, "open", kMarkFile, file.get());
    file_.emplace(std::move(file));
  }
  std::array<std::byte, kMarksRead * kMarkBytes> room;
  while (true) {
    const int64_t result = directory_.os.Pread(file_->get(), room, end_);
    if (result < 0) return ReadError(directory_, "read", kMarkFile, result);
    const size_t whole = static_cast<size_t>(result) / kMarkBytes;
    size_t read = 0;
    for (; read < whole; ++read) {
      const base::ByteView bytes = base::ByteView(room).subspan(read * kMarkBytes, kMarkBytes);
      const absl::StatusOr<format::Mark> mark = format::DecodeMark(bytes, end_ + read * kMarkBytes);
      if (base::CodeOf(mark.status()) == base::Code::kFormatTooNew) return mark.status();
      // The last one may be incomplete still; behind one that was cut off another begins.
      if (!mark.ok() && read + 1 == whole) break;
      if (!mark.ok()) continue;
      values_[Key{mark->key}] = mark->value;
      new_.push_back({Key{mark->key}, mark->value});
    }
    end_ += read * kMarkBytes;
    if (whole < kMarksRead) return absl::OkStatus();
  }
}

absl::Status MarkFile::Append(const format::Mark& mark) {
  Descriptor file(directory_.os, directory_.os.OpenAt(directory_.root, kMarkFile,
                                                      O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, kFileMode));
  if (!file.ok()) return WriteError(directory_, "open", kMarkFile, file.get());
  struct stat info {};
  int result = directory_.os.Fchmod(file.get(), kFileMode);
  if (result >= 0) result = directory_.os.Fstat(file.get(), &info);
  if (result < 0) return WriteError(directory_, "stat", kMarkFile, result);
  // Behind whatever a write that was cut off has left (I3).
  uint64_t offset = (static_cast<uint64_t>(info.st_size) + kSectorBytes - 1) / kSectorBytes * kSectorBytes;
  const auto bytes = format::EncodeMark(mark, offset);
  const base::ByteView piece = bytes;
  Gather gather({&piece, 1});
  return WritePieces(directory_, file.get(), kMarkFile, piece.size(), &gather, &offset);
}

}  // namespace kvstrata::core::storage
