// SPDX-License-Identifier: Apache-2.0
// The sliding window's ring (reference section 5): slot = position mod capacity; export and import in position order,
// because a ring's own order means nothing to another ring.
#include <cstring>

#include "kernels/arguments.h"
#include "kernels/reference/functions.h"

namespace kvstrata::kernels::reference {
namespace {

unsigned char* RingRow(const kvstrata_window_args& a, uint64_t n) {
  return static_cast<unsigned char*>(a.ring) + (a.position + n) % a.capacity * a.ring_stride_bytes;
}

unsigned char* LinearRow(const kvstrata_window_args& a, uint64_t n) {
  return static_cast<unsigned char*>(a.linear) + n * a.linear_stride_bytes;
}

}  // namespace

int32_t WindowAppend(const kvstrata_window_args* args, void*) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  // Rows that later ones of the same call overwrite are not copied.
  const uint64_t skipped = a.rows > a.capacity ? a.rows - a.capacity : 0;
  for (uint64_t n = skipped; n < a.rows; ++n) std::memcpy(RingRow(a, n), LinearRow(a, n), a.row_bytes);
  return kOk;
}

int32_t WindowImport(const kvstrata_window_args* args, void* stream) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.rows > a.capacity) return kInvalidArgument;
  return WindowAppend(args, stream);
}

int32_t WindowExport(const kvstrata_window_args* args, void*) {
  kvstrata_window_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.rows > a.capacity) return kInvalidArgument;
  for (uint64_t n = 0; n < a.rows; ++n) std::memcpy(LinearRow(a, n), RingRow(a, n), a.row_bytes);
  return kOk;
}

}  // namespace kvstrata::kernels::reference
