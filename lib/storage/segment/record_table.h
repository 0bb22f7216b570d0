// SPDX-License-Identifier: Apache-2.0
// All records of a segment store: where each lies, how far it has got towards the disk, and who reads it. Found by key,
// walked by number. Knows nothing of files.
//
// Memory: 48 bytes for each record that is in a log, and 2 of a hash's buckets, growth included. What is rare stands
// beside the table: the readers of those that are read, the extents of those that lie in pieces or far out, key and
// meta of those that no log holds yet.
//
// Of a key the table keeps 128 bits of hash; the whole key stands in the log. Two keys that were taken for each other
// would replace each other's records, which the engine finds out when it reads one (A1): a miss, as if the older one
// had been evicted. Among 10 million keys that happens once in 2^82 stores.
//
// Invariants:
//   I1. A record that was unlinked is found no more, but keeps its number until Free.
//   I2. Numbers are dense: at most as many as there were records at one time.
//   I3. A record has its key here exactly as long as it has no place in a log.
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/base/chain_index.h"
#include "lib/base/chunked_array.h"
#include "lib/format/segment.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

enum class RecordState : uint8_t {
  kUnused,
  kPending,   // its entry has not been written anywhere
  kFlushing,  // its entry may be in the journal, or not
  kDurable,
};

// A copy of what the table knows of one record.
struct Record {
  uint64_t sequence = 0;
  // As large as its extents are, rounded up to whole units.
  uint64_t payload_bytes = 0;
  // Where its entry is: in log number `log` (0: in none yet). Below 2^48.
  uint64_t log_offset = 0;
  uint16_t log = 0;
  // At most format::kMaxEntryMetaBytes.
  uint16_t meta_bytes = 0;
  RecordState state = RecordState::kUnused;
  bool linked = false;
  // Its units wait for a removal to become durable.
  bool quarantined = false;
  bool being_read = false;
};

// Where a record lies; nothing when there is no payload.
class RecordPlace {
 public:
  RecordPlace() = default;
  explicit RecordPlace(std::span<const format::Extent> extents);

  size_t size() const { return size_; }
  const format::Extent* begin() const { return extents_.data(); }
  const format::Extent* end() const { return extents_.data() + size_; }
  const format::Extent& operator[](size_t i) const { return extents_[i]; }

 private:
  std::array<format::Extent, format::kMaxExtents> extents_{};
  size_t size_ = 0;
};

class RecordTable {
 public:
  using Id = uint32_t;

  // What is kept of a record until a log holds it.
  struct Unlogged {
    Key key;
    std::vector<std::byte> meta;
  };

  // What the table keeps of a key.
  struct Tag {
    uint64_t lo = 0;
    uint64_t hi = 0;
    friend bool operator==(const Tag&, const Tag&) = default;
  };
  static Tag TagOf(const Key& key);

  RecordTable();
  RecordTable(const RecordTable&) = delete;
  RecordTable& operator=(const RecordTable&) = delete;

  std::optional<Id> Find(const Key& key) const { return Find(TagOf(key)); }
  std::optional<Id> Find(const Tag& tag) const;
  Record Get(Id id) const;
  RecordPlace PlaceOf(Id id) const;

  // No record of that key is linked. Takes sequence, sizes, log and state from `record`; its payload is as large as
  // `extents` are, of which there are at most format::kMaxExtents. Nothing when there is no memory; nothing has changed
  // then, nor when it throws.
  std::optional<Id> Add(const Key& key, const Record& record, std::span<const format::Extent> extents,
                        std::vector<std::byte> meta);
  // The same of a record that is in a log.
  std::optional<Id> AddLogged(const Tag& tag, const Record& record, std::span<const format::Extent> extents);
  // While the table is empty: room for so many records, as far as memory allows.
  void Reserve(uint64_t records);
  // Brings nearer what Find and Add of this tag will look at: first the one, and some other tags later the other.
  void PrefetchBucket(const Tag& tag) const { linked_.PrefetchBucket(tag.lo); }
  void PrefetchChain(const Tag& tag) const { linked_.PrefetchChain(tag.lo); }
  // Null when a log holds the record.
  const Unlogged* UnloggedOf(Id id) const;
  void SetState(Id id, RecordState state) { slots_[id].state = static_cast<uint32_t>(state) & 3; }
  // Its entry is there.
  void SetLog(Id id, uint16_t log, uint64_t offset);
  void SetQuarantined(Id id, bool quarantined) { slots_[id].quarantined = quarantined; }
  void AddReader(Id id);
  void DropReader(Id id);
  void Unlink(Id id);
  // Of one that is unlinked.
  void Free(Id id);

  uint64_t size() const { return linked_count_; }
  // All numbers are below; those that are not in use have state kUnused.
  Id end() const { return end_; }
  // What the table takes, but for what stands beside it.
  uint64_t MemoryBytes() const { return sizeof(*this) + slots_.MemoryBytes() + linked_.MemoryBytes(); }

 private:
  static constexpr Id kNone = UINT32_MAX;
  // An extent that these widths hold stands in its slot: 256 segments of 1 TiB.
  static constexpr int kSegmentBits = 8, kUnitBits = 28;

  struct Slot {
    Tag tag;
    uint64_t sequence = 0;
    uint64_t segment : kSegmentBits = 0;
    uint64_t first : kUnitBits = 0;
    uint64_t units : kUnitBits = 0;
    uint64_t log_offset : 48 = 0;
    uint64_t log : 16 = 0;
    uint32_t slack : 12 = 0;  // bytes of the last unit that are no payload
    uint32_t meta_bytes : 13 = 0;
    uint32_t state : 2 = 0;  // RecordState
    uint32_t linked : 1 = 0;
    uint32_t quarantined : 1 = 0;
    uint32_t being_read : 1 = 0;
    uint32_t placed_beside : 1 = 0;
    Id next = kNone;  // in its hash chain; unused: the next unused one
  };
  static_assert(sizeof(Slot) == 48);

  struct Links {
    uint64_t HashOf(Id id) const { return table->slots_[id].tag.lo; }
    Id NextOf(Id id) const { return table->slots_[id].next; }
    void SetNext(Id id, Id next) const { table->slots_[id].next = next; }
    void Prefetch(Id id) const { __builtin_prefetch(&table->slots_[id], 1); }
    RecordTable* table;
  };

  static bool FitsSlot(std::span<const format::Extent> extents);
  // A number for one more record; nothing has changed yet.
  std::optional<Id> NextId();
  void Fill(Id id, const Tag& tag, const Record& record, std::span<const format::Extent> extents, bool beside);

  base::ChunkedArray<Slot, 5> slots_;
  base::ChainIndex<Links> linked_;
  uint64_t linked_count_ = 0;
  Id end_ = 0;
  Id unused_ = kNone;
  absl::flat_hash_map<Id, RecordPlace> places_;
  absl::flat_hash_map<Id, Unlogged> unlogged_;
  absl::flat_hash_map<Id, uint32_t> readers_;
};

}  // namespace kvstrata::core::storage
