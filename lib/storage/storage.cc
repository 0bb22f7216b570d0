// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/storage.h"

#include "lib/base/status.h"

namespace kvstrata::core::storage {
namespace {

// So many that a storage which reads its logs in pieces reads each piece about once.
constexpr uint64_t kPageEntries = 4096;

}  // namespace

absl::Status Storage::Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped) {
  *skipped = 0;
  ListPage page;
  for (Cursor cursor; !page.done; cursor = page.next) {
    if (absl::Status status = List(cursor, kPageEntries, &page); !status.ok()) return status;
    *skipped += page.skipped;
    for (const ListEntry& entry : page.entries) visit({entry.key, entry.payload_bytes, entry.stored_bytes, entry.meta});
  }
  return absl::OkStatus();
}

absl::Status Storage::Follow(uint64_t /*limit*/, FeedPage* /*page*/) {
  return base::MakeStatus(base::Code::kUnsupported, "follow", "this storage has one writer");
}

}  // namespace kvstrata::core::storage
