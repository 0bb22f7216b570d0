// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/library/available.h"

namespace kvstrata::kernels::cuda {
namespace {

// Tensor cores for bf16, which index scores and attention have.
constexpr int32_t kOldestMajor = 8;

Outcome Unsupported(std::string message) { return {KVSTRATA_E_UNSUPPORTED, "device_id", std::move(message), 0}; }

std::string Release(int32_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Outcome CheckDriver(Devices& devices) {
  int32_t version = 0;
  if (const Error error = devices.DriverVersion(&version); error != kSuccess && error != kInsufficientDriver) {
    return DeviceFailure(devices, "the driver's version", error);
  }
  if (version == 0) return Unsupported("this machine has no NVIDIA driver: libcuda.so.1 cannot be loaded");
  if (version / 1000 < devices.LibraryVersion() / 1000) {
    return Unsupported("the NVIDIA driver knows CUDA up to " + Release(version) + "; this library needs " +
                       Release(devices.LibraryVersion() / 1000 * 1000));
  }
  return {};
}

}  // namespace

Outcome DeviceFailure(Devices& devices, const char* what, Error error) {
  return {KVSTRATA_E_DEVICE, what, devices.Text(error), error};
}

Outcome Available(Devices& devices, int32_t device) {
  if (Outcome outcome = CheckDriver(devices); !outcome.ok()) return outcome;
  int32_t count = 0;
  const Error counted = devices.DeviceCount(&count);
  if (counted == kInsufficientDriver) return Unsupported("the NVIDIA driver is too old: " + devices.Text(counted));
  if (counted == kNoDevice || (counted == kSuccess && count == 0)) {
    return Unsupported("the NVIDIA driver shows this process no device (CUDA_VISIBLE_DEVICES may hide them)");
  }
  if (counted != kSuccess) return DeviceFailure(devices, "the count of devices", counted);
  if (device < 0 || device >= count) {
    return InvalidArgument("device_id", std::to_string(device) + "; there are " + std::to_string(count) + " devices");
  }
  DeviceFacts facts;
  if (const Error error = devices.Describe(device, &facts); error != kSuccess) {
    return DeviceFailure(devices, "the device's properties", error);
  }
  if (facts.major < kOldestMajor) {
    return Unsupported("device " + std::to_string(device) + " (" + facts.name + ") has compute capability " +
                       std::to_string(facts.major) + "." + std::to_string(facts.minor) + "; kernels need 8.0 or later");
  }
  return {};
}

}  // namespace kvstrata::kernels::cuda
