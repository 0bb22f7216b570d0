// SPDX-License-Identifier: Apache-2.0
// A file for each value, as many caches do it: sixty-four folders, written and read whole, made durable by one flush of
// the file system at the end (cheaper than one of each file).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "benchmarks/rivals/rival.h"
#include "benchmarks/storage/drive.h"

namespace kvstrata::benchmarks {
namespace {

constexpr uint64_t kFolders = 64;

class Files final : public Rival {
 public:
  Files(bool direct, size_t threads) : flags_(direct ? O_DIRECT : 0), threads_(threads) {}
  std::string name() const override {
    return std::string(flags_ != 0 ? "files with direct I/O, " : "buffered files, ") + std::to_string(threads_) +
           " threads";
  }
  void Open(const std::string& folder) override {
    folder_ = folder;
    for (uint64_t i = 0; i < kFolders; ++i) mkdir((folder_ + "/" + std::to_string(i)).c_str(), 0700);
  }
  void Close() override {}

  void PutAll(const Work& work) override {
    InThreads(work.count, threads_, work.value_bytes, [&](uint64_t i, std::byte*) {
      const int file = open(PathOf(i).c_str(), O_CREAT | O_WRONLY | O_TRUNC | flags_, 0600);
      const core::base::ByteView value = work.ValueOf(i);
      if (file < 0 || write(file, value.data(), value.size()) != static_cast<ssize_t>(value.size())) {
        Fail("a file could not be written");
      }
      close(file);
    });
    const int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY);
    if (folder < 0 || syncfs(folder) != 0) Fail("a flush failed");
    close(folder);
  }

  void GetAll(const Work& work) override {
    InThreads(work.count, threads_, work.value_bytes, [&](uint64_t i, std::byte* memory) {
      const uint64_t value = work.order[i];
      const int file = open(PathOf(value).c_str(), O_RDONLY | flags_);
      if (file < 0 || read(file, memory, work.value_bytes) != static_cast<ssize_t>(work.value_bytes)) {
        Fail("a file could not be read");
      }
      close(file);
      work.Check(value, memory);
    });
  }

 private:
  std::string PathOf(uint64_t number) const {
    char name[64];
    std::snprintf(name, sizeof name, "/%llu/%016llx.data", static_cast<unsigned long long>(number % kFolders),
                  static_cast<unsigned long long>(number * 0x9E3779B97F4A7C15u));
    return folder_ + name;
  }

  const int flags_;
  const size_t threads_;
  std::string folder_;
};

}  // namespace

Rivals MakeBufferedFiles() {
  Rivals rivals;
  rivals.push_back(std::make_unique<Files>(false, 1));
  rivals.push_back(std::make_unique<Files>(false, 8));
  rivals.push_back(std::make_unique<Files>(false, 24));
  return rivals;
}

Rivals MakeDirectFiles() {
  Rivals rivals;
  rivals.push_back(std::make_unique<Files>(true, 8));
  return rivals;
}

}  // namespace kvstrata::benchmarks
