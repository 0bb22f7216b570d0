// SPDX-License-Identifier: Apache-2.0
// Threads of a guest: named, and never interrupted by the host's signals.
//
// Thread rule: any thread.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace kvstrata::core::storage {

// `name` has at most 15 bytes, what the kernel takes. kIo when the system refuses a thread.
absl::StatusOr<std::thread> StartQuietThread(const std::string& name, std::function<void()> body);

}  // namespace kvstrata::core::storage
