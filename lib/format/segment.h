// SPDX-License-Identifier: Apache-2.0
// What the segment store writes beside payload, as FORMAT.md section "Segment store" describes it: the copies of the
// superblock, the headers of journals and checkpoints, and the entries that both hold. Decoders believe nothing.
//
// Invariants:
//   I1. Decoding reads inside the given bytes only, whatever they hold.
//   I2. What decodes is exactly what encoding gives again: each structure has one form.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"

namespace kvstrata::core::format {

// Space is counted in units. 4 KiB: a page, and what direct I/O wants of every place and size.
inline constexpr uint64_t kUnitBytes = 4096;
inline constexpr uint32_t kSegmentVersion = 1;
using StoreId = std::array<std::byte, 16>;

// ---- The superblock ------------------------------------------------------------------------------------------------

struct Superblock {
  StoreId store{};
  // 1, 2, 3, ...: one for each opening that may write.
  uint64_t epoch = 0;
  // Of every segment file; a multiple of kUnitBytes.
  uint64_t segment_bytes = 0;

  friend bool operator==(const Superblock&, const Superblock&) = default;
};

// magic 8, version 4, size 4, store 16, epoch 8, segment_bytes 8, reserved 8, checksum 8.
inline constexpr size_t kSuperblockBytes = 64;
std::array<std::byte, kSuperblockBytes> EncodeSuperblock(const Superblock& superblock);
// kFormatTooNew for a later version, else kCorrupt naming the field.
absl::StatusOr<Superblock> DecodeSuperblock(base::ByteView bytes);

// ---- Headers of journals and checkpoints ---------------------------------------------------------------------------

enum class LogKind : uint8_t { kJournal = 1, kCheckpoint = 2 };

struct LogHeader {
  LogKind kind = LogKind::kJournal;
  StoreId store{};
  // Of the opening that began the file.
  uint64_t epoch = 0;
  // Of a journal: its number, 1, 2, 3, ... . Of a checkpoint: the first journal whose entries come after it.
  uint64_t number = 0;
  // Belongs to this writing of the file alone, and seeds the checksum of every entry.
  uint64_t salt = 0;
  // Of a checkpoint: what it holds. Of a journal 0, since it grows.
  uint64_t entries = 0;
  uint64_t body_bytes = 0;

  friend bool operator==(const LogHeader&, const LogHeader&) = default;
};

// Entries begin here; and what one flush adds to a journal begins at a multiple of this. A write that is torn by a loss
// of power can then spoil nothing that was durable before: no disk writes more than 4096 bytes at once.
inline constexpr uint64_t kLogBlockBytes = 4096;
inline constexpr uint64_t kLogBodyOffset = kLogBlockBytes;
// magic 8, version 4, size 4, store 16, epoch 8, number 8, salt 8, entries 8, body_bytes 8, checksum 8.
inline constexpr size_t kLogHeaderBytes = 80;
std::array<std::byte, kLogHeaderBytes> EncodeLogHeader(const LogHeader& header);
absl::StatusOr<LogHeader> DecodeLogHeader(base::ByteView bytes, LogKind kind);

// ---- Entries -------------------------------------------------------------------------------------------------------

// Units [first, first + units) of segment number `segment`.
struct Extent {
  uint32_t segment = 0;
  uint32_t first = 0;
  uint32_t units = 0;

  friend bool operator==(const Extent&, const Extent&) = default;
};

// A record lies in so many pieces at most: more would make a read of it slower than it is worth.
inline constexpr size_t kMaxExtents = 8;
inline constexpr uint32_t kMaxEntryMetaBytes = 4096;

enum class EntryKind : uint8_t { kPut = 1, kRemove = 2 };

struct LogEntry {
  EntryKind kind = EntryKind::kPut;
  std::array<std::byte, 32> key{};
  // Of the put, or of the removal itself.
  uint64_t sequence = 0;
  // Of a removal the rest is empty.
  uint64_t payload_bytes = 0;
  std::vector<Extent> extents;
  std::vector<std::byte> meta;

  friend bool operator==(const LogEntry&, const LogEntry&) = default;
};

// What is the same in every entry, then: payload_bytes 8, last_use 4, reserved 4; the extents, 12 each; the meta; zeros
// up to a multiple of 8.
inline constexpr size_t kEntryAlignment = 8;
inline constexpr size_t kEntryHeadBytes = 56;
inline constexpr size_t kPutHeadBytes = kEntryHeadBytes + 16;
inline constexpr size_t kMaxEntryBytes = kPutHeadBytes + kMaxExtents * 12 + kMaxEntryMetaBytes;

// An entry whose meta stays where it was read: for readers of whole logs, who would else take memory for each.
struct LogEntryView {
  EntryKind kind = EntryKind::kPut;
  std::array<std::byte, 32> key{};
  uint64_t sequence = 0;
  uint64_t payload_bytes = 0;
  // The first `extent_count` count.
  std::array<Extent, kMaxExtents> places{};
  size_t extent_count = 0;
  base::ByteView meta;
  // Of the entry.
  uint64_t entry_bytes = 0;

  std::span<const Extent> extents() const { return std::span(places).first(extent_count); }
};

uint64_t EntryBytes(const LogEntry& entry);
// Appends the entry, which will lie `offset` bytes from the beginning of the file with that salt.
void AppendEntry(const LogEntryView& entry, uint64_t salt, uint64_t offset, std::vector<std::byte>* out);
void AppendEntry(const LogEntry& entry, uint64_t salt, uint64_t offset, std::vector<std::byte>* out);
// `bytes` begins with the entry and may go on behind it; `*entry_bytes` is then how long it is. kCorrupt also where a
// journal simply ends: what comes after its last entry is no entry.
absl::StatusOr<LogEntry> DecodeEntry(base::ByteView bytes, uint64_t salt, uint64_t offset, uint64_t* entry_bytes);
// The same without a copy of the meta. `*entry` is unspecified on failure.
absl::Status DecodeEntryView(base::ByteView bytes, uint64_t salt, uint64_t offset, LogEntryView* entry);
// For bytes that have passed DecodeEntryView and that nobody has written to since: without their checksum.
bool ViewEntryAgain(base::ByteView bytes, LogEntryView* entry);
// Whether the kind and the sizes at the beginning of `bytes` agree as those of an entry do: to look for one quickly.
bool LooksLikeEntry(base::ByteView bytes);

}  // namespace kvstrata::core::format
