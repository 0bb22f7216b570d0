// SPDX-License-Identifier: Apache-2.0
// Random operations of one fake engine on one cache, beside the naive model: sessions that begin with a shared
// prefix, are looked up, restored, extended, snapshotted, cut back, forked and committed; namespaces dropped, the
// cache trimmed, verified, closed and opened again. After each restore every byte is compared; after each lookup the
// lengths; after each operation the statistics' identities.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>

#include "tests/support/engine_device.h"
#include "tests/support/fake_engine.h"

namespace kvstrata::test {

enum class StoreKind { kMemory, kFile, kUser };

struct RandomRun {
  EngineKind kind;
  StoreKind store = StoreKind::kMemory;
  EngineDevice* device = nullptr;
  uint64_t seed = 0;
  uint64_t operations = 0;
  uint64_t capacity_bytes = 0;
  uint64_t snapshot_bytes = 0;  // 0: the cache's default
  uint64_t max_tokens = 0;      // of one sequence
  uint64_t max_step = 0;        // tokens of one extension
  uint32_t allowed_modes = 0;   // bits; each lookup takes a random part of them
  uint32_t snapshot_policy = 0;
  uint32_t snapshot_every_tokens = 0;
  uint64_t hole_percent = 0;
  bool extra_keys = false;
  bool compress = false;  // all streams, every other time that the store is opened
};

// Makes checks of Catch2; ends the test on the first fault, with the seed and the operation's number.
void RunRandomOperations(const RandomRun& run);

}  // namespace kvstrata::test
