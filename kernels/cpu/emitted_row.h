// SPDX-License-Identifier: Apache-2.0
// What cpu/compress.cc and avx512_bf16/ do together: the first pools, the others take a pooled row to its packed one.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#pragma once

#include <cstdint>

#include "kernels/kernel_api.h"

namespace kvstrata::kernels::cpu {

// One row of the packed planes; `rope` is not used where no channels go there.
struct PlaneRow {
  uint8_t* codes;
  uint8_t* rope;
  uint8_t* scales;
};

// A pooled row on its way: what the emitting steps of profiles Q and S need to know. The turns are those of its
// position, as RotatePairs has them.
struct PooledRow {
  static constexpr uint32_t kMostChannels = 512;
  const float* values;
  const float* norm_weight;
  const float* cos;
  const float* sin;
  float eps;
  uint32_t width;      // a multiple of 64, at most kMostChannels
  uint32_t rope_dims;  // a multiple of 32
};

// Rounds, norms, rounds, rotates, rounds and packs; the bytes of the single functions. False, with rubbish written, if
// it cannot: then the row takes the long way, from the same values.
using RowEmitter = bool (*)(const PooledRow& row, bool is_v4_row, const PlaneRow& to);

#if defined(__x86_64__)
// compress of the AVX-512 level, with V4_ROW and V41_WINDOW rows emitted by `emitter`.
int32_t CompressAvx512(const kvstrata_compress_args* args, RowEmitter emitter);

// bf16 to the codes of V4_ROW or V41_WINDOW, as quantising and then packing would. `quantised` channels, a multiple of
// 64, and rope_dims after them. False, with rubbish written, if there is NaN or infinity among the quantised.
bool PackQuantisedRow(bool is_v4_row, const uint16_t* row, uint32_t quantised, uint32_t rope_dims, const PlaneRow& to);
#endif

}  // namespace kvstrata::kernels::cpu
