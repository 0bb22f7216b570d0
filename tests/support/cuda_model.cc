// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_model.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace kvstrata::test {
namespace {

using kernels::cuda::CopyWay;
using kernels::cuda::kSuccess;
using kernels::cuda::RowsCopy;
using kernels::cuda::Run;

constexpr CudaError kInvalidValue = 1;
constexpr CudaError kInvalidDevice = 101;

uint64_t ChecksumOf(const std::byte* begin, uint64_t bytes) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, begin + i, std::min<uint64_t>(sizeof word, bytes - i));
    sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
  }
  return sum;
}

uint64_t Reach(uint64_t bytes, uint64_t rows, uint64_t stride) { return (rows - 1) * stride + bytes; }

RowsCopy RowsOf(const Run& run) {
  return {run.to, run.from, run.to_stride, run.from_stride, uint64_t{run.row_words} * run.word, run.rows};
}

}  // namespace

CudaModel::CudaModel(uint64_t arena_bytes, uint64_t seed) : arena_(arena_bytes), rng_(seed) {}

CudaModel::~CudaModel() {
  for (const auto& [memory, bytes] : pinned_) std::free(memory);
}

bool CudaModel::FailsNow() {
  if (fail_countdown_ == 0 || --fail_countdown_ != 0) return false;
  failed_ = true;
  return true;
}

// --- host memory -------------------------------------------------------------------------------------------------

CudaError CudaModel::AllocatePinned(int32_t device, uint64_t bytes, void** memory) {
  constexpr uint64_t kPage = 4096;
  const std::lock_guard lock(mutex_);
  if (device != 0) return kInvalidDevice;
  if (FailsNow()) return kFailure;
  void* made = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (made == nullptr) return kernels::cuda::kMemoryAllocation;
  pinned_[static_cast<std::byte*>(made)] = bytes;
  pinned_bytes_ += bytes;
  pinned_peak_ = std::max(pinned_peak_, pinned_bytes_);
  *memory = made;
  return kSuccess;
}

void CudaModel::ReleasePinned(int32_t device, void* memory) {
  const std::lock_guard lock(mutex_);
  while (Step()) {
  }
  const auto found = pinned_.find(static_cast<std::byte*>(memory));
  if (device != 0 || found == pinned_.end()) return violations_.push_back("release of memory that is not pinned");
  pinned_bytes_ -= found->second;
  pinned_.erase(found);
  std::free(memory);
}

bool CudaModel::IsPinned(const void* begin, uint64_t bytes) const {
  const auto* at = static_cast<const std::byte*>(begin);
  auto pinned = std::find_if(pinned_.begin(), pinned_.end(), [&](const auto& entry) {
    return entry.first <= at && at + bytes <= entry.first + entry.second;
  });
  return pinned != pinned_.end();
}

// --- work --------------------------------------------------------------------------------------------------------

// Notes what rows of a copy the host must leave alone.
void CudaModel::AddRows(Operation* operation, CopyWay way, const RowsCopy& rows) {
  const bool to_device = way == CopyWay::kToDevice;
  const void* host = to_device ? rows.from : rows.to;
  const void* device = to_device ? rows.to : rows.from;
  const uint64_t host_stride = to_device ? rows.from_stride : rows.to_stride;
  const uint64_t device_stride = to_device ? rows.to_stride : rows.from_stride;
  if (!IsPinned(host, Reach(rows.bytes, rows.rows, host_stride))) violations_.push_back("a copy outside pinned memory");
  const auto* begin_on_device = static_cast<const std::byte*>(device);
  const auto* end_on_device = begin_on_device + Reach(rows.bytes, rows.rows, device_stride);
  if (!arena_.Holds(begin_on_device, static_cast<uint64_t>(end_on_device - begin_on_device))) {
    violations_.push_back("a copy outside a device allocation");
  }
  const bool first = operation->device_begin == nullptr;
  operation->device_begin = first ? begin_on_device : std::min(operation->device_begin, begin_on_device);
  operation->device_end = first ? end_on_device : std::max(operation->device_end, end_on_device);
  for (uint64_t row = 0; row < rows.rows; ++row) {
    auto* begin = static_cast<std::byte*>(const_cast<void*>(host)) + row * host_stride;
    if (!to_device) std::memset(begin, 0xdd, rows.bytes);
    operation->host.push_back({begin, rows.bytes, to_device ? ChecksumOf(begin, rows.bytes) : 0, !to_device});
  }
}

CudaError CudaModel::Copy(int32_t device, void* stream, CopyWay way, const RowsCopy& rows) {
  const std::lock_guard lock(mutex_);
  if (device != 0) return kInvalidDevice;
  if (FailsNow()) return kFailure;
  const uint64_t least = std::min(rows.to_stride, rows.from_stride), most = std::max(rows.to_stride, rows.from_stride);
  if (rows.rows > 1 && (least < rows.bytes || most > INT32_MAX)) return kInvalidValue;
  Operation operation;
  AddRows(&operation, way, rows);
  operation.run = [rows] {
    for (uint64_t row = 0; row < rows.rows; ++row) {
      std::memcpy(static_cast<std::byte*>(rows.to) + row * rows.to_stride,
                  static_cast<const std::byte*>(rows.from) + row * rows.from_stride, rows.bytes);
    }
  };
  streams_[stream].push_back(std::move(operation));
  engine_copies_ += 1;
  return kSuccess;
}

CudaError CudaModel::Move(int32_t device, void* stream, const Run* runs, uint32_t count) {
  const std::lock_guard lock(mutex_);
  if (device != 0) return kInvalidDevice;
  if (FailsNow()) return kFailure;
  Operation operation;
  if (!IsPinned(runs, count * sizeof(Run))) violations_.push_back("runs outside pinned memory");
  const auto* begin = reinterpret_cast<const std::byte*>(runs);
  operation.host.push_back({begin, count * sizeof(Run), ChecksumOf(begin, count * sizeof(Run)), false});
  for (uint32_t i = 0; i < count; ++i) {
    const RowsCopy rows = RowsOf(runs[i]);
    AddRows(&operation, IsPinned(rows.from, rows.bytes) ? CopyWay::kToDevice : CopyWay::kFromDevice, rows);
  }
  operation.run = [runs, count] { kernels::cuda::MoveRuns(runs, count, nullptr); };
  streams_[stream].push_back(std::move(operation));
  launches_ += 1;
  return kSuccess;
}

void CudaModel::Enqueue(void* stream, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  Operation operation;
  operation.run = std::move(work);
  operation.opens_all = true;
  streams_[stream].push_back(std::move(operation));
}

// Runs one operation of one stream. False: there is none, or the device hangs or stalls.
bool CudaModel::Step() {
  std::vector<std::deque<Operation>*> busy;
  for (auto& [stream, queue] : streams_) {
    if (!queue.empty()) busy.push_back(&queue);
  }
  if (busy.empty() || hangs_ || stalls_) return false;
  std::deque<Operation>& queue = *busy[rng_.Below(busy.size())];
  const Operation operation = std::move(queue.front());
  queue.pop_front();
  for (const Range& range : operation.host) {
    if (!range.written && ChecksumOf(range.begin, range.bytes) != range.checksum) {
      violations_.push_back("host memory changed before what was queued had read it");
      break;
    }
  }
  if (operation.run) {
    const auto bytes = static_cast<uint64_t>(operation.device_end - operation.device_begin);
    operation.opens_all ? arena_.SetAccess(true) : arena_.SetAccess(operation.device_begin, bytes, true);
    operation.run();
    operation.opens_all ? arena_.SetAccess(false) : arena_.SetAccess(operation.device_begin, bytes, false);
  }
  if (operation.done) operation.done();
  return true;
}

void CudaModel::Drain() {
  const std::lock_guard lock(mutex_);
  while (Step()) {
  }
}

// --- events ------------------------------------------------------------------------------------------------------

CudaError CudaModel::CreateEvent(int32_t device, void** event) {
  const std::lock_guard lock(mutex_);
  if (device != 0) return kInvalidDevice;
  if (FailsNow()) return kFailure;
  auto made = std::make_shared<Event>();
  *event = made.get();
  events_[made.get()] = std::move(made);
  return kSuccess;
}

bool CudaModel::CheckEvent(void* event, const char* what) {
  if (events_.contains(event)) return true;
  violations_.push_back(std::string(what) + " of an event that does not live");
  return false;
}

void CudaModel::DestroyEvent(int32_t /*device*/, void* event) {
  const std::lock_guard lock(mutex_);
  if (!CheckEvent(event, "destroy")) return;
  destroyed_.push_back(std::move(events_[event]));
  events_.erase(event);
}

CudaError CudaModel::RecordEvent(int32_t device, void* stream, void* event) {
  const std::lock_guard lock(mutex_);
  if (device != 0 || !CheckEvent(event, "record")) return kInvalidValue;
  if (FailsNow()) return kFailure;
  const std::shared_ptr<Event> recorded = events_[event];
  const uint64_t number = ++recorded->recorded;
  Operation operation;
  operation.done = [recorded, number] { recorded->happened = number; };
  streams_[stream].push_back(std::move(operation));
  return kSuccess;
}

CudaError CudaModel::QueryEvent(int32_t device, void* event) {
  const std::lock_guard lock(mutex_);
  if (device != 0 || !CheckEvent(event, "query")) return kInvalidValue;
  if (FailsNow()) return kFailure;
  for (uint64_t steps = rng_.Below(3); steps > 0 && Step(); --steps) {
  }
  const Event& asked = *events_[event];
  return asked.happened == asked.recorded ? kSuccess : kernels::cuda::kNotReady;
}

uint64_t CudaModel::NowNs() {
  const std::lock_guard lock(mutex_);
  return now_ns_;
}

void CudaModel::Pause(uint64_t ns) {
  const std::lock_guard lock(mutex_);
  ++pauses_;
  if (!stalls_) now_ns_ += ns;
  for (uint64_t steps = 1 + rng_.Below(4); steps > 0 && Step(); --steps) {
  }
}

// --- the engine's side, and the test's ---------------------------------------------------------------------------

std::byte* CudaModel::Allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return arena_.Allocate(bytes);
}

void CudaModel::Free(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  while (Step()) {  // as cudaFree: what uses the memory ends first
  }
  if (arena_.Free(memory) == 0) violations_.push_back("engine freed device memory twice");
}

void CudaModel::Write(std::byte* device, const std::byte* host, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  arena_.Write(device, host, bytes);
}

void CudaModel::Read(std::byte* host, const std::byte* device, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  arena_.Read(host, device, bytes);
}

void CudaModel::FailNth(uint64_t n) {
  const std::lock_guard lock(mutex_);
  fail_countdown_ = n;
  failed_ = false;
}

bool CudaModel::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

void CudaModel::Hang(bool hangs) {
  const std::lock_guard lock(mutex_);
  hangs_ = hangs;
}

void CudaModel::Stall(bool stalls) {
  const std::lock_guard lock(mutex_);
  stalls_ = stalls;
}

bool CudaModel::InUse(const void* memory, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* begin = static_cast<const std::byte*>(memory);
  for (const auto& [stream, queue] : streams_) {
    for (const Operation& operation : queue) {
      for (const Range& range : operation.host) {
        if (range.begin < begin + bytes && begin < range.begin + range.bytes) return true;
      }
    }
  }
  return false;
}

void CudaModel::Violation(const std::string& text) {
  const std::lock_guard lock(mutex_);
  violations_.push_back(text);
}

uint64_t CudaModel::pending() const {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  for (const auto& [stream, queue] : streams_) count += queue.size();
  return count;
}

uint64_t CudaModel::pauses() const {
  const std::lock_guard lock(mutex_);
  return pauses_;
}

uint64_t CudaModel::launches() const {
  const std::lock_guard lock(mutex_);
  return launches_;
}

uint64_t CudaModel::engine_copies() const {
  const std::lock_guard lock(mutex_);
  return engine_copies_;
}

uint64_t CudaModel::pinned_peak() const {
  const std::lock_guard lock(mutex_);
  return pinned_peak_;
}

std::vector<std::string> CudaModel::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

std::vector<std::string> CudaModel::leftovers() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> left;
  if (!pinned_.empty()) left.push_back(std::to_string(pinned_.size()) + " pinned allocations");
  if (!events_.empty()) left.push_back(std::to_string(events_.size()) + " events");
  return left;
}

// --- the device --------------------------------------------------------------------------------------------------

CudaModelDevice::CudaModelDevice(uint64_t arena_bytes, uint64_t seed, uint64_t pinned_bytes)
    : model_(arena_bytes, seed) {
  inner_.struct_size = sizeof inner_;
  kernels::cuda::DeviceOptions options;
  options.pinned_bytes = pinned_bytes;
  kernels::cuda::MakeDevice(model_, options, &inner_);
  // Its functions as they are, but for what is looked at, and for its end: several caches use it one after the other.
  table_ = inner_;
  table_.ctx = this;
  table_.destroy = nullptr;
  table_.allocate_pinned = [](void* ctx, int32_t device_id, uint64_t size, uint64_t alignment) {
    const kvstrata_device& inner = static_cast<CudaModelDevice*>(ctx)->inner_;
    return inner.allocate_pinned(inner.ctx, device_id, size, alignment);
  };
  table_.release_pinned = ReleasePinned;
  table_.copy = [](void* ctx, int32_t device_id, void* stream, int32_t direction, void* host, void* base,
                   const kvstrata_copy* copies, uint64_t count, uint64_t stride) {
    const kvstrata_device& inner = static_cast<CudaModelDevice*>(ctx)->inner_;
    return inner.copy(inner.ctx, device_id, stream, direction, host, base, copies, count, stride);
  };
  table_.record = [](void* ctx, int32_t device_id, void* stream, void** event) {
    const kvstrata_device& inner = static_cast<CudaModelDevice*>(ctx)->inner_;
    return inner.record(inner.ctx, device_id, stream, event);
  };
  table_.wait = [](void* ctx, int32_t device_id, void* event, uint64_t timeout_ms) {
    const kvstrata_device& inner = static_cast<CudaModelDevice*>(ctx)->inner_;
    return inner.wait(inner.ctx, device_id, event, timeout_ms);
  };
  table_.release_event = [](void* ctx, int32_t device_id, void* event) {
    const kvstrata_device& inner = static_cast<CudaModelDevice*>(ctx)->inner_;
    inner.release_event(inner.ctx, device_id, event);
  };
}

void CudaModelDevice::ReleasePinned(void* ctx, int32_t device_id, void* memory, uint64_t size) {
  auto& self = *static_cast<CudaModelDevice*>(ctx);
  // After a failure nobody could wait: such memory comes back with the cache, and is not used again.
  if (!self.model_.failed() && self.model_.InUse(memory, size)) {
    self.model_.Violation("staging released before its copy was waited for");
  }
  self.inner_.release_pinned(self.inner_.ctx, device_id, memory, size);
}

void CudaModelDevice::Close() {
  if (inner_.destroy != nullptr) inner_.destroy(inner_.ctx);
  inner_.destroy = nullptr;
}

}  // namespace kvstrata::test
