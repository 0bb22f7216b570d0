// SPDX-License-Identifier: Apache-2.0
#include "lib/format/file_record.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/checked.h"
#include "lib/base/checksum.h"
#include "lib/base/status.h"

namespace kvstrata::core::format {
namespace {

constexpr size_t kChecksummedBytes = kFileRecordHeaderBytes - sizeof(uint64_t);

// Everything in the header that is not in FileRecordHeader.
struct Envelope {
  base::ByteView magic;
  uint32_t version = 0;
  uint32_t header_bytes = 0;
  uint32_t reserved = 0;
  uint64_t header_checksum = 0;
};

bool Parse(base::ByteView start, Envelope* envelope, FileRecordHeader* header) {
  base::ByteReader reader(start);
  base::ByteView key;
  reader.ReadBytes(kFileRecordMagic.size(), &envelope->magic);
  reader.Read(&envelope->version);
  reader.Read(&envelope->header_bytes);
  reader.ReadBytes(header->key.size(), &key);
  reader.Read(&header->payload_bytes);
  reader.Read(&header->meta_bytes);
  reader.Read(&envelope->reserved);
  reader.Read(&header->sequence);
  reader.Read(&header->payload_checksum);
  reader.Read(&header->meta_checksum);
  if (!reader.Read(&envelope->header_checksum)) return false;
  std::copy(key.begin(), key.end(), header->key.begin());
  return true;
}

absl::Status CheckSizes(const FileRecordHeader& header, uint64_t file_bytes) {
  if (header.meta_bytes > kFileRecordMaxMetaBytes) {
    return base::Corrupt("meta_bytes", std::to_string(header.meta_bytes) + ", at most 4096");
  }
  const std::optional<uint64_t> whole = base::CheckedAdd(header.PayloadOffset(), header.payload_bytes);
  if (!whole.has_value() || *whole != file_bytes) {
    return base::Corrupt("payload_bytes", std::to_string(header.payload_bytes) + " and " +
                                              std::to_string(header.meta_bytes) + " of meta do not make a file of " +
                                              std::to_string(file_bytes) + " bytes");
  }
  return absl::OkStatus();
}

}  // namespace

std::array<std::byte, kFileRecordHeaderBytes> EncodeFileRecordHeader(const FileRecordHeader& header) {
  std::vector<std::byte> bytes;
  bytes.reserve(kFileRecordHeaderBytes);
  base::ByteWriter writer(&bytes);
  writer.WriteBytes(kFileRecordMagic);
  writer.Write(kFileRecordVersion);
  writer.Write(static_cast<uint32_t>(kFileRecordHeaderBytes));
  writer.WriteBytes(header.key);
  writer.Write(header.payload_bytes);
  writer.Write(header.meta_bytes);
  writer.Write(uint32_t{0});
  writer.Write(header.sequence);
  writer.Write(header.payload_checksum);
  writer.Write(header.meta_checksum);
  writer.Write(base::Checksum(bytes, header.sequence));
  std::array<std::byte, kFileRecordHeaderBytes> out;
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

absl::StatusOr<FileRecordHeader> DecodeFileRecordHeader(base::ByteView start, uint64_t file_bytes,
                                                        const std::array<std::byte, 32>& key) {
  Envelope envelope;
  FileRecordHeader header;
  if (!Parse(start, &envelope, &header)) {
    return base::Corrupt("header", "the file ends after " + std::to_string(start.size()) + " bytes");
  }
  if (!std::equal(envelope.magic.begin(), envelope.magic.end(), kFileRecordMagic.begin())) {
    return base::Corrupt("magic", "not a record file");
  }
  if (envelope.version > kFileRecordVersion) {
    return base::MakeStatus(base::Code::kFormatTooNew, "version",
                            std::to_string(envelope.version) + ", this build reads up to 1");
  }
  if (envelope.version != kFileRecordVersion) return base::Corrupt("version", std::to_string(envelope.version));
  if (envelope.header_bytes != kFileRecordHeaderBytes) {
    return base::Corrupt("header_bytes", std::to_string(envelope.header_bytes) + " instead of 96");
  }
  if (absl::Status status = CheckSizes(header, file_bytes); !status.ok()) return status;
  if (envelope.reserved != 0) return base::Corrupt("reserved", "is not 0");
  const bool intact = base::Checksum(start.first(kChecksummedBytes), header.sequence) == envelope.header_checksum;
  if (header.key != key) {
    if (!intact) return base::Corrupt("key", "is not the one of the file's name");
    return base::MakeStatus(base::Code::kNotFound, "key", "the file holds another key's record");
  }
  if (!intact) return base::Corrupt("header_checksum", "does not match");
  return header;
}

}  // namespace kvstrata::core::format
