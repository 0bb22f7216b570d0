// SPDX-License-Identifier: Apache-2.0
// Destinations that hold just what a plan promised, in every form, while a record fails and the plan is made anew: what
// they do not cover is no way to restart, and the restore goes on to the next one.
#include <algorithm>
#include <memory>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace layout = kvstrata::core::layout;
namespace format = kvstrata::core::format;
namespace plan = kvstrata::core::plan;
namespace storage = kvstrata::core::storage;
using base::Code;
using engine::BufferForm;

namespace {

constexpr std::byte kUntouched{0xEE};
constexpr size_t kGuard = 16;
constexpr uint32_t kRowsPerPage = 2;

// Memory for one segment and not a byte more, between guards.
struct Tight {
  std::vector<std::byte> bytes;
  engine::BufferDesc desc;
  uint64_t rows = 0;
};

bool IsRows(const layout::Layout& layout, uint32_t stream) {
  return layout.stream(stream).kind == layout::StreamKind::kRows;
}

Tight MakeTight(const layout::Layout& layout, const engine::Segment& segment, BufferForm form) {
  Tight tight;
  engine::BufferDesc& desc = tight.desc;
  uint64_t size = segment.bytes;
  desc.stream = segment.stream;
  if (IsRows(layout, segment.stream)) {
    desc.first_row = segment.rows.first;
  } else if (!layout.stream(segment.stream).is_variable()) {
    desc.form = form;
    desc.capacity_rows = segment.rows.count;
    desc.rows_per_page = kRowsPerPage;
    desc.page_stride = uint64_t{kRowsPerPage} * layout.stream(segment.stream).row_bytes;
    desc.first_page = segment.rows.first / kRowsPerPage;
    const uint64_t pages = (segment.rows.first + segment.rows.count - 1) / kRowsPerPage - desc.first_page + 1;
    const uint64_t ids = form == BufferForm::kPages ? pages : segment.rows.count;
    for (uint64_t id = 0; id < ids; ++id) desc.page_ids.push_back(static_cast<int64_t>(id));
    if (form == BufferForm::kPages) size = pages * desc.page_stride;
  }
  tight.rows = segment.rows.count;
  tight.bytes.assign(size + 2 * kGuard, kUntouched);
  desc.base = tight.bytes.data() + kGuard;
  desc.size_bytes = size;
  return tight;
}

// The element that a state's row lies in, by the words of kvstrata_buffer; no value: there is none.
std::optional<uint64_t> ElementOf(const Tight& tight, uint64_t row, uint64_t oldest) {
  switch (tight.desc.form) {
    case BufferForm::kRing: return row % tight.desc.capacity_rows;
    case BufferForm::kPages: {
      const uint64_t page = row / kRowsPerPage;
      if (page < tight.desc.first_page || page - tight.desc.first_page >= tight.desc.page_ids.size()) return {};
      return (page - tight.desc.first_page) * kRowsPerPage + row % kRowsPerPage;
    }
    default: return row - oldest < tight.rows ? std::optional(row - oldest) : std::nullopt;
  }
}

// A restore into tight destinations, with the nth read failing.
struct Run {
  std::vector<Tight> memories;
  RestoreResult result;

  const Tight* Of(uint32_t stream) const {
    const auto at = std::ranges::find(memories, stream, [](const Tight& tight) { return tight.desc.stream; });
    return at == memories.end() ? nullptr : &*at;
  }
  // Could the state at `position` be written to the memories?
  bool Covers(const layout::Layout& layout, uint64_t position) const {
    for (uint32_t i = 0; i < layout.streams().size(); ++i) {
      if (IsRows(layout, i)) continue;
      const engine::RowRange range = engine::StateRows(layout, i, position);
      if (range.count == 0) continue;
      const Tight* tight = Of(i);
      if (tight == nullptr || (tight->desc.form == BufferForm::kRing && range.count > tight->rows)) return false;
      for (uint64_t row = range.first; row < range.first + range.count; ++row) {
        if (!ElementOf(*tight, row, range.first).has_value()) return false;
      }
    }
    return true;
  }
};

Run RunTight(Store& store, const Match& match, BufferForm form, uint64_t failing_read) {
  Run run;
  const auto restore = RestorePlan::Create(match, {}).value();
  std::vector<engine::BufferDesc> descs;
  for (const engine::Segment& segment : restore->segments()) {
    run.memories.push_back(MakeTight(store.layout(), segment, form));
  }
  for (const Tight& tight : run.memories) descs.push_back(tight.desc);
  const uint64_t faults = store.faults().faults();
  store.faults().FailNth(StorageCall::kGet, failing_read, Code::kIo);
  const absl::Status started = restore->Start(std::move(descs));
  INFO(started.ToString());
  REQUIRE(started.ok());
  REQUIRE(restore->Wait(60'000, &run.result).ok());
  REQUIRE(store.faults().faults() == faults + 1);
  store.faults().FailNothing();
  return run;
}

// What the result promises is in the memories, and nothing is outside them.
void CheckRun(const layout::Layout& layout, const Tokens& tokens, const Run& run) {
  const plan::Plan& p = run.result.plan;
  for (const Tight& tight : run.memories) {
    const auto guard = [](std::byte b) { return b == kUntouched; };
    REQUIRE(std::all_of(tight.bytes.begin(), tight.bytes.begin() + kGuard, guard));
    REQUIRE(std::all_of(tight.bytes.end() - kGuard, tight.bytes.end(), guard));
  }
  for (uint32_t i = 0; i < layout.streams().size(); ++i) {
    engine::RowRange range;
    if (IsRows(layout, i)) {
      range = {0, p.usable_tokens / layout.stream(i).ratio, 0};
    } else if (p.snapshot.has_value()) {
      range = engine::StateRows(layout, i, p.snapshot->position);
    }
    for (uint64_t row = range.first; row < range.first + range.count; ++row) {
      CAPTURE(i, row, p.usable_tokens);
      const Tight* tight = run.Of(i);
      REQUIRE(tight != nullptr);
      const auto expected = ExpectedRow(layout, i, tokens, row, p.snapshot.has_value() ? p.snapshot->position : 0);
      const std::optional<uint64_t> element = ElementOf(*tight, row, range.first);
      REQUIRE(element.has_value());
      const auto begin = tight->bytes.begin() + static_cast<std::ptrdiff_t>(kGuard + *element * expected.size());
      REQUIRE(std::equal(expected.begin(), expected.end(), begin));
    }
  }
}

}  // namespace

TEST_CASE("an older snapshot serves where the destinations cover it, and is passed over where they do not") {
  Store store(HybridLayout(), 1 << 24, plan::SnapshotPolicy::Zero());
  store.Open();
  uint64_t covered = 0, passed_over = 0, replayed = 0;
  for (uint64_t newer = 18; newer <= 26; ++newer) {
    for (uint64_t older = 1; older < newer; ++older) {
      const Tokens tokens = MakeTokens(30, newer * 100 + older);
      StoreWithSnapshots(store, tokens, {older, newer});
      for (const BufferForm form : {BufferForm::kLinear, BufferForm::kRing, BufferForm::kPages, BufferForm::kSlots}) {
        for (const uint32_t modes : {ModeBit(Mode::kSnapshot), ModeBit(Mode::kSnapshot) | ModeBit(Mode::kFullReplay)}) {
          CAPTURE(newer, older, static_cast<int>(form), modes);
          const auto match = store.Lookup(tokens, {.allowed_modes = modes});
          REQUIRE(match->plan().usable_tokens == newer);
          // The newer snapshot's head is the first to be read.
          const Run run = RunTight(store, *match, form, 1);
          REQUIRE(run.result.state == RestoreState::kShortened);
          CHECK(run.result.plan.reason == Reason::kUnreadable);
          CheckRun(store.layout(), tokens, run);
          if (modes == ModeBit(Mode::kSnapshot)) {
            const bool covers = run.Covers(store.layout(), older);
            REQUIRE(run.result.plan.usable_tokens == (covers ? older : 0));
            (covers ? covered : passed_over) += 1;
          } else if (run.result.plan.mode == Mode::kFullReplay) {
            ++replayed;
          }
        }
      }
    }
  }
  CHECK(covered > 0);
  CHECK(passed_over > 0);
  CHECK(replayed > 0);
  const Stats stats = store.stats();
  CHECK(stats.restores_failed == 0);
  CHECK(stats.restores_shortened == stats.restores);
  // Snapshots that were passed over are as good as before: only the reads that failed count.
  CHECK(stats.reads_failed == stats.restores);
  CHECK(stats.snapshots_removed == 0);
  store.CheckAccounts();
}

TEST_CASE("a state without a destination is no way to restart when a replay is cut short") {
  Store store(HybridLayout(), kNoRuns, plan::SnapshotPolicy::Zero());
  store.Open();
  const Tokens tokens = MakeTokens(41, 1);
  StoreWithSnapshots(store, tokens, {16});
  const auto match = store.Lookup(tokens, {.allowed_modes = kAllModes});
  REQUIRE(match->plan().mode == Mode::kFullReplay);  // from 30 to 40: needs no state, so none has a destination
  const Run run = RunTight(store, *match, BufferForm::kLinear, 4);  // the block of tokens 24 .. 31
  CHECK(run.result.state == RestoreState::kShortened);
  CHECK(run.result.plan.mode == Mode::kFullReplay);  // resuming at the snapshot, 16, would run fewer tokens
  CHECK(run.result.plan.usable_tokens == 24);
  CHECK(run.result.plan.replay_from == 14);
  CheckRun(store.layout(), tokens, run);
}

TEST_CASE("an older opaque state that is larger than the destination is passed over") {
  Store store(OpaqueLayout(), 1 << 22, plan::SnapshotPolicy::Zero());
  store.Open();
  uint64_t second_best = 0, third_best = 0, none = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Tokens tokens = MakeTokens(20, 700 + seed);
    const auto size_at = [&](uint64_t position) { return ExpectedRow(store.layout(), 0, tokens, 0, position).size(); };
    StoreWithSnapshots(store, tokens, {7, 8, 19});
    // The second read is the restore's own of the newest head; the first one told the size.
    const Run run = RunTight(store, *store.Lookup(tokens), BufferForm::kLinear, 2);
    REQUIRE(run.result.state == RestoreState::kShortened);
    const uint64_t expected = size_at(8) <= size_at(19) ? 8 : size_at(7) <= size_at(19) ? 7 : 0;
    REQUIRE(run.result.plan.usable_tokens == expected);
    CheckRun(store.layout(), tokens, run);
    (expected == 8 ? second_best : expected == 7 ? third_best : none) += 1;
  }
  CHECK(second_best > 0);
  CHECK(third_best > 0);
  CHECK(none > 0);
  store.CheckAccounts();
}

TEST_CASE("what the storage has in memory is restored from where it lies, proven as ever") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 5);
  StoreWithSnapshots(store, tokens, {43});
  store.faults().LetHold();
  const uint64_t gets = store.faults().calls(StorageCall::kGet);
  CHECK(store.RestoredTokens(tokens) == 43);
  CHECK(store.faults().calls(StorageCall::kGet) == gets);
  const Stats stats = store.stats();
  CHECK(stats.restored_bytes > 0);
  CHECK(stats.restored_memory_bytes == stats.restored_bytes);

  // Not a byte of it is believed for lying in memory.
  const auto match = store.Lookup(tokens, {.allowed_modes = kAllModes});
  const storage::Key first{format::MakeRecordKey(format::RecordKind::kBlock, match->state()->blocks[0].key)};
  const auto held = store.memory().Hold(first);
  REQUIRE(held != nullptr);
  const base::ByteView payload = held->payload();
  const_cast<std::byte&>(payload.back()) ^= std::byte{1};
  const Restored restored = store.Restore(*match, tokens);
  CHECK(restored.result.state == RestoreState::kShortened);
  CHECK(restored.result.plan.usable_tokens < 43);
  CHECK(store.stats().reads_corrupt == 1);
}
