// SPDX-License-Identifier: Apache-2.0
// A device whose memory the CPU cannot touch (device_arena.h). It is as asynchronous as the contract allows: a copy
// runs only when an event recorded after it is waited for. Every broken rule is written down:
//
//   * copies use memory from allocate_pinned only, and stay inside it and inside one device allocation;
//   * pinned memory that an enqueued copy uses is neither changed nor released before the copy has been waited for;
//   * each event is waited for only while it lives and released exactly once, on the device that made it;
//   * at the end nothing is left: no pinned memory, no event, no copy that nobody waited for.
//
// Thread rule: all member functions on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvstrata/c_api.h"
#include "tests/support/device_arena.h"
#include "tests/support/engine_device.h"

namespace kvstrata::test {

class FakeDevice final : public EngineDevice {
 public:
  explicit FakeDevice(uint64_t arena_bytes);
  ~FakeDevice() override;
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  // ctx is this object.
  const kvstrata_device* table() const override { return &table_; }

  std::byte* Allocate(uint64_t bytes) override;
  void Free(std::byte* memory) override;
  void Write(std::byte* device, const std::byte* host, uint64_t bytes) override;
  void Read(std::byte* host, const std::byte* device, uint64_t bytes) override;

  // The n-th call from now on (1 = the next) of any function that can fail does. 0: none.
  void FailNth(uint64_t n);
  bool failed() const;  // the failure has happened

  // Copies that nobody has waited for yet.
  uint64_t pending_copies() const;
  // Rules broken so far; and what was left over, to be asked when the cache has gone.
  std::vector<std::string> violations() const;
  std::vector<std::string> leftovers() const;
  uint64_t copies() const;
  uint64_t destroyed() const;

 private:
  struct Pinned {
    uint64_t bytes = 0;
    int32_t device_id = 0;
  };
  struct Operation {
    uint64_t order = 0;
    void* stream = nullptr;
    int32_t direction = 0;
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    kvstrata_copy copy{};
    uint64_t checksum = 0;  // of the host bytes, TO_DEVICE
  };
  struct Event {
    uint64_t order = 0;
    void* stream = nullptr;
    int32_t device_id = 0;
  };

  static void Destroy(void* ctx);
  static void* AllocatePinned(void* ctx, int32_t device_id, uint64_t size, uint64_t alignment);
  static void ReleasePinned(void* ctx, int32_t device_id, void* memory, uint64_t size);
  static kvstrata_status Copy(void* ctx, int32_t device_id, void* stream, int32_t direction, void* host,
                              void* device_base, const kvstrata_copy* copies, uint64_t count, uint64_t stride);
  static kvstrata_status Record(void* ctx, int32_t device_id, void* stream, void** out_event);
  static kvstrata_status Wait(void* ctx, int32_t device_id, void* event, uint64_t timeout_ms);
  static void ReleaseEvent(void* ctx, int32_t device_id, void* event);

  bool FailsNow();
  kvstrata_status Lose(void* stream);
  void Violation(const std::string& text) { violations_.push_back(text); }
  bool CheckCopy(const Operation& operation);
  uint64_t HostChecksum(const Operation& operation) const;
  void PoisonHost(const Operation& operation);
  void Execute(const Operation& operation);
  void ExecuteUntil(void* stream, uint64_t order);

  mutable std::mutex mutex_;
  kvstrata_device table_{};
  DeviceArena arena_;
  std::map<std::byte*, Pinned> pinned_;
  std::map<void*, std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Event>> released_;  // kept, so that an address is never an event twice
  std::vector<Operation> pending_;
  std::vector<std::string> violations_;
  uint64_t order_ = 0;
  uint64_t copies_ = 0;
  uint64_t destroyed_ = 0;
  uint64_t fail_countdown_ = 0;
  bool failed_ = false;
};

}  // namespace kvstrata::test
