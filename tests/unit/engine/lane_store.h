// SPDX-License-Identifier: Apache-2.0
// A cache on a lane of a root, whose records become durable when it is told to.
//
// Thread rule: as Store.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lib/storage/segment/lane_storage.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvstrata::test {

class LaneStore : public Store {
 public:
  LaneStore(const std::string& root, uint32_t lane, bool read_only = false, uint64_t capacity = 4 << 20,
            const core::layout::Layout& layout = HybridLayout())
      : Store(layout, capacity) {
    options.read_only = read_only;
    open_storage = [=] {
      core::storage::SegmentOptions given;
      given.path = root;
      given.read_only = read_only;
      given.capacity_bytes = capacity;
      given.segment_bytes = 1 << 20;
      given.flush_ms = 0;
      given.io_threads = 1;
      auto opened = core::storage::LaneStorage::Open(given, lane);
      INFO(opened.status().ToString().c_str());
      REQUIRE(opened.ok());
      return std::shared_ptr<core::storage::Storage>(*std::move(opened));
    };
    Open();
  }
  void StoreDurably(const Tokens& tokens) {
    StorePrompt(tokens);
    REQUIRE(cache().Sync().ok());
  }
  // So long that the next lookup looks at the others again.
  void Wait() { clock().AdvanceNs(1'000'000'000); }
};

}  // namespace kvstrata::test
