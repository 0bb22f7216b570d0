// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faulty_os.h"

#include <algorithm>

namespace kvstrata::test {

namespace base = core::base;

void FaultyOs::FailNth(uint64_t nth, int error, bool and_all_after) {
  error_ = error;
  fail_after_ = and_all_after;
  failed_ = false;
  fail_at_ = calls_ + nth;
}

void FaultyOs::FailWhere(std::function<bool(OsCall, const char*)> choose, int error) {
  error_ = error;
  failed_ = false;
  choose_ = std::move(choose);
}

void FaultyOs::FailNothing() {
  fail_at_ = 0;
  choose_ = nullptr;
}

size_t FaultyOs::open_descriptors() {
  base::MutexLock lock(mutex_);
  return open_.size();
}

int FaultyOs::Enter(OsCall call, const char* path) {
  const uint64_t number = ++calls_;
  ++by_kind_[static_cast<size_t>(call)];
  const uint64_t at = fail_at_;
  const bool fail = (at != 0 && (fail_after_ ? number >= at : number == at)) || (choose_ && choose_(call, path));
  if (!fail) return 0;
  failed_ = true;
  return -error_;
}

int FaultyOs::OpenAt(int directory, const char* path, int flags, mode_t mode) {
  if (const int fault = Enter(OsCall::kOpen, path); fault < 0) return fault;
  const int fd = real_.OpenAt(directory, path, flags, mode);
  if (fd >= 0) {
    base::MutexLock lock(mutex_);
    open_.insert(fd);
  }
  return fd;
}

int FaultyOs::Close(int fd) {
  {
    base::MutexLock lock(mutex_);
    open_.erase(fd);
  }
  const int result = real_.Close(fd);  // also when it is to fail: the descriptor is gone in any case
  const int fault = Enter(OsCall::kClose);
  return fault < 0 ? fault : result;
}

int64_t FaultyOs::Pread(int fd, base::MutableBytes to, uint64_t offset) {
  if (const int fault = Enter(OsCall::kRead); fault < 0) return fault;
  const uint64_t limit = transfer_limit_;
  if (limit != 0) to = to.first(std::min<size_t>(to.size(), limit));
  return real_.Pread(fd, to, offset);
}

int64_t FaultyOs::Preadv(int fd, std::span<const iovec> to, uint64_t offset) {
  if (transfer_limit_ != 0) return Os::Preadv(fd, to, offset);  // which reads less of the first piece
  if (const int fault = Enter(OsCall::kRead); fault < 0) return fault;
  return real_.Preadv(fd, to, offset);
}

int64_t FaultyOs::Pwritev(int fd, std::span<const iovec> from, uint64_t offset) {
  if (const int fault = Enter(OsCall::kWrite); fault < 0) return fault;
  const uint64_t limit = transfer_limit_;
  if (limit == 0) return real_.Pwritev(fd, from, offset);
  const iovec part = {from[0].iov_base, std::min<size_t>(from[0].iov_len, limit)};
  return real_.Pwritev(fd, {&part, 1}, offset);
}

int FaultyOs::Fsync(int fd) {
  const int fault = Enter(OsCall::kSync);
  if (fault < 0 || skip_flushes_) return fault;
  return real_.Fsync(fd);
}

int FaultyOs::Fdatasync(int fd) {
  const int fault = Enter(OsCall::kSync);
  if (fault < 0 || skip_flushes_) return fault;
  return real_.Fdatasync(fd);
}

int FaultyOs::Allocate(int fd, uint64_t offset, uint64_t bytes) {
  const int fault = Enter(OsCall::kAllocate);
  return fault < 0 ? fault : real_.Allocate(fd, offset, bytes);
}

int FaultyOs::Truncate(int fd, uint64_t bytes) {
  const int fault = Enter(OsCall::kTruncate);
  return fault < 0 ? fault : real_.Truncate(fd, bytes);
}

int FaultyOs::SetDirect(int fd, bool direct) {
  const int fault = Enter(OsCall::kSetDirect);
  return fault < 0 ? fault : real_.SetDirect(fd, direct);
}

int FaultyOs::Fstat(int fd, struct stat* out) {
  const int fault = Enter(OsCall::kStat);
  return fault < 0 ? fault : real_.Fstat(fd, out);
}

int FaultyOs::StatAt(int directory, const char* path, struct stat* out) {
  const int fault = Enter(OsCall::kStat, path);
  return fault < 0 ? fault : real_.StatAt(directory, path, out);
}

int FaultyOs::Fchmod(int fd, mode_t mode) {
  const int fault = Enter(OsCall::kMode);
  return fault < 0 ? fault : real_.Fchmod(fd, mode);
}

int FaultyOs::MkdirAt(int directory, const char* path, mode_t mode) {
  const int fault = Enter(OsCall::kMakeFolder, path);
  return fault < 0 ? fault : real_.MkdirAt(directory, path, mode);
}

int FaultyOs::ChmodAt(int directory, const char* path, mode_t mode) {
  const int fault = Enter(OsCall::kMode, path);
  return fault < 0 ? fault : real_.ChmodAt(directory, path, mode);
}

int FaultyOs::RenameAt(int directory, const char* from, const char* to) {
  const int fault = Enter(OsCall::kRename, to);
  return fault < 0 ? fault : real_.RenameAt(directory, from, to);
}

int FaultyOs::UnlinkAt(int directory, const char* path) {
  const int fault = Enter(OsCall::kUnlink, path);
  return fault < 0 ? fault : real_.UnlinkAt(directory, path);
}

int FaultyOs::ReadDirectory(int directory, const char* path, absl::FunctionRef<void(std::string_view)> visit) {
  const int fault = Enter(OsCall::kReadFolder, path);
  return fault < 0 ? fault : real_.ReadDirectory(directory, path, visit);
}

int FaultyOs::LockFile(int fd) {
  const int fault = Enter(OsCall::kLock);
  return fault < 0 ? fault : real_.LockFile(fd);
}

int64_t FaultyOs::BlockBytes(int fd) {
  const int fault = Enter(OsCall::kBlockBytes);
  return fault < 0 ? fault : real_.BlockBytes(fd);
}

}  // namespace kvstrata::test
