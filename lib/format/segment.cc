// SPDX-License-Identifier: Apache-2.0
#include "lib/format/segment.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/checksum.h"
#include "lib/base/status.h"

namespace kvstrata::core::format {
namespace {

// Each ends in a byte that no text encoding uses and one that a text-mode copy would change.
constexpr std::string_view kSuperMagic = "KVSSUP\xFF\n";
constexpr std::string_view kJournalMagic = "KVSJRN\xFF\n";
constexpr std::string_view kCheckpointMagic = "KVSCKP\xFF\n";
// Magic, version, size: the beginning of each structure that stands for itself.
constexpr size_t kEnvelopeBytes = 16;
constexpr size_t kExtentBytes = 12;
constexpr size_t kChecksumAt = 8;  // in an entry

std::string_view MagicOf(LogKind kind) { return kind == LogKind::kJournal ? kJournalMagic : kCheckpointMagic; }

void WriteEnvelope(std::string_view magic, uint32_t size, base::ByteWriter* writer) {
  writer->WriteBytes(base::AsBytes(magic));
  writer->Write(kSegmentVersion);
  writer->Write(size);
}

// Ends the structure with the checksum of all that is there, with seed 0.
template <size_t kSize>
std::array<std::byte, kSize> Sealed(std::vector<std::byte> bytes) {
  std::array<std::byte, kSize> sealed{};
  base::ByteWriter(&bytes).Write(base::Checksum(bytes, 0));
  std::copy(bytes.begin(), bytes.end(), sealed.begin());
  return sealed;
}

absl::Status CheckEnvelope(base::ByteView bytes, std::string_view magic, size_t size) {
  if (bytes.size() < kEnvelopeBytes || base::AsText(bytes.first(magic.size())) != magic) {
    return base::Corrupt("magic", "is not " + std::string(magic.substr(0, 6)));
  }
  const uint32_t version = base::LoadLittleEndian<uint32_t>(bytes.data() + 8);
  if (version > kSegmentVersion) {
    return base::MakeStatus(base::Code::kFormatTooNew, "version", std::to_string(version) + ", this build knows 1");
  }
  if (version != kSegmentVersion) return base::Corrupt("version", std::to_string(version));
  if (base::LoadLittleEndian<uint32_t>(bytes.data() + 12) != size || bytes.size() < size) {
    return base::Corrupt("size", "is not " + std::to_string(size));
  }
  const uint64_t checksum = base::LoadLittleEndian<uint64_t>(bytes.data() + size - sizeof(uint64_t));
  if (base::Checksum(bytes.first(size - sizeof(uint64_t)), 0) != checksum) {
    return base::Corrupt("checksum", "does not match");
  }
  return absl::OkStatus();
}

void ReadArray(base::ByteReader* reader, std::span<std::byte> out) {
  base::ByteView bytes;
  if (reader->ReadBytes(out.size(), &bytes)) std::copy(bytes.begin(), bytes.end(), out.begin());
}

// Entries that lie side by side get seeds that have nothing in common; see checksum.h.
uint64_t SeedAt(uint64_t salt, uint64_t offset) { return salt + offset; }

// Of all but the checksum's own place. In one piece: most entries are so short that copying them costs less than
// beginning a checksum of pieces.
uint64_t ChecksumOf(base::ByteView entry, uint64_t seed) {
  std::byte rest[kMaxEntryBytes];
  const base::ByteView behind = entry.subspan(kChecksumAt + sizeof(uint64_t));
  std::copy_n(entry.data(), kChecksumAt, rest);
  std::copy_n(behind.data(), behind.size(), rest + kChecksumAt);
  return base::Checksum({rest, kChecksumAt + behind.size()}, seed);
}

absl::Status CheckExtents(const LogEntryView& entry) {
  uint64_t units = 0;
  for (const Extent& extent : entry.extents()) {
    if (extent.units == 0 || extent.units > UINT32_MAX - extent.first) return base::Corrupt("extents", "out of range");
    units += extent.units;
  }
  const uint64_t wanted = entry.payload_bytes / kUnitBytes + (entry.payload_bytes % kUnitBytes != 0 ? 1 : 0);
  if (units != wanted) return base::Corrupt("extents", "do not make up the payload");
  return absl::OkStatus();
}

uint64_t BytesOfEntry(EntryKind kind, size_t extents, size_t meta_bytes) {
  if (kind == EntryKind::kRemove) return kEntryHeadBytes;
  return (kPutHeadBytes + extents * kExtentBytes + meta_bytes + kEntryAlignment - 1) / kEntryAlignment *
         kEntryAlignment;
}

// Behind the head of a put: the fields of its own, up to the padding.
absl::Status ReadPut(base::ByteReader* reader, uint8_t extents, uint16_t meta_bytes, LogEntryView* entry) {
  uint64_t reserved = 0;
  reader->Read(&entry->payload_bytes);
  reader->Read(&reserved);
  entry->extent_count = extents;
  for (size_t i = 0; i < extents; ++i) {
    Extent& extent = entry->places[i];
    reader->Read(&extent.segment);
    reader->Read(&extent.first);
    reader->Read(&extent.units);
  }
  reader->ReadBytes(meta_bytes, &entry->meta);
  if (!reader->ok()) return base::Corrupt("entry_bytes", "is too small");
  if (reserved != 0) return base::Corrupt("last_use", "is not 0");
  return CheckExtents(*entry);
}

}  // namespace

std::array<std::byte, kSuperblockBytes> EncodeSuperblock(const Superblock& superblock) {
  std::vector<std::byte> bytes;
  base::ByteWriter writer(&bytes);
  WriteEnvelope(kSuperMagic, kSuperblockBytes, &writer);
  writer.WriteBytes(superblock.store);
  writer.Write(superblock.epoch);
  writer.Write(superblock.segment_bytes);
  writer.Write(uint64_t{0});
  return Sealed<kSuperblockBytes>(std::move(bytes));
}

absl::StatusOr<Superblock> DecodeSuperblock(base::ByteView bytes) {
  if (absl::Status status = CheckEnvelope(bytes, kSuperMagic, kSuperblockBytes); !status.ok()) return status;
  base::ByteReader reader(bytes.subspan(kEnvelopeBytes));
  Superblock superblock;
  uint64_t reserved = 0;
  ReadArray(&reader, superblock.store);
  reader.Read(&superblock.epoch);
  reader.Read(&superblock.segment_bytes);
  reader.Read(&reserved);
  if (superblock.epoch == 0) return base::Corrupt("epoch", "is 0");
  if (superblock.segment_bytes == 0 || superblock.segment_bytes % kUnitBytes != 0 ||
      superblock.segment_bytes / kUnitBytes > UINT32_MAX / 2) {
    return base::Corrupt("segment_bytes", std::to_string(superblock.segment_bytes));
  }
  if (reserved != 0) return base::Corrupt("reserved", "is not 0");
  return superblock;
}

std::array<std::byte, kLogHeaderBytes> EncodeLogHeader(const LogHeader& header) {
  std::vector<std::byte> bytes;
  base::ByteWriter writer(&bytes);
  WriteEnvelope(MagicOf(header.kind), kLogHeaderBytes, &writer);
  writer.WriteBytes(header.store);
  writer.Write(header.epoch);
  writer.Write(header.number);
  writer.Write(header.salt);
  writer.Write(header.entries);
  writer.Write(header.body_bytes);
  return Sealed<kLogHeaderBytes>(std::move(bytes));
}

absl::StatusOr<LogHeader> DecodeLogHeader(base::ByteView bytes, LogKind kind) {
  if (absl::Status status = CheckEnvelope(bytes, MagicOf(kind), kLogHeaderBytes); !status.ok()) return status;
  base::ByteReader reader(bytes.subspan(kEnvelopeBytes));
  LogHeader header;
  header.kind = kind;
  ReadArray(&reader, header.store);
  reader.Read(&header.epoch);
  reader.Read(&header.number);
  reader.Read(&header.salt);
  reader.Read(&header.entries);
  reader.Read(&header.body_bytes);
  if (header.number == 0) return base::Corrupt("number", "is 0");
  if (kind == LogKind::kJournal && (header.entries != 0 || header.body_bytes != 0)) {
    return base::Corrupt("entries", "of a journal are not counted");
  }
  return header;
}

uint64_t EntryBytes(const LogEntry& entry) {
  return BytesOfEntry(entry.kind, entry.extents.size(), entry.meta.size());
}

void AppendEntry(const LogEntryView& entry, uint64_t salt, uint64_t offset, std::vector<std::byte>* out) {
  const size_t begin = out->size();
  const uint64_t size = BytesOfEntry(entry.kind, entry.extent_count, entry.meta.size());
  base::ByteWriter writer(out);
  writer.Write(static_cast<uint32_t>(size));
  writer.Write(static_cast<uint8_t>(entry.kind));
  writer.Write(static_cast<uint8_t>(entry.extent_count));
  writer.Write(static_cast<uint16_t>(entry.meta.size()));
  writer.Write(uint64_t{0});  // the checksum's place
  writer.Write(entry.sequence);
  writer.WriteBytes(entry.key);
  if (entry.kind == EntryKind::kPut) {
    writer.Write(entry.payload_bytes);
    writer.Write(uint64_t{0});
    for (const Extent& extent : entry.extents()) {
      writer.Write(extent.segment);
      writer.Write(extent.first);
      writer.Write(extent.units);
    }
    writer.WriteBytes(entry.meta);
  }
  out->resize(begin + static_cast<size_t>(size));
  std::byte* const bytes = out->data() + begin;
  base::StoreLittleEndian(bytes + kChecksumAt, ChecksumOf({bytes, static_cast<size_t>(size)}, SeedAt(salt, offset)));
}

void AppendEntry(const LogEntry& entry, uint64_t salt, uint64_t offset, std::vector<std::byte>* out) {
  LogEntryView view;
  view.kind = entry.kind;
  view.key = entry.key;
  view.sequence = entry.sequence;
  view.payload_bytes = entry.payload_bytes;
  view.extent_count = entry.extents.size();
  std::copy(entry.extents.begin(), entry.extents.end(), view.places.begin());
  view.meta = entry.meta;
  AppendEntry(view, salt, offset, out);
}

namespace {

// Without a seed its checksum is not looked at.
absl::Status ParseEntry(base::ByteView bytes, std::optional<uint64_t> seed, LogEntryView* entry) {
  if (bytes.size() < kEntryHeadBytes) return base::Corrupt("entry", "ends before its head");
  const uint32_t size = base::LoadLittleEndian<uint32_t>(bytes.data());
  if (size < kEntryHeadBytes || size > kMaxEntryBytes || size > bytes.size()) {
    return base::Corrupt("entry_bytes", std::to_string(size));
  }
  const base::ByteView whole = bytes.first(size);
  base::ByteReader reader(whole.subspan(sizeof(size)));
  uint8_t kind = 0, extents = 0;
  uint16_t meta_bytes = 0;
  uint64_t checksum = 0;
  reader.Read(&kind);
  reader.Read(&extents);
  reader.Read(&meta_bytes);
  reader.Read(&checksum);
  reader.Read(&entry->sequence);
  ReadArray(&reader, entry->key);
  if (seed.has_value() && ChecksumOf(whole, *seed) != checksum) return base::Corrupt("checksum", "does not match");
  if (kind != static_cast<uint8_t>(EntryKind::kPut) && kind != static_cast<uint8_t>(EntryKind::kRemove)) {
    return base::Corrupt("kind", std::to_string(kind));
  }
  entry->kind = static_cast<EntryKind>(kind);
  entry->payload_bytes = 0;
  entry->extent_count = 0;
  entry->meta = {};
  if (entry->kind == EntryKind::kRemove) {
    if (extents != 0 || meta_bytes != 0) return base::Corrupt("extents", "of a removal");
  } else {
    if (extents > kMaxExtents) return base::Corrupt("extents", std::to_string(extents));
    if (meta_bytes > kMaxEntryMetaBytes) return base::Corrupt("meta_bytes", std::to_string(meta_bytes));
    if (absl::Status status = ReadPut(&reader, extents, meta_bytes, entry); !status.ok()) return status;
  }
  if (size != BytesOfEntry(entry->kind, extents, meta_bytes)) {
    return base::Corrupt("entry_bytes", std::to_string(size));
  }
  const base::ByteView padding = whole.last(reader.remaining());
  if (std::any_of(padding.begin(), padding.end(), [](std::byte byte) { return byte != std::byte{0}; })) {
    return base::Corrupt("padding", "is not 0");
  }
  entry->entry_bytes = size;
  return absl::OkStatus();
}

}  // namespace

absl::Status DecodeEntryView(base::ByteView bytes, uint64_t salt, uint64_t offset, LogEntryView* entry) {
  return ParseEntry(bytes, SeedAt(salt, offset), entry);
}

bool ViewEntryAgain(base::ByteView bytes, LogEntryView* entry) { return ParseEntry(bytes, std::nullopt, entry).ok(); }

bool LooksLikeEntry(base::ByteView bytes) {
  if (bytes.size() < kEntryHeadBytes) return false;
  base::ByteReader reader(bytes);
  uint32_t size = 0;
  uint8_t kind = 0, extents = 0;
  uint16_t meta_bytes = 0;
  reader.Read(&size);
  reader.Read(&kind);
  reader.Read(&extents);
  reader.Read(&meta_bytes);
  const bool put = kind == static_cast<uint8_t>(EntryKind::kPut);
  const bool empty = kind == static_cast<uint8_t>(EntryKind::kRemove) && extents == 0 && meta_bytes == 0;
  if (!put && !empty) return false;
  if (extents > kMaxExtents || meta_bytes > kMaxEntryMetaBytes || size > bytes.size()) return false;
  return size == BytesOfEntry(static_cast<EntryKind>(kind), extents, meta_bytes);
}

absl::StatusOr<LogEntry> DecodeEntry(base::ByteView bytes, uint64_t salt, uint64_t offset, uint64_t* entry_bytes) {
  LogEntryView view;
  if (absl::Status status = DecodeEntryView(bytes, salt, offset, &view); !status.ok()) return status;
  *entry_bytes = view.entry_bytes;
  LogEntry entry;
  entry.kind = view.kind;
  entry.key = view.key;
  entry.sequence = view.sequence;
  entry.payload_bytes = view.payload_bytes;
  entry.extents.assign(view.extents().begin(), view.extents().end());
  entry.meta.assign(view.meta.begin(), view.meta.end());
  return entry;
}

}  // namespace kvstrata::core::format
