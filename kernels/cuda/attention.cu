// SPDX-License-Identifier: Apache-2.0
// Attention over window rows, entries and a sink, with an online softmax: rows come tile by tile, and what was summed
// so far is scaled down when a greater logit comes. On the tensor cores for bf16 queries against bf16 or packed rows in
// profiles Q and S (attend_tensor.h; few queries by more blocks, attend_split.h), else in fp32.
#include "kernels/arguments.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/attend_split.h"
#include "kernels/cuda/attend_tensor.h"
#include "kernels/cuda/functions.h"

namespace kvstrata::kernels::cuda {
namespace {

// Query, sums, a tile's logits, and the softmax' state.
constexpr uint32_t PlainSharedBytes(uint32_t width) {
  return (2 * width + kTile + 3) * static_cast<uint32_t>(sizeof(float));
}

// A block has a query and a head; its first warp does the softmax.
struct AttendPlain {
  static constexpr uint32_t kThreads = 128;
  static constexpr uint32_t kMostWidth = 4096;

  static constexpr uint32_t kMostSharedBytes = PlainSharedBytes(kMostWidth);
  static_assert(kMostSharedBytes <= kUnaskedSharedBytes);

  Attend a;

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

// The most rows that a query of the call sees. Where it is asked before there are picks, any number may come.
uint64_t MostRows(const kvstrata_attention_args& a) {
  const uint64_t end = a.first_position + a.tokens;
  uint64_t listed = a.ratio == 0 ? 0 : end / a.ratio;
  if (a.ratio != 0 && a.picks != nullptr) listed = a.pick_count;
  return (a.window < end ? a.window : end) + listed;
}

// Few queries over many rows are split over blocks, as long as the logits in between are not the caller's memory.
uint64_t SplitBytes(const kvstrata_attention_args& a, const TensorParts& parts) {
  constexpr uint64_t kFewestTiles = 4;
  constexpr uint64_t kMostBytes = 64u << 20;
  const uint64_t tiles = (MostRows(a) + kTile - 1) / kTile;
  const uint64_t blocks = a.tokens * parts.groups();
  if (!parts.Fits() || tiles < kFewestTiles || tiles > kMostBytes || 2 * blocks > Multiprocessors()) return 0;
  const uint64_t bytes = blocks * tiles * AttendLogits::kTileBytes + sizeof(Word16);
  return bytes <= kMostBytes ? bytes : 0;
}

int32_t LaunchSplit(const kvstrata_attention_args& a, const TensorParts& parts, void* stream) {
  const uint64_t blocks = a.tokens * parts.groups();
  // The caller's workspace is aligned for floats only.
  const uint64_t aligned = (AddressOf(a.workspace) + sizeof(Word16) - 1) / sizeof(Word16) * sizeof(Word16);
  auto* logits = reinterpret_cast<float*>(aligned);
  const AttendLogits first{parts, logits, (MostRows(a) + kTile - 1) / kTile};
  const Grid grid = Grid::Blocks(blocks * first.tiles, LogitsSharedBytes(a.width));
  if (const int32_t status = Launch(first, grid, stream); status != kOk) return status;
  const AttendSums second{parts, logits, first.tiles};
  return Launch(second, Grid::Blocks(blocks * second.parts_of_row(), second.kMostSharedBytes), stream);
}

}  // namespace

int32_t AttentionWorkspaceBytes(const kvstrata_attention_args* args, uint64_t* out_bytes) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a, Checks::kShapesOnly); status != kOk) return status;
  if (out_bytes == nullptr) return kInvalidArgument;
  *out_bytes = SplitBytes(a, TensorParts{AttendOf(a)});
  return kOk;
}

int32_t Attention(const kvstrata_attention_args* args, void* stream) {
  kvstrata_attention_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const Attend attend = AttendOf(a);
  const TensorParts parts{attend};
  if (parts.Fits()) {
    // With less workspace one block does what several would: the same bits, later.
    const uint64_t split = SplitBytes(a, parts);
    if (split != 0 && WorkspaceValid(a.workspace, a.workspace_bytes, split)) return LaunchSplit(a, parts, stream);
    const AttendTensor tensor{parts};
    return Launch(tensor, Grid::Blocks(a.tokens * parts.groups(), tensor.shared_bytes()), stream);
  }
  if (a.width > AttendPlain::kMostWidth) return kUnsupported;
  const AttendPlain plain{attend};
  return Launch(plain, Grid::Blocks(a.tokens * a.heads, PlainSharedBytes(a.width)), stream);
}

}  // namespace kvstrata::kernels::cuda
