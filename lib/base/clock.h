// SPDX-License-Identifier: Apache-2.0
// Time as an interface, so that tests and simulations decide what time it is.
//
// Thread rule: all functions may be called on any thread at once.
#pragma once

#include <cstdint>

namespace kvstrata::core::base {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary start; never goes back. For durations, deadlines and leases.
  virtual uint64_t MonotonicNs() const = 0;
  // Nanoseconds since 1970-01-01 UTC; may jump. For what is written down and read by another process.
  virtual uint64_t WallNs() const = 0;
};

// The machine's clocks. One object for the life of the process.
const Clock& SystemClock();

}  // namespace kvstrata::core::base
