// SPDX-License-Identifier: Apache-2.0
// A slice (what one stream has of one block) in fewer bytes, and back, bit for bit: its rows taken apart into planes
// of like bytes, each plane in a zstd frame where that is smaller. Whole rows hardly gain: codes, scales and the bytes
// of wider numbers each have a distribution of their own, and planes keep these apart. FORMAT.md, "Coded slices".
//
// Thread rule: an encoder or decoder belongs to one thread at a time.
//
// Invariants:
//   I1  What Encode makes is smaller than what it was given by at least a thirty-second, or nothing is made.
//   I2  Decode trusts nothing: it writes exactly the rows it was told of or fails with kCorrupt, and never reads or
//       writes outside what it was given, whatever the bytes are.
//   I3  Rows come from and go to the caller's memory, through the caller's scratch. zstd's own working memory (less
//       than 1 MiB for slices of these sizes) is made with the coder.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/layout/layout.h"

namespace kvstrata::core::codec {

// Larger slices are not coded: decoding takes scratch memory of twice a slice's size.
inline constexpr uint64_t kMaxCodedSliceBytes = 4u << 20;

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

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

class SliceDecoder {
 public:
  SliceDecoder();
  ~SliceDecoder();
  SliceDecoder(const SliceDecoder&) = delete;
  SliceDecoder& operator=(const SliceDecoder&) = delete;

  // Fills `rows`, whose size is what the slice must have. `scratch` has at least as many bytes. Errors: kCorrupt;
  // kOutOfMemory. `rows` hold no meaning then.
  absl::Status Decode(const layout::Stream& stream, base::ByteView coded, base::MutableBytes scratch,
                      base::MutableBytes rows);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace kvstrata::core::codec
