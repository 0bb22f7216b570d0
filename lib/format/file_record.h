// SPDX-License-Identifier: Apache-2.0
// The header of a record file, as FORMAT.md section "Record files" describes it: encoding, and a decoder that believes
// nothing.
//
// Invariants:
//   I1. Decoding reads inside the given bytes only, whatever they hold.
//   I2. Each header field that can be wrong by itself is reported under its own name; whatever remains, under
//       "header_checksum".
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"

namespace kvstrata::core::format {

// Ends in a byte that no text encoding uses and one that a text-mode copy would change.
inline constexpr std::array<std::byte, 8> kFileRecordMagic = {std::byte{'K'},  std::byte{'V'}, std::byte{'S'},
                                                              std::byte{'R'},  std::byte{'E'}, std::byte{'C'},
                                                              std::byte{0xFF}, std::byte{'\n'}};
inline constexpr uint32_t kFileRecordVersion = 1;
// magic 8, version 4, header size 4, key 32, payload size 8, meta size 4, reserved 4, sequence 8, three checksums 24.
inline constexpr size_t kFileRecordHeaderBytes = 96;
inline constexpr uint32_t kFileRecordMaxMetaBytes = 4096;

struct FileRecordHeader {
  std::array<std::byte, 32> key{};
  uint64_t payload_bytes = 0;
  uint32_t meta_bytes = 0;
  // Of this writing of the record, never used again; it seeds all three checksums.
  uint64_t sequence = 0;
  uint64_t payload_checksum = 0;
  uint64_t meta_checksum = 0;

  uint64_t PayloadOffset() const { return kFileRecordHeaderBytes + meta_bytes; }
};

std::array<std::byte, kFileRecordHeaderBytes> EncodeFileRecordHeader(const FileRecordHeader& header);

// `start` is the file's beginning (more than the header does no harm), `file_bytes` its whole size, `key` the one that
// its name stands for. kFormatTooNew for a later version, kNotFound (field "key") for an intact record of another key,
// else kCorrupt.
absl::StatusOr<FileRecordHeader> DecodeFileRecordHeader(base::ByteView start, uint64_t file_bytes,
                                                        const std::array<std::byte, 32>& key);

}  // namespace kvstrata::core::format
