// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/record_names.h"

#include <algorithm>
#include <cassert>

namespace kvstrata::core::storage {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::string_view kRecordSuffix = ".rec";
constexpr std::string_view kStagingPrefix = "put-";
constexpr size_t kHexNumberDigits = 16;

// Lower case only: each key has one name.
std::optional<uint8_t> HexValue(char digit) {
  const size_t at = kHexDigits.find(digit);
  if (at == std::string_view::npos) return std::nullopt;
  return static_cast<uint8_t>(at);
}

// Builds a name piece by piece; the zeros that it begins with end it.
class NameWriter {
 public:
  NameWriter& Text(std::string_view text) {
    assert(at_ + text.size() < name_.size());
    std::copy(text.begin(), text.end(), name_.begin() + at_);
    at_ += text.size();
    return *this;
  }
  NameWriter& Hex(uint64_t value, int digits) {
    while (digits-- > 0) Text(kHexDigits.substr(value >> (4 * digits) & 15, 1));
    return *this;
  }
  const Name& name() const { return name_; }

 private:
  Name name_{};
  size_t at_ = 0;
};

bool IsHexNumber(std::string_view text) {
  return text.size() == kHexNumberDigits &&
         std::all_of(text.begin(), text.end(), [](char digit) { return HexValue(digit).has_value(); });
}

}  // namespace

uint32_t ShardOf(const Key& key) {
  std::byte sum{0};
  for (const std::byte byte : key.bytes) sum ^= byte;
  return std::to_integer<uint32_t>(sum) & 15u;
}

Name ShardFolder(uint32_t shard) { return NameWriter().Text(kRecordsFolder).Text("/").Hex(shard, 1).name(); }

Name RecordName(const Key& key) {
  NameWriter writer;
  writer.Text(kRecordsFolder).Text("/").Hex(ShardOf(key), 1).Text("/");
  for (const std::byte byte : key.bytes) writer.Hex(std::to_integer<uint64_t>(byte), 2);
  return writer.Text(kRecordSuffix).name();
}

std::optional<Key> KeyOfRecordName(std::string_view name) {
  Key key;
  const size_t digits = 2 * key.bytes.size();
  if (name.size() != digits + kRecordSuffix.size() || name.substr(digits) != kRecordSuffix) return std::nullopt;
  for (size_t i = 0; i < key.bytes.size(); ++i) {
    const std::optional<uint8_t> high = HexValue(name[2 * i]);
    const std::optional<uint8_t> low = HexValue(name[2 * i + 1]);
    if (!high.has_value() || !low.has_value()) return std::nullopt;
    key.bytes[i] = static_cast<std::byte>(*high << 4 | *low);
  }
  return key;
}

Name StagingName(uint64_t opener, uint64_t sequence) {
  constexpr int kDigits = static_cast<int>(kHexNumberDigits);
  return NameWriter()
      .Text(kStagingFolder)
      .Text("/")
      .Text(kStagingPrefix)
      .Hex(opener, kDigits)
      .Text("-")
      .Hex(sequence, kDigits)
      .name();
}

bool IsStagingName(std::string_view name) {
  if (name.size() != kStagingPrefix.size() + 2 * kHexNumberDigits + 1) return false;
  if (name.substr(0, kStagingPrefix.size()) != kStagingPrefix) return false;
  name.remove_prefix(kStagingPrefix.size());
  return IsHexNumber(name.substr(0, kHexNumberDigits)) && name[kHexNumberDigits] == '-' &&
         IsHexNumber(name.substr(kHexNumberDigits + 1));
}

}  // namespace kvstrata::core::storage
