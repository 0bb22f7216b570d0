// SPDX-License-Identifier: Apache-2.0
// How a row of floats lies in the engine's memory as bytes, in one of the storages of config.h. Owns no memory.
//
// I1. Rows come from profile Q, so every storage holds them exactly: Load(Store(row)) == row, bit for bit.
//
// Thread rule: immutable.
#pragma once

#include <cstdint>

#include "examples/mini_engine/config.h"
#include "examples/mini_engine/ops.h"

namespace mini_engine {

class RowFormat {
 public:
  enum class Kind { kRow, kIndexKey };

  RowFormat(const Ops& ops, const ModelConfig& config, Kind kind);

  uint32_t row_bytes() const { return row_bytes_; }
  int32_t packing() const { return packing_; }  // KVSTRATA_PACKING_*

  void Store(const float* rows, uint64_t count, uint8_t* bytes) const;
  void Load(const uint8_t* bytes, uint64_t count, float* rows) const;

 private:
  Ops ops_;
  uint32_t width_;
  uint32_t rope_dims_;
  int32_t format_;  // KVSTRATA_KERNELS_FORMAT_* when packed
  RowStorage storage_;
  uint32_t row_bytes_ = 0;
  int32_t packing_ = 0;
};

}  // namespace mini_engine
