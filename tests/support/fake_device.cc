// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/support/fake_random.h"

namespace kvstrata::test {
namespace {

constexpr kvstrata_status kDeviceFailure = 1234;  // a number of the device's own, which native_code must show

FakeDevice* Self(void* ctx) { return static_cast<FakeDevice*>(ctx); }

}  // namespace

FakeDevice::FakeDevice(uint64_t arena_bytes) : arena_(arena_bytes) {
  table_.struct_size = sizeof table_;
  table_.abi_version = KVSTRATA_ABI_VERSION;
  table_.ctx = this;
  table_.destroy = Destroy;
  table_.allocate_pinned = AllocatePinned;
  table_.release_pinned = ReleasePinned;
  table_.copy = Copy;
  table_.record = Record;
  table_.wait = Wait;
  table_.release_event = ReleaseEvent;
}

FakeDevice::~FakeDevice() {
  for (const auto& [memory, pinned] : pinned_) std::free(memory);
}

std::byte* FakeDevice::Allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return arena_.Allocate(bytes);
}

void FakeDevice::Free(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const uint64_t bytes = arena_.Free(memory);
  if (bytes == 0) return Violation("engine freed device memory twice");
  for (const Operation& operation : pending_) {
    if (operation.device >= memory && operation.device < memory + bytes) {
      Violation("the library said it was done, but a copy to or from the device still waits");
    }
  }
}

void FakeDevice::Write(std::byte* device, const std::byte* host, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  arena_.Write(device, host, bytes);
}

void FakeDevice::Read(std::byte* host, const std::byte* device, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  arena_.Read(host, device, bytes);
}

void FakeDevice::FailNth(uint64_t n) {
  const std::lock_guard lock(mutex_);
  fail_countdown_ = n;
  failed_ = false;
}

bool FakeDevice::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

bool FakeDevice::FailsNow() {
  if (fail_countdown_ == 0 || --fail_countdown_ != 0) return false;
  failed_ = true;
  return true;
}

uint64_t FakeDevice::pending_copies() const {
  const std::lock_guard lock(mutex_);
  return pending_.size();
}

std::vector<std::string> FakeDevice::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

std::vector<std::string> FakeDevice::leftovers() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> left;
  if (!pinned_.empty()) left.push_back(std::to_string(pinned_.size()) + " pinned allocations");
  if (!events_.empty()) left.push_back(std::to_string(events_.size()) + " events");
  if (!pending_.empty()) left.push_back(std::to_string(pending_.size()) + " copies that nobody waited for");
  return left;
}

uint64_t FakeDevice::copies() const {
  const std::lock_guard lock(mutex_);
  return copies_;
}

uint64_t FakeDevice::destroyed() const {
  const std::lock_guard lock(mutex_);
  return destroyed_;
}

void FakeDevice::Destroy(void* ctx) {
  const std::lock_guard lock(Self(ctx)->mutex_);
  Self(ctx)->destroyed_ += 1;
}

void* FakeDevice::AllocatePinned(void* ctx, int32_t device_id, uint64_t size, uint64_t alignment) {
  FakeDevice& self = *Self(ctx);
  const std::lock_guard lock(self.mutex_);
  if (self.FailsNow()) return nullptr;
  if (size == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) {
    self.Violation("allocate_pinned of " + std::to_string(size) + " bytes aligned to " + std::to_string(alignment));
  }
  void* memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) return nullptr;
  self.pinned_[static_cast<std::byte*>(memory)] = {size, device_id};
  return memory;
}

void FakeDevice::ReleasePinned(void* ctx, int32_t device_id, void* memory, uint64_t size) {
  FakeDevice& self = *Self(ctx);
  const std::lock_guard lock(self.mutex_);
  const auto found = self.pinned_.find(static_cast<std::byte*>(memory));
  if (found == self.pinned_.end()) return self.Violation("release_pinned of memory that is not pinned");
  if (found->second.bytes != size || found->second.device_id != device_id) {
    self.Violation("release_pinned with another size or device than asked for");
  }
  for (const Operation& operation : self.pending_) {
    if (operation.host >= found->first && operation.host < found->first + size) {
      self.Violation("staging memory released before its copy was waited for");
    }
  }
  std::free(memory);
  self.pinned_.erase(found);
}

bool FakeDevice::CheckCopy(const Operation& operation) {
  const kvstrata_copy& copy = operation.copy;
  if (copy.count == 0 || copy.size == 0) return true;
  const uint64_t host_end = copy.host_offset + (copy.count - 1) * copy.host_stride + copy.size;
  const uint64_t device_end = copy.device_offset + (copy.count - 1) * copy.device_stride + copy.size;
  auto pinned = pinned_.upper_bound(operation.host);
  if (pinned == pinned_.begin()) return false;
  --pinned;
  if (operation.host + host_end > pinned->first + pinned->second.bytes) return false;
  return arena_.Holds(operation.device, device_end);
}

uint64_t FakeDevice::HostChecksum(const Operation& operation) const {
  uint64_t sum = 0;
  const kvstrata_copy& copy = operation.copy;
  for (uint64_t run = 0; run < copy.count; ++run) {
    const std::byte* bytes = operation.host + copy.host_offset + run * copy.host_stride;
    for (uint64_t i = 0; i < copy.size; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i, std::min<uint64_t>(sizeof word, copy.size - i));
      sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
    }
  }
  return sum;
}

// What a copy from the device has not brought yet is not there: whoever reads it too early gets this.
void FakeDevice::PoisonHost(const Operation& operation) {
  const kvstrata_copy& copy = operation.copy;
  for (uint64_t run = 0; run < copy.count; ++run) {
    std::memset(operation.host + copy.host_offset + run * copy.host_stride, 0xdd, copy.size);
  }
}

kvstrata_status FakeDevice::Copy(void* ctx, int32_t device_id, void* stream, int32_t direction, void* host,
                                 void* device_base, const kvstrata_copy* copies, uint64_t count, uint64_t stride) {
  FakeDevice& self = *Self(ctx);
  const std::lock_guard lock(self.mutex_);
  if (self.FailsNow()) return kDeviceFailure;
  if (device_id != 0) self.Violation("copy on device " + std::to_string(device_id));
  for (uint64_t i = 0; i < count; ++i) {
    Operation operation;
    std::memcpy(&operation.copy, reinterpret_cast<const std::byte*>(copies) + i * stride, sizeof(kvstrata_copy));
    operation.order = ++self.order_;
    operation.stream = stream;
    operation.direction = direction;
    operation.host = static_cast<std::byte*>(host);
    operation.device = static_cast<std::byte*>(device_base);
    if (operation.copy.struct_size != sizeof(kvstrata_copy)) self.Violation("a copy without its struct_size");
    if (!self.CheckCopy(operation)) {
      self.Violation("a copy outside pinned memory or outside a device allocation");
      return kDeviceFailure;
    }
    if (direction == KVSTRATA_TO_DEVICE) {
      operation.checksum = self.HostChecksum(operation);
    } else if (direction == KVSTRATA_FROM_DEVICE) {
      self.PoisonHost(operation);
    } else {
      self.Violation("a copy in direction " + std::to_string(direction));
    }
    self.copies_ += 1;
    self.pending_.push_back(operation);
  }
  return KVSTRATA_OK;
}

void FakeDevice::Execute(const Operation& operation) {
  const kvstrata_copy& copy = operation.copy;
  if (operation.direction == KVSTRATA_TO_DEVICE && HostChecksum(operation) != operation.checksum) {
    Violation("staging memory changed before its copy was waited for");
  }
  if (copy.count == 0 || copy.size == 0) return;
  const std::byte* begin = operation.device + copy.device_offset;
  const uint64_t reach = (copy.count - 1) * copy.device_stride + copy.size;
  arena_.SetAccess(begin, reach, true);
  for (uint64_t run = 0; run < copy.count; ++run) {
    std::byte* host = operation.host + copy.host_offset + run * copy.host_stride;
    std::byte* device = operation.device + copy.device_offset + run * copy.device_stride;
    if (operation.direction == KVSTRATA_TO_DEVICE) {
      std::memcpy(device, host, copy.size);
    } else {
      std::memcpy(host, device, copy.size);
    }
  }
  arena_.SetAccess(begin, reach, false);
}

void FakeDevice::ExecuteUntil(void* stream, uint64_t order) {
  std::vector<Operation> later;
  for (Operation& operation : pending_) {
    if (operation.stream == stream && operation.order <= order) {
      Execute(operation);
    } else {
      later.push_back(operation);
    }
  }
  pending_ = std::move(later);
}

// A device that fails has lost what was enqueued: nothing will touch the memory of those copies any more.
kvstrata_status FakeDevice::Lose(void* stream) {
  std::erase_if(pending_, [&](const Operation& operation) { return operation.stream == stream; });
  return kDeviceFailure;
}

kvstrata_status FakeDevice::Record(void* ctx, int32_t device_id, void* stream, void** out_event) {
  FakeDevice& self = *Self(ctx);
  const std::lock_guard lock(self.mutex_);
  if (self.FailsNow()) return self.Lose(stream);
  auto event = std::make_unique<Event>(Event{self.order_, stream, device_id});
  void* const handle = event.get();
  self.events_[handle] = std::move(event);
  *out_event = handle;
  return KVSTRATA_OK;
}

kvstrata_status FakeDevice::Wait(void* ctx, int32_t device_id, void* event, uint64_t /*timeout_ms*/) {
  FakeDevice& self = *Self(ctx);
  const std::lock_guard lock(self.mutex_);
  const auto found = self.events_.find(event);
  if (found == self.events_.end()) {
    self.Violation("wait for an event that does not live");
    return kDeviceFailure;
  }
  if (self.FailsNow()) return self.Lose(found->second->stream);
  if (found->second->device_id != device_id) self.Violation("wait on another device than the event's");
  self.ExecuteUntil(found->second->stream, found->second->order);
  return KVSTRATA_OK;
}

void FakeDevice::ReleaseEvent(void* ctx, int32_t device_id, void* event) {
  FakeDevice& self = *Self(ctx);
  const std::lock_guard lock(self.mutex_);
  const auto found = self.events_.find(event);
  if (found == self.events_.end()) return self.Violation("an event released twice, or never recorded");
  if (found->second->device_id != device_id) self.Violation("event released on another device");
  self.released_.push_back(std::move(found->second));
  self.events_.erase(found);
}

}  // namespace kvstrata::test
