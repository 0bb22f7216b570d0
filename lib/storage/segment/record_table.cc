// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/record_table.h"

#include <cassert>
#include <utility>

#include "absl/hash/hash.h"

namespace kvstrata::core::storage {

size_t RecordTable::Hash::operator()(const Key& key) const { return absl::Hash<Key>{}(key); }

RecordTable::RecordTable() : linked_(0, Hash{this}, Equal{this}) {}

std::optional<RecordTable::Id> RecordTable::Find(const Key& key) const {
  const auto found = linked_.find(key);
  return found == linked_.end() ? std::nullopt : std::optional<Id>(*found);
}

std::span<const format::Extent> RecordTable::ExtentsOf(Id id) const {
  const Record& record = at(id);
  if (record.in_pieces) return pieces_.at(id);
  return {&record.extent, record.extent.units == 0 ? size_t{0} : size_t{1}};
}

RecordTable::Id RecordTable::Add(const Record& record, std::span<const format::Extent> extents,
                                 std::vector<std::byte> meta) {
  // Whatever allocates comes first, so that a failure leaves all as it was.
  if (free_.empty() && end_ % kChunk == 0 && end_ / kChunk == chunks_.size()) {
    chunks_.push_back(std::make_unique<Record[]>(kChunk));
    free_.reserve(chunks_.size() * kChunk);
  }
  const Id id = free_.empty() ? end_ : free_.back();
  linked_.reserve(linked_.size() + 1);
  const bool in_pieces = extents.size() > 1;
  // The two side tables, or neither.
  struct Undo {
    ~Undo() {
      if (table == nullptr) return;
      table->pieces_.erase(id);
      table->metas_.erase(id);
    }
    RecordTable* table;
    const Id id;
  } undo{this, id};
  if (in_pieces) pieces_.emplace(id, std::vector<format::Extent>(extents.begin(), extents.end()));
  if (!meta.empty()) metas_.emplace(id, std::move(meta));
  undo.table = nullptr;
  Record& slot = at(id);
  slot = record;
  slot.extent = extents.empty() ? format::Extent{} : extents.front();
  slot.readers = 0;
  slot.quarantined = false;
  slot.in_pieces = in_pieces;
  slot.linked = true;
  linked_.insert(id);
  if (free_.empty()) {
    ++end_;
  } else {
    free_.pop_back();
  }
  return id;
}

const std::vector<std::byte>* RecordTable::MetaOf(Id id) const {
  const auto found = metas_.find(id);
  return found == metas_.end() ? nullptr : &found->second;
}

void RecordTable::Unlink(Id id) {
  assert(at(id).linked);
  linked_.erase(id);
  at(id).linked = false;
}

void RecordTable::Free(Id id) {
  assert(!at(id).linked && at(id).state != RecordState::kUnused);
  if (at(id).in_pieces) pieces_.erase(id);
  metas_.erase(id);
  at(id) = Record();
  free_.push_back(id);
}

}  // namespace kvstrata::core::storage
