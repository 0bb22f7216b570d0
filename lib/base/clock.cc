// SPDX-License-Identifier: Apache-2.0
#include "lib/base/clock.h"

#include <chrono>

namespace kvstrata::core::base {
namespace {

template <typename StdClock>
uint64_t NowNs() {
  const auto since = StdClock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

class RealClock : public Clock {
 public:
  uint64_t MonotonicNs() const override { return NowNs<std::chrono::steady_clock>(); }
  uint64_t WallNs() const override { return NowNs<std::chrono::system_clock>(); }
};

}  // namespace

const Clock& SystemClock() {
  // Never destroyed: a thread of the caller may still ask while the process ends.
  static const Clock& clock = *new RealClock();
  return clock;
}

}  // namespace kvstrata::core::base
