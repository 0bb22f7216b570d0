// SPDX-License-Identifier: Apache-2.0
// Attention of few queries, which one block each would leave most of a GPU without work for. Two launches: logits, with
// a block for each tile of rows, into the caller's workspace; then sums over all rows, with a block for each 64
// channels, which goes through the softmax of the same logits in the same order. So every float is what AttendTensor
// makes of it, bit for bit, and whether a call is split depends on nothing but speed.
//
// Thread rule: as attend_tensor.h.
#pragma once

#include "kernels/cuda/attend_tensor.h"

namespace kvstrata::kernels::cuda {

constexpr uint32_t LogitsSharedBytes(uint32_t width) {
  return TensorParts::TileBytes(width) + TensorParts::QueryBytes(width);
}

struct AttendLogits {
  static constexpr uint32_t kThreads = TensorParts::kThreads;
  static constexpr uint32_t kTileLogits = TensorParts::kHeads * kTile;
  static constexpr uint64_t kTileBytes = kTileLogits * sizeof(float);
  static constexpr uint32_t kMostSharedBytes = LogitsSharedBytes(TensorParts::kMostWidth);
  static_assert(kMostSharedBytes <= kCommonSharedBytes);

  TensorParts parts;
  float* logits;   // [tokens][groups][tiles][kHeads][kTile], aligned to 16
  uint64_t tiles;  // the most that a query has

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const TensorParts::Tile tile = parts.TileAt(t.shared(), 0);
    uint16_t* queries = parts.TileAt(t.shared(), 1).rows;  // behind it
    for (uint64_t index = t.block(); index < parts.a.tokens * parts.groups() * tiles; index += t.blocks()) {
      const uint64_t n = index / tiles / parts.groups();
      const uint32_t first_head = static_cast<uint32_t>(index / tiles % parts.groups()) * TensorParts::kHeads;
      const uint64_t first = index % tiles * kTile;
      const Attend::Seen seen = parts.a.SeenBy(n);
      if (first >= seen.rows()) continue;
      parts.Fetch(t, seen, first, parts.PicksOf(t, seen, first), tile);
      parts.BringQueries(t, n, first_head, queries);
      parts.Expand(t, tile);
      t.Sync();
      parts.Logits(t, n, first_head, tile, queries, logits + index * kTileLogits, kTile);
      t.Sync();  // the next tile comes where this one is read
    }
  }
};

struct AttendSums {
  static constexpr uint32_t kThreads = TensorParts::kThreads;
  static constexpr uint32_t kHeads = TensorParts::kHeads;
  static constexpr uint32_t kChannels = 64;                  // of a block
  static constexpr uint32_t kFragments = kChannels / 2 / 8;  // of a warp's half of them
  static constexpr uint32_t kRow = kChannels + TensorParts::kRowPadding;
  static constexpr uint32_t kLogitElements = kHeads * TensorParts::kLogitStride;
  static constexpr uint32_t kMostSharedBytes =
      kHeads * (sizeof(Softmax) + TensorParts::kProbabilityStride * sizeof(uint16_t)) +
      2 * (kLogitElements * sizeof(float) + kTile * kRow * sizeof(uint16_t));
  // A thread has one piece of eight channels of a tile.
  static_assert(kTile * kChannels / 8 == kThreads && kMostSharedBytes <= kUnaskedSharedBytes);

  TensorParts parts;
  const float* logits;  // as AttendLogits has written them
  uint64_t tiles;

  KVSTRATA_HOST_DEVICE uint32_t parts_of_row() const { return (parts.a.width + kChannels - 1) / kChannels; }

  // This thread's piece of the tile at `first`, as it lies; of a row or channel that is not there, zeros.
  KVSTRATA_DEVICE KeyRows::Piece PieceOf(const Attend::Seen& seen, uint64_t first, int32_t pick, uint32_t channel,
                                         bool* in_window) const {
    const Attend::Place place = parts.a.PlaceOf(seen, first, pick);
    *in_window = place.in_window;
    if (!place.there || channel >= parts.a.width) return {};
    return (place.in_window ? parts.a.window_rows : parts.a.entry_rows).PieceOf(place.row, channel);
  }

  // The logits of a tile, on their way.
  static KVSTRATA_DEVICE void FetchLogits(const Thread& t, const float* from, float* to) {
    constexpr uint32_t kWords = kTile * sizeof(float) / sizeof(Word16);  // of a head
    for (uint32_t i = t.thread(); i < kHeads * kWords; i += kThreads) {
      t.CopyAsync(to + i / kWords * TensorParts::kLogitStride + i % kWords * 4, from + i * 4, sizeof(Word16));
    }
    t.CommitCopies();
  }

  KVSTRATA_DEVICE void Part(const Thread& t, uint64_t n, uint32_t group, uint32_t part) const {
    auto* softmax = static_cast<Softmax*>(t.shared());
    auto* places = reinterpret_cast<float*>(softmax + kHeads);
    auto* rows = reinterpret_cast<uint16_t*>(places + 2 * kLogitElements);
    const TensorParts::Heads heads{softmax, rows + 2 * kTile * kRow};
    const float* from = logits + (n * parts.groups() + group) * tiles * AttendLogits::kTileLogits;
    const uint32_t in_tile = t.thread() / (kChannels / 8);
    const uint32_t in_part = t.thread() % (kChannels / 8) * 8;
    const uint32_t own_channel = part * kChannels + in_part;
    const uint32_t half = TensorParts::Half(t) * kChannels / 2;
    const uint32_t channel = part * kChannels + half;
    const uint32_t fragments = channel < parts.a.width ? (parts.a.width - channel) / 8 : 0;
    const Attend::Seen seen = parts.a.SeenBy(n);
    FragmentC sums[kFragments] = {};
    parts.BeginSoftmax(t, group * kHeads, heads);
    bool in_window = false;
    KeyRows::Piece piece = PieceOf(seen, in_tile, parts.a.PickOf(seen, in_tile), own_channel, &in_window);
    FetchLogits(t, from, places);
    int32_t pick = parts.a.PickOf(seen, in_tile + kTile);
    for (uint64_t first = 0; first < seen.rows(); first += kTile) {
      const uint32_t place = first / kTile % 2;
      uint16_t* tile = rows + place * kTile * kRow;
      const KeyRows& of = in_window ? parts.a.window_rows : parts.a.entry_rows;
      *reinterpret_cast<Word16*>(tile + in_tile * kRow + in_part) = of.PairsOf(t, piece);
      t.AwaitCopies<0>();
      t.Sync();  // nobody works on the tile before this one any more, and the next comes where that was
      if (first + kTile < seen.rows()) {
        piece = PieceOf(seen, first + kTile + in_tile, pick, own_channel, &in_window);
        pick = parts.a.PickOf(seen, first + 2 * kTile + in_tile);
        from += AttendLogits::kTileLogits;
        FetchLogits(t, from, places + (1 - place) * kLogitElements);
      }
      parts.Probabilities(t, places + place * kLogitElements, heads);
      t.Sync();
      TensorParts::AddRows(t, heads, tile + half, kRow, fragments, sums);
    }
    t.AwaitCopies<0>();  // where nothing is seen
    t.Sync();
    parts.StoreSums(t, n, group * kHeads, heads, channel, fragments, sums);
    t.Sync();  // the next part's state comes where this one's is read
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint32_t row_parts = parts_of_row();
    for (uint64_t index = t.block(); index < parts.a.tokens * parts.groups() * row_parts; index += t.blocks()) {
      const uint64_t outer = index / row_parts;
      Part(t, outer / parts.groups(), static_cast<uint32_t>(outer % parts.groups()),
           static_cast<uint32_t>(index % row_parts));
    }
  }
};

}  // namespace kvstrata::kernels::cuda
