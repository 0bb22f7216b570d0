// SPDX-License-Identifier: Apache-2.0
#include "examples/agent_session/conversation.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "examples/mini_engine/tokenizer.h"

namespace agent_session {
namespace {

constexpr char kInstructions[] =
    "You are a coding agent that works on the repository kvstrata, build 4711. Read before you write. Change one thing "
    "at a time, run the tests after each change, and say what you have not checked. Never guess an interface: its "
    "header is below. When a test fails, find the cause before you touch the code. Answer in short sentences.\n";

constexpr char kTools[] =
    R"({"name":"read_file","description":"The text of a file","parameters":{"path":{"type":"string"},)"
    R"("first_line":{"type":"integer"},"last_line":{"type":"integer"}}})"
    "\n"
    R"({"name":"search","description":"Lines that match a regular expression","parameters":{"pattern":{"type":)"
    R"("string"},"folder":{"type":"string"}}})"
    "\n"
    R"({"name":"edit","description":"Replaces one exact piece of text","parameters":{"path":{"type":"string"},)"
    R"("old":{"type":"string"},"new":{"type":"string"}}})"
    "\n"
    R"({"name":"run_tests","description":"Builds and runs the tests that match","parameters":{"filter":{"type":)"
    R"("string"}}})"
    "\n";

// At most so many bytes (= tokens) of each document, and no more than it takes: well over 4,096 tokens, and short
// enough for a run of seconds.
constexpr size_t kExcerptBytes = 2000;
constexpr size_t kEnoughTokens = 4700;
constexpr size_t kLeastTokens = 4096;
constexpr size_t kHeadingBytes = 64;  // above the longest "--- path" line
constexpr const char* kDocuments[] = {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "include/kvstrata/c_api.h",
                                      "include/kvstrata/kernels.h"};

// The first bytes of a file, cut after a line; empty if it cannot be read.
std::string ReadStart(const std::string& path, size_t bytes) {
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<size_t>(file.gcount()));
  return text.substr(0, text.rfind('\n') + 1);
}

}  // namespace

std::vector<int32_t> FirstPrompt(const std::string& source_directory) {
  using mini_engine::AppendText;
  std::vector<int32_t> tokens = {mini_engine::kBegin, mini_engine::kSystem};
  AppendText(kInstructions, tokens);
  AppendText(kTools, tokens);
  for (const char* document : kDocuments) {
    if (tokens.size() + kHeadingBytes >= kEnoughTokens) break;
    AppendText("\n--- " + std::string(document) + "\n", tokens);
    AppendText(ReadStart(source_directory + "/" + document, std::min(kExcerptBytes, kEnoughTokens - tokens.size())),
               tokens);
  }
  if (tokens.size() < kLeastTokens) throw std::runtime_error("cannot read the documents in " + source_directory);
  tokens.push_back(mini_engine::kUser);
  AppendText("Which call tells an engine where to cut its prefill chunks, and why must it be asked first?", tokens);
  tokens.push_back(mini_engine::kAssistant);
  return tokens;
}

std::vector<int32_t> NextTurn(std::vector<int32_t> conversation, const std::vector<int32_t>& answer) {
  conversation.insert(conversation.end(), answer.begin(), answer.end());
  conversation.push_back(mini_engine::kUser);
  mini_engine::AppendText("And what must the engine not do with the rows below the write floor?", conversation);
  conversation.push_back(mini_engine::kAssistant);
  return conversation;
}

std::vector<int32_t> ChangedEarly(std::vector<int32_t> prompt) {
  int32_t& token = prompt[prompt.size() / 4];
  token = token == 'x' ? 'y' : 'x';
  return prompt;
}

void SaveTokens(const std::string& path, const std::vector<int32_t>& tokens) {
  std::ofstream file(path);
  for (const int32_t token : tokens) file << token << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

std::vector<int32_t> LoadTokens(const std::string& path) {
  std::ifstream file(path);
  std::vector<int32_t> tokens{std::istream_iterator<int32_t>(file), std::istream_iterator<int32_t>()};
  if (tokens.empty()) throw std::runtime_error("cannot read " + path);
  return tokens;
}

}  // namespace agent_session
