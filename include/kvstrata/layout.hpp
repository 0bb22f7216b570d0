// SPDX-License-Identifier: Apache-2.0
// kvstrata/layout.hpp - what one model stores: streams, block size, replay rule. C++17, header-only.
//
// Thread rule: a layout never changes and may be used by any thread at any time; a builder belongs to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvstrata/c_api.h"
#include "kvstrata/handle.hpp"
#include "kvstrata/result.hpp"

namespace kvstrata {
inline namespace v1 {

enum class role : std::int32_t {
  csa_entry = KVSTRATA_ROLE_CSA_ENTRY,
  index_key = KVSTRATA_ROLE_INDEX_KEY,
  hca_entry = KVSTRATA_ROLE_HCA_ENTRY,
  window = KVSTRATA_ROLE_WINDOW,
  overlap = KVSTRATA_ROLE_OVERLAP,
  open = KVSTRATA_ROLE_OPEN,
  index_overlap = KVSTRATA_ROLE_INDEX_OVERLAP,
  index_open = KVSTRATA_ROLE_INDEX_OPEN,
  opaque = KVSTRATA_ROLE_OPAQUE,
  key = KVSTRATA_ROLE_KEY,
  value = KVSTRATA_ROLE_VALUE,
  latent = KVSTRATA_ROLE_LATENT,
  other = KVSTRATA_ROLE_OTHER
};

enum class packing : std::int32_t {
  raw = KVSTRATA_PACKING_RAW,
  f32 = KVSTRATA_PACKING_F32,
  bf16 = KVSTRATA_PACKING_BF16,
  f16 = KVSTRATA_PACKING_F16,
  fp8_row_584 = KVSTRATA_PACKING_FP8_ROW_584,
  fp8_row_528 = KVSTRATA_PACKING_FP8_ROW_528,
  fp4_row_288 = KVSTRATA_PACKING_FP4_ROW_288,
  fp8_key_132 = KVSTRATA_PACKING_FP8_KEY_132,
  fp4_key_68 = KVSTRATA_PACKING_FP4_KEY_68,
  fp8_row_656 = KVSTRATA_PACKING_FP8_ROW_656
};

enum class profile : std::int32_t {
  f = KVSTRATA_PROFILE_F,
  q = KVSTRATA_PROFILE_Q,
  s = KVSTRATA_PROFILE_S,
  opaque = KVSTRATA_PROFILE_OPAQUE
};

enum class replay_mode : std::int32_t {
  none = KVSTRATA_REPLAY_NONE,
  full = KVSTRATA_REPLAY_FULL,
  bounded = KVSTRATA_REPLAY_BOUNDED
};

/// How the presets pack rows and index keys; zero is the model's own way.
struct preset_options {
  std::uint32_t block_tokens = 0;  ///< 0 = the preset's own
  std::int32_t rows = KVSTRATA_ROWS_PACKED;
  std::int32_t index_keys = KVSTRATA_KEYS_FP4;
  bool include_draft = false;

  kvstrata_preset_options to_c() const noexcept {
    auto out = detail::sized<kvstrata_preset_options>();
    out.block_tokens = block_tokens;
    out.rows = rows;
    out.index_keys = index_keys;
    out.include_draft = include_draft ? 1 : 0;
    return out;
  }
};

using stream_info = kvstrata_stream;
using layout_info = kvstrata_layout_info;

struct layout_traits {
  using pointer = kvstrata_layout*;
  static void destroy(pointer layout) noexcept { kvstrata_layout_destroy(layout); }
};

/// Immutable description of what a model stores. Made by layout_builder or by one of the functions here.
class layout : public handle<layout_traits> {
 public:
  using handle::handle;

  /// "deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash", "deepseek-v3.2"; else errc::not_found.
  static result<layout> from_preset(const char* name, const preset_options& options = {}) {
    const kvstrata_preset_options c = options.to_c();
    return make(
        [&](kvstrata_layout** out, kvstrata_error* e) { return kvstrata_layout_from_preset(name, &c, out, e); });
  }
  /// From the text of a model's Hugging Face config.json.
  static result<layout> from_config(std::string_view json, const preset_options& options = {}) {
    const kvstrata_preset_options c = options.to_c();
    return make([&](kvstrata_layout** out, kvstrata_error* e) {
      return kvstrata_layout_from_config(json.data(), json.size(), &c, out, e);
    });
  }
  /// From the canonical text that text() gives.
  static result<layout> from_text(std::string_view text) {
    return make([&](kvstrata_layout** out, kvstrata_error* e) {
      return kvstrata_layout_from_text(text.data(), text.size(), out, e);
    });
  }
  /// Grouped-query or multi-head attention; element_bytes of one K or V number; block_tokens 0 = default.
  static result<layout> gqa(std::uint32_t layers, std::uint32_t kv_heads, std::uint32_t head_dim,
                            std::uint32_t element_bytes, std::uint32_t block_tokens = 0) {
    return make([&](kvstrata_layout** out, kvstrata_error* e) {
      return kvstrata_layout_gqa(layers, kv_heads, head_dim, element_bytes, block_tokens, out, e);
    });
  }
  /// Multi-head latent attention: one row of row_bytes per token and layer.
  static result<layout> mla(std::uint32_t layers, std::uint32_t row_bytes, std::uint32_t block_tokens = 0) {
    return make([&](kvstrata_layout** out, kvstrata_error* e) {
      return kvstrata_layout_mla(layers, row_bytes, block_tokens, out, e);
    });
  }
  /// An engine that only hands out its whole state as bytes, of any size at each snapshot.
  static result<layout> opaque(std::uint32_t block_tokens = 0) {
    return make([&](kvstrata_layout** out, kvstrata_error* e) { return kvstrata_layout_opaque(block_tokens, out, e); });
  }

  result<layout_info> info() const {
    auto out = detail::sized<layout_info>();
    error failure;
    if (auto done = detail::check(kvstrata_layout_get_info(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  result<stream_info> stream(std::uint32_t index) const {
    auto out = detail::sized<stream_info>();
    error failure;
    if (auto done = detail::check(kvstrata_layout_get_stream(get(), index, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// Bytes of all state streams at `position`; draft layers and streams of variable size are left out.
  result<std::uint64_t> snapshot_bytes(std::uint64_t position) const {
    std::uint64_t out = 0;
    error failure;
    if (auto done = detail::check(kvstrata_layout_snapshot_bytes(get(), position, &out, failure.c_error()), failure);
        !done) {
      return done.error();
    }
    return out;
  }
  /// Rows of stream `index` at `position`; of a rows stream those that are complete since the last block boundary.
  result<std::uint64_t> rows_at(std::uint32_t index, std::uint64_t position) const {
    std::uint64_t out = 0;
    error failure;
    if (auto done = detail::check(kvstrata_layout_rows_at(get(), index, position, &out, failure.c_error()), failure);
        !done) {
      return done.error();
    }
    return out;
  }
  /// The canonical text; equal texts are equal layouts.
  result<std::string> text() const {
    error failure;
    std::uint64_t size = 0;
    kvstrata_status status = kvstrata_layout_text(get(), nullptr, 0, &size, failure.c_error());
    if (status != KVSTRATA_OK && status != KVSTRATA_E_BUFFER_TOO_SMALL) return failure.with_code(status);
    std::string out(static_cast<std::size_t>(size), '\0');  // size counts the final 0
    status = kvstrata_layout_text(get(), out.data(), size, &size, failure.c_error());
    if (status != KVSTRATA_OK) return failure.with_code(status);
    out.resize(static_cast<std::size_t>(size) - 1);
    return out;
  }

 private:
  template <class Make>
  static result<layout> make(Make&& create) {
    kvstrata_layout* out = nullptr;
    error failure;
    if (auto done = detail::check(create(&out, failure.c_error()), failure); !done) return done.error();
    return layout(out);
  }
};

/// Collects streams; stream n of the layout is the n-th one added.
class layout_builder {
 public:
  /// Tokens per block, a multiple of every ratio; 0 = the least one.
  layout_builder& block_tokens(std::uint32_t tokens) noexcept {
    desc_.block_tokens = tokens;
    return *this;
  }
  layout_builder& numeric_profile(profile value) noexcept {
    desc_.profile = static_cast<std::int32_t>(value);
    return *this;
  }
  /// Decides which names an identity must have: "deepseek-v4", "custom" (the default), ...
  layout_builder& family(std::string name) {
    family_ = std::move(name);
    return *this;
  }
  /// `window` tokens counting the query itself; `layers` whose windows depend on each other.
  layout_builder& replay(replay_mode mode, std::uint32_t window, std::uint32_t layers) noexcept {
    desc_.replay_mode = static_cast<std::int32_t>(mode);
    desc_.replay_window = window;
    desc_.replay_layers = layers;
    return *this;
  }
  /// A stream with one row of row_bytes per `ratio` tokens.
  layout_builder& rows(role what, std::uint32_t layer, std::uint32_t ratio, std::uint32_t row_bytes,
                       packing pack = packing::raw, std::uint32_t flags = 0) {
    return add(KVSTRATA_STREAM_ROWS, what, layer, ratio, row_bytes, 0, pack, flags);
  }
  /// A stream that describes one position; `ratio` is the group size of OVERLAP and OPEN roles, else 1.
  layout_builder& state(role what, std::uint32_t layer, std::uint32_t ratio, std::uint32_t row_bytes,
                        std::uint32_t state_rows, packing pack = packing::raw, std::uint32_t flags = 0) {
    return add(KVSTRATA_STREAM_STATE, what, layer, ratio, row_bytes, state_rows, pack, flags);
  }
  /// The last `window_rows` rows of a sliding window.
  layout_builder& window(std::uint32_t layer, std::uint32_t window_rows, std::uint32_t row_bytes,
                         packing pack = packing::raw, std::uint32_t flags = 0) {
    return add(KVSTRATA_STREAM_STATE, role::window, layer, 1, row_bytes, window_rows, pack, flags);
  }
  layout_builder& stream(const kvstrata_stream& any) {
    streams_.push_back(any);
    streams_.back().struct_size = sizeof(kvstrata_stream);
    return *this;
  }

  /// How many streams there are; the next one added gets this number.
  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(streams_.size()); }

  /// Checks everything; the error names the stream and its member.
  result<layout> build() const {
    kvstrata_layout_desc desc = desc_;
    desc.struct_size = sizeof desc;
    desc.family = family_.empty() ? nullptr : family_.c_str();
    desc.streams = streams_.data();
    desc.stream_count = streams_.size();
    kvstrata_layout* out = nullptr;
    error failure;
    if (auto done = detail::check(kvstrata_layout_create(&desc, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return layout(out);
  }

 private:
  layout_builder& add(std::int32_t kind, role what, std::uint32_t layer, std::uint32_t ratio, std::uint32_t row_bytes,
                      std::uint32_t state_rows, packing pack, std::uint32_t flags) {
    auto out = detail::sized<kvstrata_stream>();
    out.kind = kind;
    out.role = static_cast<std::int32_t>(what);
    out.layer = layer;
    out.ratio = ratio;
    out.row_bytes = row_bytes;
    out.state_rows = state_rows;
    out.packing = static_cast<std::int32_t>(pack);
    out.flags = flags;
    streams_.push_back(out);
    return *this;
  }

  kvstrata_layout_desc desc_{};
  std::string family_;
  std::vector<kvstrata_stream> streams_;
};

}  // namespace v1
}  // namespace kvstrata
