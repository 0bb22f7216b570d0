// SPDX-License-Identifier: Apache-2.0
// Keys for tests of the trie: real chained digests of small token blocks.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lib/trie/trie.h"

namespace kvstrata::test {

inline core::trie::BlockKey TestRoot() { return core::base::RootDigest({}); }

inline core::trie::BlockKey ChildKey(const core::trie::BlockKey& parent, int32_t token) {
  return core::base::ChainBlock(parent, std::span(&token, 1));
}

// Blocks of one token each.
inline core::trie::KeySequence KeysOf(std::vector<int32_t> tokens) {
  return core::trie::KeySequence(TestRoot(), [tokens = std::move(tokens)](uint64_t i, const auto& parent) {
    return ChildKey(parent, tokens.at(i));
  });
}

}  // namespace kvstrata::test
