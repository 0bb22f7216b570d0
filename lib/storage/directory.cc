// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/directory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "lib/base/copy.h"
#include "lib/base/status.h"

namespace kvstrata::core::storage {

absl::Status ReadError(const Directory& directory, const char* operation, const char* name, int64_t result) {
  const int error = static_cast<int>(-result);
  const std::string file = directory.path + "/" + name;
  if (error == ENOMEM) return base::IoError(operation, file, error);
  const std::string reason = std::generic_category().message(error);
  return base::MakeStatus(base::Code::kIo, operation, file + ": " + reason, error);
}

absl::Status WriteError(const Directory& directory, const char* operation, const char* name, int64_t result) {
  if (result == -ENOENT) return ReadError(directory, operation, name, result);
  return base::IoError(operation, directory.path + "/" + name, static_cast<int>(-result));
}

absl::Status PlaceError(const char* operation, const std::string& path, int error) {
  if (error != ENOENT) return base::IoError(operation, path, error);
  return base::MakeStatus(base::Code::kIo, operation, path + ": there is no such place", error);
}

absl::Status MakeFolders(Os& os, const std::string& path, uint32_t* made) {
  std::string refused;  // the first folder that is not there and could not be made, as far as can be told
  int error = 0;
  *made = 0;
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    const int result = os.MkdirAt(AT_FDCWD, part.c_str(), kFolderMode);
    if (result >= 0) {
      os.ChmodAt(AT_FDCWD, part.c_str(), kFolderMode);  // whatever the umask took away
      ++*made;
    } else if (result != -EEXIST && error == 0) {
      refused = part;
      error = -result;
    }
    if (end != std::string::npos || result >= 0 || result == -EEXIST) continue;
    // Refusals above do not matter where the folder was there all the same; below one that was not, nothing can be.
    return result == -ENOENT ? PlaceError("make", refused, error) : PlaceError("make", path, -result);
  }
  return absl::OkStatus();
}

std::span<const iovec> Gather::Next(std::array<iovec, kBatch>* batch, uint64_t limit) const {
  size_t count = 0;
  size_t skip = skip_;
  for (size_t i = 0; i < pieces_.size() && count < batch->size() && limit > 0; ++i) {
    base::ByteView rest = pieces_[i].subspan(skip);
    skip = 0;
    if (rest.empty()) continue;
    rest = rest.first(static_cast<size_t>(std::min<uint64_t>(rest.size(), limit)));
    limit -= rest.size();
    (*batch)[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
  }
  return std::span(*batch).first(count);
}

void Gather::Advance(uint64_t written) {
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

base::ByteView Gather::Here(uint64_t limit) const {
  size_t skip = skip_;
  for (const base::ByteView piece : pieces_) {
    const base::ByteView rest = piece.subspan(skip);
    skip = 0;
    if (!rest.empty()) return rest.first(static_cast<size_t>(std::min<uint64_t>(rest.size(), limit)));
  }
  return {};
}

size_t Gather::CopyTo(base::MutableBytes to) {
  size_t copied = 0;
  while (copied < to.size() && !pieces_.empty()) {
    const base::ByteView rest = pieces_[0].subspan(skip_);
    const size_t count = std::min(rest.size(), to.size() - copied);
    base::CopyBytes(to.data() + copied, rest.data(), count);
    copied += count;
    skip_ += count;
    if (count < rest.size()) break;
    skip_ = 0;
    pieces_ = pieces_.subspan(1);
  }
  return copied;
}

absl::Status WritePieces(const Directory& directory, int fd, const char* name, uint64_t bytes, Gather* pieces,
                         uint64_t* offset) {
  std::array<iovec, Gather::kBatch> space;
  while (bytes > 0) {
    const std::span<const iovec> batch = pieces->Next(&space, bytes);
    if (batch.empty()) break;
    int64_t result = directory.os.Pwritev(fd, batch, *offset);
    if (result == 0) result = -EIO;  // no progress and no reason: not to be tried for ever
    if (result < 0) return WriteError(directory, "write", name, result);
    const uint64_t written = static_cast<uint64_t>(result);
    *offset += written;
    bytes -= std::min(bytes, written);
    pieces->Advance(written);
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

}  // namespace kvstrata::core::storage
