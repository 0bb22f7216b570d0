// SPDX-License-Identifier: Apache-2.0
// All records of a segment store: where each lies, how far it has got towards the disk, and who reads it. Found by key,
// walked by number. Knows nothing of files.
//
// Memory for each record that is in a log: 80 bytes here, and 5 to 12 of the hash set, which holds numbers alone. The
// whole key is kept and compared, so that no answer rests on a hash; 16 bytes of it would do for most purposes and save
// a fifth.
//
// Invariants:
//   I1. A record that was unlinked is found no more, but keeps its number until Free.
//   I2. Numbers are dense: at most as many as there were records at one time.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "lib/format/segment.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

enum class RecordState : uint8_t {
  kUnused,
  kPending,   // its entry has not been written anywhere
  kFlushing,  // its entry may be in the journal, or not
  kDurable,
};

struct Record {
  Key key;
  uint64_t sequence = 0;
  uint64_t payload_bytes = 0;
  // Where its entry is: in log number `log` (0: in none yet).
  uint64_t log_offset = 0;
  // The only one, or the first of those that the table keeps beside it. Of no units when there is no payload.
  format::Extent extent;
  uint32_t readers = 0;
  uint16_t meta_bytes = 0;
  uint16_t log = 0;
  RecordState state = RecordState::kUnused;
  bool linked = false;
  // Its units wait for a removal to become durable.
  bool quarantined = false;
  bool in_pieces = false;
};

class RecordTable {
 public:
  using Id = uint32_t;

  RecordTable();
  RecordTable(const RecordTable&) = delete;
  RecordTable& operator=(const RecordTable&) = delete;

  std::optional<Id> Find(const Key& key) const;
  Record& at(Id id) { return chunks_[id / kChunk][id % kChunk]; }
  const Record& at(Id id) const { return chunks_[id / kChunk][id % kChunk]; }
  std::span<const format::Extent> ExtentsOf(Id id) const;

  // No record of that key is linked. Takes all but the place from `record`, and that from `extents`. A meta is kept
  // until DropMeta. Nothing has changed when it throws.
  Id Add(const Record& record, std::span<const format::Extent> extents, std::vector<std::byte> meta);
  // Null when there is none, or none any more.
  const std::vector<std::byte>* MetaOf(Id id) const;
  void DropMeta(Id id) { metas_.erase(id); }
  void Unlink(Id id);
  // Of one that is unlinked.
  void Free(Id id);

  uint64_t size() const { return linked_.size(); }
  // All numbers are below; those that are not in use have state kUnused.
  Id end() const { return end_; }

 private:
  static constexpr size_t kChunk = 4096;

  struct Hash {
    using is_transparent = void;
    size_t operator()(Id id) const { return (*this)(table->at(id).key); }
    size_t operator()(const Key& key) const;
    const RecordTable* table;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(Id a, Id b) const { return a == b; }
    bool operator()(Id a, const Key& b) const { return table->at(a).key == b; }
    bool operator()(const Key& a, Id b) const { return table->at(b).key == a; }
    const RecordTable* table;
  };

  std::vector<std::unique_ptr<Record[]>> chunks_;
  std::vector<Id> free_;
  Id end_ = 0;
  absl::flat_hash_set<Id, Hash, Equal> linked_;
  // Of the few records that no free run was long enough for.
  absl::flat_hash_map<Id, std::vector<format::Extent>> pieces_;
  // Of those that no log holds yet.
  absl::flat_hash_map<Id, std::vector<std::byte>> metas_;
};

}  // namespace kvstrata::core::storage
