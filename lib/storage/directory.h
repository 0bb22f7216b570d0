// SPDX-License-Identifier: Apache-2.0
// A store's directory and what is done to files in it: made with the folders above it, errors that name the file at
// fault, reads and writes that go on until all is done.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/storage/os.h"

namespace kvstrata::core::storage {

inline constexpr mode_t kFolderMode = 0700;
inline constexpr mode_t kFileMode = 0600;

// Paths are relative to `root`, which is open; `path` is for messages.
struct Directory {
  Os& os;
  int root;
  const std::string& path;
};

// A failed call as a status; `result` is the negative errno. Reading never says kReadOnly, which is about the store;
// nor does either say kNotFound, which is about a record.
absl::Status ReadError(const Directory& directory, const char* operation, const char* name, int64_t result);
absl::Status WriteError(const Directory& directory, const char* operation, const char* name, int64_t result);

// An error about the place of a store that is to be made. kNotFound would say that there is none to read.
absl::Status PlaceError(const char* operation, const std::string& path, int error);

// Makes missing folders of `path` one by one from the top; an existing one keeps its mode. `*made` is how many were
// made.
absl::Status MakeFolders(Os& os, const std::string& path, uint32_t* made);

// Pieces of memory that are written back to back, and how far that has come; a write may end anywhere.
class Gather {
 public:
  // `pieces` outlive this.
  explicit Gather(std::span<const base::ByteView> pieces) : pieces_(pieces) {}

  // Pieces handed to one write.
  static constexpr size_t kBatch = 64;
  // The next bytes to write, `limit` (at least 1) at most; empty at the end.
  std::span<const iovec> Next(std::array<iovec, kBatch>* batch, uint64_t limit) const;
  void Advance(uint64_t written);
  // The next bytes that lie in one piece, `limit` at most; empty at the end.
  base::ByteView Here(uint64_t limit) const;
  // Copies the next bytes, as many as `to` takes or are left, and advances behind them; how many.
  size_t CopyTo(base::MutableBytes to);

 private:
  std::span<const base::ByteView> pieces_;
  size_t skip_ = 0;  // bytes of pieces_[0] that are written
};

// Writes the next `bytes` of the pieces, or all that are left where that is less. `*offset` is where they go, and
// afterwards where the next byte would.
absl::Status WritePieces(const Directory& directory, int fd, const char* name, uint64_t bytes, Gather* pieces,
                         uint64_t* offset);
// kCorrupt when the file ends before.
absl::Status ReadFully(const Directory& directory, int fd, const char* name, base::MutableBytes to, uint64_t offset);

}  // namespace kvstrata::core::storage
