// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "kernels/cuda/library/runtime.h"

namespace kvstrata::kernels::cuda {
namespace {

static_assert(kSuccess == cudaSuccess && kMemoryAllocation == cudaErrorMemoryAllocation &&
              kInsufficientDriver == cudaErrorInsufficientDriver && kNoDevice == cudaErrorNoDevice &&
              kNotReady == cudaErrorNotReady);

// An error that was returned is also kept for the thread's next cudaGetLastError, which belongs to the host.
Error Taken(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// The driver's functions that the run-time library has no equivalent of. It finds them: nothing links the driver.
struct Driver {
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
  cudaError_t status = cudaSuccess;

  template <typename Function>
  void Find(const char* name, Function* function) {
    constexpr unsigned kVersion = 12000;  // of the functions' signatures
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
    if (error != cudaSuccess) status = error;
    if (error == cudaSuccess && found == nullptr) status = cudaErrorSymbolNotFound;
    *function = reinterpret_cast<Function>(found);
  }

  Driver() {
    Find("cuDevicePrimaryCtxRetain", &retain);
    Find("cuCtxPushCurrent", &push);
    Find("cuCtxPopCurrent", &pop);
  }
};

// Makes a device current for this thread while it lives. Not by cudaSetDevice: to set back a device that the thread
// never used would take some of its memory.
class CurrentDevice {
 public:
  explicit CurrentDevice(int32_t device) {
    static const Driver driver;
    pop_ = driver.pop;
    CUcontext context = nullptr;
    error_ = driver.status != cudaSuccess ? Error{driver.status} : ContextOf(driver, device, &context);
    if (error_ == kSuccess) error_ = driver.push(context);
    pushed_ = error_ == kSuccess;
  }
  ~CurrentDevice() {
    CUcontext popped = nullptr;
    if (pushed_) pop_(&popped);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  Error error() const { return error_; }

 private:
  // Retained once each, and kept: what lies on the device outlives any call. The numbers of a CUresult are those of a
  // cudaError_t where both have the error.
  static Error ContextOf(const Driver& driver, int32_t device, CUcontext* context) {
    constexpr int32_t kMostDevices = 64;
    static std::mutex mutex;
    static CUcontext contexts[kMostDevices] = {};
    if (device < 0 || device >= kMostDevices) return cudaErrorInvalidDevice;
    const std::lock_guard lock(mutex);
    Error error = kSuccess;
    if (contexts[device] == nullptr) error = driver.retain(&contexts[device], device);
    *context = contexts[device];
    return error;
  }

  Error error_ = kSuccess;
  bool pushed_ = false;
  decltype(&cuCtxPopCurrent) pop_ = nullptr;
};

// Calls the run-time library with `device` current.
template <typename Call>
Error On(int32_t device, const Call& call) {
  const CurrentDevice current(device);
  return current.error() != kSuccess ? current.error() : Taken(call());
}

class CudaDevices final : public Devices {
 public:
  std::string Text(Error error) override { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
  Error DriverVersion(int32_t* version) override { return Taken(cudaDriverGetVersion(version)); }
  int32_t LibraryVersion() override { return CUDART_VERSION; }
  Error DeviceCount(int32_t* count) override { return Taken(cudaGetDeviceCount(count)); }

  Error Describe(int32_t device, DeviceFacts* facts) override {
    cudaDeviceProp properties;
    const Error error = Taken(cudaGetDeviceProperties(&properties, device));
    if (error == kSuccess) *facts = {properties.name, properties.major, properties.minor};
    return error;
  }
};

class CudaRuntime final : public Runtime {
 public:
  Error AllocatePinned(int32_t device, uint64_t bytes, void** memory) override {
    return On(device, [&] { return cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped); });
  }
  void ReleasePinned(int32_t device, void* memory) override {
    On(device, [&] { return cudaFreeHost(memory); });
  }

  Error Copy(int32_t device, void* stream, CopyWay way, const RowsCopy& rows) override {
    const cudaMemcpyKind kind = way == CopyWay::kToDevice ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    const auto on = static_cast<cudaStream_t>(stream);
    return On(device, [&] {
      return rows.rows == 1 ? cudaMemcpyAsync(rows.to, rows.from, rows.bytes, kind, on)
                            : cudaMemcpy2DAsync(rows.to, rows.to_stride, rows.from, rows.from_stride, rows.bytes,
                                                rows.rows, kind, on);
    });
  }

  Error Move(int32_t device, void* stream, const Run* runs, uint32_t count) override {
    return On(device, [&] {
      if (MoveRuns(runs, count, stream) == kOk) return cudaSuccess;
      const cudaError_t error = cudaGetLastError();
      return error == cudaSuccess ? cudaErrorLaunchFailure : error;
    });
  }

  Error RecordEvent(int32_t device, void* stream, void* event) override {
    return On(device, [&] {
      return cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream));
    });
  }

  Error CreateEvent(int32_t device, void** event) override {
    return On(device, [&] {
      return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming);
    });
  }

  void DestroyEvent(int32_t device, void* event) override {
    On(device, [&] { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); });
  }

  Error QueryEvent(int32_t device, void* event) override {
    return On(device, [&] { return cudaEventQuery(static_cast<cudaEvent_t>(event)); });
  }

  uint64_t NowNs() override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }

  // Sleeping is longer than what is asked by tens of microseconds, so a short pause only gives way.
  void Pause(uint64_t ns) override {
    constexpr uint64_t kShortNs = 20'000;
    if (ns < kShortNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    }
  }
};

}  // namespace

// Never destroyed: a host's threads may call while the process ends.
Devices& SystemDevices() {
  static Devices& devices = *new CudaDevices;
  return devices;
}

Runtime& SystemRuntime() {
  static Runtime& runtime = *new CudaRuntime;
  return runtime;
}

}  // namespace kvstrata::kernels::cuda
