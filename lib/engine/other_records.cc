// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/other_records.h"

#include <algorithm>
#include <new>
#include <utility>

#include "lib/base/bytes.h"

namespace kvstrata::core::engine {
namespace {

// Records before its turn that the index is told of one: so long takes memory that is far.
constexpr uint32_t kPrefetchAhead = 16;

format::RecordKind KindOf(bool snapshot) {
  return snapshot ? format::RecordKind::kSnapshot : format::RecordKind::kBlock;
}

base::BlockDigest ChainKeyOf(const format::RecordIdentity& identity) {
  const bool snapshot = identity.kind == format::RecordKind::kSnapshot;
  return snapshot ? format::SnapshotKey(identity.key, identity.position, identity.tail) : identity.key;
}

}  // namespace

storage::Key KeyOfRecord(const format::RecordIdentity& identity) {
  return {format::MakeRecordKey(identity.kind, ChainKeyOf(identity))};
}

storage::Key OtherRecord::StorageKey() const { return {format::MakeRecordKey(KindOf(snapshot), key)}; }

bool OtherRecord::Is(const format::RecordMeta& meta) const {
  const format::RecordIdentity& identity = meta.identity;
  if (identity.kind != KindOf(snapshot) || identity.name_space != life || identity.sequence != sequence ||
      identity.position != position) {
    return false;
  }
  return snapshot ? identity.key == above && identity.tail == tail() : identity.key == key && identity.parent == above;
}

OtherRecords::~OtherRecords() {
  for (uint32_t number = 0; number < end_; ++number) delete[] records_[number].rest;
}

OtherRecord* OtherRecords::At(uint32_t number) {
  OtherRecord& record = records_[number];
  return record.blocks == 0 ? nullptr : &record;
}

uint32_t OtherRecords::NumberOf(const storage::Key& key) const {
  // It begins with the digest.
  const auto hash = base::LoadLittleEndian<uint64_t>(key.bytes.data());
  return by_key_.Find(hash, [&](uint32_t number) { return records_[number].StorageKey() == key; });
}

uint32_t OtherRecords::NumberOf(const base::BlockDigest& key, bool snapshot) const {
  return by_key_.Find(key.digest.lo, [&](uint32_t number) {
    return records_[number].key == key && records_[number].snapshot == snapshot;
  });
}

std::optional<OtherRecords::Place> OtherRecords::FindWaiting(const base::BlockDigest& key,
                                                             const format::NamespaceId& life) const {
  const auto found = waiting_.find(Wanted{key, life});
  return found == waiting_.end() ? std::nullopt : std::optional(Place{found->record, found->index});
}

std::vector<OtherRecord*> OtherRecords::SnapshotsAt(const base::BlockDigest& boundary) {
  std::vector<OtherRecord*> snapshots;
  const auto found = snapshots_.find(boundary.digest);
  for (uint32_t at = found == snapshots_.end() ? kNone : found->second; at != kNone;
       at = records_[at].next_at_boundary) {
    if (records_[at].above == boundary) snapshots.push_back(&records_[at]);
  }
  return snapshots;
}

// ---- Coming and going ----------------------------------------------------------------------------------------------

uint32_t OtherRecords::Make(const format::RecordMeta& meta, uint64_t bytes) {
  const format::RecordIdentity& identity = meta.identity;
  const bool fresh = unused_ == kNone;
  if (fresh && (end_ == kNone || !records_.Reserve(uint64_t{end_} + 1))) return kNone;
  const bool has_tail = identity.kind == format::RecordKind::kSnapshot && identity.tail != base::Digest128();
  const size_t rest = has_tail ? 1 : meta.more.size();
  base::BlockDigest* const memory = rest == 0 ? nullptr : new (std::nothrow) base::BlockDigest[rest];
  if (rest != 0 && memory == nullptr) return kNone;
  const uint32_t number = fresh ? end_++ : std::exchange(unused_, records_[unused_].next);
  OtherRecord& record = records_[number];
  record = OtherRecord();
  record.snapshot = identity.kind == format::RecordKind::kSnapshot;
  record.key = ChainKeyOf(identity);
  record.above = record.snapshot ? identity.key : identity.parent;
  record.life = identity.name_space;
  record.sequence = identity.sequence;
  record.position = identity.position;
  record.bytes = bytes;
  record.rest = memory;
  record.blocks = static_cast<uint8_t>(meta.blocks());
  record.coded = meta.coded;
  if (has_tail) memory[0] = {identity.tail, 0};
  if (!has_tail) std::ranges::copy(meta.more, memory);
  ++count_;
  return number;
}

bool OtherRecords::Add(const format::RecordMeta& meta, uint64_t bytes) {
  if (!by_key_.Prepare()) return false;
  const uint32_t number = Make(meta, bytes);
  if (number != kNone) MakeFindable(number, count_);
  return number != kNone;
}

bool OtherRecords::Index() {
  findable_ = true;
  by_key_.Reserve(end_);
  if (!by_key_.Prepare()) return false;
  for (uint32_t number = 0; number < end_; ++number) {
    if (number + kPrefetchAhead < end_) by_key_.PrefetchBucket(records_[number + kPrefetchAhead].key.digest.lo);
    MakeFindable(number, uint64_t{number} + 1);
  }
  return true;
}

// `count`: how many there are with this one.
void OtherRecords::MakeFindable(uint32_t number, uint64_t count) {
  OtherRecord& record = records_[number];
  by_key_.Insert(number, count);
  if (record.snapshot) {
    const auto first = snapshots_.try_emplace(record.above.digest, kNone).first;
    record.next_at_boundary = std::exchange(first->second, number);
    return;
  }
  for (uint32_t i = 0; i < record.blocks; ++i) {
    if (!record.IsIndexed(i)) waiting_.insert({&record, i});
  }
}

void OtherRecords::Erase(OtherRecord* record) {
  const uint32_t number = NumberOf(record->key, record->snapshot);
  by_key_.Erase(number);
  if (record->snapshot) {
    LeaveBoundary(*record, number);
  } else {
    for (uint32_t i = 0; i < record->blocks; ++i) {
      if (!record->IsIndexed(i)) waiting_.erase(Waiting{record, i});
    }
  }
  delete[] record->rest;
  *record = OtherRecord();
  record->next = std::exchange(unused_, number);
  --count_;
}

void OtherRecords::LeaveBoundary(const OtherRecord& snapshot, uint32_t number) {
  const auto first = snapshots_.find(snapshot.above.digest);
  uint32_t* at = &first->second;
  while (*at != number) at = &records_[*at].next_at_boundary;
  *at = snapshot.next_at_boundary;
  if (first->second == kNone) snapshots_.erase(first);
}

void OtherRecords::SetIndexed(OtherRecord* record, uint32_t index) {
  if (!record->snapshot && findable_) waiting_.erase(Waiting{record, index});
  record->indexed |= uint64_t{1} << index;
}

bool OtherRecords::ClearIndexed(OtherRecord* record, uint32_t index) {
  if (!record->IsIndexed(index)) return false;
  record->indexed &= ~(uint64_t{1} << index);
  if (!record->snapshot) waiting_.insert({record, index});
  return true;
}

}  // namespace kvstrata::core::engine
