// SPDX-License-Identifier: Apache-2.0
#include "examples/agent_session/report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <nlohmann/json.hpp>

namespace agent_session {
namespace {

constexpr int kBarCells = 60;
constexpr char kReusedColour[] = "32";      // green
constexpr char kReplayedColour[] = "33";    // yellow
constexpr char kRecomputedColour[] = "31";  // red

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Cells of the bar for the first `tokens` of `total`, rounded.
int CellsOf(uint64_t tokens, uint64_t total) {
  return total == 0 ? 0 : static_cast<int>((tokens * kBarCells + total / 2) / total);
}

}  // namespace

std::string ResultLine(const Outcome& o) {
  std::string out = "result scenario=" + o.scenario + " mode=" + o.mode;
  const std::pair<const char*, uint64_t> counts[] = {{"prompt_tokens", o.prompt_tokens},
                                                     {"matched_tokens", o.matched_tokens},
                                                     {"usable_tokens", o.usable_tokens},
                                                     {"replayed_tokens", o.replayed_tokens},
                                                     {"recomputed_tokens", o.recomputed_tokens}};
  for (const auto& [name, value] : counts) out += std::string(" ") + name + "=" + std::to_string(value);
  out += " coverage=" + Format("%.2f", o.coverage());
  out += o.identical ? " logits=identical" : " logits=different";
  out += " cold_s=" + Format("%.3f", o.cold_s) + " warm_s=" + Format("%.3f", o.warm_s);
  out += " stored_bytes_per_token=" + Format("%.1f", o.stored_bytes_per_token);
  out += " full_kv_bytes_per_token=" + std::to_string(o.full_kv_bytes_per_token);
  return out;
}

std::string ResultJson(const Outcome& o) {
  nlohmann::ordered_json out;
  out["scenario"] = o.scenario;
  out["mode"] = o.mode;
  out["reason"] = o.reason;
  out["prompt_tokens"] = o.prompt_tokens;
  out["matched_tokens"] = o.matched_tokens;
  out["usable_tokens"] = o.usable_tokens;
  out["reused_tokens"] = o.reused_tokens();
  out["replayed_tokens"] = o.replayed_tokens;
  out["recomputed_tokens"] = o.recomputed_tokens;
  out["coverage"] = o.coverage();
  out["logits"] = o.identical ? "identical" : "different";
  out["cold_s"] = o.cold_s;
  out["warm_s"] = o.warm_s;
  out["restore_s"] = o.restore_s;
  out["bytes_read"] = o.bytes_read;
  out["stored_bytes_per_token"] = o.stored_bytes_per_token;
  out["stored_row_bytes_per_token"] = o.stored_row_bytes_per_token;
  out["full_kv_bytes_per_token"] = o.full_kv_bytes_per_token;
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Report::Report(bool json)
    : out_(json ? stderr : stdout),
      terminal_(isatty(fileno(out_)) != 0),
      colours_(terminal_ && std::getenv("NO_COLOR") == nullptr) {}

std::string Report::Painted(std::string_view text, const char* code) const {
  if (!colours_) return std::string(text);
  return std::string("\033[") + code + "m" + std::string(text) + "\033[0m";
}

void Report::Line(std::string_view text) {
  std::fprintf(out_, "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(out_);
}

void Report::Heading(std::string_view text) {
  Line("");
  Line(Painted(text, "1"));
}

void Report::Show(const Outcome& o) {
  const int reused = CellsOf(o.reused_tokens(), o.prompt_tokens);
  const int upto_replayed = CellsOf(o.reused_tokens() + o.replayed_tokens, o.prompt_tokens);
  std::string bar = Painted(std::string(static_cast<size_t>(reused), '#'), kReusedColour);
  bar += Painted(std::string(static_cast<size_t>(upto_replayed - reused), '~'), kReplayedColour);
  bar += Painted(std::string(static_cast<size_t>(kBarCells - upto_replayed), '.'), kRecomputedColour);
  Line("  [" + bar + "] mode " + o.mode + (o.reason == "none" ? "" : ", what limits it: " + o.reason));
  Line("  " + Painted("# reused " + std::to_string(o.reused_tokens()), kReusedColour) + "   " +
       Painted("~ replayed " + std::to_string(o.replayed_tokens), kReplayedColour) + "   " +
       Painted(". recomputed " + std::to_string(o.recomputed_tokens), kRecomputedColour) + "   of " +
       std::to_string(o.prompt_tokens) + " tokens");
  std::string times = "  first logits after " + Format("%.3f s", o.warm_s);
  if (o.usable_tokens == 0) {
    times += ", storing on the way; without the cache " + Format("%.3f s", o.cold_s);
  } else {
    times += " (lookup and reading " + Format("%.3f s", o.restore_s) + ", " + std::to_string(o.bytes_read) +
             " bytes); without the cache " + Format("%.3f s", o.cold_s);
    if (o.warm_s > 0) times += ": " + Format("%.1f", o.cold_s / o.warm_s) + " times as long";
  }
  Line(times);
  Line("  logits against the cold run: " +
       (o.identical ? Painted("identical, bit for bit", kReusedColour) : Painted("DIFFERENT", kRecomputedColour)));
  Line("  stored so far, per token: " + Format("%.1f", o.stored_row_bytes_per_token) + " bytes of rows and " +
       Format("%.1f", o.stored_bytes_per_token - o.stored_row_bytes_per_token) +
       " of snapshots; full KV of this shape: " + std::to_string(o.full_kv_bytes_per_token));
}

Progress::Progress(Report& report, std::string what, uint64_t total)
    : report_(report), what_(std::move(what)), total_(std::max<uint64_t>(total, 1)) {}

Progress::~Progress() {
  if (drawn_ && report_.terminal_) {
    std::fprintf(report_.out_, "\r\033[K");
    std::fflush(report_.out_);
  }
}

void Progress::At(uint64_t done) {
  const Clock::time_point now = Clock::now();
  const auto pause = report_.terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000);
  const bool early = now - begin_ < std::chrono::seconds(1);
  if (early || now - shown_ < pause) return;
  shown_ = now;
  drawn_ = true;
  std::fprintf(report_.out_, "%s  %s: %llu of %llu tokens (%llu %%)%s", report_.terminal_ ? "\r\033[K" : "",
               what_.c_str(), static_cast<unsigned long long>(done), static_cast<unsigned long long>(total_),
               static_cast<unsigned long long>(done * 100 / total_), report_.terminal_ ? "" : "\n");
  std::fflush(report_.out_);
}

}  // namespace agent_session
