// SPDX-License-Identifier: Apache-2.0
// All records of a segment store: where each lies, how far it has got towards the disk, and who reads it. Found by key,
// walked by number. Knows nothing of files.
//
// Memory: 26 bytes for each record that is in a log, and 2 of a hash's buckets, growth included. What is rare stands
// beside the table: the readers of those that are read, what no slot can hold of those that lie in pieces or far out,
// key, meta and sequence number of those that no log holds yet.
//
// Of a key the table has 64 bits of hash: 56 in its slot, and 8 that the chain tells in which it is found. The whole
// key stands in the log. Two keys of one hash are taken for each other: either's record ends the other's, as if that
// had been evicted, and who asks for one gets what is there of the other, which the engine finds out (A1): a miss, of
// these two alone. Of n keys there are n^2/2 pairs, and one pair in 2^64 has one hash: among 10 million keys that is
// one pair in 370,000 stores, among the 2^30 that a table can hold one in 32.
//
// Of a sequence number it keeps 8 bits once a log holds the record (WritingOf): which of two entries counts, their
// order in the logs says.
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
  // Told to Add and AddLogged; Get gives none.
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
  // Told by Get: of its key's hash (RecordTable::IsOf), and of its sequence number (WritingOf).
  uint64_t kept_hash = 0;
  uint8_t writing = 0;
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
    uint64_t sequence = 0;
  };

  // What the table knows of a key.
  using Tag = uint64_t;
  static Tag TagOf(const Key& key);
  // Whether a record, of which Get gives this kept_hash, can be one of this key. One of 2^56 other keys' can, too.
  static bool IsOf(uint64_t kept_hash, const Key& key) { return TagOf(key) >> kToldBits == kept_hash; }
  // Equal for one of 256 other sequence numbers, whether these are of one opening or of several.
  static uint8_t WritingOf(uint64_t sequence);

  RecordTable();
  RecordTable(const RecordTable&) = delete;
  RecordTable& operator=(const RecordTable&) = delete;

  std::optional<Id> Find(const Key& key) const { return Find(TagOf(key)); }
  std::optional<Id> Find(Tag tag) const;
  Record Get(Id id) const;
  RecordPlace PlaceOf(Id id) const;

  // No record of that key is linked. Takes sequence, sizes, log and state from `record`; its payload is as large as
  // `extents` are, of which there are at most format::kMaxExtents. Nothing when there is no memory; nothing has changed
  // then, nor when it throws.
  std::optional<Id> Add(const Key& key, const Record& record, std::span<const format::Extent> extents,
                        std::vector<std::byte> meta);
  // The same of a record that is in a log.
  std::optional<Id> AddLogged(Tag tag, const Record& record, std::span<const format::Extent> extents);
  // While the table is empty: so many records will be added until EndBulk. As far as memory allows, there is room for
  // them, and it takes less time to find that one is new.
  void BeginBulk(uint64_t records);
  void EndBulk();
  // Brings nearer what Find and Add of this tag will look at.
  void PrefetchBucket(Tag tag) const { linked_.PrefetchBucket(tag); }
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
  static constexpr int kToldBits = 8, kHashBits = 64 - kToldBits;
  // What these widths hold stands in the slot: one extent of less than 256 MiB, in the first 4 TiB of one of 64
  // segments (DataFiles makes none that are longer, and 48), in one of 31 logs of 16 GiB, with a meta of up to 2040
  // bytes in eights. A run has 1640 at most, and an entry of such a run takes 1728 bytes, so that 16 GiB of log have
  // nine million of them.
  static constexpr int kSegmentBits = 6, kFirstBits = 30, kUnitBits = 16;
  static constexpr int kLogBits = 5, kOffsetBits = 31, kMetaBits = 8;
  static constexpr uint32_t kEights = 8;
  // The highest numbers are ends of chains.
  static constexpr int kIdBits = 30;
  static constexpr Id kIdMask = (Id{1} << kIdBits) - 1;
  static constexpr Id kMaxRecords = (Id{1} << kIdBits) - (Id{1} << kToldBits);

  // Three words and a quarter, none of whose fields lies in two.
  struct [[gnu::packed]] Slot {
    uint64_t hash : kHashBits = 0;
    uint64_t writing : 8 = 0;

    uint64_t first : kFirstBits = 0;
    uint64_t next : kIdBits = kIdMask;  // in its hash chain; unused: the next unused one
    uint64_t linked : 1 = 0;
    uint64_t quarantined : 1 = 0;
    uint64_t being_read : 1 = 0;
    uint64_t beside : 1 = 0;  // place, log and meta's size are in besides_

    uint64_t offset_eights : kOffsetBits = 0;
    uint64_t units : kUnitBits = 0;
    uint64_t slack : 12 = 0;  // bytes of the last unit that are no payload
    uint64_t log : kLogBits = 0;

    uint16_t segment : kSegmentBits = 0;
    uint16_t meta_eights : kMetaBits = 0;
    uint16_t state : 2 = 0;  // RecordState
  };
  static_assert(sizeof(Slot) == 26);

  // What may be too much for a slot; and where it is, the same beside it.
  struct Where {
    std::span<const format::Extent> extents;
    uint64_t log_offset = 0;
    uint16_t log = 0;
    uint16_t meta_bytes = 0;
  };
  struct Beside {
    RecordPlace place;
    uint64_t log_offset = 0;
    uint16_t log = 0;
    uint16_t meta_bytes = 0;
  };

  struct Links {
    uint64_t HashOf(Id id) const { return uint64_t{table->slots_[id].hash} << kToldBits; }
    // Numbers below kMaxRecords are as they are; of the ends of chains, the highest ones, a slot has the lower bits.
    uint32_t NextOf(Id id) const {
      const auto next = static_cast<uint32_t>(table->slots_[id].next);
      return next < kMaxRecords ? next : next | ~kIdMask;
    }
    void SetNext(Id id, uint32_t next) const { table->slots_[id].next = next & kIdMask; }
    void Prefetch(Id id) const { __builtin_prefetch(&table->slots_[id], 1); }
    RecordTable* table;
  };
  using Index = base::ChainIndex<Links, kToldBits>;

  static bool FitsLog(uint16_t log, uint64_t offset);
  static bool FitsSlot(const Where& where);
  // A number for one more record; nothing has changed yet.
  std::optional<Id> NextId();
  void Fill(Id id, Tag tag, const Record& record, const Where& where, bool beside);

  base::ChunkedArray<Slot, 7> slots_;
  Index linked_;
  uint64_t linked_count_ = 0;
  Id end_ = 0;
  Id unused_ = kIdMask;  // no number: none
  absl::flat_hash_map<Id, Beside> besides_;
  absl::flat_hash_map<Id, Unlogged> unlogged_;
  absl::flat_hash_map<Id, uint32_t> readers_;
};

}  // namespace kvstrata::core::storage
