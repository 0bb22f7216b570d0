// SPDX-License-Identifier: Apache-2.0
// Journals and checkpoints as files: their names, making one, appending to one, reading one to its end, and one entry
// of it again. Knows nothing of what the entries mean together.
//
// Thread rule: all functions on any thread at once; a LogWriter, a LogReader on one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "lib/format/segment.h"
#include "lib/storage/descriptor.h"
#include "lib/storage/directory.h"
#include "lib/storage/segment/bad_blocks.h"

namespace kvstrata::core::storage {

// At least four digits.
std::string FileNumber(uint64_t number);
std::string JournalName(uint64_t number);
// `copy`: 0 or 1.
std::string CheckpointName(uint32_t copy);
// Nothing when it is no journal's name.
std::optional<uint64_t> JournalOfName(std::string_view name);

// In which a reader looks for the next intact entry, of a log in all: many times what a drive loses at once, and so
// little that bytes made to look like entries, each 8 of which want a checksum of kMaxEntryBytes, hold it up by a
// second at most. Where a drive cannot read as much, it is the drive that is given up, not its blocks.
inline constexpr uint64_t kMaxDamageBytes = 4u << 20;

// An open log. Shared, so that a listing can go on reading one that is replaced meanwhile.
struct LogFile {
  std::string name;
  Descriptor descriptor;
  format::LogHeader header;
  std::unique_ptr<BadBlocks> bad = std::make_unique<BadBlocks>(kMaxDamageBytes / format::kLogBlockBytes);
};
using Log = std::shared_ptr<const LogFile>;

// Makes the file, which must not exist, with nothing in it; a journal gets its header and is made durable, a checkpoint
// gets it in the end (FinishCheckpoint).
absl::StatusOr<Log> MakeLog(const Directory& directory, const std::string& name, const format::LogHeader& header);
// Writes the header of a complete checkpoint, whose entries are durable, and makes it durable.
absl::Status FinishCheckpoint(const Directory& directory, const LogFile& log, const format::LogHeader& header);
// kNotFound when there is no such file, kFormatTooNew, or kCorrupt when its header is not intact or another store's.
absl::StatusOr<Log> OpenLog(const Directory& directory, const std::string& name, format::LogKind kind,
                            const format::StoreId& store);
// Makes the names in the folder durable.
absl::Status SyncFolder(const Directory& directory);

class LogImage;

// The entries of a log, one after another, and single ones out of order: reads ahead, so that neighbours are cheap.
class LogReader {
 public:
  // Read at once: large enough that reading a log costs as much as copying it.
  static constexpr size_t kWindowBytes = 256 * 1024;
  // `image`: the log's, as far as it has been read already, or null. `window_bytes`: an entry's most, at least.
  // `image`, if there is one and it is of this log, has what can be read already.
  LogReader(const Directory& directory, Log log, std::shared_ptr<LogImage> image = nullptr,
            size_t window_bytes = kWindowBytes);

  // From now on a block that the drive refuses to read is one of the log's bad ones, and bytes that are no entry stand
  // in its place. Otherwise it is an error, unless it was one of them before. Only for who opens the log: nobody else
  // may read it meanwhile.
  void GiveUpUnreadable() { gives_up_ = true; }
  // False where no intact entry begins at `offset`: a journal's end, or damage. Its meta stays until the next call.
  // An error only where the file could not be read.
  absl::StatusOr<bool> ReadAt(uint64_t offset, format::LogEntryView* entry);
  // The same of an entry that a reader of this image has found before: from there it comes without being proven again.
  absl::StatusOr<bool> ReadAgain(uint64_t offset, format::LogEntryView* entry);
  // The entry at `*offset` or, where a journal's flush ended there, at the next block, or else the first one behind the
  // damage; `*at` is where. `*offset` moves behind it, or stays at the end, where there is none: false. `*torn` is set
  // when something that is no entry lay in between. `live`: a journal whose writer may be adding to it; what looks like
  // damage may be on its way there, and nothing behind it is looked for.
  absl::StatusOr<bool> Next(bool live, uint64_t* offset, uint64_t* at, bool* torn, format::LogEntryView* entry);
  // Whether there are bytes other than 0 between `offset`, where no intact entry begins, and the end of its block:
  // something was cut off there.
  bool TornAt(uint64_t offset);
  const Log& log() const { return log_; }

 private:
  // Of a journal: at the block behind `offset`, where no entry begins.
  absl::StatusOr<bool> ReadNextFlush(bool live, uint64_t offset, uint64_t* at, bool* torn, format::LogEntryView* entry);
  absl::StatusOr<bool> ReadBehindDamage(uint64_t offset, uint64_t* at, format::LogEntryView* entry);
  // Up to `bytes` bytes from `offset` on; fewer at the end of the file.
  absl::StatusOr<base::ByteView> View(uint64_t offset, size_t bytes);
  // From the block of `offset` on.
  absl::Status FillWindow(uint64_t offset);
  int64_t ReadBlock(std::byte* at, uint64_t offset);

  const Directory directory_;
  const Log log_;
  const std::shared_ptr<LogImage> image_;
  const size_t window_bytes_;
  uint64_t damage_left_ = kMaxDamageBytes;  // that may still be passed over
  bool gives_up_ = false;
  uint64_t window_at_ = 0;
  // Whole blocks on their boundaries, as a read past the page cache wants them.
  struct alignas(format::kLogBlockBytes) Block {
    std::byte bytes[format::kLogBlockBytes];
  };
  std::vector<Block> window_;
  size_t window_filled_ = 0;
};

// Collects entries and writes them in large pieces.
class LogWriter {
 public:
  LogWriter(const Directory& directory, Log log, uint64_t end)
      : directory_(directory), log_(std::move(log)), end_(end) {}

  // What follows is one flush's: see kLogBlockBytes. Nothing is buffered.
  void StartBlock();
  // Where the entry will be.
  template <typename Entry>
  uint64_t Append(const Entry& entry) {
    const uint64_t offset = end();
    format::AppendEntry(entry, log_->header.salt, offset, &buffer_);
    return offset;
  }
  // What was appended and is not in the file yet.
  uint64_t buffered() const { return buffer_.size(); }
  void Forget() { buffer_.clear(); }
  // Where the next entry would be.
  uint64_t end() const { return end_ + buffer_.size(); }
  // Reserves space on the disk for what is buffered, where the file system can: so a full disk is found out before
  // anything was written.
  absl::Status Reserve();
  absl::Status Write();
  absl::Status Sync();
  const Log& log() const { return log_; }

 private:
  const Directory directory_;
  const Log log_;
  uint64_t end_;
  uint64_t reserved_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace kvstrata::core::storage
