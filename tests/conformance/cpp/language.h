// SPDX-License-Identifier: Apache-2.0
// The language of the conformance cases (tests/conformance/README.md): lines of words, token ids, the bytes of rows.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvstrata::conformance {

struct Step {
  std::string operation;
  std::string name;  // "" when there is none
  std::vector<std::pair<std::string, std::string>> given;
  std::vector<std::string> asked;  // what stands after =>, without status

  // Nothing when there is no such argument.
  std::optional<std::string> Value(std::string_view key) const;
  std::uint64_t Number(std::string_view key, std::uint64_t otherwise = 0) const;
  double Real(std::string_view key) const;
};

// Nothing when nothing is on the line.
std::optional<Step> ParseStep(const std::string& line);

std::vector<std::string> Split(const std::string& text, char at);
std::vector<std::uint32_t> Numbers(const std::string& text);
std::string Plain(std::string text);
std::string Escaped(std::string text);
std::string Hex(const void* bytes, std::size_t count);

std::vector<std::int32_t> TokensOf(const std::string& spec);

// The bytes of `rows` rows from row `first` on.
std::vector<unsigned char> Fill(std::uint64_t mark, std::uint64_t stream, std::uint64_t at, std::uint64_t first,
                                std::uint64_t rows, std::uint64_t row_bytes);

}  // namespace kvstrata::conformance
