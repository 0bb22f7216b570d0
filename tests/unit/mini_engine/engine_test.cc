// SPDX-License-Identifier: Apache-2.0
// The mini engine without a cache: that it may be trusted as the measure of a restore. Profile Q throughout.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "examples/mini_engine/engine.h"
#include "tests/support/catch.hpp"

namespace {

using mini_engine::Carry;
using mini_engine::Engine;
using mini_engine::EngineOptions;
using mini_engine::Fault;
using mini_engine::GrowingRows;
using mini_engine::LayerMemory;
using mini_engine::Model;
using mini_engine::ModelConfig;
using mini_engine::Resume;

std::shared_ptr<const Model> MakeModel(const ModelConfig& config) {
  return std::make_shared<const Model>(config, KVSTRATA_KERNELS_LEVEL_REFERENCE);
}

std::shared_ptr<const Model> TinyModel() {
  static const std::shared_ptr<const Model> model = MakeModel(mini_engine::TinyConfig());
  return model;
}

// Bytes of a text-like sequence: a linear congruence, upper bits.
std::vector<int32_t> Tokens(size_t count, uint32_t seed = 1) {
  std::vector<int32_t> out(count);
  for (int32_t& token : out) {
    seed = seed * 1664525u + 1013904223u;
    token = static_cast<int32_t>(seed >> 24);
  }
  return out;
}

EngineOptions Options(uint64_t max_tokens, uint64_t chunk = 64, uint32_t threads = 1) {
  EngineOptions options;
  options.max_tokens = max_tokens;
  options.chunk_tokens = chunk;
  options.threads = threads;
  return options;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The floats that a restore does not give: NaN, so that using one is seen.
void Poison(std::vector<float>& floats) {
  std::fill(floats.begin(), floats.end(), std::numeric_limits<float>::quiet_NaN());
}

// What a cache moves: bytes of rows, rings and carries. Nothing else may be needed.
void CopyStored(const Engine& from, Engine& to, bool with_state) {
  for (size_t layer = 0; layer < from.model().config.layers.size(); ++layer) {
    const LayerMemory& source = from.memory(layer);
    LayerMemory& target = to.memory(layer);
    target.entries.bytes = source.entries.bytes;
    target.keys.bytes = source.keys.bytes;
    for (auto* floats : {&target.recent, &target.entries.rows, &target.keys.rows}) Poison(*floats);
    if (!with_state) continue;
    target.ring = source.ring;
    target.carry = source.carry;
    target.index_carry = source.index_carry;
  }
}

std::vector<float> Cold(const std::shared_ptr<const Model>& model, std::span<const int32_t> tokens) {
  Engine engine(model, Options(tokens.size()));
  engine.Run(tokens);
  return engine.logits();
}

TEST_CASE("logits do not depend on chunks, calls or threads") {
  const std::vector<int32_t> tokens = Tokens(150);
  Engine whole(TinyModel(), Options(tokens.size()));
  whole.Run(tokens);
  for (const uint64_t chunk : {1u, 3u, 5u, 17u, 200u}) {
    for (const uint32_t threads : {1u, 2u, 3u}) {
      CAPTURE(chunk, threads);
      Engine engine(TinyModel(), Options(tokens.size(), chunk, threads));
      const std::span<const int32_t> all = tokens;
      engine.Run(all.first(70));
      engine.Run(all.subspan(70, 1));
      engine.Run(all.subspan(71));
      CHECK(engine.position() == tokens.size());
      CHECK(SameBits(engine.logits(), whole.logits()));
      for (size_t layer = 0; layer < 4; ++layer) {
        CHECK(engine.memory(layer).entries.bytes == whole.memory(layer).entries.bytes);
        CHECK(engine.memory(layer).keys.bytes == whole.memory(layer).keys.bytes);
        CHECK(engine.memory(layer).ring == whole.memory(layer).ring);
      }
    }
  }
}

TEST_CASE("a token changes what follows it, near and far, and nothing before it") {
  std::vector<int32_t> tokens = Tokens(120);
  const std::span<const int32_t> all = tokens;
  const std::vector<float> before = Cold(TinyModel(), all.first(30));
  const std::vector<float> far = Cold(TinyModel(), all);
  tokens[40] ^= 1;
  CHECK(SameBits(Cold(TinyModel(), all.first(30)), before));
  // 80 tokens later the window (8 x 4 layers) has long forgotten it: only compressed entries can carry it.
  CHECK(!SameBits(Cold(TinyModel(), all), far));
}

TEST_CASE("bytes, rings and carries at any position are the whole state") {
  const ModelConfig& c = TinyModel()->config;
  const std::vector<int32_t> tokens = Tokens(80);
  const std::span<const int32_t> all = tokens;
  const std::vector<float> cold = Cold(TinyModel(), all);
  for (const uint64_t p : {1u, 3u, 4u, 5u, 7u, 8u, 9u, 15u, 16u, 17u, 31u, 32u, 33u, 50u, 79u}) {
    CAPTURE(p);
    Engine first(TinyModel(), Options(tokens.size()));
    first.Run(all.first(p));
    Engine second(TinyModel(), Options(tokens.size(), 7));
    CopyStored(first, second, true);
    second.BeginRestored(Resume{p, p, p, true});
    second.Run(all.subspan(p));
    CHECK(SameBits(second.logits(), cold));
    CHECK(second.memory(1).entries.count == tokens.size() / c.csa_ratio);
  }
}

TEST_CASE("full replay is exact from (W-1)*L tokens on, not with one less, and writes no row below the floor") {
  const ModelConfig& c = TinyModel()->config;
  const uint64_t hit = 64;  // a multiple of 16, the block of this model
  const uint64_t need = c.exact_replay_tokens();
  REQUIRE(need == 28);
  const std::vector<int32_t> tokens = Tokens(hit + 20);
  const std::span<const int32_t> all = tokens;
  Engine first(TinyModel(), Options(tokens.size()));
  first.Run(all.first(hit));
  const auto replay = [&](uint64_t replayed, uint64_t until) {
    Engine engine(TinyModel(), Options(tokens.size(), 6));
    CopyStored(first, engine, false);
    engine.BeginRestored(Resume{hit, hit - replayed, hit, false});
    engine.Run(all.subspan(hit - replayed, until - (hit - replayed)));
    for (const size_t layer : {1u, 2u, 3u}) {
      const GrowingRows& got = engine.memory(layer).entries;
      const GrowingRows& stored = first.memory(layer).entries;
      const size_t below = hit / stored.ratio * TinyModel()->row_format.row_bytes();
      CHECK(std::memcmp(got.bytes.data(), stored.bytes.data(), below) == 0);
      CHECK(got.count == until / stored.ratio);
    }
    return engine.logits();
  };
  CHECK(SameBits(replay(need, hit + 1), Cold(TinyModel(), all.first(hit + 1))));
  CHECK(SameBits(replay(need + 1, hit + 1), Cold(TinyModel(), all.first(hit + 1))));
  CHECK(SameBits(replay(need, hit + 20), Cold(TinyModel(), all)));
  // The row that is missing is the oldest one that the query at `hit` sees in the last layer.
  CHECK(!SameBits(replay(need - 1, hit + 1), Cold(TinyModel(), all.first(hit + 1))));
}

TEST_CASE("replaying from an earlier state is exact") {
  const std::vector<int32_t> tokens = Tokens(60);
  const std::span<const int32_t> all = tokens;
  const uint64_t snapshot = 21, hit = 48;
  Engine rows(TinyModel(), Options(tokens.size()));
  rows.Run(all.first(hit));
  Engine state(TinyModel(), Options(tokens.size()));
  state.Run(all.first(snapshot));
  Engine engine(TinyModel(), Options(tokens.size()));
  CopyStored(state, engine, true);
  for (size_t layer = 0; layer < 4; ++layer) {
    engine.memory(layer).entries.bytes = rows.memory(layer).entries.bytes;
    engine.memory(layer).keys.bytes = rows.memory(layer).keys.bytes;
  }
  engine.BeginRestored(Resume{hit, snapshot, hit, true});
  engine.Run(all.subspan(snapshot));
  CHECK(SameBits(engine.logits(), Cold(TinyModel(), all)));
}

TEST_CASE("every fault on purpose is seen in the logits") {
  const std::vector<int32_t> tokens = Tokens(64);
  const std::span<const int32_t> all = tokens;
  const uint64_t p = 48;
  Engine first(TinyModel(), Options(tokens.size()));
  first.Run(all.first(p));
  for (const Fault fault : {Fault::kDropOverlap, Fault::kReverseWindow, Fault::kShiftPositionBias}) {
    CAPTURE(static_cast<int>(fault));
    Engine second(TinyModel(), Options(tokens.size()));
    CopyStored(first, second, true);
    second.BeginRestored(Resume{p, p, p, true}, fault);
    second.Run(all.subspan(p));
    CHECK(!SameBits(second.logits(), Cold(TinyModel(), all)));
  }
}

TEST_CASE("every storage holds the rows exactly, so all give the same logits") {
  const std::vector<int32_t> tokens = Tokens(40);
  ModelConfig floats = mini_engine::TinyConfig();
  floats.storage = mini_engine::RowStorage::kF32;
  const auto model = MakeModel(floats);
  const uint64_t p = 23;
  const std::span<const int32_t> all = tokens;
  Engine first(model, Options(tokens.size()));
  first.Run(all.first(p));
  Engine second(model, Options(tokens.size()));
  CopyStored(first, second, true);
  second.BeginRestored(Resume{p, p, p, true});
  second.Run(all.subspan(p));
  CHECK(SameBits(second.logits(), Cold(model, all)));
  CHECK(SameBits(second.logits(), Cold(TinyModel(), all)));
}

TEST_CASE("V4-Flash widths: packed rows of 584 bytes and keys of 68 are the whole state") {
  const auto model = MakeModel(mini_engine::V4FlashWidthsConfig());
  CHECK(model->row_format.row_bytes() == 584);
  CHECK(model->key_format.row_bytes() == 68);
  CHECK(model->config.block_tokens() == 128);
  const std::vector<int32_t> tokens = Tokens(150);
  const std::span<const int32_t> all = tokens;
  Engine cold(model, Options(tokens.size(), 64, 2));
  cold.Run(all);
  for (const uint64_t p : {128u, 133u}) {
    CAPTURE(p);
    Engine first(model, Options(tokens.size(), 64, 2));
    first.Run(all.first(p));
    Engine second(model, Options(tokens.size(), 50, 2));
    CopyStored(first, second, true);
    second.BeginRestored(Resume{p, p, p, true});
    second.Run(all.subspan(p));
    CHECK(SameBits(second.logits(), cold.logits()));
  }
}

TEST_CASE("the demonstration's model is bit-equal in calls of any size") {
  const auto model = MakeModel(mini_engine::DemoConfig());
  const std::vector<int32_t> tokens = Tokens(40);
  Engine whole(model, Options(tokens.size(), 64, 2));
  whole.Run(tokens);
  Engine steps(model, Options(tokens.size(), 1));
  steps.Run(tokens);
  CHECK(SameBits(whole.logits(), steps.logits()));
}

TEST_CASE("what does not fit is refused before anything changes") {
  Engine engine(TinyModel(), Options(8));
  engine.Run(Tokens(6));
  CHECK_THROWS_AS(engine.Run(Tokens(3)), std::length_error);
  const std::vector<int32_t> foreign = {0, 261};
  CHECK_THROWS_AS(engine.Run(foreign), std::out_of_range);
  CHECK(engine.position() == 6);
  CHECK_THROWS_AS(engine.BeginRestored(Resume{9, 9, 9, false}), std::length_error);
  ModelConfig wrong = mini_engine::DemoConfig();
  wrong.rope_dims = 48;
  CHECK_THROWS_AS(MakeModel(wrong), std::logic_error);
}

}  // namespace
