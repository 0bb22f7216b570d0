// SPDX-License-Identifier: Apache-2.0
// kvstrata/result.hpp - errors as values: errc, error, result<T>. C++17, header-only.
//
// Nothing in the C++ API throws by itself, needs exceptions or RTTI, or has an object that exists before main. What may
// throw is the standard library alone (a std::string or std::vector that cannot allocate).
//
// Thread rule: plain values; each is used by one thread at a time.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "kvstrata/c_api.h"

namespace kvstrata {
inline namespace v1 {

/// The status of a call; the same numbers as kvstrata_status (c_api.h says what each one means).
enum class errc : std::int32_t {
  ok = 0,
  invalid_argument = 10,
  struct_too_new = 12,
  unsupported = 14,
  invalid_state = 16,
  read_only = 18,
  layout_mismatch = 20,
  identity_mismatch = 22,
  corrupt = 30,
  format_too_new = 32,
  io = 40,
  no_space = 42,
  locked = 44,
  not_found = 46,
  cancelled = 50,
  timeout = 52,
  out_of_memory = 60,
  buffer_too_small = 62,
  too_large = 64,
  busy = 66,
  device = 70,
  callback = 80,
  forked = 82,
  internal = 90
};

static_assert(static_cast<int>(errc::ok) == KVSTRATA_OK);
static_assert(static_cast<int>(errc::invalid_argument) == KVSTRATA_E_INVALID_ARGUMENT);
static_assert(static_cast<int>(errc::struct_too_new) == KVSTRATA_E_STRUCT_TOO_NEW);
static_assert(static_cast<int>(errc::unsupported) == KVSTRATA_E_UNSUPPORTED);
static_assert(static_cast<int>(errc::invalid_state) == KVSTRATA_E_INVALID_STATE);
static_assert(static_cast<int>(errc::read_only) == KVSTRATA_E_READ_ONLY);
static_assert(static_cast<int>(errc::layout_mismatch) == KVSTRATA_E_LAYOUT_MISMATCH);
static_assert(static_cast<int>(errc::identity_mismatch) == KVSTRATA_E_IDENTITY_MISMATCH);
static_assert(static_cast<int>(errc::corrupt) == KVSTRATA_E_CORRUPT);
static_assert(static_cast<int>(errc::format_too_new) == KVSTRATA_E_FORMAT_TOO_NEW);
static_assert(static_cast<int>(errc::io) == KVSTRATA_E_IO);
static_assert(static_cast<int>(errc::no_space) == KVSTRATA_E_NO_SPACE);
static_assert(static_cast<int>(errc::locked) == KVSTRATA_E_LOCKED);
static_assert(static_cast<int>(errc::not_found) == KVSTRATA_E_NOT_FOUND);
static_assert(static_cast<int>(errc::cancelled) == KVSTRATA_E_CANCELLED);
static_assert(static_cast<int>(errc::timeout) == KVSTRATA_E_TIMEOUT);
static_assert(static_cast<int>(errc::out_of_memory) == KVSTRATA_E_OUT_OF_MEMORY);
static_assert(static_cast<int>(errc::buffer_too_small) == KVSTRATA_E_BUFFER_TOO_SMALL);
static_assert(static_cast<int>(errc::too_large) == KVSTRATA_E_TOO_LARGE);
static_assert(static_cast<int>(errc::busy) == KVSTRATA_E_BUSY);
static_assert(static_cast<int>(errc::device) == KVSTRATA_E_DEVICE);
static_assert(static_cast<int>(errc::callback) == KVSTRATA_E_CALLBACK);
static_assert(static_cast<int>(errc::forked) == KVSTRATA_E_FORKED);
static_assert(static_cast<int>(errc::internal) == KVSTRATA_E_INTERNAL);

/// Static text such as "KVSTRATA_E_IO".
inline const char* status_name(errc code) noexcept { return kvstrata_status_name(static_cast<kvstrata_status>(code)); }

/// A failure: its code, the number behind it, the field at fault and one sentence. Owns its text and never allocates.
class error {
 public:
  /// An empty error (code ok), ready to be filled through c_error().
  error() noexcept { c_.struct_size = sizeof c_; }
  /// An error without help of the library, for example out of a storage written in C++. Long text is cut.
  error(errc code, std::string_view field, std::string_view message, std::int64_t native_code = 0) noexcept : error() {
    c_.code = static_cast<kvstrata_status>(code);
    c_.native_code = native_code;
    copy(c_.field, sizeof c_.field, field);
    copy(c_.message, sizeof c_.message, message);
  }

  errc code() const noexcept { return static_cast<errc>(c_.code); }
  /// An errno or the status of a callback; 0 = none.
  std::int64_t native_code() const noexcept { return c_.native_code; }
  /// The option, field or record member at fault; may be empty. Valid while this object lives.
  std::string_view field() const noexcept { return text(c_.field, sizeof c_.field); }
  /// One sentence with the value at fault. Valid while this object lives.
  std::string_view message() const noexcept { return text(c_.message, sizeof c_.message); }
  /// The same, 0-terminated.
  const char* c_str() const noexcept { return c_.message; }

  /// For calls of the C API: pass it as their last argument.
  kvstrata_error* c_error() noexcept { return &c_; }

  /// An error for `status`, keeping what the library has written into this one.
  error& with_code(kvstrata_status status) noexcept {
    c_.code = status;
    return *this;
  }

 private:
  static void copy(char* to, std::size_t capacity, std::string_view from) noexcept {
    const std::size_t size = from.size() < capacity ? from.size() : capacity - 1;
    if (size != 0) std::memcpy(to, from.data(), size);
    to[size] = '\0';
  }
  static std::string_view text(const char* from, std::size_t capacity) noexcept {
    const void* end = std::memchr(from, 0, capacity);
    return {from, end != nullptr ? static_cast<std::size_t>(static_cast<const char*>(end) - from) : capacity};
  }

  kvstrata_error c_{};
};

/// A value or an error; the same type in every language mode. Asking for the one that is not there is a programmer's
/// error (asserted, undefined without assertions).
template <class T>
class [[nodiscard]] result {
  static_assert(!std::is_reference_v<T> && !std::is_same_v<std::remove_cv_t<T>, kvstrata::error>);

 public:
  using value_type = T;

  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}                  // NOLINT: implicit by design
  result(kvstrata::error failure) noexcept : state_(std::in_place_index<1>, failure) {}  // NOLINT: implicit by design

  bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  T& value() & noexcept { return *checked(std::get_if<0>(&state_)); }
  const T& value() const& noexcept { return *checked(std::get_if<0>(&state_)); }
  T&& value() && noexcept { return std::move(*checked(std::get_if<0>(&state_))); }
  T& operator*() & noexcept { return value(); }
  const T& operator*() const& noexcept { return value(); }
  T&& operator*() && noexcept { return std::move(*this).value(); }
  T* operator->() noexcept { return &value(); }
  const T* operator->() const noexcept { return &value(); }
  T value_or(T other) && { return ok() ? std::move(*this).value() : std::move(other); }

  const kvstrata::error& error() const noexcept { return *checked(std::get_if<1>(&state_)); }
  /// errc::ok, or the error's code.
  errc code() const noexcept { return ok() ? errc::ok : this->error().code(); }

 private:
  template <class P>
  static P* checked(P* pointer) noexcept {
    assert(pointer != nullptr && "result: the other alternative is set");
    return pointer;
  }
  std::variant<T, kvstrata::error> state_;
};

/// Success without a value, or an error.
template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;

  result() noexcept = default;
  result(kvstrata::error failure) noexcept : error_(failure), failed_(true) {}  // NOLINT: implicit by design

  bool ok() const noexcept { return !failed_; }
  explicit operator bool() const noexcept { return ok(); }
  const kvstrata::error& error() const noexcept {
    assert(failed_ && "result: there is no error");
    return error_;
  }
  errc code() const noexcept { return failed_ ? error_.code() : errc::ok; }

 private:
  kvstrata::error error_;
  bool failed_ = false;
};

namespace detail {

/// Turns a status and the error that belongs to it into a result.
inline result<void> check(kvstrata_status status, error& failure) noexcept {
  if (status == KVSTRATA_OK) return {};
  return failure.with_code(status);
}

/// A C struct whose members are zero and whose size is set: the default of every option and output.
template <class Struct>
Struct sized() noexcept {
  Struct out{};
  out.struct_size = sizeof(Struct);
  return out;
}

/// Runs code that is called from C: an exception that leaves it becomes KVSTRATA_E_CALLBACK.
template <class Function>
kvstrata_status fenced(Function&& function) noexcept {
#if defined(__cpp_exceptions)
  try {
    return function();
  } catch (...) {
    return KVSTRATA_E_CALLBACK;
  }
#else
  return function();
#endif
}

}  // namespace detail
}  // namespace v1
}  // namespace kvstrata
