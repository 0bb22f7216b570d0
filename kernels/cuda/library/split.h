// SPDX-License-Identifier: Apache-2.0
// How strided copies are made: what is large and lies in long rows by the device's copy engines, the rest cut into runs
// for one launch.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/library/runtime.h"
#include "kernels/cuda/words.h"

namespace kvstrata::kernels::cuda {

// Rows from this length on, or rows without gaps of so much together, are a copy of their own: it keeps no
// multiprocessor busy, and what it costs to start does not count any more.
inline constexpr uint64_t kEngineCopyBytes = 256u << 10;
inline constexpr uint64_t kEngineRowBytes = 64u << 10;
// cudaMemcpy2DAsync refuses rows that are further apart (cudaDevAttrMaxPitch).
inline constexpr uint64_t kMostPitchBytes = INT32_MAX;
// What one block moves before it fetches its next run: long against the bus' delay, short enough that runs spread
// evenly over blocks.
inline constexpr uint64_t kRunBytes = 32u << 10;
static_assert(kRunBytes % sizeof(Word16) == 0);

// The same rows, as one where they lie back to back on both sides.
inline RowsCopy Joined(RowsCopy copy) {
  if (copy.rows > 1 && copy.to_stride == copy.bytes && copy.from_stride == copy.bytes) {
    copy.bytes *= copy.rows;
    copy.rows = 1;
  }
  return copy;
}

// Of a joined copy.
inline bool ForCopyEngine(const RowsCopy& copy) {
  if (copy.rows == 1) return copy.bytes >= kEngineCopyBytes;
  return copy.bytes >= kEngineRowBytes && copy.bytes * copy.rows >= kEngineCopyBytes &&
         copy.to_stride <= kMostPitchBytes && copy.from_stride <= kMostPitchBytes;
}

// Calls add(Run), which returns an Error, for runs that together move what the copy does; ends with the first failure.
template <typename Add>
Error CutIntoRuns(const RowsCopy& copy, const Add& add) {
  const auto* const from = static_cast<const uint8_t*>(copy.from);
  auto* const to = static_cast<uint8_t*>(copy.to);
  const uint64_t strides = copy.rows > 1 ? copy.from_stride | copy.to_stride : 0;
  const uint32_t word = WordBytes(AddressOf(from) | AddressOf(to) | strides | copy.bytes);
  const uint64_t most_rows = std::max<uint64_t>(1, kRunBytes / copy.bytes);
  for (uint64_t row = 0; row < copy.rows; row += most_rows) {
    const uint64_t rows = std::min(most_rows, copy.rows - row);
    for (uint64_t at = 0; at < copy.bytes; at += kRunBytes) {
      const uint64_t bytes = std::min(kRunBytes, copy.bytes - at);
      const Error error =
          add(Run{from + row * copy.from_stride + at, to + row * copy.to_stride + at, copy.from_stride, copy.to_stride,
                  static_cast<uint32_t>(bytes / word), static_cast<uint32_t>(rows), word, 0});
      if (error != kSuccess) return error;
    }
  }
  return kSuccess;
}

}  // namespace kvstrata::kernels::cuda
