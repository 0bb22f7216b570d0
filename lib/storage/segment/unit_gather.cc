// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/unit_gather.h"

#include <algorithm>

#include "lib/format/segment.h"

namespace kvstrata::core::storage {
namespace {

constexpr size_t kUnit = static_cast<size_t>(format::kUnitBytes);

// The whole units that `bytes` begins with, if it begins at a unit's boundary.
base::ByteView WholeUnits(base::ByteView bytes) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kUnit != 0) return {};
  return bytes.first(bytes.size() / kUnit * kUnit);
}

}  // namespace

std::span<const base::ByteView> UnitGather::Next(uint64_t bytes) {
  used_ = 0;
  taken_ = 0;
  count_ = 0;
  // A round adds two pieces at most.
  while (taken_ < bytes && used_ < room_.size() && count_ + 2 <= pieces_.size()) {
    const base::ByteView here = source_.Here(bytes - taken_);
    if (here.empty()) break;
    if (const base::ByteView whole = WholeUnits(here); !whole.empty()) {
      source_.Advance(whole.size());
      Add(whole, whole.size());
    } else {
      Copy(bytes - taken_);
    }
  }
  return std::span(pieces_).first(count_);
}

void UnitGather::Copy(uint64_t bytes) {
  const size_t begin = used_;
  size_t copied = 0;
  // A unit at a time, to see where the source is then.
  while (copied < bytes && used_ < room_.size()) {
    const base::MutableBytes unit = room_.subspan(used_, kUnit);
    const size_t here = source_.CopyTo(unit.first(static_cast<size_t>(std::min<uint64_t>(kUnit, bytes - copied))));
    if (here == 0) break;
    std::fill(unit.begin() + static_cast<ptrdiff_t>(here), unit.end(), std::byte{0});
    copied += here;
    used_ += kUnit;
    if (here < kUnit || !WholeUnits(source_.Here(bytes - copied)).empty()) break;
  }
  Add(room_.subspan(begin, used_ - begin), copied);
}

void UnitGather::Add(base::ByteView piece, uint64_t taken) {
  pieces_[count_++] = piece;
  taken_ += taken;
}

}  // namespace kvstrata::core::storage
