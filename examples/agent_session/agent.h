// SPDX-License-Identifier: Apache-2.0
// An agent's inference side: the mini engine with kvstrata behind it. Shows every call that an engine author needs.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "examples/agent_session/report.h"
#include "examples/mini_engine/engine.h"
#include "kvstrata/kvstrata.hpp"

namespace agent_session {

struct AgentOptions {
  std::string store;  // directory
  uint64_t max_tokens = 8192;
  uint32_t threads = 2;
};

// The answer to a prompt: its tokens, and the logits before each of them and after the last.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
};

class Agent {
 public:
  // Opens the store; throws std::runtime_error with kvstrata's message where that fails.
  Agent(const AgentOptions& options, Report& report);

  // Serves `prompt` through the cache and answers with answer_tokens tokens, or with the recorded `answer` when there
  // is one. Then serves it once more without the cache, and compares every logit.
  Outcome Serve(const std::string& scenario, std::span<const int32_t> prompt, uint64_t answer_tokens,
                std::span<const int32_t> recorded = {});

  // Of the last Serve.
  const std::vector<int32_t>& answer() const { return answer_; }
  const mini_engine::ModelConfig& config() const { return model_->config; }
  // Drains what is still being stored, and closes.
  void Close();

 private:
  // Runs prompt[from..until) with progress; the engine is at `from`.
  void Prefill(Progress& progress, std::span<const int32_t> prompt, uint64_t until);
  // The plan, which a writer goes on from; an empty handle where nothing was found.
  kvstrata::restore_plan Restore(std::span<const int32_t> prompt, kvstrata::match& match, Outcome& outcome);
  Answer AnswerStored(kvstrata::writer& writer, uint64_t count, std::span<const int32_t> recorded);
  Answer AnswerCold(std::span<const int32_t> prompt, uint64_t count, std::span<const int32_t> recorded,
                    Outcome& outcome);
  double MeasurePrefill();

  AgentOptions options_;
  Report& report_;
  std::shared_ptr<const mini_engine::Model> model_;
  mini_engine::Engine engine_;
  kvstrata::cache cache_;
  kvstrata::name_space name_space_;
  double prefill_tokens_per_second_ = 0;
  std::vector<int32_t> answer_;
};

}  // namespace agent_session
