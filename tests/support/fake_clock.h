// SPDX-License-Identifier: Apache-2.0
// A clock that stands still until a test moves it.
//
// Thread rule: any thread at once.
#pragma once

#include <atomic>
#include <cstdint>

#include "lib/base/clock.h"

namespace kvstrata::test {

class FakeClock : public core::base::Clock {
 public:
  explicit FakeClock(uint64_t start_ns = 1'000'000'000) : now_ns_(start_ns) {}
  uint64_t MonotonicNs() const override { return now_ns_.load(); }
  uint64_t WallNs() const override { return kEpochNs + now_ns_.load(); }
  void AdvanceNs(uint64_t ns) { now_ns_.fetch_add(ns); }

 private:
  // 2026-01-01 00:00:00 UTC, so that wall times look like wall times.
  static constexpr uint64_t kEpochNs = 1'767'225'600ull * 1'000'000'000;
  std::atomic<uint64_t> now_ns_;
};

}  // namespace kvstrata::test
