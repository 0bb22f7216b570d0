// SPDX-License-Identifier: Apache-2.0
// What a fake engine asks of a pretended device: memory on it, and the table for its cache.
//
// Thread rule: all member functions on any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvstrata/c_api.h"

namespace kvstrata::test {

class EngineDevice {
 public:
  virtual ~EngineDevice() = default;

  // The table for kvstrata_cache_options; the device must outlive the cache.
  virtual const kvstrata_device* table() const = 0;

  // Null when there is no room.
  virtual std::byte* Allocate(uint64_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;
  virtual void Write(std::byte* device, const std::byte* host, uint64_t bytes) = 0;
  virtual void Read(std::byte* host, const std::byte* device, uint64_t bytes) = 0;
};

}  // namespace kvstrata::test
