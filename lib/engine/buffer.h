// SPDX-License-Identifier: Apache-2.0
// Where an engine's rows lie. Owns the mapping from a row's index to addresses, for all four forms (linear, ring,
// pages, slots) with column segments, and the copy between such memory and a contiguous run of canonical rows. The
// meaning of row indices is that of kvstrata_buffer in the C ABI.
//
// Thread rule: immutable after Create; the memory it describes is the caller's.
//
// Invariants:
//   I1  No address outside [base, base + size_bytes) is ever computed for an access: CheckRows proves a range first,
//       and Copy refuses what CheckRows would refuse.
//   I2  The columns' bytes add up to the stream's row_bytes, so a canonical row is read and written whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/engine/device.h"
#include "lib/layout/layout.h"

namespace kvstrata::core::engine {

enum class MemoryKind : int32_t { kHost = 0, kDevice = 1 };
enum class BufferForm : int32_t { kLinear = 0, kRing = 1, kPages = 2, kSlots = 3 };

struct Column {
  uint64_t offset = 0;  // bytes from the base, or from the page's start
  uint64_t stride = 0;  // bytes between rows
  uint32_t bytes = 0;   // per row
};

inline constexpr size_t kMaxColumns = 8;

struct BufferDesc {
  uint32_t stream = 0;
  MemoryKind memory = MemoryKind::kHost;
  int32_t device_id = 0;
  BufferForm form = BufferForm::kLinear;
  uint32_t rows_per_page = 0;
  std::byte* base = nullptr;
  uint64_t size_bytes = 0;
  uint64_t first_row = 0;
  uint64_t row_stride = 0;
  uint64_t capacity_rows = 0;
  uint64_t page_stride = 0;
  uint64_t first_page = 0;
  std::vector<int64_t> page_ids;  // pages or slots; -1 skips
  std::vector<Column> columns;
};

// Rows first .. first+count-1. `element_zero` is the row index that lies in element 0 of a LINEAR or SLOTS buffer: the
// buffer's first_row for a rows stream, the state's oldest row for a state stream.
struct RowRange {
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t element_zero = 0;
};

class Buffer {
 public:
  // kInvalidArgument naming the member ("sources[stream 3].page_stride") and its value.
  static absl::StatusOr<Buffer> Create(const layout::Stream& stream, BufferDesc desc);

  const BufferDesc& desc() const { return desc_; }
  uint32_t row_bytes() const { return row_bytes_; }
  bool on_device() const { return desc_.memory == MemoryKind::kDevice; }

  // OK when every row of the range has an address inside the buffer (skipped rows need none).
  absl::Status CheckRows(const RowRange& range) const;
  // True when some row of the range has the page or slot id -1.
  bool HasSkips(const RowRange& range) const;
  // The copies between `range` and contiguous canonical rows at host offset `host_offset`; skipped rows leave their
  // place on the host untouched.
  absl::StatusOr<std::vector<CopyRun>> Runs(const RowRange& range, uint64_t host_offset) const;

  // Host memory only: writes the rows to the buffer (scatter), or reads them from it (gather).
  absl::Status Scatter(const RowRange& range, const std::byte* rows) const;
  absl::Status Gather(const RowRange& range, std::byte* rows) const;
  // The rows where they lie, if they do so as Gather would put them; else nothing.
  base::ByteView InOnePiece(const RowRange& range) const;

 private:
  Buffer() = default;
  // Element address parts of one row: its page's or ring's start and the element number inside it.
  struct Place {
    bool skipped = false;
    uint64_t start = 0;    // bytes from the base
    uint64_t element = 0;  // rows after `start`
    uint64_t run = 1;      // following rows that continue at element + 1
  };
  absl::StatusOr<Place> PlaceOf(uint64_t row, uint64_t remaining, uint64_t element_zero) const;
  absl::Status Fail(const char* member, const std::string& message) const;

  BufferDesc desc_;
  uint32_t row_bytes_ = 0;
};

// The rows that describe a state stream at `position`, by the index that a buffer gives them: token positions for
// windows and compressor rows, 0.. for any other state. The oldest row is element zero.
RowRange StateRows(const layout::Layout& layout, uint32_t stream, uint64_t position);

}  // namespace kvstrata::core::engine
