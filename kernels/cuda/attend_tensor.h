// SPDX-License-Identifier: Apache-2.0
// Attention on the tensor cores. A block has a query and 64 heads. Rows come in tiles through two places in shared
// memory: while one is worked on, the next is on its way, packed rows as the bytes they are, which the warp that
// fetched a row expands where it lies when they have come.
//
// Thread rule: pure functions; those that take a Thread are called by all threads of its block.
#pragma once

#include "kernels/cuda/attend.h"

namespace kvstrata::kernels::cuda {

// What the forms on the tensor cores have in common. Of a block's eight warps each has 16 of the 64 heads; two share
// those: one half of the rows each when logits are computed, one half of the channels each when rows are summed.
struct TensorParts {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kWarps = kThreads / kWarp;
  static constexpr uint32_t kHeads = 64;
  static constexpr uint32_t kMostWidth = 512;
  // Rows in shared memory are longer than they need to be, so that a fragment's lanes lie in different banks.
  static constexpr uint32_t kRowPadding = 8;
  static constexpr uint32_t kLogitStride = kTile + 4;
  static constexpr uint32_t kProbabilityStride = kTile + 8;
  // A tile's rows and what they are; queries.
  static constexpr KVSTRATA_HOST_DEVICE uint32_t TileBytes(uint32_t width) {
    return static_cast<uint32_t>(kTile * ((width + kRowPadding) * sizeof(uint16_t) + sizeof(uint32_t)));
  }
  static constexpr uint32_t QueryBytes(uint32_t width) {
    return static_cast<uint32_t>(kHeads * (width + kRowPadding) * sizeof(uint16_t));
  }
  // Of a tile, that a warp fetches: those from its number on, kWarps apart.
  static constexpr uint32_t kOwnRows = kTile / kWarps;

  Attend a;
  uint32_t query_word;  // the widest words that queries can be read in

  explicit TensorParts(const Attend& attend)
      : a(attend),
        query_word(WordBytes(AddressOf(a.queries.data) | 2 * a.query_token_stride | 2 * a.query_head_stride)) {}

  KVSTRATA_HOST_DEVICE uint32_t groups() const { return (a.heads + kHeads - 1) / kHeads; }
  KVSTRATA_HOST_DEVICE uint32_t row_elements() const { return a.width + kRowPadding; }

  // Whole instructions, sums that fit into registers, and pairs of query channels that are aligned as one word.
  bool Fits() const {
    const bool types =
        a.queries.type == KVSTRATA_KERNELS_BF16 && a.window_rows.is_bf16() && (a.ratio == 0 || a.entry_rows.is_bf16());
    return a.round && types && query_word >= sizeof(uint32_t) && a.width % 16 == 0 && a.width <= kMostWidth;
  }

  // What a row of a tile is when it has come: nothing, finished, or packed.
  enum Kind : uint32_t { kAbsent, kFinished, kPackedWindow, kPackedEntry };
  struct Tile {
    uint16_t* rows;   // [kTile][row_elements]
    uint32_t* kinds;  // [kTile]
  };
  // The tile in place `place` of those at `tiles`.
  KVSTRATA_DEVICE Tile TileAt(void* tiles, uint32_t place) const {
    auto* rows = reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(tiles) + place * TileBytes(a.width));
    return {rows, reinterpret_cast<uint32_t*>(rows + kTile * row_elements())};
  }

  // The picks of the rows that this thread's warp will fetch.
  struct Picks {
    int32_t of[kOwnRows];
  };
  KVSTRATA_DEVICE Picks PicksOf(const Thread& t, const Attend::Seen& seen, uint64_t first) const {
    Picks picks;
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kOwnRows; ++i) {
      picks.of[i] = a.PickOf(seen, first + t.thread() / kWarp + i * kWarps);
    }
    return picks;
  }

  // Has the tile's rows copied as they lie. Those that are not there are zeros: their probability is 0, and 0 times
  // what shared memory held might not be.
  KVSTRATA_DEVICE void Fetch(const Thread& t, const Attend::Seen& seen, uint64_t first, const Picks& picks,
                             const Tile& tile) const {
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kOwnRows; ++i) {
      const uint32_t in_tile = t.thread() / kWarp + i * kWarps;
      const Attend::Place place = a.PlaceOf(seen, first + in_tile, picks.of[i]);
      const KeyRows& from = place.in_window ? a.window_rows : a.entry_rows;
      uint16_t* row = tile.rows + in_tile * row_elements();
      Kind kind = kAbsent;
      if (place.there) {
        kind = !from.packed ? kFinished : place.in_window ? kPackedWindow : kPackedEntry;
        from.Fetch(t, place.row, a.width, reinterpret_cast<uint8_t*>(row));
      } else {
        for (uint32_t c = t.lane() * 8; c < a.width; c += kWarp * 8) *reinterpret_cast<Word16*>(row + c) = Word16{};
      }
      if (t.lane() == 0) tile.kinds[in_tile] = kind;
    }
    t.CommitCopies();
  }

  // Waits for what this thread's warp has fetched, and expands it. A barrier lets the other warps have it.
  KVSTRATA_DEVICE void Expand(const Thread& t, const Tile& tile) const {
    t.AwaitCopies<0>();
    t.SyncWarp();  // each lane has awaited its own
    for (uint32_t i = t.thread() / kWarp; i < kTile; i += kWarps) {
      const uint32_t kind = tile.kinds[i];
      if (kind != kPackedWindow && kind != kPackedEntry) continue;
      ExpandRow(t, kind == kPackedWindow ? a.window_rows : a.entry_rows, tile.rows + i * row_elements());
    }
  }

  KVSTRATA_DEVICE void ExpandRow(const Thread& t, const KeyRows& packed, uint16_t* row) const {
    constexpr uint32_t kPieces = kMostWidth / 8 / kWarp;
    Word16 pieces[kPieces];
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) {
      const uint32_t channel = 8 * (t.lane() + i * kWarp);
      if (channel < a.width) pieces[i] = packed.FetchedPairs(t, reinterpret_cast<const uint8_t*>(row), channel);
    }
    t.SyncWarp();  // all of the row has been read
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) {
      const uint32_t channel = 8 * (t.lane() + i * kWarp);
      if (channel < a.width) *reinterpret_cast<Word16*>(row + channel) = pieces[i];
    }
  }

  // 64 heads' queries, those that are not there zeros; on their way until they are awaited.
  KVSTRATA_DEVICE void BringQueries(const Thread& t, uint64_t n, uint32_t first_head, uint16_t* queries) const {
    for (uint32_t i = t.thread() / kWarp; i < kHeads; i += kWarps) {
      const uint32_t head = first_head + i;
      const auto* from =
          static_cast<const uint16_t*>(a.queries.data) + n * a.query_token_stride + head * a.query_head_stride;
      uint16_t* to = queries + i * row_elements();
      if (head < a.heads) {
        FetchBytes(t, reinterpret_cast<const uint8_t*>(from), 2 * a.width, query_word, reinterpret_cast<uint8_t*>(to));
      } else {
        for (uint32_t c = t.lane() * 8; c < a.width; c += kWarp * 8) *reinterpret_cast<Word16*>(to + c) = Word16{};
      }
    }
    t.CommitCopies();
  }

  // Two neighbouring channels of a head's query; of a head that is not there zeros.
  KVSTRATA_DEVICE uint32_t QueryPair(uint64_t n, uint32_t head, uint32_t channel) const {
    if (head >= a.heads) return 0;
    const auto* query = static_cast<const uint16_t*>(a.queries.data);
    return *reinterpret_cast<const uint32_t*>(query + n * a.query_token_stride + head * a.query_head_stride + channel);
  }

  // Channels k .. k + 15 of the warp's 16 queries, of which `head` is the first and the `in_block`-th of the block.
  // `queries`: where they lie in shared memory, or null.
  KVSTRATA_DEVICE FragmentA Queries(const Thread& t, uint64_t n, uint32_t head, uint32_t in_block, uint32_t k,
                                    const uint16_t* queries) const {
    if (queries != nullptr) {
      FragmentA q;
      t.LoadMatrices(queries + (in_block + t.lane() % 16) * row_elements() + k + t.lane() / 16 * 8, q.pairs);
      return q;
    }
    const uint32_t group = t.lane() / 4;
    const uint32_t channel = k + t.lane() % 4 * 2;
    return {{QueryPair(n, head + group, channel), QueryPair(n, head + group + 8, channel),
             QueryPair(n, head + group, channel + 8), QueryPair(n, head + group + 8, channel + 8)}};
  }

  // Where a warp works: the first of its heads in the block, and its half.
  static KVSTRATA_DEVICE uint32_t InBlock(const Thread& t) { return t.thread() / kWarp % 4 * 16; }
  static KVSTRATA_DEVICE uint32_t Half(const Thread& t) { return t.thread() / kWarp / 4; }

  // Logits of the warp's heads and its half of the rows, which are two matrices of eight.
  KVSTRATA_DEVICE void Logits(const Thread& t, uint64_t n, uint32_t first_head, const Tile& tile,
                              const uint16_t* queries, float* logits, uint32_t logit_stride) const {
    static_assert(kTile == 32);
    const uint32_t begin = Half(t) * kTile / 2;
    const uint16_t* rows =
        tile.rows + (begin + t.lane() / 16 * 8 + t.lane() % 8) * row_elements() + t.lane() / 8 % 2 * 8;
    FragmentC c[2] = {};
    for (uint32_t k = 0; k < a.width; k += 16) {
      const FragmentA q = Queries(t, n, first_head + InBlock(t), InBlock(t), k, queries);
      uint32_t pairs[4];
      t.LoadMatrices(rows + k, pairs);
      t.MultiplyAdd(q, {{pairs[0], pairs[1]}}, &c[0]);
      t.MultiplyAdd(q, {{pairs[2], pairs[3]}}, &c[1]);
    }
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t in_tile = begin + i / 4 * 8 + t.lane() % 4 * 2 + i % 2;
      const uint32_t own = InBlock(t) + t.lane() / 4 + i % 4 / 2 * 8;
      const bool there = tile.kinds[in_tile] != kAbsent;
      logits[own * logit_stride + in_tile] = there ? c[i / 4].values[i % 4] * a.scale : -INFINITY;
    }
  }

  // Of a block's heads, in shared memory: [kHeads] each.
  struct Heads {
    Softmax* softmax;
    uint16_t* probabilities;  // [kProbabilityStride]
  };

  KVSTRATA_DEVICE void BeginSoftmax(const Thread& t, uint32_t first_head, const Heads& heads) const {
    if (t.thread() >= kHeads) return;
    const uint32_t head = first_head + t.thread();
    heads.softmax[t.thread()] = {head < a.heads ? a.Sink(head) : -INFINITY, 0, 0};
  }

  // Takes in the logits of a tile, four lanes a head.
  KVSTRATA_DEVICE void Probabilities(const Thread& t, float* logits, const Heads& heads) const {
    const uint32_t head = t.thread() / 4;
    float* own = logits + head * kLogitStride;
    const Softmax softmax = TakeIn<4>(t, heads.softmax[head], own);
    for (uint32_t i = t.thread() % 4; i < kTile; i += 4) {
      heads.probabilities[head * kProbabilityStride + i] = reference::F32ToBf16(own[i]);
    }
    t.SyncWarp();  // all four have read the head's state
    if (t.thread() % 4 == 0) heads.softmax[head] = softmax;
  }

  // sums = sums * factor + probabilities * rows, for the warp's heads and the channels from `rows` on, of which
  // `fragments` times eight are there.
  template <uint32_t kFragments>
  static KVSTRATA_DEVICE void AddRows(const Thread& t, const Heads& heads, const uint16_t* rows, uint32_t row_elements,
                                      uint32_t fragments, FragmentC (&sums)[kFragments]) {
    const uint32_t in_block = InBlock(t);
    const uint32_t group = t.lane() / 4;
    const float factors[2] = {heads.softmax[in_block + group].factor, heads.softmax[in_block + group + 8].factor};
    const uint16_t* own = heads.probabilities + (in_block + t.lane() % 16) * kProbabilityStride + t.lane() / 16 * 8;
    FragmentA p[2];
    t.LoadMatrices(own, p[0].pairs);
    t.LoadMatrices(own + 16, p[1].pairs);
    // Sixteen rows of two neighbouring fragments' channels.
    const uint16_t* first = rows + (t.lane() % 16) * row_elements + t.lane() / 16 * 8;
    // Numbers in registers have no addresses: the loop is unrolled whole, and what is not there is left out within it.
    KVSTRATA_UNROLL
    for (uint32_t f = 0; f < kFragments; f += 2) {
      if (f < fragments) AddFragments(t, first + 8 * f, row_elements, f + 1 < fragments, p, factors, &sums[f]);
    }
  }

  // Two fragments of eight channels each, or the first alone: then the other's rows are read and left.
  static KVSTRATA_DEVICE void AddFragments(const Thread& t, const uint16_t* rows, uint32_t row_elements, bool both,
                                           const FragmentA (&p)[2], const float (&factors)[2], FragmentC* sums) {
    KVSTRATA_UNROLL
    for (uint32_t i = 0; i < 8; ++i) sums[i / 4].values[i % 4] *= factors[i % 4 / 2];
    KVSTRATA_UNROLL
    for (uint32_t step = 0; step < 2; ++step) {
      uint32_t pairs[4];
      t.LoadTransposed(rows + 16 * step * row_elements, pairs);
      t.MultiplyAdd(p[step], {{pairs[0], pairs[1]}}, &sums[0]);
      if (both) t.MultiplyAdd(p[step], {{pairs[2], pairs[3]}}, &sums[1]);
    }
  }

  template <uint32_t kFragments>
  KVSTRATA_DEVICE void StoreSums(const Thread& t, uint64_t n, uint32_t first_head, const Heads& heads, uint32_t channel,
                                 uint32_t fragments, const FragmentC (&sums)[kFragments]) const {
    KVSTRATA_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t in_block = InBlock(t) + t.lane() / 4 + half * 8;
      const uint32_t head = first_head + in_block;
      if (head >= a.heads) continue;
      const float total = Total(heads.softmax[in_block], a.Sink(head));
      KVSTRATA_UNROLL
      for (uint32_t f = 0; f < kFragments; ++f) {
        if (f >= fragments) continue;
        const float(&values)[4] = sums[f].values;
        a.StorePair(n, head, channel + 8 * f + t.lane() % 4 * 2, values[2 * half] / total,
                    values[2 * half + 1] / total);
      }
    }
  }
};

constexpr uint32_t TensorSharedBytes(uint32_t width, bool with_queries) {
  constexpr uint32_t kOfHead =
      sizeof(Softmax) + TensorParts::kLogitStride * sizeof(float) + TensorParts::kProbabilityStride * sizeof(uint16_t);
  return 2 * TensorParts::TileBytes(width) + TensorParts::kHeads * kOfHead +
         (with_queries ? TensorParts::QueryBytes(width) : 0);
}

// All rows of a query by one block, whose sums stay in registers.
struct AttendTensor {
  static constexpr uint32_t kThreads = TensorParts::kThreads;
  static constexpr uint32_t kFragments = TensorParts::kMostWidth / 2 / 8;  // of a warp's half of the channels

  static constexpr uint32_t kMostSharedBytes = TensorSharedBytes(TensorParts::kMostWidth, true);
  static_assert(TensorSharedBytes(TensorParts::kMostWidth, false) <= kCommonSharedBytes);

  TensorParts parts;
  bool queries_in_shared;  // else they are read where they lie, for every tile

  explicit AttendTensor(const TensorParts& of)
      : parts(of), queries_in_shared(TensorSharedBytes(of.a.width, true) <= MostSharedBytes()) {}

  uint32_t shared_bytes() const { return TensorSharedBytes(parts.a.width, queries_in_shared); }

  struct Shared {
    TensorParts::Heads heads;
    float* logits;      // [kHeads][kLogitStride]
    void* tiles;        // two
    uint16_t* queries;  // [kHeads][row_elements], or null
  };

  KVSTRATA_DEVICE Shared SharedOf(const Thread& t) const {
    constexpr uint32_t kHeads = TensorParts::kHeads;
    Shared s{};
    s.heads.softmax = static_cast<Softmax*>(t.shared());
    s.logits = reinterpret_cast<float*>(s.heads.softmax + kHeads);
    s.heads.probabilities = reinterpret_cast<uint16_t*>(s.logits + kHeads * TensorParts::kLogitStride);
    s.tiles = s.heads.probabilities + kHeads * TensorParts::kProbabilityStride;
    if (queries_in_shared) s.queries = parts.TileAt(s.tiles, 2).rows;
    return s;
  }

  KVSTRATA_DEVICE void Heads(const Thread& t, uint64_t n, uint32_t first_head) const {
    const Shared s = SharedOf(t);
    const uint32_t channel = TensorParts::Half(t) * parts.a.width / 2;
    const Attend::Seen seen = parts.a.SeenBy(n);
    FragmentC sums[kFragments] = {};
    parts.BeginSoftmax(t, first_head, s.heads);
    if (s.queries != nullptr) parts.BringQueries(t, n, first_head, s.queries);
    parts.Fetch(t, seen, 0, parts.PicksOf(t, seen, 0), parts.TileAt(s.tiles, 0));
    TensorParts::Picks picks = parts.PicksOf(t, seen, kTile);
    for (uint64_t first = 0; first < seen.rows(); first += kTile) {
      const uint32_t place = first / kTile % 2;
      const TensorParts::Tile tile = parts.TileAt(s.tiles, place);
      parts.Expand(t, tile);
      t.Sync();  // nobody works on the tile before this one any more, and the next comes where that was
      if (first + kTile < seen.rows()) {
        parts.Fetch(t, seen, first + kTile, picks, parts.TileAt(s.tiles, 1 - place));
        picks = parts.PicksOf(t, seen, first + 2 * kTile);
      }
      parts.Logits(t, n, first_head, tile, s.queries, s.logits, TensorParts::kLogitStride);
      t.Sync();
      parts.Probabilities(t, s.logits, s.heads);
      t.Sync();
      TensorParts::AddRows(t, s.heads, tile.rows + channel, parts.row_elements(), parts.a.width / 16, sums);
    }
    t.AwaitCopies<0>();  // where nothing is seen
    t.Sync();
    parts.StoreSums(t, n, first_head, s.heads, channel, parts.a.width / 16, sums);
    t.Sync();  // the next heads' state comes where this one's is read
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint32_t groups = parts.groups();
    for (uint64_t index = t.block(); index < parts.a.tokens * groups; index += t.blocks()) {
      Heads(t, index / groups, static_cast<uint32_t>(index % groups) * TensorParts::kHeads);
    }
  }
};

}  // namespace kvstrata::kernels::cuda
