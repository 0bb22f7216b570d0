// SPDX-License-Identifier: Apache-2.0
// A disk in memory behind the seam to the operating system, on which a process can be stopped at any call and the power
// can be lost: then of what was not flushed any 512-byte sector may be old, new or rubbish, and any name may be there
// or not, as a seed decides. A flush of a file says nothing about its name: that is the folder's.
//
// Thread rule: the calls of Os on any thread at once; everything else while none runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/random.h"
#include "lib/storage/os.h"

namespace kvstrata::test {

class SimDisk final : public core::storage::Os {
 public:
  SimDisk();

  // The `nth` changing call from now on (1 is the next one) is carried out in part, if it is a write, or not at all;
  // it and every later call of any kind fail. The process has stopped there.
  void StopAt(uint64_t nth, uint64_t seed);
  bool stopped();
  // The kind of file that it stopped in: its name without folder and digits, or "folder".
  std::string stopped_in();
  // The `nth` changing call from now on is carried out in part, if it is a write, or not at all, and fails; those after
  // it work. As if it had been of another process that was killed there. 0: none.
  void FailAt(uint64_t nth, uint64_t seed);
  bool failed();
  // Changing calls so far.
  uint64_t changes();
  // A new process: every descriptor is closed and calls work again. What was written is there, flushed or not.
  void Restart();
  // Restart after the power was lost.
  void LosePower(uint64_t seed);

  // For tests that damage a file: its bytes as they are. Null when there is none.
  std::vector<std::byte>* BytesOf(const std::string& path);
  std::vector<std::string> Files();

  int OpenAt(int directory, const char* path, int flags, mode_t mode) override;
  int Close(int fd) override;
  int64_t Pread(int fd, core::base::MutableBytes to, uint64_t offset) override;
  int64_t Pwritev(int fd, std::span<const iovec> from, uint64_t offset) override;
  int Fsync(int fd) override;
  int Fdatasync(int fd) override { return Fsync(fd); }
  int Allocate(int fd, uint64_t offset, uint64_t bytes) override;
  int Truncate(int fd, uint64_t bytes) override;
  int SetDirect(int, bool) override { return 0; }
  int Fstat(int fd, struct stat* out) override;
  int StatAt(int directory, const char* path, struct stat* out) override;
  int Fchmod(int fd, mode_t mode) override;
  int MkdirAt(int directory, const char* path, mode_t mode) override;
  int ChmodAt(int directory, const char* path, mode_t mode) override;
  int RenameAt(int directory, const char* from, const char* to) override;
  int UnlinkAt(int directory, const char* path) override;
  int ReadDirectory(int directory, const char* path, absl::FunctionRef<void(std::string_view)> visit) override;
  int LockFile(int fd) override;
  int64_t BlockBytes(int fd) override;

 private:
  static constexpr uint64_t kSector = 512;

  struct Inode {
    uint64_t number = 0;
    bool folder = false;
    std::vector<std::byte> now;
    std::vector<std::byte> durable;
  };
  using File = std::shared_ptr<Inode>;
  struct Open {
    File file;
    std::string path;
  };

  std::string PathOf(int directory, const char* path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  File Find(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  File Make(const std::string& path, bool folder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A call that changes `path`. False when it is not to be done; `*part` is then set for the one that stops or fails.
  bool Enter(const std::string& path, bool* part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void LoseSectors(Inode& file, core::base::SeededRandom& random);
  int Stat(const File& file, struct stat* out);

  core::base::Mutex mutex_;
  std::map<std::string, File> names_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, File> durable_names_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Open> open_ ABSL_GUARDED_BY(mutex_);
  int next_fd_ ABSL_GUARDED_BY(mutex_) = 1000;
  uint64_t next_inode_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t stop_at_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t fail_at_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  std::string stopped_in_ ABSL_GUARDED_BY(mutex_);
  core::base::SeededRandom stop_random_ ABSL_GUARDED_BY(mutex_){0};
};

}  // namespace kvstrata::test
