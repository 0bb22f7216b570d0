// SPDX-License-Identifier: Apache-2.0
// Rows that a kernel reads as keys: of an element type, or packed, which mean exactly what unpack_rows gives. Every
// packed value is a bf16 number, so packed and bf16 rows can go to the tensor cores as they are.
//
// Thread rule: pure functions.
#pragma once

#include "kernels/arguments.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scales.h"
#include "kernels/cuda/words.h"
#include "kernels/reference/grid.h"

namespace kvstrata::kernels::cuda {

// Has a warp copy `bytes` bytes, a multiple of `word`, into shared memory, behind its back where words are wide enough.
KVSTRATA_DEVICE void FetchBytes(const Thread& t, const uint8_t* from, uint32_t bytes, uint32_t word, uint8_t* to) {
  for (uint32_t at = t.lane() * word; at < bytes; at += kWarp * word) {
    if (word >= sizeof(uint32_t)) {
      t.CopyAsync(to + at, from + at, word);
    } else {
      StoreWord(LoadWord(from + at, word), word, to + at);
    }
  }
}

struct KeyRows {
  Rows rows;  // of a type
  uint64_t stride;
  bool packed;
  reference::Grid format;
  kvstrata_packed_planes planes;
  uint32_t quantised;  // channels before the rope part
  // The widest words that rows and planes can be read in, eight channels or whole.
  uint32_t row_word, code_word, rope_word;
  uint32_t codes_word, scales_word;
  // A packed row in shared memory, as Fetch brings it: scales, codes, RoPE channels, each at a multiple of 16.
  uint32_t scale_bytes, code_bytes, codes_at;

  static KeyRows Typed(const void* data, int32_t type, uint64_t stride) {
    const uint64_t bytes = stride * (type == KVSTRATA_KERNELS_F32 ? sizeof(float) : sizeof(uint16_t));
    KeyRows keys{};
    keys.rows = {const_cast<void*>(data), type};
    keys.stride = stride;
    keys.row_word = WordBytes(AddressOf(data) | bytes);
    return keys;
  }

  static KeyRows Packed(int32_t format, uint32_t width, uint32_t rope_dims, const kvstrata_packed_planes& planes) {
    KeyRows keys{};
    kvstrata_packed_shape asked{}, shape{};
    asked.struct_size = sizeof asked;
    asked.format = format;
    asked.width = width;
    asked.rope_dims = format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? rope_dims : 0;
    if (Prepare(&asked, shape) != kOk) return keys;  // never: the caller's own shape has been looked at
    keys.packed = true;
    keys.format = reference::GridOf(format, width);
    keys.planes = planes;
    keys.quantised = width - asked.rope_dims;
    keys.scale_bytes = shape.scale_bytes;
    keys.code_bytes = shape.code_bytes;
    keys.codes_at = (keys.scale_bytes + 15) / 16 * 16;
    const uint64_t code_bits = AddressOf(planes.codes) | planes.code_stride_bytes;
    keys.code_word = WordBytes(code_bits | (keys.format.e2m1 ? 4 : 8));
    keys.codes_word = WordBytes(code_bits | keys.code_bytes);
    keys.rope_word = WordBytes(AddressOf(planes.rope) | planes.rope_stride_bytes);
    keys.scales_word = WordBytes(AddressOf(planes.scales) | planes.scale_stride_bytes | keys.scale_bytes);
    return keys;
  }

  // Both halves exact in bf16?
  bool is_bf16() const { return packed || rows.type == KVSTRATA_KERNELS_BF16; }

  // Eight neighbouring channels as they lie: pairs of bf16 numbers, or codes and their scale.
  struct Piece {
    Word16 bits;
    float scale;
    bool coded;
  };

  // Channels `channel` .. `channel` + 7, a multiple of eight, of bf16 or packed rows. A block of channels is never cut:
  // all formats' are a multiple of eight wide, but for small rows of one block, which end with it.
  KVSTRATA_DEVICE Piece PieceOf(uint64_t row, uint32_t channel) const {
    if (!packed) {
      const auto* from = static_cast<const uint16_t*>(rows.data) + row * stride + channel;
      return {LoadBytes(reinterpret_cast<const uint8_t*>(from), sizeof(Word16), row_word), 0, false};
    }
    if (channel >= quantised) {
      const uint8_t* rope = planes.rope + row * planes.rope_stride_bytes + 2 * (channel - quantised);
      return {LoadBytes(rope, sizeof(Word16), rope_word), 0, false};
    }
    const uint8_t* codes = planes.codes + row * planes.code_stride_bytes;
    return {format.e2m1 ? LoadBytes(codes + channel / 2, 4, code_word) : LoadBytes(codes + channel, 8, code_word),
            LoadScale(format, planes.scales + row * planes.scale_stride_bytes, channel), true};
  }

  KVSTRATA_DEVICE Word16 PairsOf(const Thread& t, const Piece& piece) const {
    if (!piece.coded) return piece.bits;
    const Word16& from = piece.bits;
    Word16 pairs;
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t two = format.e2m1 ? from.parts[0] >> (8 * i) : from.parts[i / 2] >> (i % 2 * 16);
      const auto low = static_cast<uint8_t>(format.e2m1 ? two & 0xFu : two);
      const auto high = static_cast<uint8_t>(format.e2m1 ? two >> 4 & 0xFu : two >> 8);
      pairs.parts[i] = t.PairOf(DecodeCode(format, low, piece.scale), DecodeCode(format, high, piece.scale));
    }
    return pairs;
  }

  KVSTRATA_DEVICE Word16 Pairs(const Thread& t, uint64_t row, uint32_t channel) const {
    return PairsOf(t, PieceOf(row, channel));
  }

  // Has a warp copy a row of `width` channels into shared memory as it lies: bf16 numbers, or what a packed row has,
  // which needs no more than those and 16 bytes. `to` is aligned to 16.
  KVSTRATA_DEVICE void Fetch(const Thread& t, uint64_t row, uint32_t width, uint8_t* to) const {
    if (!packed) {
      const auto* from = static_cast<const uint16_t*>(rows.data) + row * stride;
      return FetchBytes(t, reinterpret_cast<const uint8_t*>(from), 2 * width, row_word, to);
    }
    FetchBytes(t, planes.scales + row * planes.scale_stride_bytes, scale_bytes, scales_word, to);
    FetchBytes(t, planes.codes + row * planes.code_stride_bytes, code_bytes, codes_word, to + codes_at);
    FetchBytes(t, planes.rope + row * planes.rope_stride_bytes, 2 * (width - quantised), rope_word,
               to + codes_at + code_bytes);
  }

  // Eight channels of a packed row that Fetch has brought.
  KVSTRATA_DEVICE Word16 FetchedPairs(const Thread& t, const uint8_t* fetched, uint32_t channel) const {
    const uint8_t* codes = fetched + codes_at;
    if (channel >= quantised) return LoadWord(codes + code_bytes + 2 * (channel - quantised), sizeof(Word16));
    return PairsOf(t, {format.e2m1 ? LoadWord(codes + channel / 2, 4) : LoadWord(codes + channel, 8),
                       LoadScale(format, fetched, channel), true});
  }

  KVSTRATA_DEVICE float At(uint64_t row, uint32_t channel) const {
    if (!packed) {
      float value[1];
      rows.Load(row * stride + channel, value);
      return value[0];
    }
    if (channel >= quantised) {
      const uint8_t* rope = planes.rope + row * planes.rope_stride_bytes + 2 * (channel - quantised);
      return reference::Bf16ToF32(static_cast<uint16_t>(rope[0] | rope[1] << 8));
    }
    const uint8_t* codes = planes.codes + row * planes.code_stride_bytes;
    const uint8_t* scales = planes.scales + row * planes.scale_stride_bytes;
    uint8_t code = format.e2m1 ? codes[channel / 2] : codes[channel];
    if (format.e2m1) code = static_cast<uint8_t>(code >> (channel % 2 * 4) & 0xFu);
    return DecodeCode(format, code, LoadScale(format, scales, channel));
  }
};

}  // namespace kvstrata::kernels::cuda
