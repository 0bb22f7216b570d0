// SPDX-License-Identifier: Apache-2.0
// Gather and scatter between a contiguous block of rows and pages (planar or interleaved), by column segments.
#include <cstring>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"

namespace kvstrata::kernels::reference {
namespace {

// Calls copy(page_bytes, block_bytes, count) for every segment of every row whose page is not skipped.
template <typename Copy>
int32_t ForEachPiece(const kvstrata_move_args* args, Copy copy) {
  kvstrata_move_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!PageIdsValid(a)) return kInvalidArgument;
  for (uint64_t n = 0; n < a.rows; ++n) {
    const uint64_t row = a.first_row + n;
    const int64_t page = PageId(a, row / a.rows_per_page);
    if (page < 0) continue;
    const uint64_t page_offset = static_cast<uint64_t>(page) * a.page_stride_bytes;
    unsigned char* page_bytes = static_cast<unsigned char*>(a.pages) + page_offset;
    unsigned char* block_row = static_cast<unsigned char*>(a.block) + n * a.block_stride_bytes;
    for (uint64_t i = 0; i < a.segment_count; ++i) {
      const kvstrata_segment& s = a.segments[i];
      copy(page_bytes + s.page_offset + row % a.rows_per_page * s.page_row_stride, block_row + s.block_offset, s.bytes);
    }
  }
  return kOk;
}

}  // namespace

int32_t GatherRows(const kvstrata_move_args* args, void*) {
  return ForEachPiece(
      args, [](const unsigned char* page, unsigned char* block, uint64_t bytes) { std::memcpy(block, page, bytes); });
}

int32_t ScatterRows(const kvstrata_move_args* args, void*) {
  return ForEachPiece(
      args, [](unsigned char* page, const unsigned char* block, uint64_t bytes) { std::memcpy(page, block, bytes); });
}

}  // namespace kvstrata::kernels::reference
