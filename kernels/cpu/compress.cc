// SPDX-License-Identifier: Apache-2.0
// The compressors of the cpu levels: pooling, emitting, and both at once with the packing (reference sections 2, 4, 7
// and 11). Owns the functions of the table; pooling is that of pooling-inl.h.
//
// I1: `compress` runs each entry through the code of the three calls it stands for, so its result is theirs.
//
// Thread rule: pure functions over the caller's state; calls that write the same memory must not run at once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/compress.cc"
#include <algorithm>
#include <cstring>

#include "kernels/arguments.h"
#include "kernels/cpu/emitted_row.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/functions.h"
// After targets-inl.h, whose toggle it follows.
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/pooling-inl.h"
#include "kernels/cpu/positions-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace {

// ---- pooling -----------------------------------------------------------------------------------------------------

class EntryRows {
 public:
  explicit EntryRows(const kvstrata_pool_args& a) : entries_(a.entries), stride_(a.entry_stride) {}
  float* Row(uint64_t n) const { return entries_ + n * stride_; }
  void Done(uint64_t) const {}

 private:
  float* const entries_;
  const uint64_t stride_;
};

int32_t CsaPool(const kvstrata_pool_args* args, void*) {
  kvstrata_pool_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  EntryRows rows(a);
  PoolTokens(a, rows);
  return kOk;
}

int32_t HcaPool(const kvstrata_pool_args* args, void* stream) {
  kvstrata_pool_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if ((a.flags & KVSTRATA_KERNELS_POOL_OVERLAP) != 0) return kInvalidArgument;
  return CsaPool(args, stream);
}

// ---- from a pooled row to a stored one ---------------------------------------------------------------------------

// V4_ROW keeps its rotated channels apart from the quantised ones.
uint32_t PackedRopeDims(int32_t format, uint32_t rope_dims) {
  return format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? rope_dims : 0;
}

// In place; the steps of reference::EmitRow but the last, quantising.
void EmitUnquantised(const kvstrata_emit_entries_args& a, uint64_t entry, float* row) {
  const bool round = reference::Rounds(a.profile);
  if (round) RoundRow(row, a.width);
  if ((a.flags & KVSTRATA_KERNELS_EMIT_NO_NORM) == 0) NormRow(row, a.norm_weight, a.eps, a.width, round);
  // The entry carries the position of the first token of its own block.
  const int64_t position = static_cast<int64_t>(entry * a.ratio);
  RopeHeads(row + (a.width - a.rope_dims), 1, 0, a.frequencies, a.rope_dims, position, false, round);
  if (!round || (a.flags & KVSTRATA_KERNELS_EMIT_HADAMARD) == 0) return;
  a.width >= FloatLanes() ? HadamardRow(row, a.width, true) : reference::HadamardRow(row, a.width, true);
}

void QuantiseEmitted(const kvstrata_emit_entries_args& a, float* row) {
  if (!reference::Rounds(a.profile) || a.format == KVSTRATA_KERNELS_FORMAT_NONE) return;
  QuantizeRow(a.format, row, a.width, PackedRopeDims(a.format, a.rope_dims));
}

void EmitRow(const kvstrata_emit_entries_args& a, uint64_t entry, float* row) {
  EmitUnquantised(a, entry, row);
  QuantiseEmitted(a, row);
}

int32_t EmitEntries(const kvstrata_emit_entries_args* args, void*) {
  kvstrata_emit_entries_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  for (uint64_t n = 0; n < a.rows; ++n) {
    float* row = a.entries + n * a.entry_stride;
    std::memmove(row, a.pooled + n * a.pooled_stride, a.width * sizeof(float));
    EmitRow(a, a.first_entry + n, row);
  }
  return kOk;
}

// ---- both at once ------------------------------------------------------------------------------------------------

// The workspace is one row.
uint64_t WorkspaceBytes(const kvstrata_compress_args& a) { return uint64_t{a.width} * sizeof(float); }

int32_t CompressWorkspaceBytes(const kvstrata_compress_args* args, uint64_t* out_bytes) {
  kvstrata_compress_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = WorkspaceBytes(a);
  return kOk;
}

// Packing a row gives the bytes that quantising it first would, but for one case: E4M3 blocks whose largest number
// rounds to 224 = 448 / 2 times the scale. Quantised, such a block fits half the scale, and its codes stand for twice
// as much: 8 more, or twice the code below the smallest normal one. This makes packed blocks so. False where a block
// held NaN or infinities: then the row takes the long way.
bool HalveScales(uint32_t quantised, uint32_t block, uint8_t* codes, uint8_t* scales) {
  constexpr uint8_t kMagnitude = 0x7F;  // of a code; the code itself is NaN
  constexpr uint8_t kHalfOfLargest = 0x76;
  constexpr uint8_t kSmallestNormal = 8;
  constexpr uint8_t kInfiniteScale = 254;
  const uint8_t least = BlockScaleOf<RowGrid>(0.0f).byte;
  for (uint32_t begin = 0; begin < quantised; begin += block, codes += block, ++scales) {
    uint8_t largest = 0;
    for (uint32_t i = 0; i < block; ++i) largest = std::max<uint8_t>(largest, codes[i] & kMagnitude);
    if (largest == kMagnitude || *scales == kInfiniteScale) return false;
    if (largest != kHalfOfLargest || *scales == least) continue;
    --*scales;
    for (uint32_t i = 0; i < block; ++i) {
      const uint8_t magnitude = codes[i] & kMagnitude;
      codes[i] = static_cast<uint8_t>(codes[i] + (magnitude < kSmallestNormal ? magnitude : kSmallestNormal));
    }
  }
  return true;
}

class OutputRows {
 public:
  OutputRows(const kvstrata_compress_args& a, RowEmitter emitter)
      : a_(a),
        emit_(EmitPart(a)),
        first_entry_(a.position / a.ratio),
        row_(static_cast<float*>(a.workspace)),
        emitter_(CanEmit(a) ? emitter : nullptr) {}

  float* Row(uint64_t n) const {
    return a_.output_type == KVSTRATA_KERNELS_F32 ? static_cast<float*>(a_.entries) + n * a_.entry_stride : row_;
  }

  void Done(uint64_t n) const {
    if (emitter_ != nullptr && EmitAtOnce(n)) return;
    EmitUnquantised(emit_, first_entry_ + n, Row(n));
    if (a_.output_type == KVSTRATA_KERNELS_PACKED && PackUnquantised(n)) return;
    QuantiseEmitted(emit_, Row(n));
    if (a_.output_type == KVSTRATA_KERNELS_BF16) {
      StoreBf16(row_, a_.width, static_cast<uint16_t*>(a_.entries) + n * a_.entry_stride);
    } else if (a_.output_type == KVSTRATA_KERNELS_PACKED) {
      Pack(n);
    }
  }

 private:
  static bool IsShort(int32_t format) {
    return format == KVSTRATA_KERNELS_FORMAT_V4_ROW || format == KVSTRATA_KERNELS_FORMAT_V41_WINDOW;
  }

  // What a RowEmitter takes.
  static bool CanEmit(const kvstrata_compress_args& a) {
    constexpr uint32_t kVector = 64;  // channels
    const uint32_t packed_rope = PackedRopeDims(a.format, a.rope_dims);
    return a.output_type == KVSTRATA_KERNELS_PACKED && IsShort(a.format) && reference::Rounds(a.profile) &&
           a.emit_flags == 0 && a.norm_weight != nullptr && a.width <= PooledRow::kMostChannels &&
           a.width % kVector == 0 && (a.width - packed_rope) % kVector == 0 && a.rope_dims % (kVector / 2) == 0 &&
           a.rope_dims <= 2 * Turns::kPairs;
  }

  PlaneRow Planes(uint64_t n) const {
    const kvstrata_packed_planes& to = a_.packed;
    return {to.codes + n * to.code_stride_bytes, to.rope != nullptr ? to.rope + n * to.rope_stride_bytes : nullptr,
            to.scales + n * to.scale_stride_bytes};
  }

  bool EmitAtOnce(uint64_t n) const {
    Turns turns;
    const auto position = static_cast<int64_t>((first_entry_ + n) * a_.ratio);
    FillTurns(a_.frequencies, a_.rope_dims / 2, position, false, turns);
    const PooledRow row = {row_, a_.norm_weight, turns.cos, turns.sin, a_.eps, a_.width, a_.rope_dims};
    return emitter_(row, a_.format == KVSTRATA_KERNELS_FORMAT_V4_ROW, Planes(n));
  }

  static void StoreBf16(const float* row, uint32_t width, uint16_t* to) {
    const uint32_t lanes = FloatLanes();
    uint32_t i = 0;
    for (; i + lanes <= width; i += lanes) StoreFloats(LoadFloats(row + i), to + i);
    for (; i < width; ++i) StoreFloat(row[i], to + i);
  }

  void Pack(uint64_t n) const {
    const PlaneRow to = Planes(n);
    PackRow(a_.format, row_, a_.width, PackedRopeDims(a_.format, a_.rope_dims), to.codes, to.rope, to.scales);
  }

  // The short way, where there is one.
  bool PackUnquantised(uint64_t n) const {
    if (!IsShort(a_.format)) return false;
    const bool is_row = a_.format == KVSTRATA_KERNELS_FORMAT_V4_ROW;
    Pack(n);
    if (!reference::Rounds(a_.profile)) return true;
    const PlaneRow to = Planes(n);
    return HalveScales(a_.width - (is_row ? a_.rope_dims : 0), is_row ? RowGrid::kBlock : WindowGrid::kBlock, to.codes,
                       to.scales);
  }

  const kvstrata_compress_args& a_;
  const kvstrata_emit_entries_args emit_;
  const uint64_t first_entry_;
  float* const row_;
  const RowEmitter emitter_;
};

int32_t CompressBy(const kvstrata_compress_args* args, RowEmitter emitter) {
  kvstrata_compress_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, WorkspaceBytes(a))) return kInvalidArgument;
  OutputRows rows(a, emitter);
  PoolTokens(PoolPart(a), rows);
  return kOk;
}

int32_t Compress(const kvstrata_compress_args* args, void*) { return CompressBy(args, nullptr); }

void Fill(kvstrata_kernels& table) {
  table.csa_pool = CsaPool;
  table.hca_pool = HcaPool;
  table.emit_entries = EmitEntries;
  table.compress = Compress;
  table.compress_workspace_bytes = CompressWorkspaceBytes;
}

}  // namespace
}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVSTRATA_CPU_VECTORS

#if HWY_ONCE
namespace kvstrata::kernels::cpu {
KVSTRATA_CPU_FILL(FillCompress, Fill)

#if defined(__x86_64__)
int32_t CompressAvx512(const kvstrata_compress_args* args, RowEmitter emitter) {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::CompressBy(args, emitter);
#else
  static_cast<void>(emitter);
  return HWY_STATIC_DISPATCH(CompressBy)(args, nullptr);
#endif
}
#endif
}  // namespace kvstrata::kernels::cpu
#endif
