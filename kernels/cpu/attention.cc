// SPDX-License-Identifier: Apache-2.0
// Core attention in fp32 (reference section 5, steps 3 to 5), for every form of rows and queries.
//
// For each query its rows are brought into the workspace as floats, once for all heads, block by block; each block
// gives its logits while it is in cache. When all logits of a group of heads are there, their true maximum is known (in
// profiles Q and S a probability is rounded relative to it, so an online softmax would round differently), and a second
// pass over the rows sums them.
//
// I1: what a head gets does not depend on the other heads of the call: every tile of registers, full or not, does the
//     same operations for a head and a row in the same order.
//
// Thread rule: pure functions; calls that write the same memory must not run at once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/arguments.h"
#include "kernels/cpu/attention_keys.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/functions.h"
#include "kernels/reference/scalar.h"
// After targets-inl.h, whose toggle they follow.
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/math-inl.h"

#if KVSTRATA_CPU_VECTORS
HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using Floats = hn::ScalableTag<float>;
using Words = hn::ScalableTag<uint32_t>;
using Vector = hn::Vec<Floats>;
using Quad = hn::Vec<hn::Full128<float> >;

// Rows are zero-padded to whole slices of the value tile, of 64 channels at the widest vectors.
constexpr uint64_t kSlice = 64;
constexpr uint64_t kLineFloats = kPartAlign / sizeof(float);
// Rows of a block: at width 512 they take 64 KiB, so that a block and its share of the queries stay in a cache of
// 512 KiB or more.
constexpr uint64_t kBlockRows = 32;
// Cache lines of a block's rows that are asked for ahead, at most: 40 a row, enough for float rows of 2400 bytes.
constexpr uint64_t kBlockLines = 40 * kBlockRows;
// Rows of a block of values; a slice of them takes 4 to 16 KiB.
constexpr uint64_t kValueRows = 64;
// Heads whose logits are in the workspace at once; bounds it.
constexpr uint64_t kGroupHeads = 64;
// Registers: a tile's sums and its operands take at most 31 where there are 32, and at most 16 where there are 16.
constexpr bool kManyRegisters = hn::MaxLanes(Floats()) == 16 || HWY_ARCH_ARM_A64 != 0;
constexpr uint64_t kLogitHeads = kManyRegisters ? 6 : 3;  // times kLogitRows sums
constexpr uint64_t kLogitRows = 4;
constexpr uint64_t kValueHeads = 6;  // times kValueVectors sums
constexpr uint64_t kValueVectors = kManyRegisters ? 4 : 2;
static_assert(kSlice % (kValueVectors * hn::MaxLanes(Floats())) == 0);

struct Work {
  uint64_t width;   // padded
  uint64_t stride;  // of rows, queries and output
  uint64_t most;    // keys, padded
  uint64_t* keys;
  float* rows;     // [most][width]
  float* queries;  // [kGroupHeads][width]
  float* logits;   // [kGroupHeads][most]; then probabilities
  float* output;   // [kGroupHeads][output_stride]
  float* totals;   // [kGroupHeads]
  float* cosines;
  float* sines;
  const uint8_t** lines;  // [kBlockLines]: cache lines of the next block
};

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

uint64_t LayWorkspace(const kvstrata_attention_args& a, Work& work) {
  WorkspaceParts parts(a.workspace);
  const uint64_t group = std::min<uint64_t>(a.heads, kGroupHeads);
  const bool inverse = (a.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0;
  const uint64_t rope = inverse ? RoundUp(a.rope_dims, kSlice) : 0;
  work.width = RoundUp(a.width, kSlice);
  work.most = RoundUp(MostKeys(a), kBlockRows);
  // A line more than the width: rows 2048 bytes apart would share two sets of a cache. The rotation finds room there,
  // too: it works on whole vectors from any channel on.
  work.stride = work.width + kLineFloats;
  work.keys = parts.Next<uint64_t>(work.most);
  work.rows = parts.Next<float>(work.most, work.stride);
  work.queries = parts.Next<float>(group, work.stride);
  work.logits = parts.Next<float>(work.most, group);
  work.output = parts.Next<float>(group, work.stride);
  work.totals = parts.Next<float>(group);
  work.cosines = parts.Next<float>(rope);
  work.sines = parts.Next<float>(rope);
  work.lines = parts.Next<const uint8_t*>(kBlockLines);
  return parts.Bytes();
}

// ---- rows ---------------------------------------------------------------------------------------------------------

// A row of either type as floats, zero-padded.
void BringTyped(const void* row, int32_t type, uint64_t width, uint64_t padded, float* out) {
  if (type == KVSTRATA_KERNELS_F32) {
    std::memcpy(out, row, width * sizeof(float));
  } else {
    UnpackRope(static_cast<const uint8_t*>(row), static_cast<uint32_t>(width), out);
  }
  std::fill(out + width, out + padded, 0.0f);
}

void BringRow(const RowSource& source, uint64_t row, uint64_t padded, float* out) {
  if (!source.IsPacked()) return BringTyped(source.Row(row), source.type, source.width, padded, out);
  const kvstrata_packed_planes& planes = source.planes;
  const uint8_t* rope = source.shape.rope_bytes != 0 ? planes.rope + row * planes.rope_stride_bytes : nullptr;
  UnpackRow(source.format, planes.codes + row * planes.code_stride_bytes, rope,
            planes.scales + row * planes.scale_stride_bytes, source.width, source.shape.rope_dims, out);
  std::fill(out + source.width, out + padded, 0.0f);
}

// Rows begin .. end-1 of the list; the padding behind the last is zeros.
void BringRows(const RowSources& sources, const KeyList& list, uint64_t begin, uint64_t end, const Work& work) {
  for (uint64_t i = begin; i < end; ++i) {
    float* out = work.rows + i * work.stride;
    if (i >= list.total) {
      std::fill(out, out + work.width, 0.0f);
      continue;
    }
    BringRow(sources.Of(list, i), list.keys[i], work.width, out);
  }
}

// ---- logits -------------------------------------------------------------------------------------------------------

template <class D>
HWY_INLINE Quad SumBlocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return SumBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The sums of the lanes of four vectors.
HWY_INLINE Quad SumLanes(Vector a, Vector b, Vector c, Vector d) {
  const Floats floats;
  const hn::RepartitionToWide<Words> pairs;
  const Vector ab = hn::Add(hn::InterleaveLower(floats, a, b), hn::InterleaveUpper(floats, a, b));
  const Vector cd = hn::Add(hn::InterleaveLower(floats, c, d), hn::InterleaveUpper(floats, c, d));
  const auto ab_pairs = hn::BitCast(pairs, ab);
  const auto cd_pairs = hn::BitCast(pairs, cd);
  const Vector lower = hn::BitCast(floats, hn::InterleaveLower(pairs, ab_pairs, cd_pairs));
  const Vector upper = hn::BitCast(floats, hn::InterleaveUpper(pairs, ab_pairs, cd_pairs));
  return SumBlocks(floats, hn::Add(lower, upper));
}

// kHeads queries times kLogitRows rows, scaled.
template <uint64_t kHeads>
void LogitTile(const float* queries, const float* rows, const Work& work, float scale, float* logits) {
  const Floats floats;
  Vector sums[kHeads][kLogitRows];
  for (auto& head : sums) {
    for (Vector& sum : head) sum = hn::Zero(floats);
  }
  for (uint64_t c = 0; c < work.width; c += hn::Lanes(floats)) {
    Vector query[kHeads];
    for (uint64_t h = 0; h < kHeads; ++h) query[h] = hn::Load(floats, queries + h * work.stride + c);
    for (uint64_t r = 0; r < kLogitRows; ++r) {
      const Vector row = hn::Load(floats, rows + r * work.stride + c);
      for (uint64_t h = 0; h < kHeads; ++h) sums[h][r] = hn::MulAdd(query[h], row, sums[h][r]);
    }
  }
  const hn::Full128<float> quads;
  for (uint64_t h = 0; h < kHeads; ++h) {
    const Quad dots = SumLanes(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
    hn::StoreU(hn::Mul(dots, hn::Set(quads, scale)), quads, logits + h * work.most);
  }
}

// `each` lines are asked for with each tile.
template <uint64_t kHeads>
void LogitHeads(const Work& work, uint64_t head, uint64_t begin, uint64_t end, float scale, uint64_t each,
                LineQueue& lines) {
  for (uint64_t r = begin; r < end; r += kLogitRows) {
    lines.Ask(each);
    LogitTile<kHeads>(work.queries + head * work.stride, work.rows + r * work.stride, work, scale,
                      work.logits + head * work.most + r);
  }
}

// The logits of a block; the rows of the next are on their way meanwhile.
void LogitBlock(const RowSources& sources, const KeyList& list, const Work& work, uint64_t heads, uint64_t begin,
                uint64_t end, float scale) {
  PrefetchFirstLines(sources, list, end, end + kBlockRows);
  LineQueue lines = ListLines(sources, list, end, end + kBlockRows, kBlockLines, work.lines);
  const uint64_t tiles = (heads + kLogitHeads - 1) / kLogitHeads * (kBlockRows / kLogitRows);
  const uint64_t each = (lines.Count() + tiles - 1) / tiles;
  uint64_t h = 0;
  for (; h + kLogitHeads <= heads; h += kLogitHeads) LogitHeads<kLogitHeads>(work, h, begin, end, scale, each, lines);
  for (; h + 2 <= heads; h += 2) LogitHeads<2>(work, h, begin, end, scale, each, lines);
  if (h < heads) LogitHeads<1>(work, h, begin, end, scale, each, lines);
}

// ---- softmax ------------------------------------------------------------------------------------------------------

// Logits to probabilities, rounded if the profile rounds; returns their unrounded sum and the sink's. Behind `count`
// up to a whole vector there is room.
float Softmax(float* logits, uint64_t count, const float* sink, bool round) {
  const Floats floats;
  const uint64_t lanes = hn::Lanes(floats);
  const uint64_t padded = RoundUp(count, lanes);
  std::fill(logits + count, logits + padded, -INFINITY);
  Vector most = hn::Set(floats, sink != nullptr ? *sink : -INFINITY);
  for (uint64_t i = 0; i < padded; i += lanes) {
    const Vector logit = hn::Load(floats, logits + i);
    most = hn::IfThenElse(hn::Gt(logit, most), logit, most);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(floats, most));
  Vector total = hn::Zero(floats);
  for (uint64_t i = 0; i < padded; i += lanes) {
    const Vector p = ExpNonPositive(floats, hn::Sub(hn::Load(floats, logits + i), hn::Set(floats, largest)));
    total = hn::Add(total, p);
    hn::Store(round ? RoundBf16(p) : p, floats, logits + i);
  }
  const float sum = hn::GetLane(hn::SumOfLanes(floats, total));
  return sink != nullptr ? sum + reference::ExpNonPositive(*sink - largest) : sum;
}

// ---- values -------------------------------------------------------------------------------------------------------

// Adds probability times row to the outputs of kHeads heads, for kValueVectors vectors of channels.
template <uint64_t kHeads>
void ValueTile(const float* probabilities, const float* rows, const Work& work, uint64_t count, float* output) {
  const Floats floats;
  const uint64_t lanes = hn::Lanes(floats);
  Vector sums[kHeads][kValueVectors];
  for (uint64_t h = 0; h < kHeads; ++h) {
    for (uint64_t v = 0; v < kValueVectors; ++v) {
      sums[h][v] = hn::Load(floats, output + h * work.stride + v * lanes);
    }
  }
  for (uint64_t r = 0; r < count; ++r) {
    Vector row[kValueVectors];
    for (uint64_t v = 0; v < kValueVectors; ++v) row[v] = hn::Load(floats, rows + r * work.stride + v * lanes);
    for (uint64_t h = 0; h < kHeads; ++h) {
      const Vector p = hn::Set(floats, probabilities[h * work.most + r]);
      for (uint64_t v = 0; v < kValueVectors; ++v) sums[h][v] = hn::MulAdd(p, row[v], sums[h][v]);
    }
  }
  for (uint64_t h = 0; h < kHeads; ++h) {
    for (uint64_t v = 0; v < kValueVectors; ++v) {
      hn::Store(sums[h][v], floats, output + h * work.stride + v * lanes);
    }
  }
}

template <uint64_t kHeads>
void ValueHeads(const Work& work, uint64_t head, uint64_t begin, uint64_t count, uint64_t channel) {
  ValueTile<kHeads>(work.logits + head * work.most + begin, work.rows + begin * work.stride + channel, work, count,
                    work.output + head * work.stride + channel);
}

void SumRows(const Work& work, uint64_t heads, uint64_t keys) {
  const uint64_t slice = kValueVectors * hn::Lanes(Floats());
  std::fill(work.output, work.output + heads * work.stride, 0.0f);
  for (uint64_t begin = 0; begin < keys; begin += kValueRows) {
    const uint64_t count = std::min(kValueRows, keys - begin);
    for (uint64_t c = 0; c < work.width; c += slice) {
      uint64_t h = 0;
      for (; h + kValueHeads <= heads; h += kValueHeads) ValueHeads<kValueHeads>(work, h, begin, count, c);
      for (; h + 2 <= heads; h += 2) ValueHeads<2>(work, h, begin, count, c);
      if (h < heads) ValueHeads<1>(work, h, begin, count, c);
    }
  }
}

// ---- output -------------------------------------------------------------------------------------------------------

void Rotate(const Work& work, uint32_t rope_dims, bool round, float* row) {
  const Floats floats;
  for (uint64_t c = 0; c < rope_dims; c += hn::Lanes(floats)) {
    const Vector v = hn::LoadU(floats, row + c);
    const Vector turned = hn::Add(hn::Mul(v, hn::Load(floats, work.cosines + c)),
                                  hn::Mul(hn::Shuffle2301(v), hn::Load(floats, work.sines + c)));
    hn::StoreU(round ? RoundBf16(turned) : turned, floats, row + c);
  }
}

void StoreRow(const float* row, int32_t type, uint64_t width, void* out) {
  if (type == KVSTRATA_KERNELS_F32) {
    std::memcpy(out, row, width * sizeof(float));
    return;
  }
  PackRope(row, static_cast<uint32_t>(width), static_cast<uint8_t*>(out));
}

// The sums of one head to its output.
void Finish(const kvstrata_attention_args& a, const Work& work, uint64_t n, uint64_t group_head, uint64_t head) {
  const Floats floats;
  const bool round = reference::Rounds(a.profile);
  float* row = work.output + group_head * work.stride;
  const Vector total = hn::Set(floats, work.totals[group_head]);
  for (uint64_t c = 0; c < a.width; c += hn::Lanes(floats)) {
    const Vector quotient = hn::Div(hn::Load(floats, row + c), total);
    hn::Store(round ? RoundBf16(quotient) : quotient, floats, row + c);
  }
  if ((a.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0) {
    Rotate(work, a.rope_dims, round, row + (a.width - a.rope_dims));
  }
  const uint64_t element = a.output_type == KVSTRATA_KERNELS_F32 ? sizeof(float) : sizeof(uint16_t);
  const uint64_t place = n * a.output_token_stride + head * a.output_head_stride;
  StoreRow(row, a.output_type, a.width, static_cast<uint8_t*>(a.output) + place * element);
}

void AttendToken(const kvstrata_attention_args& a, const RowSources& sources, const Work& work, uint64_t n) {
  const KeyList list = ListKeys(a, n, work.keys);
  const uint64_t keys = RoundUp(list.total, kLogitRows);
  PrefetchRows(sources, list, 0, kBlockRows);
  if ((a.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0) InverseRotation(a, n, work.cosines, work.sines);
  const uint64_t element = a.query_type == KVSTRATA_KERNELS_F32 ? sizeof(float) : sizeof(uint16_t);
  for (uint64_t first = 0; first < a.heads; first += kGroupHeads) {
    const uint64_t heads = std::min<uint64_t>(kGroupHeads, a.heads - first);
    for (uint64_t h = 0; h < heads; ++h) {
      const uint64_t place = n * a.query_token_stride + (first + h) * a.query_head_stride;
      BringTyped(static_cast<const uint8_t*>(a.queries) + place * element, a.query_type, a.width, work.width,
                 work.queries + h * work.stride);
    }
    for (uint64_t begin = 0; begin < keys; begin += kBlockRows) {
      const uint64_t end = std::min(begin + kBlockRows, keys);
      if (first == 0) BringRows(sources, list, begin, end, work);
      LogitBlock(sources, list, work, heads, begin, end, a.scale);
    }
    for (uint64_t h = 0; h < heads; ++h) {
      work.totals[h] = Softmax(work.logits + h * work.most, list.total,
                               a.sinks != nullptr ? a.sinks + first + h : nullptr, reference::Rounds(a.profile));
    }
    SumRows(work, heads, list.total);
    for (uint64_t h = 0; h < heads; ++h) Finish(a, work, n, h, first + h);
  }
}

int32_t AttentionWorkspaceBytes(const kvstrata_attention_args* args, uint64_t* out_bytes) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  Work work;
  const uint64_t bytes = a.tokens != 0 ? LayWorkspace(a, work) : 0;
  if (bytes == 0 && a.tokens != 0) return kInvalidArgument;
  *out_bytes = bytes;
  return kOk;
}

int32_t Attention(const kvstrata_attention_args* args, void*) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  if (a.tokens == 0) return kOk;
  Work work;
  const uint64_t bytes = LayWorkspace(a, work);
  if (bytes == 0 || !WorkspaceValid(a.workspace, a.workspace_bytes, bytes) || !PicksValid(a)) return kInvalidArgument;
  const RowSources sources = SourcesOf(a);
  for (uint64_t n = 0; n < a.tokens; ++n) AttendToken(a, sources, work, n);
  return kOk;
}

void Fill(kvstrata_kernels& table) {
  table.attention = Attention;
  table.attention_workspace_bytes = AttentionWorkspaceBytes;
}

}  // namespace
}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace kvstrata::kernels::cpu {
KVSTRATA_CPU_FILL(FillAttention, Fill)
}  // namespace kvstrata::kernels::cpu
#endif
