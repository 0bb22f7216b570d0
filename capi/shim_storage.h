// SPDX-License-Identifier: Apache-2.0
// A caller's kvstrata_storage as the core's storage interface, and a caller's kvstrata_device and kvstrata_allocator as
// the engine's.
//
// Thread rule: as the interfaces they implement; the caller's members are called from any thread.
#pragma once

#include <atomic>
#include <memory>

#include "capi/struct_reader.h"
#include "kvstrata/c_api.h"
#include "lib/base/mutex.h"
#include "lib/engine/device.h"
#include "lib/engine/staging.h"
#include "lib/storage/storage.h"

namespace kvstrata::capi {

namespace storage = kvstrata::core::storage;
namespace engine = kvstrata::core::engine;

class CallerStorage final : public storage::Storage {
 public:
  // Checks that what must be offered is. The context stays the caller's until Adopt.
  static absl::StatusOr<std::shared_ptr<CallerStorage>> Create(const kvstrata_storage* table);
  ~CallerStorage() override;
  // From now on the destructor destroys the context.
  void Adopt() { adopted_ = true; }

  absl::Status Submit(std::span<const storage::Request> requests) override;
  absl::StatusOr<std::optional<uint64_t>> Stat(const storage::Key& key) override;
  absl::Status Remove(const storage::Key& key) override;
  absl::Status Sync() override;
  absl::Status List(const storage::Cursor& cursor, uint64_t limit, storage::ListPage* page) override;
  storage::Capabilities capabilities() const override;
  uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const override;
  uint64_t UsedBytes() const override { return 0; }
  absl::Status Close(std::chrono::nanoseconds patience) override;

 private:
  // Requests on their way. Lives as long as they do: an open that gave up waiting for one takes its storage along, and
  // the caller completes it later.
  struct InFlight {
    core::base::Mutex mutex;
    core::base::CondVar idle;
    uint64_t count ABSL_GUARDED_BY(mutex) = 0;

    void Subtract(uint64_t requests);
  };
  struct Pending;
  explicit CallerStorage(const kvstrata_storage& table) : table_(table) {}
  static void Complete(void* user, kvstrata_status status, uint64_t bytes, int64_t native_code);

  const kvstrata_storage table_;
  const std::shared_ptr<InFlight> in_flight_ = std::make_shared<InFlight>();
  std::atomic<bool> adopted_ = false;
};

class CallerDevice final : public engine::Device {
 public:
  static absl::StatusOr<std::shared_ptr<CallerDevice>> Create(const kvstrata_device* table);
  ~CallerDevice() override;
  void Adopt() { adopted_ = true; }

  std::byte* AllocatePinned(int32_t device_id, uint64_t bytes, uint64_t alignment) override;
  void ReleasePinned(int32_t device_id, std::byte* memory, uint64_t bytes) override;
  absl::Status Copy(int32_t device_id, void* stream, engine::CopyDirection direction, std::byte* host,
                    std::byte* device_base, std::span<const engine::CopyRun> runs) override;
  absl::Status Record(int32_t device_id, void* stream, void** event) override;
  absl::Status Wait(int32_t device_id, void* event, uint64_t timeout_ms) override;
  void ReleaseEvent(int32_t device_id, void* event) override;

 private:
  explicit CallerDevice(const kvstrata_device& table) : table_(table) {}
  const kvstrata_device table_;
  std::atomic<bool> adopted_ = false;
};

class CallerAllocator final : public engine::Allocator {
 public:
  static absl::StatusOr<std::shared_ptr<CallerAllocator>> Create(const kvstrata_allocator* table);
  std::byte* Allocate(uint64_t bytes, uint64_t alignment) override;
  void Release(std::byte* memory, uint64_t bytes, uint64_t alignment) override;

 private:
  explicit CallerAllocator(const kvstrata_allocator& table) : table_(table) {}
  const kvstrata_allocator table_;
};

}  // namespace kvstrata::capi
