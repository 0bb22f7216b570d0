// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_sequence.h"

#include <algorithm>
#include <cstring>

#include "tests/support/fake_handles.h"
#include "tests/support/fake_random.h"

namespace kvstrata::test {

void Sequence::Append(int32_t token, const SequenceKey* key) {
  uint64_t digest = Mix(digests_.back(), static_cast<uint32_t>(token));
  if (key != nullptr) {
    keys_.push_back({size(), key->type, key->bytes});
    digest = Mix(digest, key->type);
    for (const char byte : key->bytes) digest = Mix(digest, static_cast<unsigned char>(byte));
  }
  tokens_.push_back(token);
  digests_.push_back(digest);
}

void Sequence::AppendPrefixOf(const Sequence& other, uint64_t length) {
  for (uint64_t i = 0; i < length; ++i) {
    const auto key = std::find_if(other.keys_.begin(), other.keys_.end(),
                                  [&](const SequenceKey& candidate) { return candidate.position == i; });
    Append(other.token(i), key == other.keys_.end() ? nullptr : &*key);
  }
}

void Sequence::Truncate(uint64_t length) {
  tokens_.resize(length);
  digests_.resize(length + 1);
  std::erase_if(keys_, [&](const SequenceKey& key) { return key.position >= length; });
}

Sequence Sequence::Prefix(uint64_t length) const {
  Sequence prefix = *this;
  prefix.Truncate(length);
  return prefix;
}

uint64_t Sequence::CommonPrefix(const Sequence& other) const {
  uint64_t length = 0;
  while (length < std::min(size(), other.size()) && digests_[length + 1] == other.digests_[length + 1]) ++length;
  return length;
}

const kvstrata_tokens* Sequence::Tokens(uint64_t first, uint64_t count) {
  key_structs_.clear();
  for (const SequenceKey& key : keys_) {
    if (key.position < first || key.position >= first + count) continue;
    auto extra = Sized<kvstrata_extra_key>();
    extra.type = key.type;
    extra.position = key.position;
    extra.bytes = key.bytes.data();
    extra.size = key.bytes.size();
    key_structs_.push_back(extra);
  }
  view_ = Sized<kvstrata_tokens>();
  view_.ids = count == 0 ? nullptr : tokens_.data() + first;
  view_.count = count;
  view_.extra_keys = key_structs_.empty() ? nullptr : key_structs_.data();
  view_.extra_key_count = key_structs_.size();
  return &view_;
}

StateRows StateRowsAt(const kvstrata_stream& stream, uint64_t position) {
  switch (stream.role) {
    case KVSTRATA_ROLE_WINDOW: {
      const uint64_t count = std::min<uint64_t>(position, stream.state_rows);
      return {position - count, count};
    }
    case KVSTRATA_ROLE_OVERLAP:
    case KVSTRATA_ROLE_INDEX_OVERLAP: {
      if (position < stream.ratio) return {};
      return {position - position % stream.ratio - stream.ratio, stream.ratio};
    }
    case KVSTRATA_ROLE_OPEN:
    case KVSTRATA_ROLE_INDEX_OPEN: return {position - position % stream.ratio, position % stream.ratio};
    default: return {0, IsOpaque(stream) ? 1 : stream.state_rows};
  }
}

bool IsRows(const kvstrata_stream& stream) { return stream.kind == KVSTRATA_STREAM_ROWS; }

bool IsOpaque(const kvstrata_stream& stream) { return stream.role == KVSTRATA_ROLE_OPAQUE && stream.row_bytes == 0; }

bool IsPositional(const kvstrata_stream& stream) {
  return stream.role >= KVSTRATA_ROLE_WINDOW && stream.role <= KVSTRATA_ROLE_INDEX_OPEN;
}

uint64_t RowSeed(const kvstrata_stream& stream, uint32_t index, uint64_t row, const Sequence& sequence,
                 uint64_t position) {
  uint64_t end = position;
  if (IsRows(stream)) end = (row + 1) * stream.ratio;
  if (!IsRows(stream) && IsPositional(stream)) end = row + 1;
  return Mix(Mix(sequence.Digest(end), row), index);
}

void FillBytes(uint64_t seed, std::span<std::byte> out) {
  // Rows of some size are such that they gain by compression: six bits of eight. That leaves enough to tell them apart.
  const uint64_t mask = out.size() < 64 ? UINT64_MAX : 0x3f3f3f3f3f3f3f3f;
  uint64_t state = seed | 1;  // xorshift needs a state that is not 0
  size_t done = 0;
  for (; done < out.size(); done += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const uint64_t bytes = state & mask;
    std::memcpy(out.data() + done, &bytes, std::min(sizeof bytes, out.size() - done));
  }
}

uint64_t OpaqueBytes(const Sequence& sequence, uint64_t position) {
  const uint64_t digest = Mix(sequence.Digest(position), 0x626c6f62);
  switch (digest % 8) {
    case 0: return 0;
    case 1: return 1 + (digest >> 8) % (300 << 10);
    case 2: return 4096 * ((digest >> 8) % 16);
    default: return 1 + (digest >> 8) % 20000;
  }
}

}  // namespace kvstrata::test
