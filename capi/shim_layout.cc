// SPDX-License-Identifier: Apache-2.0
// Layout handles.
#include <cstring>
#include <string>
#include <utility>

#include "capi/handles.h"
#include "capi/struct_reader.h"
#include "lib/layout/config_json.h"
#include "lib/layout/presets.h"

namespace kvstrata::capi {
namespace {

absl::Status Give(absl::StatusOr<layout::Layout> made, kvstrata_layout** out) {
  if (!made.ok()) return made.status();
  *out = new kvstrata_layout{*std::move(made)};
  return absl::OkStatus();
}

absl::Status CheckText(const void* text, uint64_t size, const char* field) {
  if (text == nullptr && size > 0) return base::InvalidArgument(field, "NULL with a size");
  if (size > (4u << 20)) return base::InvalidArgument("size", std::to_string(size) + " > 4 MiB");
  return absl::OkStatus();
}

absl::StatusOr<layout::PresetOptions> ReadPresetOptions(const kvstrata_preset_options* given) {
  const absl::StatusOr<kvstrata_preset_options> options = ReadOptionalStruct<kvstrata_preset_options>(given, "options");
  if (!options.ok()) return options.status();
  layout::PresetOptions out;
  switch (options->rows) {
    case KVSTRATA_ROWS_PACKED: break;
    case KVSTRATA_ROWS_BF16: out.row_packing = layout::Packing::kBf16; break;
    case KVSTRATA_ROWS_F32: out.row_packing = layout::Packing::kF32; break;
    default: return base::InvalidArgument("options.rows", std::to_string(options->rows));
  }
  switch (options->index_keys) {
    case KVSTRATA_KEYS_FP4: break;
    case KVSTRATA_KEYS_FP8: out.index_packing = layout::Packing::kFp8Key132; break;
    case KVSTRATA_KEYS_BF16: out.index_packing = layout::Packing::kBf16; break;
    case KVSTRATA_KEYS_F32: out.index_packing = layout::Packing::kF32; break;
    default: return base::InvalidArgument("options.index_keys", std::to_string(options->index_keys));
  }
  out.block_tokens = options->block_tokens;
  out.include_draft = options->include_draft != 0;
  return out;
}

layout::Stream ToStream(const kvstrata_stream& stream) {
  layout::Stream out;
  out.kind = static_cast<layout::StreamKind>(stream.kind);
  out.role = static_cast<layout::Role>(stream.role);
  out.layer = stream.layer;
  out.ratio = stream.ratio;
  out.row_bytes = stream.row_bytes;
  out.state_rows = stream.state_rows;
  out.packing = static_cast<layout::Packing>(stream.packing);
  out.flags = stream.flags;
  return out;
}

absl::StatusOr<layout::LayoutDesc> ReadDesc(const kvstrata_layout_desc* given) {
  const absl::StatusOr<kvstrata_layout_desc> desc = ReadStruct<kvstrata_layout_desc>(given, "desc");
  if (!desc.ok()) return desc.status();
  const absl::StatusOr<std::vector<kvstrata_stream>> streams = ReadArray<kvstrata_stream>(
      desc->streams, desc->stream_count, desc->stream_stride, layout::kMaxStreams, "desc.streams");
  if (!streams.ok()) return streams.status();
  layout::LayoutDesc out;
  if (desc->family != nullptr) out.family = desc->family;
  out.profile = desc->profile == 0 ? layout::Profile::kOpaque : static_cast<layout::Profile>(desc->profile);
  out.block_tokens = desc->block_tokens;
  out.replay = {static_cast<layout::ReplayMode>(desc->replay_mode), desc->replay_window, desc->replay_layers};
  for (const kvstrata_stream& stream : *streams) {
    if (stream.reserved0 != 0) return base::InvalidArgument("desc.streams.reserved0", "not zero");
    out.streams.push_back(ToStream(stream));
  }
  return out;
}

absl::Status CheckStream(const layout::Layout& value, uint32_t index) {
  if (index < value.streams().size()) return absl::OkStatus();
  return base::InvalidArgument("index",
                               std::to_string(index) + " of " + std::to_string(value.streams().size()) + " streams");
}

}  // namespace
}  // namespace kvstrata::capi

using namespace kvstrata::capi;  // the ABI's functions are the only names in this file outside it

extern "C" {

kvstrata_status kvstrata_layout_create(const kvstrata_layout_desc* desc, kvstrata_layout** out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    absl::StatusOr<layout::LayoutDesc> read = ReadDesc(desc);
    if (!read.ok()) return read.status();
    return Give(layout::Layout::Create(*std::move(read)), out);
  });
}

kvstrata_status kvstrata_layout_from_preset(const char* name, const kvstrata_preset_options* options,
                                            kvstrata_layout** out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    if (name == nullptr) return base::InvalidArgument("name", "NULL");
    const absl::StatusOr<layout::PresetOptions> read = ReadPresetOptions(options);
    if (!read.ok()) return read.status();
    std::string names;
    for (const std::string_view known : layout::PresetNames()) {
      if (known == name) return Give(layout::Preset(name, *read), out);
      names += (names.empty() ? "" : ", ") + std::string(known);
    }
    return base::MakeStatus(base::Code::kNotFound, "name", std::string(name).substr(0, 64) + "; there are " + names);
  });
}

kvstrata_status kvstrata_layout_from_config(const char* json, uint64_t size, const kvstrata_preset_options* options,
                                            kvstrata_layout** out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    if (absl::Status status = CheckText(json, size, "json"); !status.ok()) return status;
    const absl::StatusOr<layout::PresetOptions> read = ReadPresetOptions(options);
    if (!read.ok()) return read.status();
    return Give(layout::FromConfigJson(std::string_view(json, size), *read), out);
  });
}

kvstrata_status kvstrata_layout_from_text(const char* text, uint64_t size, kvstrata_layout** out,
                                          kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    if (absl::Status status = CheckText(text, size, "text"); !status.ok()) return status;
    return Give(layout::Layout::FromText(std::string_view(text, size)), out);
  });
}

kvstrata_status kvstrata_layout_gqa(uint32_t layers, uint32_t kv_heads, uint32_t head_dim, uint32_t element_bytes,
                                    uint32_t block_tokens, kvstrata_layout** out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    layout::GqaOptions options;
    options.layers = layers;
    options.kv_heads = kv_heads;
    options.head_dim = head_dim;
    options.bytes_per_element = element_bytes;
    options.block_tokens = block_tokens;
    return Give(layout::GqaLayout(options), out);
  });
}

kvstrata_status kvstrata_layout_mla(uint32_t layers, uint32_t row_bytes, uint32_t block_tokens, kvstrata_layout** out,
                                    kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    layout::LayoutDesc desc;
    desc.family = layout::kFamilyMla;
    desc.block_tokens = block_tokens == 0 ? layout::kDefaultBlockTokens : block_tokens;
    for (uint32_t layer = 0; layer < layers && layer <= layout::kMaxStreams; ++layer) {
      desc.streams.push_back({layout::StreamKind::kRows, layout::Role::kLatent, layer, 1, row_bytes, 0,
                              layout::Packing::kRaw, layout::kExact | layout::kReplicated});
    }
    return Give(layout::Layout::Create(std::move(desc)), out);
  });
}

kvstrata_status kvstrata_layout_opaque(uint32_t block_tokens, kvstrata_layout** out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    return Give(layout::OpaqueLayout(block_tokens), out);
  });
}

void kvstrata_layout_destroy(kvstrata_layout* layout) { delete layout; }

kvstrata_status kvstrata_layout_get_info(const kvstrata_layout* layout, kvstrata_layout_info* out,
                                         kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (layout == nullptr) return base::InvalidArgument("layout", "NULL");
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    const auto& value = layout->value;
    kvstrata_layout_info info{};
    info.block_tokens = value.block_tokens();
    info.stream_count = static_cast<uint32_t>(value.streams().size());
    info.profile = static_cast<int32_t>(value.profile());
    info.replay_mode = static_cast<int32_t>(value.replay().mode);
    info.block_bytes = value.BlockBytes(/*include_draft=*/true);
    info.exact_replay_tokens = value.ExactReplayTokens();
    info.bytes_per_token = value.RowBytesPerToken().value();
    std::memcpy(info.digest, value.digest().data(), sizeof(info.digest));
    WriteStruct(info, out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_layout_get_stream(const kvstrata_layout* layout, uint32_t index, kvstrata_stream* out,
                                           kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (layout == nullptr) return base::InvalidArgument("layout", "NULL");
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    if (absl::Status status = CheckStream(layout->value, index); !status.ok()) return status;
    const auto& stream = layout->value.stream(index);
    kvstrata_stream value{};
    value.kind = static_cast<int32_t>(stream.kind);
    value.role = static_cast<int32_t>(stream.role);
    value.layer = stream.layer;
    value.ratio = stream.ratio;
    value.row_bytes = stream.row_bytes;
    value.state_rows = stream.state_rows;
    value.packing = static_cast<int32_t>(stream.packing);
    value.flags = stream.flags;
    WriteStruct(value, out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_layout_snapshot_bytes(const kvstrata_layout* layout, uint64_t position, uint64_t* out,
                                               kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (layout == nullptr) return base::InvalidArgument("layout", "NULL");
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    *out = layout->value.SnapshotBytes(position);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_layout_rows_at(const kvstrata_layout* layout, uint32_t index, uint64_t position, uint64_t* out,
                                        kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (layout == nullptr) return base::InvalidArgument("layout", "NULL");
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    if (absl::Status status = CheckStream(layout->value, index); !status.ok()) return status;
    const bool rows = layout->value.stream(index).kind == kvstrata::core::layout::StreamKind::kRows;
    *out = rows ? layout->value.OpenBlockRows(index, position) : layout->value.StateRows(index, position);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_layout_text(const kvstrata_layout* layout, char* buffer, uint64_t capacity, uint64_t* out_size,
                                     kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (layout == nullptr) return base::InvalidArgument("layout", "NULL");
    if (out_size == nullptr) return base::InvalidArgument("out_size", "NULL");
    if (buffer == nullptr && capacity > 0) return base::InvalidArgument("buffer", "NULL with a capacity");
    const std::string& text = layout->value.ToText();
    const uint64_t size = text.size() + 1;
    *out_size = size;
    if (capacity < size) {
      return base::MakeStatus(base::Code::kBufferTooSmall, "capacity",
                              std::to_string(capacity) + " < " + std::to_string(size));
    }
    std::memcpy(buffer, text.c_str(), size);
    return absl::OkStatus();
  });
}

}  // extern "C"
