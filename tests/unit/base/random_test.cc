// SPDX-License-Identifier: Apache-2.0
#include "lib/base/random.h"

#include <array>

#include "lib/base/clock.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_clock.h"

namespace base = kvstrata::core::base;

TEST_CASE("a seed gives the published SplitMix64 sequence") {
  base::SeededRandom random(1234567);
  CHECK(random.NextU64() == 6457827717110365317u);
  CHECK(random.NextU64() == 3203168211198807973u);
}

TEST_CASE("system randomness fills every byte and does not repeat") {
  std::array<std::byte, 24> a{};
  std::array<std::byte, 24> b{};
  REQUIRE(base::SystemRandom().Fill(a).ok());
  REQUIRE(base::SystemRandom().Fill(b).ok());
  CHECK(a != b);
}

TEST_CASE("clocks go forward") {
  const uint64_t before = base::SystemClock().MonotonicNs();
  CHECK(base::SystemClock().MonotonicNs() >= before);
  kvstrata::test::FakeClock fake;
  const uint64_t start = fake.MonotonicNs();
  const uint64_t wall = fake.WallNs();
  fake.AdvanceNs(5);
  CHECK(fake.MonotonicNs() == start + 5);
  CHECK(fake.WallNs() == wall + 5);
}
