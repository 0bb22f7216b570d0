// SPDX-License-Identifier: Apache-2.0
// Randomness as an interface, so that a test or a simulation is replayed by its seed.
//
// Thread rule: SystemRandom() on any thread at once; one thread at a time for each SeededRandom.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"

namespace kvstrata::core::base {

class Random {
 public:
  virtual ~Random() = default;
  virtual absl::Status Fill(MutableBytes out) = 0;
  absl::StatusOr<uint64_t> Next();
};

// The operating system's generator (getrandom); fit for unguessable names and salts.
Random& SystemRandom();

// The same bytes for the same seed, on every machine (SplitMix64). Never fails. Not for secrets.
class SeededRandom : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  absl::Status Fill(MutableBytes out) override;
  uint64_t NextU64();
  // Uniform in [0, bound); `bound` is not 0. The bias of the reduction is below bound / 2^64.
  uint64_t Below(uint64_t bound);

 private:
  uint64_t state_;
};

}  // namespace kvstrata::core::base
