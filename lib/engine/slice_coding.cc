// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/slice_coding.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvstrata::core::engine {

CompressGroup GroupOf(const layout::Stream& stream) {
  if (stream.kind == layout::StreamKind::kState) return kCompressStates;
  switch (stream.role) {
    case layout::Role::kCsaEntry:
    case layout::Role::kHcaEntry:
    case layout::Role::kLatent: return kCompressEntries;
    case layout::Role::kIndexKey: return kCompressIndexKeys;
    case layout::Role::kKey:
    case layout::Role::kValue: return kCompressKeysValues;
    default: return kCompressOtherRows;
  }
}

SliceCoding::SliceCoding(const layout::Layout& layout, const CodingRule& rule, uint64_t staging_bytes)
    : layout_(layout), rule_(rule), most_bytes_(std::min(codec::kMaxCodedSliceBytes, staging_bytes / 4)) {}

SliceCoding::Way SliceCoding::WayOf(const format::Slice& slice) const {
  Way way;
  if (slice.bytes == 0 || slice.bytes > most_bytes_) return way;
  const layout::Stream& stream = layout_.stream(slice.stream);
  way.compress = (GroupOf(stream) & rule_.compress) != 0;
  constexpr std::pair<PackForm, codec::Codec> kForms[] = {{kPackFp8Row584, codec::Codec::kFp8Row584},
                                                          {kPackFp8Row528, codec::Codec::kFp8Row528},
                                                          {kPackFp4Row288, codec::Codec::kFp4Row288},
                                                          {kPackFp8Key132, codec::Codec::kFp8Key132},
                                                          {kPackFp4Key68, codec::Codec::kFp4Key68}};
  for (const auto& [form, codec] : kForms) {
    if ((rule_.pack & form) == 0 || rule_.find_packer == nullptr) continue;
    if (!codec::StoredRowBytes(stream, codec).ok()) continue;
    way.packing = static_cast<layout::Packing>(codec);
    way.packer = rule_.find_packer(way.packing, stream.packing);
  }
  return way;
}

// Twice one slice's planes (the packed form is smaller than the rows), and its coded form.
uint64_t SliceCoding::ScratchBytes(const format::RecordHead& head) const {
  uint64_t largest = 0;
  for (const format::Slice& slice : head.slices) {
    if (WayOf(slice).codes()) largest = std::max(largest, slice.bytes);
  }
  return 3 * largest;
}

// The coded form's size; 0: it stays as it is.
uint64_t SliceCoding::CodeSlice(const Way& way, const layout::Stream& stream, base::ByteView rows,
                                base::MutableBytes scratch, base::MutableBytes coded, codec::SliceEncoder* encoder,
                                Result* result) const {
  if (way.packer != nullptr) {
    const uint64_t size = encoder->EncodePacked(stream, way.packing, *way.packer, way.compress, rows, scratch, coded);
    (size > 0 ? result->packed_slices : result->off_grid_slices) += 1;
    if (size > 0) return size;
  }
  return way.compress ? encoder->Encode(stream, rows, scratch, coded) : 0;
}

SliceCoding::Result SliceCoding::Code(base::MutableBytes memory, format::RecordHead* head) const {
  codec::SliceEncoder encoder;
  const uint64_t largest = ScratchBytes(*head) / 3;
  const base::MutableBytes scratch = memory.last(3 * largest).first(2 * largest), coded = memory.last(largest);
  Result result;
  bool some_coded = false;
  uint64_t from = 0;
  for (const format::Slice& slice : head->slices) {
    const Way way = WayOf(slice);
    const layout::Stream& stream = layout_.stream(slice.stream);
    for (uint64_t block = 0; block < head->blocks(); ++block) {
      const base::ByteView rows = memory.subspan(from, slice.bytes);
      std::byte* const to = memory.data() + result.payload_bytes;
      const uint64_t size = CodeSlice(way, stream, rows, scratch, coded, &encoder, &result);
      const uint64_t stored = size > 0 ? size : slice.bytes;
      if (size > 0) {
        std::memcpy(to, coded.data(), size);
      } else if (to != rows.data()) {
        std::memmove(to, rows.data(), rows.size());
      }
      some_coded |= size > 0;
      head->stored.push_back(stored);
      from += slice.bytes;
      result.payload_bytes += stored;
      result.rows_bytes += way.codes() ? slice.bytes : 0;
      result.stored_bytes += way.codes() ? stored : 0;
    }
  }
  if (!some_coded) head->stored.clear();
  return result;
}

uint64_t DecodeBytes(const SliceTable& table, const CodedPart& part) {
  const uint64_t bytes = table.slices[part.slice].bytes;
  const uint64_t rows = (part.to - part.from) * bytes;
  return table.StoredBytes(part.slice, part.from, part.to) == rows ? 0 : rows + 2 * bytes;
}

absl::Status DecodePart(const SliceTable& table, const CodedPart& part, const layout::Stream& stream,
                        base::ByteView stored, base::MutableBytes memory, codec::SliceDecoder* decoder,
                        uint64_t* bad_block) {
  const uint64_t bytes = table.slices[part.slice].bytes;
  const base::MutableBytes scratch = memory.subspan((part.to - part.from) * bytes, 2 * bytes);
  for (uint64_t block = part.from; block < part.to; ++block) {
    const base::MutableBytes rows = memory.subspan((block - part.from) * bytes, bytes);
    const base::ByteView slice = stored.subspan(table.StoredBytes(part.slice, part.from, block),
                                                table.StoredBytes(part.slice, block, block + 1));
    if (slice.size() == bytes) {
      std::memcpy(rows.data(), slice.data(), bytes);
      continue;
    }
    absl::Status status = decoder->Decode(stream, slice, scratch, rows);
    if (status.ok()) continue;
    *bad_block = block;
    return status;
  }
  return absl::OkStatus();
}

}  // namespace kvstrata::core::engine
