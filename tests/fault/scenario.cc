// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/scenario.h"

#include <string>

#include "tests/support/catch.hpp"
#include "tests/support/fake_handles.h"
#include "tests/support/fake_identity.h"
#include "tests/support/fake_random.h"

namespace kvstrata::test {
namespace {

constexpr uint64_t kTokens = 210;        // six blocks of 32 and a bit
constexpr uint64_t kShared = 100;        // of both sequences
constexpr uint64_t kRoom = 260;          // tokens of one engine
constexpr uint64_t kCapacity = 2 << 20;  // bytes
constexpr uint64_t kShortMs = 2'000;     // nothing waits longer for a store that failed

Sequence MakeSequence(uint64_t seed) {
  Sequence sequence;
  Rng shared(1);
  for (uint64_t i = 0; i < kShared; ++i) sequence.Append(static_cast<int32_t>(shared.Below(1000)));
  Rng own(seed);
  while (sequence.size() < kTokens) sequence.Append(static_cast<int32_t>(own.Below(1000)));
  return sequence;
}

class Player {
 public:
  explicit Player(const Scenario& scenario) : scenario_(scenario) {}
  ~Player() { Close(); }

  bool Open() {
    auto options = Sized<kvstrata_cache_options>();
    options.storage = &scenario_.storage;
    options.allocator = scenario_.allocator;
    options.device = scenario_.device != nullptr ? scenario_.device->table() : nullptr;
    options.capacity_bytes = kCapacity;
    options.io_timeout_ms = kShortMs;
    if (!Note(kvstrata_cache_open(&options, Out(cache_), nullptr))) return false;
    const auto names = identity_.Options(scenario_.kind.layout->handle.get());
    return Note(kvstrata_namespace_open(cache_.get(), &names, Out(space_), nullptr));
  }

  void Close() {
    if (cache_ == nullptr) return;
    Note(kvstrata_cache_close(cache_.get(), kShortMs, nullptr, nullptr));
    space_.reset();
    cache_.reset();
  }

  void Store(const Sequence& sequence) {
    FakeEngine engine(scenario_.kind, kRoom, scenario_.device, 7);
    engine.sequence() = sequence;
    WriterHandle writer;
    if (!Note(kvstrata_writer_open(space_.get(), nullptr, nullptr, Out(writer), nullptr))) return;
    Note(kvstrata_writer_snapshot_positions(writer.get(), engine.sequence().All(), nullptr, 0, &ignored_, nullptr));
    uint64_t told = 0;
    for (const uint64_t to : {uint64_t{64}, uint64_t{200}, kTokens}) {
      const std::string fault = engine.Advance(writer.get(), told, to);
      if (!fault.empty()) {
        result_.failed_calls += 1;
        return;
      }
      told = engine.sequence().size();
      if (to == 64) Note(kvstrata_writer_snapshot(writer.get(), nullptr));
    }
    auto info = Sized<kvstrata_commit_info>();
    if (!Note(kvstrata_writer_commit(writer.get(), KVSTRATA_COMMIT_DURABLE | KVSTRATA_COMMIT_OUTPUT_END, kShortMs,
                                     &info, nullptr))) {
      return;
    }
    result_.dropped += info.blocks_dropped + info.snapshots_dropped;
  }

  uint64_t Restore(const Sequence& sequence, uint32_t modes, bool early_release) {
    Sequence prompt = sequence;
    prompt.Append(5);
    auto options = Sized<kvstrata_lookup_options>();
    options.allowed_modes = modes;
    MatchHandle match;
    if (!Note(kvstrata_lookup(space_.get(), prompt.All(), &options, Out(match), nullptr))) return 0;
    auto info = Sized<kvstrata_match_info>();
    REQUIRE(kvstrata_match_get_info(match.get(), &info, nullptr) == KVSTRATA_OK);
    if (info.mode == KVSTRATA_MODE_NONE) return 0;
    FakeEngine engine(scenario_.kind, kRoom, scenario_.device, 8);
    RestoreOptions restore;
    restore.early_release = early_release;
    restore.expect_faults = true;
    auto result = Sized<kvstrata_plan_result>();
    const std::string fault = engine.Restore(match.get(), prompt, restore, &result);
    INFO(fault);
    // A plan may fail to be made or to begin; it may not give wrong bytes.
    const bool refused = fault.starts_with("plan_");
    REQUIRE((fault.empty() || refused));
    if (refused) {
      result_.failed_calls += 1;
      return 0;
    }
    if (result.state != KVSTRATA_PLAN_COMPLETE) result_.shortened += 1;
    result_.restored_tokens += result.usable_tokens;
    return result.usable_tokens;
  }

  void RestoreBoth(const Sequence& a, const Sequence& b) {
    const uint32_t all =
        1u << KVSTRATA_MODE_SNAPSHOT | 1u << KVSTRATA_MODE_SNAPSHOT_REPLAY | 1u << KVSTRATA_MODE_FULL_REPLAY;
    Restore(a, all, false);
    Restore(b, 0, true);
    Restore(b, all, true);
  }

  void Trim() {
    auto stats = Sized<kvstrata_stats>();
    if (kvstrata_cache_stats(cache_.get(), &stats, nullptr) == KVSTRATA_OK) CHECK(stats.leased_bytes == 0);
    uint64_t held = 0;
    Note(kvstrata_cache_trim(cache_.get(), stats.held_bytes / 2, &held, nullptr));
  }

  void Drop(const Sequence& a) {
    if (!Note(kvstrata_namespace_drop(space_.get(), nullptr))) return;
    result_.forgotten = true;
    CHECK(Restore(a, 0, false) == 0);
  }

  void CheckStatistics() {
    auto stats = Sized<kvstrata_stats>();
    if (!Note(kvstrata_cache_stats(cache_.get(), &stats, nullptr))) return;
    result_.skipped = stats.skipped_corrupt;
    CHECK(stats.lookups == stats.hits + stats.misses);
    CHECK(stats.held_bytes <= stats.capacity_bytes);
    CHECK(stats.held_row_bytes + stats.held_snapshot_bytes <= stats.held_bytes);
  }

  ScenarioResult& result() { return result_; }

 private:
  bool Note(kvstrata_status status) {
    if (status == KVSTRATA_OK || status == KVSTRATA_E_BUFFER_TOO_SMALL) return true;
    CHECK(status != KVSTRATA_E_INTERNAL);
    CHECK(status != KVSTRATA_E_INVALID_ARGUMENT);
    result_.failed_calls += 1;
    return false;
  }

  const Scenario& scenario_;
  TestIdentity identity_;
  CacheHandle cache_;
  NamespaceHandle space_;
  ScenarioResult result_;
  uint64_t ignored_ = 0;
};

}  // namespace

ScenarioResult RunScenario(const Scenario& scenario) {
  const Sequence a = MakeSequence(2);
  const Sequence b = MakeSequence(3);
  Player player(scenario);
  if (!player.Open()) return player.result();
  player.Store(a);
  player.Store(b);
  player.CheckStatistics();
  player.Close();
  if (!player.Open()) return player.result();
  player.RestoreBoth(a, b);
  player.Trim();
  player.RestoreBoth(a, b);
  player.Store(b);
  player.RestoreBoth(a, b);
  player.CheckStatistics();
  if (scenario.drop) player.Drop(a);
  player.Close();
  return player.result();
}

uint64_t RestoreWhatIsThere(const Scenario& scenario) {
  Player player(scenario);
  REQUIRE(player.Open());
  player.RestoreBoth(MakeSequence(2), MakeSequence(3));
  CHECK(player.result().failed_calls == 0);
  CHECK(player.result().shortened == 0);
  return player.result().restored_tokens;
}

}  // namespace kvstrata::test
