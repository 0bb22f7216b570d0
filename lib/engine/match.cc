// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/match.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/io.h"

namespace kvstrata::core::engine {
namespace {

// Snapshots considered by one plan. They come newest first; a prompt with more snapshots behind these than this has
// better ones among these.
constexpr uint64_t kMaxCandidates = 256;
// Stored continuations whose tokens are read to find the first difference.
constexpr size_t kMaxContinuations = 16;

// Why the chain ends where it does.
plan::Reason MatchEnd(const trie::MatchResult& match, uint64_t max_blocks) {
  if (match.blocks == max_blocks) return max_blocks == 0 ? plan::Reason::kShorterThanBlock : plan::Reason::kCapped;
  return match.blocks == 0 ? plan::Reason::kAbsent : plan::Reason::kDiverged;
}

// The longest stored prefix with its blocks. `beside`: without the cache's lock; nothing where whoever holds it was in
// the way. What was found so counts if its last block is still there under the lock: then all blocks before it are, too
// (A3), and are what they were.
std::optional<trie::MatchResult> FindBlocks(const NameSpace& space, uint64_t max_blocks, uint32_t now, bool beside,
                                            trie::KeySequence* keys, MatchState* state) {
  std::optional<trie::MatchResult> found;
  if (beside) {
    found = space.trie.TryMatch(*keys, max_blocks, now);
  } else {
    found = space.trie.Match(*keys, max_blocks, now);
  }
  std::vector<trie::PathBlock> path;
  if (!found.has_value() || !space.trie.TryPath(*found, &path)) return std::nullopt;
  state->blocks.clear();
  state->blocks.reserve(path.size());
  for (uint64_t i = 0; i < path.size(); ++i) {
    state->blocks.push_back({path[i].node, keys->At(i), path[i].sequence, path[i].run});
  }
  return found;
}

// The same for sure, under the lock; `hint` is what was found without it.
trie::MatchResult ProveBlocks(const NameSpace& space, uint64_t max_blocks, uint32_t now,
                              const std::optional<trie::MatchResult>& hint, trie::KeySequence* keys,
                              MatchState* state) {
  const trie::MatchResult nothing{space.trie.root(), 0};
  if (space.is_usable() && hint.has_value()) {
    if (hint->blocks == 0) return *hint;
    const std::optional<trie::BlockInfo> last = space.trie.Get(hint->node);
    if (last.has_value() && !last->dead && last->key == keys->At(hint->blocks - 1)) return *hint;
  }
  state->blocks.clear();
  if (!space.is_usable()) return nothing;
  return FindBlocks(space, max_blocks, now, false, keys, state).value_or(nothing);
}

void FillSnapshots(const NameSpace& space, trie::NodeRef deepest, MatchState* state) {
  if (state->prompt.size() == 0) return;
  const auto tail_of = [&](trie::NodeRef /*boundary*/, uint64_t position) {
    const uint64_t depth = position / space.facts.block_tokens;
    return TailOf(state->prompt, state->BoundaryKey(depth), space.BlockEnd(depth), position);
  };
  state->snapshots = space.snapshots.FindOnPath(deepest, state->prompt.size() - 1, kMaxCandidates, tail_of);
}

absl::Status CheckLookup(const LookupOptions& options) {
  constexpr uint32_t kKnownModes = 0b11110;
  if ((options.allowed_modes & ~kKnownModes) != 0) {
    return base::InvalidArgument("allowed_modes", std::to_string(options.allowed_modes) + " has unknown bits");
  }
  if (!(options.prefill_tokens_per_second >= 0) || !(options.storage_bytes_per_second >= 0)) {
    return base::InvalidArgument("prefill_tokens_per_second or storage_bytes_per_second", "negative or not a number");
  }
  return absl::OkStatus();
}

}  // namespace

trie::KeySequence KeysOf(const Prompt& prompt, const base::BlockDigest& root, uint32_t block_tokens) {
  return trie::KeySequence(root, [&prompt, block_tokens](uint64_t index, trie::BlockKey parent,
                                                         std::span<trie::BlockKey> out) {
    uint64_t first = index * block_tokens;
    const uint64_t count = out.size() * block_tokens;
    if (!prompt.HasExtra(first, count)) return base::ChainBlocks(parent, prompt.Slice(first, count), out);
    for (trie::BlockKey& key : out) {
      parent = base::ChainBlock(parent, prompt.Slice(first, block_tokens), prompt.Extra(first, block_tokens));
      key = parent;
      first += block_tokens;
    }
  });
}

LeaseHold::~LeaseHold() {
  if (lease != nullptr) cache->EndLease(lease);
}

plan::Plan MatchState::MakePlan(uint64_t max_blocks, uint64_t usable_limit, const std::vector<bool>& unusable,
                                plan::Reason match_end_reason) const {
  std::vector<plan::SnapshotCandidate> candidates;
  for (size_t i = 0; i < snapshots.size(); ++i) {
    if (!unusable.empty() && unusable[i]) continue;
    if (snapshots[i].position / name_space->facts.block_tokens > max_blocks) continue;
    candidates.push_back({snapshots[i].position, snapshots[i].bytes, static_cast<uint32_t>(i)});
  }
  plan::Request request;
  request.prompt_tokens = prompt.size();
  request.matched_tokens = name_space->BlockEnd(max_blocks);
  request.match_end = match_end_reason;
  request.snapshots = candidates;
  request.held_tokens = options.held_tokens;
  request.allowed_modes = options.allowed_modes;
  request.restart_multiple = options.restart_multiple;
  request.min_gain_tokens = options.min_gain_tokens;
  request.costs.prefill_tokens_per_second = options.prefill_tokens_per_second;
  request.costs.storage_bytes_per_second = options.storage_bytes_per_second;
  request.usable_limit = usable_limit;
  return plan::MakePlan(name_space->facts, request);
}

absl::StatusOr<std::unique_ptr<Match>> Match::Lookup(const std::shared_ptr<Cache>& cache,
                                                     const std::shared_ptr<NameSpace>& name_space, Prompt prompt,
                                                     const LookupOptions& options) {
  if (absl::Status status = cache->CheckUsable(); !status.ok()) return status;
  if (absl::Status status = CheckLookup(options); !status.ok()) return status;
  if (absl::Status status = cache->FollowMarks(); !status.ok()) return status;
  cache->FollowOthers();
  auto state = std::make_shared<MatchState>();
  state->cache = cache;
  state->name_space = name_space;
  state->prompt = std::move(prompt);
  state->options = options;
  auto match = std::make_unique<Match>();
  match->state_ = state;
  match->hold_ = std::make_shared<LeaseHold>(cache);

  NameSpace& space = *name_space;
  trie::KeySequence keys = KeysOf(state->prompt, space.trie.root_key(), space.facts.block_tokens);
  const uint64_t max_blocks = trie::MaxMatchBlocks(state->prompt.size(), space.facts.block_tokens);
  const uint32_t now = cache->NowSeconds();
  cache->AdoptAhead(space, max_blocks, &keys);
  const std::optional<trie::MatchResult> hint = FindBlocks(space, max_blocks, now, true, &keys, state.get());
  base::MutexLock lock(cache->mutex());
  state->life = space.life;
  const trie::MatchResult found = ProveBlocks(space, max_blocks, now, hint, &keys, state.get());
  state->matched_blocks = state->blocks.size();
  FillSnapshots(space, found.node, state.get());
  if (state->options.storage_bytes_per_second == 0) {
    state->options.storage_bytes_per_second = cache->measured_bytes_per_second();
  }
  state->match_end = MatchEnd(found, max_blocks);
  match->plan_ = state->MakePlan(state->matched_blocks, kNoPosition, {}, state->match_end);
  const plan::Plan& plan = match->plan_;

  Stats& stats = cache->counters();
  if (options.peek) {
    stats.peeks += 1;
    return match;
  }
  stats.lookups += 1;
  (plan.usable_tokens > 0 ? stats.hits : stats.misses) += 1;
  stats.requested_tokens += state->prompt.size();
  stats.matched_tokens += space.BlockEnd(state->matched_blocks);
  stats.usable_tokens += plan.usable_tokens;
  stats.replayed_tokens += plan.replayed_tokens;
  stats.reasons[static_cast<size_t>(plan.reason)] += 1;
  const uint64_t tick = cache->NextTick();
  if (found.blocks > 0) space.trie.Touch(found.node, tick);
  trie::SnapshotRef snapshot;
  if (plan.snapshot.has_value()) {
    snapshot = state->snapshots[plan.snapshot->id].snapshot;
    space.snapshots.Touch(snapshot, tick);
  }
  if (plan.mode != plan::Mode::kNone && !options.no_lease) {
    const trie::NodeRef node =
        plan.read_blocks_to == 0 ? space.trie.root() : state->blocks[plan.read_blocks_to - 1].node;
    match->hold_->lease = cache->TakeLease(name_space, node, snapshot, options.lease_ms);
    if (match->hold_->lease == nullptr) stats.unleased_matches += 1;
  }
  return match;
}

bool Match::leased() const {
  const Lease* lease = hold_->lease.get();
  if (lease == nullptr) return false;
  base::MutexLock lock(state_->cache->mutex());
  return lease->active && lease->deadline_ns > state_->cache->NowNs();
}

absl::Status Match::Renew(uint64_t lease_ms) {
  if (absl::Status status = state_->cache->CheckUsable(); !status.ok()) return status;
  base::MutexLock lock(state_->cache->mutex());
  if (hold_->lease == nullptr || !state_->cache->RenewLease(hold_->lease.get(), lease_ms)) {
    return base::MakeStatus(base::Code::kInvalidState, "lease", "there is none, or it has ended");
  }
  return absl::OkStatus();
}

absl::Status Match::Limit(uint64_t max_usable_tokens) {
  if (absl::Status status = state_->cache->CheckUsable(); !status.ok()) return status;
  usable_limit_ = max_usable_tokens;
  plan_ = state_->MakePlan(state_->matched_blocks, usable_limit_, {}, state_->match_end);
  if (hold_->lease == nullptr || !plan_.snapshot.has_value()) return absl::OkStatus();
  // A shorter plan reads fewer of the blocks that are pinned, but it may read another snapshot.
  base::MutexLock lock(state_->cache->mutex());
  if (!state_->cache->AddToLease(hold_->lease.get(), state_->snapshots[plan_.snapshot->id].snapshot)) {
    state_->cache->counters().unleased_matches += 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Match::FirstDifference() const {
  const MatchState& state = *state_;
  if (absl::Status status = state.cache->CheckUsable(); !status.ok()) return status;
  const NameSpace& space = *state.name_space;
  const uint64_t first = space.BlockEnd(state.matched_blocks);
  const uint64_t rest = state.prompt.size() - first;
  if (rest == 0) return kNoPosition;
  const auto query = state.prompt.Slice(first, std::min<uint64_t>(rest, space.facts.block_tokens));
  // A continuation, and where in its run it is: its record is that of the run's first block.
  std::vector<std::pair<base::BlockDigest, uint32_t>> continuations;
  {
    base::MutexLock lock(state.cache->mutex());
    const trie::NodeRef node = state.matched_blocks == 0 ? space.trie.root() : state.blocks.back().node;
    for (trie::NodeRef child = space.trie.FirstChild(node); child.valid() && continuations.size() < kMaxContinuations;
         child = space.trie.NextSibling(child)) {
      const auto info = space.trie.Get(child);
      if (info.has_value()) continuations.emplace_back(space.trie.FirstOfRun(*info).key, info->run.index);
    }
  }
  uint64_t longest = 0;
  bool any = false;
  const uint64_t bytes = uint64_t{space.facts.block_tokens} * sizeof(int32_t);
  for (const auto& [key, index] : continuations) {
    // The tokens stand right behind the head's prefix, whatever follows them; a wrong byte here only misplaces a hint.
    const auto ids = state.cache->GetAndWait({format::MakeRecordKey(format::RecordKind::kBlock, key)},
                                             format::kHeadPrefixBytes + bytes * index, bytes);
    if (!ids.ok()) continue;
    std::vector<int32_t> tokens;
    base::ByteReader in(*ids);
    for (uint32_t i = 0; i < space.facts.block_tokens; ++i) {
      uint32_t token = 0;
      in.Read(&token);
      tokens.push_back(static_cast<int32_t>(token));
    }
    const uint64_t equal = trie::FirstDifference(query, tokens);
    if (equal == query.size()) return kNoPosition;
    longest = std::max(longest, equal);
    any = true;
  }
  return any ? first + longest : kNoPosition;
}

absl::StatusOr<uint64_t> Agree(std::span<Match* const> matches) {
  if (matches.empty()) return base::InvalidArgument("count", "0 matches");
  for (const Match* match : matches) {
    if (match->state()->prompt != matches[0]->state()->prompt) {
      return base::InvalidArgument("matches", "are of different prompts");
    }
  }
  // Each round lowers the bound or ends: a plan under a bound is never longer than the bound.
  uint64_t bound = kNoPosition;
  while (true) {
    uint64_t shortest = kNoPosition;
    for (Match* match : matches) {
      if (absl::Status status = match->Limit(std::min(bound, match->usable_limit())); !status.ok()) return status;
      shortest = std::min(shortest, match->plan().usable_tokens);
    }
    const bool all_equal = std::all_of(matches.begin(), matches.end(),
                                       [&](const Match* match) { return match->plan().usable_tokens == shortest; });
    if (all_equal) return shortest;
    bound = shortest;
  }
}

}  // namespace kvstrata::core::engine
