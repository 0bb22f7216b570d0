// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/os.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>

namespace kvstrata::core::storage {
namespace {

// Repeats an interrupted call; turns -1 into the negative errno.
template <typename Call>
auto Retry(Call call) -> decltype(call()) {
  using Value = decltype(call());
  Value value;
  do {
    value = call();
  } while (value < 0 && errno == EINTR);
  return value < 0 ? static_cast<Value>(-errno) : value;
}

class RealOs : public Os {
 public:
  int OpenAt(int directory, const char* path, int flags, mode_t mode) override {
    return Retry([&] { return openat(directory, path, flags | O_CLOEXEC, mode); });
  }

  // Not repeated after EINTR: Linux has closed the descriptor by then, and another thread may have got its number.
  int Close(int fd) override { return close(fd) == 0 || errno == EINTR ? 0 : -errno; }

  int64_t Pread(int fd, base::MutableBytes to, uint64_t offset) override {
    return Retry([&] { return pread(fd, to.data(), to.size(), static_cast<off_t>(offset)); });
  }

  int64_t Preadv(int fd, std::span<const iovec> to, uint64_t offset) override {
    const int count = static_cast<int>(to.size() < IOV_MAX ? to.size() : IOV_MAX);
    return Retry([&] { return preadv(fd, to.data(), count, static_cast<off_t>(offset)); });
  }

  int64_t Pwritev(int fd, std::span<const iovec> from, uint64_t offset) override {
    const int count = static_cast<int>(from.size() < IOV_MAX ? from.size() : IOV_MAX);
    return Retry([&] { return pwritev(fd, from.data(), count, static_cast<off_t>(offset)); });
  }

  int Fsync(int fd) override {
    return Retry([&] { return fsync(fd); });
  }
  int Fdatasync(int fd) override {
    return Retry([&] { return fdatasync(fd); });
  }
  int Allocate(int fd, uint64_t offset, uint64_t bytes) override {
    return Retry([&] { return fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)); });
  }
  int Truncate(int fd, uint64_t bytes) override {
    return Retry([&] { return ftruncate(fd, static_cast<off_t>(bytes)); });
  }
  int SetDirect(int fd, bool direct) override {
    const int flags = Retry([&] { return fcntl(fd, F_GETFL); });
    if (flags < 0) return flags;
    return Retry([&] { return fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT); });
  }
  int Fstat(int fd, struct stat* out) override {
    return Retry([&] { return fstat(fd, out); });
  }
  int StatAt(int directory, const char* path, struct stat* out) override {
    return Retry([&] { return fstatat(directory, path, out, AT_SYMLINK_NOFOLLOW); });
  }
  int Fchmod(int fd, mode_t mode) override {
    return Retry([&] { return fchmod(fd, mode); });
  }
  int MkdirAt(int directory, const char* path, mode_t mode) override {
    return Retry([&] { return mkdirat(directory, path, mode); });
  }
  int ChmodAt(int directory, const char* path, mode_t mode) override {
    return Retry([&] { return fchmodat(directory, path, mode, 0); });
  }
  int RenameAt(int directory, const char* from, const char* to) override {
    return Retry([&] { return renameat(directory, from, directory, to); });
  }
  int UnlinkAt(int directory, const char* path) override {
    return Retry([&] { return unlinkat(directory, path, 0); });
  }

  int ReadDirectory(int directory, const char* path, absl::FunctionRef<void(std::string_view)> visit) override {
    const int fd = OpenAt(directory, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fd;
    DIR* stream = fdopendir(fd);
    if (stream == nullptr) {
      const int error = errno;
      Close(fd);
      return -error;
    }
    int error = 0;
    for (;;) {
      errno = 0;
      const dirent* entry = readdir(stream);
      if (entry == nullptr) {
        error = errno;
        break;
      }
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") visit(name);
    }
    closedir(stream);
    return -error;
  }

  int LockFile(int fd) override {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    const int result = Retry([&] { return fcntl(fd, F_SETLK, &lock); });
    return result == -EACCES ? -EAGAIN : result;  // POSIX allows either for a lock that another process holds
  }

  std::unique_ptr<ReadRing> MakeReadRing(uint32_t depth) override { return MakeIoUring(depth); }

  int64_t FreeBytes(int fd) override {
    struct statvfs info {};
    const int result = Retry([&] { return fstatvfs(fd, &info); });
    return result < 0 ? result : static_cast<int64_t>(info.f_bavail * info.f_frsize);
  }

  int DescriptorLimit() override {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return INT_MAX;
    return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT_MAX));
  }

  int64_t BlockBytes(int fd) override {
    struct statvfs info {};
    const int result = Retry([&] { return fstatvfs(fd, &info); });
    return result < 0 ? result : static_cast<int64_t>(info.f_frsize);
  }
};

}  // namespace

Os& SystemOs() {
  // Never destroyed: a thread of the caller may still read while the process ends.
  static Os& os = *new RealOs();
  return os;
}

}  // namespace kvstrata::core::storage
