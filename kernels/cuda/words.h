// SPDX-License-Identifier: Apache-2.0
// Bytes moved in words as wide as their addresses allow, and finding one's place in rows. The caller's byte planes need
// no alignment, so a word's width is a property of a call: the widest that divides every address and size of it.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kernels/cuda/grid.h"

namespace kvstrata::kernels::cuda {

inline uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// The largest of 16, 8, 4, 2 and 1 that divides `bits`: addresses, strides and sizes, joined with |.
inline uint32_t WordBytes(uint64_t bits) {
  for (uint32_t word = 16; word > 1; word /= 2) {
    if (bits % word == 0) return word;
  }
  return 1;
}

struct Quotient {
  uint64_t whole;
  uint64_t rest;
};

// A 64-bit division takes a GPU several times as long as one of 32 bits, which is what almost every call needs.
KVSTRATA_DEVICE Quotient Divide(uint64_t dividend, uint64_t divisor) {
  if ((dividend | divisor) >> 32 == 0) {
    const uint32_t narrow = static_cast<uint32_t>(dividend);
    const uint32_t by = static_cast<uint32_t>(divisor);
    return {narrow / by, narrow % by};
  }
  return {dividend / divisor, dividend % divisor};
}

// `word` is one of the five; only so many bytes of the result mean something.
KVSTRATA_DEVICE Word16 LoadWord(const uint8_t* from, uint32_t word) {
  Word16 value{};
  switch (word) {
    case 16: return *reinterpret_cast<const Word16*>(from);
    case 8: {
      const uint64_t bits = *reinterpret_cast<const uint64_t*>(from);
      value.parts[0] = static_cast<uint32_t>(bits);
      value.parts[1] = static_cast<uint32_t>(bits >> 32);
      return value;
    }
    case 4: value.parts[0] = *reinterpret_cast<const uint32_t*>(from); return value;
    case 2: value.parts[0] = *reinterpret_cast<const uint16_t*>(from); return value;
    default: value.parts[0] = *from; return value;
  }
}

KVSTRATA_DEVICE void StoreWord(const Word16& value, uint32_t word, uint8_t* to) {
  switch (word) {
    case 16: *reinterpret_cast<Word16*>(to) = value; return;
    case 8: *reinterpret_cast<uint64_t*>(to) = uint64_t{value.parts[1]} << 32 | value.parts[0]; return;
    case 4: *reinterpret_cast<uint32_t*>(to) = value.parts[0]; return;
    case 2: *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(value.parts[0]); return;
    default: *to = static_cast<uint8_t>(value.parts[0]); return;
  }
}

// The first `bytes` (at most 16, a multiple of `word`) of a place that `word` divides; what lies behind is 0.
KVSTRATA_DEVICE Word16 LoadBytes(const uint8_t* from, uint32_t bytes, uint32_t word) {
  if (bytes == word) return LoadWord(from, word);
  uint64_t low = 0;
  uint64_t high = 0;
  for (uint32_t i = 0; i < bytes; i += word) {
    const Word16 part = LoadWord(from + i, word);
    const uint64_t bits = (uint64_t{part.parts[1]} << 32 | part.parts[0]) << (i % 8 * 8);
    low |= i < 8 ? bits : 0;
    high |= i < 8 ? 0 : bits;
  }
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
           static_cast<uint32_t>(high >> 32)}};
}

}  // namespace kvstrata::kernels::cuda
