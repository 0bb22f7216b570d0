// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/restore_reads.h"

#include <algorithm>

#include "lib/engine/slice_coding.h"

namespace kvstrata::core::engine {
namespace {

// With early release a read ends with its layer, unless it is smaller than this: what a layer has of a short run alone
// would be read at a fraction of the rate.
constexpr uint64_t kMinEarlyBytes = 128u << 10;

class ReadList {
 public:
  ReadList(size_t record, const ReadShape& shape, std::vector<RecordRead>* reads)
      : record_(record), shape_(shape), reads_(reads) {}

  void AddHead(uint64_t bytes, uint32_t layer) {
    reads_->push_back({record_, 0, bytes, true, layer, 0, {}});
    last_layer_ = layer;
    open_ = true;
  }

  void Add(uint32_t layer, const SliceTable& table, ReadPart part) {
    const uint64_t offset = table.Start(part.slice, part.from);
    const uint64_t bytes = table.StoredBytes(part.slice, part.from, part.to);
    if (!Continues(layer, offset, bytes)) reads_->push_back({record_, offset, 0, false, layer, 0, {}});
    RecordRead& read = reads_->back();
    read.decode_bytes = std::max(read.decode_bytes, DecodeBytes(table, {part.slice, part.from, part.to}));
    part.offset = read.bytes;
    read.bytes += bytes;
    read.layer = std::min(read.layer, layer);
    read.parts.push_back(part);
    last_layer_ = layer;
    open_ = true;
  }

 private:
  bool Continues(uint32_t layer, uint64_t offset, uint64_t bytes) const {
    if (!open_) return false;
    const RecordRead& read = reads_->back();
    if (read.offset + read.bytes != offset || read.bytes + bytes > shape_.most_bytes) return false;
    return !shape_.early_release || layer == last_layer_ || read.bytes < kMinEarlyBytes;
  }

  const size_t record_;
  const ReadShape shape_;
  std::vector<RecordRead>* const reads_;
  uint32_t last_layer_ = 0;
  bool open_ = false;
};

}  // namespace

void AddReads(size_t number, const SourceRecord& record, std::span<const WantedSlice> wanted, const ReadShape& shape,
              std::vector<RecordRead>* reads) {
  ReadList list(number, shape, reads);
  if (record.head_bytes > 0) list.AddHead(record.head_bytes, wanted.empty() ? 0 : wanted.front().layer);
  const uint64_t from = record.snapshot ? 0 : record.from - record.run.first;
  const uint64_t to = record.snapshot ? 1 : record.to - record.run.first;
  for (const WantedSlice& want : wanted) {
    const uint64_t bytes = record.table.slices[want.slice].bytes;  // of one block
    // What is larger than a read is cut into equal ones.
    const uint64_t pieces = std::max<uint64_t>(1, ((to - from) * bytes + shape.most_bytes - 1) / shape.most_bytes);
    const uint64_t step = (to - from + pieces - 1) / pieces;
    for (uint64_t at = from; at < to; at += step) {
      const uint64_t end = std::min(to, at + step);
      list.Add(want.layer, record.table, {want.slice, at, end, 0});
    }
  }
}

void OrderForEarlyRelease(std::vector<RecordRead>* reads) { std::ranges::stable_sort(*reads, {}, &RecordRead::layer); }

}  // namespace kvstrata::core::engine
