// SPDX-License-Identifier: Apache-2.0
// The one seam between the backend in a directory and the operating system: tests make the Nth call fail, write half,
// count open descriptors or simulate a whole disk, by putting their own Os in its place.
//
// Every function returns a value of at least 0, or a negative errno. EINTR is retried inside. All paths are relative to
// an open directory.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "lib/base/bytes.h"
#include "lib/storage/read_ring.h"

namespace kvstrata::core::storage {

class Os {
 public:
  virtual ~Os() = default;

  // O_CLOEXEC is added to the flags.
  virtual int OpenAt(int directory, const char* path, int flags, mode_t mode) = 0;
  // The descriptor is gone whatever the result says.
  virtual int Close(int fd) = 0;
  // May read or write less than asked; 0 from Pread means the end of the file.
  virtual int64_t Pread(int fd, base::MutableBytes to, uint64_t offset) = 0;
  // The pieces one after the other, none of them empty; where nothing better is known, what Pread makes of the first.
  virtual int64_t Preadv(int fd, std::span<const iovec> to, uint64_t offset) {
    return Pread(fd, {static_cast<std::byte*>(to.front().iov_base), to.front().iov_len}, offset);
  }
  virtual int64_t Pwritev(int fd, std::span<const iovec> from, uint64_t offset) = 0;
  virtual int Fsync(int fd) = 0;
  // The data, and of the metadata only what reading the data back needs (the size).
  virtual int Fdatasync(int fd) = 0;
  // Reserves the bytes on the disk and makes the file at least so long; bytes that are there stay. -EOPNOTSUPP where
  // the file system cannot.
  virtual int Allocate(int fd, uint64_t offset, uint64_t bytes) = 0;
  virtual int Truncate(int fd, uint64_t bytes) = 0;
  // Past the page cache from now on, or through it again. -EINVAL where the file system knows no direct I/O.
  virtual int SetDirect(int fd, bool direct) = 0;
  virtual int Fstat(int fd, struct stat* out) = 0;
  // Does not follow a symbolic link in the last component.
  virtual int StatAt(int directory, const char* path, struct stat* out) = 0;
  virtual int Fchmod(int fd, mode_t mode) = 0;
  virtual int MkdirAt(int directory, const char* path, mode_t mode) = 0;
  virtual int ChmodAt(int directory, const char* path, mode_t mode) = 0;
  virtual int RenameAt(int directory, const char* from, const char* to) = 0;
  virtual int UnlinkAt(int directory, const char* path) = 0;
  // Calls `visit` with each name except "." and "..", in no order.
  virtual int ReadDirectory(int directory, const char* path, absl::FunctionRef<void(std::string_view)> visit) = 0;
  // An fcntl write lock on the whole file, without waiting: -EAGAIN when another process holds one.
  virtual int LockFile(int fd) = 0;
  // For reads that the kernel carries out by itself, `depth` at one time; none where it does not.
  virtual std::unique_ptr<ReadRing> MakeReadRing(uint32_t /*depth*/) { return nullptr; }
  // What may still be written to the file system; INT64_MAX where that is not known.
  virtual int64_t FreeBytes(int /*fd*/) { return INT64_MAX; }
  // How many descriptors the process may have; INT_MAX where that is not known.
  virtual int DescriptorLimit() { return INT_MAX; }
  // The file system's allocation unit.
  virtual int64_t BlockBytes(int fd) = 0;
};

// The real one.
Os& SystemOs();

}  // namespace kvstrata::core::storage
