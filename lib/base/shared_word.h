// SPDX-License-Identifier: Apache-2.0
// A word that one thread writes while others may read it: every store releases, every load acquires. For plain data
// whose readers prove in other ways (a version, a generation) that what they read together belongs together.
//
// Thread rule: Set by one thread at a time, Get by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvstrata::core::base {

template <typename T>
class SharedWord {
  static_assert(std::atomic<T>::is_always_lock_free);

 public:
  T Get() const { return value_.load(std::memory_order_acquire); }
  void Set(T value) { value_.store(value, std::memory_order_release); }

 private:
  std::atomic<T> value_{T{}};
};

}  // namespace kvstrata::core::base
