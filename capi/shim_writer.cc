// SPDX-License-Identifier: Apache-2.0
// Writer handles.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "capi/handles.h"
#include "capi/struct_reader.h"

namespace kvstrata::capi {
namespace {

namespace trie = kvstrata::core::trie;

absl::StatusOr<trie::Priority> ReadPriority(int32_t priority) {
  switch (priority) {
    case KVSTRATA_PRIORITY_NORMAL: return trie::Priority::kNormal;
    case KVSTRATA_PRIORITY_LOW: return trie::Priority::kLow;
    case KVSTRATA_PRIORITY_HIGH: return trie::Priority::kHigh;
    default: return base::InvalidArgument("options.priority", std::to_string(priority));
  }
}

absl::Status OpenWriter(kvstrata_namespace* name_space, const kvstrata_match* match,
                        const kvstrata_writer_options* given, kvstrata_writer** out) {
  if (name_space == nullptr) return base::InvalidArgument("name_space", "NULL");
  if (out == nullptr) return base::InvalidArgument("out", "NULL");
  const absl::StatusOr<kvstrata_writer_options> options = ReadOptionalStruct<kvstrata_writer_options>(given, "options");
  if (!options.ok()) return options.status();
  constexpr uint32_t kKnown = KVSTRATA_WRITER_NO_ADMIT | KVSTRATA_WRITER_NO_SNAPSHOTS | KVSTRATA_WRITER_ADMIT_INEXACT;
  if ((options->flags & ~kKnown) != 0) return base::InvalidArgument("options.flags", std::to_string(options->flags));
  if (options->reserved0 != 0) return base::InvalidArgument("options.reserved0", "not zero");
  const absl::StatusOr<trie::Priority> priority = ReadPriority(options->priority);
  if (!priority.ok()) return priority.status();
  engine::WriterOptions writer;
  writer.priority = *priority;
  writer.ttl_seconds = options->ttl_seconds;
  writer.compress = name_space->compress;
  writer.pack = name_space->pack;
  writer.no_admit = (options->flags & KVSTRATA_WRITER_NO_ADMIT) != 0;
  writer.no_snapshots = (options->flags & KVSTRATA_WRITER_NO_SNAPSHOTS) != 0;
  writer.admit_inexact = (options->flags & KVSTRATA_WRITER_ADMIT_INEXACT) != 0;
  writer.restart_multiple = options->restart_multiple;
  writer.start_tokens = options->start_tokens;
  writer.wait_ms = options->wait_ms;
  writer.stream = options->stream;
  absl::StatusOr<std::unique_ptr<engine::Writer>> opened = engine::Writer::Open(
      name_space->cache, name_space->name_space, name_space->policy, match == nullptr ? nullptr : match->match.get(),
      options->plan == nullptr ? nullptr : options->plan->plan.get(), writer);
  if (!opened.ok()) return opened.status();
  *out = new kvstrata_writer{*std::move(opened)};
  return absl::OkStatus();
}

absl::Status Positions(kvstrata_writer* writer, const kvstrata_tokens* prompt, uint64_t* positions, uint64_t capacity,
                       uint64_t* out_count) {
  if (writer == nullptr) return base::InvalidArgument("writer", "NULL");
  if (out_count == nullptr) return base::InvalidArgument("out_count", "NULL");
  if (positions == nullptr && capacity > 0) return base::InvalidArgument("positions", "NULL with a capacity");
  const absl::StatusOr<engine::Prompt> read = ReadPrompt(prompt, "prompt");
  if (!read.ok()) return read.status();
  const absl::StatusOr<std::vector<uint64_t>> wanted = writer->writer->SnapshotPositions(*read);
  if (!wanted.ok()) return wanted.status();
  *out_count = wanted->size();
  if (capacity < wanted->size()) {
    return base::MakeStatus(base::Code::kBufferTooSmall, "capacity",
                            std::to_string(capacity) + " < " + std::to_string(wanted->size()));
  }
  std::copy(wanted->begin(), wanted->end(), positions);
  return absl::OkStatus();
}

kvstrata_commit_info InfoOf(const engine::CommitInfo& info) {
  kvstrata_commit_info out{};
  out.durable = info.durable ? 1 : 0;
  out.sequence_tokens = info.sequence_tokens;
  out.computed_tokens = info.computed_tokens;
  out.blocks_stored = info.progress.blocks_stored;
  out.blocks_deduplicated = info.progress.blocks_deduplicated;
  out.blocks_dropped = info.progress.blocks_dropped;
  out.snapshots_stored = info.progress.snapshots_stored;
  out.snapshots_deduplicated = info.progress.snapshots_deduplicated;
  out.snapshots_dropped = info.progress.snapshots_dropped;
  out.stored_bytes = info.progress.stored_bytes;
  out.drop_reason = static_cast<int32_t>(info.progress.drop_reason);
  return out;
}

}  // namespace
}  // namespace kvstrata::capi

using namespace kvstrata::capi;  // the ABI's functions are the only names in this file outside it

extern "C" {

kvstrata_status kvstrata_writer_open(kvstrata_namespace* name_space, const kvstrata_match* match,
                                     const kvstrata_writer_options* options, kvstrata_writer** out,
                                     kvstrata_error* error) {
  return Fence(error, [&] { return OpenWriter(name_space, match, options, out); });
}

kvstrata_status kvstrata_writer_set_source(kvstrata_writer* writer, const kvstrata_buffer* source,
                                           kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (writer == nullptr) return base::InvalidArgument("writer", "NULL");
    const absl::StatusOr<kvstrata_buffer> buffer = ReadStruct<kvstrata_buffer>(source, "source");
    if (!buffer.ok()) return buffer.status();
    absl::StatusOr<engine::BufferDesc> desc = ReadBuffer(*buffer, "source");
    if (!desc.ok()) return desc.status();
    return writer->writer->SetSource(*std::move(desc));
  });
}

kvstrata_status kvstrata_writer_advance(kvstrata_writer* writer, const kvstrata_tokens* tokens,
                                        uint64_t computed_length, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (writer == nullptr) return base::InvalidArgument("writer", "NULL");
    TokenInput input;
    if (tokens != nullptr) {
      absl::StatusOr<TokenInput> read = ReadTokens(tokens, "tokens");
      if (!read.ok()) return read.status();
      input = *std::move(read);
    }
    return writer->writer->Advance(input.ids, std::move(input.keys), computed_length);
  });
}

kvstrata_status kvstrata_writer_snapshot(kvstrata_writer* writer, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (writer == nullptr) return base::InvalidArgument("writer", "NULL");
    return writer->writer->Snapshot();
  });
}

kvstrata_status kvstrata_writer_snapshot_positions(kvstrata_writer* writer, const kvstrata_tokens* prompt,
                                                   uint64_t* positions, uint64_t capacity, uint64_t* out_count,
                                                   kvstrata_error* error) {
  return Fence(error, [&] { return Positions(writer, prompt, positions, capacity, out_count); });
}

kvstrata_status kvstrata_writer_truncate(kvstrata_writer* writer, uint64_t length, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (writer == nullptr) return base::InvalidArgument("writer", "NULL");
    if (absl::Status status = CheckProcess(*writer->writer->cache()); !status.ok()) return status;
    return writer->writer->Truncate(length);
  });
}

kvstrata_status kvstrata_writer_fork(const kvstrata_writer* writer, kvstrata_writer** out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (writer == nullptr) return base::InvalidArgument("writer", "NULL");
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    absl::StatusOr<std::unique_ptr<engine::Writer>> fork = writer->writer->Fork();
    if (!fork.ok()) return fork.status();
    *out = new kvstrata_writer{*std::move(fork)};
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_writer_commit(kvstrata_writer* writer, uint32_t flags, uint64_t timeout_ms,
                                       kvstrata_commit_info* out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (writer == nullptr) return base::InvalidArgument("writer", "NULL");
    constexpr uint32_t kKnown = KVSTRATA_COMMIT_DURABLE | KVSTRATA_COMMIT_OUTPUT_END;
    if ((flags & ~kKnown) != 0) return base::InvalidArgument("flags", std::to_string(flags));
    if (out != nullptr) {
      if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    }
    engine::CommitInfo info;
    const absl::Status status = writer->writer->Commit((flags & KVSTRATA_COMMIT_DURABLE) != 0,
                                                       (flags & KVSTRATA_COMMIT_OUTPUT_END) != 0, timeout_ms, &info);
    if (status.ok() && out != nullptr) WriteStruct(InfoOf(info), out);
    return status;
  });
}

void kvstrata_writer_destroy(kvstrata_writer* writer) {
  // A forked child must not touch the parent's locks; what it inherited it leaves alone.
  if (writer == nullptr || !writer->writer->cache()->InOwnerProcess()) return;
  delete writer;
}

}  // extern "C"
