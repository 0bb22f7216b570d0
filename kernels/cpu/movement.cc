// SPDX-License-Identifier: Apache-2.0
// Windows and pages: the reference's copies in as few and as long pieces as the strides allow. The same on every
// level, as memcpy chooses its instructions by itself.
//
// Many rows whose pieces are short (a planar page has 576 and 8 bytes of each row) go past the caches: a plain store
// first reads the line that it is about to overwrite, half as much traffic again, and memcpy knows better only within
// one long piece.
//
// I1: nothing is written before every argument and page id has been checked.
// I2: streamed lines hold nothing but bytes of the pieces; the stream has ended before a function returns.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <cstring>

#include "kernels/arguments.h"
#include "kernels/cpu/level.h"

namespace kvstrata::kernels::cpu {
namespace {

// Where pieces go: here, by memcpy.
struct PlainCopy {
  void Append(unsigned char* to, const unsigned char* from, uint64_t bytes) { std::memcpy(to, from, bytes); }
};

// `rows` rows of `bytes` bytes; rows without gaps on either side are one piece.
template <class Sink>
void CopyRows(Sink& sink, unsigned char* to, uint64_t to_stride, const unsigned char* from, uint64_t from_stride,
              uint64_t rows, uint64_t bytes) {
  if (to_stride == bytes && from_stride == bytes) {
    sink.Append(to, from, rows * bytes);
    return;
  }
  for (uint64_t n = 0; n < rows; ++n) sink.Append(to + n * to_stride, from + n * from_stride, bytes);
}

// ---- windows -----------------------------------------------------------------------------------------------------

// Rows first .. a.rows-1 between ring and line, cut where the ring ends.
template <bool kIntoRing>
void MoveWindow(const kvstrata_window_args& a, uint64_t first) {
  PlainCopy plain;
  unsigned char* const ring = static_cast<unsigned char*>(a.ring);
  unsigned char* const linear = static_cast<unsigned char*>(a.linear);
  for (uint64_t n = first; n < a.rows;) {
    const uint64_t slot = (a.position + n) % a.capacity;
    const uint64_t to_end = a.capacity - slot;
    const uint64_t rows = a.rows - n < to_end ? a.rows - n : to_end;
    unsigned char* const in_ring = ring + slot * a.ring_stride_bytes;
    unsigned char* const in_line = linear + n * a.linear_stride_bytes;
    if constexpr (kIntoRing) {
      CopyRows(plain, in_ring, a.ring_stride_bytes, in_line, a.linear_stride_bytes, rows, a.row_bytes);
    } else {
      CopyRows(plain, in_line, a.linear_stride_bytes, in_ring, a.ring_stride_bytes, rows, a.row_bytes);
    }
    n += rows;
  }
}

int32_t WindowAppend(const kvstrata_window_args* args, void*) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  // Rows that later ones of the same call overwrite are not copied.
  MoveWindow<true>(a, a.rows > a.capacity ? a.rows - a.capacity : 0);
  return kOk;
}

int32_t WindowImport(const kvstrata_window_args* args, void*) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.rows > a.capacity) return kInvalidArgument;
  MoveWindow<true>(a, 0);
  return kOk;
}

int32_t WindowExport(const kvstrata_window_args* args, void*) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.rows > a.capacity) return kInvalidArgument;
  MoveWindow<false>(a, 0);
  return kOk;
}

// ---- lines past the caches ---------------------------------------------------------------------------------------

#if defined(__x86_64__)
// From here on streaming pays: such an output does not stay in a core's own caches anyway.
constexpr uint64_t kStreamedBytes = uint64_t{4} << 20;
constexpr uint64_t kLine = 64;

// No less than what is moved unless segments read the same bytes of the block twice; skipped pages count.
uint64_t MostBytes(const kvstrata_move_args& a) {
  uint64_t row_bytes = 0;
  for (uint64_t i = 0; i < a.segment_count; ++i) row_bytes += a.segments[i].bytes;
  return a.rows * (row_bytes < a.block_stride_bytes ? row_bytes : a.block_stride_bytes);
}

void StreamLine(unsigned char* to, const unsigned char* from) {
  for (uint64_t i = 0; i < kLine; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

// Pieces, most of which begin where the last one ended, written in whole lines.
class LineStream {
 public:
  LineStream() = default;
  LineStream(const LineStream&) = delete;
  LineStream& operator=(const LineStream&) = delete;
  ~LineStream() {
    Flush();
    _mm_sfence();
  }

  void Append(unsigned char* to, const unsigned char* from, uint64_t bytes) {
    if (to != next_) Begin(to);
    next_ = to + bytes;
    if (held_ + skipped_ != 0) {
      const uint64_t room = kLine - skipped_ - held_;
      const uint64_t taken = bytes < room ? bytes : room;
      std::memcpy(line_ + skipped_ + held_, from, taken);
      held_ += taken;
      if (taken < room) return;
      EndLine();
      from += taken;
      bytes -= taken;
    }
    for (; bytes >= kLine; bytes -= kLine, from += kLine, line_start_ += kLine) StreamLine(line_start_, from);
    std::memcpy(line_, from, bytes);
    held_ = bytes;
  }

 private:
  // Plainly, as the rest of the line is not ours.
  void Flush() { std::memcpy(line_start_ + skipped_, line_ + skipped_, held_); }

  void Begin(unsigned char* to) {
    Flush();
    skipped_ = reinterpret_cast<uintptr_t>(to) % kLine;
    line_start_ = to - skipped_;
    held_ = 0;
  }

  void EndLine() {
    if (skipped_ == 0) {
      StreamLine(line_start_, line_);
    } else {
      Flush();
    }
    line_start_ += kLine;
    held_ = skipped_ = 0;
  }

  alignas(kLine) unsigned char line_[kLine] = {};
  unsigned char* line_start_ = line_;  // of the line that is being filled
  unsigned char* next_ = nullptr;      // where the last piece ended
  uint64_t skipped_ = 0;               // bytes of the line before the first piece: not ours
  uint64_t held_ = 0;                  // bytes of the line that are in line_
};
#endif

// ---- pages -------------------------------------------------------------------------------------------------------

// A run of rows within one page, in the order of the addresses that are written: a page's segments one after the other,
// a block's rows one after the other.
template <class Sink>
void ScatterToPage(const kvstrata_move_args& a, unsigned char* page, uint64_t slot, const unsigned char* block,
                   uint64_t rows, Sink& sink) {
  for (uint64_t i = 0; i < a.segment_count; ++i) {
    const kvstrata_segment& s = a.segments[i];
    unsigned char* const to = page + s.page_offset + slot * s.page_row_stride;
    CopyRows(sink, to, s.page_row_stride, block + s.block_offset, a.block_stride_bytes, rows, s.bytes);
  }
}

template <class Sink>
void GatherFromPage(const kvstrata_move_args& a, const unsigned char* page, uint64_t slot, unsigned char* block,
                    uint64_t rows, Sink& sink) {
  if (a.segment_count == 1) {
    const kvstrata_segment& s = a.segments[0];
    const unsigned char* const from = page + s.page_offset + slot * s.page_row_stride;
    CopyRows(sink, block + s.block_offset, a.block_stride_bytes, from, s.page_row_stride, rows, s.bytes);
    return;
  }
  for (uint64_t n = 0; n < rows; ++n) {
    for (uint64_t i = 0; i < a.segment_count; ++i) {
      const kvstrata_segment& s = a.segments[i];
      const unsigned char* const from = page + s.page_offset + (slot + n) * s.page_row_stride;
      sink.Append(block + n * a.block_stride_bytes + s.block_offset, from, s.bytes);
    }
  }
}

template <bool kGather, class Sink>
void MovePages(const kvstrata_move_args& a, Sink& sink) {
  uint64_t index = a.first_row / a.rows_per_page;
  uint64_t slot = a.first_row % a.rows_per_page;
  for (uint64_t n = 0; n < a.rows; ++index, slot = 0) {
    const uint64_t left = a.rows_per_page - slot;
    const uint64_t rows = a.rows - n < left ? a.rows - n : left;
    const int64_t id = PageId(a, index);
    if (id >= 0) {
      unsigned char* const page =
          static_cast<unsigned char*>(a.pages) + static_cast<uint64_t>(id) * a.page_stride_bytes;
      unsigned char* const block = static_cast<unsigned char*>(a.block) + n * a.block_stride_bytes;
      if constexpr (kGather) {
        GatherFromPage(a, page, slot, block, rows, sink);
      } else {
        ScatterToPage(a, page, slot, block, rows, sink);
      }
    }
    n += rows;
  }
}

template <bool kGather>
int32_t Move(const kvstrata_move_args* args, void*) {
  kvstrata_move_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!PageIdsValid(a)) return kInvalidArgument;
#if defined(__x86_64__)
  if (MostBytes(a) >= kStreamedBytes) {
    LineStream stream;
    MovePages<kGather>(a, stream);
    return kOk;
  }
#endif
  PlainCopy plain;
  MovePages<kGather>(a, plain);
  return kOk;
}

}  // namespace

void FillMovement(Level, kvstrata_kernels& table) {
  table.window_append = WindowAppend;
  table.window_import = WindowImport;
  table.window_export = WindowExport;
  table.gather_rows = Move<true>;
  table.scatter_rows = Move<false>;
}

}  // namespace kvstrata::kernels::cpu
