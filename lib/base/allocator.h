// SPDX-License-Identifier: Apache-2.0
// Where large stretches of host memory come from: the caller's hooks, huge pages, or operator new.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvstrata::core::base {

class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual std::byte* Allocate(uint64_t bytes, uint64_t alignment) = 0;  // null when it failed
  // With the sizes and alignments that were asked for.
  virtual void Release(std::byte* memory, uint64_t bytes, uint64_t alignment) = 0;
};

// operator new.
Allocator& DefaultAllocator();

}  // namespace kvstrata::core::base
