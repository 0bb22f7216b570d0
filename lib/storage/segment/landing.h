// SPDX-License-Identifier: Apache-2.0
// A read past the page cache straight into its destination: whole units go where they belong, and only what the first
// and the last unit have beyond the destination goes through a unit of its own each. No copy of the rest.
//
// Invariants:
//   I1. What is read begins and ends at a unit's boundary in the file and in memory.
//   I2. Nothing outside the destination and the two spare units is written.
//
// Thread rule: one thread at a time.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>

#include "lib/base/bytes.h"

namespace kvstrata::core::storage {

class Landing {
 public:
  // What it takes of spare memory, aligned to a unit.
  static constexpr size_t kSpareUnits = 2;

  // Whether the destination lies as the file does: a unit's boundary in the one is one in the other.
  static bool Fits(uint64_t offset, base::MutableBytes to);

  // `to`, which is not empty and fits, is where the bytes from `offset` on belong.
  Landing(uint64_t offset, base::MutableBytes to, base::MutableBytes spare);

  // What is to be read next; empty when all has been.
  std::span<const iovec> pieces() const { return std::span(pieces_).subspan(first_, count_ - first_); }
  // Where in the file.
  uint64_t offset() const { return offset_; }
  // So much has been read; a read may end anywhere.
  void Advance(uint64_t bytes);
  // Once all has been read: copies what the spare units hold of the destination.
  void Finish();

 private:
  void Add(std::byte* memory, size_t bytes);

  std::array<iovec, 3> pieces_{};
  size_t first_ = 0;
  size_t count_ = 0;
  uint64_t offset_;
  // The first unit's share of the destination, and where it lies in the spare unit; then the last unit's.
  base::MutableBytes head_;
  const std::byte* head_from_ = nullptr;
  base::MutableBytes tail_;
  const std::byte* tail_from_ = nullptr;
};

}  // namespace kvstrata::core::storage
