// SPDX-License-Identifier: Apache-2.0
#include "examples/mini_engine/row_format.h"

#include <cstring>
#include <stdexcept>

#include "kvstrata/c_api.h"

namespace mini_engine {

RowFormat::RowFormat(const Ops& ops, const ModelConfig& config, Kind kind)
    : ops_(ops),
      width_(kind == Kind::kRow ? config.width : config.index_width),
      rope_dims_(kind == Kind::kRow ? config.rope_dims : 0),
      format_(kind == Kind::kRow ? KVSTRATA_KERNELS_FORMAT_V4_ROW : KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4),
      storage_(config.storage) {
  if (storage_ == RowStorage::kPacked) {
    row_bytes_ = ops_.PackedShape(format_, width_, rope_dims_).row_bytes;
    packing_ = kind == Kind::kRow ? KVSTRATA_PACKING_FP8_ROW_584 : KVSTRATA_PACKING_FP4_KEY_68;
    if (row_bytes_ != (kind == Kind::kRow ? 584u : 68u)) {
      throw std::invalid_argument("packed rows need width 512 with 64 RoPE dims and index width 128");
    }
  } else {
    row_bytes_ = width_ * (storage_ == RowStorage::kBf16 ? 2 : 4);
    packing_ = storage_ == RowStorage::kBf16 ? KVSTRATA_PACKING_BF16 : KVSTRATA_PACKING_F32;
  }
}

void RowFormat::Store(const float* rows, uint64_t count, uint8_t* bytes) const {
  switch (storage_) {
    case RowStorage::kPacked: ops_.PackRows(format_, width_, rope_dims_, rows, count, bytes); return;
    case RowStorage::kBf16: ops_.ToBf16(rows, count * width_, bytes); return;
    case RowStorage::kF32:
      if (count != 0) std::memcpy(bytes, rows, count * row_bytes_);
      return;
  }
}

void RowFormat::Load(const uint8_t* bytes, uint64_t count, float* rows) const {
  switch (storage_) {
    case RowStorage::kPacked: ops_.UnpackRows(format_, width_, rope_dims_, bytes, count, rows); return;
    case RowStorage::kBf16: ops_.FromBf16(bytes, count * width_, rows); return;
    case RowStorage::kF32:
      if (count != 0) std::memcpy(rows, bytes, count * row_bytes_);
      return;
  }
}

}  // namespace mini_engine
