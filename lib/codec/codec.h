// SPDX-License-Identifier: Apache-2.0
// How a stream's rows are turned into stored bytes and back. Owns the codec ids and the rule that nothing is lost
// from a stream marked exact: a codec either reproduces the rows bit for bit, which the writer proves block by block
// (PackOnGrid), or it is lossy and refused there.
//
// Thread rule: pure functions; the caller's pack functions must be so too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/layout/layout.h"

namespace kvstrata::core::codec {

// Written to disk; never renumbered. A packed codec's number is its packing's (layout::Packing); a lossy one adds 100.
enum class Codec : int32_t {
  kRaw = 1,  // the rows as the engine gives them
  // Packed where the rows lie on the packed grid (bit-equal after unpacking), else kRaw for that block.
  kFp8Row584 = 10,
  kFp8Row528 = 11,
  kFp4Row288 = 12,
  kFp8Key132 = 13,
  kFp4Key68 = 14,
  // Packed always; values off the grid are rounded.
  kFp8Row584Lossy = 110,
  kFp8Row528Lossy = 111,
  kFp4Row288Lossy = 112,
  kFp8Key132Lossy = 113,
  kFp4Key68Lossy = 114,
};

bool IsLossy(Codec codec);
std::string_view CodecName(Codec codec);                // "unknown" outside the enumeration
absl::StatusOr<Codec> CodecFromNumber(int32_t number);  // kCorrupt: numbers come from disk

// Stored bytes of one row of `stream` under `codec`. Also the check that the two fit: kInvalidArgument when a lossy
// codec meets an exact stream, or when the stream's rows are not f32 or bf16 rows of the packing's width.
absl::StatusOr<uint32_t> StoredRowBytes(const layout::Stream& stream, Codec codec);

// Packs or unpacks `rows` rows; false when the rows have no packed form (a NaN, say).
struct RowPacker {
  bool (*pack)(void* context, const std::byte* source, size_t rows, std::byte* packed) = nullptr;
  bool (*unpack)(void* context, const std::byte* packed, size_t rows, std::byte* source) = nullptr;
  void* context = nullptr;
  uint32_t source_row_bytes = 0;
  uint32_t packed_row_bytes = 0;
};

enum class GridResult {
  kOnGrid,   // `packed` holds the rows, and unpacking gives `source` back bit for bit
  kOffGrid,  // store the block raw and count it; `packed` holds no meaning
};

// Packs `source` (whole rows), unpacks it again and compares bits, so -0 and NaN payloads count as differences.
// `packed` and `scratch` must hold exactly the same number of packed and of source rows.
absl::StatusOr<GridResult> PackOnGrid(const RowPacker& packer, std::span<const std::byte> source,
                                      std::span<std::byte> packed, std::span<std::byte> scratch);

}  // namespace kvstrata::core::codec
