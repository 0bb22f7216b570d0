// SPDX-License-Identifier: Apache-2.0
// Where one restore puts its rows: the buffers that its caller gave, whether they have a place for what a plan writes,
// and the moving of proven rows into them.
//
// Thread rule: Take before the work begins; Close on any thread at any time; the rest on the worker alone.
//
// Rows for a device are queued, and their staging memory kept until the device has them (device_copies.h): Keep is
// called behind what one staging buffer's rows were written with, WaitOldest as often as it kept one.
//
// Invariants:
//   I1  Memory is written only under `mutex_` and not once it is closed: when Close has returned true it is the
//       caller's for good.
//   I2  Every address is checked against its buffer before it is written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/engine/buffer.h"
#include "lib/engine/device_copies.h"
#include "lib/engine/match.h"

namespace kvstrata::core::engine {

// What a plan brings of one stream.
struct Segment {
  uint32_t stream = 0;
  uint32_t layer = 0;
  RowRange rows;
  uint64_t bytes = 0;
};

class Destinations {
 public:
  // `device_stream`: the device's, for its memory.
  Destinations(std::shared_ptr<MatchState> match, void* device_stream);

  // Takes the buffers over if all are sound, of streams that are `restored`, and cover the segments; else nothing has
  // changed.
  absl::Status Take(std::vector<BufferDesc> descs, std::span<const Segment> segments,
                    const std::function<bool(uint32_t stream)>& restored);
  bool Has(uint32_t stream) const { return buffers_[stream].has_value(); }
  // >= 0: some memory is on this device.
  int32_t device() const { return device_; }
  absl::Status CheckCovered(const Segment& segment) const { return CheckCovered(segment, buffers_[segment.stream]); }
  // The rows `range` of a stream that has a destination. On a device: they are there when the next Keep was waited for.
  absl::Status Write(uint32_t stream, const RowRange& range, base::ByteView rows);
  // Takes the memory that was written from since the last call, where a device reads it: *kept.
  absl::Status Keep(StagingBuffer* staging, bool* kept);
  absl::Status WaitOldest();
  // What was written from since the last Keep may be used again.
  absl::Status WaitQueued();
  // Writes that are under way end first, on the device too. False: it does not answer, and may write what was queued.
  bool Close();

 private:
  absl::StatusOr<Buffer> MakeBuffer(BufferDesc desc, const std::function<bool(uint32_t stream)>& restored) const;
  absl::Status CheckCovered(const Segment& segment, const std::optional<Buffer>& buffer) const;
  const layout::Layout& layout() const { return match_->name_space->layout; }

  const std::shared_ptr<MatchState> match_;
  std::vector<std::optional<Buffer>> buffers_;  // by stream
  int32_t device_ = -1;

  base::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  DeviceCopies copies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::engine
