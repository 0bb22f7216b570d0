// SPDX-License-Identifier: Apache-2.0
// From pooled rows to stored ones (emit_entries), and both steps in one call (compress). A warp has a row; the row lies
// in shared memory where it is narrow enough, else where its floats end up or in the workspace.
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scales.h"
#include "kernels/reference/grid.h"

namespace kvstrata::kernels::cuda {
namespace {

using Format = reference::Grid;

// amax of the block of channels at `row`, in all lanes of the teams of `team` lanes that the warp is cut into.
KVSTRATA_DEVICE float BlockLargest(const Thread& t, const float* row, uint32_t count, uint32_t team, bool there) {
  float amax = 0;
  for (uint32_t c = t.lane() % team; there && c < count; c += team) {
    const float magnitude = std::fabs(row[c]);
    amax = magnitude > amax ? magnitude : amax;  // false for NaN
  }
  return TeamLargest(t, team, amax);
}

// Calls body(block, its scale byte, this lane's team) for the blocks of a row; a warp has as many at a time as it has
// teams, and all its lanes make the same rounds.
template <typename Body>
KVSTRATA_DEVICE void ForBlocks(const Thread& t, const Format& format, const float* row, uint32_t quantised,
                               const Body& body) {
  const uint32_t team = format.block < kWarp ? format.block : kWarp;  // blocks are 16, 32, 64 wide, or the whole row
  const uint32_t teams = kWarp / team;
  const uint32_t blocks = quantised / format.block;
  for (uint32_t begin = 0; begin < blocks; begin += teams) {
    const uint32_t block = begin + t.lane() / team;
    const bool there = block < blocks;
    const float amax = BlockLargest(t, row + uint64_t{block} * format.block, format.block, team, there);
    if (there) body(block, reference::ScaleByte(format, amax), team);
  }
}

enum class Into { kFloats, kBf16, kPacked };

struct Emit {
  static constexpr uint32_t kThreads = 128;
  // Of 48 KiB; a wider row is worked on elsewhere.
  static constexpr uint32_t kWidestShared = 2048;
  static constexpr uint32_t kSharedBytesOfChannel = kThreads / kWarp * sizeof(float);
  static constexpr uint32_t kMostSharedBytes = kWidestShared * kSharedBytesOfChannel;
  static_assert(kMostSharedBytes <= kUnaskedSharedBytes);

  Rows pooled;
  uint64_t pooled_stride;
  uint64_t rows;
  uint32_t width, rope_dims, ratio;
  uint64_t first_entry;
  float eps;
  const float* norm_weight;
  const float* frequencies;
  float hadamard_norm;
  Format format;
  bool round, norm, hadamard, quantise;

  // Where a row is worked on: [rows][width] with this stride, or null: shared memory.
  float* scratch;
  uint64_t scratch_stride;

  Into into;
  void* entries;
  uint64_t entry_stride;
  kvstrata_packed_planes planes;
  uint32_t scale_bytes;
  uint32_t packed_rope_dims;  // of the format, which only V4_ROW keeps apart

  KVSTRATA_DEVICE void Transform(const Thread& t, float* row) const {
    for (uint32_t half = 1; half < width; half *= 2) {
      for (uint32_t pair = t.lane(); pair < width / 2; pair += kWarp) {
        const uint32_t i = pair / half * 2 * half + pair % half;
        const float a = row[i];
        const float b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
      t.SyncWarp();
    }
    for (uint32_t c = t.lane(); c < width; c += kWarp) row[c] = reference::RoundBf16(row[c] * hadamard_norm);
    t.SyncWarp();
  }

  KVSTRATA_DEVICE void Quantise(const Thread& t, float* row) const {
    const uint32_t quantised = width - packed_rope_dims;
    ForBlocks(t, format, row, quantised, [&](uint32_t block, uint8_t byte, uint32_t team) {
      const Encoder encode(format, byte);
      float* channels = row + uint64_t{block} * format.block;
      for (uint32_t c = t.lane() % team; c < format.block; c += team) {
        channels[c] = DecodeCode(format, encode(channels[c]), encode.scale);
      }
    });
    for (uint32_t c = quantised + t.lane(); c < width; c += kWarp) row[c] = reference::RoundBf16(row[c]);
    t.SyncWarp();
  }

  KVSTRATA_DEVICE void Work(const Thread& t, uint64_t n, float* row) const {
    for (uint32_t c = t.lane(); c < width; c += kWarp) {
      float value[1];
      pooled.Load(n * pooled_stride + c, value);
      row[c] = round ? reference::RoundBf16(value[0]) : value[0];
    }
    t.SyncWarp();
    if (norm) {
      const float inverse = InverseNorm(t, row, width, eps);
      for (uint32_t c = t.lane(); c < width; c += kWarp) row[c] = Scaled(row[c], inverse, norm_weight, c, round);
      t.SyncWarp();
    }
    const auto position = static_cast<float>(static_cast<int64_t>((first_entry + n) * ratio));
    for (uint32_t k = t.lane(); k < rope_dims / 2; k += kWarp) {
      RotatePair(reference::SinCosOf(position * frequencies[k]), false, round, row + (width - rope_dims) + 2 * k);
    }
    t.SyncWarp();
    if (hadamard) Transform(t, row);
    if (quantise) Quantise(t, row);
  }

  // As pack_rows does it with the row's floats.
  KVSTRATA_DEVICE void Pack(const Thread& t, uint64_t n, const float* row) const {
    const uint32_t quantised = width - packed_rope_dims;
    uint8_t* codes = planes.codes + n * planes.code_stride_bytes;
    ForBlocks(t, format, row, quantised, [&](uint32_t block, uint8_t byte, uint32_t team) {
      const Encoder encode(format, byte);
      const uint32_t lane = t.lane() % team;
      if (lane == 0) {
        StoreScale(format, block, quantised / format.block, byte, scale_bytes,
                   planes.scales + n * planes.scale_stride_bytes);
      }
      const uint32_t begin = block * format.block;
      if (format.e2m1) {
        for (uint32_t c = begin + 2 * lane; c < begin + format.block; c += 2 * team) {
          const uint32_t low = encode(row[c]);
          codes[c / 2] = static_cast<uint8_t>(low | uint32_t{encode(row[c + 1])} << 4);
        }
      } else {
        for (uint32_t c = begin + lane; c < begin + format.block; c += team) {
          codes[c] = encode(row[c]);
        }
      }
    });
    uint8_t* rope = planes.rope + n * planes.rope_stride_bytes;
    for (uint32_t c = t.lane(); c < packed_rope_dims; c += kWarp) {
      const uint16_t bits = reference::F32ToBf16(row[quantised + c]);
      rope[2 * c] = static_cast<uint8_t>(bits);
      rope[2 * c + 1] = static_cast<uint8_t>(bits >> 8);
    }
  }

  KVSTRATA_DEVICE void Deliver(const Thread& t, uint64_t n, const float* row) const {
    if (into == Into::kPacked) return Pack(t, n, row);
    const Rows out{entries, into == Into::kFloats ? KVSTRATA_KERNELS_F32 : KVSTRATA_KERNELS_BF16};
    for (uint32_t c = t.lane(); c < width; c += kWarp) {
      const float value[1] = {row[c]};
      out.Store(n * entry_stride + c, value);
    }
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint32_t warp = t.thread() / kWarp;
    for (uint64_t n = t.first() / kWarp; n < rows; n += t.step() / kWarp) {
      float* row =
          scratch != nullptr ? scratch + n * scratch_stride : static_cast<float*>(t.shared()) + uint64_t{warp} * width;
      Work(t, n, row);
      Deliver(t, n, row);
      t.SyncWarp();  // the next row comes where this one is read
    }
  }
};

Emit MakeEmit(const kvstrata_emit_entries_args& a) {
  Emit kernel{};
  kernel.pooled = {const_cast<float*>(a.pooled), KVSTRATA_KERNELS_F32};
  kernel.pooled_stride = a.pooled_stride;
  kernel.rows = a.rows;
  kernel.width = a.width;
  kernel.rope_dims = a.rope_dims;
  kernel.ratio = a.ratio;
  kernel.first_entry = a.first_entry;
  kernel.eps = a.eps;
  kernel.norm_weight = a.norm_weight;
  kernel.frequencies = a.frequencies;
  kernel.hadamard_norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.width)));
  kernel.format = reference::GridOf(a.format, a.width);
  kernel.round = a.profile != KVSTRATA_KERNELS_PROFILE_F;
  kernel.norm = (a.flags & KVSTRATA_KERNELS_EMIT_NO_NORM) == 0;
  kernel.hadamard = kernel.round && (a.flags & KVSTRATA_KERNELS_EMIT_HADAMARD) != 0;
  kernel.quantise = kernel.round && a.format != KVSTRATA_KERNELS_FORMAT_NONE;
  kernel.packed_rope_dims = a.format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? a.rope_dims : 0;
  return kernel;
}

int32_t LaunchEmit(Emit kernel, void* stream) {
  uint32_t shared_bytes = 0;
  if (kernel.width <= Emit::kWidestShared) {
    kernel.scratch = nullptr;
    shared_bytes = kernel.width * Emit::kSharedBytesOfChannel;
  }
  return Launch(kernel, Grid::Over(kernel.rows * kWarp, kernel.kThreads, shared_bytes), stream);
}

// Pooled rows, which the entries are made from in place. One row: sequences with no entry have a place to point at.
uint64_t WorkspaceBytes(const kvstrata_compress_args& a) {
  const uint64_t entries = EmittedEntries(a);
  return (entries == 0 ? 1 : entries) * a.width * sizeof(float);
}

}  // namespace

int32_t EmitEntries(const kvstrata_emit_entries_args* args, void* stream) {
  kvstrata_emit_entries_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  Emit kernel = MakeEmit(a);
  kernel.into = Into::kFloats;
  kernel.entries = a.entries;
  kernel.entry_stride = a.entry_stride;
  kernel.scratch = a.entries;
  kernel.scratch_stride = a.entry_stride;
  return LaunchEmit(kernel, stream);
}

int32_t CompressWorkspaceBytes(const kvstrata_compress_args* args, uint64_t* out_bytes) {
  kvstrata_compress_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = WorkspaceBytes(a);
  return kOk;
}

int32_t Compress(const kvstrata_compress_args* args, void* stream) {
  kvstrata_compress_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, WorkspaceBytes(a))) return kInvalidArgument;
  kvstrata_pool_args pool = PoolPart(a);
  pool.entries = static_cast<float*>(a.workspace);
  pool.entry_stride = a.width;
  if (const int32_t status = PoolTokens(pool, stream); status != kOk) return status;
  kvstrata_emit_entries_args emit = EmitPart(a);
  emit.first_entry = a.position / a.ratio;
  emit.rows = EmittedEntries(a);
  emit.pooled = pool.entries;
  emit.pooled_stride = a.width;
  Emit kernel = MakeEmit(emit);
  kernel.scratch = pool.entries;
  kernel.scratch_stride = a.width;
  kernel.into = a.output_type == KVSTRATA_KERNELS_PACKED ? Into::kPacked
                : a.output_type == KVSTRATA_KERNELS_BF16 ? Into::kBf16
                                                         : Into::kFloats;
  kernel.entries = a.entries;
  kernel.entry_stride = a.entry_stride;
  kernel.planes = a.packed;
  if (kernel.into == Into::kPacked) {
    kvstrata_packed_shape asked{};
    asked.struct_size = sizeof asked;
    asked.format = a.format;
    asked.width = a.width;
    asked.rope_dims = kernel.packed_rope_dims;
    kvstrata_packed_shape shape;
    if (const int32_t status = Prepare(&asked, shape); status != kOk) return status;
    kernel.scale_bytes = shape.scale_bytes;
  }
  return LaunchEmit(kernel, stream);
}

}  // namespace kvstrata::kernels::cuda
