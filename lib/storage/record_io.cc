// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/record_io.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/storage/record_names.h"
#include "lib/storage/request_check.h"

namespace kvstrata::core::storage {
namespace {

// Not through a link, and not waiting for the other end of a pipe: whatever lies there was not made by us.
constexpr int kReadFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;

}  // namespace

absl::Status WriteRecordFile(const Directory& directory, const char* name, const Put& put,
                             const format::FileRecordHeader& header, bool sync) {
  Os& os = directory.os;
  Descriptor file(os, os.OpenAt(directory.root, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, kFileMode));
  if (!file.ok()) return WriteError(directory, "make", name, file.get());
  // A umask may have taken the owner's bits away.
  if (const int result = os.Fchmod(file.get(), kFileMode); result < 0) {
    return WriteError(directory, "set the mode of", name, result);
  }
  const std::array<std::byte, format::kFileRecordHeaderBytes> head = format::EncodeFileRecordHeader(header);
  const std::array<base::ByteView, 2> front = {head, put.meta};
  uint64_t offset = 0;
  Gather head_pieces(front);
  Gather parts(put.parts);
  absl::Status status = WritePieces(directory, file.get(), name, UINT64_MAX, &head_pieces, &offset);
  if (status.ok()) status = WritePieces(directory, file.get(), name, UINT64_MAX, &parts, &offset);
  if (!status.ok()) return status;
  if (sync) {
    if (const int result = os.Fsync(file.get()); result < 0) return WriteError(directory, "flush", name, result);
  }
  // Some file systems report a write that failed only here.
  if (const int result = file.Close(); result < 0) return WriteError(directory, "close", name, result);
  return absl::OkStatus();
}

absl::StatusOr<OpenRecord> OpenRecordFile(const Directory& directory, const Key& key) {
  const Name name = RecordName(key);
  Descriptor file(directory.os, directory.os.OpenAt(directory.root, name.data(), kReadFlags, 0));
  if (file.get() == -ENOENT) return base::MakeStatus(base::Code::kNotFound, "key", "no such record");
  if (file.get() == -ELOOP) return base::MakeStatus(base::Code::kNotFound, "key", "its name is a link");
  if (!file.ok()) return ReadError(directory, "open", name.data(), file.get());
  struct stat info {};
  if (const int result = directory.os.Fstat(file.get(), &info); result < 0) {
    return ReadError(directory, "stat", name.data(), result);
  }
  if (!S_ISREG(info.st_mode)) return base::MakeStatus(base::Code::kNotFound, "key", "its name is not a regular file");
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  std::array<std::byte, format::kFileRecordHeaderBytes> space;
  const base::MutableBytes start = std::span(space).first(std::min<uint64_t>(file_bytes, space.size()));
  if (absl::Status status = ReadFully(directory, file.get(), name.data(), start, 0); !status.ok()) return status;
  absl::StatusOr<format::FileRecordHeader> header = format::DecodeFileRecordHeader(start, file_bytes, key.bytes);
  if (!header.ok()) return header.status();
  return OpenRecord{std::move(file), *header};
}

absl::StatusOr<std::vector<std::byte>> ReadMeta(const Directory& directory, const OpenRecord& record) {
  std::vector<std::byte> meta(record.header.meta_bytes);
  absl::Status status = ReadFully(directory, record.descriptor.get(), RecordName(Key{record.header.key}).data(), meta,
                                  format::kFileRecordHeaderBytes);
  if (!status.ok()) return status;
  if (base::Checksum(meta, record.header.sequence) != record.header.meta_checksum) {
    return base::Corrupt("meta_checksum", "does not match");
  }
  return meta;
}

absl::Status ReadPayload(const Directory& directory, const OpenRecord& record, uint64_t offset, base::MutableBytes to) {
  const format::FileRecordHeader& header = record.header;
  if (absl::Status status = CheckRange(offset, to.size(), header.payload_bytes); !status.ok()) return status;
  absl::Status status = ReadFully(directory, record.descriptor.get(), RecordName(Key{header.key}).data(), to,
                                  header.PayloadOffset() + offset);
  if (!status.ok()) return status;
  if (to.size() == header.payload_bytes && base::Checksum(to, header.sequence) != header.payload_checksum) {
    return base::Corrupt("payload_checksum", "does not match");
  }
  return absl::OkStatus();
}

}  // namespace kvstrata::core::storage
