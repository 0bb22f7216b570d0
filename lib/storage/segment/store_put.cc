// SPDX-License-Identifier: Apache-2.0
// Putting records into a segment store: a place, the bytes, then the table.
#include <algorithm>
#include <deque>
#include <utility>

#include "lib/base/status.h"
#include "lib/storage/request_check.h"
#include "lib/storage/segment/store.h"

namespace kvstrata::core::storage {
namespace {

using format::kUnitBytes;

// 1 MiB: a drive reads and writes pieces of it at its full rate.
constexpr uint64_t kLargePieceUnits = (1u << 20) / kUnitBytes;

absl::Status NoMemoryForTable() { return base::MakeStatus(base::Code::kOutOfMemory, "put", "no memory for the table"); }

}  // namespace

// A put that is not in the table yet, and its place, which is given back at the end unless it was published.
class SegmentStore::Reservation {
 public:
  Reservation(SegmentStore& store, const Put& given)
      : put(given),
        payload_bytes(PayloadBytes(given).value_or(UINT64_MAX)),
        store_(store),
        stored_(StoredBytes(payload_bytes, given.meta.size())) {
    store_.used_bytes_ += stored_;
  }
  ~Reservation() {
    if (published_) return;
    store_.used_bytes_ -= stored_;
    base::MutexLock lock(store_.mutex_);
    for (const format::Extent& extent : extents) store_.data_->Free(extent);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  void SetPublished() { published_ = true; }
  DataFiles::Writing writing() const { return {extents, payload_bytes, put.parts}; }

  const Put& put;
  const uint64_t payload_bytes;
  bool placed = false;
  DataFiles::Extents extents;
  uint64_t lost_flushes = 0;

 private:
  SegmentStore& store_;
  const uint64_t stored_;
  bool published_ = false;
};

void SegmentStore::DoPuts(std::span<const Request> requests, std::span<std::optional<Result>> results) {
  std::deque<Reservation> puts;
  for (const Request& request : requests) puts.emplace_back(*this, std::get<Put>(request.operation));
  if (puts.size() > 1) PlaceTogether(&puts);
  std::vector<DataFiles::Writing> writings;
  for (size_t i = 0; i < puts.size(); ++i) {
    const absl::Status status = puts[i].placed ? absl::OkStatus() : Place(&puts[i]);
    if (status.ok()) {
      writings.push_back(puts[i].writing());
    } else {
      results[i] = {status, 0};
    }
  }
  // Where some of them cannot be written, each finds out by itself.
  const absl::Status together = data_->Write(writings);
  for (size_t i = 0; i < puts.size(); ++i) {
    if (results[i].has_value()) continue;
    const DataFiles::Writing alone = puts[i].writing();
    absl::Status status = together.ok() || writings.size() == 1 ? together : data_->Write({&alone, 1});
    if (status.ok()) status = Publish(&puts[i]);
    results[i] = {status, status.ok() ? puts[i].payload_bytes : 0};
  }
}

absl::Status SegmentStore::Writable() const {
  if (broken_.ok()) return absl::OkStatus();
  return base::MakeStatus(base::Code::kReadOnly, "storage",
                          "its journal could not be written: " + std::string(broken_.message()),
                          base::NativeCodeOf(broken_));
}

std::optional<DataFiles::Extents> SegmentStore::TryPlace(uint64_t units, uint64_t least_piece) {
  if (units == 0) return DataFiles::Extents();
  if (least_piece < units) return data_->AllocatePieces(units, least_piece);
  const std::optional<format::Extent> extent = data_->Allocate(static_cast<uint32_t>(units));
  if (!extent.has_value()) return std::nullopt;
  return DataFiles::Extents{*extent};
}

// One behind the other, so that they can be written as one. From where that is not to be had on, each for itself.
void SegmentStore::PlaceTogether(std::deque<Reservation>* puts) {
  base::MutexLock lock(mutex_);
  if (!Writable().ok()) return;
  for (Reservation& put : *puts) {
    const uint64_t units = UnitsOf(put.payload_bytes);
    std::optional<DataFiles::Extents> extents = TryPlace(units, units);
    if (!extents.has_value()) return;
    put.extents = *std::move(extents);
    put.lost_flushes = lost_flushes_;
    put.placed = true;
  }
}

// One run of what is there; else the store grows; else in large pieces; else what waits for a flush is made free; else
// in any pieces.
absl::Status SegmentStore::Place(Reservation* put) {
  const uint64_t units = UnitsOf(put->payload_bytes);
  const uint64_t segment_units = UnitsOf(super_.segment_bytes);
  absl::Status full;
  uint64_t least_piece = units > segment_units ? kLargePieceUnits : units;
  for (int flushed = 0;;) {
    bool quarantined = false;
    uint64_t ready = 0, flushes = 0;
    {
      base::MutexLock lock(mutex_);
      if (absl::Status status = Writable(); !status.ok()) return status;
      put->lost_flushes = lost_flushes_;
      std::optional<DataFiles::Extents> extents = TryPlace(units, least_piece);
      if (extents.has_value()) {
        put->extents = *std::move(extents);
        return absl::OkStatus();
      }
      quarantined = quarantined_units_ > 0;
      ready = data_->ready_units();
      flushes = stats_.flushes;
    }
    // Another put may take what was made for this one; each round makes more, up to the bound.
    if (full.ok()) {
      full = data_->Grow(static_cast<uint32_t>(std::min(units, segment_units)), ready,
                         [this](absl::FunctionRef<void()> change) {
                           base::MutexLock lock(mutex_);
                           change();
                         });
      if (full.ok()) continue;
    }
    if (least_piece > kLargePieceUnits) {
      least_piece = kLargePieceUnits;
      continue;
    }
    if (flushed < 2 && quarantined) {
      // How it goes, the next Sync says too; here only the units matter. Another's flush will do, if they are enough.
      static_cast<void>(flushed++ == 0 ? FlushSince(flushes) : Flush());
      continue;
    }
    if (least_piece <= 1) return full;
    least_piece = 1;
  }
}

absl::Status SegmentStore::Publish(Reservation* reservation) {
  const Put& put = reservation->put;
  Record record;
  record.payload_bytes = reservation->payload_bytes;
  record.meta_bytes = static_cast<uint16_t>(put.meta.size());
  record.state = RecordState::kPending;
  std::vector<std::byte> meta(put.meta.begin(), put.meta.end());
  base::MutexLock lock(mutex_);
  if (absl::Status status = Writable(); !status.ok()) return status;
  if (lost_flushes_ != reservation->lost_flushes) {
    return base::MakeStatus(base::Code::kIo, "put", "a flush failed while it was being written");
  }
  Change& change = changes_[put.key];
  ReserveQuarantine();
  if (const std::optional<Id> old = table_.Find(put.key); old.has_value()) Retire(*old, &change);
  change.number = ++change_number_;
  record.sequence = NextSequence();
  if (!table_.Add(put.key, record, reservation->extents, std::move(meta)).has_value()) return NoMemoryForTable();
  unflushed_bytes_ += record.payload_bytes;
  reservation->SetPublished();
  return absl::OkStatus();
}

}  // namespace kvstrata::core::storage
