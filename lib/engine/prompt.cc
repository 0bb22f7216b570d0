// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/prompt.h"

#include <algorithm>
#include <utility>

#include "lib/base/bytes.h"
#include "lib/base/status.h"

namespace kvstrata::core::engine {

absl::Status Prompt::Append(std::span<const int32_t> ids, std::vector<ExtraKey> keys) {
  if (ids.size() > kMaxTokens - ids_.size()) return base::InvalidArgument("tokens.count", "more than 2^31 tokens");
  const uint64_t end = ids_.size() + ids.size();
  uint64_t last = keys_.empty() ? 0 : keys_.back().position;
  uint64_t at_position = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string field = "tokens.extra_keys[" + std::to_string(i) + "]";
    if (keys[i].position < last) return base::InvalidArgument(field, "positions must ascend");
    if (keys[i].position < ids_.size() || keys[i].position >= end) {
      return base::InvalidArgument(field, "position " + std::to_string(keys[i].position) +
                                              " is not among the tokens [" + std::to_string(ids_.size()) + ", " +
                                              std::to_string(end) + ")");
    }
    if (keys[i].bytes.size() > kMaxExtraKeyBytes) {
      return base::InvalidArgument(field, std::to_string(keys[i].bytes.size()) + " bytes, at most 1024");
    }
    at_position = i > 0 && keys[i].position == last ? at_position + 1 : 1;
    if (at_position > kMaxExtraKeysPerPosition) {
      return base::InvalidArgument(field, "more than 8 keys at position " + std::to_string(keys[i].position));
    }
    last = keys[i].position;
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  keys_.insert(keys_.end(), std::make_move_iterator(keys.begin()), std::make_move_iterator(keys.end()));
  return absl::OkStatus();
}

void Prompt::Truncate(uint64_t length) {
  if (length >= ids_.size()) return;
  ids_.resize(length);
  while (!keys_.empty() && keys_.back().position >= length) keys_.pop_back();
}

std::vector<std::byte> Prompt::Extra(uint64_t first, uint64_t count) const {
  std::vector<std::byte> out;
  base::ByteWriter writer(&out);
  for (auto key = KeyFrom(first); key != keys_.end() && key->position < first + count; ++key) {
    writer.Write(static_cast<uint32_t>(key->position - first));
    writer.Write(key->type);
    writer.Write(uint64_t{key->bytes.size()});
    writer.WriteBytes(base::AsBytes(key->bytes));
  }
  return out;
}

bool Prompt::HasExtra(uint64_t first, uint64_t count) const {
  const auto key = KeyFrom(first);
  return key != keys_.end() && key->position < first + count;
}

std::vector<ExtraKey>::const_iterator Prompt::KeyFrom(uint64_t position) const {
  return std::lower_bound(keys_.begin(), keys_.end(), position,
                          [](const ExtraKey& key, uint64_t at) { return key.position < at; });
}

base::Digest128 TailOf(const Prompt& prompt, const base::BlockDigest& boundary_key, uint64_t boundary,
                       uint64_t position) {
  if (position == boundary) return {};
  return base::TailDigest(boundary_key, prompt.Slice(boundary, position - boundary),
                          prompt.Extra(boundary, position - boundary));
}

}  // namespace kvstrata::core::engine
