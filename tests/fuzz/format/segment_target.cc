// SPDX-License-Identifier: Apache-2.0
// The superblock, the headers of logs, and entries: refused, or exactly what would be written again. Checksums are put
// right first, since no random change would ever get past them.
#include "lib/format/segment.h"

#include <algorithm>
#include <vector>

#include "lib/base/checksum.h"
#include "tests/fuzz/layout/target.h"

namespace base = kvstrata::core::base;
namespace format = kvstrata::core::format;

namespace {

constexpr uint64_t kSalt = 1000;
constexpr uint64_t kOffset = 4096;

void TryEntry(base::ByteView bytes) {
  uint64_t size = 0;
  const auto entry = format::DecodeEntry(bytes, kSalt, kOffset, &size);
  if (!entry.ok()) return;
  std::vector<std::byte> again;
  format::AppendEntry(*entry, kSalt, kOffset, &again);
  Promise(size <= bytes.size() && std::ranges::equal(again, bytes.first(size)));
}

void TryHeaders(base::ByteView bytes) {
  const auto super = format::DecodeSuperblock(bytes);
  if (super.ok()) Promise(std::ranges::equal(format::EncodeSuperblock(*super), bytes.first(format::kSuperblockBytes)));
  for (const format::LogKind kind : {format::LogKind::kJournal, format::LogKind::kCheckpoint}) {
    const auto header = format::DecodeLogHeader(bytes, kind);
    if (header.ok())
      Promise(std::ranges::equal(format::EncodeLogHeader(*header), bytes.first(format::kLogHeaderBytes)));
  }
}

// As FORMAT.md says: over the whole entry without its checksum.
std::vector<std::byte> SealedEntry(base::ByteView given) {
  std::vector<std::byte> bytes(given.begin(), given.end());
  const size_t size = std::clamp<size_t>(base::LoadLittleEndian<uint32_t>(bytes.data()), 16, bytes.size());
  base::Checksummer sum(kSalt + kOffset);
  sum.Update(base::ByteView(bytes).first(8));
  sum.Update(base::ByteView(bytes).subspan(16, size - 16));
  base::StoreLittleEndian(bytes.data() + 8, sum.Finish());
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const base::ByteView given = std::as_bytes(std::span(data, size));
  TryEntry(given);
  TryHeaders(given);
  if (size < 16) return 0;
  TryEntry(SealedEntry(given));
  for (const size_t structure : {format::kSuperblockBytes, format::kLogHeaderBytes}) {
    if (size < structure) continue;
    std::vector<std::byte> sealed(given.begin(), given.end());
    base::StoreLittleEndian(sealed.data() + structure - 8, base::Checksum(given.first(structure - 8), 0));
    TryHeaders(sealed);
  }
  return 0;
}
