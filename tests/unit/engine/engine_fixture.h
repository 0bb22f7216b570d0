// SPDX-License-Identifier: Apache-2.0
// A small engine inside the library: layouts of every kind, rows whose bytes say which prefix they belong to, and the
// steps of a sequence (look up, restore, store) with everything checked that can be checked after each.
//
// Thread rule: one thread at a time for each object; several sequences of one cache may run on threads of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lib/engine/cache.h"
#include "lib/engine/prompt.h"
#include "lib/engine/restore.h"
#include "lib/engine/writer.h"
#include "lib/storage/memory.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_storage.h"

namespace kvstrata::test {

using core::engine::Cache;
using core::engine::CacheOptions;
using core::engine::CommitInfo;
using core::engine::LookupOptions;
using core::engine::Match;
using core::engine::NameSpace;
using core::engine::RestoreOptions;
using core::engine::RestorePlan;
using core::engine::RestoreResult;
using core::engine::RestoreState;
using core::engine::Stats;
using core::engine::Writer;
using core::engine::WriterOptions;
using core::plan::Mode;
using core::plan::ModeBit;
using core::plan::Reason;
using Tokens = std::vector<int32_t>;

inline constexpr uint32_t kAllModes = ModeBit(Mode::kSnapshot) | ModeBit(Mode::kSnapshotReplay) |
                                      ModeBit(Mode::kFullReplay) | ModeBit(Mode::kBoundedReplay);

// Blocks of 8 tokens. Rows of ratio 4 and 8 on two layers; a window of 6, overlap carry and open groups as state; (6 -
// 1) * 2 = 10 tokens of exact replay, or 6 of bounded replay.
core::layout::Layout HybridLayout(bool bounded_replay = false);
// Blocks of 4 tokens, one row a token, no state.
core::layout::Layout RowsLayout();
// Blocks of 8 tokens without rows; one state of a size that varies from snapshot to snapshot.
core::layout::Layout OpaqueLayout();
// Rows layout plus an optional rows stream and an optional state.
core::layout::Layout OptionalLayout();

// Blocks of 8 tokens with rows in packed forms, large enough to be coded and of bytes that gain, and rows that do not;
// a window. Replay as HybridLayout.
core::layout::Layout PackedLayout();

core::layout::Identity TestIdentity(const core::layout::Layout& layout);

// `count` tokens that follow from `seed`.
Tokens MakeTokens(uint64_t count, uint64_t seed);
Tokens Join(Tokens a, const Tokens& b);
inline Tokens Prefix(const Tokens& tokens, uint64_t count) {
  return Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
}

// The state's bytes (variable streams) and rows at a position: functions of the tokens before it and nothing else.
std::vector<std::byte> ExpectedRow(const core::layout::Layout& layout, uint32_t stream, const Tokens& tokens,
                                   uint64_t row, uint64_t position);

// All of `memory` as a LINEAR buffer of rows.
inline core::engine::BufferDesc LinearBuffer(uint32_t stream, std::vector<std::byte>& memory) {
  core::engine::BufferDesc desc;
  desc.stream = stream;
  desc.base = memory.data();
  desc.size_bytes = memory.size();
  return desc;
}

// Polls until `done`: for what another thread does soon.
template <typename Done>
void Await(const Done& done) {
  for (int i = 0; i < 60'000; ++i) {
    if (done()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FAIL("waited for a minute in vain");
}

struct Restored {
  RestoreResult result;
  absl::Status start;
};

struct StoreOptions {
  uint64_t chunk = 4;  // tokens computed a step: no two blocks are complete at one time
  WriterOptions writer;
  bool at_wanted_positions = true;  // asks for snapshot positions and cuts its chunks there
  bool output_end = false;
  bool commit = true;
};

// One cache over memory, with faults to order. Everything that has a default here is small.
class Store {
 public:
  explicit Store(core::layout::Layout layout, uint64_t capacity_bytes = 1 << 20,
                 core::plan::SnapshotPolicy policy = core::plan::SnapshotPolicy::Ends());
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Set before Open.
  CacheOptions options;
  core::plan::SnapshotPolicy policy;
  std::optional<core::storage::Capabilities> capabilities;  // that the storage claims to have; else the memory's

  std::function<uint64_t()> free_bytes;                     // what the medium has left; else the memory says nothing

  // Another storage than the memory of this store. CheckAccounts, faults and memory are not for it.
  std::function<std::shared_ptr<core::storage::Storage>()> open_storage;

  void Open();
  absl::Status TryOpen();
  // The nth storage call from the next open on fails, whatever it is; 0: none.
  void FailNextOpen(uint64_t nth) { fail_nth_ = nth; }
  // Closes the cache; the records stay.
  void Close();
  // Lets go of a cache that was closed already, or could not be opened.
  void Abandon();
  void Reopen();

  Cache& cache() { return *cache_; }
  const std::shared_ptr<Cache>& cache_handle() { return cache_; }
  const std::shared_ptr<NameSpace>& space() { return space_; }
  const core::layout::Layout& layout() const { return layout_; }
  FaultyStorage& faults() { return *faulty_; }
  core::storage::MemoryStorage& memory() { return *memory_; }
  FakeClock& clock() { return clock_; }
  Stats stats() { return cache_->stats(); }
  bool existed() const { return existed_; }

  std::unique_ptr<Match> Lookup(const Tokens& tokens, LookupOptions lookup = {});
  std::unique_ptr<Writer> Begin(const Match* match = nullptr, const WriterOptions& writer = {});
  // Registers sources that hold the rows of `tokens` and its state at `computed`, then advances to it. The sources live
  // until the next step of this writer.
  absl::Status Step(Writer& writer, const Tokens& tokens, uint64_t old_size, uint64_t computed);
  // Stores a whole prompt. Returns what the commit said.
  CommitInfo StorePrompt(const Tokens& tokens, const StoreOptions& store = {});

  // Runs a restore to its end and compares every byte that is promised, and that no other was touched.
  Restored Restore(const Match& match, const Tokens& tokens, const RestoreOptions& restore = {});
  // Looks up and restores with all modes; returns the usable tokens that were proven.
  uint64_t RestoredTokens(const Tokens& tokens, uint32_t modes = kAllModes);

  // Counters that must fit each other at any time; with `idle`, that nothing is on its way or pinned, and that the
  // cache counts what the storage holds.
  void CheckAccounts(bool idle = true);

 private:
  // Memory of one stream, with guards, and its description.
  struct StreamMemory {
    std::vector<std::byte> bytes;
    core::engine::BufferDesc desc;
  };
  StreamMemory MakeMemory(uint32_t stream, const Tokens& tokens, uint64_t position) const;
  void Fill(StreamMemory& memory, const Tokens& tokens, const core::engine::RowRange& range, uint64_t position) const;
  void CheckDestination(const StreamMemory& memory, const Tokens& tokens, const core::plan::Plan& plan,
                        bool strict) const;

  const core::layout::Layout layout_;
  std::shared_ptr<core::storage::MemoryStorage> memory_;
  std::shared_ptr<FaultyStorage> faulty_;
  FakeClock clock_;
  std::shared_ptr<Cache> cache_;
  std::shared_ptr<NameSpace> space_;
  bool existed_ = false;
  uint64_t fail_nth_ = 0;
  core::base::Mutex sources_mutex_;
  std::map<const Writer*, std::vector<StreamMemory>> sources_;
};

// Stores the rows of the whole prompt, and snapshots at `positions` only.
void StoreWithSnapshots(Store& store, const Tokens& tokens, const std::vector<uint64_t>& positions);

// How many blocks of `tokens` are stored, without being touched.
uint64_t BlocksOf(Store& store, const Tokens& tokens);

core::engine::Prompt PromptOf(const Tokens& tokens);

// A budget for tests with a record for each block: a run is at most a 64th of it.
inline constexpr uint64_t kNoRuns = 16'000;

// What one block of RowsLayout takes in the storage: head 136 + 4 * 4 tokens + 2 * 24 slices, 48 bytes of rows, meta
// 128, and the memory store's 256.
inline constexpr uint64_t kRowsBlock = 136 + 16 + 48 + 48 + 128 + 256;

// A cache that has room for `blocks` blocks of RowsLayout, its own records apart.
void OpenForBlocks(Store& store, uint64_t blocks);

}  // namespace kvstrata::test
