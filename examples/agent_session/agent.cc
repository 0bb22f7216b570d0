// SPDX-License-Identifier: Apache-2.0
#include "examples/agent_session/agent.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "examples/mini_engine/cache_binding.h"

namespace agent_session {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kStoreBytes = uint64_t{512} << 20;
constexpr uint64_t kStepTokens = 256;  // between two looks at the progress

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// An example may end at the first error; a real engine would serve the request without the cache.
template <class T>
T Need(kvstrata::result<T> result, const char* what) {
  if (!result) {
    const kvstrata::error& e = result.error();
    throw std::runtime_error(std::string(what) + ": " + kvstrata::status_name(e.code()) + ", " +
                             std::string(e.field()) + ": " + std::string(e.message()));
  }
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  });
}

mini_engine::EngineOptions EngineOptionsOf(const AgentOptions& options) {
  mini_engine::EngineOptions out;
  out.max_tokens = options.max_tokens;
  out.threads = options.threads;
  return out;
}

}  // namespace

Agent::Agent(const AgentOptions& options, Report& report)
    : options_(options),
      report_(report),
      model_(std::make_shared<const mini_engine::Model>(mini_engine::DemoConfig(), KVSTRATA_KERNELS_LEVEL_AUTO)),
      engine_(model_, EngineOptionsOf(options)) {
  const kvstrata::layout layout = Need(mini_engine::MakeLayout(model_->config), "layout");
  kvstrata::cache_options cache;
  cache.path = options.store;
  cache.capacity_bytes = kStoreBytes;
  cache_ = Need(kvstrata::cache::open(cache), "open");
  name_space_ = Need(cache_.open_namespace(layout, mini_engine::MakeIdentity(*model_, "demo")), "namespace");
  prefill_tokens_per_second_ = MeasurePrefill();
}

// The planner compares reading with computing, so it needs to know how fast this engine computes.
double Agent::MeasurePrefill() {
  const std::vector<int32_t> tokens(std::min<uint64_t>(256, options_.max_tokens), 32);
  const Clock::time_point begin = Clock::now();
  engine_.Run(tokens);
  const double seconds = SecondsSince(begin);
  engine_.Reset();
  return seconds > 0 ? static_cast<double>(tokens.size()) / seconds : 0;
}

void Agent::Prefill(Progress& progress, std::span<const int32_t> prompt, uint64_t until) {
  while (engine_.position() < until) {
    const uint64_t from = engine_.position();
    engine_.Run(prompt.subspan(from, std::min(kStepTokens, until - from)));
    progress.At(engine_.position());
  }
}

kvstrata::restore_plan Agent::Restore(std::span<const int32_t> prompt, kvstrata::match& match, Outcome& outcome) {
  const kvstrata::match_info info = Need(match.info(), "match");
  kvstrata::restore_plan plan;
  kvstrata::plan_result done{};
  if (info.usable_tokens != 0) {
    plan = Need(match.plan(), "plan");
    Need(plan.start(mini_engine::MakeBuffers(engine_)), "restore");
    done = Need(plan.wait(), "restore");
  }
  engine_.BeginRestored(mini_engine::ToResume(done));

  outcome.mode = kvstrata::name_of(static_cast<kvstrata::resume_mode>(done.mode));
  outcome.reason = kvstrata::name_of(static_cast<kvstrata::reason>(info.reason));
  outcome.prompt_tokens = prompt.size();
  outcome.matched_tokens = info.matched_tokens;
  outcome.usable_tokens = done.usable_tokens;
  outcome.replayed_tokens = done.usable_tokens - done.replay_from;
  outcome.recomputed_tokens = prompt.size() - done.usable_tokens;
  outcome.bytes_read = done.bytes_read;
  return plan;
}

Answer Agent::AnswerStored(kvstrata::writer& writer, uint64_t count, std::span<const int32_t> recorded) {
  Answer out;
  out.logits.push_back(engine_.logits());
  for (uint64_t i = 0; i < count; ++i) {
    const int32_t token = recorded.empty() ? engine_.NextToken() : recorded[i];
    engine_.Run({&token, 1});
    Need(writer.advance({&token, 1}, engine_.position()), "advance");
    out.tokens.push_back(token);
    out.logits.push_back(engine_.logits());
  }
  return out;
}

Answer Agent::AnswerCold(std::span<const int32_t> prompt, uint64_t count, std::span<const int32_t> recorded,
                         Outcome& outcome) {
  const Clock::time_point begin = Clock::now();
  engine_.Reset();
  {
    Progress progress(report_, "cold run to compare with", prompt.size());
    Prefill(progress, prompt, prompt.size());
  }
  outcome.cold_s = SecondsSince(begin);
  Answer out;
  out.logits.push_back(engine_.logits());
  for (uint64_t i = 0; i < count; ++i) {
    const int32_t token = recorded.empty() ? engine_.NextToken() : recorded[i];
    engine_.Run({&token, 1});
    out.tokens.push_back(token);
    out.logits.push_back(engine_.logits());
  }
  return out;
}

Outcome Agent::Serve(const std::string& scenario, std::span<const int32_t> prompt, uint64_t answer_tokens,
                     std::span<const int32_t> recorded) {
  Outcome outcome;
  outcome.scenario = scenario;
  const kvstrata::token_view tokens(prompt.data(), prompt.size());
  const uint64_t count = recorded.empty() ? answer_tokens : std::min<uint64_t>(answer_tokens, recorded.size());

  const Clock::time_point begin = Clock::now();
  kvstrata::lookup_options lookup;
  lookup.allowed_modes = mode_bit(kvstrata::resume_mode::snapshot) | mode_bit(kvstrata::resume_mode::snapshot_replay) |
                         mode_bit(kvstrata::resume_mode::full_replay);
  lookup.prefill_tokens_per_second = prefill_tokens_per_second_;
  kvstrata::match match = Need(name_space_.lookup(tokens, lookup), "lookup");
  const kvstrata::restore_plan plan = Restore(prompt, match, outcome);
  outcome.restore_s = SecondsSince(begin);

  kvstrata::writer_options writing;
  writing.restored = &plan;
  kvstrata::writer writer = Need(name_space_.open_writer(nullptr, writing), "writer");
  Need(writer.set_sources(mini_engine::MakeBuffers(engine_)), "sources");
  // The engine stops where the cache wants a snapshot, and at the end of the prompt.
  std::vector<uint64_t> stops = Need(writer.snapshot_positions(tokens), "snapshot positions");
  if (stops.empty() || stops.back() != prompt.size()) stops.push_back(prompt.size());
  kvstrata::token_view fresh = tokens.subview(outcome.usable_tokens);
  {
    Progress progress(report_, "prefill", prompt.size());
    for (const uint64_t stop : stops) {
      Prefill(progress, prompt, stop);
      Need(writer.advance(fresh, stop), "advance");
      fresh = {};
    }
  }
  outcome.warm_s = SecondsSince(begin);

  const Answer stored = AnswerStored(writer, count, recorded);
  kvstrata::commit_options commit;
  commit.output_end = true;
  Need(writer.commit(commit), "commit");

  const Answer cold = AnswerCold(prompt, count, recorded, outcome);
  outcome.identical = stored.tokens == cold.tokens && SameBits(stored.logits, cold.logits);
  answer_ = stored.tokens;
  const kvstrata::cache_stats stats = Need(cache_.stats(), "stats");
  const uint64_t held = stats.held_blocks * model_->config.block_tokens();
  if (held != 0) {
    outcome.stored_bytes_per_token = static_cast<double>(stats.held_bytes) / static_cast<double>(held);
    outcome.stored_row_bytes_per_token = static_cast<double>(stats.held_row_bytes) / static_cast<double>(held);
  }
  outcome.full_kv_bytes_per_token = mini_engine::FullKvBytesPerToken(model_->config);
  return outcome;
}

void Agent::Close() { Need(cache_.close(), "close"); }

}  // namespace agent_session
