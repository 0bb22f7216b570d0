// SPDX-License-Identifier: Apache-2.0
// The segments of a store: files of one size that hold payload and nothing else, and which units of them are free.
// They grow on demand, step by step and one after the other, and are never made smaller: space that was written before
// is faster to write again.
//
// Invariants:
//   I1. Units that are free or taken exist in the file: a write to them makes no file longer. Where the file system can
//       reserve space, it has been reserved.
//   I2. There are at most kMaxSegments segments, an open descriptor each.
//   I3. They have `limit_bytes` together, or what they had when the store was opened. They do not grow into the last
//       `keep_bytes` of their file system: without room for its journals a store could not even free anything.
//   I4. Every read and write of a direct descriptor is of whole units, through memory that is aligned. Where the system
//       refuses one all the same, all descriptors become buffered ones, and stay so.
//
// Thread rule: allocation (Allocate, AllocatePieces, Free, Claim, the counts) one thread at a time, under the caller's
// lock; everything else on any thread at once. Grow calls back under the caller's lock to publish what it has made.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "lib/format/segment.h"
#include "lib/storage/directory.h"
#include "lib/storage/segment/bounce_pool.h"
#include "lib/storage/segment/landing.h"
#include "lib/storage/segment/space_map.h"

namespace kvstrata::core::storage {

// Of 64 descriptors, what the rest of a store leaves.
inline constexpr uint32_t kMaxSegments = 48;

// How many units hold so many bytes.
inline uint64_t UnitsOf(uint64_t bytes) {
  return bytes / format::kUnitBytes + (bytes % format::kUnitBytes != 0 ? 1 : 0);
}

// A power of two, so that a store of that capacity has at most 16 segments; at least 64 MiB.
uint64_t SegmentBytesFor(uint64_t capacity_bytes);

class DataFiles {
 public:
  using Extents = std::vector<format::Extent>;

  struct Bounds {
    uint64_t segment_bytes = 0;
    uint64_t limit_bytes = 0;
    // Files grow by so much or more at a time.
    uint64_t grow_bytes = 0;
    uint64_t keep_bytes = 0;
    // How many read and write at one time.
    uint32_t io_threads = 1;
  };
  // `directory` outlives this.
  DataFiles(const Directory& directory, const Bounds& bounds, bool read_only);
  ~DataFiles();
  // Opens those that are there, 0, 1, 2, ... without a gap. Until EndClaims nothing but claiming goes on.
  absl::Status Open();
  // False when it is not wholly in a segment, or not free.
  bool Claim(const format::Extent& extent);
  void Unclaim(const format::Extent& extent);
  // All that was claimed is free again.
  void FreeAll();
  void EndClaims();
  // For a reader: those that have come since. Nothing is free in them.
  absl::Status OpenLater();
  void Close();

  // One run of that many units (at least 1) that exist and are free; after the last one if possible, so that what is
  // put one after the other lies one after the other.
  std::optional<format::Extent> Allocate(uint32_t units);
  // As many runs as kMaxExtents allows, the longest first; each of `least` units or what is left.
  std::optional<Extents> AllocatePieces(uint64_t units, uint64_t least);
  void Free(const format::Extent& extent);
  uint64_t free_units() const;
  // Free and taken ones.
  uint64_t ready_units() const { return ready_units_; }

  // Whether all of it is in segments that are open. For a reader, whose segments may be longer by now than they were.
  bool Reaches(std::span<const format::Extent> extents) const;

  // Makes room for a run of so many units at the end, and publishes it within `publish`, which calls the function that
  // it is given under the caller's lock. Does nothing where there are more than `ready` units by now: what another has
  // made since the caller looked may be enough for both. kNoSpace when the store may not grow so far.
  absl::Status Grow(uint32_t units, uint64_t ready, absl::FunctionRef<void(absl::FunctionRef<void()>)> publish);

  // A record's bytes, and units that hold them.
  struct Writing {
    std::span<const format::Extent> extents;
    uint64_t bytes = 0;
    std::span<const base::ByteView> parts;
  };
  // Those that lie one behind the other in a segment go as one. After a failure any may be written, or not.
  absl::Status Write(std::span<const Writing> writings);
  absl::Status Read(std::span<const format::Extent> extents, uint64_t offset, base::MutableBytes to);
  // Where in which file [offset, offset + bytes) of these extents begins, and how much of it lies there in a row. The
  // range, which is not empty, is within them.
  struct Part {
    int fd = -1;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  Part PartOf(std::span<const format::Extent> extents, uint64_t offset, uint64_t bytes) const;
  // Whether reads and writes go past the page cache.
  bool direct() const { return direct_; }
  // Makes durable what was written before the call.
  absl::Status Sync();

 private:
  struct Segment {
    explicit Segment(uint32_t units) : map(units) {}
    std::string name;
    int fd = -1;
    SpaceMap map;
    // How many units exist; changed under grow_mutex_ only.
    uint32_t ready = 0;
    std::atomic<bool> dirty{false};
  };

  absl::Status OpenSegment(uint32_t number, bool create);
  absl::StatusOr<bool> OpenNext(uint64_t* bytes);
  void Give(Segment& segment, uint32_t first, uint32_t end);
  // By how much the files may grow.
  uint64_t UnitsLeft() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(grow_mutex_);
  absl::Status Extend(Segment& segment, uint32_t ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(grow_mutex_);
  absl::Status SyncFolder();
  // One extent's part of a read or write. kIo with EINVAL where direct I/O is refused.
  absl::Status ReadPart(Segment& segment, uint64_t offset, base::MutableBytes to);
  absl::Status ReadDirect(Segment& segment, uint64_t offset, base::MutableBytes to);
  absl::Status ReadLanding(Segment& segment, Landing* landing);
  absl::Status WritePart(Segment& segment, uint64_t offset, uint64_t bytes, Gather* gather);
  absl::Status WriteDirect(Segment& segment, uint64_t offset, uint64_t bytes, Gather* gather);
  void StopDirect();

  const Directory& directory_;
  const uint32_t segment_units_;
  const uint64_t limit_units_;
  const uint32_t grow_units_;
  const uint64_t keep_bytes_;
  const bool read_only_;
  BouncePool bounce_;
  std::atomic<bool> direct_;
  // A slot is set once, before count_ goes above it.
  std::array<std::unique_ptr<Segment>, kMaxSegments> segments_;
  std::atomic<uint32_t> count_{0};
  base::Mutex grow_mutex_;
  uint64_t ready_units_ = 0;
  // The same, for Grow.
  uint64_t made_units_ ABSL_GUARDED_BY(grow_mutex_) = 0;
  // Where the last run ended.
  uint32_t last_segment_ = 0;
  uint32_t last_unit_ = 0;
  std::atomic<bool> folder_dirty_{false};
  base::Mutex folder_mutex_;
  absl::Status folder_ ABSL_GUARDED_BY(folder_mutex_);
};

}  // namespace kvstrata::core::storage
