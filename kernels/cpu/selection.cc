// SPDX-License-Identifier: Apache-2.0
// Index scores in fp32 with fused multiply-adds, for whatever target Highway compiles.
//
// A register tile holds the dot products of kTile keys with kGroup vectors of heads: per channel it loads kGroup
// vectors of queries, broadcasts one float of each key and does kTile * kGroup multiply-adds, enough of them to hide
// their latency and few enough loads to keep the multipliers busy.
// I1: A dot product adds its channels in ascending order. A score adds head h in lane h mod N, lanes in ascending order
//     of h, then the lanes in Highway's fixed order: the same for every key, whatever tile it is in.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selection.cc"
#include "kernels/arguments.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/score_scan.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"
// After targets-inl.h, whose toggle it follows.
#include "kernels/cpu/formats-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace {

using Args = kvstrata_index_scores_args;

// 16 registers hold 2 vectors of queries, a key's float and 12 sums; 32 hold 4, 1 and 24.
constexpr uint64_t kGroup = HWY_TARGET == HWY_AVX2 ? 2 : 4;
constexpr uint64_t kTile = 6;
constexpr uint64_t kThree = kGroup < 3 ? kGroup : 3;  // the least of 3 vectors and a group
constexpr uint64_t kLineFloats = 16;
static_assert(kScanKeys % kTile == 0);

constexpr uint64_t kLanes = HWY_MAX_BYTES / sizeof(float);
HWY_INLINE uint64_t HeadVectors(const Args& a) { return (a.heads + kLanes - 1) / kLanes; }

// A packed query: the weights of all heads times the scale, then for each group of kGroup vectors of heads (the last
// may be smaller) [width][vectors of the group][lanes]. Heads that do not exist are zeros.
uint64_t QueryBytes(const Args& a) {
  const uint64_t floats = HeadVectors(a) * kLanes * (1 + uint64_t{a.width});
  return (floats * sizeof(float) + 63) / 64 * 64;
}

template <typename T>
void PackHeads(const Args& a, const T* query, float* packed) {
  const uint64_t vectors = HeadVectors(a);
  for (uint64_t group = 0; group < vectors; group += kGroup) {
    const uint64_t lanes = (vectors - group < kGroup ? vectors - group : kGroup) * kLanes;
    const uint64_t first = group * kLanes;
    for (uint64_t l = 0; l < lanes; ++l) {
      const bool exists = first + l < a.heads;
      const T* head = query + (first + l) * a.width;
      for (uint64_t c = 0; c < a.width; ++c) packed[c * lanes + l] = exists ? reference::AsFloat(head[c]) : 0.0f;
    }
    packed += lanes * a.width;
  }
}

void PackQuery(const Args& a, uint64_t token, void* packed) {
  float* weights = static_cast<float*>(packed);
  const uint64_t heads = HeadVectors(a) * kLanes;
  for (uint64_t h = 0; h < heads; ++h) {
    weights[h] = h < a.heads ? a.weights[token * a.weight_stride + h] * a.scale : 0.0f;
  }
  const uint64_t begin = token * a.query_stride;
  if (a.query_type == KVSTRATA_KERNELS_F32) {
    PackHeads(a, static_cast<const float*>(a.queries) + begin, weights + heads);
  } else {
    PackHeads(a, static_cast<const uint16_t*>(a.queries) + begin, weights + heads);
  }
}

bool AreFloats(const Args& a) {
  return a.key_format == KVSTRATA_KERNELS_FORMAT_NONE && a.key_type == KVSTRATA_KERNELS_F32;
}

uint64_t KeyBytes(const Args& a) { return AreFloats(a) ? 0 : uint64_t{a.width} * sizeof(float); }

bool LoadKeys(const Args& a, uint64_t first, uint64_t count, void* rows) {
  float* row = static_cast<float*>(rows);
  for (uint64_t s = first; s < first + count; ++s, row += a.width) {
    if (a.key_format == KVSTRATA_KERNELS_FORMAT_NONE) {
      reference::LoadRow(a.keys, a.key_type, s * a.key_stride, a.width, row);
    } else {
      const kvstrata_packed_planes& planes = a.packed_keys;
      UnpackRow(a.key_format, planes.codes + s * planes.code_stride_bytes, nullptr,
                planes.scales + s * planes.scale_stride_bytes, a.width, 0, row);
    }
  }
  return true;
}

// Keys to ask for while others are scored, a line of each at a time and some lines with each group of heads: all at
// once they would fill the queue of misses and stop the loads that hit.
struct Fetch {
  uintptr_t rows;  // 0: none
  uint64_t groups;
  uint64_t group;

  bool IsDue(uint64_t channel) const { return rows != 0 && channel / kLineFloats % groups == group; }
};

// Adds kVectors vectors of heads to the sums of kKeys keys. Of the last vector only the first heads may exist: an
// infinite key times the zeros of the others would be NaN.
template <uint64_t kVectors, uint64_t kKeys>
HWY_INLINE void AddHeads(const float* query, uint64_t width, const float* weights, uint64_t heads_left,
                         const float* rows, uint64_t stride, const Fetch& fetch, FloatVec (&sums)[kKeys]) {
  const FloatTag d;
  FloatVec dots[kKeys][kVectors];
  for (uint64_t k = 0; k < kKeys; ++k) {
    for (uint64_t v = 0; v < kVectors; ++v) dots[k][v] = hn::Zero(d);
  }
  for (uint64_t c = 0; c < width;) {
    if (fetch.IsDue(c)) {
      for (uint64_t k = 0; k < kKeys; ++k) PrefetchLine(fetch.rows + (k * stride + c) * sizeof(float));
    }
    const uint64_t end = width - c < kLineFloats ? width : c + kLineFloats;
    for (; c < end; ++c, query += kVectors * kLanes) {
      FloatVec q[kVectors];
      for (uint64_t v = 0; v < kVectors; ++v) q[v] = hn::LoadU(d, query + v * kLanes);
      for (uint64_t k = 0; k < kKeys; ++k) {
        const FloatVec key = hn::Set(d, rows[k * stride + c]);
        for (uint64_t v = 0; v < kVectors; ++v) dots[k][v] = hn::MulAdd(q[v], key, dots[k][v]);
      }
    }
  }
  for (uint64_t v = 0; v < kVectors; ++v) {
    const FloatVec weight = hn::LoadU(d, weights + v * kLanes);
    const uint64_t left = heads_left - v * kLanes;
    const auto exists = hn::FirstN(d, static_cast<size_t>(left < kLanes ? left : kLanes));
    for (uint64_t k = 0; k < kKeys; ++k) {
      // The ReLU keeps NaN, as the reference does.
      const FloatVec dot = hn::IfThenElseZero(exists, dots[k][v]);
      sums[k] = hn::MulAdd(weight, hn::IfThenZeroElse(hn::Lt(dot, hn::Zero(d)), dot), sums[k]);
    }
  }
}

template <uint64_t kKeys>
void ScoreTile(const Args& a, const float* packed, const float* rows, uint64_t stride, uintptr_t next, float* scores) {
  const FloatTag d;
  const uint64_t vectors = HeadVectors(a);
  const float* query = packed + vectors * kLanes;
  Fetch fetch{next, (vectors + kGroup - 1) / kGroup, 0};
  FloatVec sums[kKeys];
  for (FloatVec& sum : sums) sum = hn::Zero(d);
  for (uint64_t v = 0; v < vectors; v += kGroup) {
    const float* weights = packed + v * kLanes;
    const uint64_t heads_left = a.heads - v * kLanes;
    switch (vectors - v) {
      case 1: AddHeads<1>(query, a.width, weights, heads_left, rows, stride, fetch, sums); break;
      case 2: AddHeads<2>(query, a.width, weights, heads_left, rows, stride, fetch, sums); break;
      case 3: AddHeads<kThree>(query, a.width, weights, heads_left, rows, stride, fetch, sums); break;
      default: AddHeads<kGroup>(query, a.width, weights, heads_left, rows, stride, fetch, sums); break;
    }
    query += kGroup * kLanes * a.width;
    ++fetch.group;
  }
  for (uint64_t k = 0; k < kKeys; ++k) scores[k] = hn::GetLane(hn::SumOfLanes(d, sums[k]));
}

bool ScoreChunk(const Args& a, const ScoreJob& job) {
  const float* packed = static_cast<const float*>(job.packed);
  const float* rows = static_cast<const float*>(job.rows);
  const uint64_t stride = job.stride_bytes / sizeof(float);
  const bool in_place = job.next_rows == nullptr;
  float* next_rows = static_cast<float*>(job.next_rows);
  bool all_loaded = true;
  uint64_t done = 0;
  uint64_t s = 0;
  for (; s + kTile <= job.count; s += kTile) {
    uintptr_t fetch = 0;
    if (in_place && job.next_count != 0) {
      fetch = reinterpret_cast<uintptr_t>(a.keys) + (job.next + s) * job.stride_bytes;
    } else if (done < job.next_count) {
      const uint64_t count = job.next_count - done < kTile ? job.next_count - done : kTile;
      all_loaded = LoadKeys(a, job.next + done, count, next_rows + done * a.width) && all_loaded;
      done += count;
    }
    ScoreTile<kTile>(a, packed, rows + s * stride, stride, fetch, job.scores + s);
  }
  for (; s < job.count; ++s) ScoreTile<1>(a, packed, rows + s * stride, stride, 0, job.scores + s);
  if (in_place) return true;
  // This query may have seen fewer keys than the next chunk has.
  return LoadKeys(a, job.next + done, job.next_count - done, next_rows + done * a.width) && all_loaded;
}

constexpr ScoreSteps kSteps = {QueryBytes, KeyBytes, PackQuery, LoadKeys, ScoreChunk};

int32_t IndexScores(const Args* args, void*) { return IndexScoresBy(kSteps, args); }

int32_t IndexScoresWorkspaceBytes(const Args* args, uint64_t* out_bytes) {
  return IndexScoresWorkspaceBytesBy(kSteps, args, out_bytes);
}

void Fill(kvstrata_kernels& table) {
  table.index_scores = IndexScores;
  table.index_scores_workspace_bytes = IndexScoresWorkspaceBytes;
}

[[maybe_unused]] const ScoreSteps* Steps() { return &kSteps; }

}  // namespace
}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace kvstrata::kernels::cpu {

KVSTRATA_CPU_FILL(FillSelection, Fill)

const ScoreSteps* Avx512ScoreSteps() {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::Steps();
#else
  return nullptr;
#endif
}

}  // namespace kvstrata::kernels::cpu
#endif
