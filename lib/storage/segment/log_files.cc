// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/log_files.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "lib/base/status.h"
#include "lib/storage/segment/log_image.h"

namespace kvstrata::core::storage {
namespace {

constexpr char kJournalStart[] = "journal-";
constexpr char kJournalEnd[] = ".log";
// As printed: four digits, or more without a leading zero.
constexpr size_t kDigits = 4;
// The journal's space is reserved this far ahead. Its file then keeps its length, which a flush need not write.
constexpr uint64_t kReserveBytes = 256 * 1024;
// What stands for bytes that cannot be read: no entry, and no end of a flush either, which zeros would be.
constexpr std::byte kNoEntry{0xFF};

absl::Status WriteHeader(const Directory& directory, const LogFile& log, const format::LogHeader& header) {
  const auto bytes = format::EncodeLogHeader(header);
  const base::ByteView piece = bytes;
  Gather gather({&piece, 1});
  uint64_t offset = 0;
  const char* name = log.name.c_str();
  absl::Status status = WritePieces(directory, log.descriptor.get(), name, piece.size(), &gather, &offset);
  if (!status.ok()) return status;
  const int result = directory.os.Fsync(log.descriptor.get());
  return result < 0 ? WriteError(directory, "flush", name, result) : absl::OkStatus();
}

uint64_t BlockAtOrBehind(uint64_t offset) {
  return (offset + format::kLogBlockBytes - 1) / format::kLogBlockBytes * format::kLogBlockBytes;
}

// Where it can be had, and the name is still this file's.
void OpenDirect(const Directory& directory, const LogFile& log) {
  const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
  Descriptor file(directory.os, directory.os.OpenAt(directory.root, log.name.c_str(), flags, 0));
  struct stat other {};
  struct stat same {};
  const bool known =
      file.ok() && directory.os.Fstat(file.get(), &other) >= 0 && directory.os.Fstat(log.descriptor.get(), &same) >= 0;
  if (!known || other.st_dev != same.st_dev || other.st_ino != same.st_ino) return;
  if (directory.os.SetDirect(file.get(), true) >= 0) log.bad->SetDirect(std::move(file));
}

}  // namespace

std::string FileNumber(uint64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits;
}

std::string JournalName(uint64_t number) { return kJournalStart + FileNumber(number) + kJournalEnd; }

std::string CheckpointName(uint32_t copy) { return copy == 0 ? "checkpoint-a.ckp" : "checkpoint-b.ckp"; }

std::optional<uint64_t> JournalOfName(std::string_view name) {
  if (!name.starts_with(kJournalStart) || !name.ends_with(kJournalEnd)) return std::nullopt;
  name.remove_prefix(sizeof(kJournalStart) - 1);
  name.remove_suffix(sizeof(kJournalEnd) - 1);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number == 0) return std::nullopt;
  if (name.size() < kDigits || (name.size() > kDigits && name[0] == '0')) return std::nullopt;
  return number;
}

absl::StatusOr<Log> MakeLog(const Directory& directory, const std::string& name, const format::LogHeader& header) {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW;
  Descriptor file(directory.os, directory.os.OpenAt(directory.root, name.c_str(), flags, kFileMode));
  if (!file.ok()) return WriteError(directory, "make", name.c_str(), file.get());
  auto log = std::make_shared<LogFile>(LogFile{name, std::move(file), header});
  const int result = directory.os.Fchmod(log->descriptor.get(), kFileMode);
  absl::Status status = result < 0 ? WriteError(directory, "set the mode of", name.c_str(), result) : absl::OkStatus();
  if (status.ok() && header.kind == format::LogKind::kJournal) {
    status = WriteHeader(directory, *log, header);
    if (status.ok()) status = SyncFolder(directory);
  }
  if (status.ok()) return Log(std::move(log));
  // Without an entry in it, it does no harm where it cannot be removed.
  directory.os.UnlinkAt(directory.root, name.c_str());
  return status;
}

absl::Status FinishCheckpoint(const Directory& directory, const LogFile& log, const format::LogHeader& header) {
  return WriteHeader(directory, log, header);
}

absl::StatusOr<Log> OpenLog(const Directory& directory, const std::string& name, format::LogKind kind,
                            const format::StoreId& store) {
  Descriptor file(directory.os,
                  directory.os.OpenAt(directory.root, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0));
  if (file.get() == -ENOENT) return base::MakeStatus(base::Code::kNotFound, "log", "there is no " + name);
  if (!file.ok()) return ReadError(directory, "open", name.c_str(), file.get());
  alignas(format::kLogBlockBytes) std::array<std::byte, format::kLogBlockBytes> block;
  const base::MutableBytes bytes = base::MutableBytes(block).first(format::kLogHeaderBytes);
  absl::Status read = ReadFully(directory, file.get(), name.c_str(), bytes, 0);
  if (base::NativeCodeOf(read) == EIO && directory.os.SetDirect(file.get(), true) >= 0) {
    // Without what the page cache reads beside it.
    if (directory.os.Pread(file.get(), block, 0) >= static_cast<int64_t>(bytes.size())) read = absl::OkStatus();
    directory.os.SetDirect(file.get(), false);
  }
  if (base::NativeCodeOf(read) == EIO) read = ReadFully(directory, file.get(), name.c_str(), bytes, 0);
  if (!read.ok()) return read;
  const absl::StatusOr<format::LogHeader> header = format::DecodeLogHeader(bytes, kind);
  if (!header.ok()) return header.status();
  if (header->store != store) return base::Corrupt("store", name + " is of another store");
  return Log(std::make_shared<LogFile>(LogFile{name, std::move(file), *header}));
}

absl::Status SyncFolder(const Directory& directory) {
  const int result = directory.os.Fsync(directory.root);
  return result < 0 ? WriteError(directory, "flush", ".", result) : absl::OkStatus();
}

// ---- Reading -------------------------------------------------------------------------------------------------------

// A log's number, by which images are kept, goes to another once a checkpoint has replaced it.
LogReader::LogReader(const Directory& directory, Log log, std::shared_ptr<LogImage> image, size_t window_bytes)
    : directory_(directory),
      log_(std::move(log)),
      image_(image != nullptr && image->log() == log_ ? std::move(image) : nullptr),
      window_bytes_(window_bytes) {}

absl::StatusOr<base::ByteView> LogReader::View(uint64_t offset, size_t bytes) {
  if (image_ != nullptr) {
    if (const std::optional<base::ByteView> view = image_->View(offset, bytes); view.has_value()) return *view;
  }
  const uint64_t end = window_at_ + window_filled_;
  if (offset < window_at_ || offset > end || bytes > end - offset) {
    if (absl::Status status = FillWindow(offset); !status.ok()) return status;
  }
  const base::ByteView window(window_.empty() ? nullptr : window_[0].bytes, window_filled_);
  const base::ByteView rest = window.subspan(std::min<size_t>(offset - window_at_, window.size()));
  return rest.first(std::min(bytes, rest.size()));
}

// At once; where the drive refuses, block by block, so that no more is lost than what it cannot read.
absl::Status LogReader::FillWindow(uint64_t offset) {
  // Room for what lies before `offset` in its block.
  window_.resize(window_bytes_ / format::kLogBlockBytes + 2);
  window_at_ = offset - offset % format::kLogBlockBytes;
  window_filled_ = 0;
  const base::MutableBytes window(window_[0].bytes, window_.size() * sizeof(Block));
  const uint64_t first = window_at_ / format::kLogBlockBytes;
  bool by_block = log_->bad->HasWithin(first, first + window_.size() - 1);
  while (window_filled_ < window.size()) {
    const uint64_t at = window_at_ + window_filled_;
    const base::MutableBytes rest = window.subspan(window_filled_);
    const int64_t result =
        by_block ? ReadBlock(rest.data(), at) : directory_.os.Pread(log_->descriptor.get(), rest, at);
    if (result == -EIO && !by_block && (gives_up_ || log_->bad->count() > 0)) {
      if (log_->bad->count() == 0) OpenDirect(directory_, *log_);
      by_block = true;
      continue;
    }
    if (result < 0) {
      window_filled_ = 0;
      return ReadError(directory_, "read", log_->name.c_str(), result);
    }
    if (result == 0) break;
    window_filled_ += static_cast<size_t>(result);
  }
  return absl::OkStatus();
}

// What `at` points to and the rest of its block, all of which is read: past the page cache there are only whole blocks.
// How many bytes from `at` on are there, or a negative errno.
int64_t LogReader::ReadBlock(std::byte* at, uint64_t offset) {
  const uint64_t block = offset / format::kLogBlockBytes;
  const auto before = static_cast<int64_t>(offset % format::kLogBlockBytes);  // where a read fell short
  const base::MutableBytes to(at - before, format::kLogBlockBytes);
  int64_t result = -EIO;
  if (!log_->bad->Has(block)) {
    const std::optional<Descriptor>& direct = log_->bad->direct();
    if (direct.has_value()) result = directory_.os.Pread(direct->get(), to, offset - before);
    if (result < 0) result = directory_.os.Pread(log_->descriptor.get(), to, offset - before);
  }
  const bool given_up = result == -EIO && (log_->bad->Has(block) || (gives_up_ && log_->bad->Add(block)));
  if (given_up) {
    std::fill(to.begin(), to.end(), kNoEntry);
    result = static_cast<int64_t>(to.size());
  }
  return result < 0 ? result : std::max<int64_t>(result - before, 0);
}

absl::StatusOr<bool> LogReader::ReadAt(uint64_t offset, format::LogEntryView* entry) {
  const absl::StatusOr<base::ByteView> view = View(offset, format::kMaxEntryBytes);
  if (!view.ok()) return view.status();
  return format::DecodeEntryView(*view, log_->header.salt, offset, entry).ok();
}

absl::StatusOr<bool> LogReader::ReadAgain(uint64_t offset, format::LogEntryView* entry) {
  const auto view = image_ == nullptr ? std::nullopt : image_->View(offset, format::kMaxEntryBytes);
  return view.has_value() ? format::ViewEntryAgain(*view, entry) : ReadAt(offset, entry);
}

absl::StatusOr<bool> LogReader::Next(bool live, uint64_t* offset, uint64_t* at, bool* torn,
                                     format::LogEntryView* entry) {
  *at = *offset;
  absl::StatusOr<bool> read = ReadAt(*at, entry);
  if (read.ok() && !*read) {
    const bool journal = log_->header.kind == format::LogKind::kJournal;
    const bool cut_off = !journal || TornAt(*offset);
    *torn = *torn || cut_off;
    // Entries may lie behind the damage in the same block, before the next flush.
    if (journal && (live || !cut_off)) read = ReadNextFlush(live, *offset, at, torn, entry);
    if (read.ok() && !*read && !(journal && live)) {
      read = ReadBehindDamage(*offset, at, entry);
      *torn = *torn || (read.ok() && *read);
    }
  }
  if (read.ok() && *read) *offset = *at + entry->entry_bytes;
  return read;
}

absl::StatusOr<bool> LogReader::ReadNextFlush(bool live, uint64_t offset, uint64_t* at, bool* torn,
                                              format::LogEntryView* entry) {
  const uint64_t block = BlockAtOrBehind(offset);
  if (block == offset) return false;
  *at = block;
  const absl::StatusOr<bool> read = ReadAt(block, entry);
  if (read.ok() && !*read) *torn = *torn || TornAt(block);
  if (!live || !read.ok() || !*read) return read;
  // What lies before an entry was written before it: what is not there once the entry has been seen never will be.
  LogReader again(directory_, log_, nullptr, format::kMaxEntryBytes);
  format::LogEntryView earlier;
  const absl::StatusOr<bool> found = again.ReadAt(offset, &earlier);
  if (!found.ok()) return found;
  if (!*found) return read;
  window_filled_ = 0;
  *at = offset;
  return ReadAt(offset, entry);
}

// An entry's checksum knows its place and this writing of the file: nothing else passes for one.
absl::StatusOr<bool> LogReader::ReadBehindDamage(uint64_t offset, uint64_t* at, format::LogEntryView* entry) {
  while (damage_left_ >= format::kEntryAlignment) {
    damage_left_ -= format::kEntryAlignment;
    offset += format::kEntryAlignment;
    *at = offset;
    const absl::StatusOr<base::ByteView> view = View(offset, format::kMaxEntryBytes);
    if (!view.ok()) return view.status();
    if (view->size() < format::kEntryHeadBytes) return false;
    if (!format::LooksLikeEntry(*view)) continue;
    if (format::DecodeEntryView(*view, log_->header.salt, offset, entry).ok()) return true;
  }
  return false;
}

bool LogReader::TornAt(uint64_t offset) {
  const uint64_t rest = format::kLogBlockBytes - offset % format::kLogBlockBytes;
  const absl::StatusOr<base::ByteView> view = View(offset, static_cast<size_t>(rest));
  if (!view.ok()) return true;
  return std::any_of(view->begin(), view->end(), [](std::byte byte) { return byte != std::byte{0}; });
}

// ---- Writing -------------------------------------------------------------------------------------------------------

void LogWriter::StartBlock() { end_ = BlockAtOrBehind(end_); }

absl::Status LogWriter::Reserve() {
  if (end() <= reserved_) return absl::OkStatus();
  const uint64_t from = std::max(reserved_, end_);
  const uint64_t to = (end() + kReserveBytes - 1) / kReserveBytes * kReserveBytes;
  const int result = directory_.os.Allocate(log_->descriptor.get(), from, to - from);
  const bool cannot = result == -EOPNOTSUPP || result == -ENOSYS || result == -EINVAL;
  if (result < 0 && !cannot) return WriteError(directory_, "enlarge", log_->name.c_str(), result);
  reserved_ = to;
  return absl::OkStatus();
}

absl::Status LogWriter::Write() {
  const base::ByteView piece = buffer_;
  Gather gather({&piece, 1});
  absl::Status status =
      WritePieces(directory_, log_->descriptor.get(), log_->name.c_str(), piece.size(), &gather, &end_);
  buffer_.clear();
  return status;
}

absl::Status LogWriter::Sync() {
  const int result = directory_.os.Fdatasync(log_->descriptor.get());
  return result < 0 ? WriteError(directory_, "flush", log_->name.c_str(), result) : absl::OkStatus();
}

}  // namespace kvstrata::core::storage
