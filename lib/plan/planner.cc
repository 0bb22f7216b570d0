// SPDX-License-Identifier: Apache-2.0
#include "lib/plan/planner.h"

#include <algorithm>
#include <numeric>

namespace kvstrata::core::plan {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// Sizes come from records and layouts: a sum that does not fit is "more than anything", never small.
uint64_t AddSaturating(uint64_t a, uint64_t b) { return a > kNoLimit - b ? kNoLimit : a + b; }
uint64_t MultiplySaturating(uint64_t a, uint64_t b) { return b != 0 && a > kNoLimit / b ? kNoLimit : a * b; }

// How far a way got before it was refused; the furthest one gives the reason of a miss.
enum class Stage { kNotPossible, kHeld, kMinGain, kNotWorthIt, kWins };

class Planner {
 public:
  Planner(const LayoutFacts& layout, const Request& request)
      : layout_(layout),
        request_(request),
        block_tokens_(std::max<uint64_t>(1, layout.block_tokens)),
        restart_(std::max<uint64_t>(1, request.restart_multiple)),
        allowed_(request.allowed_modes == 0 ? kDefaultModes : request.allowed_modes),
        cap_(request.prompt_tokens == 0 ? 0 : std::min(request.prompt_tokens - 1, request.usable_limit)),
        matched_(layout.has_rows ? RoundDown(request.matched_tokens, block_tokens_) : 0),
        rows_on_blocks_(RoundDown(std::min(matched_, cap_), block_tokens_)),
        rows_(RoundDown(rows_on_blocks_, RestartGrid(layout, request.restart_multiple))) {}

  Plan Run() {
    if (!layout_.has_state) {
      if (rows_ > 0 && Allowed(Mode::kSnapshot)) Offer(Make(Mode::kSnapshot, rows_, rows_, nullptr));
    } else {
      for (const SnapshotCandidate& snapshot : request_.snapshots) OfferSnapshot(snapshot);
      OfferReplay(Mode::kFullReplay, layout_.exact_replay_tokens);
      OfferReplay(Mode::kBoundedReplay, layout_.bounded_replay_tokens);
    }
    if (exact_.mode == Mode::kNone && bounded_.mode == Mode::kNone) return Refuse(MissReason());
    Plan plan = exact_;
    if (bounded_.mode != Mode::kNone && (exact_.mode == Mode::kNone || Cost(bounded_) < Cost(exact_))) plan = bounded_;
    plan.reason = LimitReason(plan);
    return plan;
  }

 private:
  bool Allowed(Mode mode) const { return (allowed_ & ModeBit(mode)) != 0; }

  bool RatesKnown() const {
    return request_.costs.prefill_tokens_per_second > 0 && request_.costs.storage_bytes_per_second > 0;
  }

  // Seconds where both rates are known, else tokens to run: either way, less is better.
  double Cost(const Plan& plan) const {
    return RatesKnown() ? plan.restore_seconds + plan.recompute_seconds
                        : static_cast<double>(request_.prompt_tokens - plan.replay_from);
  }

  Plan Make(Mode mode, uint64_t usable, uint64_t replay_from, const SnapshotCandidate* snapshot) const {
    Plan plan;
    plan.mode = mode;
    plan.usable_tokens = usable;
    plan.replay_from = replay_from;
    plan.write_floor = usable;
    if (snapshot != nullptr) plan.snapshot = *snapshot;
    plan.reused_tokens = replay_from;
    plan.replayed_tokens = usable - replay_from;
    plan.recomputed_tokens = request_.prompt_tokens - usable;
    if (layout_.has_rows) {
      plan.read_blocks_to = usable / block_tokens_;
      plan.read_blocks_from = std::min(request_.held_tokens / block_tokens_, plan.read_blocks_to);
    }
    plan.bytes_to_read =
        AddSaturating(MultiplySaturating(plan.read_blocks_to - plan.read_blocks_from, layout_.block_bytes),
                      snapshot != nullptr ? snapshot->bytes : 0);
    Estimate(plan);
    return plan;
  }

  void Estimate(Plan& plan) const {
    const Costs& costs = request_.costs;
    if (costs.storage_bytes_per_second > 0 && plan.bytes_to_read > 0) {
      plan.restore_seconds =
          std::max(0.0, costs.fixed_seconds) + static_cast<double>(plan.bytes_to_read) / costs.storage_bytes_per_second;
    }
    if (costs.prefill_tokens_per_second > 0) {
      plan.recompute_seconds =
          static_cast<double>(request_.prompt_tokens - plan.replay_from) / costs.prefill_tokens_per_second;
    }
  }

  Stage Judge(const Plan& plan) const {
    if (plan.replay_from <= request_.held_tokens) return Stage::kHeld;
    if (plan.replay_from - request_.held_tokens < request_.min_gain_tokens) return Stage::kMinGain;
    if (!RatesKnown()) return Stage::kWins;
    const double own_way =
        static_cast<double>(request_.prompt_tokens - request_.held_tokens) / request_.costs.prefill_tokens_per_second;
    return Cost(plan) < own_way ? Stage::kWins : Stage::kNotWorthIt;
  }

  bool Better(const Plan& a, const Plan& b) const {
    if (b.mode == Mode::kNone) return true;
    if (Cost(a) != Cost(b)) return Cost(a) < Cost(b);
    if (a.usable_tokens != b.usable_tokens) return a.usable_tokens > b.usable_tokens;
    if (a.bytes_to_read != b.bytes_to_read) return a.bytes_to_read < b.bytes_to_read;
    return a.mode < b.mode;
  }

  bool Offer(const Plan& plan) {
    const Stage stage = Judge(plan);
    furthest_ = std::max(furthest_, stage);
    if (stage != Stage::kWins) return false;
    Plan& best = plan.mode == Mode::kBoundedReplay ? bounded_ : exact_;
    if (Better(plan, best)) best = plan;
    return true;
  }

  void OfferSnapshot(const SnapshotCandidate& snapshot) {
    const uint64_t position = snapshot.position;
    const bool rows_reach = !layout_.has_rows || RoundDown(position, block_tokens_) <= matched_;
    if (position == 0 || position > cap_ || !rows_reach) return;
    if (position % restart_ != 0) {
      off_grid_ = std::max(off_grid_, position);
      return;
    }
    newest_ = std::max(newest_, position);
    if (position < rows_) {
      if (Allowed(Mode::kSnapshotReplay) && Offer(Make(Mode::kSnapshotReplay, rows_, position, &snapshot))) return;
    }
    if (Allowed(Mode::kSnapshot)) Offer(Make(Mode::kSnapshot, position, position, &snapshot));
  }

  void OfferReplay(Mode mode, uint64_t length) {
    const bool declared =
        mode == Mode::kFullReplay ? layout_.replay != ReplayRule::kNone : layout_.replay == ReplayRule::kBounded;
    if (!declared || !Allowed(mode) || length == 0 || rows_ == 0) return;
    const uint64_t from = rows_ > length ? RoundDown(rows_ - length, restart_) : 0;
    if (from == 0) {
      replay_too_long_ = true;
      return;
    }
    Offer(Make(mode, rows_, from, nullptr));
  }

  Plan Refuse(Reason reason) const {
    Plan plan;
    plan.reason = reason;
    plan.recomputed_tokens = request_.prompt_tokens;
    if (request_.costs.prefill_tokens_per_second > 0) {
      plan.recompute_seconds = static_cast<double>(request_.prompt_tokens) / request_.costs.prefill_tokens_per_second;
    }
    return plan;
  }

  // Why nothing can be used. From the outermost cause in: a way was found but refused; nothing is stored that
  // reaches; what is stored cannot be restarted from.
  Reason MissReason() const {
    switch (furthest_) {
      case Stage::kNotWorthIt: return Reason::kNotWorthIt;
      case Stage::kMinGain: return Reason::kMinGain;
      case Stage::kHeld: return Reason::kHeld;
      default: break;
    }
    // A caller that names no end of the chain still gets a reason for its miss.
    const Reason match_end = request_.match_end == Reason::kNone ? Reason::kAbsent : request_.match_end;
    if (cap_ == 0) return Reason::kCapped;
    if (layout_.has_rows && rows_ == 0 && newest_ == 0) {
      if (rows_on_blocks_ > 0 || off_grid_ > 0) return Reason::kRestartGrid;
      if (cap_ < block_tokens_) {
        return request_.prompt_tokens < block_tokens_ ? Reason::kShorterThanBlock : Reason::kCapped;
      }
      return match_end;
    }
    if (replay_too_long_) return Reason::kReplayTooLong;
    if (newest_ > 0 || !layout_.has_state) return Reason::kModeNotAllowed;
    if (off_grid_ > 0) return Reason::kRestartGrid;
    if (!layout_.has_rows && request_.matched_tokens == 0) return match_end;
    return Allowed(Mode::kSnapshot) || Allowed(Mode::kSnapshotReplay) ? Reason::kNoSnapshot : Reason::kModeNotAllowed;
  }

  // Why a plan that restores something is not longer.
  Reason LimitReason(const Plan& plan) const {
    const uint64_t usable = plan.usable_tokens;
    if (usable == cap_) return Reason::kCapped;
    if (usable < newest_) return Allowed(Mode::kSnapshot) ? Reason::kNotWorthIt : Reason::kModeNotAllowed;
    if (usable < rows_) return Allowed(Mode::kSnapshotReplay) ? Reason::kNotWorthIt : Reason::kNoSnapshot;
    if (off_grid_ > usable || rows_on_blocks_ > usable) return Reason::kRestartGrid;
    if (!layout_.has_rows) return Reason::kNoSnapshot;
    if (matched_ < RoundDown(cap_, block_tokens_)) return request_.match_end;
    return RoundDown(request_.prompt_tokens, block_tokens_) > cap_ ? Reason::kCapped : Reason::kNone;
  }

  const LayoutFacts& layout_;
  const Request& request_;
  const uint64_t block_tokens_;
  const uint64_t restart_;
  const uint32_t allowed_;
  const uint64_t cap_;             // the largest usable length: n-1 or the agreed limit
  const uint64_t matched_;         // stored rows, on the block grid
  const uint64_t rows_on_blocks_;  // of these, within the cap
  const uint64_t rows_;            // H: of these, on the restart grid
  Plan exact_;
  Plan bounded_;
  Stage furthest_ = Stage::kNotPossible;
  uint64_t newest_ = 0;    // highest snapshot position in reach and on the restart grid
  uint64_t off_grid_ = 0;  // highest one in reach that is not on it
  bool replay_too_long_ = false;
};

}  // namespace

std::string_view ModeName(Mode mode) {
  switch (mode) {
    case Mode::kNone: return "none";
    case Mode::kSnapshot: return "snapshot";
    case Mode::kSnapshotReplay: return "snapshot_replay";
    case Mode::kFullReplay: return "full_replay";
    case Mode::kBoundedReplay: return "bounded_replay";
  }
  return "unknown";
}

std::string_view ReasonName(Reason reason) {
  switch (reason) {
    case Reason::kNone: return "none";
    case Reason::kAbsent: return "absent";
    case Reason::kDiverged: return "diverged";
    case Reason::kCapped: return "capped";
    case Reason::kShorterThanBlock: return "shorter_than_block";
    case Reason::kNoSnapshot: return "no_snapshot";
    case Reason::kModeNotAllowed: return "mode_not_allowed";
    case Reason::kNotWorthIt: return "not_worth_it";
    case Reason::kMinGain: return "min_gain";
    case Reason::kRestartGrid: return "restart_grid";
    case Reason::kReplayTooLong: return "replay_too_long";
    case Reason::kHeld: return "held";
    case Reason::kForeign: return "foreign";
    case Reason::kCorrupt: return "corrupt";
    case Reason::kEvicted: return "evicted";
    case Reason::kUnreadable: return "unreadable";
  }
  return "unknown";
}

uint64_t RestartGrid(const LayoutFacts& layout, uint32_t restart_multiple) {
  const uint64_t restart = std::max<uint64_t>(1, restart_multiple);
  // Both are below 2^32, so their least common multiple fits.
  return layout.has_rows ? std::lcm(restart, std::max<uint64_t>(1, layout.block_tokens)) : restart;
}

Plan MakePlan(const LayoutFacts& layout, const Request& request) { return Planner(layout, request).Run(); }

}  // namespace kvstrata::core::plan
