// SPDX-License-Identifier: Apache-2.0
#include "tests/support/device_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace kvstrata::test {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

DeviceArena::DeviceArena(uint64_t bytes) : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  memory_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

DeviceArena::~DeviceArena() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

std::byte* DeviceArena::Allocate(uint64_t bytes) {
  uint64_t offset = 0;
  for (const auto& [begin, size] : allocations_) {
    if (begin - offset >= bytes + kAlignment) break;
    offset = (begin + size + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (memory_ == nullptr || offset + bytes > bytes_) return nullptr;
  allocations_[offset] = bytes;
  return memory_ + offset;
}

uint64_t DeviceArena::Free(std::byte* memory) {
  const auto found = allocations_.find(static_cast<uint64_t>(memory - memory_));
  if (found == allocations_.end()) return 0;
  const uint64_t bytes = found->second;
  allocations_.erase(found);
  return bytes;
}

bool DeviceArena::Holds(const std::byte* begin, uint64_t bytes) const {
  if (begin < memory_) return false;
  const uint64_t offset = static_cast<uint64_t>(begin - memory_);
  auto allocation = allocations_.upper_bound(offset);
  if (allocation == allocations_.begin()) return false;
  --allocation;
  return offset + bytes <= allocation->first + allocation->second;
}

void DeviceArena::SetAccess(const std::byte* begin, uint64_t bytes, bool open) {
  constexpr uint64_t kPage = 4096;
  const uint64_t offset = static_cast<uint64_t>(begin - memory_);
  const uint64_t first = offset / kPage * kPage;
  const uint64_t end = std::min(bytes_, (offset + bytes + kPage - 1) / kPage * kPage);
  if (end > first) mprotect(memory_ + first, end - first, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void DeviceArena::Write(std::byte* device, const std::byte* host, uint64_t bytes) {
  SetAccess(device, bytes, true);
  std::memcpy(device, host, bytes);
  SetAccess(device, bytes, false);
}

void DeviceArena::Read(std::byte* host, const std::byte* device, uint64_t bytes) {
  SetAccess(device, bytes, true);
  std::memcpy(host, device, bytes);
  SetAccess(device, bytes, false);
}

}  // namespace kvstrata::test
