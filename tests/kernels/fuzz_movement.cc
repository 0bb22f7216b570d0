// SPDX-License-Identifier: Apache-2.0
// Windows and pages: the same bytes on every level, and none beside them.
#include <algorithm>
#include <numeric>

#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {
namespace {

uint8_t* RandomBytes(Case& c, uint64_t bytes, bool input) {
  std::vector<uint8_t> values(bytes);
  for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    const uint64_t word = c.rng.Next();
    std::memcpy(values.data() + i, &word, std::min<uint64_t>(sizeof word, bytes - i));
  }
  return input ? const_cast<uint8_t*>(c.Input(values)) : c.Copy(values);
}

uint64_t Extent(uint64_t rows, uint64_t stride, uint64_t row) { return rows == 0 ? 0 : (rows - 1) * stride + row; }

// The two segments of a planar V4 page (reference section 7.1), or a few of any sizes, one plane after the other.
struct PageLayout {
  uint64_t rows_per_page = 0, page_bytes = 0, block_row = 0;
  std::vector<kvstrata_segment> segments;
};

PageLayout MakeLayout(Case& c) {
  PageLayout layout;
  layout.rows_per_page = c.rng.Chance(40) ? 64 : c.rng.Between(1, 9);
  std::vector<uint64_t> sizes = {576, 8};
  if (c.rng.Chance(50)) {
    sizes.resize(c.rng.Between(1, 4));
    for (uint64_t& size : sizes) size = c.rng.Between(1, 200);
  }
  for (const uint64_t size : sizes) {
    const uint64_t stride = c.Stride(size);
    layout.block_row += c.rng.Chance(70) ? 0 : c.rng.Below(5);
    layout.segments.push_back({layout.block_row, layout.page_bytes, stride, size});
    layout.block_row += size;
    layout.page_bytes += (layout.rows_per_page - 1) * stride + size;
  }
  layout.page_bytes += c.rng.Below(20);
  return layout;
}

// Ids of `count` pages, all different, some -1, of either width.
const void* PageIds(Case& c, uint64_t count, uint64_t pages, int32_t type) {
  std::vector<int64_t> ids(pages);
  std::iota(ids.begin(), ids.end(), 0);
  for (uint64_t i = pages; i > 1; --i) std::swap(ids[i - 1], ids[c.rng.Below(i)]);
  ids.resize(count);
  for (int64_t& id : ids) {
    if (c.rng.Chance(10)) id = -1;
  }
  if (type == KVSTRATA_KERNELS_INT64) return c.Input(ids);
  return c.Input(std::vector<int32_t>(ids.begin(), ids.end()));
}

}  // namespace

void FuzzWindow(Case& c) {
  constexpr uint64_t kRowBytes[] = {584, 1024, 2048, 528};
  const uint64_t row_bytes = c.rng.Chance(50) ? c.OneOf(kRowBytes) : c.rng.Between(1, 70);
  // Now and then more than the 4 MiB above which a level may write past the caches.
  const uint64_t large = (uint64_t{5} << 20) / row_bytes;
  const uint64_t capacity = c.rng.Chance(30) ? 128 : c.rng.Chance(3) ? large : c.rng.Between(1, 12);
  const uint64_t which = c.rng.Below(3);  // append, import, export
  const uint64_t rows = c.rng.Below((which == 0 ? 2 * capacity : capacity) + 1);
  const uint64_t position = c.rng.Below(1000000);
  const uint64_t ring_stride = c.Stride(row_bytes);
  const uint64_t linear_stride = c.Stride(row_bytes);
  const uint64_t ring_bytes = Extent(capacity, ring_stride, row_bytes);
  const uint64_t linear_bytes = Extent(rows, linear_stride, row_bytes);
  uint8_t* ring = RandomBytes(c, ring_bytes, which == 2);
  uint8_t* linear = RandomBytes(c, linear_bytes, which != 2);
  if (which == 2) {
    c.AddOutput("window_export", Element::kByte, Match::kBits, linear, linear_bytes);
  } else {
    c.AddOutput(which == 0 ? "window_append" : "window_import", Element::kByte, Match::kBits, ring, ring_bytes);
  }
  c.Freeze();
  const auto move = which == 0 ? c.k.window_append : which == 1 ? c.k.window_import : c.k.window_export;
  for (uint64_t row = 0, piece = 0; row < rows; row += piece) {
    piece = c.Piece(rows - row);
    kvstrata_window_args a = Args<kvstrata_window_args>();
    a.row_bytes = row_bytes;
    a.capacity = capacity;
    a.position = position + row;
    a.rows = piece;
    a.ring = ring;
    a.ring_stride_bytes = ring_stride;
    a.linear = linear + row * linear_stride;
    a.linear_stride_bytes = linear_stride;
    c.Ok(move(&a, nullptr), "window");
  }
}

void FuzzMove(Case& c) {
  const PageLayout layout = MakeLayout(c);
  const uint64_t first_row = c.rng.Below(3 * layout.rows_per_page);
  // Now and then more than the 4 MiB above which a level may write past the caches.
  const uint64_t rows =
      c.rng.Chance(3) ? (uint64_t{5} << 20) / layout.block_row : c.rng.Below(3 * layout.rows_per_page);
  const uint64_t id_count = (first_row + rows) / layout.rows_per_page + 1;
  const uint64_t pages = id_count + c.rng.Below(3);
  const uint64_t page_stride = c.Stride(layout.page_bytes);
  const uint64_t block_stride = c.Stride(layout.block_row);
  const int32_t id_type = c.rng.Chance(50) ? KVSTRATA_KERNELS_INT64 : KVSTRATA_KERNELS_INT32;
  const void* ids = PageIds(c, id_count, pages, id_type);
  const kvstrata_segment* segments = c.Input(layout.segments);
  const bool gather = c.rng.Chance(50);
  // A page is page_stride bytes long, also the last one.
  uint8_t* page_data = RandomBytes(c, pages * page_stride, gather);
  uint8_t* block = RandomBytes(c, Extent(rows, block_stride, layout.block_row), !gather);
  if (gather) {
    c.AddOutput("gather_rows", Element::kByte, Match::kBits, block, Extent(rows, block_stride, layout.block_row));
  } else {
    c.AddOutput("scatter_rows", Element::kByte, Match::kBits, page_data, pages * page_stride);
  }
  c.Freeze();
  for (uint64_t row = 0, piece = 0; row < rows; row += piece) {
    piece = c.Piece(rows - row);
    kvstrata_move_args a = Args<kvstrata_move_args>();
    a.page_id_type = id_type;
    a.rows = piece;
    a.first_row = first_row + row;
    a.rows_per_page = layout.rows_per_page;
    a.page_ids = ids;
    a.page_id_count = id_count;
    a.page_limit = c.rng.Chance(50) ? pages : 0;
    a.pages = page_data;
    a.page_stride_bytes = page_stride;
    a.block = block + row * block_stride;
    a.block_stride_bytes = block_stride;
    a.segments = segments;
    a.segment_count = layout.segments.size();
    c.Ok((gather ? c.k.gather_rows : c.k.scatter_rows)(&a, nullptr), "move");
  }
}

}  // namespace kvstrata::kernels::test
