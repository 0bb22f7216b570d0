// SPDX-License-Identifier: Apache-2.0
// Where a fake engine keeps one stream's rows: every form of kvstrata_buffer (linear, ring, pages, slots), with
// columns, holes and guard bytes all round. Addresses are computed from the header's text alone, in a second way
// beside the library's.
//
// The memory has an image on the host. Written rows go to the image; a check builds the image that should be (guard
// pattern everywhere, expected rows on top) and compares all bytes, so a write outside the promised rows shows too.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvstrata/c_api.h"
#include "tests/support/engine_device.h"
#include "tests/support/fake_random.h"
#include "tests/support/fake_sequence.h"

namespace kvstrata::test {

// How a stream's rows lie. Columns' bytes add up to row_bytes; none given: one column.
struct Geometry {
  int32_t form = KVSTRATA_FORM_LINEAR;
  std::vector<uint32_t> columns;
  bool planar = false;         // PAGES: column after column inside a page; else columns interleaved row by row
  uint64_t row_padding = 0;    // bytes after each row (of each column, when planar)
  uint32_t rows_per_page = 0;  // PAGES
  uint64_t page_multiple = 1;  // PAGES: page sizes are rounded up to a multiple of it
  uint64_t page_guard = 0;     // PAGES: guard bytes after each page
  uint32_t page_id_bytes = 4;  // PAGES, SLOTS
  uint64_t spare_pages = 0;    // pages or slots that no id names
  uint64_t capacity_rows = 0;  // RING
  uint64_t ring_origin = 0;    // RING: the row in slot 0, modulo capacity
};

class RowMemory {
 public:
  static constexpr uint64_t kGuardBytes = 64;

  // Holds rows [first, first + rows) of the stream; for state streams the rows move with the position: MoveTo.
  // `device` null: host memory.
  RowMemory(uint32_t index, const kvstrata_stream& stream, const Geometry& geometry, uint64_t rows,
            EngineDevice* device, Rng& rng);
  // The same rows in the same form; with `device` null on the host, whatever the other's memory is.
  RowMemory(const RowMemory& other, EngineDevice* device);
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;
  ~RowMemory();

  uint32_t index() const { return index_; }
  const kvstrata_stream& stream() const { return stream_; }

  // State streams: the first row held; ids and elements are counted from it. An opaque state: also its size.
  void MoveTo(uint64_t first_row);
  // Where a state of another position than the one described would lie: elements count from its oldest row, pages and
  // rings by the row itself.
  void Rebase(uint64_t first_row);
  bool Holds(uint64_t row) const;
  void ResizeOpaque(uint64_t bytes);
  // Makes `percent` of the page or slot ids -1, or gives all of them a page again.
  void PunchHoles(uint64_t percent, Rng& rng);
  void FillHoles();
  bool IsHole(uint64_t row) const;

  // The descriptor for the library; valid until the memory changes.
  const kvstrata_buffer* Describe();

  void Poison();
  // Both skip holes.
  void Write(uint64_t row, uint64_t seed);
  void CopyRow(uint64_t row, const RowMemory& from);

  // Device memory: moves the image to the device, or back. Nothing on the host.
  void Upload();
  void Download();

  // "" when both hold the same bytes, else where they first differ.
  std::string Compare(const RowMemory& expected) const;

 private:
  struct Piece {
    uint64_t offset = 0;  // in the image, guards included
    uint64_t row_offset = 0;
    uint64_t bytes = 0;
  };
  std::vector<Piece> Pieces(uint64_t row) const;
  void LayOutColumns();
  void ShufflePages(Rng& rng);
  uint64_t PageOrSlot(uint64_t row) const;
  uint64_t image_bytes() const { return reach_ + 2 * kGuardBytes; }

  const uint32_t index_;
  const kvstrata_stream stream_;
  const Geometry geometry_;
  EngineDevice* const device_;
  uint64_t first_row_ = 0;
  uint64_t rows_;
  uint64_t reach_ = 0;        // bytes between the guards
  uint64_t page_stride_ = 0;  // bytes
  std::vector<kvstrata_column> columns_;
  std::vector<int64_t> ids_;        // of pages or slots, -1 holes
  std::vector<int64_t> whole_ids_;  // without holes
  std::vector<int32_t> ids32_;
  std::vector<std::byte> image_;
  std::byte* device_memory_ = nullptr;
  kvstrata_buffer buffer_{};
  std::vector<std::byte> row_scratch_;
};

}  // namespace kvstrata::test
