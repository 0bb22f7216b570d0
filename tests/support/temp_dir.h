// SPDX-License-Identifier: Apache-2.0
// A directory of its own for one test, removed with all that is in it at the end: where temporary files are, or in
// memory where the system has such a place: for tests of which a disk is no part, and that one would slow down.
//
// Thread rule: made and destroyed on one thread.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace kvstrata::test {

class TempDir {
 public:
  enum class Place { kDisk, kMemory };

  explicit TempDir(Place place = Place::kDisk) : owner_(getpid()) {
    static constexpr char kMemoryFolder[] = "/dev/shm";
    const bool in_memory = place == Place::kMemory && access(kMemoryFolder, W_OK | X_OK) == 0;
    const std::filesystem::path above = in_memory ? kMemoryFolder : std::filesystem::temp_directory_path();
    std::string name = (above / "kvstrata-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
  }
  ~TempDir() {
    if (getpid() != owner_) return;  // a forked child leaves it to its parent
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  const pid_t owner_;
  std::string path_;
};

}  // namespace kvstrata::test
