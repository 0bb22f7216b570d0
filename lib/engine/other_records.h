// SPDX-License-Identifier: Apache-2.0
// What others have put into a storage that several processes share: each record of theirs by key, whether the index has
// taken it over or not. So a block that the index has evicted is found again without reading anything.
//
// Memory: some 250 bytes for a record, 50 more for each block of a run after the first.
//
// Thread rule: externally synchronised, by the cache's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "lib/base/hash.h"
#include "lib/format/record.h"
#include "lib/storage/storage.h"

namespace kvstrata::core::engine {

struct OtherRecord {
  format::RecordMeta meta;
  uint64_t bytes = 0;  // that it takes in its storage

  const base::BlockDigest& BlockKey(uint32_t index) const {
    return index == 0 ? meta.identity.key : meta.more[index - 1];
  }
  bool is_snapshot() const { return meta.identity.kind == format::RecordKind::kSnapshot; }
};

// The key of a block's record, if the block is the first of its run; of every block, the name that it has here.
storage::Key NameOfBlock(const base::BlockDigest& key);

// The key under which a record with this identity must lie.
storage::Key KeyOfRecord(const format::RecordIdentity& identity);

class OtherRecords {
 public:
  struct Place {
    const OtherRecord* record = nullptr;
    uint32_t index = 0;  // of the block in its run
  };

  bool empty() const { return records_.empty(); }
  uint64_t count() const { return records_.size(); }
  // Null when there is none. Pointers hold until the record is erased.
  const OtherRecord* Find(const storage::Key& key) const;
  std::optional<Place> FindBlock(const base::BlockDigest& key) const;
  std::vector<storage::Key> SnapshotsAt(const base::BlockDigest& boundary) const;
  std::vector<storage::Key> Keys() const;

  // There is none of this key.
  void Add(const storage::Key& key, OtherRecord record);
  void Erase(const storage::Key& key);

  // Whether the index has a block, by its name, or a snapshot, by its key, from here.
  bool IsIndexed(const storage::Key& name) const { return indexed_.contains(name); }
  void SetIndexed(const storage::Key& name) { indexed_.insert(name); }
  // False: it had not.
  bool ClearIndexed(const storage::Key& name) { return indexed_.erase(name) > 0; }

 private:
  void Name(const OtherRecord& record);

  absl::flat_hash_map<storage::Key, std::unique_ptr<OtherRecord>> records_;
  // Two runs of different lanes may have blocks in common: then those are of one of them here.
  absl::flat_hash_map<storage::Key, Place> blocks_;
  absl::flat_hash_map<storage::Key, std::vector<storage::Key>> snapshots_;  // by the boundary's name
  absl::flat_hash_set<storage::Key> indexed_;
};

}  // namespace kvstrata::core::engine
