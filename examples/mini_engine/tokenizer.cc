// SPDX-License-Identifier: Apache-2.0
#include "examples/mini_engine/tokenizer.h"

namespace mini_engine {

void AppendText(std::string_view text, std::vector<int32_t>& tokens) {
  tokens.reserve(tokens.size() + text.size());
  for (const char one : text) tokens.push_back(static_cast<unsigned char>(one));
}

std::vector<int32_t> Tokenize(std::string_view text) {
  std::vector<int32_t> tokens;
  AppendText(text, tokens);
  return tokens;
}

std::string Detokenize(const std::vector<int32_t>& tokens) {
  static constexpr const char* kNames[] = {"<begin>", "<system>", "<user>", "<assistant>", "<end>"};
  std::string text;
  for (const int32_t token : tokens) {
    if (token >= 0 && token < 256) {
      text.push_back(static_cast<char>(token));
    } else if (token >= kBegin && token < static_cast<int32_t>(kVocabulary)) {
      text += kNames[token - kBegin];
    } else {
      text += "<?>";
    }
  }
  return text;
}

}  // namespace mini_engine
