// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/log_image.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lib/storage/quiet_thread.h"

namespace kvstrata::core::storage {
namespace {

constexpr uint64_t kPieceBytes = 1u << 20;
constexpr uint64_t kPageBytes = 4096;
// A thread costs more than reading what is shorter.
constexpr uint64_t kMinThreadBytes = 4 * kPieceBytes;

uint64_t RoomFor(uint64_t bytes) { return (bytes + kPageBytes) / kPageBytes * kPageBytes; }

}  // namespace

LogImage::LogImage(const Directory& directory, Log log, uint64_t bytes)
    : directory_(directory),
      log_(std::move(log)),
      file_bytes_(bytes),
      room_(RoomFor(bytes)),
      arena_(room_),
      memory_(arena_.Take(room_)) {}

std::shared_ptr<LogImage> LogImage::Read(const Directory& directory, Log log) {
  struct stat info {};
  if (directory.os.Fstat(log->descriptor.get(), &info) < 0) return nullptr;
  const uint64_t bytes = static_cast<uint64_t>(std::max<off_t>(info.st_size, 0));
  if (bytes > kMaxBytes) return nullptr;
  std::shared_ptr<LogImage> image(new LogImage(directory, std::move(log), bytes));
  if (image->memory_ == nullptr) return nullptr;
  if (bytes >= kMinThreadBytes) {
    absl::StatusOr<std::thread> thread = StartQuietThread("kvs-log", [image = image.get()] { image->ReadAll(); });
    if (thread.ok()) {
      image->thread_ = *std::move(thread);
      return image;
    }
  }
  image->ReadAll();
  return image;
}

void LogImage::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

std::optional<base::ByteView> LogImage::View(uint64_t offset, size_t bytes) {
  if (filled_.load(std::memory_order_acquire) < offset + bytes) {
    base::MutexLock lock(mutex_);
    while (!ended_ && filled_.load(std::memory_order_relaxed) < offset + bytes) changed_.Wait(mutex_);
  }
  const uint64_t filled = filled_.load(std::memory_order_acquire);
  if (filled < offset + bytes) {
    if (!whole_.load(std::memory_order_acquire)) return std::nullopt;
    if (offset >= filled) return base::ByteView();
    bytes = static_cast<size_t>(filled - offset);
  }
  return base::ByteView(memory_ + offset, bytes);
}

void LogImage::ReadAll() {
  bool direct = room_ >= kMinThreadBytes && directory_.os.SetDirect(log_->descriptor.get(), true) >= 0;
  const bool was_direct = direct;
  uint64_t filled = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t got = ReadPiece(filled, &direct);
    if (got == 0) break;
    filled += got;
    base::MutexLock lock(mutex_);
    filled_.store(filled, std::memory_order_release);
    changed_.NotifyAll();
  }
  if (was_direct) directory_.os.SetDirect(log_->descriptor.get(), false);
  base::MutexLock lock(mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

uint64_t LogImage::ReadPiece(uint64_t offset, bool* direct) {
  const int fd = log_->descriptor.get();
  const uint64_t wanted = std::min(kPieceBytes, room_ - offset);
  if (wanted == 0) return 0;
  // Behind the end of a file whose length is no whole block there is no place to read from directly.
  if (*direct && offset % kPageBytes != 0) {
    *direct = false;
    directory_.os.SetDirect(fd, false);
  }
  int64_t result = directory_.os.Pread(fd, {memory_ + offset, static_cast<size_t>(wanted)}, offset);
  if (result == -EINVAL && *direct) {
    *direct = false;
    directory_.os.SetDirect(fd, false);
    result = directory_.os.Pread(fd, {memory_ + offset, static_cast<size_t>(wanted)}, offset);
  }
  if (result == 0) whole_.store(true, std::memory_order_release);
  return static_cast<uint64_t>(std::max<int64_t>(result, 0));
}

}  // namespace kvstrata::core::storage
