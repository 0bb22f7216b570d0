// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/data_files.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <limits>
#include <utility>

#include "lib/base/copy.h"
#include "lib/base/status.h"
#include "lib/storage/descriptor.h"
#include "lib/storage/segment/log_files.h"
#include "lib/storage/segment/unit_gather.h"

namespace kvstrata::core::storage {
namespace {

constexpr uint64_t kMinSegmentBytes = 64u << 20;
// Files of ext4 with blocks of 4 KiB end at 16 TiB.
constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 42;
constexpr uint64_t kSegmentsWanted = 16;

std::string SegmentName(uint32_t number) { return "data-" + FileNumber(number) + ".seg"; }

size_t RoundUp(size_t bytes) { return (bytes + format::kUnitBytes - 1) / format::kUnitBytes * format::kUnitBytes; }

bool IsBehind(const format::Extent& extent, const format::Extent& before) {
  return extent.segment == before.segment && extent.first == before.first + before.units;
}

uint32_t Units(uint64_t bytes) { return static_cast<uint32_t>(bytes / format::kUnitBytes); }

}  // namespace

uint64_t SegmentBytesFor(uint64_t capacity_bytes) {
  const uint64_t wanted = std::clamp(capacity_bytes / kSegmentsWanted, kMinSegmentBytes, kMaxSegmentBytes);
  return std::bit_ceil(wanted);
}

DataFiles::DataFiles(const Directory& directory, const Bounds& bounds, bool read_only)
    : directory_(directory),
      segment_units_(Units(bounds.segment_bytes)),
      limit_units_(bounds.limit_bytes / format::kUnitBytes),
      grow_units_(std::max<uint32_t>(1, Units(bounds.grow_bytes))),
      keep_bytes_(bounds.keep_bytes),
      read_only_(read_only),
      bounce_(bounds.io_threads),
      direct_(bounce_.Allocate()) {}

DataFiles::~DataFiles() { Close(); }

void DataFiles::Close() {
  for (uint32_t i = 0; i < count_; ++i) {
    if (segments_[i]->fd >= 0) directory_.os.Close(std::exchange(segments_[i]->fd, -1));
  }
}

absl::Status DataFiles::Open() {
  for (uint64_t bytes = 0;;) {
    const absl::StatusOr<bool> opened = OpenNext(&bytes);
    if (!opened.ok() || !*opened) return opened.status();
    Segment& segment = *segments_[count_ - 1];
    segment.ready = std::min(segment_units_, Units(bytes));
    segment.map.BeginBulk(segment.ready);
    ready_units_ += segment.ready;
    base::MutexLock lock(grow_mutex_);
    made_units_ += segment.ready;
  }
}

bool DataFiles::Claim(const format::Extent& extent) {
  return extent.segment < count_ && segments_[extent.segment]->map.TakeInBulk(extent.first, extent.units);
}

void DataFiles::Unclaim(const format::Extent& extent) {
  segments_[extent.segment]->map.GiveInBulk(extent.first, extent.units);
}

void DataFiles::FreeAll() {
  for (uint32_t i = 0; i < count_; ++i) segments_[i]->map.BeginBulk(segments_[i]->ready);
}

void DataFiles::EndClaims() {
  for (uint32_t i = 0; i < count_; ++i) segments_[i]->map.EndBulk();
}

absl::Status DataFiles::OpenLater() {
  for (uint64_t bytes = 0;;) {
    const absl::StatusOr<bool> opened = OpenNext(&bytes);
    if (!opened.ok() || !*opened) return opened.status();
  }
}

// False where there is none; else how long it is.
absl::StatusOr<bool> DataFiles::OpenNext(uint64_t* bytes) {
  const uint32_t number = count_;
  if (number == kMaxSegments) return false;
  struct stat info {};
  const int found = directory_.os.StatAt(directory_.root, SegmentName(number).c_str(), &info);
  if (found == -ENOENT) return false;
  if (found < 0) return ReadError(directory_, "stat", SegmentName(number).c_str(), found);
  *bytes = static_cast<uint64_t>(std::max<off_t>(info.st_size, 0));
  if (absl::Status status = OpenSegment(number, false); !status.ok()) return status;
  return true;
}

absl::Status DataFiles::OpenSegment(uint32_t number, bool create) {
  auto segment = std::make_unique<Segment>(segment_units_);
  segment->name = SegmentName(number);
  const char* name = segment->name.c_str();
  const int flags = (read_only_ ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | (create ? O_CREAT : 0);
  Descriptor file(directory_.os, directory_.os.OpenAt(directory_.root, name, flags, kFileMode));
  if (!file.ok()) {
    return read_only_ ? ReadError(directory_, "open", name, file.get())
                      : WriteError(directory_, "open", name, file.get());
  }
  if (create) {
    // A umask may have taken the owner's bits away.
    if (const int result = directory_.os.Fchmod(file.get(), kFileMode); result < 0) {
      return WriteError(directory_, "set the mode of", name, result);
    }
    folder_dirty_ = true;
  }
  if (direct_ && directory_.os.SetDirect(file.get(), true) < 0) StopDirect();
  segment->fd = file.Release();
  segments_[number] = std::move(segment);
  count_ = number + 1;
  return absl::OkStatus();
}

// ---- Which units ---------------------------------------------------------------------------------------------------

std::optional<format::Extent> DataFiles::Allocate(uint32_t units) {
  const uint32_t count = count_;
  // Onwards from the last one to the end of its segment, then every segment from its beginning, that one included.
  for (uint32_t i = 0; i <= count && count > 0; ++i) {
    const uint32_t number = i == 0 ? last_segment_ : (last_segment_ + i) % count;
    SpaceMap& map = segments_[number]->map;
    const std::optional<uint32_t> found = map.Find(units, i == 0 ? last_unit_ : 0);
    if (!found.has_value()) continue;
    map.Take(*found, units);
    last_segment_ = number;
    last_unit_ = *found + units;
    return format::Extent{number, *found, units};
  }
  return std::nullopt;
}

std::optional<DataFiles::Extents> DataFiles::AllocatePieces(uint64_t units, uint64_t least) {
  Extents extents;
  while (units > 0 && extents.size() < format::kMaxExtents) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < count_; ++i) longest = std::max(longest, segments_[i]->map.longest());
    if (longest < std::min(least, units)) break;
    const std::optional<format::Extent> piece = Allocate(static_cast<uint32_t>(std::min<uint64_t>(longest, units)));
    if (!piece.has_value()) break;
    extents.push_back(*piece);
    units -= piece->units;
  }
  if (units == 0) return extents;
  for (const format::Extent& extent : extents) Free(extent);
  return std::nullopt;
}

void DataFiles::Free(const format::Extent& extent) { segments_[extent.segment]->map.Give(extent.first, extent.units); }

bool DataFiles::Reaches(std::span<const format::Extent> extents) const {
  return std::all_of(extents.begin(), extents.end(), [this](const format::Extent& extent) {
    return extent.segment < count_ && extent.first <= segment_units_ && extent.units <= segment_units_ - extent.first;
  });
}

uint64_t DataFiles::free_units() const {
  uint64_t units = 0;
  for (uint32_t i = 0; i < count_; ++i) units += segments_[i]->map.free_units();
  return units;
}

absl::Status DataFiles::Grow(uint32_t units, uint64_t ready,
                             absl::FunctionRef<void(absl::FunctionRef<void()>)> publish) {
  base::MutexLock lock(grow_mutex_);
  if (made_units_ > ready) return absl::OkStatus();
  const uint64_t left = UnitsLeft();
  if (units > left || units > segment_units_) {
    return base::MakeStatus(base::Code::kNoSpace, "capacity_bytes",
                            std::to_string(left) + " units are left to grow by, " + std::to_string(units) + " wanted");
  }
  const auto extend = [&](Segment& segment, uint64_t wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(grow_mutex_) {
    const uint32_t before = segment.ready;
    const uint64_t room = std::min<uint64_t>(segment_units_ - before, left);
    absl::Status status = Extend(segment, before + static_cast<uint32_t>(std::min(wanted, room)));
    if (status.ok()) publish([&] { Give(segment, before, segment.ready); });
    return status;
  };
  uint32_t number = count_ == 0 ? 0 : count_ - 1;
  if (count_ > 0 && segments_[number]->ready > segment_units_ - units) {
    // Too short for this run, and made use of before the next one begins.
    Segment& last = *segments_[number];
    if (last.ready < segment_units_) return extend(last, segment_units_);
    ++number;
  }
  if (number >= count_) {
    if (number >= kMaxSegments) return base::MakeStatus(base::Code::kNoSpace, "segments", "all are in use");
    if (absl::Status status = OpenSegment(number, true); !status.ok()) return status;
  }
  return extend(*segments_[number], std::max(units, grow_units_));
}

uint64_t DataFiles::UnitsLeft() const {
  const uint64_t left = limit_units_ - std::min(limit_units_, made_units_);
  const int64_t free = directory_.os.FreeBytes(directory_.root);
  // Where it cannot be asked, a full disk shows itself when the files are enlarged.
  if (free < 0) return left;
  const uint64_t bytes = static_cast<uint64_t>(free);
  return std::min(left, (bytes - std::min(bytes, keep_bytes_)) / format::kUnitBytes);
}

void DataFiles::Give(Segment& segment, uint32_t first, uint32_t end) {
  segment.map.Give(first, end - first);
  ready_units_ += end - first;
}

absl::Status DataFiles::Extend(Segment& segment, uint32_t ready) {
  const uint64_t from = segment.ready * format::kUnitBytes, to = ready * format::kUnitBytes;
  int result = directory_.os.Allocate(segment.fd, from, to - from);
  // Where space cannot be reserved, a full disk shows itself in the put that meets it.
  if (result == -EOPNOTSUPP || result == -ENOSYS || result == -EINVAL) {
    result = directory_.os.Truncate(segment.fd, to);
  }
  if (result < 0) return WriteError(directory_, "enlarge", segment.name.c_str(), result);
  made_units_ += ready - segment.ready;
  segment.ready = ready;
  return absl::OkStatus();
}

// ---- Bytes ---------------------------------------------------------------------------------------------------------

absl::Status DataFiles::Write(std::span<const Writing> writings) {
  static constexpr std::array<std::byte, format::kUnitBytes> kZeros{};
  std::vector<base::ByteView> parts;
  Extents stretches;
  for (const Writing& writing : writings) {
    for (const format::Extent& extent : writing.extents) {
      if (!stretches.empty() && IsBehind(extent, stretches.back())) {
        stretches.back().units += extent.units;
      } else {
        stretches.push_back(extent);
      }
    }
    parts.insert(parts.end(), writing.parts.begin(), writing.parts.end());
    // The next record begins with a unit.
    const uint64_t rest = UnitsOf(writing.bytes) * format::kUnitBytes - writing.bytes;
    if (&writing != &writings.back()) parts.push_back(base::ByteView(kZeros).first(static_cast<size_t>(rest)));
  }
  Gather gather(parts);
  for (const format::Extent& stretch : stretches) {
    Segment& segment = *segments_[stretch.segment];
    const uint64_t offset = stretch.first * format::kUnitBytes;
    absl::Status status = WritePart(segment, offset, stretch.units * format::kUnitBytes, &gather);
    if (!status.ok()) return status;
    // Afterwards, so that a flush that runs meanwhile does not take the mark away.
    segment.dirty = true;
  }
  return absl::OkStatus();
}

absl::Status DataFiles::Read(std::span<const format::Extent> extents, uint64_t offset, base::MutableBytes to) {
  for (const format::Extent& extent : extents) {
    const uint64_t size = extent.units * format::kUnitBytes;
    if (offset >= size) {
      offset -= size;
      continue;
    }
    if (to.empty()) break;
    Segment& segment = *segments_[extent.segment];
    const size_t here = static_cast<size_t>(std::min<uint64_t>(to.size(), size - offset));
    absl::Status status = ReadPart(segment, extent.first * format::kUnitBytes + offset, to.first(here));
    if (!status.ok()) return status;
    to = to.subspan(here);
    offset = 0;
  }
  return absl::OkStatus();
}

DataFiles::Part DataFiles::PartOf(std::span<const format::Extent> extents, uint64_t offset, uint64_t bytes) const {
  size_t at = 0;
  for (; offset >= extents[at].units * format::kUnitBytes; ++at) offset -= extents[at].units * format::kUnitBytes;
  const format::Extent& extent = extents[at];
  return {segments_[extent.segment]->fd, extent.first * format::kUnitBytes + offset,
          std::min(bytes, extent.units * format::kUnitBytes - offset)};
}

absl::Status DataFiles::ReadPart(Segment& segment, uint64_t offset, base::MutableBytes to) {
  if (direct_) {
    absl::Status status = ReadDirect(segment, offset, to);
    if (base::NativeCodeOf(status) != EINVAL) return status;
    StopDirect();
  }
  return ReadFully(directory_, segment.fd, segment.name.c_str(), to, offset);
}

absl::Status DataFiles::ReadLanding(Segment& segment, Landing* landing) {
  while (!landing->pieces().empty()) {
    const int64_t result = directory_.os.Preadv(segment.fd, landing->pieces(), landing->offset());
    if (result < 0) return ReadError(directory_, "read", segment.name.c_str(), result);
    if (result == 0) {
      return base::Corrupt("file", segment.name + " ends at byte " + std::to_string(landing->offset()));
    }
    landing->Advance(static_cast<uint64_t>(result));
  }
  landing->Finish();
  return absl::OkStatus();
}

absl::Status DataFiles::ReadDirect(Segment& segment, uint64_t offset, base::MutableBytes to) {
  const BouncePool::Lease buffer(bounce_);
  if (Landing::Fits(offset, to)) {
    Landing landing(offset, to, buffer.bytes());
    return ReadLanding(segment, &landing);
  }
  while (!to.empty()) {
    const size_t before = static_cast<size_t>(offset % format::kUnitBytes);
    const size_t here = std::min(to.size(), BouncePool::kBufferBytes - before);
    const base::MutableBytes units = buffer.bytes().first(RoundUp(before + here));
    absl::Status status = ReadFully(directory_, segment.fd, segment.name.c_str(), units, offset - before);
    if (!status.ok()) return status;
    base::CopyBytes(to.data(), units.data() + before, here);
    to = to.subspan(here);
    offset += here;
  }
  return absl::OkStatus();
}

absl::Status DataFiles::WritePart(Segment& segment, uint64_t offset, uint64_t bytes, Gather* gather) {
  if (direct_) {
    Gather ahead = *gather;
    absl::Status status = WriteDirect(segment, offset, bytes, &ahead);
    if (status.ok()) *gather = ahead;
    if (base::NativeCodeOf(status) != EINVAL) return status;
    StopDirect();
  }
  return WritePieces(directory_, segment.fd, segment.name.c_str(), bytes, gather, &offset);
}

absl::Status DataFiles::WriteDirect(Segment& segment, uint64_t offset, uint64_t bytes, Gather* gather) {
  const BouncePool::Lease buffer(bounce_);
  UnitGather units(gather, buffer.bytes());
  while (bytes > 0) {
    const std::span<const base::ByteView> pieces = units.Next(bytes);
    if (pieces.empty()) break;
    Gather all(pieces);
    absl::Status status =
        WritePieces(directory_, segment.fd, segment.name.c_str(), std::numeric_limits<uint64_t>::max(), &all, &offset);
    if (!status.ok()) return status;
    bytes -= units.taken();
  }
  return absl::OkStatus();
}

// What runs on another thread meanwhile goes on as it began, or is refused and comes here too.
void DataFiles::StopDirect() {
  direct_ = false;
  for (uint32_t i = 0; i < count_; ++i) directory_.os.SetDirect(segments_[i]->fd, false);
}

absl::Status DataFiles::Sync() {
  absl::Status first;
  const uint32_t count = count_;
  for (uint32_t i = 0; i < count; ++i) {
    Segment& segment = *segments_[i];
    if (!segment.dirty.exchange(false)) continue;
    const int result = directory_.os.Fdatasync(segment.fd);
    if (result < 0) first.Update(WriteError(directory_, "flush", segment.name.c_str(), result));
  }
  first.Update(SyncFolder());
  return first;
}

// After a failure the names of new segments are not known to be durable, ever.
absl::Status DataFiles::SyncFolder() {
  base::MutexLock lock(folder_mutex_);
  if (folder_dirty_.exchange(false)) folder_.Update(storage::SyncFolder(directory_));
  return folder_;
}

}  // namespace kvstrata::core::storage
