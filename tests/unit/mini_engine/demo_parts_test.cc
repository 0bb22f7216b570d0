// SPDX-License-Identifier: Apache-2.0
// The demonstration's parts that need no cache: result lines, the conversation, the trace reader.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "examples/agent_session/conversation.h"
#include "examples/agent_session/report.h"
#include "examples/agent_session/trace.h"
#include "examples/mini_engine/tokenizer.h"
#include "tests/support/catch.hpp"

namespace {

using agent_session::Outcome;

Outcome Sample() {
  Outcome o;
  o.scenario = "warm";
  o.mode = "snapshot_replay";
  o.prompt_tokens = 5000;
  o.matched_tokens = 4864;
  o.usable_tokens = 4864;
  o.replayed_tokens = 64;
  o.recomputed_tokens = 136;
  o.identical = true;
  o.cold_s = 12.5;
  o.warm_s = 0.25;
  o.stored_bytes_per_token = 335.25;
  o.full_kv_bytes_per_token = 40960;
  return o;
}

TEST_CASE("the result line is what machines expect") {
  CHECK(agent_session::ResultLine(Sample()) ==
        "result scenario=warm mode=snapshot_replay prompt_tokens=5000 matched_tokens=4864 usable_tokens=4864 "
        "replayed_tokens=64 recomputed_tokens=136 coverage=0.96 logits=identical cold_s=12.500 warm_s=0.250 "
        "stored_bytes_per_token=335.2 full_kv_bytes_per_token=40960");
  Outcome different = Sample();
  different.identical = false;
  CHECK(agent_session::ResultLine(different).find(" logits=different ") != std::string::npos);
  CHECK(agent_session::ResultLine(Outcome{}).find(" coverage=0.00 ") != std::string::npos);
}

TEST_CASE("the JSON line says the same") {
  const nlohmann::json object = nlohmann::json::parse(agent_session::ResultJson(Sample()));
  CHECK(object["scenario"] == "warm");
  CHECK(object["reused_tokens"] == 4800);
  CHECK(object["coverage"] == 0.96);
  CHECK(object["logits"] == "identical");
}

TEST_CASE("the conversation grows, and one token changes early") {
  const std::vector<int32_t> first = agent_session::FirstPrompt(KVSTRATA_DEMO_SOURCE_DIR);
  CHECK(first.size() >= 4096);
  const std::vector<int32_t> next = agent_session::NextTurn(first, {'y', 'e', 's'});
  REQUIRE(next.size() > first.size() + 3);
  CHECK(std::vector<int32_t>(next.begin(), next.begin() + static_cast<ptrdiff_t>(first.size())) == first);
  CHECK(next[first.size()] == 'y');

  const std::vector<int32_t> changed = agent_session::ChangedEarly(first);
  REQUIRE(changed.size() == first.size());
  size_t differing = 0, where = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    if (first[i] == changed[i]) continue;
    ++differing;
    where = i;
  }
  CHECK(differing == 1);
  CHECK(where == first.size() / 4);
  CHECK_THROWS_AS(agent_session::FirstPrompt("/nowhere"), std::runtime_error);
}

class TemporaryFile {
 public:
  TemporaryFile() {
    path_ = (std::filesystem::temp_directory_path() / "kvstrata-trace-XXXXXX").string();
    const int fd = mkstemp(path_.data());
    REQUIRE(fd >= 0);
    std::fclose(fdopen(fd, "w"));
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }
  void Write(const std::string& text) const { std::ofstream(path_) << text; }

 private:
  std::string path_;
};

TEST_CASE("a trace is read line by line, and a bad line is named") {
  const TemporaryFile file;
  file.Write("{\"timestamp\":1,\"input\":\"ab\",\"output\":\"c\\u00e9\"}\n\n{\"input\":\"\",\"output\":\"\"}\n");
  const auto requests = agent_session::ReadTrace(file.path());
  REQUIRE(requests.size() == 1);
  CHECK(requests[0].prompt == std::vector<int32_t>{mini_engine::kBegin, 'a', 'b'});
  CHECK(requests[0].answer == std::vector<int32_t>{'c', 0xc3, 0xa9});

  for (const char* bad :
       {"{\"input\":\"a\",\"output\":\"b\"}\nnot json\n", "{\"input\":\"a\",\"output\":\"b\"}\n{\"input\":1}\n",
        "{\"input\":\"a\",\"output\":\"b\"}\n{\"input\":\"a\"}\n"}) {
    file.Write(bad);
    std::string message;
    try {
      static_cast<void>(agent_session::ReadTrace(file.path()));
    } catch (const std::runtime_error& failure) {
      message = failure.what();
    }
    CHECK(message.find(":2: ") != std::string::npos);
  }
  CHECK_THROWS_AS(agent_session::ReadTrace("/nowhere/trace.jsonl"), std::runtime_error);
}

TEST_CASE("a saved conversation is loaded again") {
  const TemporaryFile file;
  const std::vector<int32_t> tokens = {256, 65, 0, 260};
  agent_session::SaveTokens(file.path(), tokens);
  CHECK(agent_session::LoadTokens(file.path()) == tokens);
  CHECK_THROWS_AS(agent_session::LoadTokens("/nowhere"), std::runtime_error);
}

}  // namespace
