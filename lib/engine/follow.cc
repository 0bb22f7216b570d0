// SPDX-License-Identifier: Apache-2.0
// A storage that other processes write to as well, each its own lane: their records, and the lives of namespaces on
// which all agree.
//
// Records of others are known as soon as the storage tells of them, and taken over into the index when they are asked
// for: by a lookup, or as the parent of what is stored here. They take nothing of the byte budget. Evicting such a
// block only takes it out of the index; what another has removed goes from the index with all below it, and what is
// below it and our own, from the storage. A cache that is open for reading only has nothing of its own, evicts nothing,
// and takes over everything at once.
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
  for (const format::RecordMeta& meta : spaces) {
    absl::StatusOr<std::shared_ptr<NameSpace>> space = ReadNamespace(meta);
    // One that has gone, or is damaged, is made anew by whoever opens it here.
    if (!space.ok()) continue;
    if (absl::Status status = AgreeOnLife(space->get()); !status.ok()) return status;
    base::MutexLock lock(mutex_);
    AddSpace(*space);
  }
  if (!options_.read_only) return absl::OkStatus();
  base::MutexLock lock(mutex_);
  for (const storage::FeedEntry& entry : page.entries) TakeOver(entry.record.key);
  for (const format::RecordMeta& meta : spaces) TakeOverAll(meta.identity.key);
  return absl::OkStatus();
}

// One change. Namespaces that are not known are added to `spaces`, to be read without the lock.
void Cache::Heed(const storage::FeedEntry& entry, std::vector<format::RecordMeta>* spaces,
                 std::vector<Removal>* removals) {
  const storage::Key& key = entry.record.key;
  if (entry.gone) return LoseOther(key, removals);
  const absl::StatusOr<format::RecordMeta> meta = format::DecodeRecordMeta(entry.record.meta);
  if (!meta.ok() || meta->payload_bytes != entry.record.payload_bytes || KeyOfRecord(meta->identity) != key) {
    const bool too_new = base::CodeOf(meta.status()) == base::Code::kFormatTooNew;
    (too_new ? stats_.skipped_too_new : meta.ok() ? stats_.skipped_foreign : stats_.skipped_corrupt) += 1;
    return LoseOther(key, removals);
  }
  if (meta->identity.kind == format::RecordKind::kNamespace) {
    if (!namespaces_.contains(meta->identity.key.digest)) spaces->push_back(*meta);
    return;
  }
  if (meta->identity.kind == format::RecordKind::kStore || meta->identity.kind == format::RecordKind::kUses) return;
  const OtherRecord* const known = others_.Find(key);
  if (known != nullptr && known->meta.identity == meta->identity) return;
  LoseOther(key, removals);
  others_.Add(key, {*meta, entry.record.stored_bytes});
  knows_others_ = true;
  if (meta->identity.kind != format::RecordKind::kSnapshot) return;
  if (const std::shared_ptr<NameSpace> space = SpaceOfLife(meta->identity.name_space); space != nullptr) {
    const bool at_root = meta->identity.key == space->trie.root_key();
    const auto node = at_root ? std::optional(space->trie.root()) : space->trie.Find(meta->identity.key);
    if (node.has_value()) AdoptSnapshots(*space, *node, meta->identity.key);
  }
}

std::shared_ptr<NameSpace> Cache::SpaceOfLife(const format::NamespaceId& life) const {
  for (const auto& [root, space] : namespaces_) {
    if (space->life == life && space->is_usable()) return space;
  }
  return nullptr;
}

// Another's record is not to be believed any more: what was taken over of it leaves the index, with all below.
void Cache::LoseOther(const storage::Key& key, std::vector<Removal>* removals) {
  const OtherRecord* const record = others_.Find(key);
  if (record == nullptr) return;
  const format::RecordIdentity& identity = record->meta.identity;
  for (const auto& [root, space] : namespaces_) {
    if (space->LifeOfBlocks() != identity.name_space) continue;
    const bool at_root = identity.key == space->trie.root_key();
    const auto node = at_root ? std::optional(space->trie.root()) : space->trie.Find(identity.key);
    if (record->is_snapshot() && node.has_value() && others_.IsIndexed(key)) {
      for (const trie::SnapshotInfo& snapshot : space->snapshots.FindOnPath(*node, identity.position)) {
        const bool same =
            snapshot.node == *node && snapshot.position == identity.position && snapshot.sequence == identity.sequence;
        if (same) DetachSnapshot(*space, snapshot.snapshot, removals);
      }
    } else if (!record->is_snapshot() && !at_root && node.has_value() && others_.IsIndexed(key)) {
      DetachBlock(*space, *node, removals);
    }
  }
  others_.Erase(key);
}

// ---- Taking over ---------------------------------------------------------------------------------------------------

std::optional<trie::NodeRef> Cache::FindOrAdopt(NameSpace& space, const base::BlockDigest& key) {
  std::vector<OtherRecords::Place> missing;  // the last one's parent is there
  std::optional<trie::NodeRef> node;
  for (base::BlockDigest wanted = key; !node.has_value();) {
    node = wanted == space.trie.root_key() ? std::optional(space.trie.root()) : space.trie.Find(wanted);
    if (node.has_value()) break;
    const std::optional<OtherRecords::Place> place = others_.FindBlock(wanted);
    if (!place.has_value() || place->record->meta.identity.name_space != space.life) return std::nullopt;
    const format::RecordIdentity& identity = place->record->meta.identity;
    // Upwards, whatever the records say.
    if (!missing.empty() && identity.position >= missing.back().record->meta.identity.position) return std::nullopt;
    missing.push_back(*place);
    wanted = identity.parent;
  }
  for (; !missing.empty(); missing.pop_back()) {
    node = AdoptRun(space, *node, missing.back());
    if (!node.has_value()) return std::nullopt;
  }
  return node;
}

// The run's blocks below `parent`, those that are there already included; the node of the one at `place`.
std::optional<trie::NodeRef> Cache::AdoptRun(NameSpace& space, trie::NodeRef parent, const OtherRecords::Place& place) {
  const OtherRecord& record = *place.record;
  const format::RecordIdentity& identity = record.meta.identity;
  const auto blocks = static_cast<uint32_t>(record.meta.blocks());
  const bool at_root = parent == space.trie.root();
  const std::optional<trie::BlockInfo> above = space.trie.Get(parent);
  const uint64_t depth = at_root ? 0 : above.has_value() ? above->depth : UINT32_MAX;
  if (space.BlockEnd(depth + 1) != identity.position) return std::nullopt;
  if (BlockCount() + puts_.size() + blocks > options_.max_blocks) return std::nullopt;
  if (record.meta.coded) space.has_coded = true;
  std::optional<trie::NodeRef> wanted;
  trie::NodeRef node = parent;
  for (uint32_t i = 0; i < blocks; ++i) {
    const storage::Key name = NameOfBlock(record.BlockKey(i));
    const uint64_t bytes = i == 0 ? record.bytes : 0;
    const auto inserted = space.trie.Insert(node, record.BlockKey(i), identity.sequence, bytes, NextTick(),
                                            /*expires_at=*/0, {}, {i, blocks});
    if (!inserted.ok()) break;
    if (inserted->inserted) {
      others_.SetIndexed(name);
      if (i == 0) CountOther(RecordClass::kRows, record.bytes, +1);
      AdoptSnapshots(space, inserted->node, record.BlockKey(i));
    } else {
      // A block that is there of another record ends what this one is good for.
      const std::optional<trie::BlockInfo> info = space.trie.Get(inserted->node);
      const bool same = info.has_value() && info->sequence == identity.sequence && others_.IsIndexed(name);
      if (!same) break;
    }
    node = inserted->node;
    if (i == place.index) wanted = node;
  }
  return wanted;
}

void Cache::AdoptSnapshots(NameSpace& space, trie::NodeRef node, const base::BlockDigest& boundary) {
  for (const storage::Key& key : others_.SnapshotsAt(boundary)) {
    const OtherRecord& record = *others_.Find(key);
    const format::RecordIdentity& identity = record.meta.identity;
    if (identity.name_space != space.life || others_.IsIndexed(key)) continue;
    if (record.meta.coded) space.has_coded = true;
    const auto added =
        space.snapshots.Add(node, identity.position, identity.tail, identity.sequence, record.bytes, NextTick());
    if (!added.ok() || !added->inserted) continue;
    others_.SetIndexed(key);
    CountOther(RecordClass::kSnapshot, record.bytes, +1);
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

void Cache::TakeOver(const storage::Key& key) {
  const OtherRecord* const record = others_.Find(key);
  if (record == nullptr) return;
  const std::shared_ptr<NameSpace> space = SpaceOfLife(record->meta.identity.name_space);
  if (space != nullptr) FindOrAdopt(*space, record->meta.identity.key);
}

void Cache::TakeOverAll(const base::BlockDigest& root) {
  const auto found = namespaces_.find(root.digest);
  if (found == namespaces_.end()) return;
  AdoptSnapshots(*found->second, found->second->trie.root(), root);
  for (const storage::Key& key : others_.Keys()) TakeOver(key);
}

void Cache::CountTakenOver() {
  base::MutexLock lock(mutex_);
  for (const auto& [root, space] : namespaces_) {
    stats_.recovered_blocks += space->trie.block_count();
    stats_.recovered_snapshots += space->snapshots.count();
  }
  for (const storage::Key& key : others_.Keys()) stats_.skipped_orphans += others_.IsIndexed(key) ? 0 : 1;
}

// ---- Leaving the index ---------------------------------------------------------------------------------------------

bool Cache::IsOtherBlock(const trie::BlockInfo& block) const {
  return !others_.empty() && others_.IsIndexed(NameOfBlock(block.key));
}

bool Cache::ForgetOtherBlock(const trie::BlockInfo& block) {
  if (others_.empty() || !others_.ClearIndexed(NameOfBlock(block.key))) return false;
  CountOther(RecordClass::kRows, block.bytes, -1);
  return true;
}

bool Cache::ForgetOtherSnapshot(const storage::Key& key, uint64_t bytes) {
  if (others_.empty() || !others_.ClearIndexed(key)) return false;
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
  return others_.IsIndexed({format::MakeRecordKey(format::RecordKind::kSnapshot, key)});
}

// Snapshots of others take nothing of ours, and would not come back while their block stays: they are passed over.
bool Cache::SpareOtherSnapshot(NameSpace& space, const trie::SnapshotInfo& snapshot) {
  if (!IsOtherSnapshot(space, snapshot)) return false;
  space.snapshots.Touch(snapshot.snapshot, NextTick());
  return true;
}

void Cache::DetachDamaged(NameSpace& space, trie::NodeRef node, std::vector<Removal>* removals) {
  if (const std::optional<trie::BlockInfo> info = space.trie.Get(node); info.has_value() && !others_.empty()) {
    const std::optional<OtherRecords::Place> place = others_.FindBlock(info->key);
    if (place.has_value() && IsOtherBlock(*info)) {
      return LoseOther(NameOfBlock(place->record->BlockKey(0)), removals);
    }
  }
  DetachBlock(space, node, removals);
}

}  // namespace kvstrata::core::engine
