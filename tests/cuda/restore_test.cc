// SPDX-License-Identifier: Apache-2.0
// Caches whose engines have all their memory on a GPU, with libkvstrata_cuda's device on the model: random operations
// with every byte compared, layer by layer, on the engine's stream, cancelled anywhere, and with every call failing.
#include <atomic>
#include <cstring>
#include <deque>

#include "tests/engines/random_operations.h"
#include "tests/fault/scenario.h"
#include "tests/support/c_store.h"
#include "tests/support/catch.hpp"
#include "tests/support/cuda_model.h"
#include "tests/support/fake_handles.h"
#include "tests/support/fake_identity.h"
#include "tests/support/fake_paged_engine.h"
#include "tests/support/grid_model.h"

namespace kvstrata::test {
namespace {

constexpr uint64_t kArenaBytes = uint64_t{1} << 30;
constexpr uint64_t kWaitMs = 60'000;

void CheckModel(CudaModelDevice& device) {
  device.Close();
  for (const std::string& violation : device.model().violations()) FAIL_CHECK(violation);
  for (const std::string& leftover : device.model().leftovers()) FAIL_CHECK("left over: " << leftover);
  for (const std::string& fault : TakeGridFaults()) FAIL_CHECK(fault);
}

RandomRun Run(const char* test, EngineKind kind, CudaModelDevice* device, uint64_t seed, uint64_t operations) {
  RandomRun run;
  run.kind = std::move(kind);
  run.device = device;
  run.seed = TestSeed(test, seed);
  run.operations = EnvironmentNumber("KVSTRATA_ENGINE_OPS", operations);
  run.capacity_bytes = 512 << 20;
  run.allowed_modes =
      1u << KVSTRATA_MODE_SNAPSHOT | 1u << KVSTRATA_MODE_SNAPSHOT_REPLAY | 1u << KVSTRATA_MODE_FULL_REPLAY;
  run.hole_percent = 25;
  return run;
}

// A store in memory that answers only as many reads as it is allowed to.
class GatedStore {
 public:
  GatedStore() : store_(c_store_create(), c_store_free), inner_(c_store_table(store_.get())) {}
  ~GatedStore() { Allow(UINT64_MAX); }

  kvstrata_storage Table() {
    kvstrata_storage table = inner_;
    table.ctx = this;
    table.destroy = nullptr;
    table.submit = Submit;
    table.stat = [](void* ctx, const kvstrata_key* key, int32_t* exists, uint64_t* bytes) {
      return Inner(ctx).stat(Inner(ctx).ctx, key, exists, bytes);
    };
    table.remove = [](void* ctx, const kvstrata_key* key) { return Inner(ctx).remove(Inner(ctx).ctx, key); };
    table.sync = [](void* ctx) { return Inner(ctx).sync(Inner(ctx).ctx); };
    table.list = [](void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity, uint64_t stride,
                    uint64_t* count) {
      return Inner(ctx).list(Inner(ctx).ctx, cursor, entries, capacity, stride, count);
    };
    return table;
  }

  // `gets` more reads; those that wait come first.
  void Allow(uint64_t gets) {
    std::deque<kvstrata_storage_request> ready;
    {
      const std::lock_guard lock(mutex_);
      allowed_ = gets > UINT64_MAX - allowed_ ? UINT64_MAX : allowed_ + gets;
      while (!waiting_.empty() && allowed_ > 0) {
        --allowed_;
        ready.push_back(waiting_.front());
        waiting_.pop_front();
      }
    }
    for (const kvstrata_storage_request& request : ready) inner_.submit(inner_.ctx, &request, 1, sizeof request);
  }
  // From now on none.
  void Close() {
    const std::lock_guard lock(mutex_);
    allowed_ = 0;
  }
  uint64_t waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }
  // Asked for so far.
  uint64_t gets() {
    const std::lock_guard lock(mutex_);
    return gets_;
  }

 private:
  static const kvstrata_storage& Inner(void* ctx) { return static_cast<GatedStore*>(ctx)->inner_; }

  static kvstrata_status Submit(void* ctx, const kvstrata_storage_request* requests, uint64_t count, uint64_t stride) {
    auto& self = *static_cast<GatedStore*>(ctx);
    for (uint64_t i = 0; i < count; ++i) {
      kvstrata_storage_request request;
      std::memcpy(&request, reinterpret_cast<const std::byte*>(requests) + i * stride, sizeof request);
      if (request.kind == KVSTRATA_STORAGE_GET) {
        const std::lock_guard lock(self.mutex_);
        ++self.gets_;
        if (self.allowed_ == 0) {
          self.waiting_.push_back(request);
          continue;
        }
        if (self.allowed_ != UINT64_MAX) --self.allowed_;
      }
      const kvstrata_status status = self.inner_.submit(self.inner_.ctx, &request, 1, sizeof request);
      if (status != KVSTRATA_OK) return status;
    }
    return KVSTRATA_OK;
  }

  std::unique_ptr<c_store, void (*)(c_store*)> store_;
  const kvstrata_storage inner_;
  std::mutex mutex_;
  uint64_t allowed_ = UINT64_MAX;
  uint64_t gets_ = 0;
  std::deque<kvstrata_storage_request> waiting_;
};

// One prompt of V4-Flash stored from device memory, and plans to restore it to other device memory.
class Prefix {
 public:
  static constexpr uint64_t kTokens = 600;

  explicit Prefix(uint64_t seed, uint64_t staging_bytes = 0)
      : device(kArenaBytes, seed, uint64_t{24} << 20), kind_(PagedEngine("deepseek-v4-flash")) {
    const kvstrata_storage table = store.Table();
    auto options = Sized<kvstrata_cache_options>();
    options.storage = &table;
    options.device = device.table();
    options.capacity_bytes = uint64_t{512} << 20;
    options.staging_bytes = staging_bytes;
    options.io_timeout_ms = 5'000;
    REQUIRE(kvstrata_cache_open(&options, Out(cache), nullptr) == KVSTRATA_OK);
    const auto names = identity_.Options(kind_.layout->handle.get());
    REQUIRE(kvstrata_namespace_open(cache.get(), &names, Out(space_), nullptr) == KVSTRATA_OK);
    Rng rng(seed);
    for (uint64_t i = 0; i < kTokens; ++i) prompt.Append(static_cast<int32_t>(rng.Below(1000)));
    FakeEngine engine(kind_, kTokens + 8, &device, seed + 1);
    engine.sequence() = prompt;
    WriterHandle writer;
    auto writing = Sized<kvstrata_writer_options>();
    writing.stream = &stream;
    REQUIRE(kvstrata_writer_open(space_.get(), nullptr, &writing, Out(writer), nullptr) == KVSTRATA_OK);
    REQUIRE(engine.Advance(writer.get(), 0, kTokens) == "");
    REQUIRE(kvstrata_writer_snapshot(writer.get(), nullptr) == KVSTRATA_OK);
    REQUIRE(kvstrata_writer_commit(writer.get(), 0, kWaitMs, nullptr, nullptr) == KVSTRATA_OK);
    prompt.Append(1);
    target = std::make_unique<FakeEngine>(kind_, kTokens + 8, &device, seed + 2);
  }
  ~Prefix() {
    device.model().Stall(false);
    store.Allow(UINT64_MAX);
    plan.reset();
    match_.reset();
    target.reset();
    space_.reset();
    cache.reset();
    device.model().Drain();
    CheckModel(device);
  }

  // A lookup and a plan for it, with poisoned destinations; not started.
  void Plan(kvstrata_plan_signal_fn signal = nullptr, void* user = nullptr) {
    plan.reset();
    MatchHandle match;
    REQUIRE(kvstrata_lookup(space_.get(), prompt.All(), nullptr, Out(match), nullptr) == KVSTRATA_OK);
    auto info = Sized<kvstrata_match_info>();
    REQUIRE(kvstrata_match_get_info(match.get(), &info, nullptr) == KVSTRATA_OK);
    REQUIRE(info.usable_tokens == kTokens);
    auto options = Sized<kvstrata_plan_options>();
    options.flags = KVSTRATA_PLAN_EARLY_RELEASE;
    options.stream = &stream;
    options.signal = signal;
    options.signal_user = user;
    REQUIRE(kvstrata_plan_create(match.get(), &options, Out(plan), nullptr) == KVSTRATA_OK);
    destinations = target->Destinations(info, prompt);
    match_ = std::move(match);
  }
  void Start() {
    REQUIRE(kvstrata_plan_start(plan.get(), destinations.data(), destinations.size(), sizeof(kvstrata_buffer),
                                nullptr) == KVSTRATA_OK);
  }
  kvstrata_plan_result Wait() {
    auto result = Sized<kvstrata_plan_result>();
    REQUIRE(kvstrata_plan_wait(plan.get(), kWaitMs, &result, nullptr) == KVSTRATA_OK);
    return result;
  }
  // All bytes of the destinations of streams of the layers up to `layer`.
  std::vector<std::byte> Bytes(uint32_t layer) {
    std::vector<std::byte> all;
    for (const kvstrata_buffer& buffer : destinations) {
      if (kind_.layout->streams[buffer.stream].layer > layer) continue;
      const size_t at = all.size();
      all.resize(at + buffer.size_bytes);
      device.Read(all.data() + at, static_cast<const std::byte*>(buffer.base), buffer.size_bytes);
    }
    return all;
  }
  // The whole prefix once more, every byte compared.
  void CheckWhole() {
    FakeEngine engine(kind_, kTokens + 8, &device, 77);
    MatchHandle match;
    REQUIRE(kvstrata_lookup(space_.get(), prompt.All(), nullptr, Out(match), nullptr) == KVSTRATA_OK);
    RestoreOptions options;
    options.early_release = true;
    options.by_layer = true;
    auto result = Sized<kvstrata_plan_result>();
    CHECK(engine.Restore(match.get(), prompt, options, &result) == "");
    CHECK(result.usable_tokens == kTokens);
  }
  kvstrata_stats Stats() {
    auto stats = Sized<kvstrata_stats>();
    REQUIRE(kvstrata_cache_stats(cache.get(), &stats, nullptr) == KVSTRATA_OK);
    return stats;
  }

  GatedStore store;
  CudaModelDevice device;
  int stream = 0;
  CacheHandle cache;
  Sequence prompt;
  std::unique_ptr<FakeEngine> target;
  PlanHandle plan;
  std::vector<kvstrata_buffer> destinations;

 private:
  EngineKind kind_;
  TestIdentity identity_;
  NamespaceHandle space_;
  MatchHandle match_;
};

}  // namespace

TEST_CASE("paged engine with a small model in GPU memory") {
  CudaModelDevice device(kArenaBytes, 60);
  {
    RandomRun run = Run("small gpu", SmallPagedEngine(), &device, 61, 60);
    run.store = StoreKind::kUser;
    run.max_tokens = 700;
    run.max_step = 40;
    run.extra_keys = true;
    RunRandomOperations(run);
  }
  CHECK(device.model().launches() > 0);
  CheckModel(device);
}

TEST_CASE("paged engine with V4-Flash in GPU memory") {
  CudaModelDevice device(kArenaBytes, 62);
  {
    RandomRun run = Run("V4-Flash gpu", PagedEngine("deepseek-v4-flash"), &device, 63, 5);
    run.max_tokens = 700;
    run.max_step = 140;
    RunRandomOperations(run);
  }
  CheckModel(device);
}

TEST_CASE("the first layers are there while later ones are still to be read") {
  Prefix prefix(64);
  prefix.store.Close();
  prefix.Plan();
  const std::vector<std::byte> before = prefix.Bytes(0);
  prefix.Start();
  auto result = Sized<kvstrata_plan_result>();
  // Read after read, until the first layer is there.
  while (kvstrata_plan_wait_layers(prefix.plan.get(), 1, 50, &result, nullptr) == KVSTRATA_E_TIMEOUT) {
    prefix.store.Allow(1);
  }
  REQUIRE(result.state == KVSTRATA_PLAN_RUNNING);
  CHECK(result.layers_ready >= 1);
  CHECK(result.layers_ready < result.layers_total / 2);
  CHECK(prefix.store.waiting() > 0);
  const std::vector<std::byte> ready = prefix.Bytes(0);
  CHECK(ready != before);
  prefix.store.Allow(UINT64_MAX);
  CHECK(prefix.Wait().state == KVSTRATA_PLAN_COMPLETE);
  CHECK(prefix.Bytes(0) == ready);
  prefix.CheckWhole();
}

TEST_CASE("a restore takes few launches: not one for each block") {
  Prefix prefix(65);
  prefix.Plan();
  const uint64_t launches = prefix.device.model().launches(), copies = prefix.device.model().engine_copies();
  prefix.Start();
  REQUIRE(prefix.Wait().state == KVSTRATA_PLAN_COMPLETE);
  // Each stream of a read is one call, whatever pages its rows go to; few streams are cut by the end of a read.
  const uint64_t calls = prefix.device.model().launches() - launches + prefix.device.model().engine_copies() - copies;
  CHECK(calls < 2 * kvstrata_plan_segment_count(prefix.plan.get()));
  CHECK(prefix.device.model().pinned_peak() <= uint64_t{24} << 20);
}

TEST_CASE("what the engine has queued before a restore sees its pages as they were") {
  Prefix prefix(66);
  prefix.Plan();
  const std::vector<std::byte> before = prefix.Bytes(UINT32_MAX);
  std::vector<std::byte> seen;
  prefix.device.model().Enqueue(&prefix.stream, [&] {
    for (const kvstrata_buffer& buffer : prefix.destinations) {
      const auto* base = static_cast<const std::byte*>(buffer.base);
      seen.insert(seen.end(), base, base + buffer.size_bytes);
    }
  });
  prefix.Start();
  REQUIRE(prefix.Wait().state == KVSTRATA_PLAN_COMPLETE);
  CHECK(seen == before);
  CHECK(prefix.Bytes(UINT32_MAX) != before);
}

TEST_CASE("a restore that is cancelled anywhere leaves nothing on the stream, which goes on") {
  Prefix prefix(67);
  prefix.Plan();
  kvstrata_plan_cancel(prefix.plan.get());  // before it was started
  const uint64_t before = prefix.store.gets();
  prefix.CheckWhole();
  const uint64_t whole = prefix.store.gets() - before;
  CHECK(whole >= 4);
  const uint64_t step = EnvironmentNumber("KVSTRATA_FAIL_STEP", 7);
  for (uint64_t gets = 0; gets < whole; gets += gets < 6 ? 1 : step) {
    CAPTURE(gets);
    prefix.store.Close();
    prefix.Plan();
    prefix.Start();
    prefix.store.Allow(gets);
    auto result = Sized<kvstrata_plan_result>();
    kvstrata_plan_wait_layers(prefix.plan.get(), 1 + gets, 10, &result, nullptr);
    kvstrata_plan_cancel(prefix.plan.get());
    CHECK(prefix.device.model().pending() == 0);
    const std::vector<std::byte> after = prefix.Bytes(UINT32_MAX);
    prefix.store.Allow(UINT64_MAX);  // reads that come too late
    prefix.device.model().Drain();
    CHECK(prefix.Bytes(UINT32_MAX) == after);
    const kvstrata_plan_result ended = prefix.Wait();
    CHECK(ended.state == KVSTRATA_PLAN_CANCELLED);
    CHECK(ended.quiesced == 1);
  }
  prefix.CheckWhole();
}

TEST_CASE("a restore from a signal's callback can be cancelled, and finds the layers that it was told of") {
  Prefix prefix(68);
  std::atomic<uint64_t> told = 0;
  prefix.Plan(
      [](void* user, uint64_t layers, int32_t state) -> int32_t {
        if (state == KVSTRATA_PLAN_RUNNING) static_cast<std::atomic<uint64_t>*>(user)->store(layers);
        return state == KVSTRATA_PLAN_RUNNING && layers >= 3 ? 1 : 0;
      },
      &told);
  prefix.Start();
  CHECK(prefix.Wait().state == KVSTRATA_PLAN_CANCELLED);
  CHECK(told == 3);
  CHECK(prefix.device.model().pending() == 0);
  prefix.CheckWhole();
}

TEST_CASE("a device that hangs fails the restore in its time, and later ones go on beside what it keeps") {
  Prefix prefix(69);
  prefix.Plan();
  prefix.device.model().Hang(true);
  prefix.Start();
  const kvstrata_plan_result result = prefix.Wait();
  CHECK(result.state == KVSTRATA_PLAN_FAILED);
  CHECK(result.status == KVSTRATA_E_DEVICE);
  CHECK(result.quiesced == 0);  // some of the rows may still come
  // What the device may still use is used by nobody else.
  CHECK(prefix.Stats().stuck_staging_bytes > 0);
  prefix.device.model().Hang(false);
  prefix.CheckWhole();
}

TEST_CASE("a restore that is cancelled while its rows are queued returns in its time, and the stream goes on") {
  Prefix prefix(71);
  for (const bool hangs : {false, true}) {
    prefix.Plan();
    CudaModel& model = prefix.device.model();
    // More pauses than any wait of a restore has, however late this thread runs again.
    const uint64_t pauses = model.pauses() + 100'000;
    model.Stall(true);
    prefix.Start();
    while (model.pending() == 0 || model.pauses() < pauses) {
      REQUIRE(kvstrata_plan_wait_layers(prefix.plan.get(), 1, 1, nullptr, nullptr) == KVSTRATA_E_TIMEOUT);
    }
    model.Hang(hangs);
    model.Stall(false);
    kvstrata_plan_cancel(prefix.plan.get());
    const kvstrata_plan_result ended = prefix.Wait();
    CHECK((ended.state == KVSTRATA_PLAN_CANCELLED || (hangs && ended.state == KVSTRATA_PLAN_FAILED)));
    CHECK(ended.quiesced == (hangs ? 0u : 1u));
    model.Hang(false);
    model.Drain();
    prefix.CheckWhole();
  }
}

TEST_CASE("little staging memory is enough, and pinned memory stays within it") {
  Prefix prefix(70, uint64_t{16} << 20);
  prefix.CheckWhole();
  CHECK(prefix.Stats().staging_peak_bytes <= uint64_t{16} << 20);
  CHECK(prefix.device.model().pinned_peak() <= uint64_t{24} << 20);
}

TEST_CASE("fail-Nth: any call of CUDA's run-time library under a cache") {
  constexpr uint64_t kMostCalls = 20'000;
  const uint64_t step = EnvironmentNumber("KVSTRATA_FAIL_STEP", 67);
  bool failed = true;
  // Calls of one sort come again and again: after the first of each every so many will do.
  for (uint64_t n = 1; failed && n < kMostCalls; n += n < 24 ? 1 : step) {
    CAPTURE(n);
    const std::unique_ptr<c_store, void (*)(c_store*)> store(c_store_create(), c_store_free);
    CudaModelDevice device(uint64_t{8} << 20, n);
    Scenario scenario{SmallPagedEngine(), c_store_table(store.get()), nullptr, &device, false};
    device.model().FailNth(n);
    const ScenarioResult result = RunScenario(scenario);
    failed = device.model().failed();
    if (!failed) CHECK(result.failed_calls + result.shortened + result.dropped == 0);
    device.model().Drain();
    CheckModel(device);
  }
  CHECK(!failed);
}

}  // namespace kvstrata::test
