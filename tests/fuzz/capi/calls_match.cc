// SPDX-License-Identifier: Apache-2.0
// Calls on matches and plans.
#include <array>
#include <utility>
#include <vector>

#include "tests/fuzz/capi/session.h"

namespace kvstrata::fuzz {
namespace {

int32_t Ignore(void* user, uint64_t layers_ready, int32_t state) {
  static_cast<void>(layers_ready);
  static_cast<void>(state);
  return user == nullptr ? 0 : 1;  // 1 cancels
}

}  // namespace

void Session::Lookup() {
  auto options = Sized<kvstrata_lookup_options>();
  options.allowed_modes = in_.OneIn(4) ? in_.Number32(31) : 30;
  if (in_.OneIn(3)) {
    options.flags = static_cast<uint32_t>(in_.Choice({0, KVSTRATA_LOOKUP_PEEK, KVSTRATA_LOOKUP_NO_LEASE}));
    options.held_tokens = in_.Number(100);
    options.restart_multiple = in_.Number32(16);
    options.min_gain_tokens = in_.Number(50);
    static constexpr std::array<double, 6> kRates = {0, 1, 1e9, -1, 1e308, 1e-308};
    options.prefill_tokens_per_second = kRates[in_.Below(kRates.size())];
    options.storage_bytes_per_second = kRates[in_.Below(kRates.size())];
    options.lease_ms = in_.Number(20);
  }
  const Input<kvstrata_lookup_options> input(in_, options);
  const TokenArguments tokens(in_, Ids());
  ErrorOutput error(in_);
  kvstrata_match* made = Stray<kvstrata_match>();
  Take("kvstrata_lookup", kvstrata_lookup(spaces_.Pick(in_), tokens.get(), input.get(), OrNull(&made), error.get()),
       error, made, matches_);
}

void Session::MatchWork() {
  kvstrata_match* match = matches_.Pick(in_);
  ErrorOutput error(in_);
  OutputArray<uint64_t> number(in_, 1, 77);
  switch (in_.Below(5)) {
    case 0: {
      OutputStruct<kvstrata_match_info> info(in_);
      return Judge("kvstrata_match_get_info", kvstrata_match_get_info(match, info.get(), error.get()), error, {&info});
    }
    case 1: return Judge("kvstrata_match_renew", kvstrata_match_renew(match, in_.Number(50), error.get()), error);
    case 2: return Judge("kvstrata_match_limit", kvstrata_match_limit(match, in_.Number(200), error.get()), error);
    case 3: {
      std::vector<kvstrata_match*> all(in_.Below(4));
      for (kvstrata_match*& one : all) one = matches_.Pick(in_);
      all.shrink_to_fit();
      return Judge("kvstrata_match_agree",
                   kvstrata_match_agree(all.data(), in_.Count(all.size()), number.get(), error.get()), error,
                   {&number});
    }
    default:
      LetGo();
      return Judge("kvstrata_match_first_difference", kvstrata_match_first_difference(match, number.get(), error.get()),
                   error, {&number});
  }
}

void Session::PlanCreate() {
  auto options = Sized<kvstrata_plan_options>();
  options.flags = static_cast<uint32_t>(in_.Choice({0, 0, KVSTRATA_PLAN_EARLY_RELEASE}));
  std::vector<uint32_t> streams;
  if (in_.OneIn(8)) {
    for (uint64_t i = 1 + in_.Below(3); i > 0; --i) streams.push_back(in_.Number32(3));
    streams.shrink_to_fit();
    options.streams = in_.OneIn(16) ? nullptr : streams.data();
    options.stream_count = in_.Count(streams.size());
  }
  options.timeout_ms = in_.OneIn(4) ? in_.Number(20) : 0;
  if (in_.OneIn(3)) {
    options.signal = &Ignore;
    options.signal_user = in_.OneIn(4) ? this : nullptr;
  }
  const Input<kvstrata_plan_options> input(in_, options);
  ErrorOutput error(in_);
  kvstrata_plan* made = Stray<kvstrata_plan>();
  LetGo();  // a state of varying size has its size read
  Take("kvstrata_plan_create", kvstrata_plan_create(matches_.Pick(in_), input.get(), OrNull(&made), error.get()), error,
       made, plans_);
}

// What a segment needs, laid out in any way; or something else.
kvstrata_buffer Session::Buffer(uint32_t stream, uint64_t rows, uint64_t first_row, uint64_t row_bytes) {
  auto buffer = Sized<kvstrata_buffer>();
  buffer.stream = stream;
  buffer.size_bytes = rows * row_bytes;
  buffer.first_row = first_row;
  switch (in_.Below(8)) {
    case 0: {  // pages in reverse order, with a hole
      buffer.form = KVSTRATA_FORM_PAGES;
      buffer.rows_per_page = static_cast<uint32_t>(1 + in_.Below(8));
      buffer.first_row = 0;
      buffer.first_page = first_row / buffer.rows_per_page;
      const uint64_t pages = (first_row + rows) / buffer.rows_per_page + 1 - buffer.first_page;
      if (pages > 1000) return StrayBuffer();
      page_ids_.emplace_back();
      for (uint64_t i = pages; i > 0; --i) page_ids_.back().push_back(in_.OneIn(8) ? -1 : static_cast<int64_t>(i - 1));
      buffer.page_ids = page_ids_.back().data();
      buffer.page_count = in_.Count(pages);
      buffer.page_id_bytes = 8;
      buffer.page_stride = uint64_t{buffer.rows_per_page} * row_bytes;
      buffer.size_bytes = pages * buffer.page_stride;
      break;
    }
    case 1:
      buffer.form = KVSTRATA_FORM_RING;
      buffer.capacity_rows = rows;
      break;
    case 2:
      if (row_bytes >= 2) {  // two columns, one behind the other
        auto column = Sized<kvstrata_column>();
        column.bytes = 1;
        column.stride = 1;
        auto rest = column;
        rest.bytes = static_cast<uint32_t>(row_bytes - 1);
        rest.offset = rows;
        rest.stride = row_bytes - 1;
        columns_.push_back({column, rest});
        buffer.columns = columns_.back().data();
        buffer.column_count = in_.Count(2);
      }
      break;
    case 3:
      if (in_.OneIn(4)) return StrayBuffer();
      break;
    default: break;
  }
  if (in_.OneIn(16)) buffer.size_bytes = in_.Below(buffer.size_bytes + 1);
  if (buffer.size_bytes > 1 << 20) return StrayBuffer();
  if (in_.OneIn(8)) {
    std::byte* memory = device_.Allocate(buffer.size_bytes + 1);
    buffer.memory = KVSTRATA_MEMORY_DEVICE;
    buffer.base = memory;
    if (memory != nullptr) return buffer;
    buffer.memory = KVSTRATA_MEMORY_HOST;
  }
  buffer.base = Memory(buffer.size_bytes);
  return buffer;
}

// Any numbers at all, over memory that is there.
kvstrata_buffer Session::StrayBuffer() {
  auto buffer = Sized<kvstrata_buffer>();
  buffer.stream = in_.Number32(4);
  buffer.memory = in_.Choice({KVSTRATA_MEMORY_HOST});
  buffer.form = in_.Choice({KVSTRATA_FORM_LINEAR, KVSTRATA_FORM_RING, KVSTRATA_FORM_PAGES, KVSTRATA_FORM_SLOTS});
  buffer.rows_per_page = in_.Number32(8);
  buffer.size_bytes = in_.Below(300);
  buffer.base = in_.OneIn(16) ? nullptr : Memory(buffer.size_bytes);
  buffer.first_row = in_.Number(100);
  buffer.row_stride = in_.OneIn(2) ? 0 : in_.Number(64);
  buffer.capacity_rows = in_.Number(16);
  buffer.page_stride = in_.Number(100);
  buffer.first_page = in_.Number(4);
  page_ids_.emplace_back();
  for (uint64_t i = in_.Below(6); i > 0; --i) page_ids_.back().push_back(static_cast<int64_t>(in_.Number(4)));
  page_ids_.back().shrink_to_fit();
  buffer.page_ids = in_.OneIn(16) ? nullptr : page_ids_.back().data();
  buffer.page_count = in_.Count(page_ids_.back().size());
  buffer.page_id_bytes = in_.OneIn(16) ? in_.Number32(9) % 9 : 8;
  if (buffer.page_id_bytes > 8) buffer.page_id_bytes = 8;
  if (in_.OneIn(4)) {
    columns_.emplace_back();
    for (uint64_t i = 1 + in_.Below(4); i > 0; --i) {
      auto column = Sized<kvstrata_column>();
      column.bytes = in_.Number32(32);
      column.offset = in_.Number(32);
      column.stride = in_.Number(64);
      columns_.back().push_back(column);
    }
    columns_.back().shrink_to_fit();
    buffer.columns = columns_.back().data();
    buffer.column_count = in_.Count(columns_.back().size());
  }
  return buffer;
}

void Session::PlanStart() {
  kvstrata_plan* plan = plans_.Pick(in_);
  std::vector<kvstrata_buffer> buffers;
  const uint64_t segments = kvstrata_plan_segment_count(plan);
  for (uint64_t i = 0; i < segments && i < 64; ++i) {
    auto segment = Sized<kvstrata_plan_segment>();
    if (kvstrata_plan_get_segment(plan, i, &segment, nullptr) != KVSTRATA_OK || in_.OneIn(32)) continue;
    const uint64_t row_bytes = segment.rows == 0 ? 0 : segment.bytes / segment.rows;
    buffers.push_back(in_.OneIn(16) ? StrayBuffer()
                                    : Buffer(segment.stream, segment.rows, segment.first_row, row_bytes));
  }
  const InputArray<kvstrata_buffer> array(in_, buffers);
  ErrorOutput error(in_);
  Judge("kvstrata_plan_start", kvstrata_plan_start(plan, array.get(), array.count(), array.stride(), error.get()),
        error);
}

void Session::PlanWait() {
  kvstrata_plan* plan = plans_.Pick(in_);
  ErrorOutput error(in_);
  OutputStruct<kvstrata_plan_result> result(in_);
  const uint64_t timeout = in_.Number(20);
  switch (in_.Below(5)) {
    case 0: return kvstrata_plan_cancel(plan);
    case 1: return Judge("kvstrata_plan_poll", kvstrata_plan_poll(plan, result.get(), error.get()), error, {&result});
    case 2:
      if (timeout > 1000) LetGo();
      return Judge("kvstrata_plan_wait_layers",
                   kvstrata_plan_wait_layers(plan, in_.Number(4), timeout, result.get(), error.get()), error,
                   {&result});
    case 3: {
      OutputStruct<kvstrata_plan_segment> segment(in_);
      return Judge("kvstrata_plan_get_segment",
                   kvstrata_plan_get_segment(plan, in_.Number(4), segment.get(), error.get()), error, {&segment});
    }
    default:
      if (timeout > 1000) LetGo();
      return Judge("kvstrata_plan_wait", kvstrata_plan_wait(plan, timeout, result.get(), error.get()), error,
                   {&result});
  }
}

}  // namespace kvstrata::fuzz
