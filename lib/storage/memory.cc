// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/memory.h"

#include <algorithm>
#include <new>
#include <string>

#include "lib/base/checked.h"
#include "lib/base/status.h"
#include "lib/storage/request_check.h"

namespace kvstrata::core::storage {
namespace {

// The node of the map, the record with its two vectors and the heap's own rounding: measured at 200 to 230 bytes with
// glibc, charged as 256.
constexpr uint64_t kOverheadBytes = 256;
// Requests complete inside Submit, so nothing queues; the bound only keeps a batch from being absurd.
constexpr uint64_t kMaxRequests = 1u << 20;

Result OutOfMemory(uint64_t bytes) {
  return {base::MakeStatus(base::Code::kOutOfMemory, "put", std::to_string(bytes) + " bytes"), 0};
}

}  // namespace

// Its `stored` bytes have been reserved.
class MemoryStorage::Record final : public HeldRecord {
 public:
  Record(std::shared_ptr<Used> used, uint64_t stored) : used_(std::move(used)), stored_(stored) {}
  ~Record() override { *used_ -= stored_; }
  base::ByteView payload() const override { return bytes; }

  std::vector<std::byte> bytes;
  std::vector<std::byte> meta;

 private:
  const std::shared_ptr<Used> used_;
  const uint64_t stored_;
};

MemoryStorage::MemoryStorage(const MemoryOptions& options) : options_(options), gate_(kMaxRequests) {}

absl::Status MemoryStorage::Submit(std::span<const Request> requests) {
  if (absl::Status status = CheckBatch(requests, capabilities()); !status.ok()) return status;
  if (absl::Status status = gate_.EnterRequests(requests.size()); !status.ok()) return status;
  for (const Request& request : requests) {
    const Put* put = std::get_if<Put>(&request.operation);
    request.completion.Run(put != nullptr ? DoPut(*put) : DoGet(std::get<Get>(request.operation)));
    gate_.LeaveRequest();
  }
  return absl::OkStatus();
}

Result MemoryStorage::DoPut(const Put& put) {
  const uint64_t payload_bytes = PayloadBytes(put).value_or(UINT64_MAX);
  const uint64_t stored = StoredBytes(payload_bytes, put.meta.size());
  if (absl::Status status = Reserve(stored); !status.ok()) return {status, 0};
  std::shared_ptr<Record> record, old;
  try {
    record = std::make_shared<Record>(used_bytes_, stored);
  } catch (const std::bad_alloc&) {
    *used_bytes_ -= stored;
    return OutOfMemory(stored);
  }
  try {
    record->bytes.reserve(static_cast<size_t>(payload_bytes));
    for (const base::ByteView part : put.parts) record->bytes.insert(record->bytes.end(), part.begin(), part.end());
    record->meta.assign(put.meta.begin(), put.meta.end());
    base::MutexLock lock(mutex_);
    std::shared_ptr<Record>& slot = records_[put.key];
    old = std::exchange(slot, std::move(record));
  } catch (const std::bad_alloc&) {
    return OutOfMemory(stored);
  }
  return {absl::OkStatus(), payload_bytes};
}

Result MemoryStorage::DoGet(const Get& get) {
  std::shared_ptr<const Record> record;
  {
    base::MutexLock lock(mutex_);
    const auto found = records_.find(get.key);
    if (found == records_.end()) return {base::MakeStatus(base::Code::kNotFound, "key", "no such record"), 0};
    record = found->second;
  }
  absl::Status status = CheckRange(get.offset, get.destination.size(), record->bytes.size());
  if (!status.ok()) return {std::move(status), 0};
  const base::ByteView payload = record->bytes;
  const base::ByteView range = payload.subspan(static_cast<size_t>(get.offset), get.destination.size());
  std::copy(range.begin(), range.end(), get.destination.begin());
  return {absl::OkStatus(), get.destination.size(), /*from_memory=*/true};
}

absl::Status MemoryStorage::Reserve(uint64_t bytes) {
  if (bytes > options_.capacity_bytes) {
    return base::MakeStatus(
        base::Code::kTooLarge, "put",
        std::to_string(bytes) + " bytes, the capacity is " + std::to_string(options_.capacity_bytes));
  }
  uint64_t used = *used_bytes_;
  do {
    if (bytes > options_.capacity_bytes - used) {
      return base::MakeStatus(base::Code::kNoSpace, "capacity_bytes",
                              std::to_string(used) + " of " + std::to_string(options_.capacity_bytes) +
                                  " bytes are used, " + std::to_string(bytes) + " more do not fit");
    }
  } while (!used_bytes_->compare_exchange_weak(used, used + bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> MemoryStorage::Stat(const Key& key) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  base::MutexLock lock(mutex_);
  const auto found = records_.find(key);
  if (found == records_.end()) return std::optional<uint64_t>();
  return std::optional<uint64_t>(found->second->bytes.size());
}

absl::Status MemoryStorage::Remove(const Key& key) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  // Freed after the lock is let go: releasing a large payload takes a while.
  std::shared_ptr<const Record> old;
  base::MutexLock lock(mutex_);
  const auto found = records_.find(key);
  if (found == records_.end()) return absl::OkStatus();
  old = std::move(found->second);
  records_.erase(found);
  return absl::OkStatus();
}

absl::Status MemoryStorage::Sync() {
  const GatePass pass(gate_);
  return pass.status();
}

absl::Status MemoryStorage::List(const Cursor& cursor, uint64_t limit, ListPage* page) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  const absl::StatusOr<Position> position = PositionOf(cursor);
  if (!position.ok()) return position.status();
  if (limit == 0) return base::InvalidArgument("limit", "is 0");
  ListPage result;
  result.next = cursor;
  base::MutexLock lock(mutex_);
  auto at = position->after.has_value() ? records_.upper_bound(*position->after) : records_.begin();
  for (; at != records_.end() && result.entries.size() < limit; ++at) {
    const Record& record = *at->second;
    result.entries.push_back(
        {at->first, record.bytes.size(), StoredBytes(record.bytes.size(), record.meta.size()), record.meta});
    result.next = CursorAfter(0, at->first);
  }
  result.done = at == records_.end();
  *page = std::move(result);
  return absl::OkStatus();
}

Capabilities MemoryStorage::capabilities() const {
  Capabilities capabilities;
  capabilities.max_requests = kMaxRequests;
  return capabilities;
}

uint64_t MemoryStorage::StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const {
  const std::optional<uint64_t> both = base::CheckedAdd(payload_bytes, meta_bytes);
  if (!both.has_value()) return UINT64_MAX;
  return base::CheckedAdd(*both, kOverheadBytes).value_or(UINT64_MAX);
}

uint64_t MemoryStorage::UsedBytes() const {
  if (gate_.InForkedChild()) return 0;
  return *used_bytes_;
}

std::shared_ptr<HeldRecord> MemoryStorage::Hold(const Key& key) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return nullptr;
  base::MutexLock lock(mutex_);
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : found->second;
}

absl::Status MemoryStorage::Close(std::chrono::nanoseconds patience) { return gate_.Close(patience); }

}  // namespace kvstrata::core::storage
