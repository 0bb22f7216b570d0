// SPDX-License-Identifier: Apache-2.0
// Errors as values. Owns the mapping between kvstrata's pinned status codes (the C ABI's numbers) and absl::Status.
//
// Inside lib/ every fallible function returns absl::Status or absl::StatusOr<T>. A status made here carries the
// kvstrata code, an errno-like native code and the name of the field at fault as payload, so that the C ABI can
// hand all three to the caller without parsing text. A status that Abseil or another library made has no payload
// and maps by its canonical code.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstrata::core::base {

// The C ABI's codes (include/kvstrata/c_api.h pins the same numbers; capi/ checks that with static_assert).
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = 10,
  kStructTooNew = 12,
  kUnsupported = 14,
  kInvalidState = 16,
  kReadOnly = 18,
  kLayoutMismatch = 20,
  kIdentityMismatch = 22,
  kCorrupt = 30,
  kFormatTooNew = 32,
  kIo = 40,
  kNoSpace = 42,
  kLocked = 44,
  kNotFound = 46,
  kCancelled = 50,
  kTimeout = 52,
  kOutOfMemory = 60,
  kBufferTooSmall = 62,
  kTooLarge = 64,
  kBusy = 66,
  kDevice = 70,
  kCallback = 80,
  kForked = 82,
  kInternal = 90,
};

// `field` names the argument, option or record field at fault ("capacity_bytes"; may be empty); `message` says what
// is wrong with which value.
absl::Status MakeStatus(Code code, std::string_view field, std::string_view message, int64_t native_code = 0);

inline absl::Status InvalidArgument(std::string_view field, std::string_view message) {
  return MakeStatus(Code::kInvalidArgument, field, message);
}
inline absl::Status Corrupt(std::string_view field, std::string_view message) {
  return MakeStatus(Code::kCorrupt, field, message);
}
// An operating-system failure: `native_code` is the errno; ENOSPC and EDQUOT become kNoSpace, ENOENT kNotFound,
// EROFS/EACCES/EPERM kReadOnly, ENOMEM kOutOfMemory, all others kIo.
absl::Status IoError(std::string_view operation, std::string_view path, int native_code);

Code CodeOf(const absl::Status& status);
int64_t NativeCodeOf(const absl::Status& status);
std::string FieldOf(const absl::Status& status);

}  // namespace kvstrata::core::base
