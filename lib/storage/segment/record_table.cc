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

RecordTable::Tag RecordTable::TagOf(const Key& key) { return base::Checksum(key.bytes, 1); }

uint8_t RecordTable::WritingOf(uint64_t sequence) {
  return static_cast<uint8_t>(sequence * base::kSequenceMultiplier >> 56);
}

bool RecordTable::FitsLog(uint16_t log, uint64_t offset) {
  return log >> kLogBits == 0 && offset % kEights == 0 && offset / kEights >> kOffsetBits == 0;
}

bool RecordTable::FitsSlot(const Where& where) {
  if (!FitsLog(where.log, where.log_offset)) return false;
  if (where.meta_bytes % kEights != 0 || where.meta_bytes / kEights >> kMetaBits != 0) return false;
  if (where.extents.empty()) return true;
  const format::Extent& extent = where.extents.front();
  return where.extents.size() == 1 && extent.segment >> kSegmentBits == 0 && extent.first >> kFirstBits == 0 &&
         extent.units >> kUnitBits == 0;
}

std::optional<RecordTable::Id> RecordTable::Find(Tag tag) const {
  if (!linked_.MayHaveMet(tag)) return std::nullopt;
  const Id id = linked_.Find(tag, [&](Id at) { return slots_[at].hash == tag >> kToldBits; });
  return id == Index::kNone ? std::nullopt : std::optional<Id>(id);
}

RecordPlace RecordTable::PlaceOf(Id id) const {
  const Slot& slot = slots_[id];
  if (slot.beside) return besides_.at(id).place;
  if (slot.units == 0) return {};
  const format::Extent extent{static_cast<uint32_t>(slot.segment), static_cast<uint32_t>(slot.first),
                              static_cast<uint32_t>(slot.units)};
  return RecordPlace({&extent, 1});
}

Record RecordTable::Get(Id id) const {
  const Slot& slot = slots_[id];
  uint64_t units = slot.units;
  Record record;
  if (slot.beside) {
    const Beside& beside = besides_.at(id);
    for (const format::Extent& extent : beside.place) units += extent.units;
    record.log_offset = beside.log_offset;
    record.log = beside.log;
    record.meta_bytes = beside.meta_bytes;
  } else {
    record.log_offset = uint64_t{slot.offset_eights} * kEights;
    record.log = static_cast<uint16_t>(slot.log);
    record.meta_bytes = static_cast<uint16_t>(slot.meta_eights * kEights);
  }
  record.writing = static_cast<uint8_t>(slot.writing);
  record.kept_hash = slot.hash;
  record.payload_bytes = units * kUnitBytes - slot.slack;
  record.state = static_cast<RecordState>(slot.state);
  record.linked = slot.linked;
  record.quarantined = slot.quarantined;
  record.being_read = slot.being_read;
  return record;
}

void RecordTable::BeginBulk(uint64_t records) {
  slots_.Expect(records);
  linked_.BeginBulk(records);
}

void RecordTable::EndBulk() {
  slots_.Expect(0);
  linked_.EndBulk();
}

std::optional<RecordTable::Id> RecordTable::NextId() {
  const bool fresh = unused_ >= kMaxRecords;  // else one that was in use
  if (!linked_.Prepare()) return std::nullopt;
  if (!fresh) return unused_;
  if (end_ == kMaxRecords || !slots_.Reserve(uint64_t{end_} + 1)) return std::nullopt;
  return end_;
}

std::optional<RecordTable::Id> RecordTable::Add(const Key& key, const Record& record,
                                                std::span<const format::Extent> extents, std::vector<std::byte> meta) {
  if (record.log != 0) return AddLogged(TagOf(key), record, extents);
  // Whatever allocates comes first, so that a failure leaves all as it was.
  const std::optional<Id> id = NextId();
  if (!id.has_value()) return std::nullopt;
  const Where where{extents, 0, 0, record.meta_bytes};
  const bool beside = !FitsSlot(where);
  if (beside) besides_.emplace(*id, Beside{RecordPlace(extents), 0, 0, record.meta_bytes});
  struct Undo {
    ~Undo() {
      if (besides != nullptr) besides->erase(id);
    }
    absl::flat_hash_map<Id, Beside>* besides;
    const Id id;
  } undo{beside ? &besides_ : nullptr, *id};
  unlogged_.emplace(*id, Unlogged{key, std::move(meta), record.sequence});
  undo.besides = nullptr;
  Fill(*id, TagOf(key), record, where, beside);
  return id;
}

std::optional<RecordTable::Id> RecordTable::AddLogged(Tag tag, const Record& record,
                                                      std::span<const format::Extent> extents) {
  assert(record.log != 0);
  const std::optional<Id> id = NextId();
  if (!id.has_value()) return std::nullopt;
  const Where where{extents, record.log_offset, record.log, record.meta_bytes};
  const bool beside = !FitsSlot(where);
  if (beside) besides_.emplace(*id, Beside{RecordPlace(extents), where.log_offset, where.log, where.meta_bytes});
  Fill(*id, tag, record, where, beside);
  return id;
}

void RecordTable::Fill(Id id, Tag tag, const Record& record, const Where& where, bool beside) {
  Slot& slot = slots_[id];
  if (id == end_) {
    ++end_;
  } else {
    unused_ = slot.next;
  }
  slot = Slot();
  const uint64_t kept = tag >> kToldBits;
  slot.hash = kept & ((uint64_t{1} << kHashBits) - 1);
  slot.writing = WritingOf(record.sequence);
  slot.slack = (kUnitBytes - record.payload_bytes % kUnitBytes) % kUnitBytes & 0xFFF;
  slot.state = static_cast<uint16_t>(record.state) & 3;
  slot.linked = 1;
  slot.beside = beside;
  if (!beside) {
    slot.log = where.log & ((1u << kLogBits) - 1);
    slot.offset_eights = where.log_offset / kEights & ((uint64_t{1} << kOffsetBits) - 1);
    slot.meta_eights = where.meta_bytes / kEights & ((1u << kMetaBits) - 1);
    if (!where.extents.empty()) {
      const format::Extent& extent = where.extents.front();
      slot.segment = extent.segment & ((1u << kSegmentBits) - 1);
      slot.first = extent.first & ((1u << kFirstBits) - 1);
      slot.units = extent.units & ((1u << kUnitBits) - 1);
    }
  }
  linked_.Insert(id, tag, ++linked_count_);
}

const RecordTable::Unlogged* RecordTable::UnloggedOf(Id id) const {
  const auto found = unlogged_.find(id);
  return found == unlogged_.end() ? nullptr : &found->second;
}

void RecordTable::SetLog(Id id, uint16_t log, uint64_t offset) {
  assert(log != 0);
  Slot& slot = slots_[id];
  if (!slot.beside && FitsLog(log, offset)) {
    slot.log = log & ((1u << kLogBits) - 1);
    slot.offset_eights = offset / kEights & ((uint64_t{1} << kOffsetBits) - 1);
  } else {
    besides_[id] = Beside{PlaceOf(id), offset, log, Get(id).meta_bytes};
    slot.units = 0;
    slot.beside = 1;
  }
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
  if (slots_[id].beside) besides_.erase(id);
  unlogged_.erase(id);
  slots_[id] = Slot();
  slots_[id].next = std::exchange(unused_, id) & kIdMask;
}

}  // namespace kvstrata::core::storage
