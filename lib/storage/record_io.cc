// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/record_io.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/storage/record_names.h"
#include "lib/storage/request_check.h"

namespace kvstrata::core::storage {
namespace {

// Pieces handed to one write.
constexpr size_t kWriteBatch = 64;
constexpr mode_t kFileMode = 0600;
// Not through a link, and not waiting for the other end of a pipe: whatever lies there was not made by us.
constexpr int kReadFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;

// What of a list of pieces is still to be written; a write may end anywhere.
class Remainder {
 public:
  explicit Remainder(std::span<const base::ByteView> pieces) : pieces_(pieces) {}

  // The next bytes to write; empty at the end.
  std::span<const iovec> Batch(std::array<iovec, kWriteBatch>* batch) const {
    size_t count = 0;
    size_t skip = skip_;
    for (size_t i = 0; i < pieces_.size() && count < batch->size(); ++i) {
      const base::ByteView rest = pieces_[i].subspan(skip);
      skip = 0;
      if (!rest.empty()) (*batch)[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
    }
    return std::span(*batch).first(count);
  }

  void Advance(uint64_t written) {
    while (written > 0) {
      const uint64_t left = pieces_[0].size() - skip_;
      if (written < left) {
        skip_ += static_cast<size_t>(written);
        return;
      }
      written -= left;
      skip_ = 0;
      pieces_ = pieces_.subspan(1);
    }
  }

 private:
  std::span<const base::ByteView> pieces_;
  size_t skip_ = 0;  // bytes of pieces_[0] that are written
};

// `*offset` is where the first piece goes, and afterwards where the next one would.
absl::Status WritePieces(const Directory& directory, int fd, const char* name, std::span<const base::ByteView> pieces,
                         uint64_t* offset) {
  Remainder remainder(pieces);
  std::array<iovec, kWriteBatch> space;
  for (auto batch = remainder.Batch(&space); !batch.empty(); batch = remainder.Batch(&space)) {
    int64_t result = directory.os.Pwritev(fd, batch, *offset);
    if (result == 0) result = -EIO;  // no progress and no reason: not to be tried for ever
    if (result < 0) return WriteError(directory, "write", name, result);
    *offset += static_cast<uint64_t>(result);
    remainder.Advance(static_cast<uint64_t>(result));
  }
  return absl::OkStatus();
}

absl::Status ReadFully(const Directory& directory, int fd, const char* name, base::MutableBytes to, uint64_t offset) {
  while (!to.empty()) {
    const int64_t result = directory.os.Pread(fd, to, offset);
    if (result < 0) return ReadError(directory, "read", name, result);
    if (result == 0) return base::Corrupt("file", std::string(name) + " ends at byte " + std::to_string(offset));
    to = to.subspan(static_cast<size_t>(result));
    offset += static_cast<uint64_t>(result);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadError(const Directory& directory, const char* operation, const char* name, int64_t result) {
  const int error = static_cast<int>(-result);
  if (error == ENOMEM) return base::IoError(operation, directory.path + "/" + name, error);
  return base::MakeStatus(base::Code::kIo, operation, directory.path + "/" + name + ": " + std::strerror(error), error);
}

absl::Status WriteError(const Directory& directory, const char* operation, const char* name, int64_t result) {
  if (result == -ENOENT) return ReadError(directory, operation, name, result);
  return base::IoError(operation, directory.path + "/" + name, static_cast<int>(-result));
}

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
  absl::Status status = WritePieces(directory, file.get(), name, front, &offset);
  if (status.ok()) status = WritePieces(directory, file.get(), name, put.parts, &offset);
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
