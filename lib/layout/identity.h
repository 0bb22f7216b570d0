// SPDX-License-Identifier: Apache-2.0
// The identity of a namespace beyond its layout: named byte strings (weights digest, RoPE parameters, adapter,
// tenant ...), length-framed and compared whole, never by a hash.
//
// Thread rule: an Identity never changes after Create and may be shared and copied from any thread.
//
// I1. Fields are sorted by name (bytewise) and unique; the canonical bytes are a pure function of them, and no two
//     identities have the same bytes: every name and value carries its length.
// I2. An empty value and an absent field differ.
// Canonical bytes, little-endian: u32 count, then per field u32 name length, name, u64 size, bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/layout/layout.h"

namespace kvstrata::core::layout {

inline constexpr size_t kMaxIdentityFields = 64;
inline constexpr size_t kMaxIdentityNameBytes = 64;
inline constexpr size_t kMaxIdentityValueBytes = 64u << 10;

struct Field {
  std::string name;   // [a-z0-9_.-]{1,64}
  std::string bytes;  // at most 64 KiB, may be empty
  bool operator==(const Field&) const = default;
};

// A field as a caller hands it over; `data` may be null only when `size` is 0.
struct FieldView {
  std::string_view name;
  const void* data = nullptr;
  uint64_t size = 0;
};

class Identity {
 public:
  Identity() = default;  // no fields
  // Any order in; kInvalidArgument names the field ("identity[2]" or "identity.rope").
  static absl::StatusOr<Identity> Create(std::span<const FieldView> fields);
  static absl::StatusOr<Identity> Create(std::vector<Field> fields);
  // Strict: exactly what CanonicalBytes would give, else kCorrupt.
  static absl::StatusOr<Identity> FromCanonicalBytes(std::string_view bytes);

  std::span<const Field> fields() const { return fields_; }
  const Field* Find(std::string_view name) const;  // null when absent
  std::string CanonicalBytes() const;

  bool operator==(const Identity&) const = default;

 private:
  std::vector<Field> fields_;
};

// Names that a namespace of this layout must give: the family's, and "shard" when a stream is split.
std::vector<std::string_view> MandatoryNames(const Layout& layout);
// kInvalidArgument naming the first missing one ("identity.rope").
absl::Status CheckMandatory(const Layout& layout, const Identity& identity);

// One entry per differing field ("adapter: stored \"a\" (1 byte), given absent"). At most 32 bytes of a value show,
// those that differ among them; bytes outside printable ASCII show as hex; of "tenant", which may be a secret, only the
// size.
std::vector<std::string> DescribeDifference(const Identity& stored, const Identity& given);

}  // namespace kvstrata::core::layout
