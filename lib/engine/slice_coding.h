// SPDX-License-Identifier: Apache-2.0
// Between a record's rows and its slices as they are stored, where some of them are coded (lib/codec/slice_codec.h).
//
// Thread rule: pure functions; a decoder belongs to one thread at a time.
//
// Invariants:
//   I1  Both work within memory that was acquired with the rows' own: no more is needed on the way.
//   I2  Only proven bytes are given to the decoder, and what it makes is a slice's rows whole, or an error.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/codec/slice_codec.h"
#include "lib/engine/record_proof.h"
#include "lib/format/record.h"
#include "lib/layout/layout.h"

namespace kvstrata::core::engine {

// Which streams a writer codes, by what their rows are. Pinned numbers: the C ABI hands them in unchanged.
enum CompressGroup : uint32_t {
  kCompressEntries = 1,     // compressed and latent entries
  kCompressIndexKeys = 2,   // index keys
  kCompressKeysValues = 4,  // keys and values
  kCompressOtherRows = 8,   // any other rows
  kCompressStates = 16,     // all states
};
inline constexpr uint32_t kAllCompressGroups = 31;

CompressGroup GroupOf(const layout::Stream& stream);

// Packed forms for streams of f32 or bf16 rows of their width: stored so where that loses nothing. Pinned numbers.
enum PackForm : uint32_t {
  kPackFp8Row584 = 1,  // of 512 numbers
  kPackFp8Row528 = 2,
  kPackFp4Row288 = 4,
  kPackFp8Key132 = 8,  // of 128 numbers
  kPackFp4Key68 = 16,
};
inline constexpr uint32_t kAllPackForms = 31;

// What a writer codes, and by what.
struct CodingRule {
  uint32_t compress = 0;  // CompressGroups
  uint32_t pack = 0;      // PackForms, at most one of a width
  codec::FindPacker find_packer = nullptr;
};

class SliceCoding {
 public:
  // `staging_bytes`: all there is. What takes more than a quarter of it is not coded, so that a restore with as much
  // can decode it.
  SliceCoding(const layout::Layout& layout, const CodingRule& rule, uint64_t staging_bytes);

  // The memory behind a record's payload that coding its slices takes; 0: none will be coded.
  uint64_t ScratchBytes(const format::RecordHead& head) const;

  struct Result {
    uint64_t payload_bytes = 0;
    uint64_t rows_bytes = 0;    // of the slices that were to be coded
    uint64_t stored_bytes = 0;  // that these take
    uint64_t packed_slices = 0;
    uint64_t off_grid_slices = 0;  // that were to be packed, and would not have come back bit for bit
  };
  // `memory`: the payload, slices back to back as `head` says, and scratch behind it. Codes what gains, closes the
  // gaps, and tells the head what each slice takes; a head of which no slice was coded stays as it was.
  Result Code(base::MutableBytes memory, format::RecordHead* head) const;

 private:
  // What is to be done with one stream's slices.
  struct Way {
    bool compress = false;
    layout::Packing packing = layout::Packing::kRaw;
    const codec::RowPacker* packer = nullptr;

    bool codes() const { return compress || packer != nullptr; }
  };
  Way WayOf(const format::Slice& slice) const;
  uint64_t CodeSlice(const Way& way, const layout::Stream& stream, base::ByteView rows, base::MutableBytes scratch,
                     base::MutableBytes coded, codec::SliceEncoder* encoder, Result* result) const;

  const layout::Layout& layout_;
  const CodingRule rule_;
  const uint64_t most_bytes_;
};

// Blocks [from, to) of one slice of a proven table, of which some are coded.
struct CodedPart {
  uint32_t slice = 0;
  uint64_t from = 0, to = 0;
};
// What decoding a part takes: its rows, then scratch. 0: nothing of it is coded.
uint64_t DecodeBytes(const SliceTable& table, const CodedPart& part);
// `stored`: the part's bytes as they lie in the record, proven. Its rows are the first bytes of `memory` afterwards.
// *bad_block is set on kCorrupt.
absl::Status DecodePart(const SliceTable& table, const CodedPart& part, const layout::Stream& stream,
                        base::ByteView stored, base::MutableBytes memory, codec::SliceDecoder* decoder,
                        uint64_t* bad_block);

}  // namespace kvstrata::core::engine
