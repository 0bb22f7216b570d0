// SPDX-License-Identifier: Apache-2.0
// What the C ABI's incomplete structs are. Each holds counted references, so that handles die in any order.
//
// Thread rule: as c_api.h says for each handle.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvstrata/c_api.h"
#include "lib/engine/cache.h"
#include "lib/engine/match.h"
#include "lib/engine/pin.h"
#include "lib/engine/restore.h"
#include "lib/engine/writer.h"
#include "lib/layout/layout.h"

namespace kvstrata::capi {

namespace engine = kvstrata::core::engine;
namespace layout = kvstrata::core::layout;

// KVSTRATA_E_FORKED in a child process that has inherited the handle. Nothing else of it may be asked there: its locks
// may be held by threads that the child does not have.
inline absl::Status CheckProcess(const engine::Cache& cache) {
  return cache.InOwnerProcess() ? absl::OkStatus() : cache.CheckUsable();
}

// kvstrata_tokens to a Prompt; kvstrata_buffer to a BufferDesc. Both copy all they point to. A TokenInput's ids are the
// caller's still: a copy that is copied again cost as much as half a lookup that misses.
struct TokenInput {
  std::span<const int32_t> ids;
  std::vector<engine::ExtraKey> keys;
};
absl::StatusOr<TokenInput> ReadTokens(const kvstrata_tokens* tokens, const char* field);
absl::StatusOr<engine::Prompt> ReadPrompt(const kvstrata_tokens* tokens, const char* field);
absl::StatusOr<engine::BufferDesc> ReadBuffer(const kvstrata_buffer& buffer, const std::string& field);

}  // namespace kvstrata::capi

struct kvstrata_cache {
  std::shared_ptr<kvstrata::core::engine::Cache> cache;
};

struct kvstrata_layout {
  kvstrata::core::layout::Layout value;
};

struct kvstrata_namespace {
  std::shared_ptr<kvstrata::core::engine::Cache> cache;
  std::shared_ptr<kvstrata::core::engine::NameSpace> name_space;
  kvstrata::core::plan::SnapshotPolicy policy;
  uint32_t compress = 0;  // KVSTRATA_COMPRESS_*
  uint32_t pack = 0;      // KVSTRATA_PACK_*
  bool existed = false;
};

struct kvstrata_match {
  std::unique_ptr<kvstrata::core::engine::Match> match;
};

struct kvstrata_pin {
  std::unique_ptr<kvstrata::core::engine::Pin> pin;
};

struct kvstrata_plan {
  std::shared_ptr<kvstrata::core::engine::RestorePlan> plan;
};

struct kvstrata_writer {
  std::unique_ptr<kvstrata::core::engine::Writer> writer;
};
