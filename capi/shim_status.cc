// SPDX-License-Identifier: Apache-2.0
// Status names, and how a status leaves the library.
//
// Thread rule: pure functions.
#include <algorithm>
#include <string>

#include "capi/struct_reader.h"

namespace kvstrata::capi {
namespace {

// The C constants and the core's codes are one list.
static_assert(KVSTRATA_OK == static_cast<int32_t>(base::Code::kOk));
static_assert(KVSTRATA_E_INVALID_ARGUMENT == static_cast<int32_t>(base::Code::kInvalidArgument));
static_assert(KVSTRATA_E_STRUCT_TOO_NEW == static_cast<int32_t>(base::Code::kStructTooNew));
static_assert(KVSTRATA_E_UNSUPPORTED == static_cast<int32_t>(base::Code::kUnsupported));
static_assert(KVSTRATA_E_INVALID_STATE == static_cast<int32_t>(base::Code::kInvalidState));
static_assert(KVSTRATA_E_READ_ONLY == static_cast<int32_t>(base::Code::kReadOnly));
static_assert(KVSTRATA_E_LAYOUT_MISMATCH == static_cast<int32_t>(base::Code::kLayoutMismatch));
static_assert(KVSTRATA_E_IDENTITY_MISMATCH == static_cast<int32_t>(base::Code::kIdentityMismatch));
static_assert(KVSTRATA_E_CORRUPT == static_cast<int32_t>(base::Code::kCorrupt));
static_assert(KVSTRATA_E_FORMAT_TOO_NEW == static_cast<int32_t>(base::Code::kFormatTooNew));
static_assert(KVSTRATA_E_IO == static_cast<int32_t>(base::Code::kIo));
static_assert(KVSTRATA_E_NO_SPACE == static_cast<int32_t>(base::Code::kNoSpace));
static_assert(KVSTRATA_E_LOCKED == static_cast<int32_t>(base::Code::kLocked));
static_assert(KVSTRATA_E_NOT_FOUND == static_cast<int32_t>(base::Code::kNotFound));
static_assert(KVSTRATA_E_CANCELLED == static_cast<int32_t>(base::Code::kCancelled));
static_assert(KVSTRATA_E_TIMEOUT == static_cast<int32_t>(base::Code::kTimeout));
static_assert(KVSTRATA_E_OUT_OF_MEMORY == static_cast<int32_t>(base::Code::kOutOfMemory));
static_assert(KVSTRATA_E_BUFFER_TOO_SMALL == static_cast<int32_t>(base::Code::kBufferTooSmall));
static_assert(KVSTRATA_E_TOO_LARGE == static_cast<int32_t>(base::Code::kTooLarge));
static_assert(KVSTRATA_E_BUSY == static_cast<int32_t>(base::Code::kBusy));
static_assert(KVSTRATA_E_DEVICE == static_cast<int32_t>(base::Code::kDevice));
static_assert(KVSTRATA_E_CALLBACK == static_cast<int32_t>(base::Code::kCallback));
static_assert(KVSTRATA_E_FORKED == static_cast<int32_t>(base::Code::kForked));
static_assert(KVSTRATA_E_INTERNAL == static_cast<int32_t>(base::Code::kInternal));

template <size_t N>
void CopyText(const std::string& from, char (&to)[N]) {
  const size_t size = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), size);
  std::memset(to + size, 0, N - size);
}

}  // namespace

kvstrata_status Report(const absl::Status& status, kvstrata_error* error) {
  const auto code = static_cast<kvstrata_status>(base::CodeOf(status));
  if (code == KVSTRATA_OK || error == nullptr) return code;
  const uint32_t size = StructSizeOf(error);
  if (size < sizeof(size) || size > kMaxStructSize) return code;
  kvstrata_error out;
  std::memset(&out, 0, sizeof(out));
  out.code = code;
  out.native_code = base::NativeCodeOf(status);
  CopyText(base::FieldOf(status), out.field);
  CopyText(std::string(status.message()), out.message);
  WriteStruct(out, error);
  return code;
}

}  // namespace kvstrata::capi

extern "C" const char* kvstrata_status_name(kvstrata_status status) {
  switch (status) {
    case KVSTRATA_OK: return "KVSTRATA_OK";
    case KVSTRATA_E_INVALID_ARGUMENT: return "KVSTRATA_E_INVALID_ARGUMENT";
    case KVSTRATA_E_STRUCT_TOO_NEW: return "KVSTRATA_E_STRUCT_TOO_NEW";
    case KVSTRATA_E_UNSUPPORTED: return "KVSTRATA_E_UNSUPPORTED";
    case KVSTRATA_E_INVALID_STATE: return "KVSTRATA_E_INVALID_STATE";
    case KVSTRATA_E_READ_ONLY: return "KVSTRATA_E_READ_ONLY";
    case KVSTRATA_E_LAYOUT_MISMATCH: return "KVSTRATA_E_LAYOUT_MISMATCH";
    case KVSTRATA_E_IDENTITY_MISMATCH: return "KVSTRATA_E_IDENTITY_MISMATCH";
    case KVSTRATA_E_CORRUPT: return "KVSTRATA_E_CORRUPT";
    case KVSTRATA_E_FORMAT_TOO_NEW: return "KVSTRATA_E_FORMAT_TOO_NEW";
    case KVSTRATA_E_IO: return "KVSTRATA_E_IO";
    case KVSTRATA_E_NO_SPACE: return "KVSTRATA_E_NO_SPACE";
    case KVSTRATA_E_LOCKED: return "KVSTRATA_E_LOCKED";
    case KVSTRATA_E_NOT_FOUND: return "KVSTRATA_E_NOT_FOUND";
    case KVSTRATA_E_CANCELLED: return "KVSTRATA_E_CANCELLED";
    case KVSTRATA_E_TIMEOUT: return "KVSTRATA_E_TIMEOUT";
    case KVSTRATA_E_OUT_OF_MEMORY: return "KVSTRATA_E_OUT_OF_MEMORY";
    case KVSTRATA_E_BUFFER_TOO_SMALL: return "KVSTRATA_E_BUFFER_TOO_SMALL";
    case KVSTRATA_E_TOO_LARGE: return "KVSTRATA_E_TOO_LARGE";
    case KVSTRATA_E_BUSY: return "KVSTRATA_E_BUSY";
    case KVSTRATA_E_DEVICE: return "KVSTRATA_E_DEVICE";
    case KVSTRATA_E_CALLBACK: return "KVSTRATA_E_CALLBACK";
    case KVSTRATA_E_FORKED: return "KVSTRATA_E_FORKED";
    case KVSTRATA_E_INTERNAL: return "KVSTRATA_E_INTERNAL";
    default: return "KVSTRATA_E_?";
  }
}
