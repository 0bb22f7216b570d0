// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/other_records.h"

#include <utility>

namespace kvstrata::core::engine {

storage::Key NameOfBlock(const base::BlockDigest& key) {
  return {format::MakeRecordKey(format::RecordKind::kBlock, key)};
}

storage::Key KeyOfRecord(const format::RecordIdentity& identity) {
  const bool snapshot = identity.kind == format::RecordKind::kSnapshot;
  return {format::MakeRecordKey(
      identity.kind, snapshot ? format::SnapshotKey(identity.key, identity.position, identity.tail) : identity.key)};
}

const OtherRecord* OtherRecords::Find(const storage::Key& key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : found->second.get();
}

std::optional<OtherRecords::Place> OtherRecords::FindBlock(const base::BlockDigest& key) const {
  const auto found = blocks_.find(NameOfBlock(key));
  return found == blocks_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<storage::Key> OtherRecords::SnapshotsAt(const base::BlockDigest& boundary) const {
  const auto found = snapshots_.find(NameOfBlock(boundary));
  return found == snapshots_.end() ? std::vector<storage::Key>() : found->second;
}

std::vector<storage::Key> OtherRecords::Keys() const {
  std::vector<storage::Key> keys;
  keys.reserve(records_.size());
  for (const auto& [key, record] : records_) keys.push_back(key);
  return keys;
}

void OtherRecords::Name(const OtherRecord& record) {
  for (uint32_t i = 0; i < record.meta.blocks(); ++i) blocks_.try_emplace(NameOfBlock(record.BlockKey(i)), &record, i);
}

void OtherRecords::Add(const storage::Key& key, OtherRecord record) {
  const OtherRecord& added = *(records_[key] = std::make_unique<OtherRecord>(std::move(record)));
  if (added.is_snapshot()) {
    snapshots_[NameOfBlock(added.meta.identity.key)].push_back(key);
  } else {
    Name(added);
  }
}

void OtherRecords::Erase(const storage::Key& key) {
  const auto found = records_.find(key);
  if (found == records_.end()) return;
  const std::unique_ptr<OtherRecord> gone = std::move(found->second);
  records_.erase(found);
  if (gone->is_snapshot()) {
    const auto at = snapshots_.find(NameOfBlock(gone->meta.identity.key));
    std::erase(at->second, key);
    if (at->second.empty()) snapshots_.erase(at);
    return;
  }
  for (uint32_t i = 0; i < gone->meta.blocks(); ++i) {
    const auto name = blocks_.find(NameOfBlock(gone->BlockKey(i)));
    if (name == blocks_.end() || name->second.record != gone.get()) continue;
    const storage::Key block = name->first;
    blocks_.erase(name);
    // Another run that begins here takes its blocks over.
    if (const OtherRecord* other = Find(block); other != nullptr) Name(*other);
  }
}

}  // namespace kvstrata::core::engine
