// SPDX-License-Identifier: Apache-2.0
// Which rows a query attends to and where they lie: the part of attention that is the same at every cpu level. Plain
// code without vectors, compiled once for the build's baseline.
//
// I1: a query's keys are listed in the order of summation (window by position, then entries in list order) and without
//     the picks of -1, so a row's place in a tile depends on nothing but the keys before it.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kernels/kernel_api.h"

namespace kvstrata::kernels::cpu {

// Rows in one of their forms. With a format `type` means nothing, without one `planes` and `shape`.
struct RowSource {
  int32_t format;
  int32_t type;
  const uint8_t* rows;
  uint64_t stride_bytes;
  kvstrata_packed_planes planes;
  kvstrata_packed_shape shape;
  uint32_t width;

  bool IsPacked() const { return format != KVSTRATA_KERNELS_FORMAT_NONE; }
  const void* Row(uint64_t row) const { return rows + row * stride_bytes; }
};

// One query's keys: keys[0 .. window) are rows of the window, keys[window .. total) of the entries.
struct KeyList {
  const uint64_t* keys;
  uint64_t window;
  uint64_t total;
};

// Both places, and which of them a key of a list is from.
struct RowSources {
  RowSource window;
  RowSource entries;
  const RowSource& Of(const KeyList& list, uint64_t i) const { return i < list.window ? window : entries; }
};

// Where the workspace's parts lie: each at a multiple of 64 bytes, as the widest loads and the caches like it; the
// caller's workspace is aligned to 4 only.
inline constexpr uint64_t kPartAlign = 64;
// More than any memory holds. Sizes above are refused, and none below overflows a sum of a few of them.
inline constexpr uint64_t kPartMaxBytes = uint64_t{1} << 56;

class WorkspaceParts {
 public:
  explicit WorkspaceParts(void* workspace);
  // The next part. The pointer means nothing when the workspace is null or too small.
  template <typename T>
  T* Next(uint64_t count, uint64_t row = 1) {
    return static_cast<T*>(NextBytes(count, row, sizeof(T)));
  }
  // What a workspace at any address needs, or 0 for a size that no memory has.
  uint64_t Bytes() const { return too_large_ ? 0 : bytes_ + kPartAlign; }

 private:
  void* NextBytes(uint64_t count, uint64_t row, uint64_t element_bytes);

  uintptr_t begin_;
  uint64_t bytes_ = 0;
  bool too_large_ = false;
};

// `a` has passed Prepare, in all of these.
RowSources SourcesOf(const kvstrata_attention_args& a);
// How many keys a query of the call may have. The picks need not be there yet.
uint64_t MostKeys(const kvstrata_attention_args& a);
// The keys of query n, written to keys[0 .. MostKeys).
KeyList ListKeys(const kvstrata_attention_args& a, uint64_t n, uint64_t* keys);
// Every pick is -1 or an entry that is there and visible.
bool PicksValid(const kvstrata_attention_args& a);

// Cache lines yet to be asked for.
struct LineQueue {
  const uint8_t* const* next;
  const uint8_t* const* end;

  uint64_t Count() const { return static_cast<uint64_t>(end - next); }
  void Ask(uint64_t count) {
    for (const uint8_t* const* stop = next + (count < Count() ? count : Count()); next < stop; ++next) {
      __builtin_prefetch(*next);
    }
  }
};

// The lines of the keys begin .. end-1, as far as they are there, row by row; `most` at most, written to `lines`.
LineQueue ListLines(const RowSources& sources, const KeyList& list, uint64_t begin, uint64_t end, uint64_t most,
                    const uint8_t** lines);
// Asks for the first line of each of the keys begin .. end-1, as far as they are there. Where a row's page is not in
// the TLB, nothing behind the prefetch retires until it was looked up: these look-ups go side by side.
void PrefetchFirstLines(const RowSources& sources, const KeyList& list, uint64_t begin, uint64_t end);
// Asks for all lines of those rows.
void PrefetchRows(const RowSources& sources, const KeyList& list, uint64_t begin, uint64_t end);

// cos and sin of a query's inverse rotation as two tables of rope_dims floats, so that with x' the row whose pairs are
// swapped, row * cosines + x' * sines is the rotated row, product by product what the reference computes.
void InverseRotation(const kvstrata_attention_args& a, uint64_t n, float* cosines, float* sines);

}  // namespace kvstrata::kernels::cpu
