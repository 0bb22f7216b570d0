// SPDX-License-Identifier: Apache-2.0
// Whether a device can be used, and what is missing where it cannot.
//
// Thread rule: any thread.
#pragma once

#include "kernels/cuda/library/outcome.h"
#include "kernels/cuda/library/runtime.h"

namespace kvstrata::kernels::cuda {

// KVSTRATA_OK, E_UNSUPPORTED (what is missing), E_INVALID_ARGUMENT (no such device), E_DEVICE (the driver failed).
Outcome Available(Devices& devices, int32_t device);

// KVSTRATA_E_DEVICE: `what` failed with `error`.
Outcome DeviceFailure(Devices& devices, const char* what, Error error);

}  // namespace kvstrata::kernels::cuda
