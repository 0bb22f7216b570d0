// SPDX-License-Identifier: Apache-2.0
// A fake inference engine: it "computes" rows that are a pure function of the tokens (fake_sequence.h), keeps them in
// its own kind of memory (fake_memory.h), and stores and restores them through the C API as a real engine would. What
// kind of engine it is stands in an EngineKind; fake_{blob,ring,paged}_engine.h make the three.
//
// Nothing here asserts: faults come back as text, so that an engine can run in any thread.
//
// Thread rule: one thread at a time for each engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvstrata/c_api.h"
#include "tests/support/engine_device.h"
#include "tests/support/fake_handles.h"
#include "tests/support/fake_memory.h"
#include "tests/support/fake_random.h"
#include "tests/support/fake_sequence.h"

namespace kvstrata::test {

// A layout with its streams read back through the C API.
struct ModelLayout {
  LayoutHandle handle;
  kvstrata_layout_info info{};
  std::vector<kvstrata_stream> streams;
  bool has_rows = false;

  // Takes the handle over; null when it is.
  static std::shared_ptr<const ModelLayout> Read(LayoutHandle layout);
};

// What differs between engines.
struct EngineKind {
  std::string name;
  std::shared_ptr<const ModelLayout> layout;
  uint32_t restart_multiple = 1;
  // How a stream lies in memory that holds `rows` of its rows.
  std::function<Geometry(const kvstrata_stream& stream, uint64_t rows, Rng& rng)> geometry;
};

struct RestoreOptions {
  bool early_release = false;
  bool by_layer = false;       // wait layer by layer and check each as it comes
  uint64_t hole_percent = 0;   // of page ids that are -1
  bool expect_faults = false;  // the storage may fail: shorter results are right
};

class FakeEngine {
 public:
  // Room for `max_tokens`. `device` null: host memory.
  FakeEngine(const EngineKind& kind, uint64_t max_tokens, EngineDevice* device, uint64_t seed);
  // The same sequence in memory of its own.
  std::unique_ptr<FakeEngine> Fork(uint64_t seed) const;

  Sequence& sequence() { return sequence_; }
  const Sequence& sequence() const { return sequence_; }
  uint64_t computed() const { return computed_; }
  uint64_t max_tokens() const { return max_tokens_; }

  // Runs tokens [computed, to): their rows, and the state at `to`.
  void Compute(uint64_t to);
  // Takes back tokens from `length` on, and the state with them.
  void Truncate(uint64_t length);

  // Restores what `match` promises for `prompt` into fresh memory and compares every byte of it, guards included:
  // rows that the plan promises hold their content, nothing else has changed. Afterwards the sequence is the prompt's
  // first usable_tokens tokens, computed (holes, held tokens and replay filled in). `ended`, if not null, gets the
  // plan, which keeps the match's lease. "" or what was wrong.
  std::string Restore(kvstrata_match* match, const Sequence& prompt, const RestoreOptions& options,
                      kvstrata_plan_result* result, PlanHandle* ended = nullptr);

  // Poisoned destinations for all that `info` promises; valid until the engine is used otherwise.
  std::vector<kvstrata_buffer> Destinations(const kvstrata_match_info& info, const Sequence& prompt);

  // Registers all streams with the writer. With opaque state of another size that is needed again after each step.
  std::string SetSources(kvstrata_writer* writer);
  // Computes to `to` and tells the writer; tokens that the writer does not have yet go along.
  std::string Advance(kvstrata_writer* writer, uint64_t writer_tokens, uint64_t to);

 private:
  struct Promise {
    uint64_t first_row = 0;
    uint64_t rows = 0;
  };

  void WriteState(uint64_t position);
  void PrepareState(uint64_t position, const Sequence& sequence);
  std::string ReadSegments(kvstrata_plan* plan, const kvstrata_match_info& info, const Sequence& prompt);
  std::string CheckPromises(const kvstrata_match_info& info) const;
  std::string RunPlan(kvstrata_plan* plan, const kvstrata_match_info& info, const Sequence& prompt,
                      const RestoreOptions& options, kvstrata_plan_result* result);
  std::string WaitByLayer(kvstrata_plan* plan, const kvstrata_match_info& info, const Sequence& prompt);
  std::string CheckStream(size_t stream, const Sequence& prompt, const kvstrata_match_info& info, uint64_t usable,
                          uint64_t snapshot_position);
  bool IsPromised(size_t stream, uint64_t row) const;
  void Complete(const Sequence& prompt, const kvstrata_plan_result& result);

  const EngineKind kind_;
  const uint64_t max_tokens_;
  EngineDevice* const device_;
  Rng rng_;
  Sequence sequence_;
  uint64_t computed_ = 0;
  std::vector<std::unique_ptr<RowMemory>> memories_;  // by stream
  std::vector<Promise> promises_;                     // of the running restore, by stream
  std::vector<uint32_t> layers_;                      // ascending layer numbers
};

}  // namespace kvstrata::test
