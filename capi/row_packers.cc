// SPDX-License-Identifier: Apache-2.0
#include "capi/row_packers.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/dispatch.h"
#include "kvstrata/kernels.h"

namespace kvstrata::capi {
namespace {

namespace codec = core::codec;
using core::layout::Packing;

// A packed row's planes lie one behind the other: codes, rope, scales.
struct Form {
  Packing packing;
  int32_t format;
  uint32_t width;
  uint32_t code_bytes, rope_bytes, scale_bytes;

  constexpr uint32_t row_bytes() const { return code_bytes + rope_bytes + scale_bytes; }
};

constexpr Form kForms[] = {{Packing::kFp8Row584, KVSTRATA_KERNELS_FORMAT_V4_ROW, 512, 448, 128, 8},
                           {Packing::kFp8Row528, KVSTRATA_KERNELS_FORMAT_V41_WINDOW, 512, 512, 0, 16},
                           {Packing::kFp4Row288, KVSTRATA_KERNELS_FORMAT_V41_ENTRY, 512, 256, 0, 32},
                           {Packing::kFp8Key132, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, 128, 128, 0, 4},
                           {Packing::kFp4Key68, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, 128, 64, 0, 4}};

// A form, and the floats that it is made of.
struct Pair {
  const Form* form;
  Packing source;

  constexpr uint32_t element_bytes() const { return source == Packing::kF32 ? 4 : 2; }
  constexpr uint32_t row_bytes() const { return form->width * element_bytes(); }
  int32_t element_type() const { return source == Packing::kF32 ? KVSTRATA_KERNELS_F32 : KVSTRATA_KERNELS_BF16; }
};

// The engine's rows lie at any address; kernels want theirs where numbers may lie.
constexpr size_t kBatch = 8;
struct alignas(64) Batch {
  std::byte rows[kBatch * 512 * sizeof(float)];
};

template <typename Args>
void PointToPlanes(const Form& form, decltype(Args::codes) packed, Args* args) {
  args->codes = packed;
  args->rope = form.rope_bytes == 0 ? nullptr : packed + form.code_bytes;
  args->scales = packed + form.code_bytes + form.rope_bytes;
  args->code_stride_bytes = args->rope_stride_bytes = args->scale_stride_bytes = form.row_bytes();
}

bool Pack(void* context, const std::byte* source, size_t rows, std::byte* packed) {
  const Pair& pair = *static_cast<const Pair*>(context);
  const kvstrata_kernels& kernels = *kernels::Get(KVSTRATA_KERNELS_LEVEL_AUTO);
  const size_t row_bytes = pair.row_bytes();
  Batch batch;
  for (size_t done = 0; done < rows; done += kBatch) {
    kvstrata_pack_rows_args args{};
    args.struct_size = sizeof(args);
    args.format = pair.form->format;
    args.source_type = pair.element_type();
    args.rows = std::min(kBatch, rows - done);
    args.source = batch.rows;
    std::memcpy(batch.rows, source + done * row_bytes, args.rows * row_bytes);
    PointToPlanes(*pair.form, reinterpret_cast<uint8_t*>(packed + done * pair.form->row_bytes()), &args);
    if (kernels.pack_rows(&args, nullptr) != 0) return false;
  }
  return true;
}

bool Unpack(void* context, const std::byte* packed, size_t rows, std::byte* source) {
  const Pair& pair = *static_cast<const Pair*>(context);
  const kvstrata_kernels& kernels = *kernels::Get(KVSTRATA_KERNELS_LEVEL_AUTO);
  const size_t row_bytes = pair.row_bytes();
  Batch batch;
  for (size_t done = 0; done < rows; done += kBatch) {
    kvstrata_unpack_rows_args args{};
    args.struct_size = sizeof(args);
    args.format = pair.form->format;
    args.destination_type = pair.element_type();
    args.rows = std::min(kBatch, rows - done);
    args.destination = batch.rows;
    PointToPlanes(*pair.form, reinterpret_cast<const uint8_t*>(packed + done * pair.form->row_bytes()), &args);
    if (kernels.unpack_rows(&args, nullptr) != 0) return false;
    std::memcpy(source + done * row_bytes, batch.rows, args.rows * row_bytes);
  }
  return true;
}

constexpr Pair kPairs[] = {{&kForms[0], Packing::kF32},  {&kForms[1], Packing::kF32},  {&kForms[2], Packing::kF32},
                           {&kForms[3], Packing::kF32},  {&kForms[4], Packing::kF32},  {&kForms[0], Packing::kBf16},
                           {&kForms[1], Packing::kBf16}, {&kForms[2], Packing::kBf16}, {&kForms[3], Packing::kBf16},
                           {&kForms[4], Packing::kBf16}};

constexpr codec::RowPacker PackerOf(const Pair& pair) {
  return {&Pack, &Unpack, const_cast<Pair*>(&pair), pair.row_bytes(), pair.form->row_bytes()};
}

constexpr codec::RowPacker kPackers[] = {
    PackerOf(kPairs[0]), PackerOf(kPairs[1]), PackerOf(kPairs[2]), PackerOf(kPairs[3]), PackerOf(kPairs[4]),
    PackerOf(kPairs[5]), PackerOf(kPairs[6]), PackerOf(kPairs[7]), PackerOf(kPairs[8]), PackerOf(kPairs[9])};

}  // namespace

const codec::RowPacker* FindRowPacker(Packing packed, Packing source) {
  for (size_t i = 0; i < std::size(kPairs); ++i) {
    if (kPairs[i].form->packing == packed && kPairs[i].source == source) return &kPackers[i];
  }
  return nullptr;
}

}  // namespace kvstrata::capi
