// SPDX-License-Identifier: Apache-2.0
// Plan handles, and the reading of buffers.
#include <memory>
#include <string>
#include <utility>

#include "capi/handles.h"
#include "capi/struct_reader.h"

namespace kvstrata::capi {
namespace {

// Pages of one token would give a sequence of 2^31 tokens that many ids; more than that is a stray count.
constexpr uint64_t kMaxPageIds = uint64_t{1} << 31;

template <typename T>
void CopyIds(const void* from, uint64_t count, std::vector<int64_t>* to) {
  const T* ids = static_cast<const T*>(from);
  to->assign(ids, ids + count);
}

absl::Status ReadPageIds(const kvstrata_buffer& buffer, const std::string& field, std::vector<int64_t>* out) {
  const bool wanted = buffer.form == KVSTRATA_FORM_PAGES || buffer.form == KVSTRATA_FORM_SLOTS;
  if (!wanted || buffer.page_count == 0) return absl::OkStatus();
  if (buffer.page_ids == nullptr) return base::InvalidArgument(field + ".page_ids", "NULL with a count");
  if (buffer.page_count > kMaxPageIds) {
    return base::InvalidArgument(field + ".page_count", std::to_string(buffer.page_count));
  }
  switch (buffer.page_id_bytes) {
    case 4: CopyIds<int32_t>(buffer.page_ids, buffer.page_count, out); return absl::OkStatus();
    case 8: CopyIds<int64_t>(buffer.page_ids, buffer.page_count, out); return absl::OkStatus();
    default:
      return base::InvalidArgument(field + ".page_id_bytes", std::to_string(buffer.page_id_bytes) + ", not 4 or 8");
  }
}

}  // namespace

absl::StatusOr<engine::BufferDesc> ReadBuffer(const kvstrata_buffer& buffer, const std::string& field) {
  if (buffer.memory != KVSTRATA_MEMORY_HOST && buffer.memory != KVSTRATA_MEMORY_DEVICE) {
    return base::InvalidArgument(field + ".memory", std::to_string(buffer.memory));
  }
  if (buffer.memory == KVSTRATA_MEMORY_DEVICE && buffer.device_id < 0) {
    return base::InvalidArgument(field + ".device_id", std::to_string(buffer.device_id));
  }
  if (buffer.reserved0 != 0) return base::InvalidArgument(field + ".reserved0", "not zero");
  engine::BufferDesc desc;
  desc.stream = buffer.stream;
  desc.memory = static_cast<engine::MemoryKind>(buffer.memory);
  desc.device_id = buffer.device_id;
  desc.form = static_cast<engine::BufferForm>(buffer.form);
  desc.rows_per_page = buffer.rows_per_page;
  desc.base = static_cast<std::byte*>(buffer.base);
  desc.size_bytes = buffer.size_bytes;
  desc.first_row = buffer.first_row;
  desc.row_stride = buffer.row_stride;
  desc.capacity_rows = buffer.capacity_rows;
  desc.page_stride = buffer.page_stride;
  desc.first_page = buffer.first_page;
  if (absl::Status status = ReadPageIds(buffer, field, &desc.page_ids); !status.ok()) return status;
  const absl::StatusOr<std::vector<kvstrata_column>> columns = ReadArray<kvstrata_column>(
      buffer.columns, buffer.column_count, buffer.column_stride, engine::kMaxColumns, field + ".columns");
  if (!columns.ok()) return columns.status();
  for (const kvstrata_column& column : *columns) desc.columns.push_back({column.offset, column.stride, column.bytes});
  return desc;
}

namespace {

absl::Status CreatePlan(kvstrata_match* match, const kvstrata_plan_options* given, kvstrata_plan** out) {
  if (match == nullptr) return base::InvalidArgument("match", "NULL");
  if (out == nullptr) return base::InvalidArgument("out", "NULL");
  const absl::StatusOr<kvstrata_plan_options> options = ReadOptionalStruct<kvstrata_plan_options>(given, "options");
  if (!options.ok()) return options.status();
  if ((options->flags & ~uint32_t{KVSTRATA_PLAN_EARLY_RELEASE}) != 0) {
    return base::InvalidArgument("options.flags", std::to_string(options->flags));
  }
  if (options->streams == nullptr && options->stream_count > 0) {
    return base::InvalidArgument("options.streams", "NULL with a count");
  }
  if (options->stream_count > layout::kMaxStreams) {
    return base::InvalidArgument("options.stream_count", std::to_string(options->stream_count));
  }
  engine::RestoreOptions restore;
  restore.early_release = (options->flags & KVSTRATA_PLAN_EARLY_RELEASE) != 0;
  restore.streams.assign(options->streams, options->streams + options->stream_count);
  restore.timeout_ms = options->timeout_ms;
  restore.stream = options->stream;
  if (options->signal != nullptr) {
    restore.notify = [notify = options->signal, user = options->signal_user](uint64_t layers,
                                                                             engine::RestoreState state) {
      return notify(user, layers, static_cast<int32_t>(state)) == 0;
    };
  }
  absl::StatusOr<std::shared_ptr<engine::RestorePlan>> plan =
      engine::RestorePlan::Create(*match->match, std::move(restore));
  if (!plan.ok()) return plan.status();
  *out = new kvstrata_plan{*std::move(plan)};
  return absl::OkStatus();
}

kvstrata_plan_result ResultOf(const engine::RestoreResult& result) {
  kvstrata_plan_result out{};
  out.state = static_cast<int32_t>(result.state);
  out.mode = static_cast<int32_t>(result.plan.mode);
  out.reason = static_cast<int32_t>(result.plan.reason);
  out.usable_tokens = result.plan.usable_tokens;
  out.replay_from = result.plan.replay_from;
  out.write_floor = result.plan.write_floor;
  out.snapshot_position = result.plan.snapshot.has_value() ? result.plan.snapshot->position : engine::kNoPosition;
  out.layers_ready = result.layers_ready;
  out.layers_total = result.layers_total;
  out.bytes_read = result.bytes_read;
  out.quiesced = result.quiesced ? 1 : 0;
  out.status = static_cast<kvstrata_status>(base::CodeOf(result.status));
  return out;
}

absl::Status WaitFor(kvstrata_plan* plan, uint64_t layers, uint64_t timeout_ms, kvstrata_plan_result* out) {
  if (plan == nullptr) return base::InvalidArgument("plan", "NULL");
  if (out != nullptr) {
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
  }
  if (absl::Status status = CheckProcess(*plan->plan->match()->cache); !status.ok()) return status;
  engine::RestoreResult result;
  if (absl::Status status = plan->plan->WaitLayers(layers, timeout_ms, &result); !status.ok()) return status;
  if (out != nullptr) WriteStruct(ResultOf(result), out);
  return absl::OkStatus();
}

}  // namespace
}  // namespace kvstrata::capi

using namespace kvstrata::capi;  // the ABI's functions are the only names in this file outside it

extern "C" {

kvstrata_status kvstrata_plan_create(kvstrata_match* match, const kvstrata_plan_options* options, kvstrata_plan** out,
                                     kvstrata_error* error) {
  return Fence(error, [&] { return CreatePlan(match, options, out); });
}

uint64_t kvstrata_plan_segment_count(const kvstrata_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->segments().size();
}

kvstrata_status kvstrata_plan_get_segment(const kvstrata_plan* plan, uint64_t index, kvstrata_plan_segment* out,
                                          kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (plan == nullptr) return base::InvalidArgument("plan", "NULL");
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    if (absl::Status status = CheckProcess(*plan->plan->match()->cache); !status.ok()) return status;
    const std::vector<engine::Segment>& segments = plan->plan->segments();
    if (index >= segments.size()) {
      return base::InvalidArgument("index", std::to_string(index) + " of " + std::to_string(segments.size()));
    }
    kvstrata_plan_segment value{};
    value.stream = segments[index].stream;
    value.layer = segments[index].layer;
    value.first_row = segments[index].rows.first;
    value.rows = segments[index].rows.count;
    value.bytes = segments[index].bytes;
    WriteStruct(value, out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_plan_start(kvstrata_plan* plan, const kvstrata_buffer* destinations, uint64_t count,
                                    uint64_t stride, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (plan == nullptr) return base::InvalidArgument("plan", "NULL");
    if (absl::Status status = CheckProcess(*plan->plan->match()->cache); !status.ok()) return status;
    const absl::StatusOr<std::vector<kvstrata_buffer>> buffers =
        ReadArray<kvstrata_buffer>(destinations, count, stride, layout::kMaxStreams, "destinations");
    if (!buffers.ok()) return buffers.status();
    std::vector<engine::BufferDesc> descs;
    for (uint64_t i = 0; i < buffers->size(); ++i) {
      absl::StatusOr<engine::BufferDesc> desc = ReadBuffer((*buffers)[i], "destinations[" + std::to_string(i) + "]");
      if (!desc.ok()) return desc.status();
      descs.push_back(*std::move(desc));
    }
    return plan->plan->Start(std::move(descs));
  });
}

kvstrata_status kvstrata_plan_poll(const kvstrata_plan* plan, kvstrata_plan_result* out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (plan == nullptr) return base::InvalidArgument("plan", "NULL");
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    if (absl::Status status = CheckProcess(*plan->plan->match()->cache); !status.ok()) return status;
    WriteStruct(ResultOf(plan->plan->Poll()), out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_plan_wait_layers(kvstrata_plan* plan, uint64_t layers, uint64_t timeout_ms,
                                          kvstrata_plan_result* out, kvstrata_error* error) {
  return Fence(error, [&] { return WaitFor(plan, layers, timeout_ms, out); });
}

kvstrata_status kvstrata_plan_wait(kvstrata_plan* plan, uint64_t timeout_ms, kvstrata_plan_result* out,
                                   kvstrata_error* error) {
  return Fence(error, [&] { return WaitFor(plan, UINT64_MAX, timeout_ms, out); });
}

void kvstrata_plan_cancel(kvstrata_plan* plan) {
  // A forked child has no reads on their way, and its copy of the destinations is its own.
  if (plan == nullptr || !plan->plan->InOwnerProcess()) return;
  Fence(nullptr, [&]() -> absl::Status {
    plan->plan->Cancel();
    return absl::OkStatus();
  });
}

void kvstrata_plan_destroy(kvstrata_plan* plan) {
  if (plan == nullptr) return;
  // A forked child must not touch the parent's locks; what it inherited it leaves alone.
  if (!plan->plan->InOwnerProcess()) return;
  Fence(nullptr, [&]() -> absl::Status {
    plan->plan->Release();
    return absl::OkStatus();
  });
  delete plan;
}

}  // extern "C"
