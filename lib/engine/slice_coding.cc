// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/slice_coding.h"

#include <algorithm>
#include <cstring>

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

SliceCoding::SliceCoding(const layout::Layout& layout, uint32_t groups, uint64_t staging_bytes)
    : layout_(layout), groups_(groups), most_bytes_(std::min(codec::kMaxCodedSliceBytes, staging_bytes / 4)) {}

bool SliceCoding::Codes(const format::Slice& slice) const {
  return slice.bytes > 0 && slice.bytes <= most_bytes_ && (GroupOf(layout_.stream(slice.stream)) & groups_) != 0;
}

// One slice's planes, and its coded form.
uint64_t SliceCoding::ScratchBytes(const format::RecordHead& head) const {
  uint64_t largest = 0;
  for (const format::Slice& slice : head.slices) {
    if (Codes(slice)) largest = std::max(largest, slice.bytes);
  }
  return 2 * largest;
}

SliceCoding::Result SliceCoding::Code(base::MutableBytes memory, format::RecordHead* head) const {
  codec::SliceEncoder encoder;
  const uint64_t half = ScratchBytes(*head) / 2;
  const base::MutableBytes scratch = memory.last(2 * half).first(half), coded = memory.last(half);
  Result result;
  bool some_coded = false;
  uint64_t from = 0;
  for (const format::Slice& slice : head->slices) {
    const bool codes = Codes(slice);
    for (uint64_t block = 0; block < head->blocks(); ++block) {
      const base::ByteView rows = memory.subspan(from, slice.bytes);
      std::byte* const to = memory.data() + result.payload_bytes;
      const uint64_t size = codes ? encoder.Encode(layout_.stream(slice.stream), rows, scratch, coded) : 0;
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
      result.rows_bytes += codes ? slice.bytes : 0;
      result.stored_bytes += codes ? stored : 0;
    }
  }
  if (!some_coded) head->stored.clear();
  return result;
}

uint64_t DecodeBytes(const SliceTable& table, const CodedPart& part) {
  const uint64_t bytes = table.slices[part.slice].bytes;
  const uint64_t rows = (part.to - part.from) * bytes;
  return table.StoredBytes(part.slice, part.from, part.to) == rows ? 0 : rows + bytes;
}

absl::Status DecodePart(const SliceTable& table, const CodedPart& part, const layout::Stream& stream,
                        base::ByteView stored, base::MutableBytes memory, codec::SliceDecoder* decoder,
                        uint64_t* bad_block) {
  const uint64_t bytes = table.slices[part.slice].bytes;
  const base::MutableBytes scratch = memory.subspan((part.to - part.from) * bytes, bytes);
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
