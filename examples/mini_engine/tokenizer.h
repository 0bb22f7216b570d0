// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back: one token per byte, and a few marks of a conversation. The same text always gives the same
// tokens, whatever stands before it, so a conversation that goes on keeps its prefix.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mini_engine {

// Ids 0..255 are bytes.
enum Mark : int32_t { kBegin = 256, kSystem = 257, kUser = 258, kAssistant = 259, kEnd = 260 };
inline constexpr uint32_t kVocabulary = 261;

void AppendText(std::string_view text, std::vector<int32_t>& tokens);
std::vector<int32_t> Tokenize(std::string_view text);
// Marks show as <begin>, <system> ...; ids that are no token as <?>.
std::string Detokenize(const std::vector<int32_t>& tokens);

}  // namespace mini_engine
