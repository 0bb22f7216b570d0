// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/destinations.h"

#include <string>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::engine {

Destinations::Destinations(std::shared_ptr<MatchState> match, void* device_stream)
    : match_(std::move(match)),
      buffers_(layout().streams().size()),
      copies_(match_->cache->device(), device_stream, match_->cache->options().io_timeout_ms) {}

absl::StatusOr<Buffer> Destinations::MakeBuffer(BufferDesc desc,
                                                const std::function<bool(uint32_t stream)>& restored) const {
  const uint32_t stream = desc.stream;
  if (stream >= layout().streams().size() || !restored(stream)) {
    return base::InvalidArgument("destinations.stream", std::to_string(stream) + " is not restored by this plan");
  }
  if (desc.memory == MemoryKind::kDevice && match_->cache->device() == nullptr) {
    return base::MakeStatus(base::Code::kUnsupported, "destinations.memory", "the cache was opened without a device");
  }
  return Buffer::Create(layout().stream(stream), std::move(desc));
}

absl::Status Destinations::Take(std::vector<BufferDesc> descs, std::span<const Segment> segments,
                                const std::function<bool(uint32_t stream)>& restored) {
  std::vector<std::optional<Buffer>> buffers(layout().streams().size());
  int32_t device = -1;
  for (BufferDesc& desc : descs) {
    const uint32_t stream = desc.stream;
    absl::StatusOr<Buffer> buffer = MakeBuffer(std::move(desc), restored);
    if (!buffer.ok()) return buffer.status();
    if (buffers[stream].has_value()) {
      return base::InvalidArgument("destinations.stream", std::to_string(stream) + " twice");
    }
    if (buffer->on_device()) {
      if (device >= 0 && device != buffer->desc().device_id) {
        return base::InvalidArgument("destinations.device_id", "one restore goes to one device");
      }
      device = buffer->desc().device_id;
    }
    buffers[stream] = *std::move(buffer);
  }
  for (const Segment& segment : segments) {
    if (absl::Status status = CheckCovered(segment, buffers[segment.stream]); !status.ok()) return status;
  }
  buffers_ = std::move(buffers);
  device_ = device;
  return absl::OkStatus();
}

// Does the destination have a place for each of the segment's rows?
absl::Status Destinations::CheckCovered(const Segment& segment, const std::optional<Buffer>& buffer) const {
  const layout::Stream& stream = layout().stream(segment.stream);
  if (!buffer.has_value()) {
    if ((stream.flags & layout::kOptional) != 0) return absl::OkStatus();
    return base::InvalidArgument("destinations", "none for stream " + std::to_string(segment.stream));
  }
  if (stream.is_variable()) {
    if (buffer->desc().size_bytes >= segment.bytes) return absl::OkStatus();
    return base::MakeStatus(base::Code::kBufferTooSmall, "destinations.size_bytes",
                            std::to_string(buffer->desc().size_bytes) + " < " + std::to_string(segment.bytes));
  }
  RowRange range = segment.rows;
  if (stream.kind == layout::StreamKind::kRows) range.element_zero = buffer->desc().first_row;
  return buffer->CheckRows(range);
}

absl::Status Destinations::Write(uint32_t stream, const RowRange& range, base::ByteView rows) {
  const layout::Stream& description = layout().stream(stream);
  std::optional<Buffer> exact;
  const Buffer* buffer = &*buffers_[stream];
  if (description.is_variable()) {
    if (rows.size() > buffer->desc().size_bytes) {
      return base::MakeStatus(base::Code::kBufferTooSmall, "destinations.size_bytes", std::to_string(rows.size()));
    }
    BufferDesc desc = buffer->desc();
    desc.size_bytes = rows.size();
    desc.columns.clear();
    absl::StatusOr<Buffer> made = Buffer::Create(description, std::move(desc));
    if (!made.ok()) return made.status();
    exact = *std::move(made);
    buffer = &*exact;
  }
  RowRange target = range;
  if (description.kind == layout::StreamKind::kRows) target.element_zero = buffer->desc().first_row;
  base::MutexLock lock(mutex_);
  if (closed_) return base::MakeStatus(base::Code::kCancelled, "plan", "cancelled");
  if (!buffer->on_device()) return buffer->Scatter(target, rows.data());
  const absl::StatusOr<std::vector<CopyRun>> runs = buffer->Runs(target, 0);
  if (!runs.ok()) return runs.status();
  // Devices take the host's side as memory that may be written, whatever the direction.
  auto* const host = const_cast<std::byte*>(rows.data());
  return copies_.Queue(buffer->desc(), CopyDirection::kToDevice, host, *runs);
}

absl::Status Destinations::Keep(StagingBuffer* staging, bool* kept) {
  base::MutexLock lock(mutex_);
  return copies_.Keep(staging, kept);
}

absl::Status Destinations::WaitOldest() {
  base::MutexLock lock(mutex_);
  return copies_.WaitOldest();
}

absl::Status Destinations::WaitQueued() {
  base::MutexLock lock(mutex_);
  return copies_.WaitQueued();
}

bool Destinations::Close() {
  base::MutexLock lock(mutex_);
  closed_ = true;
  copies_.WaitAll().IgnoreError();  // what fails is lost
  return !copies_.lost();
}

}  // namespace kvstrata::core::engine
