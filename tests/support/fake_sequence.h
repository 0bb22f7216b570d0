// SPDX-License-Identifier: Apache-2.0
// What a fake model computes: every row's bytes are a pure function of the stream, the row's index and the tokens up to
// the row's end. So each restored byte can be checked without keeping a reference run, and a row of another prefix,
// of another row or of another stream is never taken for the right one.
//
// Thread rule: one thread at a time for each Sequence; the functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvstrata/c_api.h"

namespace kvstrata::test {

struct SequenceKey {
  uint64_t position = 0;
  uint32_t type = 0;
  std::string bytes;
};

// Tokens, their extra keys, and a digest of every prefix.
class Sequence {
 public:
  uint64_t size() const { return tokens_.size(); }
  int32_t token(uint64_t i) const { return tokens_[i]; }
  void Append(int32_t token, const SequenceKey* key = nullptr);
  void AppendPrefixOf(const Sequence& other, uint64_t length);
  void Truncate(uint64_t length);
  Sequence Prefix(uint64_t length) const;

  // Of the first `length` tokens.
  uint64_t Digest(uint64_t length) const { return digests_[length]; }
  // Tokens that both share from the start.
  uint64_t CommonPrefix(const Sequence& other) const;

  // Tokens first .. first+count-1 for a call; valid until the sequence changes or Tokens is called again.
  const kvstrata_tokens* Tokens(uint64_t first, uint64_t count);
  const kvstrata_tokens* All() { return Tokens(0, size()); }

 private:
  std::vector<int32_t> tokens_;
  std::vector<SequenceKey> keys_;  // ascending positions
  std::vector<uint64_t> digests_{0x6b76737472617461ull};
  std::vector<kvstrata_extra_key> key_structs_;
  kvstrata_tokens view_{};
};

// Rows of a state stream that describe `position`: [first, first + count), by the header's table.
struct StateRows {
  uint64_t first = 0;
  uint64_t count = 0;
};
StateRows StateRowsAt(const kvstrata_stream& stream, uint64_t position);

bool IsRows(const kvstrata_stream& stream);
bool IsOpaque(const kvstrata_stream& stream);  // a state of any size
// True where a state row's content depends on its own position alone, so that it stays right as the sequence grows.
bool IsPositional(const kvstrata_stream& stream);

// The content of one row; `position` matters for state streams that are not positional.
uint64_t RowSeed(const kvstrata_stream& stream, uint32_t index, uint64_t row, const Sequence& sequence,
                 uint64_t position);
void FillBytes(uint64_t seed, std::span<std::byte> out);

// The size of an opaque state: 0 to 300 KiB, most of them small.
uint64_t OpaqueBytes(const Sequence& sequence, uint64_t position);

}  // namespace kvstrata::test
