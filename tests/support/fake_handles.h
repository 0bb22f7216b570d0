// SPDX-License-Identifier: Apache-2.0
// Owners of the C API's handles, structs with their size set, and errors with their text, for tests of the C API.
//
// Thread rule: as the handle owned.
#pragma once

#include <memory>
#include <string>

#include "kvstrata/c_api.h"

namespace kvstrata::test {

struct Destroy {
  void operator()(kvstrata_cache* handle) const { kvstrata_cache_destroy(handle); }
  void operator()(kvstrata_layout* handle) const { kvstrata_layout_destroy(handle); }
  void operator()(kvstrata_namespace* handle) const { kvstrata_namespace_destroy(handle); }
  void operator()(kvstrata_match* handle) const { kvstrata_match_destroy(handle); }
  void operator()(kvstrata_pin* handle) const { kvstrata_pin_destroy(handle); }
  void operator()(kvstrata_plan* handle) const { kvstrata_plan_destroy(handle); }
  void operator()(kvstrata_writer* handle) const { kvstrata_writer_destroy(handle); }
};

template <typename T>
using Handle = std::unique_ptr<T, Destroy>;

using CacheHandle = Handle<kvstrata_cache>;
using LayoutHandle = Handle<kvstrata_layout>;
using NamespaceHandle = Handle<kvstrata_namespace>;
using MatchHandle = Handle<kvstrata_match>;
using PinHandle = Handle<kvstrata_pin>;
using PlanHandle = Handle<kvstrata_plan>;
using WriterHandle = Handle<kvstrata_writer>;

// A zero-filled struct with its size: the complete initialiser that the header promises.
template <typename T>
T Sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

// Gives a handle to a function with an out-pointer: kvstrata_x_open(..., Out(handle), ...).
template <typename T>
class Out {
 public:
  explicit Out(Handle<T>& handle) : handle_(handle) {}
  Out(const Out&) = delete;
  Out& operator=(const Out&) = delete;
  ~Out() {
    if (raw_ != nullptr) handle_.reset(raw_);
  }
  operator T**() { return &raw_; }

 private:
  Handle<T>& handle_;
  T* raw_ = nullptr;
};

struct Error : kvstrata_error {
  Error() : kvstrata_error(Sized<kvstrata_error>()) {}
};

inline std::string Describe(kvstrata_status status, const kvstrata_error& error) {
  return std::string(kvstrata_status_name(status)) + " [" + error.field + "] " + error.message;
}

}  // namespace kvstrata::test
