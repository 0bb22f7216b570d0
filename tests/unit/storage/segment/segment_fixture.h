// SPDX-License-Identifier: Apache-2.0
// What the tests of the segment backend share: small stores that flush only when a test says so, and looks at files.
#pragma once

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lib/storage/segment/segment_storage.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"

namespace kvstrata::test::segment {

inline constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

using Store = std::unique_ptr<core::storage::SegmentStorage>;

inline core::storage::SegmentOptions Options(const std::string& path) {
  core::storage::SegmentOptions options;
  options.path = path;
  options.capacity_bytes = 8 << 20;
  options.segment_bytes = 1 << 20;
  options.flush_ms = 0;  // so that only what a test does happens
  return options;
}

inline Store Open(const core::storage::SegmentOptions& options) {
  auto opened = core::storage::SegmentStorage::Open(options);
  INFO(opened.status().ToString().c_str());
  REQUIRE(opened.ok());
  return std::move(*opened);
}

inline Store Open(const std::string& path) { return Open(Options(path)); }

inline Store OpenReadOnly(const std::string& path) {
  core::storage::SegmentOptions options = Options(path);
  options.read_only = true;
  return Open(options);
}

inline std::string Slurp(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

inline void Spill(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  REQUIRE(out.good());
}

inline mode_t ModeOf(const std::string& path) {
  struct stat info {};
  REQUIRE(lstat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

inline size_t FilesIn(const std::string& path) {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()));
}

inline size_t Listed(core::storage::Storage& store) {
  std::vector<core::storage::ListEntry> entries;
  REQUIRE(ListAll(store, 100, &entries).ok());
  return entries.size();
}

// Runs `body` in a forked child; its answer is the child's exit status.
inline int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(body());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

}  // namespace kvstrata::test::segment
