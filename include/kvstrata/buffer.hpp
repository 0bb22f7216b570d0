// SPDX-License-Identifier: Apache-2.0
// kvstrata/buffer.hpp - where an engine's rows live, as source and as destination. C++17, header-only.
//
// One descriptor for both directions, one per stream; c_api.h section 6 says how a row index becomes an address. The
// memory is borrowed: how long it must stay is said by restore_plan::start and writer::set_source.
//
// Thread rule: plain values.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kvstrata/c_api.h"
#include "kvstrata/views.hpp"

namespace kvstrata {
inline namespace v1 {

/// Builds a kvstrata_buffer. Start with the form, then say what differs from the default.
class buffer {
 public:
  /// Rows one after the other. In a rows stream element 0 is row `first_row`; in a state stream the oldest row.
  static buffer linear(std::uint32_t stream, mutable_byte_view memory, std::uint64_t first_row = 0) noexcept {
    buffer out(stream, KVSTRATA_FORM_LINEAR, memory);
    out.c_.first_row = first_row;
    return out;
  }
  /// `capacity_rows` slots; row r lies in slot (r - first_row) mod capacity_rows.
  static buffer ring(std::uint32_t stream, mutable_byte_view memory, std::uint64_t capacity_rows,
                     std::uint64_t first_row = 0) noexcept {
    buffer out(stream, KVSTRATA_FORM_RING, memory);
    out.c_.capacity_rows = capacity_rows;
    out.c_.first_row = first_row;
    return out;
  }
  /// Pages of rows_per_page rows, page_stride bytes apart; page_ids[n] is the place of page first_page + n, -1 skips.
  /// Id is int32_t or int64_t; the ids are copied by the call that the buffer is passed to.
  template <class Id>
  static buffer pages(std::uint32_t stream, mutable_byte_view memory, std::uint32_t rows_per_page,
                      std::uint64_t page_stride, const Id* page_ids, std::size_t page_count,
                      std::uint64_t first_page = 0) noexcept {
    buffer out(stream, KVSTRATA_FORM_PAGES, memory);
    out.c_.rows_per_page = rows_per_page;
    out.c_.page_stride = page_stride;
    out.c_.first_page = first_page;
    out.set_ids(page_ids, page_count);
    return out;
  }
  /// Row first_row + n lies at slot slots[n]; -1 skips.
  template <class Id>
  static buffer slots(std::uint32_t stream, mutable_byte_view memory, const Id* slots, std::size_t count,
                      std::uint64_t first_row = 0) noexcept {
    buffer out(stream, KVSTRATA_FORM_SLOTS, memory);
    out.c_.first_row = first_row;
    out.set_ids(slots, count);
    return out;
  }

  /// Bytes between rows, when they are not row_bytes and there are no columns.
  buffer& row_stride(std::uint64_t bytes) noexcept {
    c_.row_stride = bytes;
    return *this;
  }
  /// Adds a column: `bytes` bytes of every row, `offset` bytes from the base (of the page), `stride` bytes from row to
  /// row. The columns, in this order, make up the canonical row. At most 8.
  buffer& column(std::uint32_t bytes, std::uint64_t offset, std::uint64_t stride) noexcept {
    assert(c_.column_count < columns_.size());
    kvstrata_column& column = columns_[static_cast<std::size_t>(c_.column_count++)];
    column.struct_size = sizeof column;
    column.bytes = bytes;
    column.offset = offset;
    column.stride = stride;
    return *this;
  }
  /// The memory belongs to a device (cache_options::device moves the bytes).
  buffer& on_device(std::int32_t device_id) noexcept {
    c_.memory = KVSTRATA_MEMORY_DEVICE;
    c_.device_id = device_id;
    return *this;
  }

  std::uint32_t stream() const noexcept { return c_.stream; }
  /// The descriptor of the C API. Points into this object: valid until it is changed, moved or destroyed.
  kvstrata_buffer to_c() const noexcept {
    kvstrata_buffer out = c_;
    out.columns = c_.column_count != 0 ? columns_.data() : nullptr;
    return out;
  }

 private:
  buffer(std::uint32_t stream, std::int32_t form, mutable_byte_view memory) noexcept {
    c_.struct_size = sizeof c_;
    c_.stream = stream;
    c_.form = form;
    c_.base = memory.data();
    c_.size_bytes = memory.size();
  }
  template <class Id>
  void set_ids(const Id* ids, std::size_t count) noexcept {
    static_assert(std::is_same_v<Id, std::int32_t> || std::is_same_v<Id, std::int64_t>);
    c_.page_ids = ids;
    c_.page_count = count;
    c_.page_id_bytes = sizeof(Id);
  }

  kvstrata_buffer c_{};
  std::array<kvstrata_column, 8> columns_{};
};

}  // namespace v1
}  // namespace kvstrata
