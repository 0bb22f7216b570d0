// SPDX-License-Identifier: Apache-2.0
// Exact top-k. A score and its index make one number of 64 bits, greater for the better one, so that there are no ties:
// the k greatest are found digit by digit from the top (a radix select), then sorted.
//
// A block has a query. A pass over the scores counts the next digit of those that agree with the digits found so far;
// as soon as those are few enough to lie in shared memory (after the first pass, usually), one more pass takes what is
// better and what agrees, and the rest is done there. Where two digits are not enough (scores that are equal, or
// almost), the last pass keeps the best that it has met. So the scores are read twice as a rule, and never more than
// three times.
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
constexpr uint32_t kMostCounted = 2 * kDigitBits;  // bits of a key that passes count
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
  static constexpr uint32_t kMostSharedBytes =
      2 * kKeys * sizeof(uint64_t) + (kDigits + kThreads + kGroups + 4) * sizeof(uint32_t);
  // What StreamBest looks at before it asks whether there is room for more: half of what shared memory holds.
  static constexpr uint32_t kStreamInFlight = kKeys / kThreads / 2;

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

  // body(score, index) for scores first .. of which each thread has kCount, all loaded before it looks at the first.
  template <uint32_t kCount, typename Body>
  static KVSTRATA_DEVICE void ForStretch(const Thread& t, const float* row, uint64_t first, uint32_t visible,
                                         const Body& body) {
    float values[kCount];
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint64_t at = first + i * kThreads + t.thread();
      values[i] = at < visible ? t.Load(row + at) : 0.0f;
    }
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint64_t at = first + i * kThreads + t.thread();
      if (at < visible) body(values[i], static_cast<uint32_t>(at));
    }
  }

  template <typename Body>
  static KVSTRATA_DEVICE void ForScores(const Thread& t, const float* row, uint32_t visible, const Body& body) {
    for (uint64_t first = 0; first < visible; first += kInFlight * kThreads) {
      ForStretch<kInFlight>(t, row, first, visible, body);
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

  // The highest `bits` bits of a key; a shift by all of them is no shift.
  static KVSTRATA_DEVICE uint64_t Prefix(uint64_t key, uint32_t bits) {
    return bits == 0 ? 0 : key >> (kKeyBits - bits);
  }

  // Chooses the `wanted` best of the row, unsorted. More than that many are there.
  KVSTRATA_DEVICE void Choose(const Thread& t, const Shared& shared, const float* row, uint32_t visible,
                              uint32_t wanted) const {
    uint64_t prefix = 0;
    uint32_t bits = 0;
    uint32_t better = 0;          // keys above the prefix
    uint32_t agreeing = visible;  // keys with the prefix
    while (agreeing > kKeys && bits < kMostCounted) {
      for (uint32_t i = t.thread(); i < kDigits; i += kThreads) shared.counts[i] = 0;
      t.Sync();
      ForScores(t, row, visible, [&](float score, uint32_t s) {
        const uint64_t key = KeyOf(score, s);
        if (Prefix(key, bits) == prefix) t.AddShared(&shared.counts[Prefix(key, bits + kDigitBits) % kDigits], 1);
      });
      t.Sync();
      FindDigit(t, shared, wanted - better);
      better += *shared.above;
      agreeing = shared.counts[*shared.digit];
      prefix = prefix << kDigitBits | *shared.digit;
      bits += kDigitBits;
      t.Sync();  // the counts are cleared next
    }
    if (t.thread() == 0) *shared.chosen_count = *shared.agreeing_count = 0;
    t.Sync();
    if (agreeing > kKeys) return StreamBest(t, shared, row, visible, prefix, bits, better, wanted);
    ForScores(t, row, visible, [&](float score, uint32_t s) {
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

  // The last pass where more keys agree than shared memory holds: what is better goes where it belongs, and of the
  // others the best so far are kept, sorted, behind it. New ones gather until there is no room for another stretch.
  KVSTRATA_DEVICE void StreamBest(const Thread& t, const Shared& shared, const float* row, uint32_t visible,
                                  uint64_t prefix, uint32_t bits, uint32_t better, uint32_t wanted) const {
    constexpr uint32_t kStretch = kStreamInFlight * kThreads;
    uint64_t* best = shared.chosen + better;
    const uint32_t room = wanted - better;
    for (uint32_t i = t.thread(); i < room; i += kThreads) best[i] = 0;  // worse than any key
    t.Sync();
    for (uint64_t first = 0; first < visible; first += kStretch) {
      const uint64_t worst = best[room - 1];
      ForStretch<kStreamInFlight>(t, row, first, visible, [&](float score, uint32_t s) {
        const uint64_t key = KeyOf(score, s);
        const uint64_t own = Prefix(key, bits);
        if (own > prefix) shared.chosen[t.AddShared(shared.chosen_count, 1)] = key;
        if (own == prefix && key > worst) shared.agreeing[t.AddShared(shared.agreeing_count, 1)] = key;
      });
      t.Sync();
      const uint32_t found = *shared.agreeing_count;
      t.Sync();  // the next stretch adds to what is read here
      if (found <= kKeys - kStretch && first + kStretch < visible) continue;
      TakeBest(t, shared.agreeing, found, best, room);
      if (t.thread() == 0) *shared.agreeing_count = 0;
      t.Sync();
    }
  }

  // The best `room` of both, sorted, into `best`, which is sorted. Of two sorted lists the best are the better ones of
  // the pairs that one list forwards and the other backwards make.
  KVSTRATA_DEVICE void TakeBest(const Thread& t, uint64_t* found, uint32_t count, uint64_t* best, uint32_t room) const {
    Sort(t, found, count);
    for (uint32_t i = t.thread(); i < count && i < room; i += kThreads) {
      uint64_t* const other = best + (room - 1 - i);
      if (found[i] > *other) *other = found[i];
    }
    t.Sync();
    Sort(t, best, room);
  }

  // Best first: a bitonic network that puts the better key first in each of its steps, so that those behind `count`,
  // taken as worse than any, never move and need no place.
  KVSTRATA_DEVICE void Sort(const Thread& t, uint64_t* keys, uint32_t count) const {
    uint32_t padded = 1;
    while (padded < count) padded *= 2;
    for (uint32_t run = 2; run <= padded; run *= 2) {
      // Two sorted halves: the second is read backwards in the first step.
      Step(t, keys, count, padded, run / 2, run - 1);
      for (uint32_t distance = run / 4; distance != 0; distance /= 2) Step(t, keys, count, padded, distance, distance);
    }
  }

  // Compares keys[i] and keys[i ^ mirror] for all i that have a 0 at `distance`, the highest bit of `mirror`.
  KVSTRATA_DEVICE void Step(const Thread& t, uint64_t* keys, uint32_t count, uint32_t padded, uint32_t distance,
                            uint32_t mirror) const {
    for (uint32_t pair = t.thread(); pair < padded / 2; pair += kThreads) {
      const uint32_t i = pair / distance * 2 * distance + pair % distance;
      const uint32_t j = i ^ mirror;
      if (j >= count) continue;
      const uint64_t a = keys[i];
      const uint64_t b = keys[j];
      if (a < b) {
        keys[i] = b;
        keys[j] = a;
      }
    }
    t.Sync();
  }

  KVSTRATA_DEVICE void Query(const Thread& t, const Shared& shared, uint64_t n) const {
    const float* row = scores + n * score_stride;
    const uint64_t seen = VisibleEntries(first_position + n, ratio);
    const auto visible = static_cast<uint32_t>(seen < entries ? seen : entries);
    const uint32_t kept = visible < k ? visible : k;
    if (kept == visible) {
      for (uint32_t s = t.thread(); s < visible; s += t.threads()) shared.chosen[s] = KeyOf(t.Load(row + s), s);
      t.Sync();
    } else {
      Choose(t, shared, row, visible, kept);
    }
    if (ascending) {
      // The index alone decides, the lowest is the greatest.
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

// Keys that a query can choose.
Chosen ChosenOf(const kvstrata_topk_args& a) {
  const uint64_t most = a.entries < a.k ? a.entries : a.k;
  const uint64_t tokens = a.tokens < (1u << 16) ? a.tokens : 1u << 16;
  if (most <= kKeys) return {static_cast<uint32_t>(tokens), 0};
  const uint64_t blocks = tokens < kWorkspaceBlocks ? tokens : kWorkspaceBlocks;
  return {static_cast<uint32_t>(blocks), most};
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
  return Launch(kernel, {chosen.blocks, kernel.kMostSharedBytes}, stream);
}

}  // namespace kvstrata::kernels::cuda
