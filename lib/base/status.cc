// SPDX-License-Identifier: Apache-2.0
#include "lib/base/status.h"

#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace kvstrata::core::base {
namespace {

// absl::string_view is a type of its own where Abseil was built as C++14, as Debian's is: convert by hand.
constexpr absl::string_view kPayloadUrl = "kvstrata.status";

// Payload: code (4 bytes), native code (8 bytes), field name (the rest). In memory only, never written anywhere.
struct Payload {
  Code code;
  int64_t native_code;
  std::string field;
};

absl::StatusCode CanonicalCode(Code code) {
  switch (code) {
    case Code::kOk: return absl::StatusCode::kOk;
    case Code::kInvalidArgument:
    case Code::kStructTooNew:
    case Code::kBufferTooSmall: return absl::StatusCode::kInvalidArgument;
    case Code::kUnsupported: return absl::StatusCode::kUnimplemented;
    case Code::kInvalidState:
    case Code::kLayoutMismatch:
    case Code::kIdentityMismatch:
    case Code::kForked:
    case Code::kFormatTooNew: return absl::StatusCode::kFailedPrecondition;
    case Code::kReadOnly: return absl::StatusCode::kPermissionDenied;
    case Code::kCorrupt: return absl::StatusCode::kDataLoss;
    case Code::kIo:
    case Code::kLocked:
    case Code::kBusy: return absl::StatusCode::kUnavailable;
    case Code::kNoSpace:
    case Code::kTooLarge:
    case Code::kOutOfMemory: return absl::StatusCode::kResourceExhausted;
    case Code::kNotFound: return absl::StatusCode::kNotFound;
    case Code::kCancelled: return absl::StatusCode::kCancelled;
    case Code::kTimeout: return absl::StatusCode::kDeadlineExceeded;
    case Code::kDevice:
    case Code::kCallback: return absl::StatusCode::kAborted;
    case Code::kInternal: return absl::StatusCode::kInternal;
  }
  return absl::StatusCode::kInternal;
}

Code FromCanonical(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return Code::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange: return Code::kInvalidArgument;
    case absl::StatusCode::kUnimplemented: return Code::kUnsupported;
    case absl::StatusCode::kDataLoss: return Code::kCorrupt;
    case absl::StatusCode::kNotFound: return Code::kNotFound;
    case absl::StatusCode::kCancelled: return Code::kCancelled;
    case absl::StatusCode::kDeadlineExceeded: return Code::kTimeout;
    case absl::StatusCode::kResourceExhausted: return Code::kOutOfMemory;
    default: return Code::kInternal;
  }
}

std::optional<Payload> ReadPayload(const absl::Status& status) {
  const auto cord = status.GetPayload(kPayloadUrl);
  if (!cord.has_value()) return std::nullopt;
  const std::string bytes(*cord);
  Payload payload;
  constexpr size_t kFixed = sizeof(payload.code) + sizeof(payload.native_code);
  if (bytes.size() < kFixed) return std::nullopt;
  std::memcpy(&payload.code, bytes.data(), sizeof(payload.code));
  std::memcpy(&payload.native_code, bytes.data() + sizeof(payload.code), sizeof(payload.native_code));
  payload.field = bytes.substr(kFixed);
  return payload;
}

}  // namespace

absl::Status MakeStatus(Code code, std::string_view field, std::string_view message, int64_t native_code) {
  if (code == Code::kOk) return absl::OkStatus();
  std::string text(field);
  if (!field.empty()) text += ": ";
  text += message;
  absl::Status status(CanonicalCode(code), text);
  std::string bytes(sizeof(code) + sizeof(native_code), '\0');
  std::memcpy(bytes.data(), &code, sizeof(code));
  std::memcpy(bytes.data() + sizeof(code), &native_code, sizeof(native_code));
  bytes.append(field);
  status.SetPayload(kPayloadUrl, absl::Cord(bytes));
  return status;
}

absl::Status IoError(std::string_view operation, std::string_view path, int native_code) {
  char text[128];  // GNU's strerror_r, which fills it or returns a text of its own; strerror is not thread-safe
  Code code = Code::kIo;
  switch (native_code) {
    case ENOSPC:
    case EDQUOT: code = Code::kNoSpace; break;
    case ENOENT: code = Code::kNotFound; break;
    case EROFS:
    case EACCES:
    case EPERM: code = Code::kReadOnly; break;
    case ENOMEM: code = Code::kOutOfMemory; break;
    default: break;
  }
  const char* reason = strerror_r(native_code, text, sizeof(text));
  return MakeStatus(code, operation, std::string(path) + ": " + reason, native_code);
}

Code CodeOf(const absl::Status& status) {
  if (status.ok()) return Code::kOk;
  const auto payload = ReadPayload(status);
  return payload.has_value() ? payload->code : FromCanonical(status.code());
}

int64_t NativeCodeOf(const absl::Status& status) {
  const auto payload = ReadPayload(status);
  return payload.has_value() ? payload->native_code : 0;
}

std::string FieldOf(const absl::Status& status) {
  const auto payload = ReadPayload(status);
  return payload.has_value() ? payload->field : std::string();
}

}  // namespace kvstrata::core::base
