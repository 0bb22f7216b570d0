// SPDX-License-Identifier: Apache-2.0
// The restore planner: from what a lookup matched and what the caller can do, the cheapest exact way to restart.
// Owns the rules of the five restore modes, the cost model and the reasons. It decides numbers only: which blocks
// and which snapshot to read, from which token the engine runs again, and what that is expected to cost.
//
// Words: n = prompt tokens, B = block_tokens, r = restart_multiple, H = length that rows are read to, S = position
// of a snapshot. A position P means "the first P tokens"; the token at index P is the next one.
//
// Thread rule: pure functions, no I/O, no state.
//
// Invariants of every Plan (tests/unit/plan checks each one on random requests):
//   I1  usable_tokens <= n-1 (an engine must compute at least one token) and <= usable_limit.
//   I2  usable_tokens, replay_from and the snapshot's position are multiples of r; replay_from is rounded down, so
//       that a replay is never shorter than exactness needs.
//   I3  usable_tokens lies on the block grid within the matched blocks, or is the snapshot's own position.
//   I4  replay_from <= usable_tokens, and reused + replayed + recomputed = n.
//   I5  mode kNone has usable_tokens, replay_from, write_floor and bytes_to_read 0 and a reason that is not kNone.
//   I6  with both rates known, restore_seconds + recompute_seconds is less than the caller's own way, running the
//       tokens from held_tokens to n.
//   I7  kBoundedReplay only where the layout declares it, the caller allows it and no exact way is as cheap.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

namespace kvstrata::core::plan {

// Pinned numbers: the C ABI hands them out unchanged.
enum class Mode : int32_t {
  kNone = 0,            // reads nothing, the engine runs everything; Plan::reason says why
  kSnapshot = 1,        // blocks and the snapshot at the usable length; nothing runs again
  kSnapshotReplay = 2,  // blocks to H, snapshot at S < H; tokens S..H-1 run again
  kFullReplay = 3,      // blocks to H, no state; the last exact_replay_tokens before H run again
  kBoundedReplay = 4,   // blocks to H, no state; the last bounded_replay_tokens run again: declared not exact
};

constexpr uint32_t ModeBit(Mode mode) { return uint32_t{1} << static_cast<int32_t>(mode); }

// The mask that an empty one stands for.
constexpr uint32_t kDefaultModes = ModeBit(Mode::kSnapshot);

// Why a plan is not longer, or is none. Pinned numbers.
enum class Reason : int32_t {
  kNone = 0,              // nothing limits: every complete block and usable snapshot below n is in use
  kAbsent = 1,            // not even the first block is stored
  kDiverged = 2,          // stored up to the matched length; what follows differs or is not stored
  kCapped = 3,            // the n-1 rule, or usable_limit
  kShorterThanBlock = 4,  // n < B, and no snapshot inside the first block
  kNoSnapshot = 5,        // rows reach further than the newest snapshot, or there is no snapshot at all
  kModeNotAllowed = 6,    // what is stored needs a mode that the caller did not allow
  kNotWorthIt = 7,        // reading and replaying takes as long as running the tokens, or longer
  kMinGain = 8,           // gains fewer than min_gain_tokens
  kRestartGrid = 9,       // nothing longer lies on the restart grid
  kReplayTooLong = 10,    // the replay would start at 0: nothing gained
  kHeld = 11,             // the caller already holds as much
  kForeign = 12,          // a record of another identity stood in the way
  kCorrupt = 13,          // a damaged record stood in the way
  kEvicted = 14,          // what was matched has gone
  kUnreadable = 15,       // the storage failed or was too slow
};

// "snapshot_replay", "not_worth_it": stable lower-case names for statistics, logs and result lines.
std::string_view ModeName(Mode mode);
std::string_view ReasonName(Reason reason);

// How a layout's state can be rebuilt without a snapshot. kBounded implies that kFullReplay is possible as well,
// if exact_replay_tokens is not 0.
enum class ReplayRule : int32_t { kNone = 0, kFull = 1, kBounded = 2 };

// What the planner needs to know of a layout; the engine fills it in.
struct LayoutFacts {
  uint32_t block_tokens = 1;  // B; 0 reads as 1
  bool has_rows = false;      // rows streams: global KV that grows with the sequence
  bool has_state = false;     // state streams: a restart needs a snapshot or a replay
  ReplayRule replay = ReplayRule::kNone;
  uint64_t exact_replay_tokens = 0;    // (W-1)*L: 5,461 for V4-Flash, 7,747 for V4-Pro
  uint64_t bounded_replay_tokens = 0;  // W: 128 for V4.1
  uint64_t block_bytes = 0;            // stored bytes of one block, all rows streams that the caller wants
};

// Speeds for the decision. 0 means unknown; the decision then goes by tokens run, not by time.
struct Costs {
  double prefill_tokens_per_second = 0;
  double storage_bytes_per_second = 0;
  double fixed_seconds = 0;  // latency of one restore that reads anything at all
};

// A stored snapshot that belongs to this prompt: on the matched chain, and with the token ids since its block
// boundary compared equal. The engine vouches for that; the planner filters by position.
struct SnapshotCandidate {
  uint64_t position = 0;
  uint64_t bytes = 0;
  uint32_t id = 0;  // the engine's own index, handed back
};

struct Request {
  uint64_t prompt_tokens = 0;          // n
  uint64_t matched_tokens = 0;         // longest stored chain; rounded down to B
  Reason match_end = Reason::kAbsent;  // why the chain is not longer: kAbsent, kDiverged, kForeign, kCorrupt, ...
  std::span<const SnapshotCandidate> snapshots{};  // any order; those out of reach are skipped
  uint64_t held_tokens = 0;                        // the caller can restart at this position by itself
  uint32_t allowed_modes = 0;                      // ModeBit values; 0 means kDefaultModes
  uint32_t restart_multiple = 0;                   // r; 0 means 1
  uint64_t min_gain_tokens = 0;                    // least replay_from - held_tokens worth having; 0 means 1
  Costs costs{};
  uint64_t usable_limit = std::numeric_limits<uint64_t>::max();  // agreed between ranks; caps usable_tokens
};

struct Plan {
  Mode mode = Mode::kNone;
  Reason reason = Reason::kNone;  // the limiting one, for every mode
  uint64_t usable_tokens = 0;     // after the restore and its replay the engine continues at this position
  uint64_t replay_from = 0;       // first token that the engine runs; equals usable_tokens without a replay
  uint64_t write_floor = 0;       // rows of tokens below it are in place and must not be written by the replay
  std::optional<SnapshotCandidate> snapshot{};  // to read; none for replay without state and for layouts without state
  uint64_t reused_tokens = 0;                   // = replay_from (what the caller held included)
  uint64_t replayed_tokens = 0;                 // = usable_tokens - replay_from
  uint64_t recomputed_tokens = 0;               // = n - usable_tokens
  uint64_t read_blocks_from = 0;                // blocks [from, to) of the chain are read; from holds token held_tokens
  uint64_t read_blocks_to = 0;
  uint64_t bytes_to_read = 0;    // blocks and snapshot
  double restore_seconds = 0;    // reading; 0 if the storage rate is unknown
  double recompute_seconds = 0;  // running tokens [replay_from, n); 0 if the prefill rate is unknown
};

// The choice. A way must gain: gain = replay_from - held_tokens, the tokens that need not run because of us, at
// least max(1, min_gain_tokens). Of the ways that gain,
//  * with both rates known, those count that take less time than running tokens held_tokens..n-1, and the one that
//    takes the least time wins;
//  * with a rate unknown, the one that runs the fewest tokens wins;
//  * ties go to the larger usable length, then to fewer bytes, then to the smaller mode number.
// Rows are always used as far as they reach: between S and H, kSnapshotReplay stands in for kSnapshot at S wherever
// it is allowed and pays, since it runs the same tokens and leaves the stored rows as the only truth.
// For a layout without state streams kSnapshot means blocks to H and nothing else; for one without rows streams
// the usable length is a snapshot's position.
Plan MakePlan(const LayoutFacts& layout, const Request& request);

// The largest multiple of `multiple` (0 reads as 1) that is not above `value`.
constexpr uint64_t RoundDown(uint64_t value, uint64_t multiple) {
  return multiple <= 1 ? value : value - value % multiple;
}

// The grid on which a restart from rows can lie: lcm(B, r) with rows streams, r without.
uint64_t RestartGrid(const LayoutFacts& layout, uint32_t restart_multiple);

}  // namespace kvstrata::core::plan
