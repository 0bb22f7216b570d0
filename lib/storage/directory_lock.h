// SPDX-License-Identifier: Apache-2.0
// One writer for each directory: an fcntl record lock keeps other processes out, a registry of this process, by device
// and inode, keeps out a second opener here (record locks never exclude their own process).
//
// Invariants:
//   I1. This process never opens the lock file of a directory that it has locked: closing any descriptor of the file
//       would drop the process's record lock.
//   I2. A forked child has not got the lock, whatever the registry that it inherited says.
//
// Thread rule: any thread; one at a time for each object.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "lib/storage/os.h"

namespace kvstrata::core::storage {

class DirectoryLock {
 public:
  // The file that carries the lock; there is nothing in it.
  static constexpr char kFile[] = "kvstrata.lock";

  // `directory` is open and stays the caller's; `path` is for messages. kLocked when somebody has it; kReadOnly when
  // the lock file cannot be made.
  static absl::StatusOr<DirectoryLock> Acquire(Os& os, int directory, const std::string& path);

  DirectoryLock() = default;
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  DirectoryLock(Os* os, int fd, dev_t device, ino_t inode) : os_(os), fd_(fd), device_(device), inode_(inode) {}
  void Release();

  Os* os_ = nullptr;
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace kvstrata::core::storage
