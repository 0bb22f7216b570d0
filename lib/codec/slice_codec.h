// SPDX-License-Identifier: Apache-2.0
// A slice (what one stream has of one block) in fewer bytes, and back, bit for bit: its rows taken apart into planes
// of like bytes, each plane in a zstd frame where that is smaller. Whole rows hardly gain: codes, scales and the bytes
// of wider numbers each have a distribution of their own, and planes keep these apart. Rows of floats that lie on the
// grid of a packed form go into that form first. FORMAT.md, "Coded slices".
//
// Thread rule: an encoder or decoder belongs to one thread at a time.
//
// Invariants:
//   I1  What Encode makes is smaller than what it was given by at least a thirty-second, or nothing is made.
//   I2  Decode trusts nothing: it writes exactly the rows it was told of or fails with kCorrupt, and never reads or
//       writes outside what it was given, whatever the bytes are.
//   I3  A packed form is used for rows that unpacking gives back bit for bit, which is tried with each slice.
//   I4  Rows come from and go to the caller's memory, through the caller's scratch. zstd's own working memory (less
//       than 1 MiB for slices of these sizes) is made with the coder.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/codec/codec.h"
#include "lib/layout/layout.h"

namespace kvstrata::core::codec {

// Larger slices are not coded: encoding and decoding take scratch memory of a few times a slice's size.
inline constexpr uint64_t kMaxCodedSliceBytes = 4u << 20;

// Finds the functions that pack rows of `source` (f32 or bf16) into `packed`; null where there are none.
using FindPacker = const RowPacker* (*)(layout::Packing packed, layout::Packing source);

class SliceEncoder {
 public:
  SliceEncoder();
  ~SliceEncoder();
  SliceEncoder(const SliceEncoder&) = delete;
  SliceEncoder& operator=(const SliceEncoder&) = delete;

  // The coded form of whole rows of `stream` in the first bytes of `coded`; its size, or 0 where the rows do not gain,
  // are too many, or there is no memory for zstd. `scratch` and `coded` have at least rows.size() bytes each; they
  // hold no meaning after a 0.
  uint64_t Encode(const layout::Stream& stream, base::ByteView rows, base::MutableBytes scratch,
                  base::MutableBytes coded);
  // The same by way of `packed`, of which `packer` is; in zstd frames with `squeeze` only. 0 also where the rows are
  // off the grid. `scratch` has at least twice rows.size() bytes.
  uint64_t EncodePacked(const layout::Stream& stream, layout::Packing packed, const RowPacker& packer, bool squeeze,
                        base::ByteView rows, base::MutableBytes scratch, base::MutableBytes coded);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

class SliceDecoder {
 public:
  // Without packers slices in a packed form cannot be decoded.
  explicit SliceDecoder(FindPacker find_packer = nullptr);
  ~SliceDecoder();
  SliceDecoder(const SliceDecoder&) = delete;
  SliceDecoder& operator=(const SliceDecoder&) = delete;

  // Fills `rows`, whose size is what the slice must have. `scratch` has at least twice as many bytes. Errors: kCorrupt;
  // kOutOfMemory; kUnsupported without a packer. `rows` hold no meaning then.
  absl::Status Decode(const layout::Stream& stream, base::ByteView coded, base::MutableBytes scratch,
                      base::MutableBytes rows);

 private:
  struct Context;
  absl::Status DecodePacked(const layout::Stream& stream, base::ByteView coded, base::MutableBytes scratch,
                            base::MutableBytes rows);

  const FindPacker find_packer_;
  std::unique_ptr<Context> context_;
};

}  // namespace kvstrata::core::codec
