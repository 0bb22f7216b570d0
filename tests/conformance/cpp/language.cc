// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/cpp/language.h"

#include <algorithm>
#include <sstream>

namespace kvstrata::conformance {
namespace {

std::pair<std::string, std::string> Pair(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos) return {word, ""};
  return {word.substr(0, equals), word.substr(equals + 1)};
}

}  // namespace

std::optional<std::string> Step::Value(std::string_view key) const {
  for (const auto& [known, value] : given) {
    if (known == key) return value;
  }
  return std::nullopt;
}

std::uint64_t Step::Number(std::string_view key, std::uint64_t otherwise) const {
  const std::optional<std::string> value = Value(key);
  return value ? std::stoull(*value) : otherwise;
}

double Step::Real(std::string_view key) const {
  const std::optional<std::string> value = Value(key);
  return value ? std::stod(*value) : 0;
}

std::optional<Step> ParseStep(const std::string& line) {
  std::istringstream words(line.substr(0, line.find('#')));
  Step step;
  if (!(words >> step.operation)) return std::nullopt;
  bool answers = false;
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (word == "=>") {
      answers = true;
    } else if (answers) {
      if (Pair(word).first != "status") step.asked.push_back(Pair(word).first);
    } else if (first && word.find('=') == std::string::npos) {
      step.name = word;
    } else {
      step.given.push_back(Pair(word));
    }
  }
  return step;
}

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> out;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, at);) out.push_back(part);
  return out;
}

std::vector<std::uint32_t> Numbers(const std::string& text) {
  std::vector<std::uint32_t> out;
  for (const std::string& word : Split(text, ',')) out.push_back(static_cast<std::uint32_t>(std::stoul(word)));
  return out;
}

std::string Plain(std::string text) {
  std::replace(text.begin(), text.end(), '~', ' ');
  std::replace(text.begin(), text.end(), '|', '\n');
  return text;
}

std::string Escaped(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '~');
  std::replace(text.begin(), text.end(), '\n', '|');
  return text;
}

std::string Hex(const void* bytes, std::size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned char byte = static_cast<const unsigned char*>(bytes)[i];
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::vector<std::int32_t> TokensOf(const std::string& spec) {
  std::vector<std::int32_t> ids;
  for (const std::string& part : Split(spec, ',')) {
    const std::size_t kind = std::stoul(part);
    const std::size_t end = ids.size() + std::stoul(part.substr(part.find('x') + 1));
    while (ids.size() < end) ids.push_back(static_cast<std::int32_t>((kind * 101 + ids.size() * 7) % 50000));
  }
  return ids;
}

std::vector<unsigned char> Fill(std::uint64_t mark, std::uint64_t stream, std::uint64_t at, std::uint64_t first,
                                std::uint64_t rows, std::uint64_t row_bytes) {
  std::vector<unsigned char> out;
  for (std::uint64_t row = first; row < first + rows; ++row) {
    for (std::uint64_t byte = 0; byte < row_bytes; ++byte) {
      out.push_back(static_cast<unsigned char>(mark * 29 + stream * 37 + at * 101 + row * 11 + byte * 3 +
                                               (row >> 8) * 5 + (at >> 8) * 7));
    }
  }
  return out;
}

}  // namespace kvstrata::conformance
