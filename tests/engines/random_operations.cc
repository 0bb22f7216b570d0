// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/random_operations.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/c_store.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_handles.h"
#include "tests/support/fake_identity.h"
#include "tests/support/fake_prefix_model.h"
#include "tests/support/temp_dir.h"

namespace kvstrata::test {
namespace {

constexpr size_t kMaxSessions = 3;
constexpr size_t kMaxHistory = 12;
constexpr int32_t kVocabulary = 50'000;

// One sequence that an engine is running.
struct Session {
  std::unique_ptr<FakeEngine> engine;
  WriterHandle writer;
  PrefixModel pending;         // handed over; stored for certain once a commit dropped nothing
  uint64_t writer_tokens = 0;  // that the writer has been told
  uint64_t tried_blocks = 0;   // whenever one more is complete, the writer stores all that are missing
};

class Runner {
 public:
  explicit Runner(const RandomRun& run);
  ~Runner();
  void Run();

 private:
  void Open();
  void Reopen();
  void Begin(Sequence prompt);
  void Extend(Session& session);
  void CutBack(Session& session);
  void Snapshot(Session& session);
  void Fork(Session& session);
  void Commit(Session& session, bool output_end);
  void Finish(size_t index);
  void LookUpOnly();
  void Trim();
  void Verify();
  void Drop();

  void Warm();

  Sequence MakePrompt();
  void AppendRandom(Sequence& sequence, uint64_t count);
  kvstrata_lookup_options MakeLookup(const Sequence& prompt);
  MatchHandle LookUp(Sequence& prompt, const kvstrata_lookup_options& options, kvstrata_match_info* info);
  void CheckInfo(const kvstrata_match_info& info, const Sequence& prompt, const kvstrata_lookup_options& options);
  void OpenWriter(Session& session, const kvstrata_match* match, const kvstrata_plan* restored, uint64_t start);
  void Prefill(Session& session, Sequence& prompt);
  std::vector<uint64_t> WantedPositions(Session& session, Sequence& prompt);
  void Advance(Session& session, uint64_t to);
  void CheckStatistics();
  // What was evicted or removed since the last call can be missing: nothing is certain any more.
  void NoticeLosses();
  void SetBaseline();
  kvstrata_stats Stats();
  Session& RandomSession() { return sessions_[rng_.Below(sessions_.size())]; }

  const RandomRun run_;
  const ModelLayout& layout_;
  Rng rng_;
  std::optional<TempDir> directory_;
  std::unique_ptr<c_store, void (*)(c_store*)> store_{nullptr, c_store_free};
  uint64_t opens_ = 0;
  CacheHandle cache_;
  NamespaceHandle space_;
  TestIdentity identity_;
  PrefixModel most_;   // a store can hold no more
  PrefixModel least_;  // it must hold this
  std::vector<Session> sessions_;
  std::vector<Sequence> history_;
  uint64_t losses_ = 0;
  uint64_t baseline_ = 0;  // held bytes less what came in and went out
  uint64_t restores_ = 0;
};

Runner::Runner(const RandomRun& run)
    : run_(run), layout_(*run.kind.layout), rng_(run.seed), most_(layout_), least_(layout_) {
  if (run_.store == StoreKind::kFile) directory_.emplace();
  if (run_.store == StoreKind::kUser) {
    store_.reset(c_store_create());
    REQUIRE(store_ != nullptr);
    if (rng_.Chance(50)) REQUIRE(c_store_start_thread(store_.get()) == 0);
  }
  Open();
}

Runner::~Runner() {
  sessions_.clear();
  space_.reset();
  cache_.reset();
}

void Runner::Open() {
  Error error;
  auto options = Sized<kvstrata_cache_options>();
  kvstrata_storage table{};
  if (directory_) options.path = directory_->path().c_str();
  if (store_ != nullptr) {
    table = c_store_table(store_.get());
    options.storage = &table;
  }
  options.device = run_.device != nullptr ? run_.device->table() : nullptr;
  options.capacity_bytes = run_.capacity_bytes;
  options.snapshot_bytes = run_.snapshot_bytes;
  kvstrata_status status = kvstrata_cache_open(&options, Out(cache_), &error);
  INFO(Describe(status, error));
  REQUIRE(status == KVSTRATA_OK);
  opens_ += 1;
  auto names = identity_.Options(layout_.handle.get());
  names.snapshot_policy = run_.snapshot_policy;
  names.snapshot_every_tokens = run_.snapshot_every_tokens;
  if (run_.compress && opens_ % 2 == 1) names.compress = KVSTRATA_COMPRESS_ALL;
  status = kvstrata_namespace_open(cache_.get(), &names, Out(space_), &error);
  INFO(Describe(status, error));
  REQUIRE(status == KVSTRATA_OK);
  SetBaseline();
  losses_ = 0;
}

kvstrata_stats Runner::Stats() {
  auto stats = Sized<kvstrata_stats>();
  REQUIRE(kvstrata_cache_stats(cache_.get(), &stats, nullptr) == KVSTRATA_OK);
  return stats;
}

void Runner::SetBaseline() {
  const kvstrata_stats stats = Stats();
  baseline_ = stats.held_bytes - (stats.bytes_in - stats.bytes_out);
}

void Runner::NoticeLosses() {
  const kvstrata_stats stats = Stats();
  const uint64_t losses =
      stats.blocks_evicted + stats.snapshots_evicted + stats.blocks_removed + stats.snapshots_removed;
  if (losses == losses_) return;
  losses_ = losses;
  least_.Clear();
  for (Session& session : sessions_) session.pending.Clear();
}

void Runner::CheckStatistics() {
  const kvstrata_stats stats = Stats();
  REQUIRE(stats.lookups == stats.hits + stats.misses);
  uint64_t reasons = 0;
  for (const uint64_t count : stats.reasons) reasons += count;
  REQUIRE(reasons == stats.lookups);
  REQUIRE(stats.usable_tokens <= stats.requested_tokens);
  REQUIRE(stats.compressed_to_bytes <= stats.compressed_from_bytes);
  if (!run_.compress) REQUIRE(stats.compressed_from_bytes == 0);
  REQUIRE(stats.matched_tokens <= stats.requested_tokens);
  REQUIRE(stats.held_bytes - baseline_ == stats.bytes_in - stats.bytes_out);
  REQUIRE(stats.held_bytes <= stats.capacity_bytes);
  REQUIRE(stats.capacity_bytes == run_.capacity_bytes);
  REQUIRE(stats.held_row_bytes + stats.held_snapshot_bytes <= stats.held_bytes);
  REQUIRE(stats.held_snapshot_bytes <= stats.snapshot_capacity_bytes);
  REQUIRE(stats.staging_bytes <= stats.staging_capacity_bytes);
  REQUIRE(stats.reads_corrupt + stats.reads_foreign + stats.reads_stale + stats.reads_failed + stats.reads_timeout ==
          0);
  REQUIRE(stats.stuck_staging_bytes == 0);
}

void Runner::Reopen() {
  Error error;
  while (!sessions_.empty() && rng_.Chance(70)) Finish(sessions_.size() - 1);
  auto info = Sized<kvstrata_close_info>();
  REQUIRE(kvstrata_cache_close(cache_.get(), 0, &info, &error) == KVSTRATA_OK);
  CHECK(kvstrata_cache_close(cache_.get(), 0, nullptr, &error) == KVSTRATA_OK);
  for (Session& session : sessions_) {
    CHECK(kvstrata_writer_snapshot(session.writer.get(), nullptr) == KVSTRATA_E_INVALID_STATE);
  }
  sessions_.clear();
  if (info.dropped_blocks + info.dropped_snapshots != 0) least_.Clear();
  if (rng_.Chance(50)) {
    cache_.reset();
    space_.reset();
  } else {
    space_.reset();
    cache_.reset();
  }
  if (store_ != nullptr) CHECK(c_store_count(store_.get()).destroyed == opens_);
  if (run_.store == StoreKind::kMemory) {
    most_.Clear();
    least_.Clear();
  }
  Open();
}

void Runner::AppendRandom(Sequence& sequence, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const auto token = static_cast<int32_t>(rng_.Below(kVocabulary));
    if (run_.extra_keys && rng_.Below(100) == 0) {
      const SequenceKey key{0, static_cast<uint32_t>(rng_.Below(3)), std::string(rng_.Below(40), 'k')};
      sequence.Append(token, &key);
    } else {
      sequence.Append(token);
    }
  }
}

// Shares a prefix with an older sequence: all of it, up to a block boundary, or up to anywhere.
Sequence Runner::MakePrompt() {
  Sequence prompt;
  const uint64_t room = run_.max_tokens - run_.max_step;
  if (!history_.empty() && rng_.Chance(85)) {
    const Sequence& older = history_[rng_.Below(history_.size())];
    uint64_t share = std::min(older.size(), room);
    if (rng_.Chance(50)) share = rng_.Below(share + 1);
    if (rng_.Chance(30)) share -= share % layout_.info.block_tokens;
    prompt.AppendPrefixOf(older, share);
  }
  const uint64_t longest = std::max<uint64_t>(room, prompt.size());
  uint64_t length = rng_.Between(1, longest);
  if (rng_.Chance(20)) length = std::min(longest, length / layout_.info.block_tokens * layout_.info.block_tokens + 1);
  if (history_.empty()) length = longest;  // the first one gives the others something to share
  if (length > prompt.size()) AppendRandom(prompt, length - prompt.size());
  return prompt;
}

kvstrata_lookup_options Runner::MakeLookup(const Sequence& prompt) {
  auto options = Sized<kvstrata_lookup_options>();
  options.restart_multiple = run_.kind.restart_multiple;
  options.allowed_modes = static_cast<uint32_t>(rng_.Next()) & run_.allowed_modes;
  if (rng_.Chance(50)) options.allowed_modes = run_.allowed_modes;
  if (layout_.has_rows && rng_.Chance(25)) options.held_tokens = rng_.Below(prompt.size() + 1);
  if (rng_.Chance(10)) options.min_gain_tokens = rng_.Below(layout_.info.block_tokens * 2);
  if (rng_.Chance(15)) options.flags = KVSTRATA_LOOKUP_NO_LEASE;
  return options;
}

void Runner::CheckInfo(const kvstrata_match_info& info, const Sequence& prompt,
                       const kvstrata_lookup_options& options) {
  const Expectation most = most_.Expect(prompt, options);
  const Expectation least = least_.Expect(prompt, options);
  const uint64_t multiple = std::max<uint64_t>(1, options.restart_multiple);
  CAPTURE(prompt.size(), options.held_tokens, options.allowed_modes, options.min_gain_tokens, info.mode, info.reason,
          info.matched_tokens, info.usable_tokens, info.replay_from, info.snapshot_position, most.usable, least.usable);
  REQUIRE(info.prompt_tokens == prompt.size());
  REQUIRE(info.matched_tokens <= most.matched);
  REQUIRE(info.matched_tokens >= least.matched);
  REQUIRE(info.replay_from <= most.replay_from);
  REQUIRE(info.replay_from >= least.replay_from);
  if (most.usable == least.usable && most.replay_from == least.replay_from) REQUIRE(info.usable_tokens == most.usable);
  REQUIRE(info.reused_tokens + info.replayed_tokens + info.recomputed_tokens == info.prompt_tokens);
  REQUIRE(info.reused_tokens == info.replay_from);
  REQUIRE(info.replayed_tokens == info.usable_tokens - info.replay_from);
  REQUIRE(info.usable_tokens % multiple == 0);
  REQUIRE(info.replay_from % multiple == 0);
  REQUIRE(info.held_tokens == options.held_tokens);
  REQUIRE((info.mode == KVSTRATA_MODE_NONE) == (info.usable_tokens == 0));
  if (info.mode == KVSTRATA_MODE_NONE) {
    REQUIRE(info.reason != KVSTRATA_REASON_NONE);
    REQUIRE(info.bytes_to_read == 0);
    return;
  }
  REQUIRE(info.usable_tokens < prompt.size());
  REQUIRE(info.write_floor == info.usable_tokens);
  if (info.mode == KVSTRATA_MODE_SNAPSHOT) REQUIRE(info.snapshot_position == info.usable_tokens);
  if (info.mode == KVSTRATA_MODE_SNAPSHOT_REPLAY) REQUIRE(info.snapshot_position == info.replay_from);
  if (info.mode == KVSTRATA_MODE_FULL_REPLAY) REQUIRE(info.snapshot_position == UINT64_MAX);
}

MatchHandle Runner::LookUp(Sequence& prompt, const kvstrata_lookup_options& options, kvstrata_match_info* info) {
  NoticeLosses();
  Error error;
  MatchHandle match;
  const kvstrata_status status = kvstrata_lookup(space_.get(), prompt.All(), &options, Out(match), &error);
  INFO(Describe(status, error));
  REQUIRE(status == KVSTRATA_OK);
  *info = Sized<kvstrata_match_info>();
  REQUIRE(kvstrata_match_get_info(match.get(), info, &error) == KVSTRATA_OK);
  NoticeLosses();
  CheckInfo(*info, prompt, options);
  return match;
}

void Runner::LookUpOnly() {
  Sequence prompt = MakePrompt();
  kvstrata_lookup_options options = MakeLookup(prompt);
  const kvstrata_stats before = Stats();
  if (rng_.Chance(70)) options.flags = KVSTRATA_LOOKUP_PEEK;
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = LookUp(prompt, options, &info);
  const kvstrata_stats after = Stats();
  const bool peek = options.flags == KVSTRATA_LOOKUP_PEEK;
  CHECK(after.peeks - before.peeks == (peek ? 1 : 0));
  CHECK(after.lookups - before.lookups == (peek ? 0 : 1));
  if (options.flags != 0) CHECK(info.leased == 0);
}

void Runner::OpenWriter(Session& session, const kvstrata_match* match, const kvstrata_plan* restored, uint64_t start) {
  Error error;
  auto options = Sized<kvstrata_writer_options>();
  options.restart_multiple = run_.kind.restart_multiple;
  options.start_tokens = start;
  options.plan = restored;
  const kvstrata_status status = kvstrata_writer_open(space_.get(), match, &options, Out(session.writer), &error);
  INFO(Describe(status, error));
  REQUIRE(status == KVSTRATA_OK);
  session.writer_tokens = session.engine->sequence().size();
}

void Runner::Begin(Sequence prompt) {
  const kvstrata_lookup_options options = MakeLookup(prompt);
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = LookUp(prompt, options, &info);
  Session session{
      std::make_unique<FakeEngine>(run_.kind, run_.max_tokens, run_.device, rng_.Next()), {}, PrefixModel(layout_)};
  FakeEngine& engine = *session.engine;
  PlanHandle restored;
  if (info.mode != KVSTRATA_MODE_NONE && rng_.Chance(95)) {
    RestoreOptions restore;
    restore.early_release = rng_.Chance(50);
    restore.by_layer = rng_.Chance(50);
    restore.hole_percent = rng_.Chance(40) ? run_.hole_percent : 0;
    auto result = Sized<kvstrata_plan_result>();
    const std::string fault = engine.Restore(match.get(), prompt, restore, &result, &restored);
    INFO(fault);
    REQUIRE(fault.empty());
    const kvstrata_stats stats = Stats();
    CAPTURE(info.mode, info.usable_tokens, info.snapshot_position, result.usable_tokens, result.reason,
            restore.early_release, restore.by_layer, stats.reads_absent, stats.reads_corrupt, stats.reads_foreign,
            stats.reads_stale, stats.reads_failed, stats.reads_timeout);
    if (info.leased == 1) REQUIRE(result.state == KVSTRATA_PLAN_COMPLETE);
    restores_ += 1;
  } else if (options.held_tokens != 0) {
    const uint64_t held = std::min(options.held_tokens, prompt.size() - 1);
    engine.sequence().AppendPrefixOf(prompt, held);
    engine.Compute(held);
  }
  const uint64_t start = engine.computed();
  // Three ways to say where the writer starts: the plan, with or without its match; a match and a length; a match alone
  // that has kept its promise. Without any a writer starts empty.
  if (restored != nullptr && rng_.Chance(50)) {
    OpenWriter(session, rng_.Chance(50) ? match.get() : nullptr, restored.get(), 0);
  } else {
    const bool implied = start == info.usable_tokens && rng_.Chance(50);
    OpenWriter(session, start == 0 ? nullptr : match.get(), nullptr, implied ? 0 : start);
  }
  restored.reset();
  if (rng_.Chance(70)) match.reset();
  Prefill(session, prompt);
  sessions_.push_back(std::move(session));
}

std::vector<uint64_t> Runner::WantedPositions(Session& session, Sequence& prompt) {
  Error error;
  uint64_t count = 0;
  kvstrata_status status =
      kvstrata_writer_snapshot_positions(session.writer.get(), prompt.All(), nullptr, 0, &count, &error);
  REQUIRE(status == (count == 0 ? KVSTRATA_OK : KVSTRATA_E_BUFFER_TOO_SMALL));
  std::vector<uint64_t> positions(count);
  status =
      kvstrata_writer_snapshot_positions(session.writer.get(), prompt.All(), positions.data(), count, &count, &error);
  REQUIRE(status == KVSTRATA_OK);
  REQUIRE(count == positions.size());
  // One at the computed length itself is wanted where a full replay has made the state anew.
  uint64_t last = std::max<uint64_t>(session.engine->computed(), 1) - 1;
  for (const uint64_t position : positions) {
    REQUIRE(position > last);
    REQUIRE(position < prompt.size());
    REQUIRE(position % run_.kind.restart_multiple == 0);
    last = position;
  }
  return positions;
}

void Runner::Prefill(Session& session, Sequence& prompt) {
  FakeEngine& engine = *session.engine;
  const std::string fault = engine.SetSources(session.writer.get());
  INFO(fault);
  REQUIRE(fault.empty());
  const std::vector<uint64_t> positions = WantedPositions(session, prompt);
  std::vector<uint64_t> cuts = positions;
  for (uint64_t extra = rng_.Below(3); extra > 0; --extra)
    cuts.push_back(rng_.Between(engine.computed(), prompt.size()));
  cuts.push_back(prompt.size());
  std::sort(cuts.begin(), cuts.end());
  engine.sequence() = prompt;
  for (const uint64_t cut : cuts) {
    if (cut < engine.computed()) continue;
    Advance(session, cut);
    if (std::binary_search(positions.begin(), positions.end(), cut)) session.pending.AddSnapshot(prompt, cut);
  }
}

void Runner::Advance(Session& session, uint64_t to) {
  FakeEngine& engine = *session.engine;
  const std::string fault = engine.Advance(session.writer.get(), session.writer_tokens, to);
  INFO(fault);
  REQUIRE(fault.empty());
  session.writer_tokens = engine.sequence().size();
  NoticeLosses();
  most_.AddBlocks(engine.sequence(), to);
  const uint64_t blocks = to / layout_.info.block_tokens;
  if (blocks > session.tried_blocks) {
    session.tried_blocks = blocks;
    session.pending.AddBlocks(engine.sequence(), to);
  }
  if (to != 0 && to % run_.kind.restart_multiple == 0) most_.AddSnapshot(engine.sequence(), to);
}

void Runner::Extend(Session& session) {
  FakeEngine& engine = *session.engine;
  for (uint64_t steps = rng_.Between(1, 4); steps > 0; --steps) {
    const uint64_t room = run_.max_tokens - engine.sequence().size();
    if (room == 0) return;
    const uint64_t count = rng_.Chance(60) ? 1 : rng_.Between(1, run_.max_step);
    AppendRandom(engine.sequence(), std::min(room, count));
    // Tokens may be known before they are computed.
    const uint64_t computed = engine.computed();
    Advance(session, rng_.Chance(85) ? engine.sequence().size() : rng_.Between(computed, engine.sequence().size()));
  }
}

void Runner::CutBack(Session& session) {
  FakeEngine& engine = *session.engine;
  const uint64_t size = engine.sequence().size();
  const uint64_t length = rng_.Chance(80) ? size - std::min(size, rng_.Below(6)) : rng_.Below(size + 1);
  engine.Truncate(length);
  REQUIRE(kvstrata_writer_truncate(session.writer.get(), length, nullptr) == KVSTRATA_OK);
  session.writer_tokens = length;
  session.tried_blocks = std::min(session.tried_blocks, length / layout_.info.block_tokens);
  const std::string fault = engine.SetSources(session.writer.get());
  INFO(fault);
  REQUIRE(fault.empty());
}

void Runner::Snapshot(Session& session) {
  Error error;
  const FakeEngine& engine = *session.engine;
  const uint64_t position = engine.computed();
  const kvstrata_status status = kvstrata_writer_snapshot(session.writer.get(), &error);
  INFO(Describe(status, error));
  if (position == 0 || position % run_.kind.restart_multiple != 0) {
    REQUIRE(status == KVSTRATA_E_INVALID_STATE);
    return;
  }
  REQUIRE(status == KVSTRATA_OK);
  NoticeLosses();
  for (PrefixModel* model : {&most_, &session.pending}) model->AddSnapshot(engine.sequence(), position);
}

void Runner::Fork(Session& session) {
  Error error;
  Session fork{
      session.engine->Fork(rng_.Next()), {}, PrefixModel(layout_), session.writer_tokens, session.tried_blocks};
  REQUIRE(kvstrata_writer_fork(session.writer.get(), Out(fork.writer), &error) == KVSTRATA_OK);
  // Both go on from here, each its own way.
  Extend(fork);
  if (sessions_.size() < kMaxSessions) {
    sessions_.push_back(std::move(fork));
  } else {
    Commit(fork, rng_.Chance(50));
  }
}

void Runner::Commit(Session& session, bool output_end) {
  Error error;
  const FakeEngine& engine = *session.engine;
  const uint32_t policy = run_.snapshot_policy == 0 ? uint32_t{KVSTRATA_SNAPSHOT_OUTPUT_END} : run_.snapshot_policy;
  uint32_t flags = output_end ? KVSTRATA_COMMIT_OUTPUT_END : 0;
  const bool durable = run_.store != StoreKind::kMemory && rng_.Chance(30);
  if (durable) flags |= KVSTRATA_COMMIT_DURABLE;
  if (run_.store == StoreKind::kMemory && rng_.Chance(5)) {
    CHECK(kvstrata_writer_commit(session.writer.get(), KVSTRATA_COMMIT_DURABLE, 0, nullptr, nullptr) ==
          KVSTRATA_E_UNSUPPORTED);
  }
  auto info = Sized<kvstrata_commit_info>();
  const kvstrata_status status = kvstrata_writer_commit(session.writer.get(), flags, 0, &info, &error);
  INFO(Describe(status, error));
  REQUIRE(status == KVSTRATA_OK);
  CHECK(info.sequence_tokens == engine.sequence().size());
  CHECK(info.computed_tokens == engine.computed());
  CHECK((info.durable == 1) == durable);
  NoticeLosses();
  const uint64_t end = engine.computed();
  if (output_end && end != 0 && end % run_.kind.restart_multiple == 0 && (policy & KVSTRATA_SNAPSHOT_OUTPUT_END) != 0) {
    most_.AddSnapshot(engine.sequence(), end);
    session.pending.AddSnapshot(engine.sequence(), end);
  }
  if (info.blocks_dropped + info.snapshots_dropped != 0) return;
  least_.Merge(session.pending);
}

void Runner::Finish(size_t index) {
  Commit(sessions_[index], true);
  const Sequence& sequence = sessions_[index].engine->sequence();
  if (history_.size() < kMaxHistory) {
    history_.push_back(sequence);
  } else {
    history_[rng_.Below(history_.size())] = sequence;
  }
  sessions_.erase(sessions_.begin() + static_cast<int64_t>(index));
}

void Runner::Trim() {
  Error error;
  const kvstrata_stats stats = Stats();
  uint64_t held = 0;
  const uint64_t target = rng_.Chance(20) ? 0 : rng_.Below(stats.held_bytes + 1);
  REQUIRE(kvstrata_cache_trim(cache_.get(), target, &held, &error) == KVSTRATA_OK);
  CHECK(held <= stats.held_bytes);
  NoticeLosses();
}

void Runner::Verify() {
  Error error;
  for (Session& session : sessions_) Commit(session, false);
  auto info = Sized<kvstrata_verify_info>();
  REQUIRE(kvstrata_cache_verify(cache_.get(), nullptr, nullptr, &info, &error) == KVSTRATA_OK);
  const kvstrata_stats stats = Stats();
  CHECK(info.corrupt + info.removed + info.unreadable == 0);
  // Up to 64 blocks lie in one record.
  CHECK(info.records >= (stats.held_blocks + 63) / 64 + stats.held_snapshots);
}

void Runner::Drop() {
  Error error;
  REQUIRE(kvstrata_namespace_drop(space_.get(), &error) == KVSTRATA_OK);
  most_.Clear();
  least_.Clear();
  for (Session& session : sessions_) session.pending.Clear();
  auto info = Sized<kvstrata_namespace_info>();
  REQUIRE(kvstrata_namespace_get_info(space_.get(), &info, &error) == KVSTRATA_OK);
  CHECK(info.blocks == 0);
  CHECK(info.snapshots == 0);
  NoticeLosses();
  SetBaseline();
}

// Whatever the seed says, each run restores something.
void Runner::Warm() {
  Begin(MakePrompt());
  Finish(0);
  for (uint64_t tries = 0; restores_ == 0 && tries < 20; ++tries) {
    Sequence prompt = history_.front();
    AppendRandom(prompt, 1);
    Begin(std::move(prompt));
    Finish(0);
  }
  REQUIRE(restores_ > 0);
}

void Runner::Run() {
  Warm();
  for (uint64_t operation = 0; operation < run_.operations; ++operation) {
    const uint64_t choice = rng_.Below(100);
    CAPTURE(run_.kind.name, run_.seed, operation, choice);
    if (sessions_.empty() || choice < 32) {
      if (sessions_.size() == kMaxSessions) Finish(rng_.Below(kMaxSessions));
      Begin(MakePrompt());
    } else if (choice < 52) {
      Extend(RandomSession());
    } else if (choice < 60) {
      CutBack(RandomSession());
    } else if (choice < 66) {
      Snapshot(RandomSession());
    } else if (choice < 71) {
      Fork(RandomSession());
    } else if (choice < 75) {
      Commit(RandomSession(), rng_.Chance(30));
    } else if (choice < 84) {
      Finish(rng_.Below(sessions_.size()));
    } else if (choice < 90) {
      LookUpOnly();
    } else if (choice < 92) {
      Trim();
    } else if (choice < 94) {
      Verify();
    } else if (choice < 95) {
      Drop();
    } else {
      Reopen();
    }
    CheckStatistics();
  }
}

}  // namespace

void RunRandomOperations(const RandomRun& run) {
  REQUIRE(run.kind.layout != nullptr);
  Runner runner(run);
  runner.Run();
}

}  // namespace kvstrata::test
