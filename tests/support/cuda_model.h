// SPDX-License-Identifier: Apache-2.0
// CUDA's run-time library for tests without a GPU, and libkvstrata_cuda's device on top of it.
//
// Streams are queues. What is queued runs late, a few operations at a time, whenever somebody asks for an event or
// gives way; from which stream, a seed decides. Kernels run on the model of a GPU (grid_model.h). So a library that
// does not wait for what it needs is found:
//
//   * host memory that a queued copy reads, and the descriptions of runs that a queued launch reads, must not change
//     before it runs (checksums);
//   * host memory that a queued copy writes holds rubbish until it has run;
//   * pinned memory is not given back while something queued uses it;
//   * copies use pinned memory and stay within it and within one allocation of the device, whose memory the CPU
//     cannot touch otherwise (device_arena.h);
//   * at the end nothing is left: no pinned memory, no event.
//
// Thread rule: all member functions on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/library/device.h"
#include "kernels/cuda/library/runtime.h"
#include "tests/support/device_arena.h"
#include "tests/support/engine_device.h"
#include "tests/support/fake_random.h"

namespace kvstrata::test {

using CudaError = kernels::cuda::Error;

class CudaModel final : public kernels::cuda::Runtime {
 public:
  static constexpr CudaError kFailure = 719;

  CudaModel(uint64_t arena_bytes, uint64_t seed);
  ~CudaModel() override;

  CudaError AllocatePinned(int32_t device, uint64_t bytes, void** memory) override;
  void ReleasePinned(int32_t device, void* memory) override;
  CudaError Copy(int32_t device, void* stream, kernels::cuda::CopyWay way,
                 const kernels::cuda::RowsCopy& rows) override;
  CudaError Move(int32_t device, void* stream, const kernels::cuda::Run* runs, uint32_t count) override;
  CudaError RecordEvent(int32_t device, void* stream, void* event) override;
  CudaError CreateEvent(int32_t device, void** event) override;
  void DestroyEvent(int32_t device, void* event) override;
  CudaError QueryEvent(int32_t device, void* event) override;
  uint64_t NowNs() override;
  void Pause(uint64_t ns) override;

  // The engine's side.
  std::byte* Allocate(uint64_t bytes);
  void Free(std::byte* memory);
  void Write(std::byte* device, const std::byte* host, uint64_t bytes);
  void Read(std::byte* host, const std::byte* device, uint64_t bytes);
  // A kernel of the engine's, for which device memory is open when its turn comes.
  void Enqueue(void* stream, std::function<void()> work);
  // Runs all that is queued.
  void Drain();

  // The n-th call from now on (1 = the next) of any function that can fail does, and queues nothing. 0: none.
  void FailNth(uint64_t n);
  bool failed() const;
  // Nothing that is queued runs any more, or again. Time passes as fast as those that wait can make it: their patience
  // ends at any moment.
  void Hang(bool hangs);
  // As Hang, but no time passes, so that nobody's patience ends.
  void Stall(bool stalls);
  // Is something queued that uses [memory, memory + bytes)?
  bool InUse(const void* memory, uint64_t bytes) const;
  void Violation(const std::string& text);

  uint64_t pending() const;
  uint64_t pauses() const;
  uint64_t launches() const;
  uint64_t engine_copies() const;
  uint64_t pinned_peak() const;
  std::vector<std::string> violations() const;
  std::vector<std::string> leftovers() const;

 private:
  struct Range {
    const std::byte* begin = nullptr;
    uint64_t bytes = 0;
    uint64_t checksum = 0;  // of what is read
    bool written = false;
  };
  struct Operation {
    std::function<void()> run;
    std::vector<Range> host;
    std::function<void()> done;  // of an event's record
    // Of the device: what is opened while it runs. An engine's work may touch anything.
    const std::byte* device_begin = nullptr;
    const std::byte* device_end = nullptr;
    bool opens_all = false;
  };
  struct Event {
    uint64_t recorded = 0, happened = 0;
  };

  bool FailsNow();
  bool IsPinned(const void* begin, uint64_t bytes) const;
  void AddRows(Operation* operation, kernels::cuda::CopyWay way, const kernels::cuda::RowsCopy& rows);
  bool CheckEvent(void* event, const char* what);
  bool Step();

  mutable std::mutex mutex_;
  DeviceArena arena_;
  Rng rng_;
  std::map<void*, std::deque<Operation>> streams_;
  std::map<std::byte*, uint64_t> pinned_;
  uint64_t pinned_bytes_ = 0, pinned_peak_ = 0;
  std::map<void*, std::shared_ptr<Event>> events_;
  std::vector<std::shared_ptr<Event>> destroyed_;  // kept, so that an address is never an event twice
  std::vector<std::string> violations_;
  uint64_t now_ns_ = 1;
  uint64_t pauses_ = 0, launches_ = 0, engine_copies_ = 0;
  uint64_t fail_countdown_ = 0;
  bool failed_ = false, hangs_ = false, stalls_ = false;
};

// The device of libkvstrata_cuda on that model. It outlives the caches that it is given to.
class CudaModelDevice final : public EngineDevice {
 public:
  CudaModelDevice(uint64_t arena_bytes, uint64_t seed, uint64_t pinned_bytes = uint64_t{128} << 20);
  ~CudaModelDevice() override { Close(); }

  CudaModel& model() { return model_; }
  const kvstrata_device* table() const override { return &table_; }
  std::byte* Allocate(uint64_t bytes) override { return model_.Allocate(bytes); }
  void Free(std::byte* memory) override { model_.Free(memory); }
  void Write(std::byte* device, const std::byte* host, uint64_t bytes) override { model_.Write(device, host, bytes); }
  void Read(std::byte* host, const std::byte* device, uint64_t bytes) override { model_.Read(host, device, bytes); }

  // Ends the device, when all caches have gone: then the model's leftovers are to be looked at.
  void Close();

 private:
  static void ReleasePinned(void* ctx, int32_t device_id, void* memory, uint64_t size);

  CudaModel model_;
  kvstrata_device inner_{};
  kvstrata_device table_{};
};

}  // namespace kvstrata::test
