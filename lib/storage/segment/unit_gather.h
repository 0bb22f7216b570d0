// SPDX-License-Identifier: Apache-2.0
// What a write past the page cache takes from its source: whole units that lie at a unit's boundary in memory go from
// where they are, and only what does not lie so is copied into a room of whole units first, the last part of a unit
// too. A record that was staged on a page's boundary is copied in its last unit alone.
//
// Invariants:
//   I1. Every piece begins at a unit's boundary in memory and has whole units.
//   I2. What follows the source's last byte within its unit is zero.
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "lib/base/bytes.h"
#include "lib/storage/directory.h"

namespace kvstrata::core::storage {

class UnitGather {
 public:
  // `source` and `room` outlive this. The room begins at a unit's boundary and has at least one unit.
  UnitGather(Gather* source, base::MutableBytes room) : source_(*source), room_(room) {}

  // The next units, as many as hold `bytes` (at least 1) of the source or as the room and one write allow; the source
  // is advanced behind them. Valid until the next call.
  std::span<const base::ByteView> Next(uint64_t bytes);
  // How much of the source the last call has taken; the rest of its units is zero.
  uint64_t taken() const { return taken_; }

 private:
  // Adds what is copied up to the next bytes that need not be.
  void Copy(uint64_t bytes);
  void Add(base::ByteView piece, uint64_t taken);

  Gather& source_;
  base::MutableBytes room_;
  // What of the room the last call has used.
  size_t used_ = 0;
  uint64_t taken_ = 0;
  std::array<base::ByteView, Gather::kBatch> pieces_;
  size_t count_ = 0;
};

}  // namespace kvstrata::core::storage
