// SPDX-License-Identifier: Apache-2.0
// A directory of its own for one test, removed with all that is in it at the end.
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
  TempDir() : owner_(getpid()) {
    std::string name = (std::filesystem::temp_directory_path() / "kvstrata-test-XXXXXX").string();
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
