// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/file.h"

#include <string>
#include <utility>

#include "lib/base/status.h"
#include "lib/storage/request_check.h"

namespace kvstrata::core::storage {
namespace {

constexpr uint32_t kMaxIoThreads = 64;
constexpr uint64_t kMaxRequests = 65536;
// A file's size is a signed 64-bit number.
constexpr uint64_t kMaxPayloadBytes = uint64_t{INT64_MAX} - format::kFileRecordHeaderBytes - kMaxMetaBytes;

absl::Status CheckOptions(const FileOptions& options) {
  if (options.io_threads < 1 || options.io_threads > kMaxIoThreads) {
    return base::InvalidArgument("io_threads", std::to_string(options.io_threads) + " is not within 1 and 64");
  }
  if (options.max_requests < 1 || options.max_requests > kMaxRequests) {
    return base::InvalidArgument("max_requests", std::to_string(options.max_requests) + " is not within 1 and 65536");
  }
  return absl::OkStatus();
}

}  // namespace

struct FileStorage::State {
  State(const FileOptions& options, std::unique_ptr<RecordFiles> opened)
      : files(std::move(opened)),
        gate(options.max_requests),
        pool(
            options.max_requests, [this](const Request& request) { return Carry(request); },
            [this] { gate.LeaveRequest(); }) {
    limits.durable_sync = !options.read_only;
    limits.persistent = true;
    limits.read_only = options.read_only;
    limits.max_requests = options.max_requests;
    limits.max_payload_bytes = kMaxPayloadBytes;
  }

  Result Carry(const Request& request) {
    const Put* put = std::get_if<Put>(&request.operation);
    return put != nullptr ? files->DoPut(*put) : files->DoGet(std::get<Get>(request.operation));
  }

  Capabilities limits;
  const std::unique_ptr<RecordFiles> files;
  Gate gate;
  IoPool pool;
  // Two threads may close at once; the second finds nothing left to do.
  base::Mutex close_mutex;
};

absl::StatusOr<std::unique_ptr<FileStorage>> FileStorage::Open(const FileOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  auto files = RecordFiles::Open(*options.os, *options.random, options.path, options.read_only);
  if (!files.ok()) return files.status();
  auto state = std::make_unique<State>(options, std::move(*files));
  if (absl::Status status = state->pool.Start(options.io_threads); !status.ok()) return status;
  return std::unique_ptr<FileStorage>(new FileStorage(std::move(state)));
}

FileStorage::FileStorage(std::unique_ptr<State> state) : state_(std::move(state)) {}

FileStorage::~FileStorage() {
  if (state_->gate.InForkedChild()) {
    static_cast<void>(state_.release());  // lost on purpose, see State
    return;
  }
  static_cast<void>(Close(std::chrono::nanoseconds::max()));
}

absl::Status FileStorage::Submit(std::span<const Request> requests) {
  if (absl::Status status = CheckBatch(requests, state_->limits); !status.ok()) return status;
  if (absl::Status status = state_->gate.EnterRequests(requests.size()); !status.ok()) return status;
  state_->pool.Push(requests);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> FileStorage::Stat(const Key& key) {
  const GatePass pass(state_->gate);
  if (!pass.status().ok()) return pass.status();
  return state_->files->Stat(key);
}

absl::Status FileStorage::Remove(const Key& key) {
  const GatePass pass(state_->gate);
  return pass.status().ok() ? state_->files->Remove(key) : pass.status();
}

absl::Status FileStorage::Sync() {
  const GatePass pass(state_->gate);
  return pass.status().ok() ? state_->files->Sync() : pass.status();
}

absl::Status FileStorage::List(const Cursor& cursor, uint64_t limit, ListPage* page) {
  const GatePass pass(state_->gate);
  return pass.status().ok() ? state_->files->List(cursor, limit, page) : pass.status();
}

Capabilities FileStorage::capabilities() const { return state_->limits; }

uint64_t FileStorage::StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const {
  return state_->files->StoredBytes(payload_bytes, meta_bytes);
}

uint64_t FileStorage::UsedBytes() const { return state_->files->UsedBytes(); }

std::optional<uint64_t> FileStorage::FreeBytes() const { return state_->files->FreeBytes(); }

absl::Status FileStorage::Close(std::chrono::nanoseconds patience) {
  if (absl::Status status = state_->gate.Close(patience); !status.ok()) return status;
  base::MutexLock lock(state_->close_mutex);
  state_->pool.Stop();
  state_->files->CloseDirectory();
  return absl::OkStatus();
}

FileStats FileStorage::stats() const { return state_->files->stats(); }

}  // namespace kvstrata::core::storage
