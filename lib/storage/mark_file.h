// SPDX-License-Identifier: Apache-2.0
// The marks of a root: small values by key on which all processes that share it agree, each change durable before it
// counts, seen by everybody at the next look. A file that only grows, a sector a change (FORMAT.md, "Marks").
//
// Invariants:
//   I1. Changes are made one at a time, by whoever holds the root's lock: one process, one thread of it.
//   I2. The last intact mark of a key counts. One that is being written is not seen before it is whole.
//   I3. Each mark has a sector to itself: one that is torn takes none along that was durable before.
//   I4. A mark may be seen before its writer has made it durable, or after it was killed in between: whoever builds on
//       it flushes it first (Set and Flush).
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/format/mark.h"
#include "lib/storage/descriptor.h"
#include "lib/storage/directory.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

class MarkFile final : public Marks {
 public:
  // `directory` is the root; it outlives this.
  explicit MarkFile(const Directory& directory) : directory_(directory) {}

  absl::StatusOr<std::vector<Mark>> TakeNew() override;
  absl::StatusOr<MarkValue> Set(const Key& key, const MarkValue& value, bool replace) override;
  // Makes all marks durable that have been read.
  absl::Status Flush();

 private:
  absl::Status ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Append(const format::Mark& mark) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FlushRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Directory& directory_;
  base::Mutex mutex_;
  // Open once there is a file.
  std::optional<Descriptor> file_ ABSL_GUARDED_BY(mutex_);
  // Marks before it have been read.
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;
  // Marks before it are durable, and so is the file's name.
  uint64_t durable_end_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<Key, MarkValue> values_ ABSL_GUARDED_BY(mutex_);
  std::vector<Mark> new_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::storage
