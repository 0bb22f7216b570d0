// SPDX-License-Identifier: Apache-2.0
// The size-first rule of the C ABI, in both directions, and the fence that keeps exceptions and absl::Status inside.
// Every struct that crosses the ABI goes through here.
//
// Thread rule: pure functions.
//
// Invariants:
//   I1  Never more bytes are read or written than the caller's struct_size says.
//   I2  A caller's struct that says something this library does not know (non-zero surplus) is refused.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvstrata/c_api.h"
#include "lib/base/status.h"

namespace kvstrata::capi {

namespace base = kvstrata::core::base;

// No struct of this ABI will ever be larger; a larger size is a stray value, not a newer caller.
inline constexpr uint32_t kMaxStructSize = 4096;

inline uint32_t StructSizeOf(const void* source) {
  uint32_t size = 0;
  std::memcpy(&size, source, sizeof(size));
  return size;
}

// `field` names the argument in the error. Members that the caller's struct lacks are zero in the result.
template <typename T>
absl::StatusOr<T> ReadStruct(const void* source, const std::string& field) {
  static_assert(sizeof(T) <= kMaxStructSize);
  if (source == nullptr) return base::InvalidArgument(field, "NULL");
  const uint32_t given = StructSizeOf(source);
  if (given < sizeof(given) || given > kMaxStructSize) {
    return base::InvalidArgument(field + ".struct_size", std::to_string(given));
  }
  // No release's struct ends within a member, and half a pointer is none: sizes of C structs are multiples of their
  // alignment, and no member is larger than that.
  if (given < sizeof(T) && given % alignof(T) != 0) {
    return base::InvalidArgument(field + ".struct_size", std::to_string(given) + " ends within a member");
  }
  T out;
  std::memset(&out, 0, sizeof(out));
  std::memcpy(&out, source, std::min<size_t>(given, sizeof(out)));
  const auto* bytes = static_cast<const unsigned char*>(source);
  if (std::any_of(bytes + std::min<size_t>(given, sizeof(out)), bytes + given,
                  [](unsigned char b) { return b != 0; })) {
    return base::MakeStatus(base::Code::kStructTooNew, field, "has members that this library does not know");
  }
  return out;
}

// As ReadStruct, but NULL gives all zeros.
template <typename T>
absl::StatusOr<T> ReadOptionalStruct(const void* source, const std::string& field) {
  if (source != nullptr) return ReadStruct<T>(source, field);
  T out;
  std::memset(&out, 0, sizeof(out));
  return out;
}

// Bytes from one element of the array at `array` (of one or more) to the next: the caller's stride or, where that is 0,
// the size that the caller gives its elements.
inline absl::StatusOr<uint64_t> StepOf(const void* array, uint64_t stride, const std::string& field) {
  const uint64_t step = stride == 0 ? StructSizeOf(array) : stride;
  if (step < sizeof(uint32_t) || step > kMaxStructSize) {
    return base::InvalidArgument(field + " stride", std::to_string(step));
  }
  return step;
}

// An element that reached into the next one, or beyond the array's end, would break I1.
inline absl::Status CheckElement(const void* element, uint64_t step, const std::string& name) {
  if (StructSizeOf(element) <= step) return absl::OkStatus();
  return base::InvalidArgument(name + ".struct_size", std::to_string(StructSizeOf(element)) + " > stride");
}

// The elements of an array that travels with its stride.
template <typename T>
absl::StatusOr<std::vector<T>> ReadArray(const void* source, uint64_t count, uint64_t stride, uint64_t most,
                                         const std::string& field) {
  std::vector<T> out;
  if (count == 0) return out;
  if (source == nullptr) return base::InvalidArgument(field, "NULL with " + std::to_string(count) + " elements");
  if (count > most) {
    return base::InvalidArgument(field, std::to_string(count) + " elements, at most " + std::to_string(most));
  }
  const absl::StatusOr<uint64_t> step = StepOf(source, stride, field);
  if (!step.ok()) return step.status();
  out.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = field + "[" + std::to_string(i) + "]";
    const auto* element = static_cast<const unsigned char*>(source) + i * *step;
    if (absl::Status status = CheckElement(element, *step, name); !status.ok()) return status;
    absl::StatusOr<T> value = ReadStruct<T>(element, name);
    if (!value.ok()) return value.status();
    out.push_back(*value);
  }
  return out;
}

// Checks an output struct before any work is done for it.
inline absl::Status CheckOutput(const void* out, const std::string& field) {
  if (out == nullptr) return base::InvalidArgument(field, "NULL");
  const uint32_t size = StructSizeOf(out);
  if (size < sizeof(size) || size > kMaxStructSize) {
    return base::InvalidArgument(field + ".struct_size", std::to_string(size));
  }
  return absl::OkStatus();
}

// Writes the smaller of both sizes, keeps the caller's struct_size and zeroes the surplus. `out` has been checked.
template <typename T>
void WriteStruct(const T& value, void* out) {
  const uint32_t size = StructSizeOf(out);
  auto* bytes = static_cast<unsigned char*>(out);
  const size_t common = std::min<size_t>(size, sizeof(T));
  std::memcpy(bytes + sizeof(size), reinterpret_cast<const unsigned char*>(&value) + sizeof(size),
              common - sizeof(size));
  std::memset(bytes + common, 0, size - common);
}

// Hands a status to the caller: the code as return value, all of it in `error` if there is one.
kvstrata_status Report(const absl::Status& status, kvstrata_error* error);

// Runs `body` (returning absl::Status) and lets nothing but a status out.
template <typename Body>
kvstrata_status Fence(kvstrata_error* error, Body&& body) noexcept {
  try {
    return Report(body(), error);
  } catch (const std::bad_alloc&) {
    return Report(base::MakeStatus(base::Code::kOutOfMemory, "", "an allocation failed"), error);
  } catch (...) {
    return Report(base::MakeStatus(base::Code::kInternal, "", "an unexpected exception"), error);
  }
}

// A status that a caller's callback returned.
inline absl::Status FromCallback(const char* what, kvstrata_status status) {
  if (status == KVSTRATA_OK) return absl::OkStatus();
  return base::MakeStatus(base::Code::kCallback, what, std::string("returned ") + kvstrata_status_name(status), status);
}

}  // namespace kvstrata::capi
