// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/request_check.h"

#include <algorithm>
#include <string>

#include "lib/base/checked.h"
#include "lib/base/status.h"

namespace kvstrata::core::storage {
namespace {

// Bytes 0-3 the group, 4 whether a key follows, 8-39 the key.
constexpr size_t kHasKeyAt = 4;
constexpr size_t kKeyAt = 8;

absl::Status CheckPut(const Put& put, const Capabilities& capabilities) {
  if (capabilities.read_only)
    return base::MakeStatus(base::Code::kReadOnly, "put", "the store is open for reading only");
  if (put.meta.size() > kMaxMetaBytes) {
    return base::MakeStatus(base::Code::kTooLarge, "meta",
                            std::to_string(put.meta.size()) + " bytes, at most " + std::to_string(kMaxMetaBytes));
  }
  const std::optional<uint64_t> bytes = PayloadBytes(put);
  if (!bytes.has_value() || *bytes > capabilities.max_payload_bytes) {
    return base::MakeStatus(base::Code::kTooLarge, "parts",
                            "the payload is above " + std::to_string(capabilities.max_payload_bytes) + " bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckGet(const Get& get) {
  if (!base::CheckedAdd<uint64_t>(get.offset, get.destination.size()).has_value()) {
    return base::InvalidArgument("offset", std::to_string(get.offset) + " plus the size does not fit in 64 bits");
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<uint64_t> PayloadBytes(const Put& put) {
  std::optional<uint64_t> sum = 0;
  for (const base::ByteView part : put.parts) {
    sum = base::CheckedAdd<uint64_t>(*sum, part.size());
    if (!sum.has_value()) break;
  }
  return sum;
}

absl::Status CheckBatch(std::span<const Request> requests, const Capabilities& capabilities) {
  if (requests.size() > capabilities.max_requests) {
    return base::MakeStatus(
        base::Code::kTooLarge, "requests",
        std::to_string(requests.size()) + " in one batch, at most " + std::to_string(capabilities.max_requests));
  }
  for (const Request& request : requests) {
    if (request.completion.function == nullptr) return base::InvalidArgument("completion", "is missing");
    const Put* put = std::get_if<Put>(&request.operation);
    const absl::Status status =
        put != nullptr ? CheckPut(*put, capabilities) : CheckGet(std::get<Get>(request.operation));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckRange(uint64_t offset, uint64_t size, uint64_t payload_bytes) {
  if (offset <= payload_bytes && size <= payload_bytes - offset) return absl::OkStatus();
  return base::Corrupt("offset", "range of " + std::to_string(size) + " bytes at " + std::to_string(offset) +
                                     " is outside the payload of " + std::to_string(payload_bytes) + " bytes");
}

Cursor CursorAt(uint32_t group) {
  Cursor cursor;
  base::StoreLittleEndian(cursor.bytes.data(), group);
  return cursor;
}

Cursor CursorAfter(uint32_t group, const Key& key) {
  Cursor cursor = CursorAt(group);
  cursor.bytes[kHasKeyAt] = std::byte{1};
  std::copy(key.bytes.begin(), key.bytes.end(), cursor.bytes.begin() + kKeyAt);
  return cursor;
}

absl::StatusOr<Position> PositionOf(const Cursor& cursor) {
  Position position;
  position.group = base::LoadLittleEndian<uint32_t>(cursor.bytes.data());
  if (cursor.bytes[kHasKeyAt] == std::byte{1}) {
    Key key;
    std::copy_n(cursor.bytes.begin() + kKeyAt, key.bytes.size(), key.bytes.begin());
    position.after = key;
  }
  const Cursor again =
      position.after.has_value() ? CursorAfter(position.group, *position.after) : CursorAt(position.group);
  if (again.bytes != cursor.bytes) return base::InvalidArgument("cursor", "was not made by this store");
  return position;
}

}  // namespace kvstrata::core::storage
