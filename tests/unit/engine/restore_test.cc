// SPDX-License-Identifier: Apache-2.0
// Lookup, plan and restore over memory and over a storage that fails: every mode, any position, every read damaged
// once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace plan = kvstrata::core::plan;
using base::Code;

namespace {

// A device whose memory is the host's, that counts the pinned memory it gave out, and fails on request.
class TestDevice final : public engine::Device {
 public:
  std::byte* AllocatePinned(int32_t, uint64_t bytes, uint64_t) override {
    base::MutexLock lock(mutex_);
    ++pinned;
    pinned_.push_back(std::make_unique<std::byte[]>(bytes));
    return pinned_.back().get();
  }
  void ReleasePinned(int32_t, std::byte* memory, uint64_t) override {
    base::MutexLock lock(mutex_);
    --pinned;
    std::erase_if(pinned_, [&](const auto& owned) { return owned.get() == memory; });
  }
  absl::Status Copy(int32_t, void*, engine::CopyDirection direction, std::byte* host, std::byte* base,
                    std::span<const engine::CopyRun> runs) override {
    if (fail_copy) return base::MakeStatus(Code::kDevice, "copy", "refused");
    last_host = host;
    for (const engine::CopyRun& run : runs) {
      for (uint64_t i = 0; i < run.count; ++i) {
        std::byte* h = host + run.host_offset + i * run.host_stride;
        std::byte* m = base + run.memory_offset + i * run.memory_stride;
        const bool to_device = direction == engine::CopyDirection::kToDevice;
        std::memcpy(to_device ? m : h, to_device ? h : m, run.bytes);
      }
    }
    return absl::OkStatus();
  }
  absl::Status Record(int32_t, void*, void** event) override {
    if (fail_record) return base::MakeStatus(Code::kDevice, "record", "failed");
    ++events;
    *event = this;
    return absl::OkStatus();
  }
  absl::Status Wait(int32_t, void*, uint64_t) override {
    return fail_wait ? base::MakeStatus(Code::kDevice, "wait", "timed out") : absl::OkStatus();
  }
  void ReleaseEvent(int32_t, void*) override { --events; }

  std::atomic<int64_t> pinned = 0, events = 0;
  std::atomic<bool> fail_copy = false, fail_record = false, fail_wait = false;
  std::byte* last_host = nullptr;

 private:
  base::Mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> pinned_;
};

}  // namespace

TEST_CASE("memory that a device may still use is kept until the cache goes, and everything else is released") {
  enum class Fault { kNone, kCopy, kRecord, kWait };
  std::vector<std::shared_ptr<TestDevice>> devices;
  for (const Fault fault : {Fault::kNone, Fault::kCopy, Fault::kRecord, Fault::kWait}) {
    CAPTURE(static_cast<int>(fault));
    const auto device = std::make_shared<TestDevice>();
    Store store(RowsLayout());
    store.options.device = device;
    store.Open();
    const Tokens tokens = MakeTokens(9, 1);
    std::vector<std::byte> memory[2];
    const auto buffers = [&] {
      std::vector<engine::BufferDesc> descs = {LinearBuffer(0, memory[0]), LinearBuffer(1, memory[1])};
      for (engine::BufferDesc& desc : descs) desc.memory = engine::MemoryKind::kDevice;
      return descs;
    };
    std::vector<std::byte> right[2];
    for (uint32_t stream = 0; stream < 2; ++stream) {
      for (uint64_t row = 0; row < 8; ++row) {
        const auto bytes = ExpectedRow(store.layout(), stream, tokens, row, 0);
        right[stream].insert(right[stream].end(), bytes.begin(), bytes.end());
      }
      memory[stream] = right[stream];
    }
    const auto writer = store.Begin();
    for (const engine::BufferDesc& desc : buffers()) REQUIRE(writer->SetSource(desc).ok());
    REQUIRE(writer->Advance(Prefix(tokens, 8), {}, 8).ok());
    REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
    CHECK(device->pinned == 0);

    const auto restore = RestorePlan::Create(*store.Lookup(tokens), {}).value();
    for (std::vector<std::byte>& m : memory) std::ranges::fill(m, std::byte{0});
    device->fail_copy = fault == Fault::kCopy;
    device->fail_record = fault == Fault::kRecord;
    device->fail_wait = fault == Fault::kWait;
    REQUIRE(restore->Start(buffers()).ok());
    RestoreResult result;
    REQUIRE(restore->Wait(60'000, &result).ok());
    CHECK(result.state == (fault == Fault::kNone ? RestoreState::kComplete : RestoreState::kFailed));
    if (fault == Fault::kNone) CHECK((memory[0] == right[0] && memory[1] == right[1]));
    // Rows to store, taken from the device: dropped, with the same rule for their memory.
    const auto second = store.Begin();
    for (const engine::BufferDesc& desc : buffers()) REQUIRE(second->SetSource(desc).ok());
    REQUIRE(second->Advance(MakeTokens(4, 2), {}, 4).ok());
    CommitInfo info;
    REQUIRE(second->Commit(false, false, 0, &info).ok());
    CHECK(info.progress.blocks_dropped == (fault == Fault::kNone ? 0 : 1));
    const bool unfinished = fault == Fault::kRecord || fault == Fault::kWait;
    Await([&] { return device->pinned == (unfinished ? 2 : 0); });
    const Stats stats = store.stats();
    CHECK(stats.staging_bytes == stats.stuck_staging_bytes);
    CHECK((stats.stuck_staging_bytes > 0) == unfinished);
    CHECK(device->events == 0);
    if (unfinished) device->last_host[0] = std::byte{1};  // still there: a sanitizer would object
    CHECK(base::CodeOf(result.status) == (fault == Fault::kNone ? Code::kOk : Code::kDevice));
    devices.push_back(device);
  }
  for (const auto& device : devices) CHECK(device->pinned == 0);
}

TEST_CASE("each mode restores what it promises") {
  Store store(HybridLayout(), 1 << 20, plan::SnapshotPolicy::Zero());
  store.Open();
  const Tokens tokens = MakeTokens(41, 1);
  StoreWithSnapshots(store, tokens, {16, 24});
  struct Case {
    uint32_t modes;
    Mode mode;
    uint64_t usable, replay_from, snapshot;
  };
  const uint64_t none = engine::kNoPosition;
  const std::vector<Case> cases = {
      {0, Mode::kSnapshot, 24, 24, 24},
      {ModeBit(Mode::kSnapshot), Mode::kSnapshot, 24, 24, 24},
      {ModeBit(Mode::kSnapshotReplay), Mode::kSnapshotReplay, 40, 24, 24},
      {ModeBit(Mode::kFullReplay), Mode::kFullReplay, 40, 30, none},
      // Fewest tokens to run: from 30 on.
      {kAllModes, Mode::kFullReplay, 40, 30, none},
      // Not declared by this layout.
      {ModeBit(Mode::kBoundedReplay), Mode::kNone, 0, 0, none},
  };
  for (const Case& c : cases) {
    CAPTURE(c.modes);
    const auto match = store.Lookup(tokens, {.allowed_modes = c.modes});
    const plan::Plan& p = match->plan();
    CHECK(p.mode == c.mode);
    CHECK(p.usable_tokens == c.usable);
    CHECK(p.replay_from == c.replay_from);
    CHECK(p.write_floor == c.usable);
    CHECK((p.snapshot.has_value() ? p.snapshot->position : none) == c.snapshot);
    CHECK(match->leased() == (c.mode != Mode::kNone));
    const Restored restored = store.Restore(*match, tokens);
    CHECK(restored.result.state == RestoreState::kComplete);
    CHECK(restored.result.plan.usable_tokens == c.usable);
  }
  store.CheckAccounts();
  CHECK(store.stats().restores_complete == cases.size());
}

TEST_CASE("bounded replay is offered where the layout declares it") {
  Store store(HybridLayout(/*bounded_replay=*/true), 1 << 20, plan::SnapshotPolicy::Zero());
  store.Open();
  const Tokens tokens = MakeTokens(41, 1);
  StoreWithSnapshots(store, tokens, {});
  const auto match = store.Lookup(tokens, {.allowed_modes = kAllModes});
  CHECK(match->plan().mode == Mode::kBoundedReplay);
  CHECK(match->plan().replay_from == 34);
  CHECK(store.Restore(*match, tokens).result.state == RestoreState::kComplete);
}

TEST_CASE("a snapshot at any position restores there, and only behind the very same tokens") {
  Store store(HybridLayout());
  store.Open();
  for (uint64_t position = 1; position <= 26; ++position) {
    CAPTURE(position);
    const Tokens tokens = MakeTokens(30, 100 + position);
    const auto writer = store.Begin();
    REQUIRE(store.Step(*writer, Prefix(tokens, position), 0, position).ok());
    REQUIRE(writer->Snapshot().ok());
    REQUIRE(writer->Commit(false, false, 0, nullptr).ok());

    for (const uint64_t length : {position + 1, uint64_t{30}}) {
      const auto match = store.Lookup(Prefix(tokens, length));
      REQUIRE(match->plan().mode == Mode::kSnapshot);
      REQUIRE(match->plan().usable_tokens == position);
      REQUIRE(store.Restore(*match, tokens).result.state == RestoreState::kComplete);
    }
    // One token must always be computed.
    CHECK(store.Lookup(Prefix(tokens, position))->plan().usable_tokens < position);
    // The last token before the snapshot differs: its tail, or its whole block, is another's.
    Tokens other = tokens;
    other[position - 1] ^= 1;
    CHECK(store.Lookup(other)->plan().usable_tokens == 0);
    // The first one after it does not matter.
    other = tokens;
    other[position] ^= 1;
    CHECK(store.RestoredTokens(other) >= position);
  }
  store.CheckAccounts();
}

TEST_CASE("what the caller holds is neither read nor written") {
  for (const bool early : {false, true}) {
    Store store(HybridLayout());
    store.Open();
    const Tokens tokens = MakeTokens(45, 2);
    StoreWithSnapshots(store, tokens, {43});
    for (uint64_t held = 0; held < 43; ++held) {
      CAPTURE(held, early);
      const auto match = store.Lookup(tokens, {.held_tokens = held});
      REQUIRE(match->plan().usable_tokens == 43);
      CHECK(match->plan().read_blocks_from == held / 8);
      RestoreOptions options;
      options.early_release = early;
      CHECK(store.Restore(*match, tokens, options).result.state == RestoreState::kComplete);
    }
    CHECK(store.Lookup(tokens, {.held_tokens = 43})->plan().reason == Reason::kHeld);
    store.CheckAccounts();
  }
}

TEST_CASE("a part of the streams can be restored alone") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 2);
  StoreWithSnapshots(store, tokens, {43});
  for (uint32_t mask = 1; mask < 64; ++mask) {
    RestoreOptions options;
    options.early_release = mask % 2 == 0;
    for (uint32_t i = 0; i < 6; ++i) {
      if ((mask >> i & 1) != 0) options.streams.push_back(i);
    }
    CAPTURE(mask);
    const Restored restored = store.Restore(*store.Lookup(tokens), tokens, options);
    CHECK(restored.result.state == RestoreState::kComplete);
  }
  RestoreOptions options;
  options.streams = {6};
  CHECK(base::CodeOf(RestorePlan::Create(*store.Lookup(tokens), options).status()) == Code::kInvalidArgument);
}

TEST_CASE("layers are given out in order, and the last ones with the end") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 2);
  StoreWithSnapshots(store, tokens, {43});
  std::vector<std::pair<uint64_t, RestoreState>> signals;
  RestoreOptions options;
  options.early_release = true;
  options.notify = [&](uint64_t layers, RestoreState state) {
    signals.emplace_back(layers, state);
    return true;
  };
  CHECK(store.Restore(*store.Lookup(tokens), tokens, options).result.layers_ready == 2);
  REQUIRE(signals.size() == 2);
  CHECK(signals[0] == std::pair(uint64_t{1}, RestoreState::kRunning));
  CHECK(signals[1] == std::pair(uint64_t{2}, RestoreState::kComplete));
  // A refusal cancels.
  options.notify = [&](uint64_t, RestoreState state) { return state != RestoreState::kRunning; };
  CHECK(store.Restore(*store.Lookup(tokens), tokens, options).result.state == RestoreState::kCancelled);
  store.CheckAccounts();
}

TEST_CASE("a wait does not return before the last signal has") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 2);
  StoreWithSnapshots(store, tokens, {43});
  for (int round = 0; round < 20; ++round) {
    // The signal's user data dies right after the wait, as a caller's would.
    auto user = std::make_unique<std::atomic<int>>(0);
    RestoreOptions options;
    options.notify = [raw = user.get()](uint64_t, RestoreState) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      ++*raw;
      return true;
    };
    store.Restore(*store.Lookup(tokens), tokens, options);
    REQUIRE(*user == 1);
    user.reset();
  }
}

TEST_CASE("state of varying size: its record says how much, also over a storage that answers later") {
  for (const bool later : {false, true}) {
    Store store(OpaqueLayout());
    store.Open();
    store.faults().CompleteAtRandom(later);
    for (uint64_t seed = 0; seed < 40; ++seed) {
      CAPTURE(seed, later);
      const Tokens tokens = MakeTokens(20, 500 + seed);
      StoreWithSnapshots(store, tokens, {7, 8, 19});
      const auto match = store.Lookup(tokens);
      REQUIRE(match->plan().usable_tokens == 19);
      const Restored restored = store.Restore(*match, tokens);
      REQUIRE(restored.start.ok());
      REQUIRE(restored.result.state == RestoreState::kComplete);
      REQUIRE(restored.result.plan.usable_tokens == 19);
    }
    store.CheckAccounts();
  }
}

TEST_CASE("the size of a state is waited for like any other read") {
  Store store(OpaqueLayout());
  store.Open();
  const Tokens tokens = MakeTokens(20, 500);
  StoreWithSnapshots(store, tokens, {19});
  const auto match = store.Lookup(tokens);
  store.faults().Stick();
  std::thread slow([&] {
    Await([&] { return store.faults().withheld() == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    store.faults().Release();
  });
  const auto restore = RestorePlan::Create(*match, {});
  slow.join();
  REQUIRE(restore.ok());
  CHECK((*restore)->Poll().plan.usable_tokens == 19);
}

TEST_CASE("optional streams that were not given leave a block usable") {
  Store store(OptionalLayout());
  store.Open();
  const Tokens tokens = MakeTokens(21, 3);
  const auto writer = store.Begin();
  REQUIRE(store.Step(*writer, tokens, 0, 20).ok());  // with all sources
  REQUIRE(writer->Snapshot().ok());
  REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
  CHECK(store.Restore(*store.Lookup(tokens), tokens).result.state == RestoreState::kComplete);

  const Tokens sparse = MakeTokens(21, 4);
  const auto without = store.Begin();
  std::vector<std::byte> rows(21 * 6), state(5);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = ExpectedRow(store.layout(), 0, sparse, i / 6, 20)[i % 6];
  state = ExpectedRow(store.layout(), 2, sparse, 0, 20);
  REQUIRE(without->SetSource(LinearBuffer(0, rows)).ok());
  REQUIRE(without->SetSource(LinearBuffer(2, state)).ok());
  REQUIRE(without->Advance(sparse, {}, 20).ok());
  REQUIRE(without->Snapshot().ok());
  CommitInfo info;
  REQUIRE(without->Commit(false, false, 0, &info).ok());
  CHECK(info.progress.blocks_stored == 5);
  CHECK(info.progress.snapshots_stored == 1);
  RestoreOptions options;
  options.streams = {0, 2};
  CHECK(store.Restore(*store.Lookup(sparse), sparse, options).result.state == RestoreState::kComplete);
  store.CheckAccounts();
}

TEST_CASE("destinations are checked before anything is read") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 2);
  StoreWithSnapshots(store, tokens, {43});
  std::vector<std::byte> memory(4096);
  const auto start = [&](std::vector<engine::BufferDesc> descs) {
    const auto restore = RestorePlan::Create(*store.Lookup(tokens), {}).value();
    const absl::Status status = restore->Start(std::move(descs));
    CHECK(restore->Poll().state == RestoreState::kCreated);
    return base::FieldOf(status);
  };
  const auto desc = [&](uint32_t stream, uint64_t size) {
    engine::BufferDesc made = LinearBuffer(stream, memory);
    made.size_bytes = size;
    return made;
  };
  CHECK(start({}) == "destinations");
  CHECK(start({desc(6, 4096)}) == "destinations.stream");
  CHECK(start({desc(0, 4096), desc(0, 4096)}) == "destinations.stream");
  CHECK(start({desc(0, 10 * 5 - 1), desc(1, 4096), desc(2, 4096), desc(3, 4096), desc(4, 4096), desc(5, 4096)}) ==
        "buffer[stream 0].size_bytes");
  engine::BufferDesc device = desc(0, 4096);
  device.memory = engine::MemoryKind::kDevice;
  CHECK(start({device}) == "destinations.memory");
  CHECK(store.stats().restores == 0);
}

// ---- Reads that go wrong -------------------------------------------------------------------------------------------

TEST_CASE("every read damaged once: shorter, never wrong, and forgotten where it must be") {
  const Tokens tokens = MakeTokens(45, 5);
  enum class Fault { kFlip, kTruncate, kIo, kGone, kRefused };
  for (const Fault fault : {Fault::kFlip, Fault::kTruncate, Fault::kIo, Fault::kGone, Fault::kRefused}) {
    for (const bool early : {false, true}) {
      for (uint64_t nth = 1; nth < 60; ++nth) {
        CAPTURE(static_cast<int>(fault), early, nth);
        Store store(HybridLayout());
        store.Open();
        StoreWithSnapshots(store, tokens, {16, 43});
        const auto match = store.Lookup(tokens, {.allowed_modes = kAllModes});
        REQUIRE(match->plan().usable_tokens == 43);
        FaultyStorage& faults = store.faults();
        if (fault == Fault::kFlip) faults.FlipNthGet(nth);
        if (fault == Fault::kTruncate) faults.TruncateNthGet(nth);
        if (fault == Fault::kIo) faults.FailNth(StorageCall::kGet, nth, Code::kIo);
        if (fault == Fault::kGone) faults.FailNth(StorageCall::kGet, nth, Code::kNotFound);
        if (fault == Fault::kRefused) faults.FailNth(StorageCall::kSubmit, nth, Code::kInvalidState);
        RestoreOptions options;
        options.early_release = early;
        const Restored restored = store.Restore(*match, tokens, options);
        if (faults.faults() == 0) {
          REQUIRE(restored.result.state == RestoreState::kComplete);
          REQUIRE(nth > 4);
          break;
        }
        REQUIRE(restored.result.state == RestoreState::kShortened);
        REQUIRE(restored.result.plan.usable_tokens < 43);
        faults.FailNothing();
        const Stats stats = store.stats();
        const bool forgotten = fault == Fault::kFlip || fault == Fault::kTruncate || fault == Fault::kGone;
        CHECK((stats.blocks_removed + stats.snapshots_removed > 0) == forgotten);
        CHECK(stats.reads_corrupt + stats.reads_absent + stats.reads_failed == 1);
        // What is promised now is kept.
        const uint64_t again = store.RestoredTokens(tokens);
        CHECK((again == 43) == !forgotten);
        CHECK(store.stats().restores_shortened == 1);
        // And the prompt can be stored anew as if nothing had been.
        StoreWithSnapshots(store, tokens, {forgotten ? uint64_t{20} : 21});
        CHECK(store.RestoredTokens(tokens) >= 40);
        store.CheckAccounts(/*idle=*/false);
      }
    }
  }
}

TEST_CASE("a storage that fails every read gives a miss, and keeps its records") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 5);
  StoreWithSnapshots(store, tokens, {16, 43});
  store.faults().FailNth(StorageCall::kGet, 1, Code::kIo, /*and_all_after=*/true);
  const Restored restored = store.Restore(*store.Lookup(tokens, {.allowed_modes = kAllModes}), tokens);
  CHECK(restored.result.state == RestoreState::kShortened);
  CHECK(restored.result.plan.mode == Mode::kNone);
  CHECK(restored.result.plan.reason == Reason::kUnreadable);
  store.faults().FailNothing();
  CHECK(store.RestoredTokens(tokens) == 43);
  store.CheckAccounts();
}

TEST_CASE("reads that never come: a shorter result in time, all their memory counted as stuck until they do") {
  for (const bool early : {false, true}) {
    // Room for more blocks than are read at a time, and none for runs.
    Store store(HybridLayout(), 20'000);
    store.options.io_timeout_ms = 60;
    store.Open();
    const Tokens tokens = MakeTokens(241, 5);
    StoreWithSnapshots(store, tokens, {});
    const auto match = store.Lookup(tokens, {.allowed_modes = ModeBit(Mode::kFullReplay)});
    store.faults().Stick();
    RestoreOptions options;
    options.early_release = early;
    options.timeout_ms = 100;
    const Restored restored = store.Restore(*match, tokens, options);
    CHECK(restored.result.state == RestoreState::kShortened);
    CHECK(restored.result.plan.mode == Mode::kNone);
    CHECK(store.faults().withheld() == 24);  // as many blocks as are read at a time
    const Stats stats = store.stats();
    CHECK(stats.stuck_staging_bytes > 0);
    CHECK(stats.stuck_staging_bytes == stats.staging_bytes);
    CHECK(stats.reads_timeout > 0);
    store.faults().Release();
    Await([&] { return store.stats().staging_bytes == 0; });
    CHECK(store.stats().stuck_staging_bytes == 0);
    // Slow is not wrong: everything is still there.
    store.cache().Close(std::chrono::seconds(10), nullptr).IgnoreError();
  }
}

TEST_CASE("after a cancel nothing is written any more, though the reads still come") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 5);
  StoreWithSnapshots(store, tokens, {43});
  store.faults().Stick();
  std::vector<std::vector<std::byte>> memory(6, std::vector<std::byte>(4096));
  const auto restore = RestorePlan::Create(*store.Lookup(tokens), {}).value();
  std::vector<engine::BufferDesc> descs;
  for (uint32_t i = 0; i < 6; ++i) descs.push_back(LinearBuffer(i, memory[i]));
  REQUIRE(restore->Start(descs).ok());
  CHECK(base::CodeOf(restore->Start(descs)) == Code::kInvalidState);
  Await([&] { return store.faults().withheld() > 0; });
  CHECK(base::CodeOf(restore->Wait(1, nullptr)) == Code::kTimeout);
  restore->Cancel();
  const RestoreResult result = restore->Poll();
  CHECK(result.state == RestoreState::kCancelled);
  CHECK(result.quiesced);
  CHECK(base::CodeOf(result.status) == Code::kCancelled);
  memory.clear();  // a sanitizer sees any write from now on
  store.faults().Release();
  Await([&] { return store.stats().staging_bytes == 0; });
  CHECK(store.stats().restores_cancelled == 1);
}

TEST_CASE("a record that was stored again by another placement is found out") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(13, 6);
  store.StorePrompt(tokens);
  const auto match = store.Lookup(tokens);
  REQUIRE(match->plan().usable_tokens == 12);
  // Behind the cache's back the same blocks are stored by another life of the same store.
  Store other(RowsLayout());
  other.Open();
  other.StorePrompt(MakeTokens(13, 7));
  other.StorePrompt(tokens);
  std::vector<kvstrata::core::storage::ListEntry> entries;
  REQUIRE(ListAll(other.memory(), 100, &entries).ok());
  for (const auto& entry : entries) {
    const std::string payload = ReadNow(other.memory(), entry.key).value();
    REQUIRE(PutNow(store.memory(), entry.key, payload, base::AsText(entry.meta)).status.ok());
  }
  const Restored restored = store.Restore(*match, tokens);
  CHECK(restored.result.state == RestoreState::kShortened);
  CHECK(restored.result.plan.usable_tokens == 0);
  CHECK(restored.result.plan.reason == Reason::kForeign);
  CHECK(store.stats().reads_stale + store.stats().reads_foreign == 1);
  CHECK(store.Lookup(tokens)->plan().usable_tokens == 0);
}

TEST_CASE("a key under which another prompt's record lies is a miss, and the other prompt is served") {
  Store store(RowsLayout());
  store.Open();
  const Tokens mine = MakeTokens(13, 6), other = MakeTokens(13, 7);
  store.StorePrompt(mine);
  std::vector<kvstrata::core::storage::ListEntry> mine_entries, entries;
  REQUIRE(ListAll(store.memory(), 100, &mine_entries).ok());
  store.StorePrompt(other);
  REQUIRE(ListAll(store.memory(), 100, &entries).ok());
  const auto is_first_run = [](const kvstrata::core::storage::ListEntry& entry) {
    const auto meta = kvstrata::core::format::DecodeRecordMeta(entry.meta);
    return meta.ok() && meta->identity.kind == kvstrata::core::format::RecordKind::kBlock &&
           meta->identity.position == 4;
  };
  // As a store leaves it that took the one's key for the other's: what was put last is found under both.
  const auto lost = std::ranges::find_if(mine_entries, is_first_run);
  REQUIRE(lost != mine_entries.end());
  const auto found =
      std::ranges::find_if(entries, [&](const auto& entry) { return is_first_run(entry) && entry.key != lost->key; });
  REQUIRE(found != entries.end());
  const std::string payload = ReadNow(store.memory(), found->key).value();
  REQUIRE(PutNow(store.memory(), lost->key, payload, base::AsText(found->meta)).status.ok());

  const auto match = store.Lookup(mine);
  REQUIRE(match->plan().usable_tokens == 12);
  const Restored restored = store.Restore(*match, mine);
  CHECK(restored.result.plan.usable_tokens == 0);
  CHECK(restored.result.plan.reason == Reason::kForeign);
  CHECK(store.stats().reads_stale + store.stats().reads_foreign == 1);
  CHECK(store.Lookup(mine)->plan().usable_tokens == 0);
  const auto other_match = store.Lookup(other);
  CHECK(other_match->plan().usable_tokens == 12);
  CHECK(store.Restore(*other_match, other).result.plan.usable_tokens == 12);
}

TEST_CASE("the first differing token is told from the stored continuations") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(16, 8);
  store.StorePrompt(tokens);
  for (uint64_t at = 0; at < 16; ++at) {
    Tokens other = tokens;
    other[at] ^= 1;
    other.push_back(1);
    CAPTURE(at);
    CHECK(store.Lookup(other)->FirstDifference().value() == at);
  }
  CHECK(store.Lookup(Prefix(tokens, 14))->FirstDifference().value() == engine::kNoPosition);
  CHECK(store.Lookup(Join(tokens, {1, 2, 3, 4}))->FirstDifference().value() == engine::kNoPosition);
}

TEST_CASE("matches of equal tokens under other extra keys are not of one prompt") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(13, 6);
  store.StorePrompt(tokens);
  const auto look_up = [&](std::vector<engine::ExtraKey> keys) {
    engine::Prompt prompt;
    REQUIRE(prompt.Append(tokens, std::move(keys)).ok());
    return Match::Lookup(store.cache_handle(), store.space(), std::move(prompt), {}).value();
  };
  const std::vector<std::vector<engine::ExtraKey>> all = {
      {},
      {{9, 1, "image"}},
      {{9, 1, "other"}},
      {{9, 2, "image"}},
      {{10, 1, "image"}},
      {{9, 1, "image"}, {9, 1, "image"}},
      {{9, 1, "image"}, {12, 1, ""}},  // in the part that no block covers
  };
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      CAPTURE(i, j);
      const auto first = look_up(all[i]), second = look_up(all[j]);
      const uint64_t before = first->plan().usable_tokens;
      Match* const matches[] = {first.get(), second.get()};
      const absl::StatusOr<uint64_t> agreed = engine::Agree(matches);
      if (i == j) {
        CHECK(agreed.value() == before);
      } else {
        CHECK(base::FieldOf(agreed.status()) == "matches");
        CHECK(first->plan().usable_tokens == before);
        CHECK(first->usable_limit() == engine::kNoPosition);
      }
    }
  }
}

TEST_CASE("matches of several ranks agree on a length that each can reach") {
  Store a(HybridLayout(), 1 << 20, plan::SnapshotPolicy::Zero());
  Store b(HybridLayout(), 1 << 20, plan::SnapshotPolicy::Zero());
  a.Open();
  b.Open();
  const Tokens tokens = MakeTokens(45, 9);
  StoreWithSnapshots(a, tokens, {8, 24, 40});
  StoreWithSnapshots(b, tokens, {8, 16, 32});
  const auto first = a.Lookup(tokens), second = b.Lookup(tokens);
  Match* const matches[] = {first.get(), second.get()};
  CHECK(engine::Agree(matches).value() == 8);
  CHECK(first->plan().snapshot->position == 8);
  CHECK(a.Restore(*first, tokens).result.plan.usable_tokens == 8);
  CHECK(b.Restore(*second, tokens).result.plan.usable_tokens == 8);
}
