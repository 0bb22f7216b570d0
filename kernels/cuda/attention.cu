// SPDX-License-Identifier: Apache-2.0
// Attention over window rows, entries and a sink, with an online softmax: rows come tile by tile, and what was summed
// so far is scaled down when a greater logit comes. In two forms: on the tensor cores for bf16 queries against bf16 or
// packed rows in profiles Q and S, else in fp32.
//
// A pick that is no visible entry skips its place, as -1 does: it lies in device memory, where nobody can refuse it.
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/keys.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/words.h"

namespace kvstrata::kernels::cuda {
namespace {

// Rows of a tile.
constexpr uint32_t kTile = 32;

// What both forms share.
struct Attend {
  KeyRows window_rows, entry_rows;
  Rows queries;
  uint64_t query_token_stride, query_head_stride;
  Rows output;
  uint64_t output_token_stride, output_head_stride;
  const int32_t* picks;
  uint64_t pick_stride;
  const float* sinks;
  const float* frequencies;
  uint64_t tokens, first_position, window_first, window_ring, entry_count;
  uint32_t heads, width, rope_dims, window, ratio, pick_count;
  float scale;
  bool round, inverse;

  // The rows that one query sees, in the order of summation.
  struct Seen {
    uint64_t position;
    uint64_t window_begin;
    uint64_t window_size;
    uint64_t listed;
    uint64_t visible;  // entries
    const int32_t* picks;
  };

  KVSTRATA_DEVICE Seen SeenBy(uint64_t n) const {
    Seen seen{};
    seen.position = first_position + n;
    const uint64_t oldest = seen.position + 1 > window ? seen.position + 1 - window : 0;
    seen.window_begin = oldest > window_first ? oldest : window_first;
    seen.window_size = seen.position + 1 - seen.window_begin;
    if (ratio == 0) return seen;
    const uint64_t complete = VisibleEntries(seen.position, ratio);
    seen.visible = complete < entry_count ? complete : entry_count;
    if (picks != nullptr) seen.picks = picks + n * pick_stride;
    seen.listed = picks != nullptr ? pick_count : complete;
    return seen;
  }

  struct Place {
    bool there;
    bool in_window;
    uint64_t row;
  };

  KVSTRATA_DEVICE Place PlaceOf(const Seen& seen, uint64_t i) const {
    if (i < seen.window_size) {
      const uint64_t position = seen.window_begin + i;
      return {true, true, window_ring != 0 ? position % window_ring : position - window_first};
    }
    const uint64_t listed = i - seen.window_size;
    if (listed >= seen.listed) return {false, false, 0};
    if (seen.picks == nullptr) return {true, false, listed};
    const int32_t pick = seen.picks[listed];
    return {pick >= 0 && static_cast<uint64_t>(pick) < seen.visible, false, static_cast<uint64_t>(pick)};
  }

  KVSTRATA_DEVICE float ChannelOf(const Place& place, uint32_t channel) const {
    return place.in_window ? window_rows.At(place.row, channel) : entry_rows.At(place.row, channel);
  }

  KVSTRATA_DEVICE float Sink(uint32_t head) const { return sinks != nullptr ? sinks[head] : -INFINITY; }

  KVSTRATA_DEVICE void StoreChannel(uint64_t n, uint32_t head, uint32_t channel, float value) const {
    const float one[1] = {round ? reference::RoundBf16(value) : value};
    output.Store(n * output_token_stride + head * output_head_stride + channel, one);
  }

  // Two neighbouring channels of the finished output; those that are rotated are a pair of RoPE's.
  KVSTRATA_DEVICE void StorePair(uint64_t n, uint32_t head, uint32_t channel, float x, float y) const {
    if (!inverse || channel < width - rope_dims) {
      StoreChannel(n, head, channel, x);
      StoreChannel(n, head, channel + 1, y);
      return;
    }
    float pair[2] = {round ? reference::RoundBf16(x) : x, round ? reference::RoundBf16(y) : y};
    const auto position = static_cast<float>(static_cast<int64_t>(first_position + n));
    const float frequency = frequencies[(channel - (width - rope_dims)) / 2];
    RotatePair(reference::SinCosOf(position * frequency), true, round, pair);
    StoreChannel(n, head, channel, pair[0]);
    StoreChannel(n, head, channel + 1, pair[1]);
  }
};

// Of a head: the greatest logit so far, the sum of all exp(logit - greatest), and by what the last step scaled sums.
struct Softmax {
  float greatest;
  float sum;
  float factor;
};

// Takes in `logits`; they become probabilities against the new greatest. A lane of a team has every kLanes-th of them.
template <uint32_t kLanes>
KVSTRATA_DEVICE Softmax TakeIn(const Thread& t, const Softmax& before, float* logits) {
  const uint32_t lane = t.lane() % kLanes;
  float greatest = before.greatest;
  for (uint32_t i = lane; i < kTile; i += kLanes) greatest = logits[i] > greatest ? logits[i] : greatest;
  for (uint32_t mask = 1; mask < kLanes; mask *= 2) {
    const float other = t.ExchangeXor(greatest, mask);
    greatest = other > greatest ? other : greatest;
  }
  float sum = 0;
  for (uint32_t i = lane; i < kTile; i += kLanes) {
    // A row that is not there has a logit of -infinity, also where no row was there yet.
    logits[i] = logits[i] == -INFINITY ? 0.0f : reference::ExpNonPositive(logits[i] - greatest);
    sum += logits[i];
  }
  for (uint32_t mask = 1; mask < kLanes; mask *= 2) sum += t.ExchangeXor(sum, mask);
  const float factor = before.greatest == -INFINITY ? 0.0f : reference::ExpNonPositive(before.greatest - greatest);
  return {greatest, before.sum * factor + sum, factor};
}

// The denominator, with the sink in it.
KVSTRATA_DEVICE float Total(const Softmax& softmax, float sink) {
  return sink == -INFINITY ? softmax.sum : softmax.sum + reference::ExpNonPositive(sink - softmax.greatest);
}

// A block has a query and a head; its first warp does the softmax.
struct AttendPlain {
  static constexpr uint32_t kThreads = 128;

  Attend a;

  uint32_t shared_bytes() const { return static_cast<uint32_t>((2 * a.width + kTile + 3) * sizeof(float)); }

  // Logits of a tile: a warp has a row at a time.
  KVSTRATA_DEVICE void Logits(const Thread& t, const Attend::Seen& seen, uint64_t first, const float* query,
                              float* logits) const {
    for (uint32_t i = t.thread() / kWarp; i < kTile; i += kThreads / kWarp) {
      const Attend::Place place = a.PlaceOf(seen, first + i);
      float product = 0;
      for (uint32_t c = t.lane(); place.there && c < a.width; c += kWarp) product += query[c] * a.ChannelOf(place, c);
      product = WarpSum(t, product);
      if (t.lane() == 0) logits[i] = place.there ? product * a.scale : -INFINITY;
    }
  }

  KVSTRATA_DEVICE void AddRows(const Thread& t, const Attend::Seen& seen, uint64_t first, const float* probabilities,
                               float factor, float* sums) const {
    for (uint32_t c = t.thread(); c < a.width; c += kThreads) {
      float sum = sums[c] * factor;
      for (uint32_t i = 0; i < kTile; ++i) {
        const Attend::Place place = a.PlaceOf(seen, first + i);
        if (!place.there) continue;
        const float p = a.round ? reference::RoundBf16(probabilities[i]) : probabilities[i];
        sum += p * a.ChannelOf(place, c);
      }
      sums[c] = sum;
    }
  }

  KVSTRATA_DEVICE void Head(const Thread& t, uint64_t n, uint32_t head) const {
    auto* query = static_cast<float*>(t.shared());
    float* sums = query + a.width;
    float* logits = sums + a.width;
    float* state = logits + kTile;  // greatest, sum, factor
    const Attend::Seen seen = a.SeenBy(n);
    for (uint32_t c = t.thread(); c < a.width; c += kThreads) {
      float value[1];
      a.queries.Load(n * a.query_token_stride + head * a.query_head_stride + c, value);
      query[c] = value[0];
      sums[c] = 0;
    }
    if (t.thread() == 0) {
      state[0] = a.Sink(head);
      state[1] = 0;
    }
    t.Sync();
    for (uint64_t first = 0; first < seen.window_size + seen.listed; first += kTile) {
      Logits(t, seen, first, query, logits);
      t.Sync();
      if (t.thread() < kWarp) {
        const Softmax softmax = TakeIn<kWarp>(t, {state[0], state[1], 0}, logits);
        t.SyncWarp();
        if (t.thread() == 0) {
          state[0] = softmax.greatest;
          state[1] = softmax.sum;
          state[2] = softmax.factor;
        }
      }
      t.Sync();
      AddRows(t, seen, first, logits, state[2], sums);
      t.Sync();  // the next tile's logits come where these are read
    }
    const float total = Total({state[0], state[1], 0}, a.Sink(head));
    // Pairs end with the row, as RoPE's do: of an odd width the first channel is alone.
    if (a.width % 2 != 0 && t.thread() == 0) a.StoreChannel(n, head, 0, sums[0] / total);
    for (uint32_t c = a.width % 2 + 2 * t.thread(); c < a.width; c += 2 * kThreads) {
      a.StorePair(n, head, c, sums[c] / total, sums[c + 1] / total);
    }
    t.Sync();  // the next head's query comes where these sums are read
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t index = t.block(); index < a.tokens * a.heads; index += t.blocks()) {
      Head(t, index / a.heads, static_cast<uint32_t>(index % a.heads));
    }
  }
};

// A block has a query and 64 heads. Of its eight warps each has 16 of them; two share those: one half of the rows each
// when logits are computed, one half of the channels each when rows are summed, so that all sums stay in registers.
struct AttendTensor {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kHeads = 64;
  static constexpr uint32_t kMostWidth = 512;
  static constexpr uint32_t kFragments = kMostWidth / 2 / 8;  // of a warp's half of the channels
  // Rows in shared memory are longer than they need to be, so that a fragment's lanes lie in different banks.
  static constexpr uint32_t kRowPadding = 8;
  static constexpr uint32_t kLogitStride = kTile + 1;
  static constexpr uint32_t kProbabilityStride = kTile + 8;
  // What every GPU gives a block without being asked; with the queries it takes more.
  static constexpr uint32_t kUnaskedBytes = 48u << 10;

  Attend a;
  bool queries_in_shared = false;  // else they are read where they lie, for every tile
  uint32_t query_word = 1;         // the widest words that queries can be read in

  KVSTRATA_HOST_DEVICE uint32_t row_elements() const { return a.width + kRowPadding; }
  uint32_t shared_bytes() const {
    const uint32_t rows = kTile + (queries_in_shared ? kHeads : 0);
    return static_cast<uint32_t>(rows * row_elements() * sizeof(uint16_t) +
                                 kHeads * (kLogitStride * sizeof(float) + kProbabilityStride * sizeof(uint16_t)) +
                                 kHeads * sizeof(Softmax));
  }

  explicit AttendTensor(const Attend& attend) : a(attend) {
    query_word = WordBytes(AddressOf(a.queries.data) | 2 * a.query_token_stride | 2 * a.query_head_stride);
    queries_in_shared = true;
    const uint32_t bytes = shared_bytes();
    queries_in_shared = bytes <= kUnaskedBytes || bytes <= MostSharedBytes();
  }

  // Whole instructions, sums that fit into registers, and pairs of query channels that are aligned as one word.
  bool Fits() const {
    const bool types =
        a.queries.type == KVSTRATA_KERNELS_BF16 && a.window_rows.is_bf16() && (a.ratio == 0 || a.entry_rows.is_bf16());
    const bool aligned =
        (reinterpret_cast<uintptr_t>(a.queries.data) % 4 + a.query_token_stride % 2 + a.query_head_stride % 2) == 0;
    return a.round && types && aligned && a.width % 16 == 0 && a.width <= kMostWidth;
  }

  struct Shared {
    uint16_t* rows;           // [kTile][row_elements]
    float* logits;            // [kHeads][kLogitStride]
    uint16_t* probabilities;  // [kHeads][kProbabilityStride]
    uint16_t* queries;        // [kHeads][row_elements], if they are here
    Softmax* softmax;         // [kHeads]
  };

  KVSTRATA_DEVICE Shared SharedOf(const Thread& t) const {
    Shared s{};
    s.softmax = static_cast<Softmax*>(t.shared());
    s.logits = reinterpret_cast<float*>(s.softmax + kHeads);
    s.rows = reinterpret_cast<uint16_t*>(s.logits + kHeads * kLogitStride);
    s.probabilities = s.rows + kTile * row_elements();
    s.queries = s.probabilities + kHeads * kProbabilityStride;
    return s;
  }

  static KVSTRATA_DEVICE uint32_t Pair(const uint16_t* at) { return *reinterpret_cast<const uint32_t*>(at); }

  // Rows that are not there are zeros: their probability is 0, and 0 times what shared memory held might not be.
  KVSTRATA_DEVICE void BringRows(const Thread& t, const Attend::Seen& seen, uint64_t first, uint16_t* rows) const {
    for (uint32_t i = t.thread() / kWarp; i < kTile; i += kThreads / kWarp) {
      const Attend::Place place = a.PlaceOf(seen, first + i);
      const KeyRows& from = place.in_window ? a.window_rows : a.entry_rows;
      for (uint32_t c = t.lane() * 8; c < a.width; c += kWarp * 8) {
        *reinterpret_cast<Word16*>(rows + i * row_elements() + c) =
            place.there ? from.Pairs(t, place.row, c) : Word16{};
      }
    }
  }

  // 64 heads' queries, those that are not there zeros.
  KVSTRATA_DEVICE void BringQueries(const Thread& t, uint64_t n, uint32_t first_head, uint16_t* queries) const {
    for (uint32_t i = t.thread() / kWarp; i < kHeads; i += kThreads / kWarp) {
      const uint32_t head = first_head + i;
      const auto* from =
          static_cast<const uint16_t*>(a.queries.data) + n * a.query_token_stride + head * a.query_head_stride;
      for (uint32_t c = t.lane() * 8; c < a.width; c += kWarp * 8) {
        auto* to = reinterpret_cast<Word16*>(queries + i * row_elements() + c);
        if (head >= a.heads) {
          *to = {};
        } else if (query_word == sizeof(Word16)) {
          t.CopyAsync(to, from + c);
        } else {
          *to = LoadBytes(reinterpret_cast<const uint8_t*>(from + c), sizeof(Word16), query_word);
        }
      }
    }
    t.CommitCopies();
  }

  // Two neighbouring channels of a head's query; of a head that is not there zeros.
  KVSTRATA_DEVICE uint32_t QueryPair(uint64_t n, uint32_t head, uint32_t channel) const {
    if (head >= a.heads) return 0;
    const auto* query = static_cast<const uint16_t*>(a.queries.data);
    return Pair(query + n * a.query_token_stride + head * a.query_head_stride + channel);
  }

  // Channels k .. k + 15 of the warp's 16 queries, of which `head` is the first and the `in_block`-th of the block.
  KVSTRATA_DEVICE FragmentA Queries(const Thread& t, uint64_t n, uint32_t head, uint32_t in_block, uint32_t k,
                                    const Shared& s) const {
    FragmentA q;
    if (queries_in_shared) {
      t.LoadMatrices(s.queries + (in_block + t.lane() % 16) * row_elements() + k + t.lane() / 16 * 8, q.pairs);
      return q;
    }
    const uint32_t group = t.lane() / 4;
    const uint32_t channel = k + t.lane() % 4 * 2;
    return {{QueryPair(n, head + group, channel), QueryPair(n, head + group + 8, channel),
             QueryPair(n, head + group, channel + 8), QueryPair(n, head + group + 8, channel + 8)}};
  }

  // Logits of the warp's heads and its half of the rows, which are two matrices of eight.
  KVSTRATA_DEVICE void Logits(const Thread& t, const Attend::Seen& seen, uint64_t n, uint32_t head, uint64_t first,
                              uint32_t in_block, uint32_t half, const Shared& s) const {
    static_assert(kTile == 32);
    const uint32_t begin = half * kTile / 2;
    const uint16_t* rows = s.rows + (begin + t.lane() / 16 * 8 + t.lane() % 8) * row_elements() + t.lane() / 8 % 2 * 8;
    FragmentC c[2] = {};
    for (uint32_t k = 0; k < a.width; k += 16) {
      const FragmentA q = Queries(t, n, head, in_block, k, s);
      uint32_t pairs[4];
      t.LoadMatrices(rows + k, pairs);
      t.MultiplyAdd(q, {{pairs[0], pairs[1]}}, &c[0]);
      t.MultiplyAdd(q, {{pairs[2], pairs[3]}}, &c[1]);
    }
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t in_tile = begin + i / 4 * 8 + t.lane() % 4 * 2 + i % 2;
      const bool there = a.PlaceOf(seen, first + in_tile).there;
      const uint32_t own = in_block + t.lane() / 4 + i % 4 / 2 * 8;
      s.logits[own * kLogitStride + in_tile] = there ? c[i / 4].values[i % 4] * a.scale : -INFINITY;
    }
  }

  // Four lanes a head.
  KVSTRATA_DEVICE void Probabilities(const Thread& t, const Shared& s) const {
    const uint32_t head = t.thread() / 4;
    float* logits = s.logits + head * kLogitStride;
    const Softmax softmax = TakeIn<4>(t, s.softmax[head], logits);
    for (uint32_t i = t.thread() % 4; i < kTile; i += 4) {
      s.probabilities[head * kProbabilityStride + i] = reference::F32ToBf16(logits[i]);
    }
    t.SyncWarp();  // all four have read the head's state
    if (t.thread() % 4 == 0) s.softmax[head] = softmax;
  }

  // sums = sums * factor + probabilities * rows, for the warp's heads and its half of the channels.
  KVSTRATA_DEVICE void AddRows(const Thread& t, uint32_t in_block, uint32_t channel, const Shared& s,
                               FragmentC (&sums)[kFragments]) const {
    const uint32_t group = t.lane() / 4;
    const float factors[2] = {s.softmax[in_block + group].factor, s.softmax[in_block + group + 8].factor};
    const uint16_t* own = s.probabilities + (in_block + t.lane() % 16) * kProbabilityStride + t.lane() / 16 * 8;
    FragmentA p[2];
    t.LoadMatrices(own, p[0].pairs);
    t.LoadMatrices(own + 16, p[1].pairs);
    // Sixteen rows of two neighbouring fragments' channels.
    const uint16_t* rows = s.rows + (t.lane() % 16) * row_elements() + channel + t.lane() / 16 * 8;
    const uint32_t fragments = a.width / 16;
    // Numbers in registers have no addresses: the loop is unrolled whole, and what is not there is left out within it.
    KVSTRATA_UNROLL
    for (uint32_t f = 0; f < kFragments; f += 2) {
      if (f < fragments) AddFragments(t, rows + 8 * f, f + 1 < fragments, p, factors, &sums[f]);
    }
  }

  // Two fragments of eight channels each, or the first alone: then the other's rows are read and left.
  KVSTRATA_DEVICE void AddFragments(const Thread& t, const uint16_t* rows, bool both, const FragmentA (&p)[2],
                                    const float (&factors)[2], FragmentC* sums) const {
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < 8; ++i) sums[i / 4].values[i % 4] *= factors[i % 4 / 2];
    KVSTRATA_UNROLL
    for (uint32_t step = 0; step < 2; ++step) {
      uint32_t pairs[4];
      t.LoadTransposed(rows + 16 * step * row_elements(), pairs);
      t.MultiplyAdd(p[step], {{pairs[0], pairs[1]}}, &sums[0]);
      if (both) t.MultiplyAdd(p[step], {{pairs[2], pairs[3]}}, &sums[1]);
    }
  }

  KVSTRATA_DEVICE void StoreSums(const Thread& t, uint64_t n, uint32_t head, uint32_t in_block, uint32_t channel,
                                 const Shared& s, const FragmentC (&sums)[kFragments]) const {
    const uint32_t group = t.lane() / 4;
    const uint32_t fragments = a.width / 16;
    KVSTRATA_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t own = group + half * 8;
      if (head + own >= a.heads) continue;
      const float total = Total(s.softmax[in_block + own], a.Sink(head + own));
      KVSTRATA_UNROLL
      for (uint32_t f = 0; f < kFragments; ++f) {
        if (f >= fragments) continue;
        const float(&values)[4] = sums[f].values;
        a.StorePair(n, head + own, channel + 8 * f + t.lane() % 4 * 2, values[2 * half] / total,
                    values[2 * half + 1] / total);
      }
    }
  }

  KVSTRATA_DEVICE void Heads(const Thread& t, uint64_t n, uint32_t first_head) const {
    const Shared s = SharedOf(t);
    const uint32_t warp = t.thread() / kWarp;
    const uint32_t in_block = warp % 4 * 16;
    const uint32_t half = warp / 4;
    const uint32_t channel = half * a.width / 2;
    const Attend::Seen seen = a.SeenBy(n);
    FragmentC sums[kFragments] = {};
    if (t.thread() < kHeads) {
      const uint32_t head = first_head + t.thread();
      s.softmax[t.thread()] = {head < a.heads ? a.Sink(head) : -INFINITY, 0, 0};
    }
    if (queries_in_shared) BringQueries(t, n, first_head, s.queries);
    for (uint64_t first = 0; first < seen.window_size + seen.listed; first += kTile) {
      BringRows(t, seen, first, s.rows);
      t.AwaitCopies<0>();
      t.Sync();
      Logits(t, seen, n, first_head + in_block, first, in_block, half, s);
      t.Sync();
      Probabilities(t, s);
      t.Sync();
      AddRows(t, in_block, channel, s, sums);
      t.Sync();  // the next tile comes where this one is read
    }
    t.AwaitCopies<0>();  // where nothing is seen
    StoreSums(t, n, first_head + in_block, in_block, channel, s, sums);
    t.Sync();  // the next heads' state comes where this one's is read
  }

  KVSTRATA_HOST_DEVICE uint32_t groups() const { return (a.heads + kHeads - 1) / kHeads; }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t index = t.block(); index < a.tokens * groups(); index += t.blocks()) {
      Heads(t, index / groups(), static_cast<uint32_t>(index % groups()) * kHeads);
    }
  }
};

// Query and sums of the plain form lie in shared memory, of which every GPU gives 48 KiB without being asked.
constexpr uint32_t kMostPlainWidth = 4096;

KeyRows RowsOf(const void* rows, int32_t type, uint64_t stride, int32_t format, const kvstrata_packed_planes& planes,
               const kvstrata_attention_args& a) {
  if (format == KVSTRATA_KERNELS_FORMAT_NONE) return KeyRows::Typed(rows, type, stride);
  return KeyRows::Packed(format, a.width, a.rope_dims, planes);
}

Attend AttendOf(const kvstrata_attention_args& a) {
  Attend attend{};
  attend.window_rows = RowsOf(a.window_kv, a.window_type, a.window_stride, a.window_format, a.packed_window, a);
  attend.entry_rows = RowsOf(a.entries, a.entry_type, a.entry_stride, a.entry_format, a.packed_entries, a);
  attend.queries = {const_cast<void*>(a.queries), a.query_type};
  attend.query_token_stride = a.query_token_stride;
  attend.query_head_stride = a.query_head_stride;
  attend.output = {a.output, a.output_type};
  attend.output_token_stride = a.output_token_stride;
  attend.output_head_stride = a.output_head_stride;
  attend.picks = a.picks;
  attend.pick_stride = a.pick_stride;
  attend.sinks = a.sinks;
  attend.frequencies = a.frequencies;
  attend.tokens = a.tokens;
  attend.first_position = a.first_position;
  attend.window_first = a.window_first;
  attend.window_ring = a.window_ring;
  attend.entry_count = a.entry_count;
  attend.heads = a.heads;
  attend.width = a.width;
  attend.rope_dims = a.rope_dims;
  attend.window = a.window;
  attend.ratio = a.ratio;
  attend.pick_count = a.pick_count;
  attend.scale = a.scale;
  attend.round = a.profile != KVSTRATA_KERNELS_PROFILE_F;
  attend.inverse = (a.flags & KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE) != 0;
  return attend;
}

}  // namespace

int32_t AttentionWorkspaceBytes(const kvstrata_attention_args* args, uint64_t* out_bytes) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = 0;
  return kOk;
}

int32_t Attention(const kvstrata_attention_args* args, void* stream) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const Attend attend = AttendOf(a);
  const AttendTensor tensor{attend};
  if (tensor.Fits()) {
    const uint64_t blocks = a.tokens * tensor.groups();
    return Launch(tensor, Grid::Over(blocks * tensor.kThreads, tensor.kThreads, tensor.shared_bytes()), stream);
  }
  if (a.width > kMostPlainWidth) return kUnsupported;
  const AttendPlain plain{attend};
  return Launch(plain, Grid::Over(a.tokens * a.heads * plain.kThreads, plain.kThreads, plain.shared_bytes()), stream);
}

}  // namespace kvstrata::kernels::cuda
