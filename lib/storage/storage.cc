// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/storage.h"

#include "lib/base/status.h"

namespace kvstrata::core::storage {

absl::Status Storage::Follow(uint64_t /*limit*/, FeedPage* /*page*/) {
  return base::MakeStatus(base::Code::kUnsupported, "follow", "this storage has one writer");
}

}  // namespace kvstrata::core::storage
