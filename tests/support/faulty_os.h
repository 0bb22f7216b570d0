// SPDX-License-Identifier: Apache-2.0
// An operating system that fails when told to, transfers less than asked, and knows which descriptors are open.
//
// Thread rule: calls on any thread at once; the settings are changed while no call runs.
#pragma once

#include <atomic>
#include <functional>
#include <set>

#include "lib/base/mutex.h"
#include "lib/storage/os.h"

namespace kvstrata::test {

enum class OsCall {
  kOpen,
  kClose,
  kRead,
  kWrite,
  kSync,
  kStat,
  kMode,
  kMakeFolder,
  kRename,
  kUnlink,
  kReadFolder,
  kLock,
  kBlockBytes,
  kAllocate,
  kTruncate,
  kSetDirect
};

class FaultyOs : public core::storage::Os {
 public:
  // Fails the `nth` call from now on (1 is the next one) with `error`, and every later one too if `and_all_after`.
  void FailNth(uint64_t nth, int error, bool and_all_after = false);
  // Fails each call for which `choose` says so.
  void FailWhere(std::function<bool(OsCall call, const char* path)> choose, int error);
  void FailNothing();
  // Flushes succeed without being done: milliseconds each, and no test here takes the power away.
  void SkipFlushes() { skip_flushes_ = true; }
  // At most this many bytes move in one read or write; 0 takes the limit away.
  void LimitTransfers(uint64_t bytes) { transfer_limit_ = bytes; }

  bool failed() const { return failed_; }
  uint64_t calls() const { return calls_; }
  uint64_t calls(OsCall call) const { return by_kind_[static_cast<size_t>(call)]; }
  size_t open_descriptors();

  int OpenAt(int directory, const char* path, int flags, mode_t mode) override;
  int Close(int fd) override;
  int64_t Pread(int fd, core::base::MutableBytes to, uint64_t offset) override;
  int64_t Preadv(int fd, std::span<const iovec> to, uint64_t offset) override;
  int64_t Pwritev(int fd, std::span<const iovec> from, uint64_t offset) override;
  int Fsync(int fd) override;
  int Fdatasync(int fd) override;
  int Allocate(int fd, uint64_t offset, uint64_t bytes) override;
  int Truncate(int fd, uint64_t bytes) override;
  int SetDirect(int fd, bool direct) override;
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
  // Counts the call; the negative errno that it is to fail with, or 0.
  int Enter(OsCall call, const char* path = "");

  core::storage::Os& real_ = core::storage::SystemOs();
  std::atomic<uint64_t> calls_{0};
  std::array<std::atomic<uint64_t>, 16> by_kind_{};
  std::atomic<uint64_t> fail_at_{0};  // in calls_; 0 for never
  std::atomic<bool> fail_after_{false};
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> transfer_limit_{0};
  bool skip_flushes_ = false;
  int error_ = 0;
  std::function<bool(OsCall, const char*)> choose_;
  core::base::Mutex mutex_;
  std::set<int> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::test
