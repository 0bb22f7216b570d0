// SPDX-License-Identifier: Apache-2.0
// What each target defines: libFuzzer's entry point, called with any bytes. A broken promise aborts, so that a fuzzer
// and the replay driver see it alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

inline std::string_view AsText(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

inline void Promise(bool holds) {
  if (!holds) std::abort();
}
