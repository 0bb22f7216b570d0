// SPDX-License-Identifier: Apache-2.0
// The checksum of everything stored: XXH3-64, seeded by the sequence number of the placement it protects. A slice of
// an older record that lies where a newer one should be therefore fails its check, though its bytes are intact.
//
// The value is a documented, versioned function of bytes (lib/format/FORMAT.md): the seed is the sequence number times
// kSequenceMultiplier modulo 2^64, so that neighbouring sequence numbers give seeds that differ in many bits.
//
// Thread rule: Checksum is pure; one thread at a time for each Checksummer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/bytes.h"

namespace kvstrata::core::base {

// 2^64 divided by the golden ratio, made odd: multiplying by it is a bijection that spreads small differences.
inline constexpr uint64_t kSequenceMultiplier = 0x9E3779B97F4A7C15u;

uint64_t Checksum(ByteView bytes, uint64_t sequence);

// The same value for bytes that lie in several pieces; the cuts between pieces do not matter.
class Checksummer {
 public:
  explicit Checksummer(uint64_t sequence);
  void Update(ByteView bytes);
  uint64_t Finish() const;

 private:
  // The state of XXH3: its size and alignment are checked where the type is known, in checksum.cc.
  alignas(64) std::byte state_[576];
};

}  // namespace kvstrata::core::base
