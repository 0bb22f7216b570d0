// SPDX-License-Identifier: Apache-2.0
// Rebuilding the indexes at open, from what the storage lists: keys, metas and sizes. Only namespace records are read;
// no row ever is.
//
// A run is taken when its namespace's present life is its own and its first block's parent was taken; anything else is
// an orphan and leaves the storage (unless it is opened read-only). Recency and frequency are those that were written
// down (save_uses.cc); what was stored after that is the hottest, in the order of writing. Blocks of a run that had
// been evicted come back with it as the coldest, but for those that were stored anew.
#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/engine/cache.h"
#include "lib/engine/name_space.h"

namespace kvstrata::core::engine {
namespace {

constexpr uint32_t kEpochShift = 32;  // sequence = epoch << 32 | counter: 4 Gi placements an open
constexpr uint64_t kMaxNamespaceRecordBytes = 16u << 20;
// Blocks before its turn that the index is told of one.
constexpr uint64_t kBucketAhead = 16;

// Of writing, in which they mostly come; each once, since a storage may list a record more than once.
void PutInOrder(std::vector<format::RecordMeta>* metas) {
  const auto sequence = [](const format::RecordMeta& meta) { return meta.identity.sequence; };
  if (!std::ranges::is_sorted(*metas, {}, sequence)) std::ranges::sort(*metas, {}, sequence);
  const auto doubles = std::ranges::unique(*metas, {}, &format::RecordMeta::identity);
  metas->erase(doubles.begin(), doubles.end());
}

}  // namespace

// What a storage has listed, by kind.
struct Cache::Listed {
  std::vector<format::RecordMeta> spaces, snapshots, uses;
  FoundRuns runs;
  uint64_t newest_sequence = 0;
  absl::flat_hash_set<storage::Key> seen;  // of the few; the many are looked through once they are in order
  bool no_memory = false;
};

void Cache::TakeListed(const storage::RecordView& record, Listed* listed) {
  absl::StatusOr<format::RecordMeta> meta = format::DecodeRecordMeta(record.meta);
  const bool ours =
      meta.ok() && meta->payload_bytes == record.payload_bytes && KeyOfRecord(meta->identity) == record.key;
  const bool many = ours && (meta->identity.kind == format::RecordKind::kBlock ||
                             meta->identity.kind == format::RecordKind::kSnapshot);
  if (!many && !listed->seen.insert(record.key).second) return;
  if (!ours) {
    const bool too_new = base::CodeOf(meta.status()) == base::Code::kFormatTooNew;
    (too_new ? stats_.skipped_too_new : meta.ok() ? stats_.skipped_foreign : stats_.skipped_corrupt) += 1;
    other_bytes_ += record.stored_bytes;  // it stays where it is, and takes its place
    stats_.bytes_in += record.stored_bytes;
    return;
  }
  listed->newest_sequence = std::max(listed->newest_sequence, meta->identity.sequence);
  switch (meta->identity.kind) {
    case format::RecordKind::kBlock: listed->no_memory |= !listed->runs.Add(*meta); break;
    case format::RecordKind::kSnapshot: listed->snapshots.push_back(*std::move(meta)); break;
    case format::RecordKind::kNamespace: listed->spaces.push_back(*meta); break;
    case format::RecordKind::kUses: listed->uses.push_back(*meta); break;
    case format::RecordKind::kStore:
      // The store's own record: its position is the last epoch.
      listed->newest_sequence = std::max(listed->newest_sequence,
                                         std::min<uint64_t>(meta->identity.position, UINT32_MAX) << kEpochShift);
      other_bytes_ += record.stored_bytes;
      store_record_bytes_ = record.stored_bytes;
      stats_.bytes_in += record.stored_bytes;
      break;
  }
}

absl::Status Cache::Recover() {
  if (absl::Status status = FollowMarks(); !status.ok()) return status;
  Listed listed;
  const bool all_are_others = follows_ && options_.read_only;
  if (!all_are_others) {
    uint64_t skipped = 0;
    const auto take = [&](const storage::RecordView& record) { TakeListed(record, &listed); };
    if (absl::Status status = options_.storage->Visit(take, &skipped); !status.ok()) return status;
    stats_.skipped_corrupt += skipped;
  }
  if (listed.no_memory) return base::MakeStatus(base::Code::kOutOfMemory, "open", "no memory for what is listed");
  listed.runs.PutInOrder();
  PutInOrder(&listed.snapshots);
  std::set<format::NamespaceId> later_lives;
  if (absl::Status status = RecoverNamespaces(listed.spaces, &later_lives); !status.ok()) return status;
  if (absl::Status status = FollowFromStart(); !status.ok()) return status;
  std::vector<Removal> removals;
  SavedUses saved;
  if (absl::Status status = ReadUses(std::move(listed.uses), &saved); !status.ok()) return status;
  {
    base::MutexLock lock(mutex_);
    RecoverRuns(listed.runs, later_lives, saved, &removals);
    RecoverSnapshots(std::move(listed.snapshots), later_lives, saved, &removals);
    saved_tick_ = tick_;
  }
  if (options_.read_only) {
    if (follows_) CountTakenOver();
    return absl::OkStatus();
  }
  RunRemovals(removals);
  // Trimmed first, so that a storage that is full to its own limit has room for the epoch's record.
  if (absl::Status status = Trim(options_.capacity_bytes).status(); !status.ok()) return status;
  if (absl::Status status = StartEpoch(listed.newest_sequence); !status.ok()) return status;
  TrimToBounds();
  return Trim(PercentOfCapacity(options_.high_percent)).status();
}

// The index and the snapshots may have had larger bounds when they were stored.
void Cache::TrimToBounds() {
  for (bool evicted = true; evicted;) {
    std::vector<Removal> removals;
    {
      base::MutexLock lock(mutex_);
      const bool snapshots = snapshot_bytes_ > options_.snapshot_bytes;
      if (!snapshots && BlockCount() <= options_.max_blocks) return;
      evicted = snapshots ? EvictSnapshot(&removals) : EvictBlock(&removals);
    }
    RunRemovals(removals);
  }
}

// Records of namespaces that only a later version can read are its own: they stay, and take their place.
bool Cache::LeaveAlone(const std::set<format::NamespaceId>& lives, const format::NamespaceId& life,
                       uint64_t stored_bytes) {
  if (!lives.contains(life)) return false;
  other_bytes_ += stored_bytes;
  stats_.bytes_in += stored_bytes;
  stats_.skipped_too_new += 1;
  return true;
}

absl::Status Cache::RecoverNamespaces(const std::vector<format::RecordMeta>& metas,
                                      std::set<format::NamespaceId>* later_lives) {
  for (const format::RecordMeta& meta : metas) {
    const uint64_t stored_bytes = options_.storage->StoredBytes(meta.payload_bytes, format::MetaBytes(meta.blocks()));
    other_bytes_ += stored_bytes;
    stats_.bytes_in += stored_bytes;
    absl::StatusOr<std::shared_ptr<NameSpace>> space = ReadNamespace(meta);
    if (!space.ok()) {
      // Its blocks become orphans; an error of the storage itself is no statement about the record.
      const base::Code code = base::CodeOf(space.status());
      if (code != base::Code::kCorrupt && code != base::Code::kFormatTooNew && code != base::Code::kNotFound) {
        return space.status();
      }
      (code == base::Code::kFormatTooNew ? stats_.skipped_too_new : stats_.skipped_corrupt) += 1;
      if (code == base::Code::kFormatTooNew) later_lives->insert(meta.identity.name_space);
      continue;
    }
    if (absl::Status status = AgreeOnLife(space->get()); !status.ok()) return status;
    (*space)->record_bytes = stored_bytes;
    base::MutexLock lock(mutex_);
    AddSpace(*space);
  }
  return absl::OkStatus();
}

// Of a record that has nothing but one nameless slice.
absl::StatusOr<std::vector<std::byte>> Cache::ReadOnlySlice(const format::RecordMeta& meta, uint64_t most_bytes) {
  if (meta.payload_bytes > most_bytes) return base::Corrupt("record", "larger than any can be");
  const absl::StatusOr<std::vector<std::byte>> bytes = GetAndWait(KeyOfRecord(meta.identity), 0, meta.payload_bytes);
  if (!bytes.ok()) return bytes.status();
  const uint64_t head_bytes = format::HeadBytes(0, 0, 1);
  if (bytes->size() < head_bytes) return base::Corrupt("record", "cut off");
  const base::ByteView view = *bytes;
  const absl::StatusOr<format::RecordHead> head = format::DecodeHead(view.first(head_bytes));
  if (!head.ok()) return head.status();
  const base::ByteView slice = view.subspan(head_bytes);
  if (head->identity != meta.identity || head->slices.size() != 1 || head->slices[0].bytes != slice.size() ||
      head->checksums[0] != base::Checksum(slice, meta.identity.sequence)) {
    return base::Corrupt("record", "its head does not fit its bytes");
  }
  return std::vector<std::byte>(slice.begin(), slice.end());
}

absl::StatusOr<std::shared_ptr<NameSpace>> Cache::ReadNamespace(const format::RecordMeta& meta) {
  const absl::StatusOr<std::vector<std::byte>> frame = ReadOnlySlice(meta, kMaxNamespaceRecordBytes);
  if (!frame.ok()) return frame.status();
  const absl::StatusOr<std::string> plain = codec::DecodeMeta(base::AsText(*frame), codec::kMaxMetaBytes);
  if (!plain.ok()) return plain.status();
  auto parts = DecodeNamespace(base::AsBytes(*plain));
  if (!parts.ok()) return parts.status();
  const base::BlockDigest root = base::RootDigest(base::AsBytes(*plain));
  if (root != meta.identity.key) return base::Corrupt("namespace", "is not the one of its key");
  const trie::TrieOptions trie_options = OptionsOfTrie(parts->second);
  auto space = std::make_shared<NameSpace>(std::move(parts->first), std::move(parts->second), root, trie_options);
  space->life = meta.identity.name_space;
  return space;
}

void Cache::RecoverRuns(const FoundRuns& runs, const std::set<format::NamespaceId>& later_lives,
                        const SavedUses& saved, std::vector<Removal>* removals) {
  std::vector<NameSpace*> spaces(runs.lives().size());  // by the number of the life; null of one that has ended
  for (size_t i = 0; i < spaces.size(); ++i) {
    for (const auto& [root, space] : namespaces_) {
      if (space->life == runs.lives()[i]) spaces[i] = space.get();
    }
  }
  tick_ = saved.tick() + runs.size();
  BeginBulk(runs, spaces);
  const auto bytes_of = [this](const FoundRun& run) {
    return options_.storage->StoredBytes(run.payload_bytes, format::MetaBytes(run.blocks));
  };
  const auto recover = [&](uint64_t i) {
    const FoundRun& run = runs[i];
    NameSpace* const space = spaces[run.life];
    const uint32_t taken =
        space == nullptr ? 0 : RecoverRun(*space, runs, run, bytes_of(run), saved.tick() + i + 1, saved);
    stats_.recovered_blocks += taken;
    return taken > 0;
  };
  std::vector<uint64_t> early;  // before their parents, if these are there at all
  for (uint64_t i = 0; i < runs.size(); ++i) {
    if (i + kBucketAhead < runs.size()) {
      const FoundRun& ahead = runs[i + kBucketAhead];
      if (spaces[ahead.life] != nullptr) spaces[ahead.life]->trie.PrefetchBucket(ahead.key);
    }
    const FoundRun& run = runs[i];
    const uint64_t bytes = bytes_of(run);
    if (spaces[run.life] == nullptr && LeaveAlone(later_lives, runs.lives()[run.life], bytes)) continue;
    stats_.bytes_in += bytes;
    row_bytes_ += bytes;
    if (!recover(i)) early.push_back(i);
  }
  // Parents before children: a block's position is larger than its parent's, and the parent's than its run's.
  std::ranges::stable_sort(early, {}, [&](uint64_t i) { return runs[i].position; });
  for (const uint64_t i : early) {
    if (recover(i)) continue;
    stats_.skipped_orphans += 1;
    const storage::Key key{format::MakeRecordKey(format::RecordKind::kBlock, runs[i].key)};
    CountRemoval(RecordClass::kRows, key, bytes_of(runs[i]), removals);
  }
  for (NameSpace* const space : spaces) {
    if (space != nullptr) space->trie.EndBulk();
  }
}

void Cache::BeginBulk(const FoundRuns& runs, const std::vector<NameSpace*>& spaces) {
  std::vector<uint64_t> blocks(spaces.size());
  for (uint64_t i = 0; i < runs.size(); ++i) blocks[runs[i].life] += runs[i].blocks;
  for (size_t life = 0; life < spaces.size(); ++life) {
    if (spaces[life] != nullptr) spaces[life]->trie.BeginBulk(blocks[life]);
  }
}

// Its own blocks, as far as the index takes them; how many that was.
uint32_t Cache::RecoverRun(NameSpace& space, const FoundRuns& runs, const FoundRun& run, uint64_t bytes, uint64_t tick,
                           const SavedUses& saved) {
  const uint64_t block_tokens = space.facts.block_tokens;
  if (run.position == 0 || run.position % block_tokens != 0) return 0;
  trie::NodeRef parent = space.trie.root();
  if (run.position == block_tokens) {
    if (run.parent != space.trie.root_key()) return 0;
  } else {
    const std::optional<trie::NodeRef> found = FindOrAdopt(space, run.parent);
    if (!found.has_value()) return 0;
    parent = *found;
    const std::optional<trie::BlockInfo> info = space.trie.Get(parent);
    if (!info.has_value() || space.BlockEnd(info->depth + uint64_t{1}) != run.position) return 0;
  }
  if (run.coded) space.has_coded = true;
  const std::span<const base::BlockDigest> more = runs.More(run);
  for (size_t i = 0; i < std::min<size_t>(more.size(), kBucketAhead); ++i) space.trie.PrefetchBucket(more[i]);
  const uint32_t blocks = run.blocks, most = runs.OwnBlocks(run);
  const bool known = saved.Block(run.sequence, 0) != nullptr;
  uint32_t taken = 0;
  for (; taken < most; ++taken) {
    if (taken + kBucketAhead < more.size()) space.trie.PrefetchBucket(more[taken + kBucketAhead]);
    const base::BlockDigest& key = taken == 0 ? run.key : more[taken - 1];
    trie::BlockWorth worth;
    uint32_t expires_at = 0;
    if (const format::BlockUses* uses = saved.Block(run.sequence, taken); uses != nullptr) {
      worth = {static_cast<trie::Priority>(uses->priority), uses->frequency, uses->heat};
      expires_at = uses->expires_at;
    } else if (known) {
      worth.heat = 0;  // it had been evicted, and came back with its run
    }
    const auto inserted =
        space.trie.Insert(parent, key, run.sequence, taken == 0 ? bytes : 0, tick, expires_at, worth, {taken, blocks});
    if (!inserted.ok() || !inserted->inserted) break;
    parent = inserted->node;
  }
  if (taken > 0) CountCutRun(space, run.key, blocks - taken);
  return taken;
}

void Cache::RecoverSnapshots(std::vector<format::RecordMeta> metas, const std::set<format::NamespaceId>& later_lives,
                             const SavedUses& saved, std::vector<Removal>* removals) {
  std::map<format::NamespaceId, NameSpace*> by_life;
  for (const auto& [root, space] : namespaces_) by_life.emplace(space->life, space.get());
  for (const format::RecordMeta& meta : metas) {
    const uint64_t bytes = options_.storage->StoredBytes(meta.payload_bytes, format::MetaBytes(meta.blocks()));
    if (LeaveAlone(later_lives, meta.identity.name_space, bytes)) continue;
    stats_.bytes_in += bytes;
    snapshot_bytes_ += bytes;
    const auto space = by_life.find(meta.identity.name_space);
    if (space != by_life.end()) {
      NameSpace& name_space = *space->second;
      if (meta.coded) name_space.has_coded = true;
      const bool at_root = meta.identity.key == name_space.trie.root_key();
      const std::optional<trie::NodeRef> node =
          at_root ? std::optional(name_space.trie.root()) : FindOrAdopt(name_space, meta.identity.key);
      const format::SnapshotUses* const uses = saved.Snapshot(meta.identity.sequence);
      const auto added =
          node.has_value()
              ? name_space.snapshots.Add(*node, meta.identity.position, meta.identity.tail, meta.identity.sequence,
                                         bytes, uses != nullptr ? uses->last_use : NextTick(),
                                         uses != nullptr ? uses->frequency : 0)
              : absl::StatusOr<trie::SnapshotInsertResult>(absl::NotFoundError("boundary"));
      if (added.ok() && added->inserted) {
        stats_.recovered_snapshots += 1;
        continue;
      }
    }
    stats_.skipped_orphans += 1;
    CountRemoval(RecordClass::kSnapshot, KeyOfRecord(meta.identity), bytes, removals);
  }
}

// Sequence numbers are never used twice: each open takes an epoch above every one that was ever durable.
absl::Status Cache::StartEpoch(uint64_t newest_sequence) {
  const uint64_t epoch = (newest_sequence >> kEpochShift) + 1;
  if (epoch > UINT32_MAX) return base::MakeStatus(base::Code::kInternal, "epoch", "all are used up");
  format::RecordHead head;
  head.identity.kind = format::RecordKind::kStore;
  head.identity.sequence = epoch << kEpochShift;
  head.identity.position = epoch;
  const std::vector<std::byte> payload = format::EncodeHead(head);
  const std::vector<std::byte> meta = format::EncodeRecordMeta({head.identity, payload.size(), {}});
  if (absl::Status status = PutAndWait(KeyOfRecord(head.identity), payload, meta); !status.ok()) return status;
  if (options_.storage->capabilities().durable_sync) {
    if (absl::Status status = options_.storage->Sync(); !status.ok()) return status;
  }
  base::MutexLock lock(mutex_);
  const uint64_t bytes = options_.storage->StoredBytes(payload.size(), meta.size());
  other_bytes_ += bytes - store_record_bytes_;
  stats_.bytes_in += bytes - store_record_bytes_;
  next_sequence_ = (epoch << kEpochShift) + 1;
  return absl::OkStatus();
}

}  // namespace kvstrata::core::engine
