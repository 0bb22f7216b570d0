// SPDX-License-Identifier: Apache-2.0
#include "lib/base/checksum.h"

#include <new>

#include "lib/base/checksum_functions.h"

// Inlined, because the state is held by value: its size must be the one this file was compiled with, not the one of
// whatever shared library is found at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvstrata::core::base {
namespace {

uint64_t SeedOf(uint64_t sequence) { return sequence * kSequenceMultiplier; }

XXH3_state_t* State(std::byte* bytes) { return std::launder(reinterpret_cast<XXH3_state_t*>(bytes)); }
const XXH3_state_t* State(const std::byte* bytes) { return std::launder(reinterpret_cast<const XXH3_state_t*>(bytes)); }

uint64_t Whole(const std::byte* bytes, size_t size, uint64_t seed) { return XXH3_64bits_withSeed(bytes, size, seed); }

void Update(std::byte* state, const std::byte* bytes, size_t size) {
  XXH3_64bits_update(State(state), bytes, size);
}

const ChecksumFunctions& Functions() {
  static constexpr ChecksumFunctions kPlain{&Whole, &Update};
  static const ChecksumFunctions* const kBest = ChecksumAvx2() != nullptr ? ChecksumAvx2() : &kPlain;
  return *kBest;
}

}  // namespace

uint64_t Checksum(ByteView bytes, uint64_t sequence) {
  return Functions().whole(bytes.data(), bytes.size(), SeedOf(sequence));
}

Checksummer::Checksummer(uint64_t sequence) {
  static_assert(sizeof(XXH3_state_t) <= sizeof(state_) && alignof(XXH3_state_t) <= 64);
  new (state_) XXH3_state_t;
  XXH3_INITSTATE(State(state_));
  XXH3_64bits_reset_withSeed(State(state_), SeedOf(sequence));
}

void Checksummer::Update(ByteView bytes) {
  if (!bytes.empty()) Functions().update(state_, bytes.data(), bytes.size());
}

uint64_t Checksummer::Finish() const { return XXH3_64bits_digest(State(state_)); }

}  // namespace kvstrata::core::base
