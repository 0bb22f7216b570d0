// SPDX-License-Identifier: Apache-2.0
// Namespaces of a cache: finding or making them by their whole identity, dropping them, and telling what differs.
#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/bytes.h"
#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/engine/cache.h"
#include "lib/engine/name_space.h"

namespace kvstrata::core::engine {
namespace {

// Blocks that are taken out under one hold of the lock: lookups wait for tens of microseconds.
constexpr uint64_t kSweepBatch = 64;

plan::LayoutFacts FactsOf(const layout::Layout& layout) {
  plan::LayoutFacts facts;
  facts.block_tokens = layout.block_tokens();
  facts.has_rows = layout.has_rows();
  facts.has_state = layout.has_required_state();
  facts.replay = static_cast<plan::ReplayRule>(layout.replay().mode);
  facts.exact_replay_tokens = layout.ExactReplayTokens();
  facts.bounded_replay_tokens = layout.BoundedReplayTokens();
  facts.block_bytes = layout.BlockBytes(/*include_draft=*/true);
  return facts;
}

// All differences between a stored namespace and a wanted one, identity first.
std::vector<std::string> DifferencesOf(const NameSpace& stored, const layout::Identity& identity,
                                       const layout::Layout& layout) {
  std::vector<std::string> out = layout::DescribeDifference(stored.identity, identity);
  for (std::string& difference : layout::DescribeDifference(stored.layout, layout))
    out.push_back(std::move(difference));
  return out;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : "; ") + part;
  return out;
}

}  // namespace

NameSpace::NameSpace(layout::Identity identity_in, layout::Layout layout_in, const base::BlockDigest& root,
                     const trie::TrieOptions& options)
    : identity(std::move(identity_in)),
      layout(std::move(layout_in)),
      facts(FactsOf(layout)),
      trie(root, options),
      snapshots(&trie, layout.block_tokens()) {}

std::vector<std::byte> EncodeNamespace(const layout::Identity& identity, const layout::Layout& layout) {
  std::vector<std::byte> bytes;
  base::ByteWriter out(&bytes);
  out.WriteFramed(base::AsBytes(identity.CanonicalBytes()));
  out.WriteFramed(base::AsBytes(layout.ToText()));
  return bytes;
}

absl::StatusOr<std::pair<layout::Identity, layout::Layout>> DecodeNamespace(base::ByteView bytes) {
  base::ByteReader in(bytes);
  base::ByteView identity_bytes, layout_text;
  if (!in.ReadFramed(&identity_bytes) || !in.ReadFramed(&layout_text) || !in.AtEnd()) {
    return base::Corrupt("namespace", "its parts do not add up");
  }
  absl::StatusOr<layout::Identity> identity = layout::Identity::FromCanonicalBytes(base::AsText(identity_bytes));
  if (!identity.ok()) return identity.status();
  absl::StatusOr<layout::Layout> layout = layout::Layout::FromText(base::AsText(layout_text));
  if (!layout.ok()) return layout.status();
  return std::make_pair(*std::move(identity), *std::move(layout));
}

absl::StatusOr<format::NamespaceId> Cache::NewLife() {
  format::NamespaceId life;
  absl::Status status = options_.random->Fill(life);
  if (!status.ok()) return status;
  return life;
}

absl::StatusOr<std::shared_ptr<NameSpace>> Cache::OpenNamespace(layout::Identity identity, layout::Layout layout,
                                                                bool must_exist, bool* existed) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (absl::Status status = layout::CheckMandatory(layout, identity); !status.ok()) return status;
  base::MutexLock admin(admin_mutex_);
  const base::BlockDigest root = base::RootDigest(EncodeNamespace(identity, layout));
  if (absl::Status status = FollowMarks(); !status.ok()) return status;
  // Perhaps another process has made it.
  if (absl::Status status = FollowToEnd(); !status.ok()) return status;
  std::shared_ptr<NameSpace> space;
  format::NamespaceId present_life{};
  {
    base::MutexLock lock(mutex_);
    const auto found = namespaces_.find(root.digest);
    if (found != namespaces_.end()) {
      if (!(found->second->identity == identity) || !(found->second->layout == layout)) {
        return base::MakeStatus(base::Code::kInternal, "namespace", "two identities share a 128-bit digest");
      }
      space = found->second;
      present_life = space->life;
    } else if (must_exist) {
      return MissingNamespace(identity, layout);
    }
  }
  *existed = space != nullptr;
  if (space != nullptr) {
    // One that is only another's so far: our own records need one of ours.
    if (!options_.read_only && space->record_bytes == 0) {
      if (absl::Status status = WriteNamespaceRecord(*space, present_life); !status.ok()) return status;
    }
    base::MutexLock lock(mutex_);
    space->handles += 1;
    return space;
  }
  const absl::StatusOr<format::NamespaceId> life = NewLife();
  if (!life.ok()) return life.status();
  const trie::TrieOptions trie_options = OptionsOfTrie(layout);
  space = std::make_shared<NameSpace>(std::move(identity), std::move(layout), root, trie_options);
  space->life = *life;
  if (absl::Status status = AgreeOnLife(space.get()); !status.ok()) return status;
  if (!options_.read_only) {
    if (absl::Status status = WriteNamespaceRecord(*space, space->life); !status.ok()) return status;
  }
  base::MutexLock lock(mutex_);
  space->handles = 1;
  AddSpace(space);
  if (options_.read_only) TakeOverAll();
  return space;
}

absl::Status Cache::MissingNamespace(const layout::Identity& identity, const layout::Layout& layout) const {
  std::vector<std::string> nearest;
  bool same_identity = false;
  for (const auto& [root, space] : namespaces_) {
    std::vector<std::string> differences = DifferencesOf(*space, identity, layout);
    if (nearest.empty() || differences.size() < nearest.size()) nearest = std::move(differences);
    same_identity = same_identity || space->identity == identity;
  }
  const std::string text = nearest.empty() ? "the store has no namespace" : Join(nearest);
  return base::MakeStatus(same_identity ? base::Code::kLayoutMismatch : base::Code::kIdentityMismatch, "namespace",
                          text);
}

// Counts its bytes itself: an older record of the namespace is replaced in place.
absl::Status Cache::WriteNamespaceRecord(NameSpace& name_space, const format::NamespaceId& life) {
  const std::vector<std::byte> plain = EncodeNamespace(name_space.identity, name_space.layout);
  absl::StatusOr<std::string> frame = codec::EncodeMeta(base::AsText(plain));
  if (!frame.ok()) return frame.status();
  format::RecordHead head;
  head.identity.kind = format::RecordKind::kNamespace;
  head.identity.name_space = life;
  head.identity.key = name_space.trie.root_key();
  {
    base::MutexLock lock(mutex_);
    head.identity.sequence = NextSequence();
  }
  head.slices = {{0, false, frame->size()}};
  head.checksums = {base::Checksum(base::AsBytes(*frame), head.identity.sequence)};
  std::vector<std::byte> payload = format::EncodeHead(head);
  const base::ByteView body = base::AsBytes(*frame);
  payload.insert(payload.end(), body.begin(), body.end());
  const std::vector<std::byte> meta = format::EncodeRecordMeta({head.identity, payload.size(), {}});
  const uint64_t bytes = options_.storage->StoredBytes(payload.size(), meta.size());
  // The new record takes the older one's place, so only what it is larger by needs room: a namespace can be dropped
  // from a full store, whose space comes back only afterwards.
  const uint64_t growth = bytes > name_space.record_bytes ? bytes - name_space.record_bytes : 0;
  if (growth > 0) {
    const Deadline deadline = DeadlineAfterMs(options_.io_timeout_ms);
    if (absl::Status status = Reserve(RecordClass::kRows, growth, deadline); !status.ok()) return status;
  }
  const absl::Status status =
      PutAndWait({format::MakeRecordKey(format::RecordKind::kNamespace, head.identity.key)}, payload, meta);
  base::MutexLock lock(mutex_);
  if (growth > 0) Unreserve(RecordClass::kRows, growth);
  if (!status.ok()) return status;
  other_bytes_ += bytes - name_space.record_bytes;
  stats_.bytes_in += bytes;
  stats_.bytes_out += name_space.record_bytes;
  name_space.record_bytes = bytes;
  return absl::OkStatus();
}

void Cache::CloseNamespace(NameSpace* name_space) {
  base::MutexLock lock(mutex_);
  name_space->handles -= 1;
}

absl::Status Cache::DropNamespace(const std::shared_ptr<NameSpace>& name_space) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (options_.read_only) return base::MakeStatus(base::Code::kReadOnly, "cache", "opened read-only");
  base::MutexLock admin(admin_mutex_);
  const absl::StatusOr<format::NamespaceId> life = NewLife();
  if (!life.ok()) return life.status();
  // With others, what counts is the life on which all agree: changed first, and the drop is done.
  const bool shared = options_.storage->marks() != nullptr;
  if (shared) {
    if (absl::Status status = ReplaceLife(*name_space, *life); !status.ok()) return status;
  }
  {
    base::MutexLock lock(mutex_);
    name_space->dropping = true;  // from here on it is empty for everybody
    if (!shared) name_space->sweeping = name_space->life;
  }
  // Removed first, since the record below may need their space. A crash in between leaves a part of the namespace, as
  // if the rest had been evicted: the drop has not returned yet.
  Sweep(*name_space);
  absl::Status status = WriteNamespaceRecord(*name_space, *life);
  {
    // What is stored from now on belongs to the life that is written down, whether that is known to be durable or not.
    base::MutexLock lock(mutex_);
    if (status.ok() && !shared) name_space->life = *life;
    name_space->dropping = false;
  }
  if (status.ok() && options_.storage->capabilities().durable_sync) status = FlushStorage();
  return shared ? absl::OkStatus() : status;
}

bool Cache::SweepSome(NameSpace& name_space, std::vector<Removal>* removals) {
  if (!name_space.sweeping.has_value()) return true;
  const base::Digest128& root = name_space.trie.root_key().digest;
  DetachBlock(name_space, name_space.trie.root(), removals, kSweepBatch);
  if (name_space.trie.block_count() > 0) return false;
  events_.Add({EventKind::kNamespaceDropped, 0, *name_space.sweeping, root, 0, 0});
  name_space.sweeping.reset();
  if (options_.read_only) TakeOverAll();
  return true;
}

void Cache::Sweep(NameSpace& name_space) {
  for (bool done = false; !done;) {
    std::vector<Removal> removals;
    {
      base::MutexLock lock(mutex_);
      done = SweepSome(name_space, &removals);
    }
    RunRemovals(removals);
  }
}

absl::StatusOr<uint64_t> Cache::PurgeForeign() {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (options_.read_only) return base::MakeStatus(base::Code::kReadOnly, "cache", "opened read-only");
  base::MutexLock admin(admin_mutex_);
  std::vector<Removal> removals;
  std::vector<std::shared_ptr<NameSpace>> purged;
  uint64_t bytes = 0;
  {
    base::MutexLock lock(mutex_);
    for (const auto& [root, shared] : namespaces_) {
      NameSpace& space = *shared;
      // A match or writer may still use a namespace whose handle has gone.
      if (space.handles > 0 || shared.use_count() > 1) continue;
      bytes += space.trie.bytes() + space.snapshots.bytes() + space.record_bytes;
      // The record itself goes first: what a crash leaves behind then belongs to no namespace and is removed at open.
      const storage::Key key{format::MakeRecordKey(format::RecordKind::kNamespace, space.trie.root_key())};
      row_bytes_ += space.record_bytes;
      other_bytes_ -= space.record_bytes;
      if (space.record_bytes > 0) CountRemoval(RecordClass::kRows, key, space.record_bytes, &removals);
      space.record_bytes = 0;
      space.dropping = true;
      space.sweeping = space.LifeOfBlocks();
      purged.push_back(shared);
    }
  }
  RunRemovals(removals);
  for (const std::shared_ptr<NameSpace>& space : purged) {
    Sweep(*space);
    base::MutexLock lock(mutex_);
    namespaces_.erase(space->trie.root_key().digest);
  }
  return bytes;
}

NamespaceInfo Cache::DescribeNamespace(const NameSpace& name_space) {
  base::MutexLock lock(mutex_);
  NamespaceInfo info;
  info.id = name_space.life;
  info.blocks = name_space.trie.block_count();
  info.snapshots = name_space.snapshots.count();
  info.row_bytes = name_space.trie.bytes();
  info.snapshot_bytes = name_space.snapshots.bytes();
  std::vector<std::string> nearest;
  for (const auto& [root, other] : namespaces_) {
    if (other.get() == &name_space) continue;
    if (other->identity == name_space.identity) {
      info.foreign_layout_bytes += other->trie.bytes() + other->snapshots.bytes();
    }
    std::vector<std::string> differences = DifferencesOf(*other, name_space.identity, name_space.layout);
    if (nearest.empty() || differences.size() < nearest.size()) nearest = std::move(differences);
  }
  info.nearest_difference = Join(nearest);
  return info;
}

}  // namespace kvstrata::core::engine
