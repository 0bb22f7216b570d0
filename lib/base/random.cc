// SPDX-License-Identifier: Apache-2.0
#include "lib/base/random.h"

#include <sys/random.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "lib/base/status.h"

namespace kvstrata::core::base {
namespace {

class KernelRandom : public Random {
 public:
  absl::Status Fill(MutableBytes out) override {
    while (!out.empty()) {
      const ssize_t got = getrandom(out.data(), out.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return IoError("getrandom", "kernel", errno);
      out = out.subspan(static_cast<size_t>(got));
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<uint64_t> Random::Next() {
  std::byte bytes[sizeof(uint64_t)];
  if (absl::Status status = Fill(bytes); !status.ok()) return status;
  return LoadLittleEndian<uint64_t>(bytes);
}

Random& SystemRandom() {
  // Never destroyed: a thread of the caller may still ask while the process ends.
  static Random& random = *new KernelRandom();
  return random;
}

absl::Status SeededRandom::Fill(MutableBytes out) {
  while (!out.empty()) {
    std::byte word[sizeof(uint64_t)];
    StoreLittleEndian(word, NextU64());
    const size_t size = std::min(out.size(), sizeof(word));
    std::copy_n(word, size, out.begin());
    out = out.subspan(size);
  }
  return absl::OkStatus();
}

uint64_t SeededRandom::NextU64() {
  // SplitMix64: a Weyl sequence (step 2^64 / golden ratio) through a mixer with full avalanche.
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t SeededRandom::Below(uint64_t bound) {
  assert(bound != 0);
  return NextU64() % bound;
}

}  // namespace kvstrata::core::base
