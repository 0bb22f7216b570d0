// SPDX-License-Identifier: Apache-2.0
// An open descriptor that is closed on every way out.
//
// Thread rule: a value; one thread at a time.
#pragma once

#include <utility>

#include "lib/storage/os.h"

namespace kvstrata::core::storage {

class Descriptor {
 public:
  Descriptor(Os& os, int fd) : os_(&os), fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : os_(other.os_), fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  // At least 0, or the negative errno of the open that failed.
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  // The descriptor becomes the caller's.
  int Release() { return std::exchange(fd_, -1); }
  // The result of the first close that had something to close; 0 afterwards.
  int Close() { return fd_ < 0 ? 0 : os_->Close(std::exchange(fd_, -1)); }

 private:
  Os* os_;
  int fd_;
};

}  // namespace kvstrata::core::storage
