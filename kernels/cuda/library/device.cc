// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/library/device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/library/split.h"

namespace kvstrata::kernels::cuda {
namespace {

// Far longer than a bus takes for all chunks; a stream that does not move by then hangs.
constexpr uint64_t kChunkPatienceNs = 30'000'000'000;

// cudaStreamPerThread: another stream for each of the cache's threads, so that nothing that the engine has queued would
// come before what they queue.
bool IsPerThread(const void* stream) { return reinterpret_cast<uintptr_t>(stream) == 2; }

kvstrata_status StatusOf(Error error) {
  if (error == kSuccess) return KVSTRATA_OK;
  return error == kTimedOut ? KVSTRATA_E_TIMEOUT : KVSTRATA_CUDA_STATUS_BASE + error;
}

uint64_t DeadlineNs(uint64_t now_ns, uint64_t timeout_ms) {
  constexpr uint64_t kNsPerMs = 1'000'000;
  return timeout_ms > (UINT64_MAX - now_ns) / kNsPerMs ? UINT64_MAX : now_ns + timeout_ms * kNsPerMs;
}

// What a function of the table does when it cannot have memory.
template <typename Body>
kvstrata_status Guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (...) {
    return KVSTRATA_E_OUT_OF_MEMORY;
  }
}

}  // namespace

// The runs of one call, launched whenever a chunk is full.
class Device::Batch {
 public:
  Batch(Runtime& runtime, StreamQueue& queue, void* stream) : runtime_(runtime), queue_(queue), stream_(stream) {}
  ~Batch() {
    if (chunk_ != nullptr) queue_.GiveBack(chunk_);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  Error Add(const Run& run) {
    if (chunk_ == nullptr) {
      const uint64_t deadline = runtime_.NowNs() + kChunkPatienceNs;
      if (const Error error = queue_.TakeChunk(deadline, &chunk_); error != kSuccess) return error;
    }
    chunk_->runs[chunk_->count++] = run;
    return chunk_->count == StreamQueue::kChunkRuns ? Launch() : kSuccess;
  }

  Error Launch() {
    if (chunk_ == nullptr) return kSuccess;
    return queue_.Launch(std::exchange(chunk_, nullptr), stream_);
  }

 private:
  Runtime& runtime_;
  StreamQueue& queue_;
  void* const stream_;
  StreamQueue::Chunk* chunk_ = nullptr;
};

StreamQueue& Device::QueueOf(int32_t device) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<StreamQueue>& queue = queues_[device];
  if (queue == nullptr) queue = std::make_unique<StreamQueue>(runtime_, pool_, device);
  return *queue;
}

Error Device::CopyAll(int32_t device, void* stream, CopyWay way, std::byte* host, std::byte* base,
                      const kvstrata_copy* copies, uint64_t count, uint64_t stride) {
  Batch batch(runtime_, QueueOf(device), stream);
  uint32_t engine_copies = 0;
  for (uint64_t i = 0; i < count; ++i) {
    kvstrata_copy copy;
    std::memcpy(&copy, reinterpret_cast<const std::byte*>(copies) + i * stride, sizeof copy);
    if (copy.size == 0 || copy.count == 0) continue;
    std::byte* const host_rows = host + copy.host_offset;
    std::byte* const device_rows = base + copy.device_offset;
    const bool to_device = way == CopyWay::kToDevice;
    const RowsCopy rows = Joined({to_device ? device_rows : host_rows, to_device ? host_rows : device_rows,
                                  to_device ? copy.device_stride : copy.host_stride,
                                  to_device ? copy.host_stride : copy.device_stride, copy.size, copy.count});
    Error error = kSuccess;
    if (ForCopyEngine(rows) && engine_copies < kMostEngineCopies) {
      ++engine_copies;
      error = runtime_.Copy(device, stream, way, rows);
    } else {
      error = CutIntoRuns(rows, [&](const Run& run) { return batch.Add(run); });
    }
    if (error != kSuccess) return error;
  }
  return batch.Launch();
}

kvstrata_status Device::Copy(int32_t device, void* stream, int32_t direction, void* host, void* base,
                             const kvstrata_copy* copies, uint64_t count, uint64_t stride) {
  if (direction != KVSTRATA_TO_DEVICE && direction != KVSTRATA_FROM_DEVICE) return KVSTRATA_E_INVALID_ARGUMENT;
  if (IsPerThread(stream)) return KVSTRATA_E_INVALID_ARGUMENT;
  if (count > 0 && (copies == nullptr || copies->struct_size < sizeof(kvstrata_copy))) {
    return KVSTRATA_E_INVALID_ARGUMENT;
  }
  const CopyWay way = direction == KVSTRATA_TO_DEVICE ? CopyWay::kToDevice : CopyWay::kFromDevice;
  return StatusOf(CopyAll(device, stream, way, static_cast<std::byte*>(host), static_cast<std::byte*>(base), copies,
                          count, stride == 0 ? sizeof(kvstrata_copy) : stride));
}

kvstrata_status Device::Record(int32_t device, void* stream, void** event) {
  if (IsPerThread(stream)) return KVSTRATA_E_INVALID_ARGUMENT;
  return StatusOf(QueueOf(device).Record(stream, event));
}

kvstrata_status Device::Wait(int32_t device, void* event, uint64_t timeout_ms) {
  return StatusOf(QueueOf(device).Wait(event, DeadlineNs(runtime_.NowNs(), timeout_ms)));
}

namespace {

Device* Self(void* ctx) { return static_cast<Device*>(ctx); }

void Destroy(void* ctx) { delete Self(ctx); }

void* AllocatePinned(void* ctx, int32_t device, uint64_t size, uint64_t alignment) {
  void* memory = nullptr;
  const kvstrata_status status = Guarded([&] {
    memory = Self(ctx)->AllocatePinned(device, size, alignment);
    return KVSTRATA_OK;
  });
  return status == KVSTRATA_OK ? memory : nullptr;
}

void ReleasePinned(void* ctx, int32_t /*device*/, void* memory, uint64_t /*size*/) { Self(ctx)->ReleasePinned(memory); }

kvstrata_status Copy(void* ctx, int32_t device, void* stream, int32_t direction, void* host, void* base,
                     const kvstrata_copy* copies, uint64_t count, uint64_t stride) {
  return Guarded([&] { return Self(ctx)->Copy(device, stream, direction, host, base, copies, count, stride); });
}

kvstrata_status Record(void* ctx, int32_t device, void* stream, void** event) {
  return Guarded([&] { return Self(ctx)->Record(device, stream, event); });
}

kvstrata_status Wait(void* ctx, int32_t device, void* event, uint64_t timeout_ms) {
  return Guarded([&] { return Self(ctx)->Wait(device, event, timeout_ms); });
}

void ReleaseEvent(void* ctx, int32_t device, void* event) {
  Guarded([&] {
    Self(ctx)->ReleaseEvent(device, event);
    return KVSTRATA_OK;
  });
}

}  // namespace

Outcome ReadOptions(const kvstrata_cuda_device_options* given, DeviceOptions* options) {
  if (given == nullptr) return {};
  const uint32_t size = given->struct_size;
  if (size < sizeof size || size > kMaxStructSize || (size < sizeof *given && size % alignof(decltype(*given)) != 0)) {
    return InvalidArgument("options.struct_size", std::to_string(size));
  }
  kvstrata_cuda_device_options known{};
  const size_t common = std::min<size_t>(size, sizeof known);
  std::memcpy(&known, given, common);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (std::any_of(bytes + common, bytes + size, [](unsigned char byte) { return byte != 0; })) {
    return {KVSTRATA_E_STRUCT_TOO_NEW, "options", "has members that this library does not know", 0};
  }
  if (known.flags != 0) return InvalidArgument("options.flags", std::to_string(known.flags));
  if (known.pinned_bytes != 0) options->pinned_bytes = known.pinned_bytes;
  return {};
}

Outcome MakeDevice(Runtime& runtime, const DeviceOptions& options, kvstrata_device* out) {
  if (out == nullptr) return InvalidArgument("out_device", "NULL");
  const uint32_t size = out->struct_size;
  if (size < sizeof(kvstrata_device) || size > kMaxStructSize) {
    return InvalidArgument("out_device.struct_size", std::to_string(size));
  }
  auto device = std::make_unique<Device>(runtime, options.pinned_bytes);
  std::memset(out, 0, size);
  out->struct_size = size;
  out->abi_version = KVSTRATA_ABI_VERSION;
  out->ctx = device.release();
  out->destroy = Destroy;
  out->allocate_pinned = AllocatePinned;
  out->release_pinned = ReleasePinned;
  out->copy = Copy;
  out->record = Record;
  out->wait = Wait;
  out->release_event = ReleaseEvent;
  return {};
}

}  // namespace kvstrata::kernels::cuda
