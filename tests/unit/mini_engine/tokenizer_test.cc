// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "examples/mini_engine/tokenizer.h"
#include "tests/support/catch.hpp"

namespace {

TEST_CASE("every byte is a token, and text that goes on keeps its prefix") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  const std::vector<int32_t> tokens = mini_engine::Tokenize(all);
  REQUIRE(tokens.size() == 256);
  CHECK(tokens[255] == 255);
  CHECK(mini_engine::Detokenize(tokens) == all);

  std::vector<int32_t> grown = mini_engine::Tokenize("caf\xc3");
  mini_engine::AppendText("\xa9!", grown);
  CHECK(grown == mini_engine::Tokenize("caf\xc3\xa9!"));
}

TEST_CASE("marks and foreign ids are shown, not lost") {
  CHECK(mini_engine::Detokenize({mini_engine::kBegin, 'a', mini_engine::kEnd, 261, -1}) == "<begin>a<end><?><?>");
}

}  // namespace
