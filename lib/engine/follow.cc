// SPDX-License-Identifier: Apache-2.0
// A storage that other processes write to as well, each its own lane: their records, and the lives of namespaces on
// which all agree.
//
// Records of others are known as soon as the storage tells of them, and taken over into the index when they are asked
// for: by a lookup, or as the parent of what is stored here. They take nothing of the byte budget. Evicting such a
// block only takes it out of the index; what another has removed goes from the index with all below it, and what is
// below it and our own, from the storage. A cache that is open for reading only has nothing of its own, evicts nothing,
// and takes over everything at once. What is there at an opening is in follow_open.cc.
#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/cache.h"

namespace kvstrata::core::engine {
namespace {

constexpr uint64_t kPageEntries = 256;
// How often others are looked at, and how much of it one lookup carries out.
constexpr uint64_t kFollowEveryNs = 20'000'000;
constexpr int kPagesAtOnce = 4;
// An opening waits for all that is there, but not for a lane that is written faster than it is read.
constexpr int kPagesAtOpen = 1 << 20;
// Blocks of a run before its turn that the index is told of one, once it has been told of all.
constexpr uint32_t kChainAhead = 8;

storage::Key NameOfSpace(const NameSpace& space) {
  return {format::MakeRecordKey(format::RecordKind::kNamespace, space.trie.root_key())};
}

}  // namespace

// ---- Lives ---------------------------------------------------------------------------------------------------------

absl::Status Cache::FollowMarks() {
  storage::Marks* const marks = options_.storage->marks();
  if (marks == nullptr) return absl::OkStatus();
  std::vector<Removal> removals;
  std::vector<std::shared_ptr<NameSpace>> left;
  {
    // Over both: who finds nothing new relies on it that what was new has been heeded.
    base::MutexLock marks_lock(marks_mutex_);
    const absl::StatusOr<std::vector<storage::Mark>> fresh = marks->TakeNew();
    if (!fresh.ok() || fresh->empty()) return fresh.status();
    base::MutexLock lock(mutex_);
    for (const storage::Mark& mark : *fresh) lives_[mark.key] = mark.value;
    for (const auto& [root, space] : namespaces_) {
      const auto life = lives_.find(NameOfSpace(*space));
      if (life == lives_.end() || life->second == space->life) continue;
      space->sweeping = space->LifeOfBlocks();
      space->life = life->second;
      if (!SweepSome(*space, &removals)) left.push_back(space);
    }
  }
  if (!options_.read_only) RunRemovals(removals);
  // Whoever has looked something up does not wait for it.
  for (const std::shared_ptr<NameSpace>& space : left) {
    if (!Enqueue([this, space] { Sweep(*space); }).ok()) Sweep(*space);
  }
  return absl::OkStatus();
}

absl::Status Cache::AgreeOnLife(NameSpace* space) {
  storage::Marks* const marks = options_.storage->marks();
  if (marks == nullptr) return absl::OkStatus();
  if (options_.read_only) {
    if (absl::Status status = FollowMarks(); !status.ok()) return status;
    base::MutexLock lock(mutex_);
    const auto life = lives_.find(NameOfSpace(*space));
    if (life != lives_.end()) space->life = life->second;
    return absl::OkStatus();
  }
  const absl::StatusOr<storage::MarkValue> life = marks->Set(NameOfSpace(*space), space->life, /*replace=*/false);
  if (!life.ok()) return life.status();
  space->life = *life;
  return absl::OkStatus();
}

// Its life may have been replaced since it was agreed on, and that been heeded.
void Cache::AddSpace(const std::shared_ptr<NameSpace>& space) {
  const auto life = lives_.find(NameOfSpace(*space));
  if (life != lives_.end()) space->life = life->second;
  namespaces_.emplace(space->trie.root_key().digest, space);
}

absl::Status Cache::ReplaceLife(const NameSpace& space, const format::NamespaceId& life) {
  const absl::Status status = options_.storage->marks()->Set(NameOfSpace(space), life, /*replace=*/true).status();
  return status.ok() ? FollowMarks() : status;
}

// ---- Records -------------------------------------------------------------------------------------------------------

void Cache::FollowOthers() {
  if (!follows_ || NowNs() < next_follow_ns_ || !follow_mutex_.TryLock()) return;
  bool done = false;
  for (int page = 0; page < kPagesAtOnce && !done; ++page) {
    if (!FollowPage(&done).ok()) done = true;  // told at the next look, if it is not about one record
  }
  next_follow_ns_ = done ? NowNs() + kFollowEveryNs : 0;
  follow_mutex_.Unlock();
}

absl::Status Cache::FollowToEnd() {
  if (!follows_) return absl::OkStatus();
  base::MutexLock lock(follow_mutex_);
  bool done = false;
  for (int page = 0; page < kPagesAtOpen && !done; ++page) {
    if (absl::Status status = FollowPage(&done); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Cache::FollowPage(bool* done) {
  storage::FeedPage page;
  if (absl::Status status = options_.storage->Follow(kPageEntries, &page); !status.ok()) return status;
  *done = page.done;
  std::vector<format::RecordMeta> spaces;
  std::vector<Removal> removals;
  {
    base::MutexLock lock(mutex_);
    for (const storage::FeedEntry& entry : page.entries) Heed(entry, &spaces, &removals);
  }
  if (!options_.read_only) RunRemovals(removals);
  if (absl::Status status = AddOthersSpaces(spaces); !status.ok()) return status;
  if (!options_.read_only) return absl::OkStatus();
  base::MutexLock lock(mutex_);
  for (const storage::FeedEntry& entry : page.entries) {
    if (const OtherRecord* const record = others_.Find(entry.record.key); record != nullptr) TakeOver(*record);
  }
  if (!spaces.empty()) TakeOverAll();
  return absl::OkStatus();
}

absl::Status Cache::AddOthersSpaces(const std::vector<format::RecordMeta>& metas) {
  for (const format::RecordMeta& meta : metas) {
    absl::StatusOr<std::shared_ptr<NameSpace>> space = ReadNamespace(meta);
    // One that has gone, or is damaged, is made anew by whoever opens it here.
    if (!space.ok()) continue;
    if (absl::Status status = AgreeOnLife(space->get()); !status.ok()) return status;
    base::MutexLock lock(mutex_);
    AddSpace(*space);
  }
  return absl::OkStatus();
}

// Nothing for a record that is none of ours.
std::optional<format::RecordMeta> Cache::MetaOfOther(const storage::RecordView& record) {
  absl::StatusOr<format::RecordMeta> meta = format::DecodeRecordMeta(record.meta);
  if (meta.ok() && meta->payload_bytes == record.payload_bytes && KeyOfRecord(meta->identity) == record.key) {
    return *std::move(meta);
  }
  const bool too_new = base::CodeOf(meta.status()) == base::Code::kFormatTooNew;
  (too_new ? stats_.skipped_too_new : meta.ok() ? stats_.skipped_foreign : stats_.skipped_corrupt) += 1;
  return std::nullopt;
}

// One change. Namespaces that are not known are added to `spaces`, to be read without the lock.
void Cache::Heed(const storage::FeedEntry& entry, std::vector<format::RecordMeta>* spaces,
                 std::vector<Removal>* removals) {
  const storage::Key& key = entry.record.key;
  if (entry.gone) return LoseOther(key, removals);
  const std::optional<format::RecordMeta> meta =
      MetaOfOther({key, entry.record.payload_bytes, entry.record.stored_bytes, entry.record.meta});
  if (!meta.has_value()) return LoseOther(key, removals);
  const format::RecordIdentity& identity = meta->identity;
  if (identity.kind == format::RecordKind::kNamespace) {
    if (!namespaces_.contains(identity.key.digest)) spaces->push_back(*meta);
    return;
  }
  if (identity.kind == format::RecordKind::kStore || identity.kind == format::RecordKind::kUses) return;
  const OtherRecord* const known = others_.Find(key);
  if (known != nullptr && known->Is(*meta)) return;
  LoseOther(key, removals);
  if (!others_.Add(*meta, entry.record.stored_bytes)) return;  // without memory for it, as if it had gone
  knows_others_ = true;
  if (identity.kind != format::RecordKind::kSnapshot) return;
  const std::shared_ptr<NameSpace> space = SpaceOfLife(identity.name_space);
  if (space != nullptr) AdoptSnapshots(*space, identity.key);
}

std::shared_ptr<NameSpace> Cache::SpaceOfLife(const format::NamespaceId& life) const {
  for (const auto& [root, space] : namespaces_) {
    if (space->life == life && space->is_usable()) return space;
  }
  return nullptr;
}

// Another's record is not to be believed any more: what was taken over of it leaves the index, with all below.
void Cache::LoseOther(const storage::Key& key, std::vector<Removal>* removals) {
  OtherRecord* const record = others_.Find(key);
  if (record == nullptr) return;
  const base::BlockDigest& block = record->snapshot ? record->above : record->key;
  for (const auto& [root, space] : namespaces_) {
    if (space->LifeOfBlocks() != record->life || !record->IsIndexed(0)) continue;
    const bool at_root = block == space->trie.root_key();
    const auto node = at_root ? std::optional(space->trie.root()) : space->trie.Find(block);
    if (!node.has_value()) continue;
    if (!record->snapshot) {
      if (!at_root) DetachBlock(*space, *node, removals);
      continue;
    }
    for (const trie::SnapshotInfo& snapshot : space->snapshots.FindOnPath(*node, record->position)) {
      const bool same =
          snapshot.node == *node && snapshot.position == record->position && snapshot.sequence == record->sequence;
      if (same) DetachSnapshot(*space, snapshot.snapshot, removals);
    }
  }
  others_.Erase(record);
}

// ---- Taking over ---------------------------------------------------------------------------------------------------

std::optional<trie::NodeRef> Cache::FindOrAdopt(NameSpace& space, const base::BlockDigest& key) {
  std::vector<OtherRecords::Place> missing;  // the last one's parent is there
  std::optional<trie::NodeRef> node;
  for (base::BlockDigest wanted = key; !node.has_value();) {
    node = wanted == space.trie.root_key() ? std::optional(space.trie.root()) : space.trie.Find(wanted);
    if (node.has_value()) break;
    const std::optional<OtherRecords::Place> place = others_.FindWaiting(wanted, space.life);
    if (!place.has_value()) return std::nullopt;
    // Upwards, whatever the records say.
    if (!missing.empty() && place->record->position >= missing.back().record->position) return std::nullopt;
    missing.push_back(*place);
    wanted = place->record->above;
  }
  for (; !missing.empty(); missing.pop_back()) {
    node = AdoptRun(space, *node, missing.back());
    if (!node.has_value()) return std::nullopt;
  }
  return node;
}

// The run's blocks below `parent`, those that are there already included; the node of the one at `place`.
std::optional<trie::NodeRef> Cache::AdoptRun(NameSpace& space, trie::NodeRef parent, const OtherRecords::Place& place) {
  OtherRecord& record = *place.record;
  const uint32_t blocks = record.blocks;
  const bool at_root = parent == space.trie.root();
  const std::optional<trie::BlockInfo> above = space.trie.Get(parent);
  const uint64_t depth = at_root ? 0 : above.has_value() ? above->depth : UINT32_MAX;
  if (space.BlockEnd(depth + 1) != record.position) return std::nullopt;
  if (BlockCount() + puts_.size() + blocks > options_.max_blocks) return std::nullopt;
  if (record.coded) space.has_coded = true;
  for (uint32_t i = 1; i < blocks; ++i) space.trie.PrefetchBucket(record.BlockKey(i));
  std::optional<trie::NodeRef> wanted;
  trie::NodeRef node = parent;
  const uint64_t tick = NextTickOfRun(blocks);
  for (uint32_t i = 0; i < blocks; ++i) {
    if (i + kChainAhead < blocks) space.trie.PrefetchChain(record.BlockKey(i + kChainAhead));
    const uint64_t bytes = i == 0 ? record.bytes : 0;
    const auto inserted = space.trie.Insert(node, record.BlockKey(i), record.sequence, bytes, tick,
                                            /*expires_at=*/0, {}, {i, blocks});
    if (!inserted.ok()) break;
    if (inserted->inserted) {
      others_.SetIndexed(&record, i);
      if (i == 0) CountOther(RecordClass::kRows, record.bytes, +1);
      AdoptSnapshots(space, record.BlockKey(i));
    } else if (!record.IsIndexed(i)) {
      break;  // a block that is there of another record ends what this one is good for
    }
    node = inserted->node;
    if (i == place.index) wanted = node;
  }
  return wanted;
}

// Those at this block, if the index has it, or at the root.
void Cache::AdoptSnapshots(NameSpace& space, const base::BlockDigest& boundary) {
  for (OtherRecord* const record : others_.SnapshotsAt(boundary)) {
    if (record->life != space.life || record->IsIndexed(0)) continue;
    const bool at_root = boundary == space.trie.root_key();
    const auto node = at_root ? std::optional(space.trie.root()) : space.trie.Find(boundary);
    if (!node.has_value()) return;
    if (record->coded) space.has_coded = true;
    const auto added =
        space.snapshots.Add(*node, record->position, record->tail(), record->sequence, record->bytes, NextTick());
    if (!added.ok() || !added->inserted) continue;
    others_.SetIndexed(record, 0);
    CountOther(RecordClass::kSnapshot, record->bytes, +1);
  }
}

void Cache::AdoptAhead(NameSpace& space, uint64_t max_blocks, trie::KeySequence* keys) {
  if (!knows_others_) return;
  base::MutexLock lock(mutex_);
  if (!space.is_usable()) return;
  uint64_t depth = space.trie.Match(*keys, max_blocks, NowSeconds()).blocks;
  while (depth < max_blocks && FindOrAdopt(space, keys->At(depth)).has_value()) ++depth;
}

// For a cache that is open for reading only, which counts what it knows.
void Cache::CountOther(RecordClass record_class, uint64_t bytes, int sign) {
  if (!options_.read_only) return;
  uint64_t& held = record_class == RecordClass::kSnapshot ? snapshot_bytes_ : row_bytes_;
  (sign > 0 ? stats_.bytes_in : stats_.bytes_out) += bytes;
  held = sign > 0 ? held + bytes : held - bytes;
}

void Cache::TakeOver(const OtherRecord& record) {
  const std::shared_ptr<NameSpace> space = SpaceOfLife(record.life);
  if (space == nullptr) return;
  const base::BlockDigest block = record.snapshot ? record.above : record.key;
  FindOrAdopt(*space, block);
  if (record.snapshot) AdoptSnapshots(*space, block);
}

void Cache::TakeOverAll() {
  for (uint32_t number = 0; number < others_.end(); ++number) {
    if (const OtherRecord* const record = others_.At(number); record != nullptr) TakeOver(*record);
  }
}

// ---- Leaving the index ---------------------------------------------------------------------------------------------

bool Cache::IsOtherBlock(const NameSpace& space, const trie::BlockInfo& block) const {
  if (others_.empty()) return false;
  const OtherRecord* const run = others_.FindRun(space.trie.FirstOfRun(block).key);
  return run != nullptr && run->IsIndexed(block.run.index);
}

bool Cache::ForgetOtherBlock(const NameSpace& space, const trie::BlockInfo& block) {
  if (others_.empty()) return false;
  OtherRecord* const run = others_.FindRun(space.trie.FirstOfRun(block).key);
  if (run == nullptr || !others_.ClearIndexed(run, block.run.index)) return false;
  CountOther(RecordClass::kRows, block.bytes, -1);
  return true;
}

bool Cache::ForgetOtherSnapshot(const storage::Key& key, uint64_t bytes) {
  if (others_.empty()) return false;
  OtherRecord* const record = others_.Find(key);
  if (record == nullptr || !others_.ClearIndexed(record, 0)) return false;
  CountOther(RecordClass::kSnapshot, bytes, -1);
  return true;
}

bool Cache::IsOtherSnapshot(const NameSpace& space, const trie::SnapshotInfo& snapshot) const {
  if (others_.empty()) return false;
  const bool at_root = snapshot.node == space.trie.root();
  const std::optional<trie::BlockInfo> block = space.trie.Get(snapshot.node);
  if (!at_root && !block.has_value()) return false;
  const base::BlockDigest& boundary = at_root ? space.trie.root_key() : block->key;
  const base::BlockDigest key = format::SnapshotKey(boundary, snapshot.position, snapshot.tail_digest);
  const OtherRecord* const record = others_.Find({format::MakeRecordKey(format::RecordKind::kSnapshot, key)});
  return record != nullptr && record->IsIndexed(0);
}

// Snapshots of others take nothing of ours, and would not come back while their block stays: they are passed over.
bool Cache::SpareOtherSnapshot(NameSpace& space, const trie::SnapshotInfo& snapshot) {
  if (!IsOtherSnapshot(space, snapshot)) return false;
  space.snapshots.Touch(snapshot.snapshot, NextTick());
  return true;
}

void Cache::DetachDamaged(NameSpace& space, trie::NodeRef node, std::vector<Removal>* removals) {
  if (const std::optional<trie::BlockInfo> info = space.trie.Get(node); info.has_value()) {
    if (IsOtherBlock(space, *info)) {
      const base::BlockDigest first = space.trie.FirstOfRun(*info).key;
      return LoseOther({format::MakeRecordKey(format::RecordKind::kBlock, first)}, removals);
    }
  }
  DetachBlock(space, node, removals);
}

}  // namespace kvstrata::core::engine
