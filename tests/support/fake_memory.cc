// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_memory.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/support/fake_handles.h"

namespace kvstrata::test {
namespace {

// 64 KiB of bytes that differ from place to place. Made once: poisoning and comparing byte by byte is half of the time
// of a sanitized run.
const std::vector<std::byte>& Poisoned() {
  static const std::vector<std::byte> pattern = [] {
    std::vector<std::byte> bytes(size_t{1} << 16);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(0xa5 ^ i ^ (i >> 8));
    return bytes;
  }();
  return pattern;
}

uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool HasIds(const Geometry& geometry) {
  return geometry.form == KVSTRATA_FORM_PAGES || geometry.form == KVSTRATA_FORM_SLOTS;
}

}  // namespace

RowMemory::RowMemory(uint32_t index, const kvstrata_stream& stream, const Geometry& geometry, uint64_t rows,
                     EngineDevice* device, Rng& rng)
    : index_(index), stream_(stream), geometry_(geometry), device_(device), rows_(rows) {
  if (!IsOpaque(stream_)) {
    LayOutColumns();
    if (HasIds(geometry_)) ShufflePages(rng);
  }
  image_.resize(image_bytes());
  if (device_ != nullptr) device_memory_ = device_->Allocate(image_.size());
  Poison();
}

RowMemory::RowMemory(const RowMemory& other, EngineDevice* device)
    : index_(other.index_),
      stream_(other.stream_),
      geometry_(other.geometry_),
      device_(device),
      first_row_(other.first_row_),
      rows_(other.rows_),
      reach_(other.reach_),
      page_stride_(other.page_stride_),
      columns_(other.columns_),
      ids_(other.ids_),
      whole_ids_(other.whole_ids_),
      image_(other.image_) {
  if (device_ != nullptr) device_memory_ = device_->Allocate(image_.size());
}

RowMemory::~RowMemory() {
  if (device_memory_ != nullptr) device_->Free(device_memory_);
}

// Column offsets and strides, the page stride and the whole reach.
void RowMemory::LayOutColumns() {
  std::vector<uint32_t> widths = geometry_.columns;
  if (widths.empty()) widths.push_back(stream_.row_bytes);
  const uint64_t row_bytes = std::accumulate(widths.begin(), widths.end(), uint64_t{0});
  const uint64_t per_unit = geometry_.form == KVSTRATA_FORM_PAGES   ? geometry_.rows_per_page
                            : geometry_.form == KVSTRATA_FORM_RING  ? geometry_.capacity_rows
                            : geometry_.form == KVSTRATA_FORM_SLOTS ? rows_ + geometry_.spare_pages
                                                                    : rows_;
  uint64_t offset = 0;
  for (const uint32_t width : widths) {
    auto column = Sized<kvstrata_column>();
    column.bytes = width;
    column.offset = offset;
    column.stride = geometry_.planar ? width + geometry_.row_padding : row_bytes + geometry_.row_padding;
    offset += geometry_.planar ? per_unit * column.stride : width;
    columns_.push_back(column);
  }
  const uint64_t unit_bytes = geometry_.planar ? offset : per_unit * (row_bytes + geometry_.row_padding);
  if (geometry_.form != KVSTRATA_FORM_PAGES) {
    reach_ = unit_bytes;
    return;
  }
  page_stride_ = RoundUp(unit_bytes, geometry_.page_multiple) + geometry_.page_guard;
  // One more page than whole ones fit: the first row may lie in the middle of a page.
  const uint64_t pages = rows_ / geometry_.rows_per_page + 2 + geometry_.spare_pages;
  reach_ = pages * page_stride_;
}

void RowMemory::ShufflePages(Rng& rng) {
  const bool pages = geometry_.form == KVSTRATA_FORM_PAGES;
  const uint64_t used = pages ? rows_ / geometry_.rows_per_page + 2 : rows_;
  std::vector<int64_t> all(used + geometry_.spare_pages);
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[rng.Below(i)]);
  all.resize(used);
  whole_ids_ = ids_ = all;
}

void RowMemory::MoveTo(uint64_t first_row) { first_row_ = first_row; }

void RowMemory::Rebase(uint64_t first_row) {
  if (geometry_.form == KVSTRATA_FORM_LINEAR || geometry_.form == KVSTRATA_FORM_SLOTS) first_row_ = first_row;
}

bool RowMemory::Holds(uint64_t row) const {
  if (geometry_.form == KVSTRATA_FORM_RING || IsOpaque(stream_)) return true;
  if (geometry_.form != KVSTRATA_FORM_PAGES) return row >= first_row_ && row - first_row_ < rows_;
  return row / geometry_.rows_per_page >= first_row_ / geometry_.rows_per_page && PageOrSlot(row) < ids_.size();
}

void RowMemory::ResizeOpaque(uint64_t bytes) {
  reach_ = bytes;
  rows_ = 1;
  image_.assign(image_bytes(), std::byte{0});
  Poison();
}

void RowMemory::PunchHoles(uint64_t percent, Rng& rng) {
  for (int64_t& id : ids_) {
    if (rng.Chance(percent)) id = -1;
  }
}

void RowMemory::FillHoles() { ids_ = whole_ids_; }

uint64_t RowMemory::PageOrSlot(uint64_t row) const {
  if (geometry_.form == KVSTRATA_FORM_SLOTS) return row - first_row_;
  return row / geometry_.rows_per_page - first_row_ / geometry_.rows_per_page;
}

bool RowMemory::IsHole(uint64_t row) const { return HasIds(geometry_) && ids_[PageOrSlot(row)] < 0; }

std::vector<RowMemory::Piece> RowMemory::Pieces(uint64_t row) const {
  if (IsOpaque(stream_)) return {{kGuardBytes, 0, reach_}};
  uint64_t start = kGuardBytes;
  uint64_t element = 0;
  switch (geometry_.form) {
    case KVSTRATA_FORM_LINEAR: element = row - first_row_; break;
    case KVSTRATA_FORM_RING: {
      const uint64_t capacity = geometry_.capacity_rows;
      element = (row + capacity - geometry_.ring_origin % capacity) % capacity;
      break;
    }
    case KVSTRATA_FORM_PAGES:
      start += static_cast<uint64_t>(ids_[PageOrSlot(row)]) * page_stride_;
      element = row % geometry_.rows_per_page;
      break;
    default: element = static_cast<uint64_t>(ids_[PageOrSlot(row)]); break;
  }
  std::vector<Piece> pieces;
  uint64_t row_offset = 0;
  for (const kvstrata_column& column : columns_) {
    pieces.push_back({start + column.offset + element * column.stride, row_offset, column.bytes});
    row_offset += column.bytes;
  }
  return pieces;
}

const kvstrata_buffer* RowMemory::Describe() {
  buffer_ = Sized<kvstrata_buffer>();
  buffer_.stream = index_;
  buffer_.memory = device_ != nullptr ? KVSTRATA_MEMORY_DEVICE : KVSTRATA_MEMORY_HOST;
  buffer_.form = geometry_.form;
  buffer_.base = (device_ != nullptr ? device_memory_ : image_.data()) + kGuardBytes;
  buffer_.size_bytes = reach_;
  if (IsOpaque(stream_)) return &buffer_;
  if (geometry_.columns.empty()) {
    buffer_.row_stride = geometry_.row_padding == 0 ? 0 : columns_[0].stride;
  } else {
    buffer_.columns = columns_.data();
    buffer_.column_count = columns_.size();
  }
  if (geometry_.form == KVSTRATA_FORM_RING) {
    buffer_.capacity_rows = geometry_.capacity_rows;
    buffer_.first_row = geometry_.ring_origin;
  } else if (IsRows(stream_)) {
    buffer_.first_row = first_row_;
  }
  if (!HasIds(geometry_)) return &buffer_;
  buffer_.rows_per_page = geometry_.rows_per_page;
  buffer_.page_stride = page_stride_;
  if (geometry_.form == KVSTRATA_FORM_PAGES) buffer_.first_page = first_row_ / geometry_.rows_per_page;
  buffer_.page_count = ids_.size();
  buffer_.page_id_bytes = geometry_.page_id_bytes;
  buffer_.page_ids = ids_.data();
  if (geometry_.page_id_bytes == 4) {
    ids32_.assign(ids_.begin(), ids_.end());
    buffer_.page_ids = ids32_.data();
  }
  return &buffer_;
}

// Differs from place to place, so that bytes moved from one guard to another show too.
void RowMemory::Poison() {
  const std::vector<std::byte>& pattern = Poisoned();
  for (size_t at = 0; at < image_.size(); at += pattern.size()) {
    std::memcpy(image_.data() + at, pattern.data(), std::min(pattern.size(), image_.size() - at));
  }
}

void RowMemory::Write(uint64_t row, uint64_t seed) {
  if (IsHole(row)) return;
  row_scratch_.resize(IsOpaque(stream_) ? reach_ : stream_.row_bytes);
  FillBytes(seed, row_scratch_);
  for (const Piece& piece : Pieces(row)) {
    if (piece.bytes == 0) continue;
    std::memcpy(image_.data() + piece.offset, row_scratch_.data() + piece.row_offset, piece.bytes);
  }
}

void RowMemory::CopyRow(uint64_t row, const RowMemory& from) {
  if (IsHole(row)) return;
  for (const Piece& piece : Pieces(row)) {
    if (piece.bytes == 0) continue;
    std::memcpy(image_.data() + piece.offset, from.image_.data() + piece.offset, piece.bytes);
  }
}

void RowMemory::Upload() {
  if (device_ != nullptr) device_->Write(device_memory_, image_.data(), image_.size());
}

void RowMemory::Download() {
  if (device_ != nullptr) device_->Read(image_.data(), device_memory_, image_.size());
}

std::string RowMemory::Compare(const RowMemory& expected) const {
  const bool equal = image_.size() == expected.image_.size() &&
                     (image_.empty() || std::memcmp(image_.data(), expected.image_.data(), image_.size()) == 0);
  if (equal) return "";
  const auto [mine, theirs] =
      std::mismatch(image_.begin(), image_.end(), expected.image_.begin(), expected.image_.end());
  return "stream " + std::to_string(index_) + " (role " + std::to_string(stream_.role) + ", layer " +
         std::to_string(stream_.layer) + ") differs at byte " + std::to_string(mine - image_.begin()) + " of " +
         std::to_string(image_.size()) + ", guards of " + std::to_string(kGuardBytes) + " bytes included";
}

}  // namespace kvstrata::test
