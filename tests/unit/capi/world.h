// SPDX-License-Identifier: Apache-2.0
// A small cache with one namespace and a fake engine, for tests of single rules of the C API.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/c_store.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_engine.h"
#include "tests/support/fake_handles.h"
#include "tests/support/fake_identity.h"
#include "tests/support/fake_paged_engine.h"
#include "tests/support/fake_random.h"
#include "tests/support/fake_sequence.h"

namespace kvstrata::test {

inline Sequence RandomSequence(uint64_t seed, uint64_t length) {
  Sequence sequence;
  Rng rng(seed);
  while (sequence.size() < length) sequence.Append(static_cast<int32_t>(rng.Below(50'000)));
  return sequence;
}

using Store = std::unique_ptr<c_store, void (*)(c_store*)>;

class World {
 public:
  World() : store(c_store_create(), c_store_free), table(c_store_table(store.get())) {
    options.storage = &table;
    options.capacity_bytes = 64 << 20;
  }
  // A budget so small that each block is a record of its own: no run is larger than a 64th of it.
  void KeepBlocksApart() { options.capacity_bytes = 128 << 10; }
  void OpenCache() {
    Error error;
    const kvstrata_status status = kvstrata_cache_open(&options, Out(cache), &error);
    INFO(Describe(status, error));
    REQUIRE(status == KVSTRATA_OK);
  }
  void Open() {
    OpenCache();
    Error error;
    auto names = identity.Options(kind.layout->handle.get());
    const kvstrata_status status = kvstrata_namespace_open(cache.get(), &names, Out(space), &error);
    INFO(Describe(status, error));
    REQUIRE(status == KVSTRATA_OK);
  }
  void Close() {
    space.reset();
    cache.reset();
  }
  kvstrata_stats Stats() const {
    auto stats = Sized<kvstrata_stats>();
    REQUIRE(kvstrata_cache_stats(cache.get(), &stats, nullptr) == KVSTRATA_OK);
    return stats;
  }
  std::unique_ptr<FakeEngine> Engine(uint64_t tokens = 700) const {
    return std::make_unique<FakeEngine>(kind, tokens, nullptr, 3);
  }
  // Stores the whole sequence, with a snapshot at its end unless `flags` say otherwise.
  kvstrata_commit_info StoreSequence(const Sequence& sequence, uint32_t flags = KVSTRATA_COMMIT_OUTPUT_END) {
    const auto engine = Engine(sequence.size() + 1);
    engine->sequence() = sequence;
    WriterHandle writer;
    REQUIRE(kvstrata_writer_open(space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
    const std::string fault = engine->Advance(writer.get(), 0, sequence.size());
    INFO(fault);
    REQUIRE(fault.empty());
    auto info = Sized<kvstrata_commit_info>();
    REQUIRE(kvstrata_writer_commit(writer.get(), flags, 0, &info, nullptr) == KVSTRATA_OK);
    return info;
  }
  MatchHandle LookUp(const Sequence& prompt, kvstrata_match_info* info,
                     kvstrata_lookup_options lookup = Sized<kvstrata_lookup_options>()) const {
    Sequence tokens = prompt;
    Error error;
    MatchHandle match;
    const kvstrata_status status = kvstrata_lookup(space.get(), tokens.All(), &lookup, Out(match), &error);
    INFO(Describe(status, error));
    REQUIRE(status == KVSTRATA_OK);
    *info = Sized<kvstrata_match_info>();
    REQUIRE(kvstrata_match_get_info(match.get(), info, nullptr) == KVSTRATA_OK);
    return match;
  }
  // Restores into a fresh engine and compares every byte; the result's usable length.
  uint64_t Restore(kvstrata_match* match, const Sequence& prompt) const {
    const auto engine = Engine();
    auto result = Sized<kvstrata_plan_result>();
    const std::string fault = engine->Restore(match, prompt, RestoreOptions{}, &result);
    INFO(fault);
    REQUIRE(fault.empty());
    return result.usable_tokens;
  }

  EngineKind kind = SmallPagedEngine();
  Store store;  // outlives the cache
  kvstrata_storage table;
  kvstrata_cache_options options = Sized<kvstrata_cache_options>();
  TestIdentity identity;
  CacheHandle cache;
  NamespaceHandle space;
};

// The same prompt with one more token, so that all of it can be matched.
inline Sequence Longer(const Sequence& sequence, int32_t token = 1) {
  Sequence longer = sequence;
  longer.Append(token);
  return longer;
}

inline constexpr uint32_t kAllExactModes =
    1u << KVSTRATA_MODE_SNAPSHOT | 1u << KVSTRATA_MODE_SNAPSHOT_REPLAY | 1u << KVSTRATA_MODE_FULL_REPLAY;

inline kvstrata_lookup_options AllModes() {
  auto options = Sized<kvstrata_lookup_options>();
  options.allowed_modes = kAllExactModes;
  return options;
}

}  // namespace kvstrata::test
