// SPDX-License-Identifier: Apache-2.0
// What others have put into a storage that several processes share: each record of theirs by key, whether the index has
// taken it over or not. So a block that the index has evicted is found again without reading anything.
//
// Memory: 122 bytes for a record, and 24 for each block of a run after the first; for each block that the index has not
// taken over, some 30 more, so that it is found by its own key. Of the others the index's trie tells which run they are
// of.
//
// Invariants:
//   I1. Of a run the index has the first blocks, or none; bit i of `indexed` says that it has block i from here.
//   I2. Exactly the blocks that it has not are in waiting_, once Index has been called.
//
// Thread rule: externally synchronised, by the cache's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "lib/base/chain_index.h"
#include "lib/base/chunked_array.h"
#include "lib/base/hash.h"
#include "lib/format/record.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::engine {

struct OtherRecord {
  base::BlockDigest key;    // as in its record's key: a run's first block's, a snapshot's own
  base::BlockDigest above;  // a run's parent, a snapshot's boundary block
  format::NamespaceId life{};
  uint64_t sequence = 0;
  uint64_t position = 0;
  uint64_t bytes = 0;  // that it takes in its storage
  uint64_t indexed = 0;
  // A run's other blocks, blocks - 1 of them; of a snapshot that has a tail, one whose digest is the tail's. Owned by
  // OtherRecords.
  base::BlockDigest* rest = nullptr;
  uint32_t next = 0;  // in its hash chain; unused: the next unused one
  uint32_t next_at_boundary = 0;
  uint8_t blocks = 0;  // 0: unused
  bool snapshot = false;
  bool coded = false;

  const base::BlockDigest& BlockKey(uint32_t index) const { return index == 0 ? key : rest[index - 1]; }
  base::Digest128 tail() const { return rest == nullptr ? base::Digest128() : rest->digest; }
  storage::Key StorageKey() const;
  bool IsIndexed(uint32_t index) const { return (indexed >> index & 1) != 0; }
  // Whether this is what is known of the record with this meta.
  bool Is(const format::RecordMeta& meta) const;
};

// The key under which a record with this identity must lie.
storage::Key KeyOfRecord(const format::RecordIdentity& identity);

class OtherRecords {
 public:
  struct Place {
    OtherRecord* record = nullptr;
    uint32_t index = 0;  // of the block in its run
  };

  OtherRecords() : by_key_(Links{&records_}) {}
  ~OtherRecords();
  OtherRecords(const OtherRecords&) = delete;
  OtherRecords& operator=(const OtherRecords&) = delete;

  bool empty() const { return count_ == 0; }
  uint64_t count() const { return count_; }
  // Records have numbers below this; null for one that is not in use.
  uint32_t end() const { return end_; }
  OtherRecord* At(uint32_t number);
  // Null when there is none. Pointers hold until the record is erased.
  OtherRecord* Find(const storage::Key& key) { return Get(NumberOf(key)); }
  const OtherRecord* Find(const storage::Key& key) const { return Get(NumberOf(key)); }
  // The run that begins with this block.
  OtherRecord* FindRun(const base::BlockDigest& first) { return Get(NumberOf(first, false)); }
  const OtherRecord* FindRun(const base::BlockDigest& first) const { return Get(NumberOf(first, false)); }
  // A block of this life that the index has not from here.
  std::optional<Place> FindWaiting(const base::BlockDigest& key, const format::NamespaceId& life) const;
  std::vector<OtherRecord*> SnapshotsAt(const base::BlockDigest& boundary);

  // Of a run or a snapshot that is not here yet. `bytes`: that it takes in its storage. False: no memory.
  bool Add(const format::RecordMeta& meta, uint64_t bytes);
  // The same of many, before Index, which is called once, before anything is added or asked for.
  bool Append(const format::RecordMeta& meta, uint64_t bytes) { return Make(meta, bytes) != kNone; }
  bool Index();
  void Erase(OtherRecord* record);

  void SetIndexed(OtherRecord* record, uint32_t index);
  // False: it had not.
  bool ClearIndexed(OtherRecord* record, uint32_t index);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Links {
    uint64_t HashOf(uint32_t number) const { return (*records)[number].key.digest.lo; }
    uint32_t NextOf(uint32_t number) const { return (*records)[number].next; }
    void SetNext(uint32_t number, uint32_t next) const { (*records)[number].next = next; }
    void Prefetch(uint32_t number) const { __builtin_prefetch(&(*records)[number]); }
    base::ChunkedArray<OtherRecord, 9>* records;
  };

  // A block of a run; several runs, of different lanes, may have one block in common.
  struct Waiting {
    OtherRecord* record = nullptr;
    uint32_t index = 0;
  };
  struct Wanted {
    const base::BlockDigest& key;
    const format::NamespaceId& life;
  };
  struct WaitingHash {
    using is_transparent = void;
    size_t operator()(const Waiting& at) const { return absl::HashOf(at.record->BlockKey(at.index).digest); }
    size_t operator()(const Wanted& wanted) const { return absl::HashOf(wanted.key.digest); }
  };
  struct WaitingEqual {
    using is_transparent = void;
    bool operator()(const Waiting& a, const Waiting& b) const { return a.record == b.record && a.index == b.index; }
    bool operator()(const Waiting& a, const Wanted& b) const {
      return a.record->BlockKey(a.index) == b.key && a.record->life == b.life;
    }
    bool operator()(const Wanted& a, const Waiting& b) const { return (*this)(b, a); }
  };

  uint32_t NumberOf(const storage::Key& key) const;
  uint32_t NumberOf(const base::BlockDigest& key, bool snapshot) const;
  OtherRecord* Get(uint32_t number) { return number == kNone ? nullptr : &records_[number]; }
  const OtherRecord* Get(uint32_t number) const { return number == kNone ? nullptr : &records_[number]; }
  uint32_t Make(const format::RecordMeta& meta, uint64_t bytes);
  void MakeFindable(uint32_t number, uint64_t count);
  void LeaveBoundary(const OtherRecord& snapshot, uint32_t number);

  base::ChunkedArray<OtherRecord, 9> records_;
  base::ChainIndex<Links> by_key_;
  uint32_t end_ = 0;
  uint32_t unused_ = kNone;
  uint64_t count_ = 0;
  bool findable_ = false;
  absl::flat_hash_set<Waiting, WaitingHash, WaitingEqual> waiting_;
  absl::flat_hash_map<base::Digest128, uint32_t> snapshots_;  // the first one of each boundary
};

}  // namespace kvstrata::core::engine
