// SPDX-License-Identifier: Apache-2.0
// Metadata in a zstd frame where that is smaller, as it is elsewhere. Beside slice_codec.cc the only place that
// includes zstd.h.
//
// Frame, little-endian: u8 method (0 stored, 1 zstd), u32 plain size, payload. The plain size is never trusted: the
// reader gives the bound, and a frame that says or makes another size is corrupt.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvstrata::core::codec {

inline constexpr size_t kMetaFrameHeaderBytes = 5;
// No metadata record is larger than a layout text of 1 MiB with an identity of 64 x 64 KiB, rounded up.
inline constexpr size_t kMaxMetaBytes = 8u << 20;

// Never longer than plain.size() + kMetaFrameHeaderBytes. kTooLarge beyond kMaxMetaBytes.
absl::StatusOr<std::string> EncodeMeta(std::string_view plain);
// kCorrupt when the frame is malformed, truncated, followed by other bytes, or holds more than `max_plain_bytes`.
absl::StatusOr<std::string> DecodeMeta(std::string_view frame, size_t max_plain_bytes);

}  // namespace kvstrata::core::codec
