// SPDX-License-Identifier: Apache-2.0
// What other processes have stored, at an opening: all of it in one go, and for a cache that is open for reading only,
// the index built of it in bulk. What changes from then on is followed (follow.cc).
#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/cache.h"

namespace kvstrata::core::engine {
namespace {

// Records before its turn that the index is told of a run's first block.
constexpr uint32_t kBucketAhead = 16;

absl::Status NoMemory() { return base::MakeStatus(base::Code::kOutOfMemory, "open", "no memory for others' records"); }

}  // namespace

absl::Status Cache::FollowFromStart() {
  if (!follows_) return absl::OkStatus();
  std::vector<format::RecordMeta> spaces;
  bool no_memory = false;
  const auto take = [&](const storage::RecordView& record) {
    std::optional<format::RecordMeta> meta = MetaOfOther(record);
    if (!meta.has_value()) return;
    switch (meta->identity.kind) {
      case format::RecordKind::kBlock:
      case format::RecordKind::kSnapshot: no_memory |= !others_.Append(*meta, record.stored_bytes); break;
      case format::RecordKind::kNamespace: spaces.push_back(*std::move(meta)); break;
      case format::RecordKind::kStore:
      case format::RecordKind::kUses: break;
    }
  };
  if (absl::Status status = options_.storage->VisitOthers(take); !status.ok()) return status;
  if (no_memory) return NoMemory();
  std::erase_if(spaces, [this](const format::RecordMeta& meta) {
    base::MutexLock lock(mutex_);
    return namespaces_.contains(meta.identity.key.digest);
  });
  if (absl::Status status = AddOthersSpaces(spaces); !status.ok()) return status;
  {
    base::MutexLock lock(mutex_);
    knows_others_ = !others_.empty();
    if (options_.read_only) AdoptListedRuns();
    if (!others_.Index()) return NoMemory();
    if (options_.read_only) AdoptListedSnapshots();
  }
  return FollowToEnd();
}

// In the order of writing, in which they mostly come.
void Cache::AdoptListedRuns() {
  std::map<format::NamespaceId, std::pair<NameSpace*, uint64_t>> spaces;  // with the blocks that there are of each
  for (const auto& [root, space] : namespaces_) {
    if (space->is_usable()) spaces[space->life] = {space.get(), 0};
  }
  for (uint32_t number = 0; number < others_.end(); ++number) {
    const OtherRecord& record = *others_.At(number);
    const auto space = spaces.find(record.life);
    if (space != spaces.end() && !record.snapshot) space->second.second += record.blocks;
  }
  for (const auto& [life, space] : spaces) space.first->trie.BeginBulk(space.second);
  std::vector<OtherRecord*> early;  // before their parents, if these are there at all
  for (uint32_t number = 0; number < others_.end(); ++number) {
    OtherRecord& record = *others_.At(number);
    const auto space = spaces.find(record.life);
    if (space == spaces.end() || record.snapshot) continue;
    trie::Trie& trie = space->second.first->trie;
    if (number + kBucketAhead < others_.end()) {
      trie.PrefetchBucket(others_.At(number + kBucketAhead)->key);
    }
    if (!AdoptListedRun(*space->second.first, &record)) early.push_back(&record);
  }
  std::ranges::stable_sort(early, {}, &OtherRecord::position);
  for (OtherRecord* const record : early) AdoptListedRun(*spaces.at(record->life).first, record);
  for (const auto& [life, space] : spaces) space.first->trie.EndBulk();
}

bool Cache::AdoptListedRun(NameSpace& space, OtherRecord* record) {
  const bool at_root = record->above == space.trie.root_key();
  const auto parent = at_root ? std::optional(space.trie.root()) : space.trie.Find(record->above);
  return parent.has_value() && AdoptRun(space, *parent, {record, 0}).has_value();
}

void Cache::AdoptListedSnapshots() {
  for (uint32_t number = 0; number < others_.end(); ++number) {
    const OtherRecord& record = *others_.At(number);
    if (record.snapshot) TakeOver(record);
  }
}

void Cache::CountTakenOver() {
  base::MutexLock lock(mutex_);
  for (const auto& [root, space] : namespaces_) {
    stats_.recovered_blocks += space->trie.block_count();
    stats_.recovered_snapshots += space->snapshots.count();
  }
  for (uint32_t number = 0; number < others_.end(); ++number) {
    const OtherRecord* const record = others_.At(number);
    if (record != nullptr && !record->IsIndexed(0)) stats_.skipped_orphans += 1;
  }
}

}  // namespace kvstrata::core::engine
