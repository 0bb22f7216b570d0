// SPDX-License-Identifier: Apache-2.0
// Some neighbouring channels of a row, in registers: floats from and to either element type, and packed bytes. Eight
// channels are moved in whole words, and the caller has checked that all addresses allow it; fewer one by one.
//
// Thread rule: pure functions.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/words.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::cuda {

inline constexpr uint32_t kWideChannels = 8;

struct Rows {
  void* data;
  int32_t type;  // KVSTRATA_KERNELS_F32 or _BF16

  // Elements at, at + 1, ... .
  template <uint32_t kChannels>
  KVSTRATA_DEVICE void Load(uint64_t at, float (&values)[kChannels]) const {
    if (type == KVSTRATA_KERNELS_F32) {
      const float* from = static_cast<const float*>(data) + at;
      if constexpr (kChannels == kWideChannels) {
        for (uint32_t i = 0; i < 2; ++i) {
          const Word16 word = reinterpret_cast<const Word16*>(from)[i];
          for (uint32_t j = 0; j < 4; ++j) values[4 * i + j] = std::bit_cast<float>(word.parts[j]);
        }
      } else {
        for (uint32_t i = 0; i < kChannels; ++i) values[i] = from[i];
      }
      return;
    }
    const uint16_t* from = static_cast<const uint16_t*>(data) + at;
    if constexpr (kChannels == kWideChannels) {
      const Word16 word = *reinterpret_cast<const Word16*>(from);
      for (uint32_t j = 0; j < 4; ++j) {
        values[2 * j] = std::bit_cast<float>(word.parts[j] << 16);
        values[2 * j + 1] = std::bit_cast<float>(word.parts[j] & 0xFFFF0000u);
      }
    } else {
      for (uint32_t i = 0; i < kChannels; ++i) values[i] = reference::Bf16ToF32(from[i]);
    }
  }

  template <uint32_t kChannels>
  KVSTRATA_DEVICE void Store(uint64_t at, const float (&values)[kChannels]) const {
    if (type == KVSTRATA_KERNELS_F32) {
      float* to = static_cast<float*>(data) + at;
      if constexpr (kChannels == kWideChannels) {
        for (uint32_t i = 0; i < 2; ++i) {
          Word16 word;
          for (uint32_t j = 0; j < 4; ++j) word.parts[j] = std::bit_cast<uint32_t>(values[4 * i + j]);
          reinterpret_cast<Word16*>(to)[i] = word;
        }
      } else {
        for (uint32_t i = 0; i < kChannels; ++i) to[i] = values[i];
      }
      return;
    }
    uint16_t* to = static_cast<uint16_t*>(data) + at;
    if constexpr (kChannels == kWideChannels) {
      Word16 word;
      for (uint32_t j = 0; j < 4; ++j) {
        word.parts[j] = uint32_t{reference::F32ToBf16(values[2 * j + 1])} << 16 | reference::F32ToBf16(values[2 * j]);
      }
      *reinterpret_cast<Word16*>(to) = word;
    } else {
      for (uint32_t i = 0; i < kChannels; ++i) to[i] = reference::F32ToBf16(values[i]);
    }
  }
};

// Bytes of `kChannels` channels from and to a plane, byte 0 first: in one word of kBytes where they are eight.
template <uint32_t kChannels, uint32_t kBytes>
KVSTRATA_DEVICE void LoadPlane(const uint8_t* from, uint8_t (&bytes)[kBytes]) {
  if constexpr (kChannels == kWideChannels) {
    const Word16 word = LoadWord(from, kBytes);
    for (uint32_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<uint8_t>(word.parts[i / 4] >> (i % 4 * 8));
  } else {
    for (uint32_t i = 0; i < kBytes; ++i) bytes[i] = from[i];
  }
}

template <uint32_t kChannels, uint32_t kBytes>
KVSTRATA_DEVICE void StorePlane(const uint8_t (&bytes)[kBytes], uint8_t* to) {
  if constexpr (kChannels == kWideChannels) {
    Word16 word{};
    for (uint32_t i = 0; i < kBytes; ++i) word.parts[i / 4] |= uint32_t{bytes[i]} << (i % 4 * 8);
    StoreWord(word, kBytes, to);
  } else {
    for (uint32_t i = 0; i < kBytes; ++i) to[i] = bytes[i];
  }
}

}  // namespace kvstrata::kernels::cuda
