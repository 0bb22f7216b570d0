// SPDX-License-Identifier: Apache-2.0
// Exact top-k. A score and its index make one number of 64 bits, greater for the better one, so that there are no ties:
// the k greatest are found digit by digit from the top (a radix select), then sorted.
//
// A block has a query. Each pass over the scores counts the next digit of those that agree with the digits found so
// far; as soon as those are few enough to lie in shared memory (after the first pass, usually), one more pass takes
// what is better and what agrees, and the rest is done there. Where more scores are equal than that, the last pass
// takes them in the order of their indices until there are enough. So the scores are read twice; four times at most.
#include <bit>
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/grid.h"

namespace kvstrata::kernels::cuda {
namespace {

constexpr uint32_t kDigitBits = 11;
constexpr uint32_t kDigits = 1u << kDigitBits;
constexpr uint32_t kKeyBits = 64;
constexpr uint32_t kScoreBits = 32;  // of a key, above the index
// Keys that shared memory holds, of each kind: those that agree, and those that are chosen.
constexpr uint32_t kKeys = 2048;
// Scores that a thread has in flight.
constexpr uint32_t kInFlight = 8;

// Of the score above, of the index below: lower indices are better. NaN is the worst, -0 is 0.
KVSTRATA_DEVICE uint64_t KeyOf(float score, uint32_t index) {
  const uint32_t bits = std::bit_cast<uint32_t>(score == 0 ? 0.0f : score);
  uint32_t order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  if (std::isnan(score)) order = 0;
  return uint64_t{order} << 32 | (0xFFFFFFFFu - index);
}

KVSTRATA_DEVICE uint32_t IndexOf(uint64_t key) { return 0xFFFFFFFFu - static_cast<uint32_t>(key); }

struct Select {
  static constexpr uint32_t kThreads = 256;
  // The sums that FindDigit goes along: of a thread's digits, and of 16 threads'.
  static constexpr uint32_t kThreadDigits = kDigits / kThreads;
  static constexpr uint32_t kGroupThreads = 16;
  static constexpr uint32_t kGroups = kThreads / kGroupThreads;
  static constexpr uint32_t kSharedBytes =
      2 * kKeys * sizeof(uint64_t) + (kDigits + kThreads + kGroups + 4) * sizeof(uint32_t);
  // The ties of as many scores fit into shared memory, whatever they are.
  static constexpr uint32_t kStretch = kInFlight * kThreads;
  static_assert(kStretch == kKeys);

  const float* scores;
  uint64_t score_stride;
  uint64_t entries;
  uint64_t first_position;
  uint64_t tokens;
  uint32_t k, ratio;
  bool ascending;
  int32_t* indices;
  uint64_t index_stride;
  uint64_t* workspace;  // of a block: `chosen_capacity` keys; null: shared memory holds them
  uint64_t chosen_capacity;

  // Shared memory of a block.
  struct Shared {
    uint64_t* agreeing;
    uint64_t* chosen;
    uint32_t* counts;         // of each digit
    uint32_t* thread_counts;  // of each thread's digits
    uint32_t* group_counts;
    uint32_t* chosen_count;
    uint32_t* agreeing_count;
    uint32_t* digit;  // what FindDigit has found
    uint32_t* above;
  };

  KVSTRATA_DEVICE Shared SharedOf(const Thread& t) const {
    auto* keys = static_cast<uint64_t*>(t.shared());
    auto* counts = reinterpret_cast<uint32_t*>(keys + 2 * kKeys);
    uint64_t* own = keys + kKeys;
    if (workspace != nullptr) own = workspace + t.block() * chosen_capacity;
    uint32_t* rest = counts + kDigits + kThreads + kGroups;
    return {keys, own, counts, counts + kDigits, counts + kDigits + kThreads, rest, rest + 1, rest + 2, rest + 3};
  }

  // body(score, index) for scores begin .. end - 1, of which a thread loads some before it looks at the first.
  template <typename Body>
  static KVSTRATA_DEVICE void ForScores(const Thread& t, const float* row, uint32_t begin, uint32_t end,
                                        const Body& body) {
    for (uint64_t first = begin; first < end; first += kStretch) {
      float values[kInFlight];
      KVSTRATA_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) {
        const uint64_t at = first + i * kThreads + t.thread();
        values[i] = at < end ? row[at] : 0.0f;
      }
      KVSTRATA_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) {
        const uint64_t at = first + i * kThreads + t.thread();
        if (at < end) body(values[i], static_cast<uint32_t>(at));
      }
    }
  }

  // The digit in which the `wanted`-th best of the counted keys lies, and how many keys have a better one.
  KVSTRATA_DEVICE void FindDigit(const Thread& t, const Shared& shared, uint32_t wanted) const {
    uint32_t own = 0;
    for (uint32_t i = 0; i < kThreadDigits; ++i) own += shared.counts[t.thread() * kThreadDigits + i];
    shared.thread_counts[t.thread()] = own;
    t.Sync();
    if (t.thread() < kGroups) {
      uint32_t group = 0;
      for (uint32_t i = 0; i < kGroupThreads; ++i) group += shared.thread_counts[t.thread() * kGroupThreads + i];
      shared.group_counts[t.thread()] = group;
    }
    t.Sync();
    if (t.thread() == 0) {
      uint32_t above = 0;
      const uint32_t group = Descend(shared.group_counts, kGroups - 1, wanted, &above);
      const uint32_t thread = Descend(shared.thread_counts, group * kGroupThreads + kGroupThreads - 1, wanted, &above);
      *shared.digit = Descend(shared.counts, thread * kThreadDigits + kThreadDigits - 1, wanted, &above);
      *shared.above = above;
    }
    t.Sync();
  }

  // From counts[at] downwards, the first with which `above` reaches `wanted`; those before it are added to `above`.
  static KVSTRATA_DEVICE uint32_t Descend(const uint32_t* counts, uint32_t at, uint32_t wanted, uint32_t* above) {
    while (*above + counts[at] < wanted) *above += counts[at--];
    return at;
  }

  // How many bits lie below a prefix of `bits` bits.
  static KVSTRATA_DEVICE uint32_t Below(uint32_t bits) { return bits >= kKeyBits ? 0 : kKeyBits - bits; }
  // `key` without what lies below; a shift by all 64 bits is no shift.
  static KVSTRATA_DEVICE uint64_t Prefix(uint64_t key, uint32_t bits) { return bits == 0 ? 0 : key >> Below(bits); }

  // Chooses the `wanted` best of the row, unsorted. More than that many are there.
  KVSTRATA_DEVICE void Choose(const Thread& t, const Shared& shared, const float* row, uint32_t visible,
                              uint32_t wanted) const {
    uint64_t prefix = 0;
    uint32_t bits = 0;
    uint32_t better = 0;          // keys above the prefix
    uint32_t agreeing = visible;  // keys with the prefix
    while (agreeing > kKeys && bits < kScoreBits) {
      const uint32_t digit_bits = kScoreBits - bits < kDigitBits ? kScoreBits - bits : kDigitBits;
      for (uint32_t i = t.thread(); i < kDigits; i += kThreads) shared.counts[i] = 0;
      t.Sync();
      ForScores(t, row, 0, visible, [&](float score, uint32_t s) {
        const uint64_t key = KeyOf(score, s);
        if (Prefix(key, bits) != prefix) return;
        t.AddShared(&shared.counts[(key >> Below(bits + digit_bits)) & ((1u << digit_bits) - 1)], 1);
      });
      t.Sync();
      FindDigit(t, shared, wanted - better);
      better += *shared.above;
      agreeing = shared.counts[*shared.digit];
      prefix = prefix << digit_bits | *shared.digit;
      bits += digit_bits;
      t.Sync();  // the counts are cleared next
    }
    if (t.thread() == 0) *shared.chosen_count = *shared.agreeing_count = 0;
    t.Sync();
    if (agreeing > kKeys) return TakeTies(t, shared, row, visible, prefix, better, wanted);
    ForScores(t, row, 0, visible, [&](float score, uint32_t s) {
      const uint64_t key = KeyOf(score, s);
      const uint64_t own = Prefix(key, bits);
      if (own > prefix) shared.chosen[t.AddShared(shared.chosen_count, 1)] = key;
      if (own == prefix) shared.agreeing[t.AddShared(shared.agreeing_count, 1)] = key;
    });
    t.Sync();
    Sort(t, shared.agreeing, agreeing);
    for (uint32_t i = t.thread(); i < wanted - better; i += t.threads()) shared.chosen[better + i] = shared.agreeing[i];
    t.Sync();
  }

  // The last pass where the boundary lies among more equal scores than shared memory holds: what is better, and of the
  // equal ones, `score` in the order of KeyOf, the first of the row.
  KVSTRATA_DEVICE void TakeTies(const Thread& t, const Shared& shared, const float* row, uint32_t visible,
                                uint64_t score, uint32_t better, uint32_t wanted) const {
    uint32_t taken = better;
    for (uint64_t first = 0; first < visible && (better != 0 || taken < wanted); first += kStretch) {
      const uint32_t end = visible - first < kStretch ? visible : static_cast<uint32_t>(first) + kStretch;
      ForScores(t, row, static_cast<uint32_t>(first), end, [&](float value, uint32_t s) {
        const uint64_t key = KeyOf(value, s);
        if (key >> kScoreBits > score) shared.chosen[t.AddShared(shared.chosen_count, 1)] = key;
        if (key >> kScoreBits == score && taken < wanted) {
          shared.agreeing[t.AddShared(shared.agreeing_count, 1)] = key;
        }
      });
      t.Sync();
      const uint32_t found = *shared.agreeing_count;
      const uint32_t room = wanted - taken;
      if (found > room) Sort(t, shared.agreeing, found);
      const uint32_t takes = found < room ? found : room;
      for (uint32_t i = t.thread(); i < takes; i += kThreads) shared.chosen[taken + i] = shared.agreeing[i];
      taken += takes;
      t.Sync();  // the next stretch's ties come where these are read
      if (t.thread() == 0) *shared.agreeing_count = 0;
      t.Sync();
    }
  }

  // Best first: a bitonic network over the next power of two, filled up with keys that are worse than any.
  KVSTRATA_DEVICE void Sort(const Thread& t, uint64_t* keys, uint32_t count) const {
    uint32_t padded = 1;
    while (padded < count) padded *= 2;
    for (uint32_t i = count + t.thread(); i < padded; i += t.threads()) keys[i] = 0;
    t.Sync();
    for (uint32_t run = 2; run <= padded; run *= 2) {
      for (uint32_t distance = run / 2; distance != 0; distance /= 2) {
        for (uint32_t pair = t.thread(); pair < padded / 2; pair += t.threads()) {
          const uint32_t i = pair / distance * 2 * distance + pair % distance;
          const uint32_t j = i + distance;
          const bool descending = (i & run) == 0;
          const uint64_t a = keys[i];
          const uint64_t b = keys[j];
          if ((a < b) == descending) {
            keys[i] = b;
            keys[j] = a;
          }
        }
        t.Sync();
      }
    }
  }

  KVSTRATA_DEVICE void Query(const Thread& t, const Shared& shared, uint64_t n) const {
    const float* row = scores + n * score_stride;
    const uint64_t seen = VisibleEntries(first_position + n, ratio);
    const auto visible = static_cast<uint32_t>(seen < entries ? seen : entries);
    const uint32_t kept = visible < k ? visible : k;
    if (kept == visible) {
      for (uint32_t s = t.thread(); s < visible; s += t.threads()) shared.chosen[s] = KeyOf(row[s], s);
      t.Sync();
    } else {
      Choose(t, shared, row, visible, kept);
    }
    if (ascending) {
      // The index alone decides, the lowest is the greatest; fewer than 2^31 of them, so none is a filling.
      for (uint32_t i = t.thread(); i < kept; i += t.threads())
        shared.chosen[i] = static_cast<uint32_t>(shared.chosen[i]);
      t.Sync();
    }
    Sort(t, shared.chosen, kept);
    int32_t* out = indices + n * index_stride;
    for (uint32_t i = t.thread(); i < k; i += t.threads()) {
      out[i] = i < kept ? static_cast<int32_t>(IndexOf(shared.chosen[i])) : -1;
    }
    t.Sync();  // the next query's keys come where these are read
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const Shared shared = SharedOf(t);
    for (uint64_t n = t.block(); n < tokens; n += t.blocks()) Query(t, shared, n);
  }
};

// Blocks that sort in the workspace: enough to fill a GPU, few enough that their keys do not take the caller's memory.
constexpr uint32_t kWorkspaceBlocks = 264;

struct Chosen {
  uint32_t blocks;
  uint64_t capacity;  // keys of a block in the workspace; 0: none
};

// Keys that a query can choose, rounded up for the sort.
Chosen ChosenOf(const kvstrata_topk_args& a) {
  const uint64_t most = a.entries < a.k ? a.entries : a.k;
  const uint64_t tokens = a.tokens < (1u << 16) ? a.tokens : 1u << 16;
  if (most <= kKeys) return {static_cast<uint32_t>(tokens), 0};
  const uint64_t blocks = tokens < kWorkspaceBlocks ? tokens : kWorkspaceBlocks;
  return {static_cast<uint32_t>(blocks), std::bit_ceil(static_cast<uint32_t>(most))};
}

// Eight bytes more, since the caller's workspace is aligned for floats only.
uint64_t WorkspaceBytes(const kvstrata_topk_args& a) {
  const Chosen chosen = ChosenOf(a);
  return chosen.capacity == 0 ? 0 : (chosen.blocks * chosen.capacity + 1) * sizeof(uint64_t);
}

}  // namespace

int32_t TopKWorkspaceBytes(const kvstrata_topk_args* args, uint64_t* out_bytes) {
  kvstrata_topk_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = WorkspaceBytes(a);
  return kOk;
}

int32_t TopK(const kvstrata_topk_args* args, void* stream) {
  kvstrata_topk_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, WorkspaceBytes(a))) return kInvalidArgument;
  const Chosen chosen = ChosenOf(a);
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(a.workspace) + 7) / 8 * 8;
  const Select kernel{a.scores,
                      a.score_stride,
                      a.entries,
                      a.first_position,
                      a.tokens,
                      a.k,
                      a.ratio,
                      (a.flags & KVSTRATA_KERNELS_TOPK_SORT_ASCENDING) != 0,
                      a.indices,
                      a.index_stride,
                      chosen.capacity == 0 ? nullptr : reinterpret_cast<uint64_t*>(aligned),
                      chosen.capacity};
  return Launch(kernel, {chosen.blocks, kernel.kSharedBytes}, stream);
}

}  // namespace kvstrata::kernels::cuda
