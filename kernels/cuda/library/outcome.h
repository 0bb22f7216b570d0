// SPDX-License-Identifier: Apache-2.0
// How a call of this library ended, and how that leaves it: the same statuses, fields and messages as the core's.
//
// Thread rule: pure functions.
//
// Invariant:
//   I1  Never more bytes of the caller's kvstrata_error are written than its struct_size says.
#pragma once

#include <cstdint>
#include <new>
#include <string>

#include "kvstrata/c_api.h"

namespace kvstrata::kernels::cuda {

// No struct of this ABI is larger; a larger size is a stray value.
inline constexpr uint32_t kMaxStructSize = 4096;

struct Outcome {
  kvstrata_status code = KVSTRATA_OK;
  std::string field;
  std::string message;
  int64_t native_code = 0;

  bool ok() const { return code == KVSTRATA_OK; }
};

inline Outcome InvalidArgument(const char* field, std::string message) {
  return {KVSTRATA_E_INVALID_ARGUMENT, field, std::move(message), 0};
}

// The code as return value, all of it in `error` if there is one.
kvstrata_status Report(const Outcome& outcome, kvstrata_error* error);

// Runs `body` (returning Outcome) and lets nothing but a status out.
template <typename Body>
kvstrata_status Fence(kvstrata_error* error, Body&& body) noexcept {
  try {
    return Report(body(), error);
  } catch (const std::bad_alloc&) {
    return Report({KVSTRATA_E_OUT_OF_MEMORY, "", "", 0}, error);
  } catch (...) {
    return Report({KVSTRATA_E_INTERNAL, "", "", 0}, error);
  }
}

}  // namespace kvstrata::kernels::cuda
