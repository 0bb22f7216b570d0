// SPDX-License-Identifier: Apache-2.0
// What the demonstration prints: progress, coverage bars, the result lines for machines, JSON. Owns the terminal.
//
// People's text goes to standard output, or with --json to standard error. Colours and a moving progress line appear
// on a terminal only (and colours not with NO_COLOR); elsewhere progress is one plain line every few seconds.
//
// Thread rule: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace agent_session {

// One served request: how it was served, and that the answer is the cold one.
struct Outcome {
  std::string scenario;
  std::string mode = "none";
  std::string reason = "none";
  uint64_t prompt_tokens = 0;
  uint64_t matched_tokens = 0;
  uint64_t usable_tokens = 0;
  uint64_t replayed_tokens = 0;
  uint64_t recomputed_tokens = 0;
  bool identical = false;
  double cold_s = 0;
  double warm_s = 0;
  double restore_s = 0;  // of warm_s: lookup and reading
  uint64_t bytes_read = 0;
  double stored_bytes_per_token = 0;      // everything that the store holds, snapshots and headers included
  double stored_row_bytes_per_token = 0;  // of these, rows
  uint64_t full_kv_bytes_per_token = 0;

  uint64_t reused_tokens() const { return prompt_tokens - replayed_tokens - recomputed_tokens; }
  double coverage() const {
    return prompt_tokens == 0 ? 0 : static_cast<double>(reused_tokens()) / static_cast<double>(prompt_tokens);
  }
};

// "result scenario=... mode=... ..." without a line end.
std::string ResultLine(const Outcome& outcome);
std::string ResultJson(const Outcome& outcome);

class Report {
 public:
  explicit Report(bool json);

  // A line of text.
  void Line(std::string_view text);
  void Heading(std::string_view text);
  // The bar of reused, replayed and recomputed tokens, the times, and the bytes per token.
  void Show(const Outcome& outcome);

 private:
  friend class Progress;
  std::string Painted(std::string_view text, const char* code) const;

  std::FILE* out_;
  bool terminal_;
  bool colours_;
};

// Progress of one task, shown once it has taken a second.
class Progress {
 public:
  Progress(Report& report, std::string what, uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void At(uint64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  Report& report_;
  std::string what_;
  uint64_t total_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_ = begin_;
  bool drawn_ = false;
};

}  // namespace agent_session
