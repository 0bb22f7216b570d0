// SPDX-License-Identifier: Apache-2.0
// Each sentence of the header about threads, at once: caches and namespaces are shared by all; matches, plans and
// writers belong to one thread, move between threads, and plans are polled, waited for and cancelled from others;
// statistics, events, trims, verifications, drops and namespace handles come and go beside them. Rows are still
// compared byte by byte. Built for ThreadSanitizer too.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/c_store.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_engine.h"
#include "tests/support/fake_handles.h"
#include "tests/support/fake_identity.h"
#include "tests/support/fake_paged_engine.h"
#include "tests/support/fake_random.h"

namespace kvstrata::test {
namespace {

constexpr uint64_t kTokens = 200;  // of one sequence, at most

// What the threads share. Catch2's assertions are for one thread, so faults are collected and looked at in the end.
class Stage {
 public:
  explicit Stage(c_store* store)
      : seed_(TestSeed("threads", 51)), rounds_(EnvironmentNumber("KVSTRATA_ENGINE_OPS", 60)) {
    kvstrata_storage table{};
    auto options = Sized<kvstrata_cache_options>();
    if (store != nullptr) {
      table = c_store_table(store);
      options.storage = &table;
    }
    options.capacity_bytes = 700 << 10;  // evictions among four sequences at a time
    options.staging_bytes = 1 << 20;
    REQUIRE(kvstrata_cache_open(&options, Out(cache), nullptr) == KVSTRATA_OK);
    REQUIRE(OpenSpace("shared", &space) == KVSTRATA_OK);
    REQUIRE(OpenSpace("dropped", &dropped_space) == KVSTRATA_OK);
  }
  kvstrata_status OpenSpace(const std::string& tenant, NamespaceHandle* out) const {
    TestIdentity identity;
    identity.Set("tenant", tenant);
    const auto names = identity.Options(kind.layout->handle.get());
    return kvstrata_namespace_open(cache.get(), &names, Out(*out), nullptr);
  }
  // Four families of sequences that part at random places: all threads meet in them.
  Sequence MakeSequence(Rng* rng) const {
    Sequence sequence;
    Rng family(seed_ + rng->Below(4));
    const uint64_t length = rng->Between(20, kTokens);
    const uint64_t parting = rng->Chance(50) ? length : rng->Below(length);
    for (uint64_t i = 0; i < length; ++i) {
      const uint64_t common = family.Below(1000);
      sequence.Append(static_cast<int32_t>(i < parting ? common : rng->Below(1000)));
    }
    return sequence;
  }
  void Fault(const std::string& text) {
    const std::lock_guard lock(mutex_);
    faults_.push_back(text);
  }
  // After the close only these two are right.
  void Expect(kvstrata_status status, const char* call) {
    if (status == KVSTRATA_OK || (closing && status == KVSTRATA_E_INVALID_STATE)) return;
    Fault(std::string(call) + ": " + kvstrata_status_name(status));
  }
  std::vector<std::string> faults() const {
    const std::lock_guard lock(mutex_);
    return faults_;
  }
  uint64_t seed() const { return seed_; }
  uint64_t rounds() const { return rounds_; }

  const EngineKind kind = SmallPagedEngine();
  CacheHandle cache;
  NamespaceHandle space;
  NamespaceHandle dropped_space;
  std::atomic<bool> closing{false};
  std::atomic<bool> done{false};
  std::atomic<uint64_t> restored{0};

 private:
  const uint64_t seed_;
  const uint64_t rounds_;
  mutable std::mutex mutex_;
  std::vector<std::string> faults_;
};

kvstrata_lookup_options AllModes(Rng* rng) {
  auto options = Sized<kvstrata_lookup_options>();
  options.allowed_modes =
      1u << KVSTRATA_MODE_SNAPSHOT | 1u << KVSTRATA_MODE_SNAPSHOT_REPLAY | 1u << KVSTRATA_MODE_FULL_REPLAY;
  if (rng->Chance(25)) options.flags = KVSTRATA_LOOKUP_NO_LEASE;
  if (rng->Chance(10)) options.flags = KVSTRATA_LOOKUP_PEEK;
  return options;
}

// One request of an engine: lookup, restore, prefill, some decoding, commit.
void RunRequest(Stage* stage, kvstrata_namespace* space, bool may_vanish, Rng* rng) {
  Sequence prompt = stage->MakeSequence(rng);
  const auto options = AllModes(rng);
  MatchHandle match;
  kvstrata_status status = kvstrata_lookup(space, prompt.All(), &options, Out(match), nullptr);
  stage->Expect(status, "lookup");
  if (status != KVSTRATA_OK) return;
  auto info = Sized<kvstrata_match_info>();
  stage->Expect(kvstrata_match_get_info(match.get(), &info, nullptr), "get_info");
  FakeEngine engine(stage->kind, kTokens + 20, nullptr, rng->Next());
  PlanHandle plan;
  if (info.mode != KVSTRATA_MODE_NONE) {
    RestoreOptions restore;
    restore.early_release = rng->Chance(50);
    restore.expect_faults = stage->closing;
    auto result = Sized<kvstrata_plan_result>();
    const std::string fault = engine.Restore(match.get(), prompt, restore, &result, &plan);
    if (!fault.empty()) {
      if (!stage->closing) stage->Fault("restore: " + fault);
      return;
    }
    if (info.leased == 1 && !may_vanish && !stage->closing && result.state != KVSTRATA_PLAN_COMPLETE) {
      stage->Fault("a leased match was shortened, reason " + std::to_string(result.reason));
    }
    stage->restored += result.usable_tokens;
  }
  auto writing = Sized<kvstrata_writer_options>();
  writing.plan = plan.get();
  WriterHandle writer;
  status = kvstrata_writer_open(space, nullptr, &writing, Out(writer), nullptr);
  stage->Expect(status, "writer_open");
  if (status != KVSTRATA_OK) return;
  match.reset();
  plan.reset();
  uint64_t told = engine.computed();
  engine.sequence() = prompt;
  for (uint64_t step = 0; step < 3; ++step) {
    const std::string fault = engine.Advance(writer.get(), told, engine.sequence().size());
    if (!fault.empty()) {
      if (!stage->closing) stage->Fault(fault);
      return;
    }
    told = engine.sequence().size();
    engine.sequence().Append(static_cast<int32_t>(rng->Below(1000)));
  }
  stage->Expect(kvstrata_writer_commit(writer.get(), KVSTRATA_COMMIT_OUTPUT_END, 0, nullptr, nullptr), "commit");
}

void RunEngine(Stage* stage, uint64_t number) {
  Rng rng(stage->seed() * 100 + number);
  for (uint64_t round = 0; round < stage->rounds(); ++round) RunRequest(stage, stage->space.get(), false, &rng);
}

// Handles move between threads, and others poll, wait and cancel.
void RunHandOver(Stage* stage, uint64_t number) {
  Rng rng(stage->seed() * 100 + number);
  for (uint64_t round = 0; round < stage->rounds(); ++round) {
    Sequence prompt = stage->MakeSequence(&rng);
    const auto options = AllModes(&rng);
    MatchHandle match;
    PlanHandle plan;
    std::thread maker([&] {
      if (kvstrata_lookup(stage->space.get(), prompt.All(), &options, Out(match), nullptr) != KVSTRATA_OK) return;
      const kvstrata_status status = kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr);
      stage->Expect(status, "plan_create");
    });
    maker.join();
    if (plan == nullptr) continue;
    FakeEngine engine(stage->kind, kTokens + 20, nullptr, rng.Next());
    auto info = Sized<kvstrata_match_info>();
    stage->Expect(kvstrata_match_get_info(match.get(), &info, nullptr), "get_info");
    std::vector<kvstrata_buffer> destinations = engine.Destinations(info, prompt);
    if (kvstrata_plan_start(plan.get(), destinations.data(), destinations.size(), 0, nullptr) != KVSTRATA_OK) continue;
    const bool cancels = rng.Chance(40);
    std::vector<std::thread> others;
    for (int other = 0; other < 2; ++other) {
      others.emplace_back([&, other] {
        auto result = Sized<kvstrata_plan_result>();
        stage->Expect(kvstrata_plan_poll(plan.get(), &result, nullptr), "poll");
        if (other == 0 && cancels) kvstrata_plan_cancel(plan.get());
        stage->Expect(kvstrata_plan_wait_layers(plan.get(), 1, 60'000, &result, nullptr), "wait_layers");
        stage->Expect(kvstrata_plan_wait(plan.get(), 60'000, &result, nullptr), "wait");
        if (result.quiesced != 1) stage->Fault("waited for, but not quiesced");
      });
    }
    match.reset();
    for (std::thread& other : others) other.join();
    // Destroyed on yet another thread than the one that made it.
    std::thread ender([moved = std::move(plan)]() mutable { moved.reset(); });
    ender.join();
  }
}

void RunObserver(Stage* stage) {
  uint64_t from = 1;
  while (!stage->done) {
    auto stats = Sized<kvstrata_stats>();
    const kvstrata_status status = kvstrata_cache_stats(stage->cache.get(), &stats, nullptr);
    stage->Expect(status, "stats");
    if (status != KVSTRATA_OK) return;
    if (stats.lookups != stats.hits + stats.misses) stage->Fault("lookups != hits + misses");
    if (stats.held_bytes > stats.capacity_bytes) stage->Fault("more is held than the budget");
    std::vector<kvstrata_event> events(64, Sized<kvstrata_event>());
    uint64_t count = 0;
    uint64_t next = from;
    stage->Expect(kvstrata_cache_events(stage->cache.get(), from, events.data(), events.size(), sizeof(kvstrata_event),
                                        &count, &next, nullptr),
                  "events");
    for (uint64_t i = 1; i < count; ++i) {
      if (events[i].sequence != events[i - 1].sequence + 1) stage->Fault("a gap within one answer of events");
    }
    if (next < from) stage->Fault("events went back");
    from = next;
    auto info = Sized<kvstrata_namespace_info>();
    stage->Expect(kvstrata_namespace_get_info(stage->space.get(), &info, nullptr), "namespace_get_info");
    std::this_thread::yield();
  }
}

void RunJanitor(Stage* stage) {
  Rng rng(stage->seed() * 100 + 98);
  while (!stage->done) {
    uint64_t held = 0;
    stage->Expect(kvstrata_cache_trim(stage->cache.get(), (100 + rng.Below(500)) << 10, &held, nullptr), "trim");
    auto info = Sized<kvstrata_verify_info>();
    const kvstrata_status status = kvstrata_cache_verify(stage->cache.get(), nullptr, nullptr, &info, nullptr);
    stage->Expect(status, "verify");
    if (status != KVSTRATA_OK) return;
    if (info.corrupt != 0) stage->Fault("verify found corrupt records");
    NamespaceHandle passing;
    stage->Expect(stage->OpenSpace("passing " + std::to_string(rng.Below(3)), &passing), "namespace_open");
    for (int i = 0; i < 20 && !stage->done; ++i) std::this_thread::yield();
  }
}

void RunDropper(Stage* stage) {
  Rng rng(stage->seed() * 100 + 99);
  for (uint64_t round = 0; round < stage->rounds(); ++round) {
    RunRequest(stage, stage->dropped_space.get(), true, &rng);
    if (rng.Chance(40)) stage->Expect(kvstrata_namespace_drop(stage->dropped_space.get(), nullptr), "drop");
  }
}

// Eight threads; `close_early`: the cache is closed under them.
void RunAll(c_store* store, bool close_early) {
  Stage stage(store);
  std::vector<std::thread> workers;
  for (uint64_t i = 0; i < 3; ++i) workers.emplace_back(RunEngine, &stage, i);
  workers.emplace_back(RunHandOver, &stage, 3);
  workers.emplace_back(RunDropper, &stage);
  workers.emplace_back([&] {
    Rng rng(stage.seed() * 100 + 97);
    for (uint64_t round = 0; round < stage.rounds(); ++round) RunRequest(&stage, stage.dropped_space.get(), true, &rng);
  });
  std::vector<std::thread> watchers;
  watchers.emplace_back(RunObserver, &stage);
  watchers.emplace_back(RunJanitor, &stage);
  if (close_early) {
    while (stage.restored == 0) std::this_thread::yield();
    stage.closing = true;
    CHECK(kvstrata_cache_close(stage.cache.get(), 0, nullptr, nullptr) == KVSTRATA_OK);
  }
  for (std::thread& worker : workers) worker.join();
  stage.done = true;
  for (std::thread& watcher : watchers) watcher.join();
  for (const std::string& fault : stage.faults()) FAIL_CHECK(fault);
  CHECK(stage.restored > 0);
}

}  // namespace

TEST_CASE("eight threads on one cache in memory", "[threads]") { RunAll(nullptr, false); }

TEST_CASE("eight threads on one cache over a store with a thread of its own", "[threads]") {
  std::unique_ptr<c_store, void (*)(c_store*)> store(c_store_create(), c_store_free);
  REQUIRE(c_store_start_thread(store.get()) == 0);
  RunAll(store.get(), false);
  CHECK(c_store_count(store.get()).destroyed == 1);
}

TEST_CASE("a cache is closed under eight threads", "[threads]") { RunAll(nullptr, true); }

}  // namespace kvstrata::test
