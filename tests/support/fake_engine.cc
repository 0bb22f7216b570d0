// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvstrata::test {
namespace {

constexpr uint64_t kWaitMs = 60'000;  // a hang ends the test with a status, not with a timeout of the runner

std::string Fault(const std::string& call, kvstrata_status status, const Error& error) {
  return call + ": " + Describe(status, error);
}

std::string Numbers(const std::string& what, uint64_t got, uint64_t wanted) {
  return what + " is " + std::to_string(got) + ", expected " + std::to_string(wanted);
}

// The most rows that a stream ever holds at once.
uint64_t RowsOf(const kvstrata_stream& stream, uint64_t max_tokens) {
  if (IsRows(stream)) return std::max<uint64_t>(1, max_tokens / stream.ratio);
  uint64_t most = std::max<uint64_t>(1, stream.state_rows);
  if (stream.role == KVSTRATA_ROLE_OVERLAP || stream.role == KVSTRATA_ROLE_INDEX_OVERLAP ||
      stream.role == KVSTRATA_ROLE_OPEN || stream.role == KVSTRATA_ROLE_INDEX_OPEN) {
    most = std::max<uint64_t>(most, stream.ratio);
  }
  return most;
}

}  // namespace

std::shared_ptr<const ModelLayout> ModelLayout::Read(LayoutHandle layout) {
  if (layout == nullptr) return nullptr;
  auto model = std::make_shared<ModelLayout>();
  model->info = Sized<kvstrata_layout_info>();
  if (kvstrata_layout_get_info(layout.get(), &model->info, nullptr) != KVSTRATA_OK) return nullptr;
  for (uint32_t i = 0; i < model->info.stream_count; ++i) {
    auto stream = Sized<kvstrata_stream>();
    if (kvstrata_layout_get_stream(layout.get(), i, &stream, nullptr) != KVSTRATA_OK) return nullptr;
    if (IsRows(stream)) model->has_rows = true;
    model->streams.push_back(stream);
  }
  model->handle = std::move(layout);
  return model;
}

FakeEngine::FakeEngine(const EngineKind& kind, uint64_t max_tokens, EngineDevice* device, uint64_t seed)
    : kind_(kind), max_tokens_(max_tokens), device_(device), rng_(seed) {
  for (uint32_t i = 0; i < kind_.layout->streams.size(); ++i) {
    const kvstrata_stream& stream = kind_.layout->streams[i];
    const uint64_t rows = RowsOf(stream, max_tokens_);
    memories_.push_back(
        std::make_unique<RowMemory>(i, stream, kind_.geometry(stream, rows, rng_), rows, device_, rng_));
    layers_.push_back(stream.layer);
  }
  std::sort(layers_.begin(), layers_.end());
  layers_.erase(std::unique(layers_.begin(), layers_.end()), layers_.end());
}

std::unique_ptr<FakeEngine> FakeEngine::Fork(uint64_t seed) const {
  auto fork = std::make_unique<FakeEngine>(kind_, max_tokens_, device_, seed);
  fork->sequence_.AppendPrefixOf(sequence_, sequence_.size());
  fork->Compute(computed_);
  return fork;
}

void FakeEngine::Compute(uint64_t to) {
  for (const auto& memory : memories_) {
    const kvstrata_stream& stream = memory->stream();
    if (!IsRows(stream)) continue;
    for (uint64_t row = computed_ / stream.ratio; row < to / stream.ratio; ++row) {
      memory->Write(row, RowSeed(stream, memory->index(), row, sequence_, to));
    }
  }
  computed_ = to;
  WriteState(to);
}

void FakeEngine::Truncate(uint64_t length) {
  sequence_.Truncate(length);
  if (computed_ <= length) return;
  computed_ = length;
  WriteState(length);
}

void FakeEngine::PrepareState(uint64_t position, const Sequence& sequence) {
  for (const auto& memory : memories_) {
    const kvstrata_stream& stream = memory->stream();
    if (IsRows(stream)) continue;
    if (IsOpaque(stream)) {
      memory->ResizeOpaque(OpaqueBytes(sequence, position));
    } else {
      memory->MoveTo(StateRowsAt(stream, position).first);
    }
  }
}

void FakeEngine::WriteState(uint64_t position) {
  PrepareState(position, sequence_);
  for (const auto& memory : memories_) {
    const kvstrata_stream& stream = memory->stream();
    if (IsRows(stream)) continue;
    const StateRows rows = StateRowsAt(stream, position);
    for (uint64_t row = rows.first; row < rows.first + rows.count; ++row) {
      memory->Write(row, RowSeed(stream, memory->index(), row, sequence_, position));
    }
  }
}

std::string FakeEngine::ReadSegments(kvstrata_plan* plan, const kvstrata_match_info& info, const Sequence& prompt) {
  promises_.assign(memories_.size(), {});
  const uint64_t count = kvstrata_plan_segment_count(plan);
  for (uint64_t i = 0; i < count; ++i) {
    Error error;
    auto segment = Sized<kvstrata_plan_segment>();
    const kvstrata_status status = kvstrata_plan_get_segment(plan, i, &segment, &error);
    if (status != KVSTRATA_OK) return Fault("get_segment", status, error);
    if (segment.stream >= memories_.size()) return Numbers("segment.stream", segment.stream, memories_.size());
    const kvstrata_stream& stream = memories_[segment.stream]->stream();
    if (segment.layer != stream.layer) return Numbers("segment.layer", segment.layer, stream.layer);
    if (promises_[segment.stream].rows != 0) return "stream " + std::to_string(segment.stream) + " has two segments";
    const uint64_t bytes =
        IsOpaque(stream) ? OpaqueBytes(prompt, info.snapshot_position) : segment.rows * stream.row_bytes;
    if (segment.bytes != bytes) return Numbers("segment.bytes", segment.bytes, bytes);
    promises_[segment.stream] = {segment.first_row, segment.rows};
  }
  return CheckPromises(info);
}

// The rows that the header promises: of rows streams all that the caller does not hold, up to the usable length, on the
// block grid at the lower end; of state streams those that describe the snapshot's position.
std::string FakeEngine::CheckPromises(const kvstrata_match_info& info) const {
  const uint64_t block = kind_.layout->info.block_tokens;
  for (size_t i = 0; i < memories_.size(); ++i) {
    const kvstrata_stream& stream = memories_[i]->stream();
    const Promise& promise = promises_[i];
    const std::string name = "stream " + std::to_string(i);
    if (!IsRows(stream)) {
      const bool wanted = info.snapshot_position != UINT64_MAX;
      const StateRows rows = wanted ? StateRowsAt(stream, info.snapshot_position) : StateRows{};
      if (IsOpaque(stream)) continue;  // the segment's size has been compared; an empty state has no segment
      if (promise.rows != rows.count) return Numbers(name + " state rows", promise.rows, rows.count);
      if (rows.count != 0 && promise.first_row != rows.first) {
        return Numbers(name + " first state row", promise.first_row, rows.first);
      }
      continue;
    }
    const uint64_t end = info.usable_tokens / stream.ratio;
    const uint64_t begin = std::min(end, info.held_tokens / block * block / stream.ratio);
    const uint64_t rows = end - begin;
    if (promise.rows != rows) return Numbers(name + " rows", promise.rows, rows);
    if (rows != 0 && promise.first_row != begin) return Numbers(name + " first row", promise.first_row, begin);
  }
  return "";
}

bool FakeEngine::IsPromised(size_t stream, uint64_t row) const {
  const Promise& promise = promises_[stream];
  return row >= promise.first_row && row < promise.first_row + promise.rows;
}

// Compares all bytes of a stream's memory. What a shortened restore no longer promises may hold anything inside the
// ranges that it did promise; and it may hold the state of an older snapshot instead.
std::string FakeEngine::CheckStream(size_t stream_index, const Sequence& prompt, const kvstrata_match_info& info,
                                    uint64_t usable, uint64_t snapshot_position) {
  RowMemory& memory = *memories_[stream_index];
  const kvstrata_stream& stream = memory.stream();
  const Promise& promise = promises_[stream_index];
  memory.Download();
  RowMemory expected(memory, nullptr);
  expected.Poison();
  const bool other_state = !IsRows(stream) && snapshot_position != info.snapshot_position;
  for (uint64_t row = promise.first_row; row < promise.first_row + promise.rows; ++row) {
    const bool valid = IsRows(stream) ? (row + 1) * stream.ratio <= usable : !other_state;
    if (valid) {
      expected.Write(row, RowSeed(stream, memory.index(), row, prompt, snapshot_position));
    } else {
      expected.CopyRow(row, memory);
    }
  }
  if (other_state && snapshot_position != UINT64_MAX && !IsOpaque(stream)) {
    const StateRows rows = StateRowsAt(stream, snapshot_position);
    expected.Rebase(rows.first);
    for (uint64_t row = rows.first; row < rows.first + rows.count; ++row) {
      if (!expected.Holds(row)) return "a state was restored that its destination has no place for";
      expected.Write(row, RowSeed(stream, memory.index(), row, prompt, snapshot_position));
    }
  }
  return memory.Compare(expected);
}

std::string FakeEngine::WaitByLayer(kvstrata_plan* plan, const kvstrata_match_info& info, const Sequence& prompt) {
  uint64_t seen = 0;
  while (seen < layers_.size()) {
    Error error;
    auto result = Sized<kvstrata_plan_result>();
    const kvstrata_status status = kvstrata_plan_wait_layers(plan, seen + 1, kWaitMs, &result, &error);
    if (status != KVSTRATA_OK) return Fault("wait_layers", status, error);
    if (result.layers_total != layers_.size()) return Numbers("layers_total", result.layers_total, layers_.size());
    if (result.state != KVSTRATA_PLAN_RUNNING && result.state != KVSTRATA_PLAN_COMPLETE) return "";
    if (result.layers_ready <= seen) return Numbers("layers_ready", result.layers_ready, seen + 1);
    for (size_t i = 0; i < memories_.size(); ++i) {
      const uint32_t layer = memories_[i]->stream().layer;
      if (layer < layers_[seen] || layer > layers_[result.layers_ready - 1]) continue;
      std::string fault = CheckStream(i, prompt, info, info.usable_tokens, info.snapshot_position);
      if (!fault.empty()) return "after layer " + std::to_string(layer) + " was given out: " + fault;
    }
    seen = result.layers_ready;
  }
  return "";
}

std::vector<kvstrata_buffer> FakeEngine::Destinations(const kvstrata_match_info& info, const Sequence& prompt) {
  if (info.snapshot_position != UINT64_MAX) PrepareState(info.snapshot_position, prompt);
  std::vector<kvstrata_buffer> destinations;
  for (const auto& memory : memories_) {
    memory->Poison();
    memory->Upload();
    destinations.push_back(*memory->Describe());
  }
  return destinations;
}

std::string FakeEngine::RunPlan(kvstrata_plan* plan, const kvstrata_match_info& info, const Sequence& prompt,
                                const RestoreOptions& options, kvstrata_plan_result* result) {
  Error error;
  std::vector<kvstrata_buffer> destinations;
  for (const auto& memory : memories_) {
    memory->Poison();
    if (options.hole_percent != 0) memory->PunchHoles(options.hole_percent, rng_);
    memory->Upload();
    destinations.push_back(*memory->Describe());
  }
  kvstrata_status status =
      kvstrata_plan_start(plan, destinations.data(), destinations.size(), sizeof(kvstrata_buffer), &error);
  if (status != KVSTRATA_OK) return Fault("plan_start", status, error);
  if (options.by_layer) {
    std::string fault = WaitByLayer(plan, info, prompt);
    if (!fault.empty()) return fault;
  }
  *result = Sized<kvstrata_plan_result>();
  status = kvstrata_plan_wait(plan, kWaitMs, result, &error);
  if (status != KVSTRATA_OK) return Fault("plan_wait", status, error);
  // A device that has failed may have lost what was queued, or not.
  const bool lost = options.expect_faults && result->state == KVSTRATA_PLAN_FAILED;
  if (result->quiesced != 1 && !lost) return Numbers("quiesced", result->quiesced, 1);
  if (result->state == KVSTRATA_PLAN_COMPLETE) {
    if (result->usable_tokens != info.usable_tokens) {
      return Numbers("usable_tokens of a complete plan", result->usable_tokens, info.usable_tokens);
    }
    if (result->layers_ready != layers_.size()) return Numbers("layers_ready", result->layers_ready, layers_.size());
  } else if (options.expect_faults && result->state == KVSTRATA_PLAN_FAILED) {
    if (result->status == KVSTRATA_OK) return "a failed plan without a status";
    result->usable_tokens = 0;
    // What was promised may hold anything; all else is as it was.
    for (size_t i = 0; i < memories_.size(); ++i) {
      std::string fault = CheckStream(i, prompt, info, 0, UINT64_MAX);
      if (!fault.empty()) return "a failed plan: " + fault;
    }
    return "";
  } else if (result->state != KVSTRATA_PLAN_SHORTENED) {
    return Numbers("state", static_cast<uint64_t>(result->state), KVSTRATA_PLAN_COMPLETE);
  }
  if (result->usable_tokens > info.usable_tokens) return "a plan's result is longer than its promise";
  for (size_t i = 0; i < memories_.size(); ++i) {
    std::string fault = CheckStream(i, prompt, info, result->usable_tokens, result->snapshot_position);
    if (!fault.empty()) return "state " + std::to_string(result->state) + ": " + fault;
  }
  return "";
}

// What an engine does with a restore: it runs the replay, has the rows that it held before, and takes pages where there
// were holes.
void FakeEngine::Complete(const Sequence& prompt, const kvstrata_plan_result& result) {
  sequence_ = prompt.Prefix(result.usable_tokens);
  computed_ = result.usable_tokens;
  for (size_t i = 0; i < memories_.size(); ++i) {
    RowMemory& memory = *memories_[i];
    const kvstrata_stream& stream = memory.stream();
    if (!IsRows(stream)) continue;
    std::vector<uint64_t> missing;
    for (uint64_t row = 0; row < computed_ / stream.ratio; ++row) {
      if (!IsPromised(i, row) || memory.IsHole(row)) missing.push_back(row);
    }
    memory.FillHoles();
    for (const uint64_t row : missing) memory.Write(row, RowSeed(stream, memory.index(), row, sequence_, computed_));
  }
  for (const auto& memory : memories_) memory->FillHoles();
  WriteState(computed_);
}

std::string FakeEngine::Restore(kvstrata_match* match, const Sequence& prompt, const RestoreOptions& options,
                                kvstrata_plan_result* result, PlanHandle* ended) {
  Error error;
  auto info = Sized<kvstrata_match_info>();
  kvstrata_status status = kvstrata_match_get_info(match, &info, &error);
  if (status != KVSTRATA_OK) return Fault("match_get_info", status, error);
  auto plan_options = Sized<kvstrata_plan_options>();
  plan_options.flags = options.early_release ? KVSTRATA_PLAN_EARLY_RELEASE : 0;
  PlanHandle plan;
  status = kvstrata_plan_create(match, &plan_options, Out(plan), &error);
  if (status != KVSTRATA_OK) return Fault("plan_create", status, error);
  std::string fault = ReadSegments(plan.get(), info, prompt);
  if (!fault.empty()) return fault;
  if (info.snapshot_position != UINT64_MAX) PrepareState(info.snapshot_position, prompt);
  fault = RunPlan(plan.get(), info, prompt, options, result);
  if (!fault.empty()) return fault;
  Complete(prompt, *result);
  if (ended != nullptr) *ended = std::move(plan);
  return "";
}

std::string FakeEngine::SetSources(kvstrata_writer* writer) {
  for (const auto& memory : memories_) {
    Error error;
    memory->Upload();
    const kvstrata_status status = kvstrata_writer_set_source(writer, memory->Describe(), &error);
    if (status != KVSTRATA_OK) return Fault("set_source", status, error);
  }
  return "";
}

std::string FakeEngine::Advance(kvstrata_writer* writer, uint64_t writer_tokens, uint64_t to) {
  Error error;
  if (to != computed_) Compute(to);
  // The page tables of states move with the position, and an opaque state's size does.
  std::string fault = SetSources(writer);
  if (!fault.empty()) return fault;
  const bool fresh = sequence_.size() > writer_tokens;
  const kvstrata_tokens* tokens = fresh ? sequence_.Tokens(writer_tokens, sequence_.size() - writer_tokens) : nullptr;
  const kvstrata_status status = kvstrata_writer_advance(writer, tokens, to, &error);
  return status == KVSTRATA_OK ? "" : Fault("advance", status, error);
}

}  // namespace kvstrata::test
