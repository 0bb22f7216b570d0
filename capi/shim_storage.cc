// SPDX-License-Identifier: Apache-2.0
#include "capi/shim_storage.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace kvstrata::capi {
namespace {

// Requests that may be on their way to a caller's storage at one time; it may answer BUSY earlier.
constexpr uint64_t kMaxRequests = 1024;
constexpr uint64_t kListEntries = 64;  // 64 entries of 4 KiB meta each: a quarter of a megabyte

kvstrata_key ToKey(const storage::Key& key) {
  kvstrata_key out;
  std::memcpy(out.bytes, key.bytes.data(), sizeof(out.bytes));
  return out;
}

// A storage's own status keeps its meaning; what it may not return (a number of its own) becomes CALLBACK.
absl::Status FromStorage(const char* what, kvstrata_status status, int64_t native_code) {
  if (status == KVSTRATA_OK) return absl::OkStatus();
  switch (status) {
    case KVSTRATA_E_UNSUPPORTED:
    case KVSTRATA_E_READ_ONLY:
    case KVSTRATA_E_CORRUPT:
    case KVSTRATA_E_IO:
    case KVSTRATA_E_NO_SPACE:
    case KVSTRATA_E_NOT_FOUND:
    case KVSTRATA_E_TIMEOUT:
    case KVSTRATA_E_OUT_OF_MEMORY:
    case KVSTRATA_E_TOO_LARGE:
    case KVSTRATA_E_BUSY:
      return base::MakeStatus(static_cast<base::Code>(status), what,
                              std::string("the storage returned ") + kvstrata_status_name(status), native_code);
    default: return FromCallback(what, status);
  }
}

template <typename T>
absl::Status CheckVersion(const T& table, const char* field) {
  if (table.abi_version == KVSTRATA_ABI_VERSION) return absl::OkStatus();
  return base::InvalidArgument(
      std::string(field) + ".abi_version",
      std::to_string(table.abi_version) + ", this library has " + std::to_string(KVSTRATA_ABI_VERSION));
}

}  // namespace

// Owns what one request points to until its completion.
struct CallerStorage::Pending {
  std::shared_ptr<InFlight> in_flight;
  std::vector<kvstrata_iovec> parts;
  storage::Completion completion;
};

absl::StatusOr<std::shared_ptr<CallerStorage>> CallerStorage::Create(const kvstrata_storage* given) {
  const absl::StatusOr<kvstrata_storage> table = ReadStruct<kvstrata_storage>(given, "storage");
  if (!table.ok()) return table.status();
  if (absl::Status status = CheckVersion(*table, "storage"); !status.ok()) return status;
  if (table->submit == nullptr) return base::InvalidArgument("storage.submit", "NULL");
  if (table->stat == nullptr) return base::InvalidArgument("storage.stat", "NULL");
  if (table->remove == nullptr) return base::InvalidArgument("storage.remove", "NULL");
  if (table->list == nullptr) return base::InvalidArgument("storage.list", "NULL");
  if (table->sync == nullptr && (table->capabilities & KVSTRATA_STORAGE_DURABLE_SYNC) != 0) {
    return base::InvalidArgument("storage.sync", "NULL with KVSTRATA_STORAGE_DURABLE_SYNC");
  }
  return std::shared_ptr<CallerStorage>(new CallerStorage(*table));
}

CallerStorage::~CallerStorage() {
  if (adopted_ && table_.destroy != nullptr) table_.destroy(table_.ctx);
}

void CallerStorage::Complete(void* user, kvstrata_status status, uint64_t bytes, int64_t native_code) {
  const std::unique_ptr<Pending> pending(static_cast<Pending*>(user));
  pending->completion.Run({FromStorage("storage.submit", status, native_code), status == KVSTRATA_OK ? bytes : 0});
  pending->in_flight->Subtract(1);
}

void CallerStorage::InFlight::Subtract(uint64_t requests) {
  core::base::MutexLock lock(mutex);
  count -= requests;
  if (count == 0) idle.NotifyAll();
}

absl::Status CallerStorage::Submit(std::span<const storage::Request> requests) {
  std::vector<std::unique_ptr<Pending>> pending;
  std::vector<kvstrata_storage_request> out(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    pending.push_back(std::make_unique<Pending>(Pending{in_flight_, {}, requests[i].completion}));
    kvstrata_storage_request& request = out[i];
    std::memset(&request, 0, sizeof(request));
    request.struct_size = sizeof(request);
    request.complete = &CallerStorage::Complete;
    request.user = pending.back().get();
    if (const auto* put = std::get_if<storage::Put>(&requests[i].operation)) {
      for (const core::base::ByteView part : put->parts) pending.back()->parts.push_back({part.data(), part.size()});
      request.kind = KVSTRATA_STORAGE_PUT;
      request.key = ToKey(put->key);
      request.parts = pending.back()->parts.data();
      request.part_count = pending.back()->parts.size();
      request.meta = put->meta.data();
      request.meta_size = put->meta.size();
    } else {
      const auto& get = std::get<storage::Get>(requests[i].operation);
      request.kind = KVSTRATA_STORAGE_GET;
      request.key = ToKey(get.key);
      request.offset = get.offset;
      request.destination = get.destination.data();
      request.size = get.destination.size();
    }
  }
  {
    core::base::MutexLock lock(in_flight_->mutex);
    if (in_flight_->count + requests.size() > kMaxRequests) {
      return base::MakeStatus(base::Code::kBusy, "storage", "1,024 requests are on their way");
    }
    in_flight_->count += requests.size();
  }
  // Completions may run before submit returns: each then owns its Pending.
  std::vector<Pending*> released;
  for (std::unique_ptr<Pending>& one : pending) released.push_back(one.release());
  const kvstrata_status status = table_.submit(table_.ctx, out.data(), out.size(), sizeof(out[0]));
  if (status == KVSTRATA_OK) return absl::OkStatus();
  for (Pending* one : released) delete one;
  in_flight_->Subtract(requests.size());
  return FromStorage("storage.submit", status, 0);
}

absl::StatusOr<std::optional<uint64_t>> CallerStorage::Stat(const storage::Key& key) {
  const kvstrata_key k = ToKey(key);
  int32_t exists = 0;
  uint64_t bytes = 0;
  const kvstrata_status status = table_.stat(table_.ctx, &k, &exists, &bytes);
  if (status != KVSTRATA_OK) return FromStorage("storage.stat", status, 0);
  return exists != 0 ? std::optional<uint64_t>(bytes) : std::nullopt;
}

absl::Status CallerStorage::Remove(const storage::Key& key) {
  const kvstrata_key k = ToKey(key);
  return FromStorage("storage.remove", table_.remove(table_.ctx, &k), 0);
}

absl::Status CallerStorage::Sync() {
  if (table_.sync == nullptr) return base::MakeStatus(base::Code::kUnsupported, "storage.sync", "not offered");
  return FromStorage("storage.sync", table_.sync(table_.ctx), 0);
}

absl::Status CallerStorage::List(const storage::Cursor& cursor, uint64_t limit, storage::ListPage* page) {
  uint64_t position = core::base::LoadLittleEndian<uint64_t>(cursor.bytes.data());
  std::vector<kvstrata_storage_entry> entries(std::min(limit, kListEntries));
  for (kvstrata_storage_entry& entry : entries) {
    std::memset(&entry, 0, sizeof(entry));
    entry.struct_size = sizeof(entry);
  }
  uint64_t count = 0;
  const kvstrata_status status =
      table_.list(table_.ctx, &position, entries.data(), entries.size(), sizeof(entries[0]), &count);
  if (status != KVSTRATA_OK) return FromStorage("storage.list", status, 0);
  if (count > entries.size()) return base::MakeStatus(base::Code::kCallback, "storage.list", "more than asked for");
  page->entries.clear();
  page->skipped = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const kvstrata_storage_entry& entry = entries[i];
    if (entry.meta_size > sizeof(entry.meta)) {
      page->skipped += 1;
      continue;
    }
    storage::ListEntry out;
    std::memcpy(out.key.bytes.data(), entry.key.bytes, sizeof(entry.key.bytes));
    out.payload_bytes = entry.payload_bytes;
    out.stored_bytes = entry.stored_bytes;
    const auto* meta = reinterpret_cast<const std::byte*>(entry.meta);
    out.meta.assign(meta, meta + entry.meta_size);
    page->entries.push_back(std::move(out));
  }
  core::base::StoreLittleEndian(page->next.bytes.data(), position);
  page->done = position == 0;
  return absl::OkStatus();
}

storage::Capabilities CallerStorage::capabilities() const {
  storage::Capabilities out;
  out.durable_sync = (table_.capabilities & KVSTRATA_STORAGE_DURABLE_SYNC) != 0;
  out.persistent = (table_.capabilities & KVSTRATA_STORAGE_PERSISTENT) != 0;
  out.max_requests = kMaxRequests;
  return out;
}

uint64_t CallerStorage::StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const {
  return payload_bytes > UINT64_MAX - meta_bytes ? UINT64_MAX : payload_bytes + meta_bytes;
}

absl::Status CallerStorage::Close(std::chrono::nanoseconds patience) {
  const auto deadline = core::base::DeadlineAfter(patience);
  core::base::MutexLock lock(in_flight_->mutex);
  while (in_flight_->count > 0) {
    if (!in_flight_->idle.WaitUntil(in_flight_->mutex, deadline) && in_flight_->count > 0) {
      return base::MakeStatus(base::Code::kTimeout, "storage", "requests have not completed");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<CallerDevice>> CallerDevice::Create(const kvstrata_device* given) {
  const absl::StatusOr<kvstrata_device> table = ReadStruct<kvstrata_device>(given, "device");
  if (!table.ok()) return table.status();
  if (absl::Status status = CheckVersion(*table, "device"); !status.ok()) return status;
  if (table->allocate_pinned == nullptr) return base::InvalidArgument("device.allocate_pinned", "NULL");
  if (table->release_pinned == nullptr) return base::InvalidArgument("device.release_pinned", "NULL");
  if (table->copy == nullptr) return base::InvalidArgument("device.copy", "NULL");
  if (table->record == nullptr) return base::InvalidArgument("device.record", "NULL");
  if (table->wait == nullptr) return base::InvalidArgument("device.wait", "NULL");
  if (table->release_event == nullptr) return base::InvalidArgument("device.release_event", "NULL");
  return std::shared_ptr<CallerDevice>(new CallerDevice(*table));
}

CallerDevice::~CallerDevice() {
  if (adopted_ && table_.destroy != nullptr) table_.destroy(table_.ctx);
}

namespace {

absl::Status FromDevice(const char* what, kvstrata_status status) {
  if (status == KVSTRATA_OK) return absl::OkStatus();
  return base::MakeStatus(base::Code::kDevice, what, std::string("returned ") + kvstrata_status_name(status), status);
}

}  // namespace

std::byte* CallerDevice::AllocatePinned(int32_t device_id, uint64_t bytes, uint64_t alignment) {
  return static_cast<std::byte*>(table_.allocate_pinned(table_.ctx, device_id, bytes, alignment));
}

void CallerDevice::ReleasePinned(int32_t device_id, std::byte* memory, uint64_t bytes) {
  table_.release_pinned(table_.ctx, device_id, memory, bytes);
}

absl::Status CallerDevice::Copy(int32_t device_id, void* stream, engine::CopyDirection direction, std::byte* host,
                                std::byte* device_base, std::span<const engine::CopyRun> runs) {
  std::vector<kvstrata_copy> copies;
  copies.reserve(runs.size());
  for (const engine::CopyRun& run : runs) {
    copies.push_back({sizeof(kvstrata_copy), 0, run.host_offset, run.memory_offset, run.bytes, run.host_stride,
                      run.memory_stride, run.count});
  }
  const int32_t way = direction == engine::CopyDirection::kToDevice ? KVSTRATA_TO_DEVICE : KVSTRATA_FROM_DEVICE;
  return FromDevice("device.copy", table_.copy(table_.ctx, device_id, stream, way, host, device_base, copies.data(),
                                               copies.size(), sizeof(copies[0])));
}

absl::Status CallerDevice::Record(int32_t device_id, void* stream, void** event) {
  return FromDevice("device.record", table_.record(table_.ctx, device_id, stream, event));
}

absl::Status CallerDevice::Wait(int32_t device_id, void* event, uint64_t timeout_ms) {
  return FromDevice("device.wait", table_.wait(table_.ctx, device_id, event, timeout_ms));
}

void CallerDevice::ReleaseEvent(int32_t device_id, void* event) { table_.release_event(table_.ctx, device_id, event); }

absl::StatusOr<std::shared_ptr<CallerAllocator>> CallerAllocator::Create(const kvstrata_allocator* given) {
  const absl::StatusOr<kvstrata_allocator> table = ReadStruct<kvstrata_allocator>(given, "allocator");
  if (!table.ok()) return table.status();
  if (table->allocate == nullptr) return base::InvalidArgument("allocator.allocate", "NULL");
  if (table->release == nullptr) return base::InvalidArgument("allocator.release", "NULL");
  return std::shared_ptr<CallerAllocator>(new CallerAllocator(*table));
}

std::byte* CallerAllocator::Allocate(uint64_t bytes, uint64_t alignment) {
  return static_cast<std::byte*>(table_.allocate(table_.ctx, bytes, alignment));
}

void CallerAllocator::Release(std::byte* memory, uint64_t bytes, uint64_t alignment) {
  table_.release(table_.ctx, memory, bytes, alignment);
}

}  // namespace kvstrata::capi
