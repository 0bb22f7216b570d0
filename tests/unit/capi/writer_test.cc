// SPDX-License-Identifier: Apache-2.0
// Where a writer begins: at a match's length, at a length of the caller's, or where a restore has ended.
#include <string>

#include "tests/support/catch.hpp"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

// A match without a lease, restored after everything behind `kept_bytes` of rows has been evicted.
struct Shortened {
  Shortened(World& world, const Sequence& stored, bool keep_some) : prompt(Longer(stored)), engine(world.Engine()) {
    world.StoreSequence(stored);
    auto options = AllModes();
    options.flags = KVSTRATA_LOOKUP_NO_LEASE;
    auto info = Sized<kvstrata_match_info>();
    match = world.LookUp(prompt, &info, options);
    REQUIRE(info.usable_tokens == stored.size());
    const kvstrata_stats stats = world.Stats();
    const uint64_t target = keep_some ? stats.held_bytes - stats.held_snapshot_bytes - stats.held_row_bytes / 3 : 0;
    uint64_t held = 0;
    REQUIRE(kvstrata_cache_trim(world.cache.get(), target, &held, nullptr) == KVSTRATA_OK);
    const std::string fault = engine->Restore(match.get(), prompt, RestoreOptions{}, &result, &plan);
    INFO(fault);
    REQUIRE(fault.empty());
    REQUIRE(result.state == KVSTRATA_PLAN_SHORTENED);
  }

  Sequence prompt;
  std::unique_ptr<FakeEngine> engine;
  MatchHandle match;
  PlanHandle plan;
  kvstrata_plan_result result{};
};

kvstrata_status OpenFrom(const World& world, const kvstrata_match* match, const kvstrata_plan* plan,
                         uint64_t start_tokens, WriterHandle* out, kvstrata_error* error) {
  auto options = Sized<kvstrata_writer_options>();
  options.start_tokens = start_tokens;
  options.plan = plan;
  return kvstrata_writer_open(world.space.get(), match, &options, Out(*out), error);
}

}  // namespace

TEST_CASE("a writer begins where a shortened restore has ended, be that 0", "[capi]") {
  for (const bool keep_some : {false, true}) {
    for (const bool with_match : {false, true}) {
      CAPTURE(keep_some, with_match);
      World world;
      world.KeepBlocksApart();
      world.Open();
      const Sequence stored = RandomSequence(1, 200);
      Shortened from(world, stored, keep_some);
      REQUIRE((from.result.usable_tokens > 0) == keep_some);
      const kvstrata_stats before = world.Stats();
      Error error;
      WriterHandle writer;
      const kvstrata_status status =
          OpenFrom(world, with_match ? from.match.get() : nullptr, from.plan.get(), 0, &writer, &error);
      INFO(Describe(status, error));
      REQUIRE(status == KVSTRATA_OK);
      from.match.reset();
      from.plan.reset();
      // The engine has the rows of the result, and computes what comes after it.
      from.engine->sequence() = stored;
      const std::string fault = from.engine->Advance(writer.get(), from.result.usable_tokens, stored.size());
      INFO(fault);
      REQUIRE(fault.empty());
      auto info = Sized<kvstrata_commit_info>();
      REQUIRE(kvstrata_writer_commit(writer.get(), 0, 0, &info, nullptr) == KVSTRATA_OK);
      CHECK(info.sequence_tokens == stored.size());
      CHECK(info.blocks_dropped == 0);
      const uint64_t block = world.kind.layout->info.block_tokens;
      CHECK(info.blocks_stored == stored.size() / block - before.held_blocks);
      // All of it can be had again, byte for byte.
      auto again = Sized<kvstrata_match_info>();
      const MatchHandle match = world.LookUp(from.prompt, &again, AllModes());
      CHECK(again.matched_tokens == stored.size() / block * block);
      CHECK(world.Restore(match.get(), from.prompt) == again.usable_tokens);
    }
  }
}

TEST_CASE("a plan that a writer cannot begin from is refused, and says why", "[capi]") {
  World world;
  world.KeepBlocksApart();
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  Shortened from(world, stored, true);
  WriterHandle writer;
  Error error;
  CHECK(OpenFrom(world, nullptr, from.plan.get(), 1, &writer, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(std::string(error.field) == "options.start_tokens");
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle other = world.LookUp(from.prompt, &info, AllModes());
  CHECK(OpenFrom(world, other.get(), from.plan.get(), 0, &writer, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(std::string(error.field) == "options.plan");

  PlanHandle plan;
  REQUIRE(kvstrata_plan_create(from.match.get(), nullptr, Out(plan), nullptr) == KVSTRATA_OK);
  CHECK(OpenFrom(world, nullptr, plan.get(), 0, &writer, &error) == KVSTRATA_E_INVALID_STATE);
  CHECK(std::string(error.field) == "options.plan");
  CHECK(writer == nullptr);
  // One that was cancelled has brought nothing, and says so: the writer starts empty.
  kvstrata_plan_cancel(plan.get());
  auto result = Sized<kvstrata_plan_result>();
  REQUIRE(kvstrata_plan_poll(plan.get(), &result, nullptr) == KVSTRATA_OK);
  CHECK(result.state == KVSTRATA_PLAN_CANCELLED);
  CHECK(result.usable_tokens == 0);
  REQUIRE(OpenFrom(world, from.match.get(), plan.get(), 0, &writer, &error) == KVSTRATA_OK);
  auto commit = Sized<kvstrata_commit_info>();
  REQUIRE(kvstrata_writer_commit(writer.get(), 0, 0, &commit, nullptr) == KVSTRATA_OK);
  CHECK(commit.sequence_tokens == 0);

  World elsewhere;
  elsewhere.Open();
  CHECK(OpenFrom(elsewhere, nullptr, from.plan.get(), 0, &writer, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(std::string(error.field) == "options.plan");
}

}  // namespace kvstrata::test
