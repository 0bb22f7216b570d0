// SPDX-License-Identifier: Apache-2.0
// Calls on layouts.
#include <array>
#include <string>
#include <vector>

#include "tests/fuzz/capi/session.h"

namespace kvstrata::fuzz {

std::vector<kvstrata_stream> Session::Streams(const kvstrata_layout* layout) const {
  std::vector<kvstrata_stream> out;
  auto stream = Sized<kvstrata_stream>();
  while (kvstrata_layout_get_stream(layout, static_cast<uint32_t>(out.size()), &stream, nullptr) == KVSTRATA_OK) {
    out.push_back(stream);
  }
  return out;
}

void Session::LayoutCreate() {
  std::vector<kvstrata_stream> streams(1 + in_.Below(4), Sized<kvstrata_stream>());
  for (kvstrata_stream& stream : streams) {
    stream.kind = in_.Choice({KVSTRATA_STREAM_ROWS, KVSTRATA_STREAM_STATE});
    stream.role = stream.kind == KVSTRATA_STREAM_ROWS
                      ? in_.Choice({KVSTRATA_ROLE_OTHER, KVSTRATA_ROLE_CSA_ENTRY, KVSTRATA_ROLE_KEY})
                      : in_.Choice({KVSTRATA_ROLE_WINDOW, KVSTRATA_ROLE_OPEN, KVSTRATA_ROLE_OVERLAP,
                                    KVSTRATA_ROLE_OPAQUE, KVSTRATA_ROLE_OTHER});
    stream.layer = in_.Number32(2);
    stream.ratio = in_.OneIn(3) ? 4 : in_.Number32(4);
    stream.row_bytes = stream.role == KVSTRATA_ROLE_OPAQUE ? 0 : in_.Number32(64);
    stream.state_rows = stream.kind == KVSTRATA_STREAM_ROWS ? 0 : in_.Number32(8);
    stream.packing = in_.Choice({KVSTRATA_PACKING_RAW, KVSTRATA_PACKING_RAW, KVSTRATA_PACKING_F32});
    stream.flags = in_.OneIn(4) ? in_.Number32(31) : 0;
  }
  const InputArray<kvstrata_stream> array(in_, streams);
  auto desc = Sized<kvstrata_layout_desc>();
  desc.block_tokens = in_.OneIn(2) ? 16 : in_.Number32(32);
  desc.profile = in_.Choice({0, KVSTRATA_PROFILE_F, KVSTRATA_PROFILE_Q, KVSTRATA_PROFILE_S, KVSTRATA_PROFILE_OPAQUE});
  desc.replay_mode = in_.Choice({KVSTRATA_REPLAY_NONE, KVSTRATA_REPLAY_FULL, KVSTRATA_REPLAY_BOUNDED});
  desc.replay_window = in_.Number32(8);
  desc.replay_layers = in_.Number32(3);
  desc.family = in_.OneIn(4) ? "gqa" : nullptr;
  desc.streams = array.get();
  desc.stream_count = array.count();
  desc.stream_stride = array.stride();
  const Input<kvstrata_layout_desc> input(in_, desc);
  ErrorOutput error(in_);
  kvstrata_layout* made = Stray<kvstrata_layout>();
  Take("kvstrata_layout_create", kvstrata_layout_create(input.get(), OrNull(&made), error.get()), error, made,
       layouts_);
}

void Session::LayoutNamed() {
  static constexpr std::array<const char*, 6> kNames = {"deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash",
                                                        "deepseek-v3.2",     "no such preset",  ""};
  auto options = Sized<kvstrata_preset_options>();
  options.block_tokens = in_.OneIn(4) ? in_.Number32(768) : 0;
  options.rows = in_.Choice({KVSTRATA_ROWS_PACKED, KVSTRATA_ROWS_BF16, KVSTRATA_ROWS_F32});
  options.index_keys = in_.Choice({KVSTRATA_KEYS_FP4, KVSTRATA_KEYS_FP8, KVSTRATA_KEYS_BF16, KVSTRATA_KEYS_F32});
  options.include_draft = in_.Number32(1);
  const Input<kvstrata_preset_options> input(in_, options);
  // Text of exactly its size, without an end: two of these functions are told the size.
  std::string text = in_.OneIn(2) ? R"({"model_type":"deepseek_v3"})" : "kvstrata-layout 1\n";
  for (uint64_t i = in_.Below(4); i > 0; --i) text.push_back(static_cast<char>(in_.Byte()));
  const std::vector<char> exact(text.begin(), text.end());
  const uint64_t size = in_.OneIn(16) ? (uint64_t{4} << 20) + 1 + in_.Below(9) : in_.Count(exact.size());
  ErrorOutput error(in_);
  kvstrata_layout* made = Stray<kvstrata_layout>();
  kvstrata_layout** out = OrNull(&made);
  switch (in_.Below(3)) {
    case 0: {
      const char* name = in_.OneIn(16) ? nullptr : kNames[in_.Below(kNames.size())];
      return Take("kvstrata_layout_from_preset", kvstrata_layout_from_preset(name, input.get(), out, error.get()),
                  error, made, layouts_);
    }
    case 1:
      return Take(
          "kvstrata_layout_from_config",
          kvstrata_layout_from_config(in_.OneIn(16) ? nullptr : exact.data(), size, input.get(), out, error.get()),
          error, made, layouts_);
    default:
      return Take("kvstrata_layout_from_text",
                  kvstrata_layout_from_text(in_.OneIn(16) ? nullptr : exact.data(), size, out, error.get()), error,
                  made, layouts_);
  }
}

void Session::LayoutSimple() {
  ErrorOutput error(in_);
  kvstrata_layout* made = Stray<kvstrata_layout>();
  kvstrata_layout** out = OrNull(&made);
  const uint32_t block = in_.Number32(32);
  const uint32_t layers = in_.Number32(3);
  switch (in_.Below(3)) {
    case 0:
      return Take(
          "kvstrata_layout_gqa",
          kvstrata_layout_gqa(layers, in_.Number32(2), in_.Number32(8), in_.Number32(4), block, out, error.get()),
          error, made, layouts_);
    case 1:
      return Take("kvstrata_layout_mla", kvstrata_layout_mla(layers, in_.Number32(64), block, out, error.get()), error,
                  made, layouts_);
    default:
      return Take("kvstrata_layout_opaque", kvstrata_layout_opaque(block, out, error.get()), error, made, layouts_);
  }
}

void Session::LayoutAsk() {
  const kvstrata_layout* layout = layouts_.Pick(in_);
  ErrorOutput error(in_);
  OutputArray<uint64_t> number(in_, 1, 77);
  switch (in_.Below(5)) {
    case 0: {
      OutputStruct<kvstrata_layout_info> info(in_);
      return Judge("kvstrata_layout_get_info", kvstrata_layout_get_info(layout, info.get(), error.get()), error,
                   {&info});
    }
    case 1: {
      OutputStruct<kvstrata_stream> stream(in_);
      return Judge("kvstrata_layout_get_stream",
                   kvstrata_layout_get_stream(layout, in_.Number32(4), stream.get(), error.get()), error, {&stream});
    }
    case 2:
      return Judge("kvstrata_layout_snapshot_bytes",
                   kvstrata_layout_snapshot_bytes(layout, in_.Number(300), number.get(), error.get()), error,
                   {&number});
    case 3:
      return Judge("kvstrata_layout_rows_at",
                   kvstrata_layout_rows_at(layout, in_.Number32(4), in_.Number(300), number.get(), error.get()), error,
                   {&number});
    default: {
      OutputArray<char> text(in_, in_.Below(2000), '#');
      const kvstrata_status status = kvstrata_layout_text(layout, text.get(), text.size(), number.get(), error.get());
      // The size is told then, and nothing else.
      if (status != KVSTRATA_E_BUFFER_TOO_SMALL) number.Check("kvstrata_layout_text", status == KVSTRATA_OK);
      Judge("kvstrata_layout_text", status, error, {&text});
      if (status != KVSTRATA_OK) return;
      // What one layout says of itself must make the same layout again.
      kvstrata_layout* again = nullptr;
      Promise(kvstrata_layout_from_text(text.get(), number.values()[0] - 1, &again, nullptr) == KVSTRATA_OK,
              "kvstrata_layout_text", "gave text that kvstrata_layout_from_text refuses");
      layouts_.Add(in_, again);
    }
  }
}

}  // namespace kvstrata::fuzz
