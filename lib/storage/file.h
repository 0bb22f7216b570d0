// SPDX-License-Identifier: Apache-2.0
// The file backend: one directory, one file for each record, a few threads that do the blocking calls. Simple and slow,
// but never wrong: RecordFiles holds what makes it so.
//
// Thread rule: as storage.h.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/random.h"
#include "lib/storage/gate.h"
#include "lib/storage/io_pool.h"
#include "lib/storage/os.h"
#include "lib/storage/record_files.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

struct FileOptions {
  // Made when missing, with missing folders above it (mode 0700, durable with the first Sync), unless `read_only`: then
  // kNotFound.
  std::string path;
  // Takes no lock and changes nothing; any number of readers beside one writer.
  bool read_only = false;
  // 1 to 64.
  uint32_t io_threads = 2;
  // Requests accepted and not completed: 1 to 65,536.
  uint64_t max_requests = 1024;
  // Replaced by tests. They outlive the store.
  Os* os = &SystemOs();
  base::Random* random = &base::SystemRandom();
};

class FileStorage final : public Storage {
 public:
  // Counts and checks what is there (no payload is read), then starts the threads. kLocked when another opener writes,
  // kReadOnly when the directory, or the one that it would be made in, cannot be written to.
  static absl::StatusOr<std::unique_ptr<FileStorage>> Open(const FileOptions& options);
  ~FileStorage() override;

  absl::Status Submit(std::span<const Request> requests) override;
  absl::StatusOr<std::optional<uint64_t>> Stat(const Key& key) override;
  absl::Status Remove(const Key& key) override;
  absl::Status Sync() override;
  absl::Status List(const Cursor& cursor, uint64_t limit, ListPage* page) override;
  Capabilities capabilities() const override;
  uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const override;
  uint64_t UsedBytes() const override;
  std::optional<uint64_t> FreeBytes() const override;
  // Once it has succeeded, another writer may open the directory.
  absl::Status Close(std::chrono::nanoseconds patience) override;

  FileStats stats() const;

 private:
  // Apart, so that a forked child can leave it alone as a whole: its threads are not there, and its locks may be held.
  struct State;
  explicit FileStorage(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvstrata::core::storage
