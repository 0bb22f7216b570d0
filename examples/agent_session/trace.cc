// SPDX-License-Identifier: Apache-2.0
#include "examples/agent_session/trace.h"

#include <fstream>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "examples/mini_engine/tokenizer.h"

namespace agent_session {

std::vector<TraceRequest> ReadTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<TraceRequest> out;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto bad = [&](const char* what) {
      return std::runtime_error(path + ":" + std::to_string(number) + ": " + what);
    };
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object()) throw bad("no JSON object");
    if (!object.contains("input") || !object["input"].is_string()) throw bad("no string \"input\"");
    if (!object.contains("output") || !object["output"].is_string()) throw bad("no string \"output\"");
    const std::string& input = object["input"].get_ref<const std::string&>();
    if (input.empty()) continue;
    TraceRequest request;
    request.prompt.push_back(mini_engine::kBegin);
    mini_engine::AppendText(input, request.prompt);
    request.answer = mini_engine::Tokenize(object["output"].get_ref<const std::string&>());
    out.push_back(std::move(request));
  }
  return out;
}

}  // namespace agent_session
