// SPDX-License-Identifier: Apache-2.0
// The planner against a brute-force oracle that tries every restart a small prompt can have and keeps what is legal
// by definition, and the header's invariants on the same random requests. Rates are powers of two and sizes small
// integers, so that every cost is exact in double and ties are true ties.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "lib/plan/planner.h"
#include "tests/support/catch.hpp"

namespace plan = kvstrata::core::plan;
using plan::Mode;

namespace {

// One way to restart: engine state at `usable` from rows, and `snapshot` or a replay from `replay_from`.
struct Way {
  Mode mode;
  uint64_t usable;
  uint64_t replay_from;
  std::optional<plan::SnapshotCandidate> snapshot;
};

class Oracle {
 public:
  Oracle(const plan::LayoutFacts& layout, const plan::Request& request)
      : layout_(layout), request_(request), r_(std::max<uint64_t>(1, request.restart_multiple)) {}

  bool Allowed(Mode mode) const {
    const uint32_t modes = request_.allowed_modes == 0 ? 1u << 1 : request_.allowed_modes;
    return (modes >> static_cast<int>(mode) & 1) != 0;
  }
  bool RatesKnown() const {
    return request_.costs.prefill_tokens_per_second > 0 && request_.costs.storage_bytes_per_second > 0;
  }

  // Are the rows of tokens [0, usable) there after the restore?
  bool RowsReach(const Way& way) const {
    if (!layout_.has_rows) return true;
    const uint64_t matched = request_.matched_tokens / layout_.block_tokens;
    const bool blocks_there = way.usable / layout_.block_tokens <= matched;
    const bool open_rows_there = way.snapshot.has_value() && way.snapshot->position == way.usable;
    return blocks_there && (way.usable % layout_.block_tokens == 0 || open_rows_there);
  }

  // Is the engine's state right at `usable` once tokens [replay_from, usable) have run?
  bool StateRight(const Way& way) const {
    const uint64_t replayed = way.usable - way.replay_from;
    if (!layout_.has_state) return way.mode == Mode::kSnapshot && replayed == 0 && !way.snapshot;
    const bool at_snapshot = way.snapshot.has_value() && way.snapshot->position == way.replay_from;
    switch (way.mode) {
      case Mode::kSnapshot: return at_snapshot && replayed == 0;
      case Mode::kSnapshotReplay:
        return at_snapshot && replayed > 0 && layout_.has_rows && way.usable % layout_.block_tokens == 0;
      case Mode::kFullReplay:
        return !way.snapshot && layout_.has_rows && layout_.replay != plan::ReplayRule::kNone &&
               layout_.exact_replay_tokens > 0 && replayed >= layout_.exact_replay_tokens;
      case Mode::kBoundedReplay:
        return !way.snapshot && layout_.has_rows && layout_.replay == plan::ReplayRule::kBounded &&
               layout_.bounded_replay_tokens > 0 && replayed >= layout_.bounded_replay_tokens;
      case Mode::kNone: return false;
    }
    return false;
  }

  bool Legal(const Way& way) const {
    return Allowed(way.mode) && way.usable < request_.prompt_tokens && way.usable <= request_.usable_limit &&
           way.replay_from > 0 && way.replay_from <= way.usable && way.usable % r_ == 0 && way.replay_from % r_ == 0 &&
           RowsReach(way) && StateRight(way);
  }

  uint64_t Bytes(const Way& way) const {
    uint64_t bytes = way.snapshot ? way.snapshot->bytes : 0;
    if (!layout_.has_rows) return bytes;
    for (uint64_t block = 0; block < way.usable / layout_.block_tokens; ++block) {
      const bool held = (block + 1) * layout_.block_tokens <= request_.held_tokens;
      if (!held) bytes += layout_.block_bytes;
    }
    return bytes;
  }

  double Cost(const Way& way) const {
    const double tokens = static_cast<double>(request_.prompt_tokens - way.replay_from);
    if (!RatesKnown()) return tokens;
    const uint64_t bytes = Bytes(way);
    const double read = static_cast<double>(bytes) / request_.costs.storage_bytes_per_second;
    return (bytes > 0 ? request_.costs.fixed_seconds + read : 0) + tokens / request_.costs.prefill_tokens_per_second;
  }
  double OwnCost() const {
    const double tokens = static_cast<double>(request_.prompt_tokens) - static_cast<double>(request_.held_tokens);
    return RatesKnown() ? tokens / request_.costs.prefill_tokens_per_second : tokens;
  }

  bool Gains(const Way& way) const {
    return way.replay_from >= request_.held_tokens + std::max<uint64_t>(1, request_.min_gain_tokens) &&
           (!RatesKnown() || Cost(way) < OwnCost());
  }

  // All legal ways that gain, each mode, length, start and snapshot tried.
  std::vector<Way> All() const {
    std::vector<Way> ways;
    const auto try_way = [&](const Way& way) {
      if (Legal(way) && Gains(way)) ways.push_back(way);
    };
    for (uint64_t usable = 1; usable < request_.prompt_tokens; ++usable) {
      try_way({Mode::kSnapshot, usable, usable, std::nullopt});
      for (const plan::SnapshotCandidate& snapshot : request_.snapshots) {
        try_way({Mode::kSnapshot, usable, usable, snapshot});
        try_way({Mode::kSnapshotReplay, usable, snapshot.position, snapshot});
      }
      for (uint64_t from = 1; from <= usable; ++from) {
        try_way({Mode::kFullReplay, usable, from, std::nullopt});
        try_way({Mode::kBoundedReplay, usable, from, std::nullopt});
      }
    }
    return ways;
  }

  // The header's rule for known rates: rows are used as far as they reach, and a replay from a snapshot stands in
  // for stopping there. With unknown rates it must follow from "fewest tokens, then the larger usable length".
  std::vector<Way> ByRule() const {
    std::vector<Way> ways = All();
    if (!RatesKnown()) return ways;
    uint64_t reach = 0;
    for (uint64_t u = 1; u < request_.prompt_tokens && u <= request_.usable_limit && layout_.has_rows; ++u) {
      if (u % r_ == 0 && u % layout_.block_tokens == 0 && u <= request_.matched_tokens) reach = u;
    }
    std::erase_if(ways, [&](const Way& w) { return w.mode != Mode::kSnapshot && w.usable != reach; });
    const std::vector<Way> kept = ways;
    std::erase_if(ways, [&](const Way& w) {
      return w.mode == Mode::kSnapshot && w.snapshot.has_value() &&
             std::any_of(kept.begin(), kept.end(), [&](const Way& other) {
               return other.mode == Mode::kSnapshotReplay && other.snapshot->id == w.snapshot->id;
             });
    });
    return ways;
  }

  std::optional<Way> Best() const {
    std::optional<Way> exact;
    std::optional<Way> bounded;
    const auto order = [&](const Way& w) { return std::tuple(Cost(w), ~w.usable, Bytes(w), w.mode); };
    for (const Way& way : ByRule()) {
      std::optional<Way>& best = way.mode == Mode::kBoundedReplay ? bounded : exact;
      if (!best || order(way) < order(*best)) best = way;
    }
    if (bounded && (!exact || Cost(*bounded) < Cost(*exact))) return bounded;
    return exact;
  }

 private:
  const plan::LayoutFacts& layout_;
  const plan::Request& request_;
  const uint64_t r_;
};

struct Case {
  plan::LayoutFacts layout;
  plan::Request request;
  std::vector<plan::SnapshotCandidate> snapshots;
};

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  uint64_t UpTo(uint64_t limit) { return random_() % (limit + 1); }
  bool Chance(uint64_t one_in) { return UpTo(one_in - 1) == 0; }

  // A prompt of up to 40 tokens; every field takes its default now and then.
  Case Next() {
    Case c;
    c.layout.block_tokens = static_cast<uint32_t>(1 + UpTo(7));
    c.layout.has_rows = !Chance(6);
    c.layout.has_state = !c.layout.has_rows || !Chance(6);
    c.layout.replay = static_cast<plan::ReplayRule>(UpTo(2));
    c.layout.exact_replay_tokens = UpTo(20);
    c.layout.bounded_replay_tokens = UpTo(6);
    c.layout.block_bytes = UpTo(40);
    c.request.prompt_tokens = UpTo(40);
    c.request.matched_tokens = plan::RoundDown(UpTo(44), c.layout.block_tokens);
    for (uint64_t i = UpTo(5); i > 0; --i) c.snapshots.push_back(Snapshot(static_cast<uint32_t>(i)));
    if (Chance(3)) c.request.held_tokens = UpTo(40);
    c.request.allowed_modes = static_cast<uint32_t>(UpTo(31));
    if (Chance(2)) c.request.restart_multiple = static_cast<uint32_t>(UpTo(6));
    if (Chance(3)) c.request.min_gain_tokens = UpTo(12);
    if (Chance(4)) c.request.usable_limit = UpTo(40);
    if (!Chance(3)) c.request.costs.prefill_tokens_per_second = static_cast<double>(uint64_t{1} << UpTo(6));
    if (!Chance(3)) c.request.costs.storage_bytes_per_second = static_cast<double>(uint64_t{1} << UpTo(8));
    if (Chance(3)) c.request.costs.fixed_seconds = static_cast<double>(UpTo(16)) / 64;
    return c;
  }

  plan::SnapshotCandidate Snapshot(uint32_t id) { return {.position = UpTo(42), .bytes = UpTo(60), .id = id}; }

 private:
  std::mt19937 random_;
};

plan::Plan Make(Case& c) {
  c.request.snapshots = c.snapshots;
  return plan::MakePlan(c.layout, c.request);
}

// What the decision goes by; a refusal costs the caller's own way.
double Outcome(const Case& c, const plan::Plan& got) {
  const Oracle oracle(c.layout, c.request);
  if (got.mode == Mode::kNone) return oracle.OwnCost();
  return oracle.Cost({got.mode, got.usable_tokens, got.replay_from, got.snapshot});
}

uint32_t Seed() { return std::random_device{}(); }

}  // namespace

TEST_CASE("the plan is the best of all legal restarts") {
  const uint32_t seed = Seed();
  INFO("seed " << seed);
  Generator generator(seed);
  size_t seen[5] = {};
  for (int round = 0; round < 20000; ++round) {
    Case c = generator.Next();
    const plan::Plan got = Make(c);
    const Oracle oracle(c.layout, c.request);
    const std::optional<Way> best = oracle.Best();
    CAPTURE(round, c.layout.block_tokens, c.layout.has_rows, c.layout.has_state, c.request.prompt_tokens,
            c.request.matched_tokens, c.request.held_tokens, c.request.restart_multiple, c.request.allowed_modes);
    ++seen[static_cast<size_t>(got.mode)];
    REQUIRE((got.mode != Mode::kNone) == best.has_value());
    if (!best) continue;
    const Way way{got.mode, got.usable_tokens, got.replay_from, got.snapshot};
    REQUIRE(oracle.Legal(way));
    REQUIRE(got.mode == best->mode);
    REQUIRE(got.usable_tokens == best->usable);
    REQUIRE(got.replay_from == best->replay_from);
    REQUIRE(got.snapshot.has_value() == best->snapshot.has_value());
    REQUIRE(got.bytes_to_read == oracle.Bytes(*best));
  }
  for (size_t mode = 0; mode < 5; ++mode) {
    CAPTURE(mode, seen[mode]);
    CHECK(seen[mode] >= 100);
  }
}

TEST_CASE("every plan keeps the invariants of the header") {
  const uint32_t seed = Seed();
  INFO("seed " << seed);
  Generator generator(seed);
  for (int round = 0; round < 50000; ++round) {
    Case c = generator.Next();
    const plan::Plan got = Make(c);
    const uint64_t n = c.request.prompt_tokens;
    const uint64_t r = std::max<uint64_t>(1, c.request.restart_multiple);
    CAPTURE(round, n, r, static_cast<int>(got.mode), got.usable_tokens, got.replay_from);
    REQUIRE(got.replay_from <= got.usable_tokens);
    REQUIRE(got.reused_tokens == got.replay_from);
    REQUIRE(got.replayed_tokens == got.usable_tokens - got.replay_from);
    REQUIRE(got.reused_tokens + got.replayed_tokens + got.recomputed_tokens == n);
    REQUIRE(got.write_floor == got.usable_tokens);
    REQUIRE(got.usable_tokens % r == 0);
    REQUIRE(got.replay_from % r == 0);
    REQUIRE(got.read_blocks_from <= got.read_blocks_to);
    REQUIRE(got.read_blocks_to * c.layout.block_tokens <= std::max(got.usable_tokens, c.request.matched_tokens));
    if (got.mode == Mode::kNone) {
      REQUIRE(got.reason != plan::Reason::kNone);
      REQUIRE(got.usable_tokens == 0);
      REQUIRE(got.bytes_to_read == 0);
      REQUIRE_FALSE(got.snapshot.has_value());
      continue;
    }
    REQUIRE(got.usable_tokens < n);
    REQUIRE(got.usable_tokens <= c.request.usable_limit);
    REQUIRE(got.replay_from > c.request.held_tokens);
    REQUIRE(got.read_blocks_from * c.layout.block_tokens <= c.request.held_tokens);
    if (got.snapshot) REQUIRE(got.snapshot->position == got.replay_from);
    const Oracle oracle(c.layout, c.request);
    if (oracle.RatesKnown()) REQUIRE(got.restore_seconds + got.recompute_seconds < oracle.OwnCost());
  }
}

TEST_CASE("one more snapshot never makes the plan worse") {
  const uint32_t seed = Seed();
  INFO("seed " << seed);
  Generator generator(seed);
  for (int round = 0; round < 20000; ++round) {
    Case c = generator.Next();
    const double before = Outcome(c, Make(c));
    c.snapshots.push_back(generator.Snapshot(100));
    const double after = Outcome(c, Make(c));
    CAPTURE(round, before, after);
    REQUIRE(after <= before);
  }
}

TEST_CASE("more rows or more modes never make the engine run more tokens") {
  const uint32_t seed = Seed();
  INFO("seed " << seed);
  Generator generator(seed);
  for (int round = 0; round < 20000; ++round) {
    Case c = generator.Next();
    c.request.costs = {};
    if (c.request.allowed_modes == 0) c.request.allowed_modes = plan::kDefaultModes;
    const uint64_t before = Make(c).replay_from;
    c.request.matched_tokens += c.layout.block_tokens * generator.UpTo(3);
    const uint64_t with_rows = Make(c).replay_from;
    c.request.allowed_modes |= static_cast<uint32_t>(generator.UpTo(31));
    const uint64_t with_modes = Make(c).replay_from;
    CAPTURE(round, before, with_rows, with_modes);
    REQUIRE(with_rows >= before);
    REQUIRE(with_modes >= with_rows);
  }
}

TEST_CASE("reading only from what is held never reads more") {
  const uint32_t seed = Seed();
  INFO("seed " << seed);
  Generator generator(seed);
  for (int round = 0; round < 20000; ++round) {
    Case c = generator.Next();
    c.request.costs = {};
    c.request.min_gain_tokens = 0;
    c.request.held_tokens = 0;
    const plan::Plan whole = Make(c);
    c.request.held_tokens = generator.UpTo(40);
    const plan::Plan rest = Make(c);
    CAPTURE(round, c.request.held_tokens, whole.replay_from);
    // Without rates the choice does not depend on what is held, only whether it still gains.
    REQUIRE((rest.mode != Mode::kNone) == (whole.replay_from > c.request.held_tokens));
    REQUIRE(rest.bytes_to_read <= whole.bytes_to_read);
  }
}
