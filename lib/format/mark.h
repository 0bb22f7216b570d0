// SPDX-License-Identifier: Apache-2.0
// One mark of a root (FORMAT.md, "Marks"): a value that all lanes agree on. Decoders believe nothing.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"

namespace kvstrata::core::format {

using MarkValue = std::array<std::byte, 16>;

struct Mark {
  std::array<std::byte, 32> key{};
  MarkValue value{};

  friend bool operator==(const Mark&, const Mark&) = default;
};

// magic 4, version 2, reserved 2, key 32, value 16, checksum 8.
inline constexpr size_t kMarkBytes = 64;
// `offset`: of the mark in its file; it seeds the checksum.
std::array<std::byte, kMarkBytes> EncodeMark(const Mark& mark, uint64_t offset);
// kFormatTooNew for a later version, else kCorrupt naming the field.
absl::StatusOr<Mark> DecodeMark(base::ByteView bytes, uint64_t offset);

}  // namespace kvstrata::core::format
