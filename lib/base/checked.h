// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sizes that come from outside. Each function answers nothing where the true result does not fit.
//
// Thread rule: pure functions.
#pragma once

#include <concepts>
#include <limits>
#include <optional>

namespace kvstrata::core::base {

template <std::unsigned_integral T>
constexpr std::optional<T> CheckedAdd(T a, T b) {
  if (a > std::numeric_limits<T>::max() - b) return std::nullopt;
  return static_cast<T>(a + b);
}

template <std::unsigned_integral T>
constexpr std::optional<T> CheckedSub(T a, T b) {
  if (b > a) return std::nullopt;
  return static_cast<T>(a - b);
}

template <std::unsigned_integral T>
constexpr std::optional<T> CheckedMul(T a, T b) {
  if (b != 0 && a > std::numeric_limits<T>::max() / b) return std::nullopt;
  return static_cast<T>(a * b);
}

// The smallest multiple of `step` (not 0) that is at least `value`.
template <std::unsigned_integral T>
constexpr std::optional<T> CheckedRoundUp(T value, T step) {
  const T rest = static_cast<T>(value % step);
  return rest == 0 ? std::optional<T>(value) : CheckedAdd(value, static_cast<T>(step - rest));
}

}  // namespace kvstrata::core::base
