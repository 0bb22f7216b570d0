// SPDX-License-Identifier: Apache-2.0
// Layouts through the C API. Byte totals are those of the published models (per 128-token block: 449,824 bytes for
// V4-Flash, 644,024 for V4-Pro; 3,514.25 and 5,031.4375 bytes per token).
#include <cmath>
#include <string>

#include "tests/support/catch.hpp"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

kvstrata_layout_info InfoOf(const LayoutHandle& layout) {
  auto info = Sized<kvstrata_layout_info>();
  REQUIRE(kvstrata_layout_get_info(layout.get(), &info, nullptr) == KVSTRATA_OK);
  return info;
}

LayoutHandle Preset(const char* name) {
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_from_preset(name, nullptr, Out(layout), nullptr) == KVSTRATA_OK);
  return layout;
}

}  // namespace

TEST_CASE("presets have the published sizes", "[capi]") {
  const LayoutHandle flash = Preset("deepseek-v4-flash");
  kvstrata_layout_info info = InfoOf(flash);
  CHECK(info.block_tokens == 128);
  CHECK(info.block_bytes == 449'824);
  CHECK(std::abs(info.bytes_per_token - 3514.25) < 1e-9);
  CHECK(info.replay_mode == KVSTRATA_REPLAY_FULL);
  CHECK(info.exact_replay_tokens == 127 * 43);
  CHECK(info.stream_count == 2 + 21 * 7 + 20 * 3);
  uint64_t bytes = 0;
  REQUIRE(kvstrata_layout_snapshot_bytes(flash.get(), 1280, &bytes, nullptr) == KVSTRATA_OK);
  CHECK(bytes == 3'214'336 + 430'080);  // windows and overlaps
  REQUIRE(kvstrata_layout_snapshot_bytes(flash.get(), 127, &bytes, nullptr) == KVSTRATA_OK);
  CHECK(bytes == 43 * 127 * 584 + 11'479'040);  // 127 window rows a layer, and the worst open groups
  info = InfoOf(Preset("deepseek-v4-pro"));
  CHECK(info.block_bytes == 644'024);
  CHECK(std::abs(info.bytes_per_token - 5031.4375) < 1e-9);
  CHECK(info.exact_replay_tokens == 127 * 61);
  info = InfoOf(Preset("deepseek-v3.2"));
  CHECK(std::abs(info.bytes_per_token - 48'068) < 1e-9);
  CHECK(info.replay_mode == KVSTRATA_REPLAY_NONE);
  CHECK(InfoOf(Preset("deepseek-v4.1-flash")).replay_mode == KVSTRATA_REPLAY_BOUNDED);
  LayoutHandle none;
  Error error;
  CHECK(kvstrata_layout_from_preset("deepseek-v5", nullptr, Out(none), &error) == KVSTRATA_E_NOT_FOUND);
  CHECK(std::string(error.message).find("deepseek-v4-flash") != std::string::npos);
  CHECK(none == nullptr);
}

TEST_CASE("rows at a position follow the roles", "[capi]") {
  const auto flash = ModelLayout::Read(Preset("deepseek-v4-flash"));
  REQUIRE(flash != nullptr);
  for (const uint64_t position : {0u, 1u, 3u, 4u, 5u, 126u, 127u, 128u, 129u, 4095u, 4096u, 4097u}) {
    for (uint32_t i = 0; i < flash->streams.size(); ++i) {
      CAPTURE(position, i);
      uint64_t rows = 0;
      REQUIRE(kvstrata_layout_rows_at(flash->handle.get(), i, position, &rows, nullptr) == KVSTRATA_OK);
      const kvstrata_stream& stream = flash->streams[i];
      const uint64_t expected = IsRows(stream) ? position % 128 / stream.ratio : StateRowsAt(stream, position).count;
      REQUIRE(rows == expected);
    }
  }
  uint64_t rows = 0;
  CHECK(kvstrata_layout_rows_at(flash->handle.get(), 10'000, 0, &rows, nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
}

TEST_CASE("the canonical text round-trips and asks for room", "[capi]") {
  const LayoutHandle flash = Preset("deepseek-v4-flash");
  uint64_t size = 0;
  CHECK(kvstrata_layout_text(flash.get(), nullptr, 0, &size, nullptr) == KVSTRATA_E_BUFFER_TOO_SMALL);
  REQUIRE(size > 100);
  std::string text(size, '?');
  uint64_t given = 0;
  CHECK(kvstrata_layout_text(flash.get(), text.data(), size - 1, &given, nullptr) == KVSTRATA_E_BUFFER_TOO_SMALL);
  CHECK(text == std::string(size, '?'));
  REQUIRE(kvstrata_layout_text(flash.get(), text.data(), size, &given, nullptr) == KVSTRATA_OK);
  CHECK(given == size);
  CHECK(text.back() == '\0');
  text.pop_back();
  LayoutHandle again;
  REQUIRE(kvstrata_layout_from_text(text.data(), text.size(), Out(again), nullptr) == KVSTRATA_OK);
  const kvstrata_layout_info a = InfoOf(flash);
  const kvstrata_layout_info b = InfoOf(again);
  CHECK(std::string(reinterpret_cast<const char*>(a.digest), 16) ==
        std::string(reinterpret_cast<const char*>(b.digest), 16));
  text += " ";
  Error error;
  LayoutHandle broken;
  CHECK(kvstrata_layout_from_text(text.data(), text.size(), Out(broken), &error) != KVSTRATA_OK);
  CHECK(error.message[0] != '\0');
}

TEST_CASE("builders of plain attention", "[capi]") {
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_gqa(43, 8, 128, 2, 0, Out(layout), nullptr) == KVSTRATA_OK);
  CHECK(std::abs(InfoOf(layout).bytes_per_token - 176'128) < 1e-9);
  REQUIRE(kvstrata_layout_mla(61, 656, 64, Out(layout), nullptr) == KVSTRATA_OK);
  CHECK(InfoOf(layout).block_tokens == 64);
  CHECK(InfoOf(layout).block_bytes == 61 * 64 * 656);
  REQUIRE(kvstrata_layout_opaque(32, Out(layout), nullptr) == KVSTRATA_OK);
  CHECK(InfoOf(layout).block_tokens == 32);
  CHECK(InfoOf(layout).block_bytes == 0);
  LayoutHandle none;
  CHECK(kvstrata_layout_gqa(0, 8, 128, 2, 0, Out(none), nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(kvstrata_layout_mla(1, 0, 0, Out(none), nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(kvstrata_layout_opaque(769, Out(none), nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
}

TEST_CASE("a model's config.json makes the preset's layout, and a broken one an error", "[capi]") {
  LayoutHandle layout;
  Error error;
  const std::string broken = "{\"model_type\": ";
  CHECK(kvstrata_layout_from_config(broken.data(), broken.size(), nullptr, Out(layout), &error) != KVSTRATA_OK);
  CHECK(error.message[0] != '\0');
  const std::string empty = "{}";
  CHECK(kvstrata_layout_from_config(empty.data(), empty.size(), nullptr, Out(layout), &error) != KVSTRATA_OK);
  CHECK(layout == nullptr);
}

TEST_CASE("a stream that cannot be is named by its number and member", "[capi]") {
  auto streams = std::vector<kvstrata_stream>(2, Sized<kvstrata_stream>());
  for (kvstrata_stream& stream : streams) {
    stream.kind = KVSTRATA_STREAM_ROWS;
    stream.role = KVSTRATA_ROLE_KEY;
    stream.ratio = 1;
    stream.row_bytes = 64;
    stream.packing = KVSTRATA_PACKING_RAW;
  }
  streams[1].row_bytes = 0;
  auto desc = Sized<kvstrata_layout_desc>();
  desc.streams = streams.data();
  desc.stream_count = 2;
  LayoutHandle layout;
  Error error;
  CHECK(kvstrata_layout_create(&desc, Out(layout), &error) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK((std::string(error.field) + error.message).find("streams[1].row_bytes") != std::string::npos);
}

}  // namespace kvstrata::test
