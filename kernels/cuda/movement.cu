// SPDX-License-Identifier: Apache-2.0
// Rows between a contiguous block and pages, or a ring. One launch moves all segments of all rows: the work is counted
// in words, so that neighbouring threads move neighbouring words whatever a row looks like.
#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/words.h"

namespace kvstrata::kernels::cuda {
namespace {

// Segments of one launch. A planar V4 page has two; what has more takes several launches. The kernel's arguments stay
// below 1 KiB.
constexpr uint32_t kSegments = 16;
// Words that one thread has in flight: loads do not wait for each other.
constexpr uint32_t kInFlight = 4;

struct Segment {
  uint64_t block_offset;
  uint64_t page_offset;
  uint64_t page_row_stride;
  uint64_t first;  // of its words among those of a row
  uint32_t word;   // bytes
};

struct Segments {
  Segment of[kSegments];
  uint64_t words;  // of a row
  uint32_t count;
};

// Where a row lies among pages.
struct Pages {
  uint8_t* base;
  uint64_t stride;
  const void* ids;
  bool wide_ids;
  uint64_t limit;
  uint64_t first_row;
  uint64_t rows_per_page;

  // Null: the row is skipped.
  KVSTRATA_DEVICE uint8_t* PageOf(uint64_t n, uint64_t* slot) const {
    const uint64_t row = first_row + n;
    const Quotient page = Divide(row, rows_per_page);
    const int64_t id =
        wide_ids ? static_cast<const int64_t*>(ids)[page.whole] : static_cast<const int32_t*>(ids)[page.whole];
    *slot = page.rest;
    if (id < 0 || (limit != 0 && static_cast<uint64_t>(id) >= limit)) return nullptr;
    return base + static_cast<uint64_t>(id) * stride;
  }
};

// A ring is one page whose slots are taken round.
struct Ring {
  uint8_t* base;
  uint64_t capacity;
  uint64_t position;

  KVSTRATA_DEVICE uint8_t* PageOf(uint64_t n, uint64_t* slot) const {
    *slot = Divide(position + n, capacity).rest;
    return base;
  }
};

template <typename Place, bool kToBlock>
struct Move {
  static constexpr uint32_t kThreads = 256;

  Place place;
  uint8_t* block;
  uint64_t block_stride;
  uint64_t rows;
  Segments segments;

  struct Piece {
    uint8_t* page;  // null: nothing to move
    uint8_t* block;
    uint32_t word;
  };

  KVSTRATA_DEVICE Piece PieceOf(uint64_t index) const {
    const Quotient row = Divide(index, segments.words);
    const uint64_t in_row = row.rest;
    uint32_t i = 0;
    while (i + 1 < segments.count && segments.of[i + 1].first <= in_row) ++i;
    const Segment& s = segments.of[i];
    const uint64_t offset = (in_row - s.first) * s.word;
    uint64_t slot = 0;
    uint8_t* page = place.PageOf(row.whole, &slot);
    if (page != nullptr) page += s.page_offset + slot * s.page_row_stride + offset;
    return {page, block + row.whole * block_stride + s.block_offset + offset, s.word};
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint64_t words = rows * segments.words;
    for (uint64_t begin = t.first(); begin < words; begin += kInFlight * t.step()) {
      Piece pieces[kInFlight];
      Word16 values[kInFlight];
      for (uint32_t i = 0; i < kInFlight; ++i) {
        const uint64_t index = begin + i * t.step();
        pieces[i] = index < words ? PieceOf(index) : Piece{nullptr, nullptr, 1};
        if (pieces[i].page != nullptr)
          values[i] = LoadWord(kToBlock ? pieces[i].page : pieces[i].block, pieces[i].word);
      }
      for (uint32_t i = 0; i < kInFlight; ++i) {
        if (pieces[i].page != nullptr) {
          StoreWord(values[i], pieces[i].word, kToBlock ? pieces[i].block : pieces[i].page);
        }
      }
    }
  }
};

template <typename Place, bool kToBlock>
int32_t LaunchMove(Move<Place, kToBlock> move, void* stream) {
  if (move.segments.words == 0) return kOk;
  const uint64_t words = move.rows * move.segments.words;
  return Launch(move, Grid::Over((words + kInFlight - 1) / kInFlight, move.kThreads), stream);
}

template <bool kToBlock>
int32_t MovePages(const kvstrata_move_args* args, void* stream) {
  kvstrata_move_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  Move<Pages, kToBlock> move{};
  move.place = {static_cast<uint8_t*>(a.pages),
                a.page_stride_bytes,
                a.page_ids,
                a.page_id_type == KVSTRATA_KERNELS_INT64,
                a.page_limit,
                a.first_row,
                a.rows_per_page};
  move.block = static_cast<uint8_t*>(a.block);
  move.block_stride = a.block_stride_bytes;
  move.rows = a.rows;
  const uint64_t bases = AddressOf(a.pages) | a.page_stride_bytes | AddressOf(a.block) | a.block_stride_bytes;
  for (uint64_t begin = 0; begin < a.segment_count; begin += kSegments) {
    move.segments = {};
    for (uint64_t i = begin; i < a.segment_count && i < begin + kSegments; ++i) {
      const kvstrata_segment& s = a.segments[i];
      const uint32_t word = WordBytes(bases | s.block_offset | s.page_offset | s.page_row_stride | s.bytes);
      move.segments.of[move.segments.count++] = {s.block_offset, s.page_offset, s.page_row_stride, move.segments.words,
                                                 word};
      move.segments.words += s.bytes / word;
    }
    if (const int32_t status = LaunchMove(move, stream); status != kOk) return status;
  }
  return kOk;
}

template <bool kToLinear>
int32_t MoveRing(const kvstrata_window_args& a, uint64_t skipped, void* stream) {
  Move<Ring, kToLinear> move{};
  move.place = {static_cast<uint8_t*>(a.ring), a.capacity, a.position + skipped};
  move.block = static_cast<uint8_t*>(a.linear) + skipped * a.linear_stride_bytes;
  move.block_stride = a.linear_stride_bytes;
  move.rows = a.rows - skipped;
  const uint32_t word =
      WordBytes(AddressOf(a.ring) | a.ring_stride_bytes | AddressOf(move.block) | a.linear_stride_bytes | a.row_bytes);
  move.segments.of[0] = {0, 0, a.ring_stride_bytes, 0, word};
  move.segments.count = 1;
  move.segments.words = a.row_bytes / word;
  return LaunchMove(move, stream);
}

}  // namespace

int32_t GatherRows(const kvstrata_move_args* args, void* stream) { return MovePages<true>(args, stream); }

int32_t ScatterRows(const kvstrata_move_args* args, void* stream) { return MovePages<false>(args, stream); }

int32_t WindowAppend(const kvstrata_window_args* args, void* stream) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.rows == 0) return kOk;
  // Of rows that share a slot only the last one moves: threads have no order.
  return MoveRing<false>(a, a.rows > a.capacity ? a.rows - a.capacity : 0, stream);
}

int32_t WindowImport(const kvstrata_window_args* args, void* stream) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  return a.rows > a.capacity ? kInvalidArgument : WindowAppend(args, stream);
}

int32_t WindowExport(const kvstrata_window_args* args, void* stream) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.rows > a.capacity) return kInvalidArgument;
  if (a.rows == 0) return kOk;
  return MoveRing<true>(a, 0, stream);
}

}  // namespace kvstrata::kernels::cuda
