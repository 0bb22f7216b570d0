// SPDX-License-Identifier: Apache-2.0
// The loops around index_scores that all levels share: which queries see which keys, in what order they are visited,
// and where packed queries and loaded keys lie in the workspace. What is done to them is the level's (ScoreSteps).
//
// Heads lie in the lanes of a vector and keys are broadcast, so keys are read as the rows they are: only the queries, a
// few KiB, are ever transposed. A scan packs up to kScanTokens queries, then holds kScanKeys keys at a time against all
// of them. Keys that must be widened are so once, into one of two buffers that stay in the first-level cache: while the
// first query meets one chunk of keys the next chunk is loaded, in between its multiply-adds.
// I1: A score is computed from its own key and query in an order that depends on neither tokens, entries nor tile, if
//     ScoreSteps::score keeps to that.
// I2: Only keys that some query of the call sees are read.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#pragma once

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/kernel_api.h"

namespace kvstrata::kernels::cpu {

// 16 queries of 64 heads x 128 channels take 256 KiB as bf16 and 512 KiB as fp32: they stay in a second-level cache,
// and the loading of a key is shared by 16 queries.
inline constexpr uint64_t kScanTokens = 16;
// Two buffers of rows of 128 channels take 15 KiB as bf16, beside 16 KiB of packed query. A multiple of every level's
// tile (5 and 6 keys).
inline constexpr uint64_t kScanKeys = 30;

// One packed query against one chunk of keys; and what is to be made ready for the next in the meantime.
struct ScoreJob {
  const void* packed;
  const void* rows;  // [count] keys: loaded, or the caller's
  uint64_t stride_bytes;
  uint64_t count;
  float* scores;
  // Keys next .. next+next_count-1: to be loaded into tight rows, or where next_rows is nullptr only to be fetched from
  // memory, which is a hint: some of them may not exist.
  uint64_t next;
  uint64_t next_count;
  void* next_rows;
};

// A level's way to score. All functions get arguments that have passed Prepare.
struct ScoreSteps {
  // Bytes of one token's packed queries and weights, a multiple of 64.
  uint64_t (*query_bytes)(const kvstrata_index_scores_args& a);
  // Bytes of one loaded key, or 0: keys are read where they lie.
  uint64_t (*key_bytes)(const kvstrata_index_scores_args& a);
  void (*pack_query)(const kvstrata_index_scores_args& a, uint64_t token, void* packed);
  // Keys first .. first+count-1 into tight rows. False if the level's form cannot hold one of them; its score is then
  // not to be used.
  bool (*load_keys)(const kvstrata_index_scores_args& a, uint64_t first, uint64_t count, void* rows);
  // Returns what load_keys would.
  bool (*score)(const kvstrata_index_scores_args& a, const ScoreJob& job);
};

uint64_t ScanWorkspaceBytes(const kvstrata_index_scores_args& a, const ScoreSteps& steps);

// Fills a.scores; `a` has passed Prepare and its workspace is large enough. False if load_keys ever said so.
bool ScanScores(const kvstrata_index_scores_args& a, const ScoreSteps& steps);

// index_scores and index_scores_workspace_bytes of a level without keys that it cannot load.
int32_t IndexScoresBy(const ScoreSteps& steps, const kvstrata_index_scores_args* args);
int32_t IndexScoresWorkspaceBytesBy(const ScoreSteps& steps, const kvstrata_index_scores_args* args,
                                    uint64_t* out_bytes);

// A hint that needs no valid address, unlike a pointer past the end. Always inlined: GCC sees no effect in a function
// that only prefetches and drops its calls.
inline __attribute__((always_inline)) void PrefetchLine(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

// Bytes of one channel of keys that are not packed.
inline uint64_t KeyElementBytes(const kvstrata_index_scores_args& a) {
  return a.key_type == KVSTRATA_KERNELS_F32 ? sizeof(float) : sizeof(uint16_t);
}

// Entries of this call that query n sees, which are its first ones; no fewer for a later query.
inline uint64_t VisibleHere(const kvstrata_index_scores_args& a, uint64_t n) {
  const uint64_t visible = VisibleEntries(a.first_position + n, a.ratio);
  if (visible <= a.first_entry) return 0;
  return visible - a.first_entry < a.entries ? visible - a.first_entry : a.entries;
}

// The steps in fp32 of the AVX-512 level, or nullptr where the build has none.
const ScoreSteps* Avx512ScoreSteps();

}  // namespace kvstrata::kernels::cpu
