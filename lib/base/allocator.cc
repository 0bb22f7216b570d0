// SPDX-License-Identifier: Apache-2.0
#include "lib/base/allocator.h"

#include <new>

namespace kvstrata::core::base {
namespace {

class NewAllocator final : public Allocator {
 public:
  std::byte* Allocate(uint64_t bytes, uint64_t alignment) override {
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t(alignment), std::nothrow));
  }
  void Release(std::byte* memory, uint64_t /*bytes*/, uint64_t alignment) override {
    ::operator delete(memory, std::align_val_t(alignment));
  }
};

}  // namespace

Allocator& DefaultAllocator() {
  // Never destroyed: memory of a leaked cache may outlive static destruction.
  static NewAllocator* const allocator = new NewAllocator;
  return *allocator;
}

}  // namespace kvstrata::core::base
