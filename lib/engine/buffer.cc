// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/buffer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lib/base/checked.h"
#include "lib/base/copy.h"
#include "lib/base/status.h"

namespace kvstrata::core::engine {
namespace {

// Rounds rows that lie back to back on both sides into one copy.
CopyRun Collapse(CopyRun run) {
  if (run.count > 1 && run.host_stride == run.bytes && run.memory_stride == run.bytes) {
    run.bytes *= run.count;
    run.count = 1;
  }
  return run;
}

// offset + (rows - 1) * stride + bytes, if it fits in 64 bits.
std::optional<uint64_t> ReachOf(uint64_t offset, uint64_t last_element, uint64_t stride, uint64_t bytes) {
  const auto span = base::CheckedMul(last_element, stride);
  if (!span) return std::nullopt;
  const auto begin = base::CheckedAdd(offset, *span);
  if (!begin) return std::nullopt;
  return base::CheckedAdd(*begin, bytes);
}

}  // namespace

absl::Status Buffer::Fail(const char* member, const std::string& message) const {
  return base::InvalidArgument("buffer[stream " + std::to_string(desc_.stream) + "]." + member, message);
}

absl::StatusOr<Buffer> Buffer::Create(const layout::Stream& stream, BufferDesc desc) {
  Buffer buffer;
  buffer.desc_ = std::move(desc);
  BufferDesc& d = buffer.desc_;
  if (d.base == nullptr && d.size_bytes > 0) return buffer.Fail("base", "NULL with a size");
  if (stream.is_variable()) {
    // The whole buffer is the one row; its size may differ from snapshot to snapshot.
    if (d.form != BufferForm::kLinear) return buffer.Fail("form", "an opaque state must be LINEAR");
    if (!d.columns.empty()) return buffer.Fail("columns", "an opaque state has none");
    if (d.size_bytes > UINT32_MAX) return buffer.Fail("size_bytes", std::to_string(d.size_bytes) + " > 4 GiB");
    buffer.row_bytes_ = static_cast<uint32_t>(d.size_bytes);
    d.columns = {Column{0, d.size_bytes, buffer.row_bytes_}};
    return buffer;
  }
  buffer.row_bytes_ = stream.row_bytes;
  if (d.columns.empty()) {
    const uint64_t stride = d.row_stride == 0 ? stream.row_bytes : d.row_stride;
    if (stride < stream.row_bytes) return buffer.Fail("row_stride", std::to_string(stride) + " < row_bytes");
    d.columns = {Column{0, stride, stream.row_bytes}};
  }
  if (d.columns.size() > kMaxColumns) return buffer.Fail("column_count", std::to_string(d.columns.size()) + " > 8");
  uint64_t total = 0;
  for (const Column& column : d.columns) {
    if (column.bytes == 0 || column.stride < column.bytes) {
      return buffer.Fail("columns", "bytes 0, or a stride of " + std::to_string(column.stride) + " < bytes " +
                                        std::to_string(column.bytes));
    }
    total += column.bytes;
  }
  if (total != stream.row_bytes) {
    return buffer.Fail("columns",
                       "add up to " + std::to_string(total) + " bytes, a row has " + std::to_string(stream.row_bytes));
  }
  switch (d.form) {
    case BufferForm::kLinear: break;
    case BufferForm::kRing:
      if (d.capacity_rows == 0) return buffer.Fail("capacity_rows", "0");
      break;
    case BufferForm::kPages:
      if (d.rows_per_page == 0) return buffer.Fail("rows_per_page", "0");
      [[fallthrough]];
    case BufferForm::kSlots:
      for (const int64_t id : d.page_ids) {
        if (id < -1) return buffer.Fail("page_ids", std::to_string(id) + " is neither an id nor -1");
      }
      break;
    default: return buffer.Fail("form", std::to_string(static_cast<int32_t>(d.form)));
  }
  return buffer;
}

absl::StatusOr<Buffer::Place> Buffer::PlaceOf(uint64_t row, uint64_t remaining, uint64_t element_zero) const {
  Place place;
  switch (desc_.form) {
    case BufferForm::kLinear:
      if (row < element_zero) return Fail("first_row", std::to_string(element_zero) + " > row " + std::to_string(row));
      place.element = row - element_zero;
      place.run = remaining;
      return place;
    case BufferForm::kRing: {
      const uint64_t capacity = desc_.capacity_rows;
      const uint64_t slot = row % capacity, origin = desc_.first_row % capacity;
      place.element = slot >= origin ? slot - origin : capacity - (origin - slot);
      place.run = std::min(remaining, capacity - place.element);
      return place;
    }
    case BufferForm::kPages: {
      const uint64_t page = row / desc_.rows_per_page;
      if (page < desc_.first_page || page - desc_.first_page >= desc_.page_ids.size()) {
        return Fail("page_count", "no page id for row " + std::to_string(row));
      }
      const int64_t id = desc_.page_ids[page - desc_.first_page];
      place.element = row % desc_.rows_per_page;
      place.run = std::min<uint64_t>(remaining, desc_.rows_per_page - place.element);
      place.skipped = id < 0;
      if (place.skipped) return place;
      const auto start = base::CheckedMul(static_cast<uint64_t>(id), desc_.page_stride);
      if (!start) return Fail("page_ids", std::to_string(id) + " lies outside the buffer");
      place.start = *start;
      return place;
    }
    case BufferForm::kSlots: {
      if (row < element_zero || row - element_zero >= desc_.page_ids.size()) {
        return Fail("page_count", "no slot for row " + std::to_string(row));
      }
      const int64_t id = desc_.page_ids[row - element_zero];
      place.skipped = id < 0;
      place.element = place.skipped ? 0 : static_cast<uint64_t>(id);
      return place;
    }
  }
  return Fail("form", std::to_string(static_cast<int32_t>(desc_.form)));
}

absl::StatusOr<std::vector<CopyRun>> Buffer::Runs(const RowRange& range, uint64_t host_offset) const {
  std::vector<CopyRun> runs;
  if (!base::CheckedAdd(range.first, range.count)) return Fail("rows", "their numbers pass 2^64");
  if (desc_.form == BufferForm::kRing && range.count > desc_.capacity_rows) {
    return Fail("capacity_rows", std::to_string(desc_.capacity_rows) + " < " + std::to_string(range.count) + " rows");
  }
  for (uint64_t done = 0; done < range.count;) {
    const absl::StatusOr<Place> place = PlaceOf(range.first + done, range.count - done, range.element_zero);
    if (!place.ok()) return place.status();
    uint64_t column_in_row = 0;
    for (const Column& column : desc_.columns) {
      if (place->skipped) break;
      const auto offset = base::CheckedAdd(place->start, column.offset);
      const auto end =
          offset ? ReachOf(*offset, place->element + place->run - 1, column.stride, column.bytes) : std::nullopt;
      if (!end || *end > desc_.size_bytes) {
        return Fail("size_bytes", "row " + std::to_string(range.first + done + place->run - 1) + " lies outside its " +
                                      std::to_string(desc_.size_bytes) + " bytes");
      }
      runs.push_back(Collapse({.host_offset = host_offset + done * row_bytes_ + column_in_row,
                               .memory_offset = *offset + place->element * column.stride,
                               .bytes = column.bytes,
                               .host_stride = row_bytes_,
                               .memory_stride = column.stride,
                               .count = place->run}));
      column_in_row += column.bytes;
    }
    done += place->run;
  }
  return runs;
}

absl::Status Buffer::CheckRows(const RowRange& range) const { return Runs(range, 0).status(); }

bool Buffer::HasSkips(const RowRange& range) const {
  for (uint64_t done = 0; done < range.count;) {
    const absl::StatusOr<Place> place = PlaceOf(range.first + done, range.count - done, range.element_zero);
    if (!place.ok()) return false;
    if (place->skipped) return true;
    done += place->run;
  }
  return false;
}

absl::Status Buffer::Scatter(const RowRange& range, const std::byte* rows) const {
  const absl::StatusOr<std::vector<CopyRun>> runs = Runs(range, 0);
  if (!runs.ok()) return runs.status();
  for (const CopyRun& run : *runs) {
    base::CopyRowsPastCaches(desc_.base + run.memory_offset, run.memory_stride, rows + run.host_offset, run.host_stride,
                             run.bytes, run.count);
  }
  return absl::OkStatus();
}

absl::Status Buffer::Gather(const RowRange& range, std::byte* rows) const {
  const absl::StatusOr<std::vector<CopyRun>> runs = Runs(range, 0);
  if (!runs.ok()) return runs.status();
  for (const CopyRun& run : *runs) {
    for (uint64_t i = 0; i < run.count; ++i) {
      base::CopyBytes(rows + run.host_offset + i * run.host_stride,
                      desc_.base + run.memory_offset + i * run.memory_stride, run.bytes);
    }
  }
  return absl::OkStatus();
}

base::ByteView Buffer::InOnePiece(const RowRange& range) const {
  const absl::StatusOr<std::vector<CopyRun>> runs = Runs(range, 0);
  if (!runs.ok() || runs->size() != 1 || runs->front().count != 1) return {};
  return {desc_.base + runs->front().memory_offset, runs->front().bytes};
}

RowRange StateRows(const layout::Layout& layout, uint32_t stream, uint64_t position) {
  const layout::Stream& s = layout.stream(stream);
  const uint64_t rows = layout.StateRows(stream, position);
  switch (s.role) {
    case layout::Role::kWindow: return {position - rows, rows, position - rows};
    case layout::Role::kOverlap:
    case layout::Role::kIndexOverlap: {
      const uint64_t end = position - position % s.ratio;
      return {end - rows, rows, end - rows};
    }
    case layout::Role::kOpen:
    case layout::Role::kIndexOpen: return {position - rows, rows, position - rows};
    default: return {0, rows, 0};
  }
}

}  // namespace kvstrata::core::engine
