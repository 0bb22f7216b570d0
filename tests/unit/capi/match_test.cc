// SPDX-License-Identifier: Apache-2.0
// Leases under eviction, agreement between ranks, limits, the first difference, and hits that do not pay.
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/fake_wait.h"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

// A model whose blocks are small (1,024 bytes of rows for 128 tokens), for long prompts.
void UseSmallRows(World* world) {
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_gqa(1, 1, 4, 1, 128, Out(layout), nullptr) == KVSTRATA_OK);
  world->kind.layout = ModelLayout::Read(std::move(layout));
  world->kind.geometry = [](const kvstrata_stream&, uint64_t, Rng&) { return Geometry{}; };
}

void Trim(const World& world, uint64_t target) {
  uint64_t held = 0;
  REQUIRE(kvstrata_cache_trim(world.cache.get(), target, &held, nullptr) == KVSTRATA_OK);
}

}  // namespace

TEST_CASE("a lease keeps what a lookup promised, whatever is evicted", "[capi]") {
  World world;
  world.Open();
  const Sequence a = RandomSequence(1, 100);
  const Sequence b = RandomSequence(2, 100);
  world.StoreSequence(a);
  world.StoreSequence(b);
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(a), &info);
  CHECK(info.leased == 1);
  CHECK(kvstrata_match_renew(match.get(), 100'000, nullptr) == KVSTRATA_OK);
  Trim(world, 0);
  CHECK(world.Stats().held_blocks == 3);
  CHECK(world.Stats().held_snapshots == 1);
  CHECK(world.Restore(match.get(), Longer(a)) == 100);
  auto other = Sized<kvstrata_match_info>();
  world.LookUp(Longer(b), &other);
  CHECK(other.usable_tokens == 0);
  // A plan keeps the lease of a match that has gone.
  PlanHandle plan;
  REQUIRE(kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr) == KVSTRATA_OK);
  match.reset();
  Trim(world, 0);
  CHECK(world.Stats().held_blocks == 3);
  plan.reset();
  // The thread that ran the restore above may let go of its part a moment later.
  REQUIRE(WaitFor([&] { return world.Stats().leased_bytes == 0; }));
  Trim(world, 0);
  CHECK(world.Stats().held_blocks == 0);
}

TEST_CASE("without a lease an evicted prefix shortens the restore, never corrupts it", "[capi]") {
  World world;
  world.KeepBlocksApart();
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  auto options = AllModes();
  options.flags = KVSTRATA_LOOKUP_NO_LEASE;
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(stored), &info, options);
  CHECK(info.leased == 0);
  CHECK(kvstrata_match_renew(match.get(), 0, nullptr) == KVSTRATA_E_INVALID_STATE);
  const kvstrata_stats stats = world.Stats();
  Trim(world, stats.held_bytes - stats.held_snapshot_bytes - stats.held_row_bytes / 3);
  const auto engine = world.Engine();
  auto result = Sized<kvstrata_plan_result>();
  const std::string fault = engine->Restore(match.get(), Longer(stored), RestoreOptions{}, &result);
  INFO(fault);
  REQUIRE(fault.empty());
  CHECK(result.state == KVSTRATA_PLAN_SHORTENED);
  CHECK(result.reason == KVSTRATA_REASON_EVICTED);
  CHECK(result.usable_tokens < info.usable_tokens);
  CHECK(world.Stats().restores_shortened == 1);
}

TEST_CASE("leases do not raise the budget: past their bound a match is unleased and says so", "[capi]") {
  World world;
  world.options.lease_bytes = 1;
  world.Open();
  world.StoreSequence(RandomSequence(1, 100));
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(Longer(RandomSequence(1, 100)), &info);
  CHECK(info.usable_tokens == 100);
  CHECK(info.leased == 0);
  CHECK(world.Stats().unleased_matches == 1);
  CHECK(world.Stats().leased_bytes == 0);
}

TEST_CASE("storing a large sequence does not evict the one that is about to be loaded", "[capi]") {
  World world;
  world.options.capacity_bytes = 300 << 10;
  world.Open();
  const Sequence a = RandomSequence(1, 100);
  world.StoreSequence(a);
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(a), &info);
  REQUIRE(info.leased == 1);
  for (uint64_t i = 2; i < 12; ++i) world.StoreSequence(RandomSequence(i, 300));
  CHECK(world.Stats().blocks_evicted > 0);
  CHECK(world.Restore(match.get(), Longer(a)) == 100);
}

TEST_CASE("a limit plans anew, and never beyond it", "[capi]") {
  World world;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored.Prefix(100));
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(stored), &info);
  CHECK(info.usable_tokens == 200);
  REQUIRE(kvstrata_match_limit(match.get(), 199, nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_match_get_info(match.get(), &info, nullptr) == KVSTRATA_OK);
  CHECK(info.usable_tokens == 100);
  CHECK(info.mode == KVSTRATA_MODE_SNAPSHOT);
  CHECK(world.Restore(match.get(), Longer(stored)) == 100);
  REQUIRE(kvstrata_match_limit(match.get(), 99, nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_match_get_info(match.get(), &info, nullptr) == KVSTRATA_OK);
  CHECK(info.usable_tokens == 0);
  CHECK(info.mode == KVSTRATA_MODE_NONE);
}

TEST_CASE("ranks agree on the largest length that each of them reaches", "[capi]") {
  const Sequence prompt = RandomSequence(1, 400);
  std::vector<std::unique_ptr<World>> ranks;
  std::vector<MatchHandle> matches;
  std::vector<kvstrata_match*> raw;
  for (const uint64_t stored : {300u, 300u, 180u}) {
    ranks.push_back(std::make_unique<World>());
    ranks.back()->Open();
    ranks.back()->StoreSequence(prompt.Prefix(100));
    ranks.back()->StoreSequence(prompt.Prefix(stored));
    auto info = Sized<kvstrata_match_info>();
    matches.push_back(ranks.back()->LookUp(prompt, &info));
    CHECK(info.usable_tokens == stored);
    raw.push_back(matches.back().get());
  }
  uint64_t usable = 0;
  REQUIRE(kvstrata_match_agree(raw.data(), raw.size(), &usable, nullptr) == KVSTRATA_OK);
  // The third has snapshots at 100 and 180, the others at 100 and 300: only 100 is common.
  CHECK(usable == 100);
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto info = Sized<kvstrata_match_info>();
    REQUIRE(kvstrata_match_get_info(raw[i], &info, nullptr) == KVSTRATA_OK);
    CHECK(info.usable_tokens == 100);
    CHECK(ranks[i]->Restore(raw[i], prompt) == 100);
  }
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle other = ranks[0]->LookUp(RandomSequence(5, 400), &info);
  kvstrata_match* const different[] = {raw[0], other.get()};
  CHECK(kvstrata_match_agree(different, 2, &usable, nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
}

// Two prompts that differ at token 6,883 of 7,106, as a chat template rendered anew makes them.
TEST_CASE("the first difference between two long prompts is told", "[capi]") {
  World world;
  UseSmallRows(&world);
  world.Open();
  const Sequence first = RandomSequence(1, 7106);
  world.StoreSequence(first);
  Sequence second = first.Prefix(6883);
  second.Append(first.token(6883) + 1);
  for (uint64_t i = 6884; i < 7106; ++i) second.Append(first.token(i));
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(second, &info);
  CHECK(info.matched_tokens == 6883 / 128 * 128);
  CHECK(info.usable_tokens == 6883 / 128 * 128);
  CHECK(info.reason == KVSTRATA_REASON_DIVERGED);
  uint64_t position = 0;
  REQUIRE(kvstrata_match_first_difference(match.get(), &position, nullptr) == KVSTRATA_OK);
  CHECK(position == 6883);
  // Nothing stored goes on where this one ends.
  match = world.LookUp(Longer(first.Prefix(55 * 128)), &info);
  REQUIRE(kvstrata_match_first_difference(match.get(), &position, nullptr) == KVSTRATA_OK);
  CHECK(position == UINT64_MAX);
  // The very first token differs.
  match = world.LookUp(RandomSequence(2, 300), &info);
  REQUIRE(kvstrata_match_first_difference(match.get(), &position, nullptr) == KVSTRATA_OK);
  CHECK(position == 0);
}

TEST_CASE("a hit that costs more than computing is refused", "[capi]") {
  World world;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  auto options = Sized<kvstrata_lookup_options>();
  options.prefill_tokens_per_second = 1e6;  // 201 tokens in 0.2 ms
  options.storage_bytes_per_second = 1000;  // tens of kilobytes in tens of seconds
  world.LookUp(Longer(stored), &info, options);
  CHECK(info.usable_tokens == 0);
  CHECK(info.reason == KVSTRATA_REASON_NOT_WORTH_IT);
  options.prefill_tokens_per_second = 1;
  options.storage_bytes_per_second = 1e9;
  world.LookUp(Longer(stored), &info, options);
  CHECK(info.usable_tokens == 200);
  CHECK(info.restore_seconds > 0);
  CHECK(info.restore_seconds < 1);
  CHECK(info.recompute_seconds > 0);
  options = Sized<kvstrata_lookup_options>();
  options.min_gain_tokens = 201;
  world.LookUp(Longer(stored), &info, options);
  CHECK(info.reason == KVSTRATA_REASON_MIN_GAIN);
  options.min_gain_tokens = 0;
  options.held_tokens = 200;
  world.LookUp(Longer(stored), &info, options);
  CHECK(info.reason == KVSTRATA_REASON_HELD);
}

TEST_CASE("modes: what is not allowed is not given", "[capi]") {
  World world;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);  // rows to 192
  world.StoreSequence(stored.Prefix(100));
  {
    // Rows alone beyond 100.
    const auto engine = world.Engine();
    engine->sequence() = stored;
    WriterHandle writer;
    REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
    REQUIRE(engine->Advance(writer.get(), 0, stored.size()).empty());
    REQUIRE(kvstrata_writer_commit(writer.get(), 0, 0, nullptr, nullptr) == KVSTRATA_OK);
  }
  const auto look_up = [&](uint32_t modes) {
    auto options = Sized<kvstrata_lookup_options>();
    options.allowed_modes = modes;
    auto info = Sized<kvstrata_match_info>();
    world.LookUp(Longer(stored), &info, options);
    return info;
  };
  kvstrata_match_info info = look_up(0);
  CHECK(info.mode == KVSTRATA_MODE_SNAPSHOT);
  CHECK(info.usable_tokens == 100);
  CHECK(info.replay_from == 100);
  info = look_up(1u << KVSTRATA_MODE_SNAPSHOT_REPLAY);
  CHECK(info.mode == KVSTRATA_MODE_SNAPSHOT_REPLAY);
  CHECK(info.usable_tokens == 192);
  CHECK(info.replay_from == 100);
  CHECK(info.snapshot_position == 100);
  CHECK(info.write_floor == 192);
  // (8-1) * 3 = 21 tokens rebuild the windows.
  info = look_up(1u << KVSTRATA_MODE_FULL_REPLAY);
  CHECK(info.mode == KVSTRATA_MODE_FULL_REPLAY);
  CHECK(info.usable_tokens == 192);
  CHECK(info.replay_from == 171);
  CHECK(info.snapshot_position == UINT64_MAX);
  // All allowed: the one that runs the fewest tokens.
  info = look_up(kAllExactModes);
  CHECK(info.replay_from == 171);
  // The layout is not trained for the inexact one.
  info = look_up(1u << KVSTRATA_MODE_BOUNDED_REPLAY);
  CHECK(info.mode == KVSTRATA_MODE_NONE);
  CHECK(info.reason == KVSTRATA_REASON_MODE_NOT_ALLOWED);
}

}  // namespace kvstrata::test
