// SPDX-License-Identifier: Apache-2.0
// Row addresses of all four buffer forms against a model that computes each byte's address alone, in wide arithmetic.
#include "lib/engine/buffer.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"

namespace base = kvstrata::core::base;
namespace layout = kvstrata::core::layout;
using namespace kvstrata::core::engine;
using kvstrata::test::Rng;

namespace {

using Wide = unsigned __int128;
constexpr size_t kGuard = 64;
constexpr std::byte kUntouched{0xEE};

layout::Stream RowsStream(uint32_t row_bytes) {
  layout::Stream stream;
  stream.row_bytes = row_bytes;
  stream.ratio = 1;
  return stream;
}

// Where byte `byte` of row `row` lies: nothing when the row is skipped, kNowhere when it has no place at all.
constexpr Wide kNowhere = ~Wide{0};
std::optional<Wide> ModelAddress(const BufferDesc& d, uint32_t row_bytes, uint64_t row, uint64_t element_zero,
                                 uint32_t byte) {
  Wide start = 0, element = 0;
  switch (d.form) {
    case BufferForm::kLinear:
      if (row < element_zero) return kNowhere;
      element = row - element_zero;
      break;
    case BufferForm::kRing:
      element = (Wide{row} + Wide{d.capacity_rows} * 4 - d.first_row % d.capacity_rows) % d.capacity_rows;
      break;
    case BufferForm::kPages: {
      const uint64_t page = row / d.rows_per_page;
      if (page < d.first_page || page - d.first_page >= d.page_ids.size()) return kNowhere;
      if (d.page_ids[page - d.first_page] < 0) return std::nullopt;
      start = Wide{static_cast<uint64_t>(d.page_ids[page - d.first_page])} * d.page_stride;
      element = row % d.rows_per_page;
      break;
    }
    case BufferForm::kSlots:
      if (row < element_zero || row - element_zero >= d.page_ids.size()) return kNowhere;
      if (d.page_ids[row - element_zero] < 0) return std::nullopt;
      element = static_cast<uint64_t>(d.page_ids[row - element_zero]);
      break;
  }
  std::vector<Column> columns = d.columns;
  if (columns.empty()) columns = {{0, d.row_stride == 0 ? row_bytes : d.row_stride, row_bytes}};
  for (const Column& column : columns) {
    if (byte < column.bytes) return start + column.offset + element * column.stride + byte;
    byte -= column.bytes;
  }
  return kNowhere;
}

// What the model says of a range: whether all of it has a place, and whether some row is skipped.
struct Verdict {
  bool fits = true;
  bool skips = false;
};
Verdict ModelVerdict(const BufferDesc& d, uint32_t row_bytes, const RowRange& range) {
  Verdict verdict;
  // A ring that is passed twice would hold two rows in one place.
  if (d.form == BufferForm::kRing && range.count > d.capacity_rows) verdict.fits = false;
  for (uint64_t row = range.first; row < range.first + range.count; ++row) {
    for (uint32_t byte = 0; byte < row_bytes; ++byte) {
      const auto address = ModelAddress(d, row_bytes, row, range.element_zero, byte);
      if (!address.has_value()) verdict.skips = true;
      if (address.has_value() && *address >= d.size_bytes) verdict.fits = false;
    }
  }
  return verdict;
}

// Memory with guards on both sides.
struct Memory {
  explicit Memory(uint64_t size) : bytes(size + 2 * kGuard, kUntouched) {}
  std::byte* base() { return bytes.data() + kGuard; }
  std::vector<std::byte> bytes;
};

std::byte RowByte(uint64_t row, uint32_t byte) {
  return static_cast<std::byte>(kvstrata::test::Mix(row * 4096 + byte) % 200);  // never kUntouched
}

// Columns that add up to row_bytes: interleaved with gaps, or one plane behind the other.
std::vector<Column> RandomColumns(Rng& rng, uint32_t row_bytes, uint64_t rows) {
  std::vector<uint32_t> sizes;
  for (uint32_t left = row_bytes; left > 0;) {
    const uint32_t size = sizes.size() == 3 ? left : static_cast<uint32_t>(rng.Between(1, left));
    sizes.push_back(size);
    left -= size;
  }
  const bool planar = rng.Chance(50);
  std::vector<Column> columns;
  uint64_t offset = rng.Below(4);
  for (const uint32_t size : sizes) {
    const uint64_t gap = rng.Below(3);
    columns.push_back({offset, planar ? size + gap : 0, size});
    offset += planar ? (size + gap) * rows : size + gap;
  }
  if (!planar) {
    for (Column& column : columns) column.stride = offset;
  }
  std::reverse(columns.begin(), columns.end());  // the order of columns is that of the row, not of the memory
  return columns;
}

BufferDesc RandomDesc(Rng& rng, uint32_t row_bytes) {
  BufferDesc d;
  d.form = static_cast<BufferForm>(rng.Below(4));
  // Slot ids go up to 5: with fewer rows a plane, two columns would share bytes.
  const uint64_t rows = rng.Between(d.form == BufferForm::kSlots ? 6 : 1, 12);
  uint64_t page_bytes = 0;
  if (rng.Chance(60)) {
    d.columns = RandomColumns(rng, row_bytes, rows);
    for (const Column& c : d.columns) page_bytes = std::max(page_bytes, c.offset + (rows - 1) * c.stride + c.bytes);
  } else {
    d.row_stride = rng.Chance(50) ? 0 : row_bytes + rng.Below(5);
    page_bytes = rows * std::max<uint64_t>(row_bytes, d.row_stride);
  }
  d.size_bytes = page_bytes;
  d.first_row = rng.Below(20);
  if (d.form == BufferForm::kRing) d.capacity_rows = rows;
  if (d.form == BufferForm::kPages || d.form == BufferForm::kSlots) {
    const uint64_t count = rng.Between(0, 5);
    const bool pages = d.form == BufferForm::kPages;
    d.rows_per_page = pages ? static_cast<uint32_t>(rows) : 0;
    d.first_page = pages ? rng.Below(3) : 0;
    d.page_stride = pages ? page_bytes + rng.Below(7) : 0;
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < 6; ++id) ids.push_back(id);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = rng.Below(ids.size());
      d.page_ids.push_back(rng.Chance(20) ? -1 : ids[at]);
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (pages) d.size_bytes = 5 * d.page_stride + page_bytes;
  }
  // Now and then too small by a little, so that the last row's last byte decides.
  if (rng.Chance(30)) d.size_bytes -= std::min(d.size_bytes, rng.Between(1, 3));
  return d;
}

void CheckScatter(const Buffer& buffer, const BufferDesc& d, uint32_t row_bytes, const RowRange& range,
                  Memory& memory) {
  std::vector<std::byte> expected = memory.bytes, rows(range.count * row_bytes);
  for (uint64_t i = 0; i < range.count; ++i) {
    for (uint32_t byte = 0; byte < row_bytes; ++byte) {
      rows[i * row_bytes + byte] = RowByte(range.first + i, byte);
      const auto address = ModelAddress(d, row_bytes, range.first + i, range.element_zero, byte);
      if (address.has_value()) expected[kGuard + static_cast<size_t>(*address)] = rows[i * row_bytes + byte];
    }
  }
  REQUIRE(buffer.Scatter(range, rows.data()).ok());
  REQUIRE(memory.bytes == expected);
  std::vector<std::byte> back(rows.size(), kUntouched);
  REQUIRE(buffer.Gather(range, back.data()).ok());
  for (uint64_t i = 0; i < range.count; ++i) {
    const bool skipped = !ModelAddress(d, row_bytes, range.first + i, range.element_zero, 0).has_value();
    for (uint32_t byte = 0; byte < row_bytes; ++byte) {
      REQUIRE(back[i * row_bytes + byte] == (skipped ? kUntouched : rows[i * row_bytes + byte]));
    }
  }
}

// The runs themselves, as a device would be given them: each byte of each unskipped row exactly once.
void CheckRuns(const std::vector<CopyRun>& runs, const BufferDesc& d, uint32_t row_bytes, const RowRange& range,
               uint64_t host_offset) {
  std::vector<int> seen(range.count * row_bytes, 0);
  for (const CopyRun& run : runs) {
    for (uint64_t i = 0; i < run.count; ++i) {
      for (uint64_t b = 0; b < run.bytes; ++b) {
        const uint64_t host = run.host_offset + i * run.host_stride + b - host_offset;
        REQUIRE(host < seen.size());
        ++seen[host];
        const auto address = ModelAddress(d, row_bytes, range.first + host / row_bytes, range.element_zero,
                                          static_cast<uint32_t>(host % row_bytes));
        REQUIRE(address.has_value());
        REQUIRE(*address == Wide{run.memory_offset} + Wide{i} * run.memory_stride + b);
      }
    }
  }
  for (uint64_t host = 0; host < seen.size(); ++host) {
    const auto address = ModelAddress(d, row_bytes, range.first + host / row_bytes, range.element_zero, 0);
    REQUIRE(seen[host] == (address.has_value() ? 1 : 0));
  }
}

}  // namespace

TEST_CASE("every form puts every byte where the model does, and nowhere else") {
  Rng rng(kvstrata::test::TestSeed("buffer_model", 20260310));
  uint64_t fitting = 0, refused = 0, skipping = 0;
  for (int round = 0; round < 6000; ++round) {
    const uint32_t row_bytes = static_cast<uint32_t>(rng.Between(1, 9));
    BufferDesc d = RandomDesc(rng, row_bytes);
    Memory memory(d.size_bytes);
    d.base = memory.base();
    const auto buffer = Buffer::Create(RowsStream(row_bytes), d);
    REQUIRE(buffer.ok());
    RowRange range{rng.Below(30), rng.Below(14), 0};
    range.element_zero = rng.Chance(80) ? std::min(d.first_row, range.first) : d.first_row;
    CAPTURE(round, static_cast<int>(d.form), row_bytes, d.size_bytes, range.first, range.count, range.element_zero);
    const Verdict verdict = ModelVerdict(d, row_bytes, range);
    REQUIRE(buffer->CheckRows(range).ok() == verdict.fits);
    if (!verdict.fits) {
      ++refused;
      std::vector<std::byte> rows(range.count * row_bytes + 1);
      REQUIRE_FALSE(buffer->Scatter(range, rows.data()).ok());
      REQUIRE_FALSE(buffer->Gather(range, rows.data()).ok());
      REQUIRE(std::ranges::count(memory.bytes, kUntouched) == static_cast<std::ptrdiff_t>(memory.bytes.size()));
      continue;
    }
    ++fitting;
    skipping += verdict.skips ? 1 : 0;
    REQUIRE(buffer->HasSkips(range) == verdict.skips);
    CheckRuns(buffer->Runs(range, 1000).value(), d, row_bytes, range, 1000);
    CheckScatter(*buffer, d, row_bytes, range, memory);
  }
  // The random buffers must not be all of one kind.
  CHECK(fitting > 1000);
  CHECK(refused > 1000);
  CHECK(skipping > 100);
}

TEST_CASE("offsets near 2^64 are refused, not wrapped") {
  const uint64_t huge = UINT64_MAX;
  std::vector<std::byte> memory(64);
  const auto refused = [&](BufferDesc d, RowRange range) {
    d.base = memory.data();
    d.size_bytes = memory.size();
    const auto buffer = Buffer::Create(RowsStream(4), d);
    return !buffer.ok() || !buffer->CheckRows(range).ok();
  };
  for (const uint64_t stride : {huge, huge - 3, huge / 2, huge / 3 + 1}) {
    CAPTURE(stride);
    BufferDesc linear;
    linear.row_stride = stride;
    CHECK_FALSE(refused(linear, {0, 1, 0}));  // one row needs no stride
    CHECK(refused(linear, {1, 1, 0}));
    CHECK(refused(linear, {0, 2, 0}));
    CHECK(refused(linear, {2, 3, 0}));
    BufferDesc column;
    column.columns = {{stride, 4, 4}};
    CHECK(refused(column, {0, 1, 0}));
    CHECK(refused(column, {0, 16, 0}));
    BufferDesc pages;
    pages.form = BufferForm::kPages;
    pages.rows_per_page = 2;
    pages.page_stride = stride;
    for (const int64_t id : {int64_t{1}, int64_t{2}, int64_t{3}, INT64_MAX}) {
      pages.page_ids = {id};
      CHECK(refused(pages, {0, 1, 0}));
      CHECK(refused(pages, {0, 2, 0}));
    }
    BufferDesc slots;
    slots.form = BufferForm::kSlots;
    slots.row_stride = stride;
    slots.page_ids = {INT64_MAX};
    CHECK(refused(slots, {0, 1, 0}));
  }
  BufferDesc pages;
  pages.form = BufferForm::kPages;
  pages.rows_per_page = UINT32_MAX;
  pages.page_stride = 1;
  pages.first_page = huge;
  pages.page_ids = {0};
  CHECK(refused(pages, {0, 1, 0}));
  // Row numbers that pass the end of 64 bits.
  BufferDesc linear;
  CHECK(refused(linear, {huge - 1, 5, 0}));
  CHECK(refused(linear, {huge - 1, 5, huge - 1}));
  CHECK(refused(linear, {0, huge, 0}));
  CHECK_FALSE(refused(linear, {huge - 2, 2, huge - 2}));
}

TEST_CASE("a ring of any capacity finds its rows") {
  std::vector<std::byte> memory(64);
  for (const uint64_t capacity : {uint64_t{1}, uint64_t{5}, uint64_t{1} << 63, UINT64_MAX - 1, UINT64_MAX}) {
    CAPTURE(capacity);
    BufferDesc d;
    d.form = BufferForm::kRing;
    d.base = memory.data();
    d.size_bytes = memory.size();
    d.capacity_rows = capacity;
    d.first_row = capacity - 1;
    const Buffer buffer = Buffer::Create(RowsStream(4), d).value();
    // Row capacity - 1 lies in slot 0, so row 0 lies in slot 1 (modulo the capacity), and row 1 in slot 2.
    for (const uint64_t row : {uint64_t{0}, uint64_t{1}}) {
      const auto runs = buffer.Runs({row, 1, 0}, 0);
      REQUIRE(runs.ok());
      CHECK(runs->at(0).memory_offset == (row + 1) % capacity * 4);
    }
    d.first_row = 0;
    CHECK(Buffer::Create(RowsStream(4), d).value().Runs({7, 1, 0}, 0)->at(0).memory_offset == 7 % capacity * 4);
  }
}

TEST_CASE("a buffer that cannot be is refused by the member at fault") {
  std::vector<std::byte> memory(64);
  const auto field_of = [&](auto change) {
    BufferDesc d;
    d.stream = 3;
    d.base = memory.data();
    d.size_bytes = memory.size();
    layout::Stream stream = RowsStream(8);
    change(d, stream);
    const absl::Status status = Buffer::Create(stream, std::move(d)).status();
    REQUIRE(base::CodeOf(status) == base::Code::kInvalidArgument);
    return base::FieldOf(status);
  };
  using D = BufferDesc&;
  using S = layout::Stream&;
  CHECK(field_of([](D d, S) { d.base = nullptr; }) == "buffer[stream 3].base");
  CHECK(field_of([](D d, S) { d.row_stride = 7; }) == "buffer[stream 3].row_stride");
  CHECK(field_of([](D d, S) { d.form = BufferForm::kRing; }) == "buffer[stream 3].capacity_rows");
  CHECK(field_of([](D d, S) { d.form = BufferForm::kPages; }) == "buffer[stream 3].rows_per_page");
  CHECK(field_of([](D d, S) { d.form = static_cast<BufferForm>(4); }) == "buffer[stream 3].form");
  CHECK(field_of([](D d, S) { d.columns.resize(9, {0, 1, 1}); }) == "buffer[stream 3].column_count");
  CHECK(field_of([](D d, S) { d.columns = {{0, 8, 7}}; }) == "buffer[stream 3].columns");
  CHECK(field_of([](D d, S) { d.columns = {{0, 8, 8}, {8, 0, 0}}; }) == "buffer[stream 3].columns");
  CHECK(field_of([](D d, S) { d.columns = {{0, 7, 8}}; }) == "buffer[stream 3].columns");
  // Sizes that add up only modulo 2^32.
  CHECK(field_of([](D d, S) { d.columns = {{0, UINT64_MAX, UINT32_MAX}, {0, 9, 9}}; }) == "buffer[stream 3].columns");
  CHECK(field_of([](D d, S) {
          d.form = BufferForm::kSlots;
          d.page_ids = {0, -2};
        }) == "buffer[stream 3].page_ids");
  const auto variable = [](S s) {
    s.kind = layout::StreamKind::kState;
    s.role = layout::Role::kOpaque;
    s.row_bytes = 0;
  };
  CHECK(field_of([&](D d, S s) {
          variable(s);
          d.form = BufferForm::kSlots;
        }) == "buffer[stream 3].form");
  CHECK(field_of([&](D d, S s) {
          variable(s);
          d.columns = {{0, 8, 8}};
        }) == "buffer[stream 3].columns");
  CHECK(field_of([&](D d, S s) {
          variable(s);
          d.size_bytes = uint64_t{1} << 32;
        }) == "buffer[stream 3].size_bytes");
}

TEST_CASE("an opaque state is one row of the buffer's size, an empty one included") {
  layout::Stream stream;
  stream.kind = layout::StreamKind::kState;
  stream.role = layout::Role::kOpaque;
  std::vector<std::byte> memory(10, std::byte{7}), row(10);
  for (const uint64_t size : {uint64_t{10}, uint64_t{0}}) {
    BufferDesc d;
    d.base = size == 0 ? nullptr : memory.data();
    d.size_bytes = size;
    const auto buffer = Buffer::Create(stream, d);
    REQUIRE(buffer.ok());
    CHECK(buffer->row_bytes() == size);
    CHECK(buffer->CheckRows({0, 1, 0}).ok());
    CHECK(buffer->Gather({0, 1, 0}, row.data()).ok());
  }
  CHECK(row == memory);
}

TEST_CASE("the rows of a state stream at a position") {
  layout::LayoutDesc desc;
  desc.block_tokens = 8;
  const auto add = [&](layout::Role role, uint32_t ratio, uint32_t rows) {
    layout::Stream stream;
    stream.kind = layout::StreamKind::kState;
    stream.role = role;
    stream.ratio = ratio;
    stream.row_bytes = 4;
    stream.state_rows = rows;
    desc.streams.push_back(stream);
  };
  add(layout::Role::kWindow, 0, 5);
  add(layout::Role::kOverlap, 4, 4);
  add(layout::Role::kOpen, 8, 7);
  add(layout::Role::kOther, 0, 3);
  const layout::Layout layout = layout::Layout::Create(desc).value();
  const auto is = [&](uint32_t stream, uint64_t position, uint64_t first, uint64_t count) {
    const RowRange range = StateRows(layout, stream, position);
    return range.first == first && range.count == count && (count == 0 || range.element_zero == first);
  };
  CHECK(is(0, 3, 0, 3));   // the window is not full yet
  CHECK(is(0, 12, 7, 5));  // the newest five
  CHECK(is(1, 3, 0, 0));   // no complete group
  CHECK(is(1, 4, 0, 4));
  CHECK(is(1, 11, 4, 4));  // the group before the open one
  CHECK(is(2, 8, 8, 0));
  CHECK(is(2, 11, 8, 3));
  CHECK(is(3, 11, 0, 3));
}
