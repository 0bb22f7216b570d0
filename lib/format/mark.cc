// SPDX-License-Identifier: Apache-2.0
#include "lib/format/mark.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/checksum.h"
#include "lib/base/status.h"

namespace kvstrata::core::format {
namespace {

constexpr std::string_view kMagic = "KVSN";
constexpr uint16_t kVersion = 1;
constexpr size_t kChecksumAt = kMarkBytes - sizeof(uint64_t);

}  // namespace

std::array<std::byte, kMarkBytes> EncodeMark(const Mark& mark, uint64_t offset) {
  std::vector<std::byte> bytes;
  bytes.reserve(kMarkBytes);
  base::ByteWriter writer(&bytes);
  writer.WriteBytes(base::AsBytes(kMagic));
  writer.Write(kVersion);
  writer.Write(uint16_t{0});
  writer.WriteBytes(mark.key);
  writer.WriteBytes(mark.value);
  writer.Write(base::Checksum(bytes, offset));
  std::array<std::byte, kMarkBytes> out{};
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

absl::StatusOr<Mark> DecodeMark(base::ByteView bytes, uint64_t offset) {
  if (bytes.size() != kMarkBytes) return base::Corrupt("mark", "is cut off");
  if (base::AsText(bytes.first(kMagic.size())) != kMagic) return base::Corrupt("magic", "is not KVSN");
  const uint16_t version = base::LoadLittleEndian<uint16_t>(bytes.data() + 4);
  if (version > kVersion) {
    return base::MakeStatus(base::Code::kFormatTooNew, "version", std::to_string(version) + ", this build knows 1");
  }
  if (version != kVersion) return base::Corrupt("version", std::to_string(version));
  if (base::LoadLittleEndian<uint64_t>(bytes.data() + kChecksumAt) !=
      base::Checksum(bytes.first(kChecksumAt), offset)) {
    return base::Corrupt("checksum", "does not match");
  }
  if (base::LoadLittleEndian<uint16_t>(bytes.data() + 6) != 0) return base::Corrupt("reserved", "is not 0");
  Mark mark;
  std::copy_n(bytes.begin() + 8, mark.key.size(), mark.key.begin());
  std::copy_n(bytes.begin() + 40, mark.value.size(), mark.value.begin());
  return mark;
}

}  // namespace kvstrata::core::format
