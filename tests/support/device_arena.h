// SPDX-License-Identifier: Apache-2.0
// The memory of a pretended device: inaccessible (PROT_NONE) but while it is opened, so that a library that
// dereferences device memory ends the test.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace kvstrata::test {

class DeviceArena {
 public:
  explicit DeviceArena(uint64_t bytes);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // First fit between the allocations that live. Null when there is no room.
  std::byte* Allocate(uint64_t bytes);
  // The size of what was freed; 0: no allocation begins there.
  uint64_t Free(std::byte* memory);
  // Does [begin, begin + bytes) lie within one allocation?
  bool Holds(const std::byte* begin, uint64_t bytes) const;
  // The bytes may be touched, or no longer. Changing all of it at each call would take most of the time.
  void SetAccess(const std::byte* begin, uint64_t bytes, bool open);
  void SetAccess(bool open) { SetAccess(memory_, bytes_, open); }

  // Opened, copied, closed.
  void Write(std::byte* device, const std::byte* host, uint64_t bytes);
  void Read(std::byte* host, const std::byte* device, uint64_t bytes);

 private:
  std::byte* memory_ = nullptr;
  const uint64_t bytes_;
  std::map<uint64_t, uint64_t> allocations_;  // offset -> bytes
};

}  // namespace kvstrata::test
