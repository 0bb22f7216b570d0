// SPDX-License-Identifier: Apache-2.0
// Exact top-k of one query's scores in about two reads of them.
//
// The scores are seen as rows of `columns` columns. If at least k columns have a maximum of t or more, then so have at
// least k scores: the k-th largest column maximum is a threshold below which no pick lies, and of ordinary scores
// hardly more than k lie above it (in 64 rows of 4160 columns about 545 for k = 512). So: one read for the maxima, a
// search for the threshold among them, one read that collects what reaches it, a sort of that. Nothing is guessed and
// nothing tried again. Work is bounded for any input: at most (k + k/16) * rows scores lie above the threshold, the
// first k of those that equal it are enough, and if too many are left they are searched and collected again as one row.
// I1: Collected scores keep the order of their indices, and sorting is stable: of equal scores the lower index is
//     first.
// I2: Comparisons are those of floats: -0 equals +0, and NaN, which no comparison holds for, is never collected. NaNs
//     fill what is left at the end, by index.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/topk.cc"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/arguments.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using Args = kvstrata_topk_args;
using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;

constexpr uint64_t kLanes = HWY_MAX_BYTES / sizeof(float);
constexpr uint64_t kLine = 64;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Columns: enough that one in eight holds a pick of 512, few enough that their maxima stay in the first-level cache.
// Not a multiple of 4 KiB, so that neighbouring rows do not fall into the same sets of it.
constexpr uint64_t kLeastColumns = 4160;

uint64_t Columns(const Args& a) {
  const uint64_t wanted = (4 * uint64_t{a.k} + 63) / 64 * 64 + 64;
  return std::max(kLeastColumns, wanted);
}

// A search may stop at this many more than k.
uint64_t Slack(const Args& a) { return a.k / 16; }

// Where a call's parts lie in the workspace, in bytes from its first line.
struct Parts {
  uint64_t values;   // float: collected scores, in the order of their indices
  uint64_t indices;  // uint32_t: theirs
  uint64_t equals;   // uint32_t: indices of scores that equal the threshold
  uint64_t items;    // uint64_t: to be sorted
  uint64_t spare;    // uint64_t: the same again
  uint64_t end;
};

Parts PartsOf(const Args& a) {
  const uint64_t columns = Columns(a);
  const uint64_t rows = (a.entries + columns - 1) / columns;
  const uint64_t k = std::min<uint64_t>(a.k, a.entries);
  const uint64_t collected = std::min(a.entries, (uint64_t{a.k} + Slack(a)) * rows);
  const uint64_t sorted = std::min<uint64_t>(a.entries, 2 * uint64_t{a.k});
  // Stores write whole vectors.
  const auto lines = [](uint64_t count, uint64_t size) {
    return ((count + 2 * kLanes) * size + kLine - 1) / kLine * kLine;
  };
  Parts parts{};
  parts.values = rows > 1 ? lines(columns, sizeof(float)) : 0;  // maxima come first
  parts.indices = parts.values + lines(collected, sizeof(float));
  parts.equals = parts.indices + lines(collected, sizeof(uint32_t));
  parts.items = parts.equals + lines(k, sizeof(uint32_t));
  parts.spare = parts.items + lines(sorted, sizeof(uint64_t));
  parts.end = parts.spare + lines(sorted, sizeof(uint64_t));
  return parts;
}

uint64_t WorkspaceBytes(const Args& a) {
  if (a.tokens == 0 || a.entries == 0) return 0;
  return PartsOf(a).end + kLine - alignof(float);
}

// ---- Order -------------------------------------------------------------------------------------------------------

// Integers in the order of the floats, both zeros alike. Not for NaN.
int32_t KeyOf(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value + 0.0f);  // -0 + 0 is +0
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

float ValueOf(int64_t key) {
  const int32_t bits = static_cast<int32_t>(key);
  return std::bit_cast<float>(bits < 0 ? bits ^ 0x7FFFFFFF : bits);
}

// Stable, by the upper half of each item, whose values are at most `range`: a byte at a time from the lowest. Returns
// the sorted ones of the two arrays.
uint64_t* SortItems(uint64_t* items, uint64_t* spare, uint64_t count, uint32_t range) {
  for (uint32_t shift = 0; shift < 32 && range >> shift != 0; shift += 8) {
    uint32_t begins[256] = {};
    for (uint64_t i = 0; i < count; ++i) ++begins[items[i] >> (32 + shift) & 0xFFu];
    uint32_t sum = 0;
    for (uint32_t& begin : begins) {
      const uint32_t size = begin;
      begin = sum;
      sum += size;
    }
    for (uint64_t i = 0; i < count; ++i) spare[begins[items[i] >> (32 + shift) & 0xFFu]++] = items[i];
    std::swap(items, spare);
  }
  return items;
}

// ---- Threshold ---------------------------------------------------------------------------------------------------

// The largest of each column, -infinity where there is only NaN. Four rows at a time save loads and stores of maxima.
void ColumnMaxima(const float* scores, uint64_t count, uint64_t columns, float* maxima) {
  const Floats d;
  std::fill(maxima, maxima + columns, kLowest);
  uint64_t begin = 0;
  for (; begin + 4 * columns <= count; begin += 4 * columns) {
    const float* row = scores + begin;
    for (uint64_t c = 0; c < columns; c += kLanes, row += kLanes) {
      auto largest = hn::LoadU(d, maxima + c);
      for (uint64_t r = 0; r < 4; ++r) {
        const auto score = hn::LoadU(d, row + r * columns);
        largest = hn::IfThenElse(hn::Gt(score, largest), score, largest);
      }
      hn::StoreU(largest, d, maxima + c);
    }
  }
  for (; begin < count; begin += columns) {
    const float* row = scores + begin;
    const uint64_t width = std::min(columns, count - begin);
    for (uint64_t c = 0; c < width; ++c) maxima[c] = row[c] > maxima[c] ? row[c] : maxima[c];
  }
}

uint64_t CountAtLeast(const float* values, uint64_t count, float least) {
  const Floats d;
  const auto threshold = hn::Set(d, least);
  uint64_t found = 0;
  uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) found += hn::CountTrue(d, hn::Ge(hn::LoadU(d, values + i), threshold));
  for (; i < count; ++i) found += values[i] >= least;
  return found;
}

struct Range {
  float least = std::numeric_limits<float>::infinity();
  float largest = kLowest;
};

Range RangeOf(const float* values, uint64_t count) {
  const Floats d;
  Range range;
  auto least = hn::Set(d, range.least);
  auto largest = hn::Set(d, range.largest);
  uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto value = hn::LoadU(d, values + i);
    least = hn::IfThenElse(hn::Lt(value, least), value, least);
    largest = hn::IfThenElse(hn::Gt(value, largest), value, largest);
  }
  range.least = hn::GetLane(hn::MinOfLanes(d, least));
  range.largest = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) {
    range.least = values[i] < range.least ? values[i] : range.least;
    range.largest = values[i] > range.largest ? values[i] : range.largest;
  }
  return range;
}

// A t that at least k values reach, by at most `slack` more than k or, where many are equal, the k-th largest value;
// -infinity if fewer than k are numbers. Halves the range of values and the range of their keys in turn: the first is
// quick where values are spread evenly, the second needs at most 32 steps whatever they are.
float Threshold(const float* values, uint64_t count, uint64_t k, uint64_t slack) {
  const Range range = RangeOf(values, count);
  if (CountAtLeast(values, count, range.least) < k) return kLowest;
  int64_t low = KeyOf(range.least);                  // reached by k
  int64_t high = int64_t{KeyOf(range.largest)} + 1;  // reached by none
  for (bool by_value = true; high - low > 1; by_value = !by_value) {
    int64_t middle = low + (high - low) / 2;
    if (by_value) {
      const float half = ValueOf(low) / 2 + ValueOf(high - 1) / 2;
      const int64_t key = std::isfinite(half) ? KeyOf(half) : middle;
      middle = std::clamp(key, low + 1, high - 1);
    }
    const uint64_t reached = CountAtLeast(values, count, ValueOf(middle));
    if (reached < k) {
      high = middle;
      continue;
    }
    low = middle;
    if (reached <= k + slack) break;
  }
  return ValueOf(low);
}

// ---- Collecting --------------------------------------------------------------------------------------------------

// Scores above a threshold, and the first k that equal it.
class Collector {
 public:
  Collector(float threshold, uint64_t k, float* values, uint32_t* indices, uint32_t* equals)
      : threshold_(threshold), k_(k), values_(values), indices_(indices), equals_(equals) {}

  uint64_t above() const { return above_; }
  uint64_t equal() const { return equal_ < k_ ? equal_ : k_; }

  // `from` are the scores' indices, or nullptr: 0, 1, ... Both inputs may be the outputs: what is written never passes
  // what has been read.
  void Collect(const float* scores, const uint32_t* from, uint64_t count) {
    const Floats d;
    const auto threshold = hn::Set(d, threshold_);
    uint64_t i = 0;
    // Few vectors have anything to collect, so four are asked at once, and then it is one score, taken without a branch
    // on where it is.
    for (; i + kTogether <= count; i += kTogether) {
      auto any = hn::Ge(hn::LoadU(d, scores + i), threshold);
      for (uint64_t v = kLanes; v < kTogether; v += kLanes) {
        any = hn::Or(any, hn::Ge(hn::LoadU(d, scores + i + v), threshold));
      }
      if (HWY_LIKELY(hn::AllFalse(d, any))) continue;
      uint64_t reached = Reached(scores + i);
      if (std::popcount(reached) <= kFew) {
        for (; reached != 0; reached &= reached - 1) {
          const uint64_t s = i + static_cast<uint64_t>(std::countr_zero(reached));
          CollectOne(scores[s], from != nullptr ? from[s] : static_cast<uint32_t>(s));
        }
      } else {
        for (uint64_t v = 0; v < kTogether; v += kLanes) CollectVector(scores, from, i + v);
      }
    }
    for (; i < count; ++i) CollectOne(scores[i], from != nullptr ? from[i] : static_cast<uint32_t>(i));
  }

 private:
  static constexpr uint64_t kTogether = 4 * kLanes;  // at most 64: a bit each
  static constexpr int kFew = 8;                     // more than these are quicker collected by vectors

  // A bit for each of kTogether scores that reaches the threshold.
  HWY_INLINE uint64_t Reached(const float* scores) const {
    const Floats d;
    uint64_t reached = 0;
    for (uint64_t v = 0; v < kTogether; v += kLanes) {
      const auto mask = hn::Ge(hn::LoadU(d, scores + v), hn::Set(d, threshold_));
      uint8_t bytes[8] = {};
      hn::StoreMaskBits(d, mask, bytes);
      uint64_t bits;
      std::memcpy(&bits, bytes, sizeof bits);
      reached |= bits << v;
    }
    return reached;
  }

  HWY_INLINE void CollectVector(const float* scores, const uint32_t* from, uint64_t i) {
    const Floats d;
    const Words words;
    const auto threshold = hn::Set(d, threshold_);
    const auto score = hn::LoadU(d, scores + i);
    const auto index = from != nullptr ? hn::LoadU(words, from + i) : hn::Iota(words, static_cast<uint32_t>(i));
    const auto above = hn::Gt(score, threshold);
    if (!hn::AllFalse(d, above)) {
      hn::StoreU(hn::Compress(score, above), d, values_ + above_);
      hn::StoreU(hn::Compress(index, hn::RebindMask(words, above)), words, indices_ + above_);
      above_ += hn::CountTrue(d, above);
    }
    if (equal_ >= k_) return;
    const auto equal = hn::Eq(score, threshold);
    hn::StoreU(hn::Compress(index, hn::RebindMask(words, equal)), words, equals_ + equal_);
    equal_ += hn::CountTrue(d, equal);
  }

  void CollectOne(float score, uint32_t index) {
    if (score > threshold_) {
      values_[above_] = score;
      indices_[above_++] = index;
    } else if (score == threshold_ && equal_ < k_) {
      equals_[equal_++] = index;
    }
  }

  const float threshold_;
  const uint64_t k_;
  float* const values_;
  uint32_t* const indices_;
  uint32_t* const equals_;
  uint64_t above_ = 0;
  uint64_t equal_ = 0;
};

// ---- Selection ---------------------------------------------------------------------------------------------------

// One query's selection, in the caller's workspace.
class Selection {
 public:
  explicit Selection(const Args& a) : a_(a), parts_(PartsOf(a)) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(a.workspace);
    lines_ = static_cast<unsigned char*>(a.workspace) + ((address + kLine - 1) / kLine * kLine - address);
  }

  // Rank order, or ascending; returns how many picks there are.
  uint64_t Select(const float* scores, uint64_t visible, int32_t* picks) {
    const uint64_t kept = std::min<uint64_t>(visible, a_.k);
    if (kept == 0) return 0;
    Collector collected = CollectAll(scores, visible);
    uint64_t chosen = PickSorted(collected.above(), kept, picks);
    const uint32_t* equals = At<uint32_t>(parts_.equals);
    for (uint64_t e = 0; e < collected.equal() && chosen < kept; ++e) picks[chosen++] = static_cast<int32_t>(equals[e]);
    for (uint64_t s = 0; chosen < kept; ++s) {
      if (std::isnan(scores[s])) picks[chosen++] = static_cast<int32_t>(s);
    }
    if ((a_.flags & KVSTRATA_KERNELS_TOPK_SORT_ASCENDING) != 0) SortAscending(picks, kept, visible);
    return kept;
  }

 private:
  template <typename T>
  T* At(uint64_t offset) {
    return reinterpret_cast<T*>(lines_ + offset);
  }

  Collector CollectAll(const float* scores, uint64_t visible) {
    float* values = At<float>(parts_.values);
    uint32_t* indices = At<uint32_t>(parts_.indices);
    uint32_t* equals = At<uint32_t>(parts_.equals);
    const uint64_t columns = Columns(a_);
    const float* maxima = scores;
    if (visible > columns) {
      ColumnMaxima(scores, visible, columns, At<float>(0));
      maxima = At<float>(0);
    }
    const float threshold = Threshold(maxima, std::min(visible, columns), a_.k, Slack(a_));
    Collector first(threshold, a_.k, values, indices, equals);
    first.Collect(scores, nullptr, visible);
    if (first.above() <= 2 * uint64_t{a_.k}) return first;
    Collector second(Threshold(values, first.above(), a_.k, Slack(a_)), a_.k, values, indices, equals);
    second.Collect(values, indices, first.above());
    return second;
  }

  // The best of `count` collected scores.
  uint64_t PickSorted(uint64_t count, uint64_t kept, int32_t* picks) {
    if (count == 0) return 0;
    const float* values = At<float>(parts_.values);
    const uint32_t* indices = At<uint32_t>(parts_.indices);
    uint64_t* items = At<uint64_t>(parts_.items);
    const Range range = RangeOf(values, count);
    const uint32_t best = static_cast<uint32_t>(KeyOf(range.largest));
    // Differences of keys fit 32 bits without a sign.
    for (uint64_t i = 0; i < count; ++i) {
      items[i] = uint64_t{best - static_cast<uint32_t>(KeyOf(values[i]))} << 32 | indices[i];
    }
    const uint32_t most = best - static_cast<uint32_t>(KeyOf(range.least));
    const uint64_t* sorted = SortItems(items, At<uint64_t>(parts_.spare), count, most);
    const uint64_t chosen = std::min(count, kept);
    for (uint64_t i = 0; i < chosen; ++i) picks[i] = static_cast<int32_t>(static_cast<uint32_t>(sorted[i]));
    return chosen;
  }

  void SortAscending(int32_t* picks, uint64_t count, uint64_t visible) {
    uint64_t* items = At<uint64_t>(parts_.items);
    for (uint64_t i = 0; i < count; ++i) items[i] = uint64_t{static_cast<uint32_t>(picks[i])} << 32;
    const uint64_t* sorted = SortItems(items, At<uint64_t>(parts_.spare), count, static_cast<uint32_t>(visible - 1));
    for (uint64_t i = 0; i < count; ++i) picks[i] = static_cast<int32_t>(sorted[i] >> 32);
  }

  const Args& a_;
  const Parts parts_;
  unsigned char* lines_;
};

int32_t TopK(const Args* args, void*) {
  Args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, WorkspaceBytes(a))) return kInvalidArgument;
  for (uint64_t n = 0; n < a.tokens; ++n) {
    int32_t* picks = a.indices + n * a.index_stride;
    const uint64_t visible = std::min(VisibleEntries(a.first_position + n, a.ratio), a.entries);
    const uint64_t kept = visible == 0 ? 0 : Selection(a).Select(a.scores + n * a.score_stride, visible, picks);
    std::fill(picks + kept, picks + a.k, -1);
  }
  return kOk;
}

int32_t TopKWorkspaceBytes(const Args* args, uint64_t* out_bytes) {
  Args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = WorkspaceBytes(a);
  return kOk;
}

void Fill(kvstrata_kernels& table) {
  table.topk = TopK;
  table.topk_workspace_bytes = TopKWorkspaceBytes;
}

}  // namespace
}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace kvstrata::kernels::cpu {
KVSTRATA_CPU_FILL(FillTopK, Fill)
}  // namespace kvstrata::kernels::cpu
#endif
