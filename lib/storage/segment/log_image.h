// SPDX-License-Identifier: Apache-2.0
// The bytes of one log in memory, as they were when a store was opened: read once, in large pieces and past the page
// cache, by a thread of its own where the log is long, while what has come is decoded. They are kept until the first
// listing has told of what is in them, so that nothing is read twice.
//
// Invariants:
//   I1. It holds kMaxBytes at most; of a longer log there is none.
//   I2. What View returns stays as it is as long as the image.
//
// Thread rule: one thread at a time until Stop has returned; then View on any thread at once.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "lib/base/mutex.h"
#include "lib/storage/huge_arena.h"
#include "lib/storage/segment/log_files.h"

namespace kvstrata::core::storage {

class LogImage {
 public:
  // Four million records of one block.
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 30;

  // Begins to read. Null where it cannot be had: the log is then read in pieces, as it is asked for. `directory`
  // outlives the image.
  static std::shared_ptr<LogImage> Read(const Directory& directory, Log log);
  ~LogImage() { Stop(); }
  LogImage(const LogImage&) = delete;
  LogImage& operator=(const LogImage&) = delete;

  const Log& log() const { return log_; }
  // Of the file when reading began.
  uint64_t file_bytes() const { return file_bytes_; }
  // Bytes [offset, offset + bytes), fewer at the end of the file; waits until they are there. Nothing where they could
  // not be read, or have not been when it was stopped.
  std::optional<base::ByteView> View(uint64_t offset, size_t bytes);
  // Reads no more than it has.
  void Stop();

 private:
  LogImage(const Directory& directory, Log log, uint64_t bytes);
  void ReadAll();
  // How much came; nothing at the end, or after a failure.
  uint64_t ReadPiece(uint64_t offset, bool* direct);

  const Directory directory_;
  const Log log_;
  const uint64_t file_bytes_;
  // More than the file has, so that its end is seen.
  const uint64_t room_;
  HugeArena arena_;
  std::byte* const memory_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  // What is there.
  std::atomic<uint64_t> filled_{0};
  base::Mutex mutex_;
  base::CondVar changed_;
  // Nothing more will come; and whether that is because the file ends there.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> whole_{false};
};

}  // namespace kvstrata::core::storage
