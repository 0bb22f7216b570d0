// SPDX-License-Identifier: Apache-2.0
// One record file at a time: writing one, and opening one for reading with its header checked. Knows nothing of what
// else is in the directory.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/format/file_record.h"
#include "lib/storage/descriptor.h"
#include "lib/storage/directory.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

// Makes the file `name`, which must not exist, with the whole record in it; flushed when `sync` is set. What it leaves
// behind on failure is the caller's to unlink.
absl::Status WriteRecordFile(const Directory& directory, const char* name, const Put& put,
                             const format::FileRecordHeader& header, bool sync);

struct OpenRecord {
  Descriptor descriptor;
  format::FileRecordHeader header;
};

// kNotFound when there is no file of that name, or it is not a regular file or holds another key; kCorrupt and
// kFormatTooNew as DecodeFileRecordHeader.
absl::StatusOr<OpenRecord> OpenRecordFile(const Directory& directory, const Key& key);

// Both verify the checksum; the payload's can be verified only when all of it is read.
absl::StatusOr<std::vector<std::byte>> ReadMeta(const Directory& directory, const OpenRecord& record);
absl::Status ReadPayload(const Directory& directory, const OpenRecord& record, uint64_t offset, base::MutableBytes to);

}  // namespace kvstrata::core::storage
