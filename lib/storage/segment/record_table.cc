// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/record_table.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "lib/base/checksum.h"

namespace kvstrata::core::storage {

using format::kUnitBytes;

RecordPlace::RecordPlace(std::span<const format::Extent> extents) : size_(extents.size()) {
  assert(size_ <= extents_.size());
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

RecordTable::RecordTable() : linked_(Links{this}) {}

// Two hashes with unlike seeds.
RecordTable::Tag RecordTable::TagOf(const Key& key) {
  return {base::Checksum(key.bytes, 1), base::Checksum(key.bytes, 2)};
}

bool RecordTable::FitsSlot(std::span<const format::Extent> extents) {
  if (extents.empty()) return true;
  const format::Extent& extent = extents.front();
  return extents.size() == 1 && extent.segment >> kSegmentBits == 0 && extent.first >> kUnitBits == 0 &&
         extent.units >> kUnitBits == 0;
}

std::optional<RecordTable::Id> RecordTable::Find(const Tag& tag) const {
  const Id id = linked_.Find(tag.lo, [&](Id at) { return slots_[at].tag == tag; });
  return id == kNone ? std::nullopt : std::optional<Id>(id);
}

RecordPlace RecordTable::PlaceOf(Id id) const {
  const Slot& slot = slots_[id];
  if (slot.placed_beside) return places_.at(id);
  if (slot.units == 0) return {};
  const format::Extent extent{static_cast<uint32_t>(slot.segment), static_cast<uint32_t>(slot.first),
                              static_cast<uint32_t>(slot.units)};
  return RecordPlace({&extent, 1});
}

Record RecordTable::Get(Id id) const {
  const Slot& slot = slots_[id];
  uint64_t units = slot.units;
  if (slot.placed_beside) {
    for (const format::Extent& extent : places_.at(id)) units += extent.units;
  }
  Record record;
  record.sequence = slot.sequence;
  record.payload_bytes = units * kUnitBytes - slot.slack;
  record.log_offset = slot.log_offset;
  record.log = static_cast<uint16_t>(slot.log);
  record.meta_bytes = static_cast<uint16_t>(slot.meta_bytes);
  record.state = static_cast<RecordState>(slot.state);
  record.linked = slot.linked;
  record.quarantined = slot.quarantined;
  record.being_read = slot.being_read;
  return record;
}

void RecordTable::Reserve(uint64_t records) {
  static_cast<void>(slots_.Reserve(std::min<uint64_t>(records, kNone)));
  linked_.Reserve(records);
}

std::optional<RecordTable::Id> RecordTable::NextId() {
  const bool fresh = unused_ == kNone;
  if (!linked_.Prepare() || (fresh && (end_ == kNone || !slots_.Reserve(uint64_t{end_} + 1)))) return std::nullopt;
  return fresh ? end_ : unused_;
}

std::optional<RecordTable::Id> RecordTable::Add(const Key& key, const Record& record,
                                                std::span<const format::Extent> extents, std::vector<std::byte> meta) {
  if (record.log != 0) return AddLogged(TagOf(key), record, extents);
  // Whatever allocates comes first, so that a failure leaves all as it was.
  const std::optional<Id> id = NextId();
  if (!id.has_value()) return std::nullopt;
  const bool beside = !FitsSlot(extents);
  if (beside) places_.emplace(*id, RecordPlace(extents));
  struct Undo {
    ~Undo() {
      if (places != nullptr) places->erase(id);
    }
    absl::flat_hash_map<Id, RecordPlace>* places;
    const Id id;
  } undo{beside ? &places_ : nullptr, *id};
  unlogged_.emplace(*id, Unlogged{key, std::move(meta)});
  undo.places = nullptr;
  Fill(*id, TagOf(key), record, extents, beside);
  return id;
}

std::optional<RecordTable::Id> RecordTable::AddLogged(const Tag& tag, const Record& record,
                                                      std::span<const format::Extent> extents) {
  assert(record.log != 0);
  const std::optional<Id> id = NextId();
  if (!id.has_value()) return std::nullopt;
  const bool beside = !FitsSlot(extents);
  if (beside) places_.emplace(*id, RecordPlace(extents));
  Fill(*id, tag, record, extents, beside);
  return id;
}

void RecordTable::Fill(Id id, const Tag& tag, const Record& record, std::span<const format::Extent> extents,
                       bool beside) {
  Slot& slot = slots_[id];
  if (id == end_) {
    ++end_;
  } else {
    unused_ = slot.next;
  }
  slot = Slot();
  slot.tag = tag;
  slot.sequence = record.sequence;
  slot.placed_beside = beside;
  if (!beside && !extents.empty()) {
    slot.segment = extents.front().segment & 0xFF;
    slot.first = extents.front().first & 0xFFF'FFFF;
    slot.units = extents.front().units & 0xFFF'FFFF;
  }
  slot.slack = static_cast<uint32_t>((kUnitBytes - record.payload_bytes % kUnitBytes) % kUnitBytes) & 0xFFF;
  slot.meta_bytes = record.meta_bytes & 0x1FFF;
  slot.log = record.log;
  slot.log_offset = record.log_offset & 0xFFFF'FFFF'FFFF;
  slot.state = static_cast<uint32_t>(record.state) & 3;
  slot.linked = 1;
  linked_.Insert(id, ++linked_count_);
}

const RecordTable::Unlogged* RecordTable::UnloggedOf(Id id) const {
  const auto found = unlogged_.find(id);
  return found == unlogged_.end() ? nullptr : &found->second;
}

void RecordTable::SetLog(Id id, uint16_t log, uint64_t offset) {
  assert(log != 0);
  slots_[id].log = log;
  slots_[id].log_offset = offset & 0xFFFF'FFFF'FFFF;
  unlogged_.erase(id);
}

void RecordTable::AddReader(Id id) {
  ++readers_[id];
  slots_[id].being_read = 1;
}

void RecordTable::DropReader(Id id) {
  const auto readers = readers_.find(id);
  assert(readers != readers_.end());
  if (--readers->second > 0) return;
  readers_.erase(readers);
  slots_[id].being_read = 0;
}

void RecordTable::Unlink(Id id) {
  assert(slots_[id].linked);
  linked_.Erase(id);
  slots_[id].linked = 0;
  --linked_count_;
}

void RecordTable::Free(Id id) {
  assert(!slots_[id].linked && !slots_[id].being_read);
  if (slots_[id].placed_beside) places_.erase(id);
  unlogged_.erase(id);
  slots_[id] = Slot();
  slots_[id].next = std::exchange(unused_, id);
}

}  // namespace kvstrata::core::storage
