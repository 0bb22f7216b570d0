// SPDX-License-Identifier: Apache-2.0
// The demonstration: an agent session in three processes that share nothing but a directory on disk.
//
//   agent_session                       cold prefill and store; restart with one more turn; one token changed early
//   KVSTRATA_TRACE=file.jsonl ...       a recorded session, request by request, with a restart in its middle
//   --json                              results as one JSON object per line on standard output, text on standard error
//   --help
//
// The program starts itself once per scenario ("--scenario NAME"), so that nothing is kept in memory between them.
// Exit status: 0 = all logits identical, 1 = some differ, 2 = it could not be run.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "examples/agent_session/agent.h"
#include "examples/agent_session/conversation.h"
#include "examples/agent_session/report.h"
#include "examples/agent_session/trace.h"

extern char** environ;

namespace agent_session {
namespace {

constexpr uint64_t kAnswerTokens = 24;
// Of a trace: the longest prompt that is played whole, and how many prompt tokens are played in all. Each request is
// also run cold, so the sum decides the time.
constexpr uint64_t kTracePromptTokens = 16384;
constexpr uint64_t kTraceTokens = 49152;

struct Arguments {
  bool json = false;
  bool help = false;
  std::string scenario;  // empty: the parent
  std::string directory;
  bool second_half = false;  // of a trace
};

constexpr char kUsage[] =
    "usage: agent_session [--json]\n"
    "  Plays an agent session in three processes and shows that a restart continues bit for bit.\n"
    "  --json             one JSON object per scenario on standard output; text goes to standard error\n"
    "  KVSTRATA_TRACE     a recorded session (JSON lines with \"input\" and \"output\") to play instead\n"
    "  KVSTRATA_DEMO_TOKENS  how many prompt tokens of a trace are played in all (49152)\n"
    "  KVSTRATA_DEMO_DIR  a directory for the store, kept afterwards; else a temporary one is made and removed\n";

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

uint64_t TraceBudget() {
  const std::string text = Environment("KVSTRATA_DEMO_TOKENS");
  if (text.empty()) return kTraceTokens;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (*end != '\0' || value == 0) throw std::runtime_error("KVSTRATA_DEMO_TOKENS: \"" + text + "\" is not a number");
  return value;
}

Arguments Parse(int argc, char** argv) {
  Arguments out;
  const std::vector<std::string> given(argv + 1, argv + argc);
  for (size_t i = 0; i < given.size(); ++i) {
    const auto value = [&] {
      if (i + 1 == given.size()) throw std::runtime_error(given[i] + " needs a value");
      return given[++i];
    };
    if (given[i] == "--json")
      out.json = true;
    else if (given[i] == "--help")
      out.help = true;
    else if (given[i] == "--scenario")
      out.scenario = value();
    else if (given[i] == "--directory")
      out.directory = value();
    else if (given[i] == "--second-half")
      out.second_half = true;
    else
      throw std::runtime_error("unknown argument " + given[i]);
  }
  return out;
}

AgentOptions OptionsOf(const Arguments& arguments, uint64_t max_tokens) {
  AgentOptions out;
  out.store = arguments.directory + "/store";
  out.max_tokens = max_tokens;
  out.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  return out;
}

// Outcomes go to the parent through a file, as the last lines are printed when all scenarios have ended.
void Hand(const Arguments& arguments, const Outcome& outcome) {
  std::ofstream file(arguments.directory + "/results", std::ios::app);
  file << (arguments.json ? ResultJson(outcome) : ResultLine(outcome)) << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write the results");
}

// ---- The three processes -----------------------------------------------------------------------------------------

bool Cold(const Arguments& arguments, Report& report) {
  report.Heading("1. cold: the first request of a session");
  const std::vector<int32_t> prompt = FirstPrompt(KVSTRATA_DEMO_SOURCE_DIR);
  Agent agent(OptionsOf(arguments, prompt.size() + kAnswerTokens), report);
  report.Line("  " + std::to_string(prompt.size()) +
              " tokens: instructions, tool schemas, repository context, question");
  const Outcome outcome = agent.Serve("cold", prompt, kAnswerTokens);
  report.Show(outcome);
  SaveTokens(arguments.directory + "/prompt", prompt);
  SaveTokens(arguments.directory + "/answer", agent.answer());
  agent.Close();
  Hand(arguments, outcome);
  return outcome.identical;
}

bool Warm(const Arguments& arguments, Report& report) {
  report.Heading("2. warm: a new process, one more turn");
  const std::vector<int32_t> prompt =
      NextTurn(LoadTokens(arguments.directory + "/prompt"), LoadTokens(arguments.directory + "/answer"));
  Agent agent(OptionsOf(arguments, prompt.size() + kAnswerTokens), report);
  const Outcome outcome = agent.Serve("warm", prompt, kAnswerTokens);
  report.Show(outcome);
  agent.Close();
  Hand(arguments, outcome);
  return outcome.identical;
}

bool Changed(const Arguments& arguments, Report& report) {
  report.Heading("3. changed: a new process, one token of the prompt is another one");
  const std::vector<int32_t> prompt = ChangedEarly(LoadTokens(arguments.directory + "/prompt"));
  Agent agent(OptionsOf(arguments, prompt.size() + kAnswerTokens), report);
  report.Line("  token " + std::to_string(prompt.size() / 4) + " of " + std::to_string(prompt.size()) + " differs");
  const Outcome outcome = agent.Serve("changed", prompt, kAnswerTokens);
  report.Show(outcome);
  agent.Close();
  Hand(arguments, outcome);
  return outcome.identical;
}

// The leading requests of a trace that fit the budget.
struct Played {
  size_t requests = 0;
  uint64_t tokens = 0;
  uint64_t longest = 0;
};

Played WithinBudget(const std::vector<TraceRequest>& requests, uint64_t budget) {
  Played out;
  for (const TraceRequest& request : requests) {
    const uint64_t size = request.prompt.size();
    if (size > kTracePromptTokens || out.tokens + size > budget) break;
    ++out.requests;
    out.tokens += size;
    out.longest = std::max(out.longest, size);
  }
  if (out.requests == 0) throw std::runtime_error("the trace has no request that fits the budget of prompt tokens");
  return out;
}

// The first half of the requests is played in one process, the second half in another.
bool Trace(const Arguments& arguments, Report& report) {
  const std::vector<TraceRequest> requests = ReadTrace(Environment("KVSTRATA_TRACE"));
  const uint64_t budget = TraceBudget();
  const Played played = WithinBudget(requests, budget);
  const size_t middle = (played.requests + 1) / 2;
  const size_t begin = arguments.second_half ? middle : 0;
  const size_t end = arguments.second_half ? played.requests : middle;
  if (begin == end) return true;
  report.Heading("requests " + std::to_string(begin + 1) + " to " + std::to_string(end) + " of " +
                 std::to_string(requests.size()) + (arguments.second_half ? ", in a new process" : ""));
  if (played.requests < requests.size() && !arguments.second_half) {
    report.Line("  cut: " + std::to_string(played.requests) + " of " + std::to_string(requests.size()) +
                " requests are played, " + std::to_string(played.tokens) + " prompt tokens (KVSTRATA_DEMO_TOKENS=" +
                std::to_string(budget) + ", prompts of up to " + std::to_string(kTracePromptTokens) + ")");
  }
  Agent agent(OptionsOf(arguments, played.longest + kAnswerTokens), report);
  bool identical = true;
  for (size_t i = begin; i < end; ++i) {
    report.Line("request " + std::to_string(i + 1));
    const Outcome outcome =
        agent.Serve("request_" + std::to_string(i + 1), requests[i].prompt, kAnswerTokens, requests[i].answer);
    report.Show(outcome);
    identical = identical && outcome.identical;
    Hand(arguments, outcome);
  }
  agent.Close();
  return identical;
}

bool RunScenario(const Arguments& arguments, Report& report) {
  if (arguments.scenario == "cold") return Cold(arguments, report);
  if (arguments.scenario == "warm") return Warm(arguments, report);
  if (arguments.scenario == "changed") return Changed(arguments, report);
  if (arguments.scenario == "trace") return Trace(arguments, report);
  throw std::runtime_error("unknown scenario " + arguments.scenario);
}

// ---- The parent -------------------------------------------------------------------------------------------------

// A directory that goes with this object, unless the user named one.
class WorkDirectory {
 public:
  WorkDirectory() : path_(Environment("KVSTRATA_DEMO_DIR")), kept_(!path_.empty()) {
    if (kept_) {
      std::filesystem::create_directories(path_);
      std::filesystem::remove(path_ + "/results");
      return;
    }
    path_ = (std::filesystem::temp_directory_path() / "kvstrata-demo-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make a temporary directory");
  }
  ~WorkDirectory() {
    std::error_code ignored;
    if (!kept_) std::filesystem::remove_all(path_, ignored);
  }
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool kept_;
};

// This program once more; its exit status, 2 when it ended by a signal.
int RunSelf(const Arguments& arguments, const WorkDirectory& directory, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"agent_session", "--directory", directory.path()};
  words.insert(words.end(), more.begin(), more.end());
  if (arguments.json) words.push_back("--json");
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, raw.data(), environ) != 0) {
    throw std::runtime_error("cannot start another process");
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error("cannot wait for the other process");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

int Parent(const Arguments& arguments) {
  const WorkDirectory directory;
  std::vector<std::vector<std::string>> processes;
  if (Environment("KVSTRATA_TRACE").empty()) {
    processes = {{"--scenario", "cold"}, {"--scenario", "warm"}, {"--scenario", "changed"}};
  } else {
    processes = {{"--scenario", "trace"}, {"--scenario", "trace", "--second-half"}};
  }
  int worst = 0;
  for (const std::vector<std::string>& process : processes) {
    worst = std::max(worst, RunSelf(arguments, directory, process));
    if (worst == 2) break;
  }
  std::ifstream results(directory.path() + "/results");
  if (!arguments.json) std::printf("\n");
  for (std::string line; std::getline(results, line);) std::printf("%s\n", line.c_str());
  return worst;
}

int Main(int argc, char** argv) {
  try {
    const Arguments arguments = Parse(argc, argv);
    if (arguments.help) {
      std::printf("%s", kUsage);
      return 0;
    }
    if (!arguments.scenario.empty()) {
      Report report(arguments.json);
      return RunScenario(arguments, report) ? 0 : 1;
    }
    // An interrupt ends the child, which has the terminal too; this process lives on to remove the directory.
    struct sigaction ignore = {};
    ignore.sa_handler = [](int) {};
    sigaction(SIGINT, &ignore, nullptr);
    sigaction(SIGTERM, &ignore, nullptr);
    return Parent(arguments);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "agent_session: %s\n", failure.what());
    return 2;
  }
}

}  // namespace
}  // namespace agent_session

int main(int argc, char** argv) { return agent_session::Main(argc, argv); }
