// SPDX-License-Identifier: Apache-2.0
// A mini engine with a cache behind it, through the public C++ API only: what the restore tests serve prompts with.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "examples/mini_engine/engine.h"
#include "kvstrata/kvstrata.hpp"

namespace restore_test {

enum class StoreKind { kMemory, kFile, kUser };
const char* NameOf(StoreKind kind);

class Shelf;  // the records of a user-supplied storage; outlives the caches that use it

struct RigOptions {
  StoreKind store = StoreKind::kMemory;
  std::shared_ptr<const mini_engine::Model> model;  // none: the tiny one
  std::string directory;                            // kFile; empty: a temporary one
  uint32_t snapshot_policy = 0;
  uint64_t max_tokens = 256;
  uint64_t chunk_tokens = 64;
};

// Bits of the modes that a request allows.
uint32_t Allow(std::initializer_list<kvstrata::resume_mode> modes);

struct ServeOptions {
  uint32_t allowed_modes = 0;
  bool store = true;
  bool snapshots = true;               // those of the policy
  std::vector<uint64_t> snapshots_at;  // besides
  mini_engine::Fault fault = mini_engine::Fault::kNone;
  uint64_t skipped_replay_tokens = 0;  // a fault: the replay begins this much too late
};

struct Served {
  kvstrata::resume_mode mode = kvstrata::resume_mode::none;
  kvstrata::reason reason = kvstrata::reason::none;
  uint64_t matched_tokens = 0;
  uint64_t usable_tokens = 0;
  uint64_t replay_from = 0;
  std::vector<float> logits;  // of the prompt's last token
};

class Rig {
 public:
  explicit Rig(const RigOptions& options);
  ~Rig();

  // Ends everything that lives in memory and opens the store again, with a new engine. A memory store cannot be
  // opened again: then only the engine is new.
  void Restart();

  // Looks up, restores, runs the rest of `prompt`, stores it. Throws std::runtime_error on any error of the library.
  Served Serve(std::span<const int32_t> prompt, const ServeOptions& options = {});

  mini_engine::Engine& engine() { return *engine_; }
  const std::shared_ptr<const mini_engine::Model>& model() const { return model_; }
  kvstrata::cache& cache() { return cache_; }

 private:
  void Open();
  mini_engine::Resume Restore(kvstrata::match& match, kvstrata::restore_plan& plan, Served& served);
  void RunAndStore(std::span<const int32_t> prompt, const kvstrata::restore_plan& plan, uint64_t from,
                   const ServeOptions& options);

  RigOptions options_;
  bool own_directory_ = false;
  std::shared_ptr<const mini_engine::Model> model_;
  std::shared_ptr<Shelf> shelf_;
  kvstrata::cache cache_;
  kvstrata::name_space name_space_;
  std::unique_ptr<mini_engine::Engine> engine_;
};

// `count` tokens that look like text: reproducible, and equal prefixes for equal seeds.
std::vector<int32_t> TestTokens(size_t count, uint32_t seed = 1);

bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

// Logits of one token sequence without a cache, after any number of its tokens; run once, as far as asked.
class ColdRun {
 public:
  ColdRun(const std::shared_ptr<const mini_engine::Model>& model, std::vector<int32_t> tokens);
  const std::vector<float>& At(uint64_t length);  // 1 .. tokens

 private:
  std::vector<int32_t> tokens_;
  std::unique_ptr<mini_engine::Engine> engine_;
  std::vector<std::vector<float>> logits_;  // [length - 1]
};

// The model of TinyConfig; one for all rigs of a program.
const std::shared_ptr<const mini_engine::Model>& TinyModel();

// Logits after each of `lengths` (ascending) tokens of `tokens`, without a cache.
std::vector<std::vector<float>> ColdLogits(const std::shared_ptr<const mini_engine::Model>& model,
                                           std::span<const int32_t> tokens, std::span<const uint64_t> lengths);
std::vector<float> ColdLogits(const std::shared_ptr<const mini_engine::Model>& model, std::span<const int32_t> tokens);

}  // namespace restore_test
