// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/directory_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace kvstrata::core::storage {
namespace {

using DirectoryId = std::pair<dev_t, ino_t>;

struct Registry {
  base::Mutex mutex;
  // The process that holds the directory: a forked child finds its parent's entries here and passes over them.
  std::map<DirectoryId, pid_t> holders ABSL_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  // Never destroyed: a cache in a static variable of the caller may be closed after our own statics would be gone.
  static Registry& registry = *new Registry();
  return registry;
}

absl::Status Locked(const std::string& path, const char* who) {
  return base::MakeStatus(base::Code::kLocked, "path",
                          path + " is open for writing by " + who + "; open it for reading only, or close the other");
}

// The locked file's descriptor, or a negative errno.
int OpenAndLock(Os& os, int directory) {
  const int fd = os.OpenAt(directory, DirectoryLock::kFile, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (fd < 0) return fd;
  int result = os.LockFile(fd);
  if (result >= 0) result = os.Fchmod(fd, 0600);
  if (result >= 0) return fd;
  os.Close(fd);
  return result;
}

}  // namespace

absl::StatusOr<DirectoryLock> DirectoryLock::Acquire(Os& os, int directory, const std::string& path) {
  struct stat info {};
  if (const int result = os.Fstat(directory, &info); result < 0) return base::IoError("stat", path, -result);
  const DirectoryId id(info.st_dev, info.st_ino);
  Registry& registry = TheRegistry();
  // Held over the opening of the lock file, for I1.
  base::MutexLock lock(registry.mutex);
  const auto holder = registry.holders.find(id);
  if (holder != registry.holders.end() && holder->second == getpid()) return Locked(path, "this process");
  const int fd = OpenAndLock(os, directory);
  if (fd == -EAGAIN) return Locked(path, "another process");
  if (fd < 0) return base::IoError("lock", path + "/" + DirectoryLock::kFile, -fd);
  registry.holders[id] = getpid();
  return DirectoryLock(&os, fd, info.st_dev, info.st_ino);
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept { *this = std::move(other); }

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  if (this == &other) return *this;
  Release();
  os_ = other.os_;
  fd_ = std::exchange(other.fd_, -1);
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

DirectoryLock::~DirectoryLock() { Release(); }

void DirectoryLock::Release() {
  if (fd_ < 0) return;
  Registry& registry = TheRegistry();
  base::MutexLock lock(registry.mutex);
  registry.holders.erase(DirectoryId(device_, inode_));
  os_->Close(std::exchange(fd_, -1));
}

}  // namespace kvstrata::core::storage
