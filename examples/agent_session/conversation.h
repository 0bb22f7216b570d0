// SPDX-License-Identifier: Apache-2.0
// What the agent is told: this repository's own documents as system prompt, tool schemas and repository context.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace agent_session {

// At least 4,096 tokens: instructions, tool schemas, excerpts of the documents under `source_directory`, and the first
// question. Throws std::runtime_error where too few documents can be read.
std::vector<int32_t> FirstPrompt(const std::string& source_directory);

// The conversation so far with one more question.
std::vector<int32_t> NextTurn(std::vector<int32_t> conversation, const std::vector<int32_t>& answer);

// The same prompt with one token changed at a quarter of its length.
std::vector<int32_t> ChangedEarly(std::vector<int32_t> prompt);

// A conversation between two processes.
void SaveTokens(const std::string& path, const std::vector<int32_t>& tokens);
std::vector<int32_t> LoadTokens(const std::string& path);

}  // namespace agent_session
