// SPDX-License-Identifier: Apache-2.0
// A doubly linked list whose links lie in its elements: entering and leaving it allocates nothing, so it can be done
// where an allocation that fails would have nobody to tell.
//
// Invariants:
//   I1. An element is in a chain at most once, and leaves it before it is destroyed.
//
// Thread rule: one thread at a time.
#pragma once

#include <cassert>
#include <cstddef>

namespace kvstrata::core::storage {

template <typename T>
struct Link {
  T* before = nullptr;
  T* after = nullptr;
  bool linked = false;
};

// The chain of elements that are linked by their member `L`.
template <typename T, Link<T> T::*L>
class Chain {
 public:
  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  T* first() const { return first_; }

  void PushBack(T& element) {
    assert(!(element.*L).linked);
    element.*L = {last_, nullptr, true};
    (last_ == nullptr ? first_ : (last_->*L).after) = &element;
    last_ = &element;
    ++size_;
  }

  void Remove(T& element) {
    assert((element.*L).linked);
    const Link<T> link = element.*L;
    (link.before == nullptr ? first_ : (link.before->*L).after) = link.after;
    (link.after == nullptr ? last_ : (link.after->*L).before) = link.before;
    element.*L = {};
    --size_;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvstrata::core::storage
