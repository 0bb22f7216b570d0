// SPDX-License-Identifier: Apache-2.0
// Many small copies by one launch: what libkvstrata_cuda moves rows with, between pinned host memory and pages.
//
// Thread rule: any host thread; work is queued on the stream and not waited for.
#pragma once

#include <cstdint>

#include "kernels/kernel_api.h"

namespace kvstrata::kernels::cuda {

// Rows of equal length between two places, each reachable by the device: the work of one block at a time.
struct Run {
  const uint8_t* from;
  uint8_t* to;
  uint64_t from_stride;  // bytes from one row to the next
  uint64_t to_stride;
  uint32_t row_words;
  uint32_t rows;
  uint32_t word;  // bytes: 1, 2, 4, 8 or 16, and divides both places, both strides and a row
  uint32_t reserved;
};

// `runs` is aligned to 16 and lies in memory that the device can read; it is read until the kernel has ended, and so is
// what the runs read from. Runs that write the same bytes have no order. KVSTRATA_KERNELS_DEVICE: nothing was queued.
int32_t MoveRuns(const Run* runs, uint32_t count, void* stream);

}  // namespace kvstrata::kernels::cuda
