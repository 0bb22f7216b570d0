// SPDX-License-Identifier: Apache-2.0
#include "lib/layout/presets.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "lib/base/status.h"

namespace kvstrata::core::layout {
namespace {

constexpr uint32_t kFloatBytes = 4;  // the carry is fp32 in every profile
// More than any model has; keeps the builders' arithmetic far from 2^32.
constexpr uint32_t kMaxWidth = 1u << 17;

// Where a packing fixes the row: its elements. 0: any width.
uint32_t PackedWidth(Packing packing) {
  switch (packing) {
    case Packing::kFp8Row584:
    case Packing::kFp8Row528:
    case Packing::kFp4Row288: return 512;
    case Packing::kFp8Row656: return 576;
    case Packing::kFp8Key132:
    case Packing::kFp4Key68: return 128;
    default: return 0;
  }
}

bool IsKeyPacking(Packing packing) { return packing == Packing::kFp8Key132 || packing == Packing::kFp4Key68; }

absl::StatusOr<uint32_t> RowBytes(std::string_view field, Packing packing, uint32_t width) {
  switch (packing) {
    case Packing::kF32: return width * 4;
    case Packing::kBf16:
    case Packing::kF16: return width * 2;
    case Packing::kFp8Row584:
    case Packing::kFp8Row528:
    case Packing::kFp4Row288:
    case Packing::kFp8Row656:
    case Packing::kFp8Key132:
    case Packing::kFp4Key68: break;
    default:
      return base::InvalidArgument(field, "packing " + std::string(PackingName(packing)) + " has no size of its own");
  }
  if (width != PackedWidth(packing)) {
    return base::InvalidArgument(field, "packing " + std::string(PackingName(packing)) + " is " +
                                            std::to_string(PackedWidth(packing)) + " wide, the model " +
                                            std::to_string(width));
  }
  constexpr uint32_t kSizes[][2] = {
      {static_cast<uint32_t>(Packing::kFp8Row584), 584}, {static_cast<uint32_t>(Packing::kFp8Row528), 528},
      {static_cast<uint32_t>(Packing::kFp4Row288), 288}, {static_cast<uint32_t>(Packing::kFp8Row656), 656},
      {static_cast<uint32_t>(Packing::kFp8Key132), 132}, {static_cast<uint32_t>(Packing::kFp4Key68), 68}};
  for (const auto& [id, bytes] : kSizes) {
    if (id == static_cast<uint32_t>(packing)) return bytes;
  }
  return base::InvalidArgument(field, "no such packing");
}

absl::Status CheckRange(std::string_view field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return base::InvalidArgument(
      field, std::to_string(value) + " is not in " + std::to_string(least) + ".." + std::to_string(most));
}

// Rows must be rows and keys be keys: two formats of equal size never mix.
absl::Status CheckPackings(Packing rows, Packing keys) {
  if (IsKeyPacking(rows)) {
    return base::InvalidArgument("row_packing", std::string(PackingName(rows)) + " is a packing of index keys");
  }
  const bool plain = keys == Packing::kBf16 || keys == Packing::kF32;
  if (!plain && !IsKeyPacking(keys)) {
    return base::InvalidArgument("index_packing", std::string(PackingName(keys)) + " is no packing of index keys");
  }
  return absl::OkStatus();
}

absl::Status CheckWidths(uint32_t width, uint32_t index_width, uint32_t window) {
  if (auto status = CheckRange("width", width, 1, kMaxWidth); !status.ok()) return status;
  if (auto status = CheckRange("index_width", index_width, 1, kMaxWidth); !status.ok()) return status;
  return CheckRange("window", window, 1, kMaxReplayWindow);
}

Profile ProfileOf(Packing rows, Packing keys) {
  if (rows == Packing::kF32 && keys == Packing::kF32) return Profile::kF;
  return PackedWidth(rows) != 0 || PackedWidth(keys) != 0 ? Profile::kS : Profile::kQ;
}

constexpr uint32_t kShared = kExact | kReplicated;  // one KV head: every rank holds the same rows

Stream RowsStream(Role role, uint32_t layer, uint32_t ratio, uint32_t row_bytes, Packing packing, uint32_t flags) {
  return {StreamKind::kRows, role, layer, ratio, row_bytes, 0, packing, flags};
}

Stream WindowStream(uint32_t layer, uint32_t rows, uint32_t row_bytes, Packing packing, uint32_t flags) {
  return {StreamKind::kState, Role::kWindow, layer, 1, row_bytes, rows, packing, flags};
}

// `halves`: 1 for the P half alone (or a compressor without halves), 2 for both. u and z lie side by side.
Stream CarryStream(Role role, uint32_t layer, uint32_t ratio, uint32_t width, uint32_t halves) {
  return {StreamKind::kState, role, layer, ratio, 2 * halves * width * kFloatBytes, 0, Packing::kF32, kShared};
}

void AddCsaLayer(uint32_t layer, uint32_t ratio, uint32_t row_bytes, uint32_t key_bytes, const HybridOptions& options,
                 std::vector<Stream>& streams) {
  streams.push_back(RowsStream(Role::kCsaEntry, layer, ratio, row_bytes, options.row_packing, kShared));
  streams.push_back(RowsStream(Role::kIndexKey, layer, ratio, key_bytes, options.index_packing, kShared));
  streams.push_back(WindowStream(layer, options.window, row_bytes, options.row_packing, kShared));
  streams.push_back(CarryStream(Role::kOverlap, layer, ratio, options.width, 1));
  streams.push_back(CarryStream(Role::kIndexOverlap, layer, ratio, options.index_width, 1));
  if (ratio == 1) return;  // every token completes its group
  streams.push_back(CarryStream(Role::kOpen, layer, ratio, options.width, 2));
  streams.push_back(CarryStream(Role::kIndexOpen, layer, ratio, options.index_width, 2));
}

void AddHcaLayer(uint32_t layer, uint32_t ratio, uint32_t row_bytes, const HybridOptions& options,
                 std::vector<Stream>& streams) {
  streams.push_back(RowsStream(Role::kHcaEntry, layer, ratio, row_bytes, options.row_packing, kShared));
  streams.push_back(WindowStream(layer, options.window, row_bytes, options.row_packing, kShared));
  if (ratio > 1) streams.push_back(CarryStream(Role::kOpen, layer, ratio, options.width, 1));
}

constexpr uint32_t kDraftFlags = kShared | kDraft | kOptional;

void AddDraftWindows(uint32_t first_layer, size_t count, uint32_t window, uint32_t row_bytes, Packing packing,
                     std::vector<Stream>& streams) {
  for (uint32_t i = 0; i < count; ++i) {
    streams.push_back(WindowStream(first_layer + i, window, row_bytes, packing, kDraftFlags));
  }
}

// Section numbers below are those of the model reports as restated in the project's reference.
// V4-Flash: layers 0 and 1 window only, then CSA at even and HCA at odd layers up to 42.
std::vector<uint32_t> V4Ratios(uint32_t layers, uint32_t first_two) {
  std::vector<uint32_t> ratios(layers);
  for (uint32_t i = 0; i < layers; ++i) ratios[i] = i < 2 ? first_two : (i % 2 == 0 ? 4 : 128);
  return ratios;
}

Packing OrDefault(Packing given, Packing packed) { return given == Packing::kRaw ? packed : given; }

absl::StatusOr<Layout> V4Preset(uint32_t layers, uint32_t first_two, const PresetOptions& options) {
  const std::vector<uint32_t> ratios = V4Ratios(layers, first_two);
  constexpr uint32_t kDraftRatios[] = {0};  // one MTP layer, window only
  HybridOptions hybrid;
  hybrid.ratios = ratios;
  hybrid.draft_ratios = kDraftRatios;
  hybrid.row_packing = OrDefault(options.row_packing, Packing::kFp8Row584);
  hybrid.index_packing = OrDefault(options.index_packing, Packing::kFp4Key68);
  hybrid.block_tokens = options.block_tokens;
  hybrid.include_draft = options.include_draft;
  return HybridLayout(hybrid);
}

absl::StatusOr<Layout> V41Preset(const PresetOptions& options) {
  std::vector<uint32_t> ratios(40, 1);  // layers 20..39, the decoder half
  std::fill_n(ratios.begin(), 20, 2u);
  std::fill_n(ratios.begin(), 2, 0u);
  constexpr uint32_t kSources[] = {2, 8, 14, 20};
  SharedSourceOptions shared;
  shared.ratios = ratios;
  shared.sources = kSources;
  shared.draft_layers = 3;
  shared.row_packing = options.row_packing;
  shared.index_packing = OrDefault(options.index_packing, Packing::kFp4Key68);
  shared.block_tokens = options.block_tokens;
  shared.include_draft = options.include_draft;
  return SharedSourceLayout(shared);
}

absl::StatusOr<Layout> V32Preset(const PresetOptions& options) {
  LatentIndexOptions latent;
  latent.layers = 61;
  latent.draft_layers = 1;
  latent.row_packing = OrDefault(options.row_packing, Packing::kFp8Row656);
  latent.index_packing = OrDefault(options.index_packing, Packing::kFp8Key132);
  latent.block_tokens = options.block_tokens;
  latent.include_draft = options.include_draft;
  return LatentIndexLayout(latent);
}

constexpr std::array<std::string_view, 4> kPresetNames = {"deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash",
                                                          "deepseek-v3.2"};

// Checks an element packing against its size; raw elements have any size of 1, 2, 4 or 8 bytes.
absl::Status CheckElement(Packing packing, uint32_t bytes) {
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) {
    return base::InvalidArgument("bytes_per_element", std::to_string(bytes) + " is not 1, 2, 4 or 8");
  }
  const bool two = packing == Packing::kBf16 || packing == Packing::kF16;
  if (!two && packing != Packing::kF32 && packing != Packing::kRaw) {
    return base::InvalidArgument("packing", std::string(PackingName(packing)) + " is not raw, bf16, f16 or f32");
  }
  const uint32_t wanted = two ? 2 : packing == Packing::kF32 ? 4 : bytes;
  if (bytes == wanted) return absl::OkStatus();
  return base::InvalidArgument("bytes_per_element",
                               std::to_string(bytes) + " does not fit packing " + std::string(PackingName(packing)));
}

}  // namespace

std::span<const std::string_view> PresetNames() { return kPresetNames; }

absl::StatusOr<Layout> Preset(std::string_view name, const PresetOptions& options) {
  if (name == kPresetNames[0]) return V4Preset(43, 0, options);
  if (name == kPresetNames[1]) return V4Preset(61, 128, options);
  if (name == kPresetNames[2]) return V41Preset(options);
  if (name == kPresetNames[3]) return V32Preset(options);
  std::string why(1, '"');
  why.append(name.substr(0, 64)).append("\" is not known");
  return base::MakeStatus(base::Code::kUnsupported, "preset", why);
}

absl::StatusOr<Layout> HybridLayout(const HybridOptions& options) {
  if (auto status = CheckWidths(options.width, options.index_width, options.window); !status.ok()) return status;
  if (auto status = CheckPackings(options.row_packing, options.index_packing); !status.ok()) return status;
  if (auto status = CheckRange("ratios", options.ratios.size(), 1, kMaxStreams); !status.ok()) return status;
  const auto row_bytes = RowBytes("row_packing", options.row_packing, options.width);
  if (!row_bytes.ok()) return row_bytes.status();
  const auto key_bytes = RowBytes("index_packing", options.index_packing, options.index_width);
  if (!key_bytes.ok()) return key_bytes.status();
  LayoutDesc desc;
  desc.family = kFamilyDeepSeekV4;
  desc.profile = ProfileOf(options.row_packing, options.index_packing);
  desc.block_tokens = options.block_tokens;
  const uint32_t layers = static_cast<uint32_t>(options.ratios.size());
  desc.replay = {ReplayMode::kFull, options.window, layers};
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const uint32_t ratio = options.ratios[layer];
    if (ratio == 0) {
      desc.streams.push_back(WindowStream(layer, options.window, *row_bytes, options.row_packing, kShared));
    } else if (ratio < options.hca_from) {
      AddCsaLayer(layer, ratio, *row_bytes, *key_bytes, options, desc.streams);
    } else {
      AddHcaLayer(layer, ratio, *row_bytes, options, desc.streams);
    }
  }
  if (options.include_draft) {
    for (size_t i = 0; i < options.draft_ratios.size(); ++i) {
      if (options.draft_ratios[i] == 0) continue;
      return base::InvalidArgument("draft_ratios[" + std::to_string(i) + "]",
                                   std::to_string(options.draft_ratios[i]) + ": draft layers are window only");
    }
    AddDraftWindows(layers, options.draft_ratios.size(), options.window, *row_bytes, options.row_packing, desc.streams);
  }
  return Layout::Create(std::move(desc));
}

namespace {

// Every compressed layer reads the entries of the nearest source at or below it, at the same ratio.
absl::Status CheckSources(std::span<const uint32_t> ratios, std::span<const uint32_t> sources) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const bool ascending = i == 0 || sources[i] > sources[i - 1];
    if (ascending && sources[i] < ratios.size() && ratios[sources[i]] != 0) continue;
    return base::InvalidArgument("sources[" + std::to_string(i) + "]",
                                 std::to_string(sources[i]) + " is not the next compressed layer");
  }
  size_t next = 0;
  uint32_t ratio = 0;
  for (size_t layer = 0; layer < ratios.size(); ++layer) {
    if (next < sources.size() && sources[next] == layer) ratio = ratios[sources[next++]];
    if (ratios[layer] == 0 || ratios[layer] == ratio) continue;
    return base::InvalidArgument("ratios[" + std::to_string(layer) + "]",
                                 std::to_string(ratios[layer]) + " has no source layer of that ratio");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Layout> SharedSourceLayout(const SharedSourceOptions& options) {
  if (auto status = CheckWidths(options.width, options.index_width, options.window); !status.ok()) return status;
  if (auto status = CheckPackings(options.row_packing, options.index_packing); !status.ok()) return status;
  if (auto status = CheckRange("ratios", options.ratios.size(), 1, kMaxStreams); !status.ok()) return status;
  if (auto status = CheckRange("draft_layers", options.draft_layers, 0, kMaxStreams); !status.ok()) return status;
  if (auto status = CheckSources(options.ratios, options.sources); !status.ok()) return status;
  const Packing window_packing = OrDefault(options.row_packing, Packing::kFp8Row528);
  const Packing entry_packing = OrDefault(options.row_packing, Packing::kFp4Row288);
  const auto window_bytes = RowBytes("row_packing", window_packing, options.width);
  if (!window_bytes.ok()) return window_bytes.status();
  const auto entry_bytes = RowBytes("row_packing", entry_packing, options.width);
  if (!entry_bytes.ok()) return entry_bytes.status();
  const auto key_bytes = RowBytes("index_packing", options.index_packing, options.index_width);
  if (!key_bytes.ok()) return key_bytes.status();
  LayoutDesc desc;
  desc.family = kFamilyDeepSeekV41;
  desc.profile = ProfileOf(entry_packing, options.index_packing);
  desc.block_tokens = options.block_tokens != 0 ? options.block_tokens : kDefaultBlockTokens;
  const uint32_t layers = static_cast<uint32_t>(options.ratios.size());
  desc.replay = {ReplayMode::kBounded, options.window, layers};
  size_t next = 0;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const bool source = next < options.sources.size() && options.sources[next] == layer;
    const uint32_t ratio = options.ratios[layer];
    if (source) {
      ++next;
      desc.streams.push_back(RowsStream(Role::kCsaEntry, layer, ratio, *entry_bytes, entry_packing, kShared));
      desc.streams.push_back(RowsStream(Role::kIndexKey, layer, ratio, *key_bytes, options.index_packing, kShared));
    }
    desc.streams.push_back(WindowStream(layer, options.window, *window_bytes, window_packing, kShared));
    if (source && ratio > 1) desc.streams.push_back(CarryStream(Role::kOpen, layer, ratio, options.width, 1));
  }
  if (options.include_draft) {
    AddDraftWindows(layers, options.draft_layers, options.window, *window_bytes, window_packing, desc.streams);
  }
  return Layout::Create(std::move(desc));
}

absl::StatusOr<Layout> LatentIndexLayout(const LatentIndexOptions& options) {
  if (auto status = CheckRange("layers", options.layers, 1, kMaxStreams); !status.ok()) return status;
  if (auto status = CheckRange("draft_layers", options.draft_layers, 0, kMaxStreams); !status.ok()) return status;
  if (auto status = CheckRange("kv_lora_rank", options.kv_lora_rank, 1, kMaxWidth); !status.ok()) return status;
  if (auto status = CheckRange("rope_dim", options.rope_dim, 0, kMaxWidth); !status.ok()) return status;
  if (auto status = CheckRange("index_width", options.index_width, 1, kMaxWidth); !status.ok()) return status;
  if (auto status = CheckPackings(options.row_packing, options.index_packing); !status.ok()) return status;
  const auto row_bytes = RowBytes("row_packing", options.row_packing, options.kv_lora_rank + options.rope_dim);
  if (!row_bytes.ok()) return row_bytes.status();
  const auto key_bytes = RowBytes("index_packing", options.index_packing, options.index_width);
  if (!key_bytes.ok()) return key_bytes.status();
  LayoutDesc desc;
  desc.family = kFamilyDeepSeekV32;
  desc.profile = ProfileOf(options.row_packing, options.index_packing);
  desc.block_tokens = options.block_tokens != 0 ? options.block_tokens : kDefaultBlockTokens;
  const uint32_t layers = options.layers + (options.include_draft ? options.draft_layers : 0);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const uint32_t flags = layer < options.layers ? kShared : kDraftFlags;
    desc.streams.push_back(RowsStream(Role::kLatent, layer, 1, *row_bytes, options.row_packing, flags));
    desc.streams.push_back(RowsStream(Role::kIndexKey, layer, 1, *key_bytes, options.index_packing, flags));
  }
  return Layout::Create(std::move(desc));
}

absl::StatusOr<Layout> GqaLayout(const GqaOptions& options) {
  if (auto status = CheckRange("layers", options.layers, 1, kMaxStreams); !status.ok()) return status;
  if (auto status = CheckRange("kv_heads", options.kv_heads, 1, kMaxWidth); !status.ok()) return status;
  if (auto status = CheckRange("head_dim", options.head_dim, 1, kMaxWidth); !status.ok()) return status;
  if (auto status = CheckElement(options.packing, options.bytes_per_element); !status.ok()) return status;
  // 2^17 x 2^17 x 8 x 2 fits 64 bits; Create refuses rows above 1 MiB, so only the narrowing needs a check.
  const uint64_t row = uint64_t{options.kv_heads} * options.head_dim * options.bytes_per_element;
  if (auto status = CheckRange("row_bytes", row, 1, kMaxRowBytes); !status.ok()) return status;
  const uint32_t row_bytes = static_cast<uint32_t>(row);
  std::vector<bool> windowed(options.layers, false);
  for (size_t i = 0; i < options.window_layers.size(); ++i) {
    if (options.window_layers[i] >= options.layers || windowed[options.window_layers[i]]) {
      return base::InvalidArgument("window_layers[" + std::to_string(i) + "]",
                                   std::to_string(options.window_layers[i]) + " is no layer, or given twice");
    }
    windowed[options.window_layers[i]] = true;
  }
  LayoutDesc desc;
  desc.family = kFamilyGqa;
  desc.block_tokens = options.block_tokens != 0 ? options.block_tokens : kDefaultBlockTokens;
  const uint32_t flags = options.split ? kExact | kSplit : kExact;
  for (uint32_t layer = 0; layer < options.layers; ++layer) {
    if (windowed[layer]) {
      desc.streams.push_back(WindowStream(layer, options.window, 2 * row_bytes, options.packing, flags));
      continue;
    }
    desc.streams.push_back(RowsStream(Role::kKey, layer, 1, row_bytes, options.packing, flags));
    desc.streams.push_back(RowsStream(Role::kValue, layer, 1, row_bytes, options.packing, flags));
  }
  // Full layers' rows come from the store during a replay, so only the window layers chain.
  if (!options.window_layers.empty()) {
    desc.replay = {ReplayMode::kFull, options.window, static_cast<uint32_t>(options.window_layers.size())};
  }
  return Layout::Create(std::move(desc));
}

absl::StatusOr<Layout> MlaLayout(const MlaOptions& options) {
  if (auto status = CheckRange("layers", options.layers, 1, kMaxStreams); !status.ok()) return status;
  if (auto status = CheckRange("kv_lora_rank", options.kv_lora_rank, 1, kMaxWidth); !status.ok()) return status;
  if (auto status = CheckRange("rope_dim", options.rope_dim, 0, kMaxWidth); !status.ok()) return status;
  if (auto status = CheckElement(options.packing, options.bytes_per_element); !status.ok()) return status;
  const uint32_t row_bytes = (options.kv_lora_rank + options.rope_dim) * options.bytes_per_element;
  LayoutDesc desc;
  desc.family = kFamilyMla;
  desc.block_tokens = options.block_tokens != 0 ? options.block_tokens : kDefaultBlockTokens;
  for (uint32_t layer = 0; layer < options.layers; ++layer) {
    desc.streams.push_back(RowsStream(Role::kLatent, layer, 1, row_bytes, options.packing, kShared));
  }
  return Layout::Create(std::move(desc));
}

absl::StatusOr<Layout> OpaqueLayout(uint32_t block_tokens) {
  LayoutDesc desc;
  desc.family = kFamilyOpaque;
  desc.block_tokens = block_tokens;
  desc.streams.push_back({StreamKind::kState, Role::kOpaque, 0, 0, 0, 0, Packing::kRaw, kExact});
  return Layout::Create(std::move(desc));
}

}  // namespace kvstrata::core::layout
