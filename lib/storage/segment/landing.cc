// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/landing.h"

#include <algorithm>
#include <cassert>

#include "lib/format/segment.h"

namespace kvstrata::core::storage {
namespace {

constexpr size_t kUnit = static_cast<size_t>(format::kUnitBytes);

}  // namespace

bool Landing::Fits(uint64_t offset, base::MutableBytes to) {
  return reinterpret_cast<uintptr_t>(to.data()) % kUnit == offset % kUnit;
}

Landing::Landing(uint64_t offset, base::MutableBytes to, base::MutableBytes spare) : offset_(offset / kUnit * kUnit) {
  assert(!to.empty() && Fits(offset, to) && spare.size() >= kSpareUnits * kUnit);
  const size_t before = static_cast<size_t>(offset % kUnit);
  if (before != 0 || to.size() < kUnit) {
    head_ = to.first(std::min(to.size(), kUnit - before));
    head_from_ = spare.data() + before;
    Add(spare.data(), kUnit);
    to = to.subspan(head_.size());
  }
  const size_t whole = to.size() / kUnit * kUnit;
  if (whole != 0) Add(to.data(), whole);
  tail_ = to.subspan(whole);
  if (tail_.empty()) return;
  tail_from_ = spare.data() + kUnit;
  Add(spare.data() + kUnit, kUnit);
}

void Landing::Add(std::byte* memory, size_t bytes) { pieces_[count_++] = {memory, bytes}; }

void Landing::Advance(uint64_t bytes) {
  offset_ += bytes;
  while (bytes > 0) {
    iovec& piece = pieces_[first_];
    const size_t here = static_cast<size_t>(std::min<uint64_t>(bytes, piece.iov_len));
    piece = {static_cast<std::byte*>(piece.iov_base) + here, piece.iov_len - here};
    if (piece.iov_len == 0) ++first_;
    bytes -= here;
  }
}

void Landing::Finish() {
  std::copy_n(head_from_, head_.size(), head_.begin());
  std::copy_n(tail_from_, tail_.size(), tail_.begin());
}

}  // namespace kvstrata::core::storage
