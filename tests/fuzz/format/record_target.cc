// SPDX-License-Identifier: Apache-2.0
// Meta and head of a record, a namespace's text and a table of uses: refused, or exactly what would be written again.
// Checksums are put right first, since no random change would ever get past them.
#include "lib/format/record.h"

#include <algorithm>
#include <vector>

#include "lib/base/checksum.h"
#include "lib/engine/name_space.h"
#include "lib/format/uses.h"
#include "tests/fuzz/layout/target.h"

namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace format = kvstrata::core::format;

namespace {

void TryMeta(base::ByteView bytes) {
  const auto meta = format::DecodeRecordMeta(bytes);
  if (meta.ok()) Promise(std::ranges::equal(format::EncodeRecordMeta(*meta), bytes));
}

void TryHead(base::ByteView bytes) {
  if (bytes.size() >= format::kHeadPrefixBytes) {
    const auto size = format::PeekHeadBytes(bytes.first(format::kHeadPrefixBytes));
    if (size.ok()) Promise(*size >= format::kHeadPrefixBytes && *size <= UINT32_MAX);
  }
  const auto head = format::DecodeHead(bytes);
  if (head.ok()) Promise(std::ranges::equal(format::EncodeHead(*head), bytes));
}

void TryUses(base::ByteView bytes) {
  const auto uses = format::DecodeUses(bytes);
  if (uses.ok()) Promise(std::ranges::equal(format::EncodeUses(*uses), bytes));
}

void TryNamespace(base::ByteView bytes) {
  const auto parts = engine::DecodeNamespace(bytes);
  if (parts.ok()) Promise(std::ranges::equal(engine::EncodeNamespace(parts->first, parts->second), bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const base::ByteView given = std::as_bytes(std::span(data, size));
  TryMeta(given);
  TryHead(given);
  TryNamespace(given);
  TryUses(given);
  if (size < 40) return 0;
  std::vector<std::byte> sealed(given.begin(), given.end());
  const uint64_t sequence = base::LoadLittleEndian<uint64_t>(sealed.data() + 24);
  base::StoreLittleEndian(sealed.data() + size - 8, base::Checksum(given.first(size - 8), sequence));
  TryMeta(sealed);
  TryHead(sealed);
  return 0;
}
