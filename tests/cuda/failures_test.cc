// SPDX-License-Identifier: Apache-2.0
// Every single call of CUDA's run-time library fails once, under a whole restore and under a whole append of an engine
// with all its memory on the model: nothing that was not promised is touched, and the same cache, on the same stream,
// does the same again and well.
#include "tests/engines/random_operations.h"
#include "tests/support/c_store.h"
#include "tests/support/catch.hpp"
#include "tests/support/cuda_model.h"
#include "tests/support/fake_handles.h"
#include "tests/support/fake_identity.h"
#include "tests/support/fake_paged_engine.h"
#include "tests/support/grid_model.h"

namespace kvstrata::test {
namespace {

constexpr uint64_t kArenaBytes = uint64_t{8} << 20;
constexpr uint64_t kTokens = 200;
constexpr uint64_t kWaitMs = 10'000;
constexpr uint64_t kMostCalls = 5'000;

// A cache on the model and one engine's prompt.
class World {
 public:
  explicit World(uint64_t seed)
      : device(kArenaBytes, seed), store_(c_store_create(), c_store_free), kind_(SmallPagedEngine()) {
    const kvstrata_storage table = c_store_table(store_.get());
    auto options = Sized<kvstrata_cache_options>();
    options.storage = &table;
    options.device = device.table();
    options.capacity_bytes = uint64_t{4} << 20;
    options.io_timeout_ms = 2'000;
    REQUIRE(kvstrata_cache_open(&options, Out(cache_), nullptr) == KVSTRATA_OK);
    const auto names = identity_.Options(kind_.layout->handle.get());
    REQUIRE(kvstrata_namespace_open(cache_.get(), &names, Out(space_), nullptr) == KVSTRATA_OK);
    Rng rng(seed);
    for (uint64_t i = 0; i < kTokens; ++i) tokens_.Append(static_cast<int32_t>(rng.Below(1000)));
  }
  ~World() {
    space_.reset();
    cache_.reset();
    device.model().Drain();
    device.Close();
    for (const std::string& violation : device.model().violations()) FAIL_CHECK(violation);
    for (const std::string& leftover : device.model().leftovers()) FAIL_CHECK("left over: " << leftover);
    for (const std::string& fault : TakeGridFaults()) FAIL_CHECK(fault);
  }

  // Tells a writer of the whole prompt. True: it took all of it, and all of it was stored.
  bool Append() {
    FakeEngine engine(kind_, kTokens + 8, &device, 3);
    engine.sequence() = tokens_;
    WriterHandle writer;
    REQUIRE(kvstrata_writer_open(space_.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
    if (!engine.Advance(writer.get(), 0, kTokens).empty()) return false;
    if (kvstrata_writer_snapshot(writer.get(), nullptr) != KVSTRATA_OK) return false;
    auto info = Sized<kvstrata_commit_info>();
    const kvstrata_status status = kvstrata_writer_commit(writer.get(), 0, kWaitMs, &info, nullptr);
    return status == KVSTRATA_OK && info.blocks_dropped + info.snapshots_dropped == 0;
  }

  // What is found of the prompt, into fresh pages; every byte of them is compared, those around them too.
  kvstrata_plan_result Restore() {
    Sequence prompt = tokens_;
    prompt.Append(1);
    FakeEngine engine(kind_, kTokens + 8, &device, 4);
    MatchHandle match;
    REQUIRE(kvstrata_lookup(space_.get(), prompt.All(), nullptr, Out(match), nullptr) == KVSTRATA_OK);
    RestoreOptions options;
    options.expect_faults = true;
    auto result = Sized<kvstrata_plan_result>();
    auto info = Sized<kvstrata_match_info>();
    REQUIRE(kvstrata_match_get_info(match.get(), &info, nullptr) == KVSTRATA_OK);
    if (info.mode == KVSTRATA_MODE_NONE) return result;
    const std::string fault = engine.Restore(match.get(), prompt, options, &result);
    // A plan may fail to begin.
    if (!fault.starts_with("plan_start")) CHECK(fault == "");
    return result;
  }

  CudaModelDevice device;

 private:
  std::unique_ptr<c_store, void (*)(c_store*)> store_;
  const EngineKind kind_;
  TestIdentity identity_;
  CacheHandle cache_;
  NamespaceHandle space_;
  Sequence tokens_;
};

// Runs `attempt` in a new world each time, with one call more before the one that fails, until none does.
template <typename Attempt>
uint64_t FailEachCall(const Attempt& attempt) {
  uint64_t n = 0;
  bool failed = true;
  while (failed && n < kMostCalls) {
    ++n;
    CAPTURE(n);
    World world(Mix(90, n));
    failed = attempt(world, n);
  }
  CHECK(!failed);
  return n - 1;
}

}  // namespace

TEST_CASE("any call of CUDA's run-time library fails under a restore, and the next restore on the stream is whole") {
  const uint64_t calls = FailEachCall([](World& world, uint64_t n) {
    REQUIRE(world.Append());
    world.device.model().FailNth(n);
    const kvstrata_plan_result result = world.Restore();
    const bool failed = world.device.model().failed();
    world.device.model().FailNth(0);
    CHECK((failed || result.state == KVSTRATA_PLAN_COMPLETE));
    world.device.model().Drain();
    const kvstrata_plan_result again = world.Restore();
    CHECK(again.state == KVSTRATA_PLAN_COMPLETE);
    CHECK(again.usable_tokens == kTokens);
    return failed;
  });
  CHECK(calls >= 6);  // pinned memory, launch, its event, the read's event, and queries
}

TEST_CASE("any call of CUDA's run-time library fails under an append, and the next append on the stream is whole") {
  const uint64_t calls = FailEachCall([](World& world, uint64_t n) {
    world.device.model().FailNth(n);
    const bool stored = world.Append();
    const bool failed = world.device.model().failed();
    world.device.model().FailNth(0);
    CHECK((failed || stored));
    world.device.model().Drain();
    world.Restore();  // what is there is right
    CHECK(world.Append());
    const kvstrata_plan_result result = world.Restore();
    CHECK(result.state == KVSTRATA_PLAN_COMPLETE);
    CHECK(result.usable_tokens == kTokens);
    return failed;
  });
  CHECK(calls >= 6);
}

}  // namespace kvstrata::test
