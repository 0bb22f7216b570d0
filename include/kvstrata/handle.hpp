// SPDX-License-Identifier: Apache-2.0
// kvstrata/handle.hpp - the owner of one C handle. C++17, header-only.
//
// Thread rule: that of the C handle it owns (c_api.h, section 1); moving it between threads is allowed.
#pragma once

#include <utility>

namespace kvstrata {
inline namespace v1 {

/// Move-only, pointer-sized owner. Traits: `using pointer = kvstrata_x*`, `static void destroy(pointer) noexcept`.
/// A moved-from or default-made handle is empty: calls on it answer errc::invalid_argument.
template <class Traits>
class handle {
 public:
  using pointer = typename Traits::pointer;

  handle() noexcept = default;
  /// Takes over a handle of the C API.
  explicit handle(pointer owned) noexcept : pointer_(owned) {}
  handle(handle&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  handle& operator=(handle&& other) noexcept {
    if (this != &other) reset(std::exchange(other.pointer_, nullptr));
    return *this;
  }
  handle(const handle&) = delete;
  handle& operator=(const handle&) = delete;
  ~handle() { reset(); }

  /// For calls of the C API; stays owned by this object.
  pointer get() const noexcept { return pointer_; }
  /// Gives the handle away; the caller destroys it.
  [[nodiscard]] pointer release() noexcept { return std::exchange(pointer_, nullptr); }
  /// Destroys what is owned (never fails) and takes over `owned`.
  void reset(pointer owned = nullptr) noexcept {
    if (pointer old = std::exchange(pointer_, owned)) Traits::destroy(old);
  }
  explicit operator bool() const noexcept { return pointer_ != nullptr; }

 private:
  pointer pointer_ = nullptr;
};

}  // namespace v1
}  // namespace kvstrata
