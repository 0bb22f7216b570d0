// SPDX-License-Identifier: Apache-2.0
// Eviction policy, admission, watermarks, floor, priority and time to live, as the C API has them: each default, each
// error by name, and that each reaches the engine. What they do in full is tested in tests/unit/engine/policy_test.cc.
#include <string>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

// Opens a cache that must be refused, and gives the field at fault.
template <typename Set>
std::pair<kvstrata_status, std::string> Refusal(Set set) {
  World world;
  set(world.options);
  CacheHandle cache;
  Error error;
  const kvstrata_status status = kvstrata_cache_open(&world.options, Out(cache), &error);
  CHECK(cache == nullptr);
  return {status, error.field};
}

kvstrata_commit_info StoreAs(const World& world, const Sequence& sequence, int32_t priority, uint32_t ttl_seconds) {
  const auto engine = world.Engine(sequence.size() + 1);
  engine->sequence() = sequence;
  auto options = Sized<kvstrata_writer_options>();
  options.flags = KVSTRATA_WRITER_NO_SNAPSHOTS;
  options.priority = priority;
  options.ttl_seconds = ttl_seconds;
  WriterHandle writer;
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, &options, Out(writer), nullptr) == KVSTRATA_OK);
  const std::string fault = engine->Advance(writer.get(), 0, sequence.size());
  INFO(fault);
  REQUIRE(fault.empty());
  auto info = Sized<kvstrata_commit_info>();
  REQUIRE(kvstrata_writer_commit(writer.get(), 0, 0, &info, nullptr) == KVSTRATA_OK);
  return info;
}

uint64_t Matched(const World& world, const Sequence& sequence, uint32_t flags) {
  auto options = AllModes();
  options.flags = flags;
  auto info = Sized<kvstrata_match_info>();
  world.LookUp(Longer(sequence), &info, options);
  return info.matched_tokens;
}

}  // namespace

TEST_CASE("options of space that make no sense are refused by name", "[capi]") {
  const auto invalid = [](const char* field) {
    return std::pair(kvstrata_status{KVSTRATA_E_INVALID_ARGUMENT}, std::string(field));
  };
  CHECK(Refusal([](auto& o) { o.eviction_policy = 2; }) == invalid("options.eviction_policy"));
  CHECK(Refusal([](auto& o) { o.eviction_policy = -1; }) == invalid("options.eviction_policy"));
  CHECK(Refusal([](auto& o) { o.admission = 2; }) == invalid("options.admission"));
  CHECK(Refusal([](auto& o) { o.high_percent = 101; }) == invalid("high_percent"));
  CHECK(Refusal([](auto& o) { o.low_percent = 101; }) == invalid("low_percent"));
  CHECK(Refusal([](auto& o) { o.keep_free_bytes = 1; }) ==
        std::pair(kvstrata_status{KVSTRATA_E_UNSUPPORTED}, std::string("keep_free_bytes")));
}

TEST_CASE("a priority that there is not is refused by name", "[capi]") {
  World world;
  world.Open();
  auto options = Sized<kvstrata_writer_options>();
  options.priority = 3;
  WriterHandle writer;
  Error error;
  CHECK(kvstrata_writer_open(world.space.get(), nullptr, &options, Out(writer), &error) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(std::string(error.field) == "options.priority");
}

TEST_CASE("E15: second sight stores at the second time, and the statistics say what was not", "[capi]") {
  World world;
  world.options.admission = KVSTRATA_ADMIT_SECOND_SIGHT;
  world.Open();
  const Sequence sequence = RandomSequence(1, 300);
  const uint64_t blocks = sequence.size() / world.kind.layout->info.block_tokens;
  const uint64_t before = world.Stats().bytes_in;
  CHECK(world.StoreSequence(sequence).blocks_stored == 0);
  CHECK(world.Stats().blocks_not_admitted == blocks);
  CHECK(world.Stats().bytes_in == before);
  CHECK(world.StoreSequence(sequence).blocks_stored == blocks);
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(Longer(sequence), &info, AllModes());
  CHECK(world.Restore(match.get(), Longer(sequence)) == info.usable_tokens);
  CHECK(info.usable_tokens > 0);
}

TEST_CASE("priority and frequency reach the eviction; an unexpired time to live hides nothing", "[capi]") {
  const bool by_frequency = GENERATE(false, true);
  World world;
  world.options.eviction_policy = by_frequency ? KVSTRATA_EVICT_FREQUENCY : KVSTRATA_EVICT_LRU;
  world.Open();
  const Sequence used = RandomSequence(1, 100), low = RandomSequence(2, 100), fresh = RandomSequence(3, 100);
  StoreAs(world, used, KVSTRATA_PRIORITY_NORMAL, 0);
  const uint64_t row_bytes = world.Stats().held_row_bytes;
  for (int i = 0; i < 8; ++i) CHECK(Matched(world, used, KVSTRATA_LOOKUP_NO_LEASE) > 0);
  StoreAs(world, fresh, KVSTRATA_PRIORITY_NORMAL, 1'000'000);
  StoreAs(world, low, KVSTRATA_PRIORITY_LOW, 0);
  CHECK(Matched(world, fresh, KVSTRATA_LOOKUP_PEEK) > 0);
  const auto trim = [&](uint64_t bytes) {
    const uint64_t target = world.Stats().held_bytes - bytes;
    REQUIRE(kvstrata_cache_trim(world.cache.get(), target, nullptr, nullptr) == KVSTRATA_OK);
  };
  // The low one goes though it came last; then, under LRU, what was used before the other came.
  trim(row_bytes);
  CHECK(Matched(world, low, KVSTRATA_LOOKUP_PEEK) == 0);
  CHECK(Matched(world, used, KVSTRATA_LOOKUP_PEEK) > 0);
  CHECK(Matched(world, fresh, KVSTRATA_LOOKUP_PEEK) > 0);
  trim(row_bytes);
  CHECK((Matched(world, used, KVSTRATA_LOOKUP_PEEK) > 0) == by_frequency);
  CHECK((Matched(world, fresh, KVSTRATA_LOOKUP_PEEK) > 0) == !by_frequency);
}

TEST_CASE("E09: watermarks reach the engine", "[capi]") {
  World world;
  world.options.high_percent = 90;
  world.options.low_percent = 50;
  world.options.capacity_bytes = 4 << 20;
  world.Open();
  uint64_t highest = 0, lowest = UINT64_MAX;
  for (uint64_t i = 0; i < 400 && lowest == UINT64_MAX; ++i) {
    StoreAs(world, RandomSequence(i + 1, 300), KVSTRATA_PRIORITY_NORMAL, 0);
    const kvstrata_stats stats = world.Stats();
    highest = std::max(highest, stats.held_bytes);
    if (stats.blocks_evicted > 0) lowest = stats.held_bytes;
  }
  REQUIRE(lowest != UINT64_MAX);
  CHECK(highest <= world.options.capacity_bytes / 10 * 9);
  CHECK(highest > world.options.capacity_bytes / 10 * 8);
  // Evicted down to half, and the rest of the sequence came after that.
  CHECK(lowest < world.options.capacity_bytes / 10 * 7);
}

}  // namespace kvstrata::test
