// SPDX-License-Identifier: Apache-2.0
// An operating system under which a drive refuses to read some blocks of some files.
//
// Thread rule: as FaultyOs.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "lib/base/mutex.h"
#include "tests/support/faulty_os.h"

namespace kvstrata::test {

// Refuses blocks of files, as a drive does. Reads that go through the page cache come as far as the bad block, or fail
// as a whole where `whole` says so: that is what the kernel does with pages that it has read together.
class BadBlockOs final : public FaultyOs {
 public:
  static constexpr uint64_t kBlock = 4096;
  bool whole = false;

  void Refuse(const std::string& file, uint64_t block) { bad_[file].insert(block); }
  void RefuseAll(const std::string& file) { all_.insert(file); }
  void RefuseNothing() {
    bad_.clear();
    all_.clear();
  }
  uint64_t refusals() const { return refusals_; }

  int OpenAt(int directory, const char* path, int flags, mode_t mode) override {
    const int fd = FaultyOs::OpenAt(directory, path, flags, mode);
    const core::base::MutexLock lock(mutex_);
    if (fd >= 0) names_[fd] = {path, false};
    return fd;
  }
  int SetDirect(int fd, bool direct) override {
    const int result = FaultyOs::SetDirect(fd, direct);
    const core::base::MutexLock lock(mutex_);
    names_[fd].direct = direct;
    return std::max(result, 0);  // also where the file system knows none
  }
  int64_t Pread(int fd, core::base::MutableBytes to, uint64_t offset) override {
    core::base::MutableBytes rest = to;
    {
      const core::base::MutexLock lock(mutex_);
      const Opened& file = names_[fd];
      const uint64_t good =
          file.direct || !whole ? GoodBytes(file.name, offset, to.size()) : GoodTogether(file.name, offset, to.size());
      if (good == 0) {
        ++refusals_;
        return -EIO;
      }
      rest = to.first(static_cast<size_t>(std::min<uint64_t>(good, to.size())));
    }
    return FaultyOs::Pread(fd, rest, offset);
  }

 private:
  struct Opened {
    std::string name;
    bool direct = false;
  };
  // Up to the first bad block.
  uint64_t GoodBytes(const std::string& name, uint64_t offset, uint64_t bytes) const {
    if (all_.contains(name)) return 0;
    const auto file = bad_.find(name);
    if (file == bad_.end()) return bytes;
    const auto bad = file->second.lower_bound(offset / kBlock);
    return bad == file->second.end() ? bytes : *bad * kBlock - std::min(*bad * kBlock, offset);
  }
  // Up to the first group of four blocks in which one is bad.
  uint64_t GoodTogether(const std::string& name, uint64_t offset, uint64_t bytes) const {
    constexpr uint64_t kGroup = 4 * kBlock;
    const uint64_t before = offset % kGroup;
    const uint64_t good = GoodBytes(name, offset - before, before + bytes + kGroup) / kGroup * kGroup;
    return good - std::min(good, before);
  }

  core::base::Mutex mutex_;
  std::map<int, Opened> names_;
  std::map<std::string, std::set<uint64_t>> bad_;
  std::set<std::string> all_;
  uint64_t refusals_ = 0;
};

}  // namespace kvstrata::test
