// SPDX-License-Identifier: Apache-2.0
// What libkvstrata_cuda says where a device cannot be used: each cause has a sentence of its own.
#include "kernels/cuda/library/available.h"

#include <cstring>

#include "tests/support/catch.hpp"

namespace kvstrata::kernels::cuda {
namespace {

constexpr Error kFailure = 999;

// A machine as the case wants it.
class Machine final : public Devices {
 public:
  int32_t driver = 13020;
  int32_t devices = 2;
  DeviceFacts facts{"Some GPU", 9, 0};
  Error driver_error = kSuccess;
  Error count_error = kSuccess;
  Error describe_error = kSuccess;

  std::string Text(Error error) override { return "error " + std::to_string(error); }
  Error DriverVersion(int32_t* version) override {
    *version = driver;
    return driver_error;
  }
  int32_t LibraryVersion() override { return 13000; }
  Error DeviceCount(int32_t* count) override {
    *count = devices;
    return count_error;
  }
  Error Describe(int32_t /*device*/, DeviceFacts* out) override {
    *out = facts;
    return describe_error;
  }
};

void CheckRefused(Machine machine, int32_t device, kvstrata_status code, const char* words) {
  const Outcome outcome = Available(machine, device);
  INFO(outcome.message);
  CHECK(outcome.code == code);
  CHECK(outcome.message.find(words) != std::string::npos);
}

TEST_CASE("a device that can be used is no error") {
  Machine machine;
  CHECK(Available(machine, 0).ok());
  CHECK(Available(machine, 1).ok());
  machine.driver = 13000;
  machine.facts = {"An older one", 8, 0};
  CHECK(Available(machine, 0).ok());
}

TEST_CASE("no driver, an old one, no device and an old one are told apart") {
  Machine none;
  none.driver = 0;
  CheckRefused(none, 0, KVSTRATA_E_UNSUPPORTED, "no NVIDIA driver");
  none.driver_error = kInsufficientDriver;
  CheckRefused(none, 0, KVSTRATA_E_UNSUPPORTED, "no NVIDIA driver");
  Machine old;
  old.driver = 12040;
  CheckRefused(old, 0, KVSTRATA_E_UNSUPPORTED, "up to 12.4; this library needs 13.0");
  Machine refused;
  refused.count_error = kInsufficientDriver;
  CheckRefused(refused, 0, KVSTRATA_E_UNSUPPORTED, "too old: error 35");
  Machine empty;
  empty.devices = 0;
  CheckRefused(empty, 0, KVSTRATA_E_UNSUPPORTED, "no device");
  empty.count_error = kNoDevice;
  CheckRefused(empty, 0, KVSTRATA_E_UNSUPPORTED, "no device");
  Machine turing;
  turing.facts = {"Turing", 7, 5};
  CheckRefused(turing, 1, KVSTRATA_E_UNSUPPORTED, "device 1 (Turing) has compute capability 7.5");
}

TEST_CASE("a number that no device has, and a driver that fails") {
  CheckRefused({}, 2, KVSTRATA_E_INVALID_ARGUMENT, "2; there are 2 devices");
  CheckRefused({}, -1, KVSTRATA_E_INVALID_ARGUMENT, "-1");
  Machine version;
  version.driver_error = kFailure;
  Machine count;
  count.count_error = kFailure;
  Machine describe;
  describe.describe_error = kFailure;
  for (Machine* machine : {&version, &count, &describe}) {
    const Outcome outcome = Available(*machine, 0);
    CHECK(outcome.code == KVSTRATA_E_DEVICE);
    CHECK(outcome.native_code == kFailure);
    CHECK(outcome.message == "error 999");
  }
}

TEST_CASE("an error is written up to the caller's size and no further") {
  const Outcome outcome{KVSTRATA_E_DEVICE, "copy", std::string(1000, 'x'), 7};
  kvstrata_error error;
  std::memset(&error, 0x5a, sizeof error);
  error.struct_size = sizeof error;
  CHECK(Report(outcome, &error) == KVSTRATA_E_DEVICE);
  CHECK(error.code == KVSTRATA_E_DEVICE);
  CHECK(error.native_code == 7);
  CHECK(std::string(error.field) == "copy");
  CHECK(std::string(error.message) == std::string(sizeof error.message - 1, 'x'));
  CHECK(error.struct_size == sizeof error);

  std::memset(&error, 0x5a, sizeof error);
  error.struct_size = 16;  // struct_size, code and native_code
  CHECK(Report(outcome, &error) == KVSTRATA_E_DEVICE);
  CHECK(error.native_code == 7);
  CHECK(error.field[0] == 0x5a);
  error.struct_size = 2;
  error.code = 1;
  CHECK(Report(outcome, &error) == KVSTRATA_E_DEVICE);
  CHECK(error.code == 1);
  CHECK(Report(outcome, nullptr) == KVSTRATA_E_DEVICE);
}

}  // namespace
}  // namespace kvstrata::kernels::cuda
