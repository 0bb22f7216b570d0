// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/segment_storage.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "lib/base/status.h"
#include "lib/storage/gate.h"
#include "lib/storage/io_pool.h"
#include "lib/storage/request_check.h"
#include "lib/storage/segment/flusher.h"
#include "lib/storage/segment/ring_reader.h"

namespace kvstrata::core::storage {
namespace {

constexpr uint32_t kMaxIoThreads = 64;
constexpr uint64_t kMaxRequests = 65536;

absl::Status CheckOptions(const SegmentOptions& options) {
  if (options.io_threads < 1 || options.io_threads > kMaxIoThreads) {
    return base::InvalidArgument("io_threads", std::to_string(options.io_threads) + " is not within 1 and 64");
  }
  if (options.max_requests < 1 || options.max_requests > kMaxRequests) {
    return base::InvalidArgument("max_requests", std::to_string(options.max_requests) + " is not within 1 and 65536");
  }
  if (options.capacity_bytes == 0 && !options.read_only) return base::InvalidArgument("capacity_bytes", "is 0");
  if (options.segment_bytes % format::kUnitBytes != 0) return base::InvalidArgument("segment_bytes", "is not in units");
  return absl::OkStatus();
}

}  // namespace

struct SegmentStorage::State {
  State(const SegmentOptions& options, std::unique_ptr<SegmentStore> opened)
      : flush_bytes(options.flush_bytes),
        store(std::move(opened)),
        gate(options.max_requests),
        pool(
            options.max_requests,
            [this](std::span<const Request> requests, IoPool::Results results) { Carry(requests, results); },
            [this] { gate.LeaveRequest(); }),
        ring(
            *store, [this] { gate.LeaveRequest(); },
            [this](const Request& request) {
              pool.Push({&request, 1});
            }),
        // A flush that fails drops what it was for, and the next Sync says so.
        flusher([this] { static_cast<void>(store->Flush()); }, std::chrono::milliseconds(options.flush_ms)),
        flushes_late(options.flush_ms != 0 && !options.read_only) {
    limits.durable_sync = !options.read_only;
    limits.persistent = true;
    limits.read_only = options.read_only;
    limits.followed = options.read_only;
    limits.max_requests = options.max_requests;
    limits.max_payload_bytes = store->MaxPayloadBytes();
  }

  void Carry(std::span<const Request> requests, IoPool::Results results) {
    if (const Get* get = std::get_if<Get>(&requests[0].operation); get != nullptr) {
      results[0] = store->DoGet(*get);
      return;
    }
    // Also where memory runs out behind some of them.
    const absl::Cleanup changed = [&] {
      const auto stored = [](const std::optional<Result>& result) { return result.has_value() && result->status.ok(); };
      if (std::ranges::any_of(results, stored)) Changed();
    };
    store->DoPuts(requests, results);
  }

  // Gets that the ring takes at once go there, everything else to the threads: together, so that puts find each other.
  void Accept(std::span<const Request> requests) {
    while (!requests.empty()) {
      const auto taken = std::ranges::find_if(requests, [this](const Request& request) { return ring.Take(request); });
      const auto before = static_cast<size_t>(taken - requests.begin());
      if (before > 0) pool.Push(requests.first(before));
      requests = requests.subspan(taken == requests.end() ? before : before + 1);
    }
  }

  void Changed() {
    if (flushes_late) flusher.Notify(store->UnflushedBytes() >= flush_bytes || store->SpaceWaits());
  }

  Capabilities limits;
  const uint64_t flush_bytes;
  const std::unique_ptr<SegmentStore> store;
  Gate gate;
  IoPool pool;
  RingReader ring;
  Flusher flusher;
  const bool flushes_late;
  // Two threads may close at once; the second finds nothing left to do.
  base::Mutex close_mutex;
  bool closed ABSL_GUARDED_BY(close_mutex) = false;
};

absl::StatusOr<std::unique_ptr<SegmentStorage>> SegmentStorage::Open(const SegmentOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  SegmentStoreOptions given;
  given.path = options.path;
  given.read_only = options.read_only;
  given.capacity_bytes = options.capacity_bytes;
  given.keep_free_bytes = options.keep_free_bytes;
  given.segment_bytes = options.segment_bytes;
  given.journal_bytes = options.journal_bytes;
  given.io_threads = options.io_threads;
  given.os = options.os;
  given.random = options.random;
  absl::StatusOr<std::unique_ptr<SegmentStore>> store = SegmentStore::Open(given);
  if (!store.ok()) return store.status();
  auto state = std::make_unique<State>(options, *std::move(store));
  absl::Status status = state->pool.Start(options.io_threads);
  if (status.ok() && options.ring) status = state->ring.Start(*options.os);
  if (status.ok() && state->flushes_late) status = state->flusher.Start();
  if (!status.ok()) return status;
  return std::unique_ptr<SegmentStorage>(new SegmentStorage(std::move(state)));
}

SegmentStorage::SegmentStorage(std::unique_ptr<State> state) : state_(std::move(state)) {}

SegmentStorage::~SegmentStorage() {
  if (state_->gate.InForkedChild()) {
    static_cast<void>(state_.release());  // lost on purpose, see State
    return;
  }
  static_cast<void>(Close(std::chrono::nanoseconds::max()));
}

absl::Status SegmentStorage::Submit(std::span<const Request> requests) {
  if (absl::Status status = CheckBatch(requests, state_->limits); !status.ok()) return status;
  if (absl::Status status = state_->gate.EnterRequests(requests.size()); !status.ok()) return status;
  state_->Accept(requests);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> SegmentStorage::Stat(const Key& key) {
  const GatePass pass(state_->gate);
  if (!pass.status().ok()) return pass.status();
  return state_->store->Stat(key);
}

absl::Status SegmentStorage::Remove(const Key& key) {
  const GatePass pass(state_->gate);
  if (!pass.status().ok()) return pass.status();
  absl::Status status = state_->store->Remove(key);
  if (status.ok()) state_->Changed();
  return status;
}

absl::Status SegmentStorage::Sync() {
  const GatePass pass(state_->gate);
  return pass.status().ok() ? state_->store->Sync() : pass.status();
}

absl::Status SegmentStorage::List(const Cursor& cursor, uint64_t limit, ListPage* page) {
  const GatePass pass(state_->gate);
  return pass.status().ok() ? state_->store->List(cursor, limit, page) : pass.status();
}

absl::Status SegmentStorage::Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped) {
  const GatePass pass(state_->gate);
  return pass.status().ok() ? state_->store->Visit(visit, skipped) : pass.status();
}

absl::Status SegmentStorage::Follow(uint64_t limit, FeedPage* page) {
  const GatePass pass(state_->gate);
  return pass.status().ok() ? state_->store->Follow(limit, page) : pass.status();
}

absl::Status SegmentStorage::VisitOthers(absl::FunctionRef<void(const RecordView& record)> visit) {
  const GatePass pass(state_->gate);
  return pass.status().ok() ? state_->store->VisitOthers(visit) : pass.status();
}

absl::StatusOr<std::optional<ListEntry>> SegmentStorage::Find(const Key& key) {
  const GatePass pass(state_->gate);
  if (!pass.status().ok()) return pass.status();
  return state_->store->Find(key);
}

bool SegmentStorage::made() const { return state_->store->made(); }

Capabilities SegmentStorage::capabilities() const { return state_->limits; }

uint64_t SegmentStorage::StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const {
  return SegmentStore::StoredBytes(payload_bytes, meta_bytes);
}

uint64_t SegmentStorage::UsedBytes() const { return state_->store->UsedBytes(); }

uint64_t SegmentStorage::UnreadableBlocks() const { return state_->store->stats().unreadable_blocks; }

absl::Status SegmentStorage::Close(std::chrono::nanoseconds patience) {
  if (absl::Status status = state_->gate.Close(patience); !status.ok()) return status;
  base::MutexLock lock(state_->close_mutex);
  if (state_->closed) return absl::OkStatus();
  state_->closed = true;
  // The ring hands on what it cannot read.
  state_->ring.Stop();
  state_->pool.Stop();
  state_->flusher.Stop();
  // As good as it goes: who needs to know calls Sync before.
  static_cast<void>(state_->store->Flush());
  state_->store->CloseDirectory();
  return absl::OkStatus();
}

SegmentStats SegmentStorage::stats() const {
  SegmentStats stats = state_->store->stats();
  stats.ring = state_->ring.running() ? 1 : 0;
  stats.ring_gets = state_->ring.completed();
  return stats;
}

}  // namespace kvstrata::core::storage
