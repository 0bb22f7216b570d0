// SPDX-License-Identifier: Apache-2.0
// The ring of the last events, with sequence numbers in which a slow reader sees its gap.
//
// Thread rule: externally synchronised (the cache's lock).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "lib/base/hash.h"
#include "lib/format/record.h"

namespace kvstrata::core::engine {

// Pinned numbers: the C ABI hands them out unchanged.
enum class EventKind : int32_t {
  kBlockStored = 1,
  kBlockRemoved = 2,
  kSnapshotStored = 3,
  kSnapshotRemoved = 4,
  kNamespaceDropped = 5,
};

struct Event {
  EventKind kind = EventKind::kBlockStored;
  uint64_t sequence = 0;
  format::NamespaceId name_space{};
  base::Digest128 digest;
  uint64_t position = 0;
  uint64_t bytes = 0;
};

class EventRing {
 public:
  static constexpr size_t kCapacity = 4096;

  void Add(Event event) {
    event.sequence = next_++;
    if (events_.size() == kCapacity) events_.pop_front();
    events_.push_back(event);
  }
  // Events with sequence >= from that are still held, at most `limit`.
  std::vector<Event> Read(uint64_t from, size_t limit) const {
    std::vector<Event> out;
    for (const Event& event : events_) {
      if (event.sequence >= from && out.size() < limit) out.push_back(event);
    }
    return out;
  }
  uint64_t next() const { return next_; }

 private:
  std::deque<Event> events_;
  uint64_t next_ = 1;
};

}  // namespace kvstrata::core::engine
