// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/engine_fixture.h"

#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "tests/support/fake_random.h"

namespace kvstrata::test {

namespace base = core::base;
namespace engine = core::engine;
namespace layout = core::layout;
namespace storage = core::storage;

namespace {

constexpr std::byte kUntouched{0xEE};
constexpr size_t kGuard = 32;

layout::Stream RowsStream(layout::Role role, uint32_t layer, uint32_t ratio, uint32_t row_bytes, uint32_t flags = 0) {
  layout::Stream stream;
  stream.role = role;
  stream.layer = layer;
  stream.ratio = ratio;
  stream.row_bytes = row_bytes;
  stream.flags = flags;
  return stream;
}

layout::Stream StateStream(layout::Role role, uint32_t layer, uint32_t ratio, uint32_t row_bytes, uint32_t rows,
                           uint32_t flags = 0) {
  layout::Stream stream = RowsStream(role, layer, ratio, row_bytes, flags);
  stream.kind = layout::StreamKind::kState;
  stream.state_rows = rows;
  return stream;
}

uint64_t HashOf(const Tokens& tokens, uint64_t count) {
  uint64_t hash = count;
  for (uint64_t i = 0; i < count; ++i) hash = Mix(hash, static_cast<uint64_t>(static_cast<uint32_t>(tokens[i])));
  return hash;
}

// The size of a variable state at a position: 0 now and then.
uint64_t OpaqueBytes(const Tokens& tokens, uint64_t position) { return HashOf(tokens, position) % 40; }

}  // namespace

layout::Identity TestIdentity(const layout::Layout& layout) {
  std::vector<layout::Field> fields;
  for (const std::string_view name : layout::MandatoryNames(layout)) fields.push_back({std::string(name), "test"});
  return layout::Identity::Create(std::move(fields)).value();
}

layout::Layout HybridLayout(bool bounded_replay) {
  layout::LayoutDesc desc;
  desc.block_tokens = 8;
  desc.replay = {bounded_replay ? layout::ReplayMode::kBounded : layout::ReplayMode::kFull, 6, 2};
  desc.streams = {RowsStream(layout::Role::kCsaEntry, 0, 4, 5),    StateStream(layout::Role::kWindow, 0, 0, 3, 6),
                  StateStream(layout::Role::kOverlap, 0, 4, 2, 4), RowsStream(layout::Role::kHcaEntry, 1, 8, 7),
                  StateStream(layout::Role::kWindow, 1, 0, 4, 6),  StateStream(layout::Role::kOpen, 1, 8, 2, 7)};
  return layout::Layout::Create(desc).value();
}

layout::Layout RowsLayout() {
  layout::LayoutDesc desc;
  desc.block_tokens = 4;
  desc.streams = {RowsStream(layout::Role::kKey, 0, 1, 6), RowsStream(layout::Role::kValue, 0, 1, 6)};
  return layout::Layout::Create(desc).value();
}

layout::Layout OpaqueLayout() {
  layout::LayoutDesc desc;
  desc.block_tokens = 8;
  desc.streams = {StateStream(layout::Role::kOpaque, 0, 0, 0, 1)};
  return layout::Layout::Create(desc).value();
}

layout::Layout OptionalLayout() {
  layout::LayoutDesc desc;
  desc.block_tokens = 4;
  desc.streams = {RowsStream(layout::Role::kKey, 0, 1, 6), RowsStream(layout::Role::kValue, 0, 2, 3, layout::kOptional),
                  StateStream(layout::Role::kOther, 1, 0, 5, 1),
                  StateStream(layout::Role::kOpaque, 1, 0, 0, 1, layout::kOptional)};
  return layout::Layout::Create(desc).value();
}

layout::Layout PackedLayout() {
  layout::LayoutDesc desc;
  desc.block_tokens = 8;
  desc.replay = {layout::ReplayMode::kFull, 6, 2};
  desc.streams = {RowsStream(layout::Role::kCsaEntry, 0, 1, 584), RowsStream(layout::Role::kIndexKey, 0, 1, 68),
                  RowsStream(layout::Role::kOther, 1, 2, 90), StateStream(layout::Role::kWindow, 1, 0, 256, 6)};
  desc.streams[0].packing = layout::Packing::kFp8Row584;
  desc.streams[1].packing = layout::Packing::kFp4Key68;
  desc.streams[3].packing = layout::Packing::kBf16;
  return layout::Layout::Create(desc).value();
}

Tokens MakeTokens(uint64_t count, uint64_t seed) {
  Tokens tokens;
  for (uint64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(Mix(seed, i)));
  return tokens;
}

Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::byte> ExpectedRow(const layout::Layout& layout, uint32_t stream, const Tokens& tokens, uint64_t row,
                                   uint64_t position) {
  const layout::Stream& s = layout.stream(stream);
  // A row knows the tokens up to its own end; states without positions of their own know all.
  uint64_t end = position;
  if (s.kind == layout::StreamKind::kRows) end = (row + 1) * s.ratio;
  if (s.role == layout::Role::kWindow || s.role == layout::Role::kOverlap || s.role == layout::Role::kOpen) {
    end = row + 1;
  }
  std::vector<std::byte> bytes(s.is_variable() ? OpaqueBytes(tokens, position) : s.row_bytes);
  const uint64_t seed = Mix(HashOf(tokens, end), stream * 1000 + row);
  const uint64_t values = s.packing == layout::Packing::kRaw ? 200 : 12;  // of packed rows few, so that they gain
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(Mix(seed, i) % values);
  return bytes;
}

Store::Store(layout::Layout layout, uint64_t capacity_bytes, core::plan::SnapshotPolicy policy_in)
    : policy(policy_in), layout_(std::move(layout)) {
  options.capacity_bytes = capacity_bytes;
  options.clock = &clock_;
  options.staging_bytes = 1 << 20;
  options.threads = 1;
  // What the engine may hold and not a byte more: a put beyond it would fail. The records of store and namespace are
  // replaced in place, and are there twice for a moment.
  memory_ = std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{capacity_bytes + 4096});
}

Store::~Store() {
  if (cache_ != nullptr) Close();
}

absl::Status Store::TryOpen() {
  faulty_ = std::make_shared<FaultyStorage>(memory_, 1, /*close_inner=*/false);
  if (fail_nth_ > 0) faulty_->FailNth(StorageCall::kAny, fail_nth_, base::Code::kIo);
  if (capabilities.has_value()) faulty_->Claim(*capabilities);
  if (free_bytes) faulty_->ReportFree(free_bytes);
  options.storage = open_storage ? open_storage() : faulty_;
  absl::StatusOr<std::shared_ptr<Cache>> made = Cache::Open(options);
  if (!made.ok()) return made.status();
  cache_ = *std::move(made);
  absl::StatusOr<std::shared_ptr<NameSpace>> space =
      cache_->OpenNamespace(TestIdentity(layout_), layout_, /*must_exist=*/false, &existed_);
  if (!space.ok()) return space.status();
  space_ = *std::move(space);
  return absl::OkStatus();
}

void Store::Open() {
  const absl::Status status = TryOpen();
  INFO(status.ToString());
  REQUIRE(status.ok());
}

void Store::Close() {
  faulty_->Release();
  space_ = nullptr;
  const absl::Status status = cache_->Close(std::chrono::seconds(60), nullptr);
  INFO(status.ToString());
  CHECK((status.ok() || fail_nth_ > 0));
  Abandon();
}

void Store::Abandon() {
  space_ = nullptr;
  sources_.clear();
  cache_ = nullptr;
  options.storage = nullptr;
  faulty_ = nullptr;
}

void Store::Reopen() {
  Close();
  Open();
}

std::unique_ptr<Match> Store::Lookup(const Tokens& tokens, LookupOptions lookup) {
  engine::Prompt prompt;
  REQUIRE(prompt.Append(tokens, {}).ok());
  auto match = Match::Lookup(cache_, space_, std::move(prompt), lookup);
  REQUIRE(match.ok());
  return *std::move(match);
}

std::unique_ptr<Writer> Store::Begin(const Match* match, const WriterOptions& writer) {
  auto made = Writer::Open(cache_, space_, policy, match, nullptr, writer);
  REQUIRE(made.ok());
  return *std::move(made);
}

// Linear for rows (all of them), a ring for windows, linear for other state.
Store::StreamMemory Store::MakeMemory(uint32_t i, const Tokens& tokens, uint64_t position) const {
  const layout::Stream& stream = layout_.stream(i);
  StreamMemory memory;
  uint64_t size = 0;
  memory.desc.stream = i;
  if (stream.is_variable()) {
    size = OpaqueBytes(tokens, position);
  } else if (stream.kind == layout::StreamKind::kRows) {
    size = (tokens.size() / stream.ratio + 1) * stream.row_bytes;
  } else if (stream.role == layout::Role::kWindow) {
    memory.desc.form = engine::BufferForm::kRing;
    memory.desc.capacity_rows = stream.state_rows + 2;
    memory.desc.first_row = 3;
    size = memory.desc.capacity_rows * stream.row_bytes;
  } else {
    size = stream.state_rows * stream.row_bytes;
  }
  memory.bytes.assign(size + 2 * kGuard, kUntouched);
  memory.desc.base = memory.bytes.data() + kGuard;
  memory.desc.size_bytes = size;
  return memory;
}

// Writes rows straight to where they belong, without the library's own addressing.
void Store::Fill(StreamMemory& memory, const Tokens& tokens, const engine::RowRange& range, uint64_t position) const {
  for (uint64_t row = range.first; row < range.first + range.count; ++row) {
    const std::vector<std::byte> bytes = ExpectedRow(layout_, memory.desc.stream, tokens, row, position);
    uint64_t element = row - range.element_zero;
    if (memory.desc.form == engine::BufferForm::kRing) {
      element = (row + memory.desc.capacity_rows - memory.desc.first_row) % memory.desc.capacity_rows;
    }
    REQUIRE(kGuard + (element + 1) * bytes.size() <= memory.bytes.size());
    std::ranges::copy(bytes, memory.bytes.begin() + static_cast<std::ptrdiff_t>(kGuard + element * bytes.size()));
  }
}

absl::Status Store::Step(Writer& writer, const Tokens& tokens, uint64_t old_size, uint64_t computed) {
  std::vector<StreamMemory> memories;
  for (uint32_t i = 0; i < layout_.streams().size(); ++i) {
    const layout::Stream& stream = layout_.stream(i);
    memories.push_back(MakeMemory(i, tokens, computed));
    const bool rows = stream.kind == layout::StreamKind::kRows;
    Fill(memories.back(), tokens,
         rows ? engine::RowRange{0, computed / stream.ratio, 0} : engine::StateRows(layout_, i, computed), computed);
    if (absl::Status status = writer.SetSource(memories.back().desc); !status.ok()) return status;
  }
  absl::Status status = writer.Advance(std::span(tokens).subspan(old_size), {}, computed);
  base::MutexLock lock(sources_mutex_);
  sources_[&writer] = std::move(memories);
  return status;
}

CommitInfo Store::StorePrompt(const Tokens& tokens, const StoreOptions& store) {
  std::unique_ptr<Writer> writer = Begin(nullptr, store.writer);
  std::vector<uint64_t> cuts;
  if (store.at_wanted_positions) {
    engine::Prompt prompt;
    REQUIRE(prompt.Append(tokens, {}).ok());
    cuts = writer->SnapshotPositions(prompt).value();
  }
  for (uint64_t at = 0; at < tokens.size();) {
    uint64_t next = std::min<uint64_t>(tokens.size(), at + store.chunk);
    for (const uint64_t cut : cuts) {
      if (cut > at) next = std::min(next, cut);
    }
    const absl::Status status = Step(*writer, Prefix(tokens, next), at, next);
    INFO(status.ToString());
    REQUIRE(status.ok());
    at = next;
  }
  CommitInfo info;
  if (store.commit) REQUIRE(writer->Commit(/*durable=*/false, store.output_end, 60'000, &info).ok());
  return info;
}

// Every byte of a destination: the promised rows right, all others as they were. After a shortening (not strict), rows
// beyond the usable ones may have been written: discarded work, but inside the buffer.
void Store::CheckDestination(const StreamMemory& memory, const Tokens& tokens, const core::plan::Plan& plan,
                             bool strict) const {
  const uint32_t i = memory.desc.stream;
  const layout::Stream& stream = layout_.stream(i);
  CAPTURE(i, plan.usable_tokens, plan.replay_from);
  for (size_t g = 0; g < kGuard; ++g) {
    REQUIRE(memory.bytes[g] == kUntouched);
    REQUIRE(memory.bytes[memory.bytes.size() - 1 - g] == kUntouched);
  }
  if (plan.usable_tokens == 0) return;
  engine::RowRange range;
  if (stream.kind == layout::StreamKind::kRows) {
    const uint64_t first = plan.read_blocks_from * layout_.BlockRows(i);
    range = {first, plan.usable_tokens / stream.ratio - first, 0};
  } else if (plan.snapshot.has_value()) {
    range = engine::StateRows(layout_, i, plan.snapshot->position);
  }
  StreamMemory expected = memory;
  if (strict) std::ranges::fill(expected.bytes, kUntouched);
  Fill(expected, tokens, range, plan.snapshot.has_value() ? plan.snapshot->position : 0);
  REQUIRE(memory.bytes == expected.bytes);
}

Restored Store::Restore(const Match& match, const Tokens& tokens, const RestoreOptions& restore) {
  auto plan = RestorePlan::Create(match, restore);
  REQUIRE(plan.ok());
  Restored out;
  const core::plan::Plan promised = (*plan)->Poll().plan;
  const uint64_t position = promised.snapshot.has_value() ? promised.snapshot->position : 0;
  std::vector<StreamMemory> memories;
  std::vector<engine::BufferDesc> descs;
  for (uint32_t i = 0; i < layout_.streams().size(); ++i) {
    if (!restore.streams.empty() && std::ranges::find(restore.streams, i) == restore.streams.end()) continue;
    memories.push_back(MakeMemory(i, tokens, position));
    descs.push_back(memories.back().desc);
  }
  out.start = (*plan)->Start(std::move(descs));
  if (!out.start.ok()) return out;
  REQUIRE((*plan)->Wait(60'000, &out.result).ok());
  const bool usable = out.result.state == RestoreState::kComplete || out.result.state == RestoreState::kShortened;
  REQUIRE(out.result.quiesced);
  REQUIRE(out.result.plan.usable_tokens <= match.plan().usable_tokens);
  for (const StreamMemory& memory : memories) {
    CheckDestination(memory, tokens, usable ? out.result.plan : core::plan::Plan{},
                     out.result.state == RestoreState::kComplete);
  }
  (*plan)->Release();
  return out;
}

uint64_t Store::RestoredTokens(const Tokens& tokens, uint32_t modes) {
  const std::unique_ptr<Match> match = Lookup(tokens, {.allowed_modes = modes});
  const Restored restored = Restore(*match, tokens);
  INFO(restored.start.ToString());
  REQUIRE(restored.start.ok());
  return restored.result.plan.usable_tokens;
}

void Store::CheckAccounts(bool idle) {
  // A worker lets go of a finished restore, and with it of the lease, a moment after the wait for it has returned; a
  // completion, of its staging memory a moment after the read. What a failed put left is removed after the commit.
  const auto settled = [&] {
    const Stats now = stats();
    return now.leased_bytes == 0 && now.staging_bytes == 0 && now.held_bytes == memory_->UsedBytes();
  };
  if (idle) Await(settled);
  const Stats s = stats();
  CHECK(s.lookups == s.hits + s.misses);
  CHECK(s.bytes_in - s.bytes_out == s.held_bytes);
  CHECK(s.held_bytes <= s.capacity_bytes);
  CHECK(s.held_snapshot_bytes <= s.snapshot_capacity_bytes);
  CHECK(s.staging_bytes <= s.staging_capacity_bytes);
  CHECK(space_->trie.Validate().ok());
  CHECK(space_->snapshots.Validate().ok());
  if (idle) CHECK(s.stuck_staging_bytes == 0);
}

void StoreWithSnapshots(Store& store, const Tokens& tokens, const std::vector<uint64_t>& positions) {
  const auto writer = store.Begin();
  uint64_t at = 0;
  for (const uint64_t position : positions) {
    REQUIRE(store.Step(*writer, Prefix(tokens, position), at, position).ok());
    REQUIRE(writer->Snapshot().ok());
    at = position;
  }
  REQUIRE(store.Step(*writer, tokens, at, tokens.size()).ok());
  CommitInfo info;
  REQUIRE(writer->Commit(false, false, 0, &info).ok());
  REQUIRE(info.progress.snapshots_stored == positions.size());
}

uint64_t BlocksOf(Store& store, const Tokens& tokens) {
  LookupOptions peek;
  peek.peek = true;
  Tokens longer = tokens;
  longer.push_back(-1);
  return store.Lookup(longer, peek)->state()->matched_blocks;
}

engine::Prompt PromptOf(const Tokens& tokens) {
  engine::Prompt prompt;
  REQUIRE(prompt.Append(tokens, {}).ok());
  return prompt;
}

void OpenForBlocks(Store& store, uint64_t blocks) {
  store.Open();
  const uint64_t own = store.stats().held_bytes;
  store.Close();
  store.options.capacity_bytes = own + blocks * kRowsBlock;
  store.Open();
}

}  // namespace kvstrata::test
