// SPDX-License-Identifier: Apache-2.0
// Rules that hold for each exported function alike: on NULL, after a close, in a forked child; and plans cancelled in
// every state. The table below names all functions: one that is missing there fails a test.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/unit/capi/fork_child.h"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

struct Handles {
  CacheHandle cache;
  NamespaceHandle space;
  MatchHandle match;
  PinHandle pin;
  PlanHandle plan;
  WriterHandle writer;
};

// What a call that would be right on an open cache answers when its cache is closed.
enum class Closed {
  kRefused,  // KVSTRATA_E_INVALID_STATE
  kAnswers,  // it tells what the handle itself knows, or there is nothing left to do
};

struct Function {
  const char* name;
  Closed closed;
  // The call with `handles`, each of which may be null.
  std::function<kvstrata_status(Handles& handles, kvstrata_error* error)> call;
};

Sequence Stored() { return RandomSequence(1, 70); }

const kvstrata_tokens* Tokens() {
  static Sequence sequence = Stored();
  return sequence.All();
}

// Every function with a handle that belongs to a cache.
std::vector<Function> OfCaches() {
  static auto names = TestIdentity();
  static const EngineKind kind = SmallPagedEngine();
  const auto refused = Closed::kRefused;
  const auto answers = Closed::kAnswers;
  return {
      {"kvstrata_cache_close", answers,
       [](Handles& h, kvstrata_error* e) { return kvstrata_cache_close(h.cache.get(), 0, nullptr, e); }},
      {"kvstrata_cache_stats", refused,
       [](Handles& h, kvstrata_error* e) {
         auto out = Sized<kvstrata_stats>();
         return kvstrata_cache_stats(h.cache.get(), &out, e);
       }},
      {"kvstrata_cache_events", refused,
       [](Handles& h, kvstrata_error* e) {
         uint64_t count = 0, next = 0;
         return kvstrata_cache_events(h.cache.get(), 1, nullptr, 0, 0, &count, &next, e);
       }},
      {"kvstrata_cache_verify", refused,
       [](Handles& h, kvstrata_error* e) {
         auto out = Sized<kvstrata_verify_info>();
         return kvstrata_cache_verify(h.cache.get(), nullptr, nullptr, &out, e);
       }},
      {"kvstrata_cache_trim", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_cache_trim(h.cache.get(), UINT64_MAX, nullptr, e); }},
      {"kvstrata_cache_sync", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_cache_sync(h.cache.get(), e); }},
      {"kvstrata_cache_purge_foreign", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_cache_purge_foreign(h.cache.get(), nullptr, e); }},
      {"kvstrata_namespace_open", refused,
       [](Handles& h, kvstrata_error* e) {
         NamespaceHandle out;
         const auto options = names.Options(kind.layout->handle.get());
         return kvstrata_namespace_open(h.cache.get(), &options, Out(out), e);
       }},
      {"kvstrata_namespace_get_info", refused,
       [](Handles& h, kvstrata_error* e) {
         auto out = Sized<kvstrata_namespace_info>();
         return kvstrata_namespace_get_info(h.space.get(), &out, e);
       }},
      {"kvstrata_namespace_drop", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_namespace_drop(h.space.get(), e); }},
      {"kvstrata_lookup", refused,
       [](Handles& h, kvstrata_error* e) {
         MatchHandle out;
         return kvstrata_lookup(h.space.get(), Tokens(), nullptr, Out(out), e);
       }},
      {"kvstrata_match_get_info", answers,
       [](Handles& h, kvstrata_error* e) {
         auto out = Sized<kvstrata_match_info>();
         return kvstrata_match_get_info(h.match.get(), &out, e);
       }},
      {"kvstrata_match_pin", refused,
       [](Handles& h, kvstrata_error* e) {
         PinHandle out;
         return kvstrata_match_pin(h.match.get(), Out(out), e);
       }},
      {"kvstrata_pin_get_info", answers,
       [](Handles& h, kvstrata_error* e) {
         auto out = Sized<kvstrata_pin_info>();
         return kvstrata_pin_get_info(h.pin.get(), &out, e);
       }},
      {"kvstrata_pin_get_range", answers,
       [](Handles& h, kvstrata_error* e) {
         auto out = Sized<kvstrata_pin_range>();
         return kvstrata_pin_get_range(h.pin.get(), 0, &out, e);
       }},
      {"kvstrata_match_renew", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_match_renew(h.match.get(), 0, e); }},
      {"kvstrata_match_limit", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_match_limit(h.match.get(), 70, e); }},
      {"kvstrata_match_agree", refused,
       [](Handles& h, kvstrata_error* e) {
         kvstrata_match* const all[] = {h.match.get()};
         uint64_t out = 0;
         return kvstrata_match_agree(all, 1, &out, e);
       }},
      {"kvstrata_match_first_difference", refused,
       [](Handles& h, kvstrata_error* e) {
         uint64_t out = 0;
         return kvstrata_match_first_difference(h.match.get(), &out, e);
       }},
      {"kvstrata_plan_create", refused,
       [](Handles& h, kvstrata_error* e) {
         PlanHandle out;
         return kvstrata_plan_create(h.match.get(), nullptr, Out(out), e);
       }},
      {"kvstrata_plan_get_segment", answers,
       [](Handles& h, kvstrata_error* e) {
         auto out = Sized<kvstrata_plan_segment>();
         return kvstrata_plan_get_segment(h.plan.get(), 0, &out, e);
       }},
      {"kvstrata_plan_poll", answers,
       [](Handles& h, kvstrata_error* e) {
         auto out = Sized<kvstrata_plan_result>();
         return kvstrata_plan_poll(h.plan.get(), &out, e);
       }},
      {"kvstrata_plan_wait", answers,
       [](Handles& h, kvstrata_error* e) { return kvstrata_plan_wait(h.plan.get(), 10'000, nullptr, e); }},
      {"kvstrata_plan_wait_layers", answers,
       [](Handles& h, kvstrata_error* e) { return kvstrata_plan_wait_layers(h.plan.get(), 1, 10'000, nullptr, e); }},
      {"kvstrata_writer_open", refused,
       [](Handles& h, kvstrata_error* e) {
         WriterHandle out;
         return kvstrata_writer_open(h.space.get(), h.match.get(), nullptr, Out(out), e);
       }},
      {"kvstrata_writer_set_source", refused,
       [](Handles& h, kvstrata_error* e) {
         static std::byte rows[584];
         auto source = Sized<kvstrata_buffer>();
         source.base = rows;
         source.size_bytes = sizeof(rows);
         return kvstrata_writer_set_source(h.writer.get(), &source, e);
       }},
      {"kvstrata_writer_advance", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_writer_advance(h.writer.get(), nullptr, 70, e); }},
      {"kvstrata_writer_truncate", answers,
       [](Handles& h, kvstrata_error* e) { return kvstrata_writer_truncate(h.writer.get(), 70, e); }},
      {"kvstrata_writer_snapshot_positions", refused,
       [](Handles& h, kvstrata_error* e) {
         uint64_t positions[16], count = 0;
         return kvstrata_writer_snapshot_positions(h.writer.get(), Tokens(), positions, 16, &count, e);
       }},
      {"kvstrata_writer_fork", refused,
       [](Handles& h, kvstrata_error* e) {
         WriterHandle out;
         return kvstrata_writer_fork(h.writer.get(), Out(out), e);
       }},
      {"kvstrata_writer_commit", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_writer_commit(h.writer.get(), 0, 0, nullptr, e); }},
      {"kvstrata_plan_start", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_plan_start(h.plan.get(), nullptr, 0, 0, e); }},
      {"kvstrata_writer_snapshot", refused,
       [](Handles& h, kvstrata_error* e) { return kvstrata_writer_snapshot(h.writer.get(), e); }},
  };
}

// Functions that no cache stands behind, that cannot fail, or that make the first handle.
const std::set<std::string>& Others() {
  static const std::set<std::string> kNames = {
      "kvstrata_abi_version",           "kvstrata_format_version",     "kvstrata_version_string",
      "kvstrata_status_name",           "kvstrata_kernels_get",        "kvstrata_cache_open",
      "kvstrata_layout_create",         "kvstrata_layout_from_preset", "kvstrata_layout_from_config",
      "kvstrata_layout_from_text",      "kvstrata_layout_gqa",         "kvstrata_layout_mla",
      "kvstrata_layout_opaque",         "kvstrata_layout_get_info",    "kvstrata_layout_get_stream",
      "kvstrata_layout_snapshot_bytes", "kvstrata_layout_rows_at",     "kvstrata_layout_text",
      "kvstrata_layout_destroy",        "kvstrata_cache_destroy",      "kvstrata_namespace_destroy",
      "kvstrata_match_destroy",         "kvstrata_pin_destroy",        "kvstrata_plan_destroy",
      "kvstrata_plan_cancel",           "kvstrata_plan_segment_count", "kvstrata_writer_destroy"};
  return kNames;
}

// One handle of each kind, the plan ended.
Handles MakeHandles(World* world) {
  Handles handles;
  world->options.memory_bytes = 8 << 20;
  world->Open();
  world->StoreSequence(Stored());
  auto info = Sized<kvstrata_match_info>();
  handles.match = world->LookUp(Longer(Stored()), &info);
  REQUIRE(info.usable_tokens == 70);
  REQUIRE(kvstrata_match_pin(handles.match.get(), Out(handles.pin), nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_plan_create(handles.match.get(), nullptr, Out(handles.plan), nullptr) == KVSTRATA_OK);
  kvstrata_plan_cancel(handles.plan.get());
  REQUIRE(kvstrata_writer_open(world->space.get(), handles.match.get(), nullptr, Out(handles.writer), nullptr) ==
          KVSTRATA_OK);
  handles.cache = std::move(world->cache);
  handles.space = std::move(world->space);
  return handles;
}

}  // namespace

TEST_CASE("the table of functions is complete", "[capi]") {
  std::set<std::string> known = Others();
  for (const Function& function : OfCaches()) {
    INFO(function.name);
    CHECK(known.insert(function.name).second);
  }
  std::ifstream list("capi/symbols.txt");
  REQUIRE(list);
  for (std::string line; std::getline(list, line);) {
    std::string name;
    std::istringstream(line) >> name;
    if (name.empty() || name[0] == '#') continue;
    INFO(name);
    CHECK(known.erase(name) == 1);
  }
  CHECK(known.empty());
}

TEST_CASE("every function refuses a handle that is NULL, and says so", "[capi]") {
  for (const Function& function : OfCaches()) {
    Handles none;
    Error error;
    INFO(function.name);
    CHECK(function.call(none, &error) == KVSTRATA_E_INVALID_ARGUMENT);
    CHECK(error.code == KVSTRATA_E_INVALID_ARGUMENT);
    CHECK(error.field[0] != '\0');
    CHECK(std::string(error.message).find("NULL") != std::string::npos);
  }
}

TEST_CASE("after a close every function is refused or tells what its handle knows", "[capi]") {
  World world;
  Handles handles = MakeHandles(&world);
  REQUIRE(kvstrata_cache_close(handles.cache.get(), 0, nullptr, nullptr) == KVSTRATA_OK);
  for (const Function& function : OfCaches()) {
    INFO(function.name);
    const kvstrata_status status = function.call(handles, nullptr);
    CHECK(status == (function.closed == Closed::kRefused ? KVSTRATA_E_INVALID_STATE : KVSTRATA_OK));
  }
}

TEST_CASE("in a forked child every function gets FORKED, whoever holds which lock", "[capi]") {
  World world;
  REQUIRE(c_store_start_thread(world.store.get()) == 0);
  Handles handles = MakeHandles(&world);
  const std::vector<Function> functions = OfCaches();
  const int wrong = RunInChild([&] {
    for (size_t i = 0; i < functions.size(); ++i) {
      if (functions[i].call(handles, nullptr) != KVSTRATA_E_FORKED) return static_cast<int>(i) + 1;
    }
    kvstrata_plan_cancel(handles.plan.get());
    handles = Handles{};  // destroying what was inherited must neither hang nor touch the store
    return 0;
  });
  INFO((wrong > 0 ? functions[static_cast<size_t>(wrong) - 1].name : "the child did not end by itself"));
  CHECK(wrong == 0);
  CHECK(world.Restore(handles.match.get(), Longer(Stored())) == 70);
}

TEST_CASE("a forked child may use layouts, and open a cache of its own", "[capi]") {
  World world;
  Handles handles = MakeHandles(&world);
  const int wrong = RunInChild([&] {
    auto info = Sized<kvstrata_layout_info>();
    if (kvstrata_layout_get_info(world.kind.layout->handle.get(), &info, nullptr) != KVSTRATA_OK) return 1;
    auto options = Sized<kvstrata_cache_options>();
    options.capacity_bytes = 1 << 20;
    CacheHandle own;
    if (kvstrata_cache_open(&options, Out(own), nullptr) != KVSTRATA_OK) return 2;
    return kvstrata_cache_close(own.get(), 0, nullptr, nullptr) == KVSTRATA_OK ? 0 : 3;
  });
  CHECK(wrong == 0);
}

TEST_CASE("a success leaves the caller's error as it was, and a failure fills only what it has room for", "[capi]") {
  World world;
  Handles handles = MakeHandles(&world);
  kvstrata_error before;
  std::memset(&before, 0x5c, sizeof(before));
  before.struct_size = sizeof(before);
  for (const Function& function : OfCaches()) {
    if (std::string(function.name) == "kvstrata_cache_close") continue;
    kvstrata_error error = before;
    INFO(function.name);
    if (function.call(handles, &error) == KVSTRATA_OK) {
      CHECK(std::memcmp(&error, &before, sizeof(error)) == 0);
    } else {
      CHECK(error.code != before.code);
    }
    Handles none;
    for (const uint32_t size : {4u, 8u, 16u, 17u, 80u, 0u, 5000u}) {
      error = before;
      error.struct_size = size;
      kvstrata_error same = error;
      CHECK(function.call(none, &error) == KVSTRATA_E_INVALID_ARGUMENT);
      const uint32_t written = size >= 4 && size <= 4096 ? size : 0;
      CHECK(error.struct_size == size);
      CHECK(std::memcmp(reinterpret_cast<std::byte*>(&error) + std::max(written, 4u),
                        reinterpret_cast<std::byte*>(&same) + std::max(written, 4u),
                        sizeof(error) - std::max(written, 4u)) == 0);
    }
  }
}

TEST_CASE("a plan is cancelled and destroyed in every state", "[capi]") {
  enum class State { kCreated, kRunning, kStuck, kComplete, kCancelled, kClosed };
  for (const State state :
       {State::kCreated, State::kRunning, State::kStuck, State::kComplete, State::kCancelled, State::kClosed}) {
    for (const bool destroy_only : {false, true}) {
      CAPTURE(static_cast<int>(state), destroy_only);
      World world;
      REQUIRE(c_store_start_thread(world.store.get()) == 0);
      world.options.io_timeout_ms = 2000;
      world.Open();
      world.StoreSequence(Stored());
      auto info = Sized<kvstrata_match_info>();
      MatchHandle match = world.LookUp(Longer(Stored()), &info);
      const auto engine = world.Engine();
      const std::vector<kvstrata_buffer> destinations = engine->Destinations(info, Longer(Stored()));
      PlanHandle plan;
      REQUIRE(kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr) == KVSTRATA_OK);
      if (state == State::kStuck) c_store_hold(world.store.get(), 1u << KVSTRATA_STORAGE_GET);
      if (state == State::kClosed) world.Close();
      if (state == State::kCancelled) kvstrata_plan_cancel(plan.get());
      if (state == State::kRunning || state == State::kStuck || state == State::kComplete) {
        REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), destinations.size(), 0, nullptr) == KVSTRATA_OK);
      }
      auto result = Sized<kvstrata_plan_result>();
      if (state == State::kComplete) {
        REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, &result, nullptr) == KVSTRATA_OK);
        CHECK(result.state == KVSTRATA_PLAN_COMPLETE);
      }
      if (!destroy_only) {
        kvstrata_plan_cancel(plan.get());
        kvstrata_plan_cancel(plan.get());  // twice is once
        REQUIRE(kvstrata_plan_poll(plan.get(), &result, nullptr) == KVSTRATA_OK);
        const bool ended_before = state == State::kComplete || state == State::kRunning;
        CHECK((result.state == KVSTRATA_PLAN_CANCELLED || (ended_before && result.state == KVSTRATA_PLAN_COMPLETE)));
        CHECK(result.quiesced == 1);
        CHECK(kvstrata_plan_start(plan.get(), destinations.data(), destinations.size(), 0, nullptr) ==
              KVSTRATA_E_INVALID_STATE);
      }
      plan.reset();
      c_store_let_go(world.store.get());
      match.reset();
      world.Close();
      CHECK(c_store_count(world.store.get()).destroyed == 1);
    }
  }
}

}  // namespace kvstrata::test
