// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/storage/least_index.h"

namespace kvstrata::benchmarks {

namespace base = core::base;
namespace format = core::format;

uint64_t LeastIndex::Take(base::ByteView log, uint64_t salt, uint64_t offset) {
  format::LogEntryView entry;
  if (!format::DecodeEntryView(log.subspan(offset), salt, offset, &entry).ok()) return 0;
  auto meta = format::DecodeRecordMeta(entry.meta);
  if (meta.ok() && meta->identity.kind == format::RecordKind::kBlock) {
    ahead_.emplace_back(*std::move(meta), Place{offset, entry.sequence, entry.places[0]});
  }
  if (ahead_.size() == kAhead) TakeRest();
  return entry.entry_bytes;
}

void LeastIndex::TakeRest() {
  for (const auto& [meta, place] : ahead_) {
    records_.prefetch(meta.identity.key.digest);
    blocks_.prefetch(meta.identity.key.digest);
  }
  for (const auto& [meta, place] : ahead_) {
    for (const base::BlockDigest& key : meta.more) blocks_.prefetch(key.digest);
    records_.emplace(meta.identity.key.digest, place);
    const Node node{meta.identity.sequence, meta.identity.sequence, meta.payload_bytes, 1, 0};
    blocks_.emplace(meta.identity.key.digest, node);
    for (const base::BlockDigest& key : meta.more) blocks_.emplace(key.digest, node);
  }
  ahead_.clear();
}

}  // namespace kvstrata::benchmarks
