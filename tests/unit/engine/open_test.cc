// SPDX-License-Identifier: Apache-2.0
// What an open asks of its storage, and in which order it writes to it.
#include <algorithm>
#include <vector>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using base::Code;

TEST_CASE("a storage that cannot read ranges is refused before anything is written to it") {
  for (const bool read_only : {false, true}) {
    CAPTURE(read_only);
    Store store(RowsLayout());
    store.options.read_only = read_only;
    store.capabilities = storage::Capabilities{};
    store.capabilities->range_reads = false;
    const absl::Status refused = store.TryOpen();
    CHECK(base::CodeOf(refused) == Code::kUnsupported);
    CHECK(base::FieldOf(refused) == "storage.range_reads");
    CHECK(store.faults().calls(StorageCall::kAny) == 0);
    CHECK(store.memory().UsedBytes() == 0);
    store.Abandon();
  }
}
