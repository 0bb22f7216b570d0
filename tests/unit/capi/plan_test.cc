// SPDX-License-Identifier: Apache-2.0
// Restores that are cancelled, time out or meet a store that is stuck: when a call has returned, the destinations are
// the caller's again and are never touched any more; stuck staging is counted; nothing leaks when the store comes
// back.
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/fake_allocator.h"
#include "tests/support/fake_wait.h"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

constexpr uint32_t kHoldGets = 1u << KVSTRATA_STORAGE_GET;
constexpr uint32_t kHoldPuts = 1u << KVSTRATA_STORAGE_PUT;

// Linear destinations of a GQA model of one layer, with guard bytes.
class LinearWorld : public World {
 public:
  static constexpr uint64_t kRowBytes = 64;
  static constexpr uint64_t kTokens = 256;
  static constexpr uint64_t kGuard = 64;

  LinearWorld() {
    LayoutHandle layout;
    REQUIRE(kvstrata_layout_gqa(2, 1, 32, 2, 64, Out(layout), nullptr) == KVSTRATA_OK);
    kind.layout = ModelLayout::Read(std::move(layout));
    kind.geometry = [](const kvstrata_stream&, uint64_t, Rng&) { return Geometry{}; };
    REQUIRE(c_store_start_thread(store.get()) == 0);
  }
  std::vector<kvstrata_buffer> Destinations() {
    memory.assign(4, std::vector<std::byte>(kTokens * kRowBytes + 2 * kGuard, std::byte{0x5a}));
    std::vector<kvstrata_buffer> out;
    for (uint32_t i = 0; i < 4; ++i) {
      auto buffer = Sized<kvstrata_buffer>();
      buffer.stream = i;
      buffer.base = memory[i].data() + kGuard;
      buffer.size_bytes = kTokens * kRowBytes;
      out.push_back(buffer);
    }
    return out;
  }
  bool Untouched() const {
    for (const auto& bytes : memory) {
      for (const std::byte byte : bytes) {
        if (byte != std::byte{0x5a}) return false;
      }
    }
    return true;
  }

  std::vector<std::vector<std::byte>> memory;
};

PlanHandle MakePlan(kvstrata_match* match, const kvstrata_plan_options& options) {
  PlanHandle plan;
  Error error;
  const kvstrata_status status = kvstrata_plan_create(match, &options, Out(plan), &error);
  INFO(Describe(status, error));
  REQUIRE(status == KVSTRATA_OK);
  return plan;
}

kvstrata_plan_result Poll(const PlanHandle& plan) {
  auto result = Sized<kvstrata_plan_result>();
  REQUIRE(kvstrata_plan_poll(plan.get(), &result, nullptr) == KVSTRATA_OK);
  return result;
}

}  // namespace

TEST_CASE("a plan goes through its states", "[capi]") {
  LinearWorld world;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(stored, &info);
  REQUIRE(info.usable_tokens == 192);
  PlanHandle plan = MakePlan(match.get(), Sized<kvstrata_plan_options>());
  CHECK(Poll(plan).state == KVSTRATA_PLAN_CREATED);
  CHECK(kvstrata_plan_wait(plan.get(), 1, nullptr, nullptr) == KVSTRATA_E_INVALID_STATE);
  CHECK(kvstrata_plan_segment_count(plan.get()) == 4);
  auto segment = Sized<kvstrata_plan_segment>();
  CHECK(kvstrata_plan_get_segment(plan.get(), 4, &segment, nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
  auto destinations = world.Destinations();
  SECTION("one destination is missing") {
    CHECK(kvstrata_plan_start(plan.get(), destinations.data(), 3, sizeof(kvstrata_buffer), nullptr) ==
          KVSTRATA_E_INVALID_ARGUMENT);
  }
  SECTION("one destination is there twice") {
    destinations[3].stream = 0;
    CHECK(kvstrata_plan_start(plan.get(), destinations.data(), 4, sizeof(kvstrata_buffer), nullptr) ==
          KVSTRATA_E_INVALID_ARGUMENT);
  }
  SECTION("one destination is a row too small") {
    destinations[2].size_bytes = 191 * LinearWorld::kRowBytes;
    Error error;
    const kvstrata_status status =
        kvstrata_plan_start(plan.get(), destinations.data(), 4, sizeof(kvstrata_buffer), &error);
    CHECK((status == KVSTRATA_E_INVALID_ARGUMENT || status == KVSTRATA_E_BUFFER_TOO_SMALL));
    CHECK(std::string(error.field).find("size_bytes") != std::string::npos);
  }
  CHECK(Poll(plan).state == KVSTRATA_PLAN_CREATED);
  CHECK(world.Untouched());
  // A refused start can be repeated with better destinations, but only one start succeeds.
  destinations = world.Destinations();
  REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_OK);
  CHECK(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_E_INVALID_STATE);
  auto result = Sized<kvstrata_plan_result>();
  REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, &result, nullptr) == KVSTRATA_OK);
  CHECK(result.state == KVSTRATA_PLAN_COMPLETE);
  CHECK(result.quiesced == 1);
  CHECK(result.layers_total == 2);
  CHECK(result.layers_ready == 2);
  CHECK(result.usable_tokens == 192);
  CHECK(result.bytes_read >= 4 * 192 * LinearWorld::kRowBytes);
  CHECK(result.status == KVSTRATA_OK);
  kvstrata_plan_cancel(plan.get());  // after the end: nothing changes
  CHECK(Poll(plan).state == KVSTRATA_PLAN_COMPLETE);
}

TEST_CASE("a plan of some streams leaves the others alone", "[capi]") {
  LinearWorld world;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(stored, &info);
  const uint32_t wanted[] = {1, 2};
  auto options = Sized<kvstrata_plan_options>();
  options.streams = wanted;
  options.stream_count = 2;
  const PlanHandle plan = MakePlan(match.get(), options);
  CHECK(kvstrata_plan_segment_count(plan.get()) == 2);
  const auto destinations = world.Destinations();
  REQUIRE(kvstrata_plan_start(plan.get(), &destinations[1], 2, sizeof(kvstrata_buffer), nullptr) == KVSTRATA_OK);
  auto result = Sized<kvstrata_plan_result>();
  REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, &result, nullptr) == KVSTRATA_OK);
  CHECK(result.state == KVSTRATA_PLAN_COMPLETE);
  std::vector<std::byte> row(LinearWorld::kRowBytes);
  for (uint32_t i = 0; i < 4; ++i) {
    const std::byte* first = world.memory[i].data() + LinearWorld::kGuard;
    FillBytes(RowSeed(world.kind.layout->streams[i], i, 0, stored, 192), row);
    const bool restored = std::memcmp(first, row.data(), row.size()) == 0;
    CHECK(restored == (i == 1 || i == 2));
  }
  const uint32_t unknown[] = {4};
  options.streams = unknown;
  options.stream_count = 1;
  PlanHandle bad;
  CHECK(kvstrata_plan_create(match.get(), &options, Out(bad), nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
}

TEST_CASE("after a cancel has returned the destinations are never touched, even by a stuck read", "[capi]") {
  CountingAllocator allocator;
  {
    LinearWorld world;
    world.options.allocator = allocator.table();
    world.Open();
    const Sequence stored = RandomSequence(1, 200);
    world.StoreSequence(stored);
    auto info = Sized<kvstrata_match_info>();
    MatchHandle match = world.LookUp(stored, &info);
    for (const bool early : {false, true}) {
      auto options = Sized<kvstrata_plan_options>();
      options.flags = early ? KVSTRATA_PLAN_EARLY_RELEASE : 0;
      PlanHandle plan = MakePlan(match.get(), options);
      const auto destinations = world.Destinations();
      c_store_hold(world.store.get(), kHoldGets);
      REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_OK);
      REQUIRE(WaitFor([&] { return c_store_count(world.store.get()).waiting != 0; }));
      CHECK(kvstrata_plan_wait(plan.get(), 1, nullptr, nullptr) == KVSTRATA_E_TIMEOUT);
      CHECK(kvstrata_plan_wait_layers(plan.get(), 1, 1, nullptr, nullptr) == KVSTRATA_E_TIMEOUT);
      CHECK(Poll(plan).state == KVSTRATA_PLAN_RUNNING);
      CHECK(Poll(plan).quiesced == 0);
      kvstrata_plan_cancel(plan.get());
      const kvstrata_plan_result result = Poll(plan);
      CHECK(result.state == KVSTRATA_PLAN_CANCELLED);
      CHECK(result.status == KVSTRATA_E_CANCELLED);
      CHECK(result.quiesced == 1);
      CHECK(result.usable_tokens == 0);
      CHECK(kvstrata_plan_wait(plan.get(), 0, nullptr, nullptr) == KVSTRATA_OK);
      CHECK(world.Untouched());
      plan.reset();
      c_store_let_go(world.store.get());
      REQUIRE(WaitFor([&] { return c_store_count(world.store.get()).waiting == 0; }));
      CHECK(world.Untouched());
    }
    // The same match still restores.
    const auto engine = world.Engine();
    auto result = Sized<kvstrata_plan_result>();
    CHECK(engine->Restore(match.get(), stored, RestoreOptions{}, &result).empty());
    CHECK(result.state == KVSTRATA_PLAN_COMPLETE);
  }
  CHECK(allocator.live() == 0);
  CHECK(allocator.mismatches() == 0);
}

TEST_CASE("when match and plan have been destroyed the lease is gone, whatever the workers still do", "[capi]") {
  enum class End { kWaited, kCancelled, kDestroyed, kStuck, kNotStarted };
  LinearWorld world;
  world.options.io_threads = 4;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  for (const End end : {End::kWaited, End::kCancelled, End::kDestroyed, End::kStuck, End::kNotStarted}) {
    for (int round = 0; round < 50; ++round) {
      CAPTURE(static_cast<int>(end), round);
      auto info = Sized<kvstrata_match_info>();
      MatchHandle match = world.LookUp(stored, &info);
      REQUIRE(info.leased == 1);
      REQUIRE(world.Stats().leased_bytes > 0);
      auto options = Sized<kvstrata_plan_options>();
      options.flags = round % 4 < 2 ? KVSTRATA_PLAN_EARLY_RELEASE : 0;
      PlanHandle plan = MakePlan(match.get(), options);
      const auto destinations = world.Destinations();
      if (end == End::kStuck) c_store_hold(world.store.get(), kHoldGets);
      if (end != End::kNotStarted) {
        REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_OK);
      }
      if (end == End::kWaited) REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, nullptr, nullptr) == KVSTRATA_OK);
      if (end == End::kCancelled) kvstrata_plan_cancel(plan.get());
      if (end == End::kStuck) REQUIRE(WaitFor([&] { return c_store_count(world.store.get()).waiting != 0; }));
      // In either order, and with the lease held until the second.
      if (round % 2 == 0) match.reset();
      if (round % 2 == 1) plan.reset();
      REQUIRE(world.Stats().leased_bytes > 0);
      match.reset();
      plan.reset();
      REQUIRE(world.Stats().leased_bytes == 0);
      if (end == End::kStuck) c_store_let_go(world.store.get());
    }
  }
  CHECK(world.Stats().restores_failed == 0);
}

TEST_CASE("a restore's own deadline makes what has not arrived a miss", "[capi]") {
  LinearWorld world;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(stored, &info);
  auto options = Sized<kvstrata_plan_options>();
  options.timeout_ms = 30;
  const PlanHandle plan = MakePlan(match.get(), options);
  const auto destinations = world.Destinations();
  c_store_hold(world.store.get(), kHoldGets);
  REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_OK);
  auto result = Sized<kvstrata_plan_result>();
  REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, &result, nullptr) == KVSTRATA_OK);
  CHECK(result.state == KVSTRATA_PLAN_SHORTENED);
  CHECK(result.usable_tokens == 0);
  CHECK(result.mode == KVSTRATA_MODE_NONE);
  CHECK(result.quiesced == 1);
  CHECK(world.Untouched());
  CHECK(world.Stats().reads_timeout > 0);
  CHECK(world.Stats().stuck_staging_bytes > 0);
  c_store_let_go(world.store.get());
  REQUIRE(WaitFor([&] { return world.Stats().stuck_staging_bytes == 0; }));
  CHECK(world.Untouched());
  CHECK(world.Stats().staging_bytes == 0);
  // Slow is not gone: the index keeps its promise.
  auto again = Sized<kvstrata_match_info>();
  world.LookUp(stored, &again);
  CHECK(again.usable_tokens == 192);
}

TEST_CASE("a read that takes longer than io_timeout_ms is a miss", "[capi]") {
  LinearWorld world;
  world.options.io_timeout_ms = 30;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(stored, &info);
  const PlanHandle plan = MakePlan(match.get(), Sized<kvstrata_plan_options>());
  const auto destinations = world.Destinations();
  c_store_hold(world.store.get(), kHoldGets);
  REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_OK);
  auto result = Sized<kvstrata_plan_result>();
  REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, &result, nullptr) == KVSTRATA_OK);
  CHECK(result.state == KVSTRATA_PLAN_SHORTENED);
  CHECK(result.usable_tokens == 0);
  c_store_let_go(world.store.get());
}

TEST_CASE("a cache with stuck reads and stuck puts closes in time, and is safe when the store comes back", "[capi]") {
  CountingAllocator allocator;
  LinearWorld world;
  world.options.allocator = allocator.table();
  world.options.io_timeout_ms = 20;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(stored, &info);
  const auto destinations = world.Destinations();
  c_store_hold(world.store.get(), kHoldGets | kHoldPuts);
  PlanHandle plan = MakePlan(match.get(), Sized<kvstrata_plan_options>());
  REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_OK);
  const auto engine = world.Engine();
  engine->sequence() = RandomSequence(2, 200);
  WriterHandle writer;
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
  REQUIRE(engine->Advance(writer.get(), 0, 200).empty());
  CHECK(kvstrata_writer_commit(writer.get(), 0, 20, nullptr, nullptr) == KVSTRATA_E_TIMEOUT);
  // Nothing is torn down under a storage that still has requests; a later close finds them done.
  CHECK(kvstrata_cache_close(world.cache.get(), 50, nullptr, nullptr) == KVSTRATA_E_TIMEOUT);
  CHECK(world.Untouched());
  CHECK(c_store_count(world.store.get()).destroyed == 0);
  plan.reset();
  writer.reset();
  match.reset();
  CHECK(world.Untouched());
  c_store_let_go(world.store.get());
  auto closed = Sized<kvstrata_close_info>();
  CHECK(kvstrata_cache_close(world.cache.get(), 0, &closed, nullptr) == KVSTRATA_OK);
  CHECK(closed.dropped_blocks == 0);
  world.Close();
  CHECK(world.Untouched());
  CHECK(allocator.live() == 0);
  CHECK(allocator.mismatches() == 0);
  CHECK(c_store_count(world.store.get()).destroyed == 1);
}

TEST_CASE("the signal only tells, comes at the end, and can cancel", "[capi]") {
  LinearWorld world;
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(stored, &info);
  struct Seen {
    std::atomic<int> calls{0};
    std::atomic<int> ends{0};
    std::atomic<int> last_state{0};
    std::atomic<bool> started{false};
    std::atomic<bool> inside_start{false};
    int32_t answer = 0;
  } seen;
  const kvstrata_plan_signal_fn signal = [](void* user, uint64_t, int32_t state) -> int32_t {
    auto& record = *static_cast<Seen*>(user);
    record.calls += 1;
    record.last_state = state;
    if (state != KVSTRATA_PLAN_RUNNING) record.ends += 1;
    return record.answer;
  };
  auto options = Sized<kvstrata_plan_options>();
  options.flags = KVSTRATA_PLAN_EARLY_RELEASE;
  options.signal = signal;
  options.signal_user = &seen;
  const auto destinations = world.Destinations();
  SECTION("it is called once at the end") {
    const PlanHandle plan = MakePlan(match.get(), options);
    REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_OK);
    REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, nullptr, nullptr) == KVSTRATA_OK);
    REQUIRE(WaitFor([&] { return seen.ends != 0; }));
    CHECK(seen.ends == 1);
    CHECK(seen.last_state == KVSTRATA_PLAN_COMPLETE);
    CHECK(seen.calls >= 2);  // layer 0 came before the end
  }
  SECTION("a non-zero answer cancels") {
    seen.answer = 1;
    const PlanHandle plan = MakePlan(match.get(), options);
    REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), 4, 0, nullptr) == KVSTRATA_OK);
    auto result = Sized<kvstrata_plan_result>();
    REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, &result, nullptr) == KVSTRATA_OK);
    CHECK(result.state == KVSTRATA_PLAN_CANCELLED);
    REQUIRE(WaitFor([&] { return seen.ends != 0; }));
    CHECK(seen.ends == 1);
  }
}

TEST_CASE("a source page of -1 keeps its block out, and those behind it", "[capi]") {
  World world;
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_gqa(1, 1, 32, 2, 64, Out(layout), nullptr) == KVSTRATA_OK);
  world.kind.layout = ModelLayout::Read(std::move(layout));
  world.kind.geometry = [](const kvstrata_stream&, uint64_t, Rng&) { return Geometry{}; };
  world.Open();
  const Sequence stored = RandomSequence(1, 320);
  const auto engine = world.Engine();
  engine->sequence() = stored;
  engine->Compute(320);
  WriterHandle writer;
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
  REQUIRE(engine->SetSources(writer.get()).empty());
  // Stream 0 again, in pages of 64 rows, the third of which is missing.
  std::vector<std::byte> rows(320 * 64);
  for (uint64_t row = 0; row < 320; ++row) {
    FillBytes(RowSeed(world.kind.layout->streams[0], 0, row, stored, 320), std::span(rows).subspan(row * 64, 64));
  }
  std::vector<int64_t> ids = {0, 1, -1, 3, 4};
  auto buffer = Sized<kvstrata_buffer>();
  buffer.form = KVSTRATA_FORM_PAGES;
  buffer.rows_per_page = 64;
  buffer.base = rows.data();
  buffer.size_bytes = rows.size();
  buffer.page_stride = 64 * 64;
  buffer.page_ids = ids.data();
  buffer.page_count = ids.size();
  buffer.page_id_bytes = 8;
  REQUIRE(kvstrata_writer_set_source(writer.get(), &buffer, nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_writer_advance(writer.get(), engine->sequence().All(), 256, nullptr) == KVSTRATA_OK);
  auto commit = Sized<kvstrata_commit_info>();
  REQUIRE(kvstrata_writer_commit(writer.get(), 0, 0, &commit, nullptr) == KVSTRATA_OK);
  CHECK(commit.blocks_stored == 2);
  CHECK(commit.blocks_dropped > 0);
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(stored), &info);
  CHECK(info.matched_tokens == 128);
  CHECK(world.Restore(match.get(), Longer(stored)) == 128);
  // With the page back, the next block that is complete brings the rest of the chain with it.
  ids[2] = 2;
  REQUIRE(kvstrata_writer_set_source(writer.get(), &buffer, nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_writer_advance(writer.get(), nullptr, 320, nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_writer_commit(writer.get(), 0, 0, &commit, nullptr) == KVSTRATA_OK);
  match = world.LookUp(Longer(stored), &info);
  CHECK(info.matched_tokens == 320);
  CHECK(world.Restore(match.get(), Longer(stored)) == 320);
}

TEST_CASE("rows are copied before advance returns", "[capi]") {
  LinearWorld world;
  world.Open();
  c_store_hold(world.store.get(), kHoldPuts);
  const Sequence stored = RandomSequence(1, 130);
  {
    const auto engine = world.Engine();
    engine->sequence() = stored;
    WriterHandle writer;
    REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
    REQUIRE(engine->Advance(writer.get(), 0, 130).empty());
    // The engine's memory goes, the puts have not even begun.
  }
  c_store_let_go(world.store.get());
  REQUIRE(WaitFor([&] { return world.Stats().held_blocks == 2; }));
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(stored, &info);
  CHECK(info.usable_tokens == 128);
  CHECK(world.Restore(match.get(), stored) == 128);
}

}  // namespace kvstrata::test
