// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/score_scan.h"

#include <algorithm>
#include <limits>

#include "kernels/arguments.h"
#include "kernels/reference/scalar.h"

namespace kvstrata::kernels::cpu {
namespace {

using Args = kvstrata_index_scores_args;

constexpr uint64_t kLine = 64;

unsigned char* AlignUp(void* pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<unsigned char*>(pointer) + ((address + kLine - 1) / kLine * kLine - address);
}

// One call's walk over a group of at most kScanTokens queries.
class Scan {
 public:
  Scan(const Args& a, const ScoreSteps& steps)
      : a_(a),
        steps_(steps),
        query_bytes_(steps.query_bytes(a)),
        key_bytes_(steps.key_bytes(a)),
        queries_(AlignUp(a.workspace)) {
    unsigned char* rows = queries_ + std::min(a.tokens, kScanTokens) * query_bytes_;
    for (unsigned char*& buffer : rows_) {
      buffer = rows;
      rows += kScanKeys * key_bytes_;
    }
  }

  void Tokens(uint64_t first, uint64_t count) {
    for (uint64_t n = first; n < first + count; ++n) {
      float* scores = a_.scores + n * a_.score_stride;
      std::fill(scores + VisibleHere(a_, n), scores + a_.entries, -std::numeric_limits<float>::infinity());
    }
    const uint64_t visible = VisibleHere(a_, first + count - 1);
    if (visible == 0) return;
    for (uint64_t n = first; n < first + count; ++n) steps_.pack_query(a_, n, Packed(n - first));
    if (key_bytes_ != 0) Note(steps_.load_keys(a_, 0, std::min(kScanKeys, visible), rows_[0]));
    for (uint64_t begin = 0; begin < visible; begin += kScanKeys) Chunk(first, count, begin, visible);
  }

  bool all_loaded() const { return all_loaded_; }

 private:
  unsigned char* Packed(uint64_t slot) { return queries_ + slot * query_bytes_; }

  void Note(bool loaded) { all_loaded_ = all_loaded_ && loaded; }

  // Keys from `begin` on against all queries of the group; the first that sees any has the next chunk made ready.
  void Chunk(uint64_t first, uint64_t count, uint64_t begin, uint64_t keys) {
    const uint64_t end = std::min(begin + kScanKeys, keys);
    bool ready = false;
    for (uint64_t n = first; n < first + count; ++n) {
      const uint64_t visible = std::min(VisibleHere(a_, n), end);
      if (visible <= begin) continue;
      ScoreJob job = JobOf(n, n - first, begin, visible);
      if (!ready) AddNext(begin, keys, job);
      ready = true;
      Note(steps_.score(a_, job));
      if ((a_.flags & KVSTRATA_KERNELS_SCORES_ROUND_BF16) == 0) continue;
      for (uint64_t s = 0; s < job.count; ++s) job.scores[s] = reference::RoundBf16(job.scores[s]);
    }
  }

  ScoreJob JobOf(uint64_t n, uint64_t slot, uint64_t begin, uint64_t end) {
    ScoreJob job{};
    job.packed = Packed(slot);
    job.count = end - begin;
    job.scores = a_.scores + n * a_.score_stride + begin;
    if (key_bytes_ != 0) {
      job.rows = rows_[begin / kScanKeys % 2];
      job.stride_bytes = key_bytes_;
    } else {
      job.stride_bytes = a_.key_stride * KeyElementBytes(a_);
      job.rows = static_cast<const unsigned char*>(a_.keys) + begin * job.stride_bytes;
    }
    return job;
  }

  void AddNext(uint64_t begin, uint64_t keys, ScoreJob& job) {
    // Two tiles: what the memory takes to answer, at about 1000 cycles a tile, with some to spare.
    constexpr uint64_t kFetchAhead = 12;
    if (key_bytes_ == 0) {
      job.next = begin + kFetchAhead;
      job.next_count = job.count;
    } else if (begin + kScanKeys < keys) {
      job.next = begin + kScanKeys;
      job.next_count = std::min(kScanKeys, keys - job.next);
      job.next_rows = rows_[job.next / kScanKeys % 2];
    }
  }

  const Args& a_;
  const ScoreSteps& steps_;
  const uint64_t query_bytes_;
  const uint64_t key_bytes_;
  unsigned char* const queries_;
  unsigned char* rows_[2];
  bool all_loaded_ = true;
};

}  // namespace

uint64_t ScanWorkspaceBytes(const Args& a, const ScoreSteps& steps) {
  if (a.tokens == 0 || a.entries == 0) return 0;
  // kLine - alignof(float): the most that aligning a workspace to a line can skip.
  return std::min(a.tokens, kScanTokens) * steps.query_bytes(a) + 2 * kScanKeys * steps.key_bytes(a) + kLine -
         alignof(float);
}

bool ScanScores(const Args& a, const ScoreSteps& steps) {
  if (a.tokens == 0 || a.entries == 0) return true;
  Scan scan(a, steps);
  for (uint64_t n = 0; n < a.tokens; n += kScanTokens) scan.Tokens(n, std::min(kScanTokens, a.tokens - n));
  return scan.all_loaded();
}

int32_t IndexScoresBy(const ScoreSteps& steps, const Args* args) {
  Args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, ScanWorkspaceBytes(a, steps))) return kInvalidArgument;
  ScanScores(a, steps);
  return kOk;
}

int32_t IndexScoresWorkspaceBytesBy(const ScoreSteps& steps, const Args* args, uint64_t* out_bytes) {
  Args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = ScanWorkspaceBytes(a, steps);
  return kOk;
}

}  // namespace kvstrata::kernels::cpu
