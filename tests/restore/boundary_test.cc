// SPDX-License-Identifier: Apache-2.0
// Restored logits equal cold logits, bit for bit: every mode, every boundary length, every kind of store, across a
// restart of the store. Profile Q, window 8, ratios 4 and 16, so W, m, M and 2M of the real model are 8, 4, 16 and 32
// here; 4,095 to 4,097 lie beyond where top-k selects.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/restore/rig.h"
#include "tests/support/catch.hpp"

namespace {

using kvstrata::resume_mode;
using restore_test::Allow;
using restore_test::ColdLogits;
using restore_test::ColdRun;
using restore_test::NameOf;
using restore_test::Rig;
using restore_test::RigOptions;
using restore_test::SameBits;
using restore_test::Served;
using restore_test::ServeOptions;
using restore_test::StoreKind;
using restore_test::TestTokens;
using restore_test::TinyModel;

constexpr StoreKind kStores[] = {StoreKind::kMemory, StoreKind::kFile, StoreKind::kUser};
// 1, 3, 4, 5, 7, W-1, W, W+1, M-1, M, M+1, 2M-1, 2M, 2M+1 and a few beyond the longest replay of 28 tokens.
constexpr uint64_t kLengths[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65};
constexpr uint64_t kBlock = 16;
constexpr uint64_t kReplay = 28;  // (W-1)*L = 7*4

Served ServeAfterRestart(Rig& rig, std::span<const int32_t> prompt, std::initializer_list<resume_mode> modes) {
  rig.Restart();
  ServeOptions options;
  options.allowed_modes = Allow(modes);
  options.store = false;
  return rig.Serve(prompt, options);
}

// Where the prompt-end policy puts the snapshot of a prompt of n tokens: the last block boundary that the same prompt
// can use, as one token must be computed; inside the first block n-1. 0: none.
uint64_t PromptEndSnapshot(uint64_t n) { return n > kBlock ? (n - 1) / kBlock * kBlock : n - 1; }

// For rigs without a policy.
ServeOptions WithSnapshotAt(uint64_t position) {
  ServeOptions options;
  options.snapshots_at = {position};
  return options;
}

RigOptions WithoutPolicy(StoreKind store) {
  RigOptions options;
  options.store = store;
  options.snapshot_policy = KVSTRATA_SNAPSHOT_NEVER;
  return options;
}

TEST_CASE("SNAPSHOT: state at every boundary length, inside blocks too") {
  const std::vector<int32_t> tokens = TestTokens(100);
  const std::span<const int32_t> all = tokens;
  ColdRun cold(TinyModel(), tokens);
  for (const StoreKind store : kStores) {
    for (const uint64_t n : kLengths) {
      CAPTURE(NameOf(store), n);
      Rig rig(WithoutPolicy(store));
      CHECK(SameBits(rig.Serve(all.first(n), WithSnapshotAt(n)).logits, cold.At(n)));
      for (const uint64_t more : {1u, 20u}) {
        const Served warm = ServeAfterRestart(rig, all.first(n + more), {resume_mode::snapshot});
        CHECK(warm.mode == resume_mode::snapshot);
        CHECK(warm.usable_tokens == n);
        CHECK(warm.replay_from == n);
        CHECK(SameBits(warm.logits, cold.At(n + more)));
      }
    }
  }
}

TEST_CASE("SNAPSHOT: the policy's snapshot of a prompt serves the same prompt again, and a longer one") {
  const std::vector<int32_t> tokens = TestTokens(100);
  const std::span<const int32_t> all = tokens;
  ColdRun cold(TinyModel(), tokens);
  for (const StoreKind store : kStores) {
    for (const uint64_t n : kLengths) {
      CAPTURE(NameOf(store), n);
      RigOptions options;
      options.store = store;
      Rig rig(options);
      rig.Serve(all.first(n));
      for (const uint64_t length : {n, n + 20}) {
        const Served again = ServeAfterRestart(rig, all.first(length), {resume_mode::snapshot});
        CHECK(again.usable_tokens == PromptEndSnapshot(n));
        CHECK(SameBits(again.logits, cold.At(length)));
      }
    }
  }
}

TEST_CASE("SNAPSHOT_REPLAY: rows to the block grid, state from before") {
  const std::vector<int32_t> tokens = TestTokens(160);
  const std::span<const int32_t> all = tokens;
  ColdRun cold(TinyModel(), tokens);
  for (const StoreKind store : kStores) {
    for (const uint64_t n : kLengths) {
      CAPTURE(NameOf(store), n);
      Rig rig(WithoutPolicy(store));
      rig.Serve(all.first(n), WithSnapshotAt(n));
      rig.Serve(all.first(n + 40));
      const uint64_t hit = (n + 40) / kBlock * kBlock;
      for (const uint64_t length : {hit + 1, n + 60}) {
        const Served warm = ServeAfterRestart(rig, all.first(length), {resume_mode::snapshot_replay});
        CHECK(warm.mode == resume_mode::snapshot_replay);
        CHECK(warm.usable_tokens == hit);
        CHECK(warm.replay_from == n);
        CHECK(SameBits(warm.logits, cold.At(length)));
      }
    }
  }
}

TEST_CASE("FULL_REPLAY: rows to the block grid and no state at all") {
  const std::vector<int32_t> tokens = TestTokens(160);
  const std::span<const int32_t> all = tokens;
  ColdRun cold(TinyModel(), tokens);
  for (const StoreKind store : kStores) {
    for (const uint64_t n : kLengths) {
      CAPTURE(NameOf(store), n);
      Rig rig(WithoutPolicy(store));
      rig.Serve(all.first(n));
      const uint64_t hit = n / kBlock * kBlock;
      for (const uint64_t length : {hit + 1, n + 20}) {
        const Served warm = ServeAfterRestart(rig, all.first(length), {resume_mode::full_replay});
        if (hit > kReplay) {
          CHECK(warm.mode == resume_mode::full_replay);
          CHECK(warm.usable_tokens == hit);
          CHECK(warm.replay_from == hit - kReplay);
        } else {
          CHECK(warm.mode == resume_mode::none);
        }
        CHECK(SameBits(warm.logits, cold.At(length)));
      }
    }
  }
}

TEST_CASE("every mode at 4,095 to 4,097 tokens") {
  const std::vector<int32_t> tokens = TestTokens(4130, 3);
  const std::span<const int32_t> all = tokens;
  const std::vector<uint64_t> ends = {4095, 4096, 4097};
  const std::vector<uint64_t> asked = {4096, 4097, 4098, 4113, 4130};
  const std::vector<std::vector<float>> cold = ColdLogits(TinyModel(), tokens, asked);
  for (const StoreKind store : {StoreKind::kFile, StoreKind::kUser}) {
    CAPTURE(NameOf(store));
    RigOptions options = WithoutPolicy(store);
    options.max_tokens = tokens.size();
    Rig rig(options);
    ServeOptions storing;
    storing.snapshots_at = ends;
    rig.Serve(all.first(4120), storing);
    rig.Restart();
    const auto ask = [&](size_t i, resume_mode mode) {
      ServeOptions reading;
      reading.allowed_modes = Allow({mode});
      reading.store = false;
      const Served warm = rig.Serve(all.first(asked[i]), reading);
      CHECK(warm.mode == mode);
      CHECK(SameBits(warm.logits, cold[i]));
      return warm;
    };
    for (size_t i = 0; i < ends.size(); ++i) {
      const Served warm = ask(i, resume_mode::snapshot);
      CHECK(warm.usable_tokens == ends[i]);
      CHECK(warm.replay_from == ends[i]);
    }
    const Served replayed = ask(4, resume_mode::snapshot_replay);
    CHECK(replayed.usable_tokens == 4112);
    CHECK(replayed.replay_from == 4097);
    CHECK(ask(1, resume_mode::full_replay).usable_tokens == 4096);
    CHECK(ask(3, resume_mode::full_replay).usable_tokens == 4112);
  }
}

TEST_CASE("BOUNDED_REPLAY: the last window again, as declared not exact") {
  const std::vector<int32_t> tokens = TestTokens(100);
  const std::span<const int32_t> all = tokens;
  const uint64_t n = 70, hit = 64, window = 8;
  mini_engine::ModelConfig config = mini_engine::TinyConfig();
  config.bounded_replay = true;
  const auto model = std::make_shared<const mini_engine::Model>(config, KVSTRATA_KERNELS_LEVEL_REFERENCE);
  for (const StoreKind store : kStores) {
    CAPTURE(NameOf(store));
    RigOptions options = WithoutPolicy(store);
    options.model = model;
    Rig rig(options);
    rig.Serve(all.first(n));
    const Served warm = ServeAfterRestart(rig, all.first(hit + 1), {resume_mode::bounded_replay});
    CHECK(warm.mode == resume_mode::bounded_replay);
    CHECK(warm.usable_tokens == hit);
    CHECK(warm.replay_from == hit - window);

    // What bounded replay promises: a run whose window is cut at the replay's start, over the cold run's rows.
    mini_engine::EngineOptions engine_options;
    engine_options.max_tokens = n;
    mini_engine::Engine cold(rig.model(), engine_options), simulated(rig.model(), engine_options);
    cold.Run(all.first(hit));
    for (size_t layer = 0; layer < rig.model()->config.layers.size(); ++layer) {
      simulated.memory(layer).entries.bytes = cold.memory(layer).entries.bytes;
      simulated.memory(layer).keys.bytes = cold.memory(layer).keys.bytes;
    }
    simulated.BeginRestored({hit, hit - window, hit, false});
    simulated.Run(all.subspan(hit - window, window + 1));
    CHECK(SameBits(warm.logits, simulated.logits()));
    CHECK(!SameBits(warm.logits, ColdLogits(rig.model(), all.first(hit + 1))));
  }
}

TEST_CASE("a session of many turns, each restored from the one before, has no gap and no drift") {
  const std::vector<int32_t> tokens = TestTokens(400, 9);
  const std::span<const int32_t> all = tokens;
  ColdRun cold(TinyModel(), tokens);
  for (const StoreKind store : kStores) {
    CAPTURE(NameOf(store));
    RigOptions options;
    options.store = store;
    options.max_tokens = tokens.size();
    Rig rig(options);
    uint64_t before = 1;
    for (const uint64_t length : {5u, 22u, 23u, 64u, 100u, 101u, 230u, 399u}) {
      rig.Restart();
      const Served turn = rig.Serve(all.first(length));
      CAPTURE(length);
      CHECK(turn.usable_tokens == PromptEndSnapshot(before));
      CHECK(SameBits(turn.logits, cold.At(length)));
      before = length;
    }
    // The rows of the whole chain, hits included, are stored: no snapshot is needed to find them.
    const Served rows = ServeAfterRestart(rig, tokens, {resume_mode::full_replay});
    CHECK(rows.usable_tokens == 384);
    CHECK(SameBits(rows.logits, cold.At(tokens.size())));
  }
}

TEST_CASE("two sequences that part in the middle do not touch each other") {
  std::vector<int32_t> left = TestTokens(120, 5);
  std::vector<int32_t> right = left;
  for (size_t i = 50; i < right.size(); ++i) right[i] = (right[i] + 1) % 256;
  for (const StoreKind store : kStores) {
    CAPTURE(NameOf(store));
    RigOptions options;
    options.store = store;
    Rig rig(options);
    const std::span<const int32_t> l = left, r = right;
    rig.Serve(l.first(100));
    const auto modes = {resume_mode::snapshot, resume_mode::snapshot_replay, resume_mode::full_replay};
    rig.Restart();
    ServeOptions storing;
    storing.allowed_modes = Allow(modes);
    const Served parted = rig.Serve(r.first(100), storing);
    CHECK(parted.usable_tokens == 48);
    CHECK(SameBits(parted.logits, ColdLogits(rig.model(), r.first(100))));
    CHECK(SameBits(ServeAfterRestart(rig, left, modes).logits, ColdLogits(rig.model(), left)));
    CHECK(SameBits(ServeAfterRestart(rig, right, modes).logits, ColdLogits(rig.model(), right)));
  }
}

TEST_CASE("packed rows of V4-Flash's widths survive a restart") {
  const std::vector<int32_t> tokens = TestTokens(170, 2);
  const std::span<const int32_t> all = tokens;
  RigOptions options = WithoutPolicy(StoreKind::kFile);
  options.model =
      std::make_shared<const mini_engine::Model>(mini_engine::V4FlashWidthsConfig(), KVSTRATA_KERNELS_LEVEL_REFERENCE);
  options.max_tokens = tokens.size();
  Rig rig(options);
  rig.Serve(all.first(133), WithSnapshotAt(133));
  const Served warm = ServeAfterRestart(rig, tokens, {resume_mode::snapshot});
  CHECK(warm.usable_tokens == 133);
  CHECK(SameBits(warm.logits, ColdLogits(rig.model(), tokens)));
}

}  // namespace
