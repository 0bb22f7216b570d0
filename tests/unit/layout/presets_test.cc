// SPDX-License-Identifier: Apache-2.0
// Presets and builders against the sizes that the models' reports give, as restated in the project's reference.
#include "lib/layout/presets.h"

#include <string>
#include <vector>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using namespace kvstrata::core::layout;

namespace {

Layout Get(std::string_view name, const PresetOptions& options = {}) {
  auto layout = Preset(name, options);
  INFO(layout.status().ToString());
  REQUIRE(layout.ok());
  return *layout;
}

PresetOptions With(Packing rows, Packing keys) {
  PresetOptions options;
  options.row_packing = rows;
  options.index_packing = keys;
  return options;
}

// Rows and bytes of all streams of a role.
struct RoleTotal {
  size_t streams = 0;
  uint64_t bytes = 0;
};
RoleTotal TotalAt(const Layout& layout, std::vector<Role> roles, uint64_t position) {
  RoleTotal total;
  for (size_t i = 0; i < layout.streams().size(); ++i) {
    for (const Role role : roles) {
      if (layout.stream(i).role != role || layout.stream(i).is_draft()) continue;
      ++total.streams;
      total.bytes += layout.StateBytes(i, position);
    }
  }
  return total;
}

const std::vector<Role> kCarry = {Role::kOverlap, Role::kIndexOverlap, Role::kOpen, Role::kIndexOpen};

}  // namespace

TEST_CASE("V4: global bytes per token and per block (6.2)") {
  const Layout flash = Get("deepseek-v4-flash");
  CHECK(flash.block_tokens() == 128);
  CHECK(flash.RowBytesPerToken() == BytesPerToken{14057, 4});  // 3,514.25
  CHECK(flash.BlockBytes() == 449'824);
  CHECK(flash.BlockBytes() * 8192 == 3'684'958'208);  // 1,048,576 tokens
  const Layout pro = Get("deepseek-v4-pro");
  CHECK(pro.RowBytesPerToken() == BytesPerToken{80503, 16});  // 5,031.4375
  CHECK(pro.BlockBytes() == 644'024);
  CHECK(pro.BlockBytes() * 8192 == 5'275'844'608);

  const PresetOptions fp8_keys = With(Packing::kRaw, Packing::kFp8Key132);
  CHECK(Get("deepseek-v4-flash", fp8_keys).RowBytesPerToken().value() == 3'850.25);
  CHECK(Get("deepseek-v4-pro", fp8_keys).RowBytesPerToken().value() == 5'511.4375);
  const PresetOptions bf16 = With(Packing::kBf16, Packing::kBf16);
  CHECK(Get("deepseek-v4-flash", bf16).RowBytesPerToken() == BytesPerToken{6'880, 1});
  CHECK(Get("deepseek-v4-pro", bf16).RowBytesPerToken() == BytesPerToken{9'848, 1});
}

TEST_CASE("V4: layers by kind (1.1)") {
  const Layout flash = Get("deepseek-v4-flash");
  const Layout pro = Get("deepseek-v4-pro");
  CHECK(TotalAt(flash, {Role::kCsaEntry}, 0).streams == 21);
  CHECK(TotalAt(flash, {Role::kIndexKey}, 0).streams == 21);
  CHECK(TotalAt(flash, {Role::kHcaEntry}, 0).streams == 20);
  CHECK(TotalAt(flash, {Role::kWindow}, 0).streams == 43);
  CHECK(TotalAt(pro, {Role::kCsaEntry}, 0).streams == 30);
  CHECK(TotalAt(pro, {Role::kHcaEntry}, 0).streams == 31);
  CHECK(TotalAt(pro, {Role::kWindow}, 0).streams == 61);
  CHECK(flash.Find(Role::kCsaEntry, 42).has_value());
  CHECK(flash.Find(Role::kHcaEntry, 41).has_value());
  CHECK_FALSE(flash.Find(Role::kHcaEntry, 1).has_value());
  CHECK(pro.Find(Role::kHcaEntry, 1).has_value());
  CHECK(pro.Find(Role::kCsaEntry, 60).has_value());
}

TEST_CASE("V4: windows, carry and snapshots (6.1, 8.4)") {
  const Layout flash = Get("deepseek-v4-flash");
  const Layout pro = Get("deepseek-v4-pro");
  CHECK(TotalAt(flash, {Role::kWindow}, 128).bytes == 3'214'336);
  CHECK(TotalAt(pro, {Role::kWindow}, 128).bytes == 4'559'872);
  const PresetOptions bf16 = With(Packing::kBf16, Packing::kBf16);
  CHECK(TotalAt(Get("deepseek-v4-flash", bf16), {Role::kWindow}, 128).bytes == 5'636'096);
  CHECK(TotalAt(Get("deepseek-v4-pro", bf16), {Role::kWindow}, 128).bytes == 7'995'392);
  // On the grid the open groups are empty and the overlap is not.
  CHECK(TotalAt(flash, kCarry, 128).bytes == 430'080);
  CHECK(TotalAt(pro, kCarry, 128).bytes == 614'400);
  CHECK(flash.SnapshotBytes(128) == 3'644'416);
  CHECK(pro.SnapshotBytes(128) == 5'174'272);
  // The worst position: 255 mod 4 = 3 and 255 mod 128 = 127.
  CHECK(TotalAt(flash, kCarry, 255).bytes == 11'479'040);
  CHECK(TotalAt(pro, kCarry, 255).bytes == 17'661'952);
  // Before the first group is complete there is no overlap.
  CHECK(TotalAt(flash, {Role::kOverlap, Role::kIndexOverlap}, 3).bytes == 0);
  CHECK(TotalAt(flash, {Role::kOverlap, Role::kIndexOverlap}, 4).bytes == 430'080);
  CHECK(flash.SnapshotBytes(0) == 0);
}

TEST_CASE("V4: exact replay lengths (8.1)") {
  CHECK(Get("deepseek-v4-flash").ExactReplayTokens() == 5'461);
  CHECK(Get("deepseek-v4-pro").ExactReplayTokens() == 7'747);
  CHECK(Get("deepseek-v4-flash").replay().mode == ReplayMode::kFull);
}

TEST_CASE("V4: the drafter's window is optional, not counted, 74,752 bytes packed") {
  PresetOptions options;
  options.include_draft = true;
  const Layout plain = Get("deepseek-v4-flash");
  const Layout draft = Get("deepseek-v4-flash", options);
  CHECK(draft.SnapshotBytes(128) == plain.SnapshotBytes(128));
  CHECK(draft.SnapshotBytes(128, true) == plain.SnapshotBytes(128) + 74'752);
  CHECK(draft.RowBytesPerToken() == plain.RowBytesPerToken());
  CHECK(draft.ExactReplayTokens() == 5'461);
  const auto window = draft.Find(Role::kWindow, 43, true);
  REQUIRE(window.has_value());
  CHECK((draft.stream(*window).flags & (kDraft | kOptional)) == (kDraft | kOptional));
  CHECK_FALSE(draft.digest() == plain.digest());
}

TEST_CASE("V4.1: sizes and replay rule (11.4, 11.6)") {
  const Layout layout = Get("deepseek-v4.1-flash");
  CHECK(layout.RowBytesPerToken() == BytesPerToken{890, 1});
  CHECK(layout.BlockBytes() * 8192 == 933'232'640);  // 1,048,576 tokens in blocks of 128
  CHECK(layout.block_tokens() == 128);
  CHECK(TotalAt(layout, {Role::kWindow}, 128).bytes == 2'703'360);
  uint64_t encoder = 0;
  for (uint32_t layer = 0; layer < 20; ++layer) {
    encoder += layout.StateBytes(*layout.Find(Role::kWindow, layer), 128);
  }
  CHECK(encoder == 1'351'680);
  for (const uint32_t source : {2u, 8u, 14u}) {
    CHECK(layout.StateBytes(*layout.Find(Role::kOpen, source), 127) == 4'096);
    CHECK(layout.StateBytes(*layout.Find(Role::kOpen, source), 128) == 0);
  }
  CHECK(TotalAt(layout, {Role::kOpen}, 0).streams == 3);
  CHECK(TotalAt(layout, {Role::kCsaEntry}, 0).streams == 4);
  CHECK(layout.stream(*layout.Find(Role::kIndexKey, 20)).ratio == 1);
  CHECK(layout.replay() == Replay{ReplayMode::kBounded, 128, 40});
  CHECK(layout.BoundedReplayTokens() == 128);
}

TEST_CASE("V3.2 and GQA: the baselines (6.3)") {
  const Layout v32 = Get("deepseek-v3.2");
  CHECK(v32.RowBytesPerToken() == BytesPerToken{48'068, 1});
  CHECK(Get("deepseek-v3.2", With(Packing::kBf16, Packing::kBf16)).RowBytesPerToken() == BytesPerToken{85'888, 1});
  CHECK_FALSE(v32.has_required_state());
  CHECK(v32.replay().mode == ReplayMode::kNone);
  CHECK(v32.SnapshotBytes(1000) == 0);

  GqaOptions gqa;
  gqa.layers = 43;
  gqa.kv_heads = 8;
  gqa.head_dim = 128;
  CHECK(GqaLayout(gqa)->RowBytesPerToken() == BytesPerToken{176'128, 1});
  gqa.layers = 61;
  CHECK(GqaLayout(gqa)->RowBytesPerToken() == BytesPerToken{249'856, 1});
  CHECK(GqaLayout(gqa)->block_tokens() == 128);
  CHECK_FALSE(GqaLayout(gqa)->has_split());
  gqa.split = true;
  CHECK(GqaLayout(gqa)->has_split());
}

TEST_CASE("GQA with window layers: K and V of a window side by side, replay over those layers") {
  const uint32_t windowed[] = {0, 2};
  GqaOptions gqa;
  gqa.layers = 4;
  gqa.kv_heads = 2;
  gqa.head_dim = 16;
  gqa.window_layers = windowed;
  gqa.window = 32;
  const auto layout = GqaLayout(gqa);
  REQUIRE(layout.ok());
  CHECK(layout->RowBytesPerToken() == BytesPerToken{2 * 2 * 64, 1});
  CHECK(layout->SnapshotBytes(100) == 2 * 32 * 128);
  CHECK(layout->ExactReplayTokens() == 62);
  gqa.window = 0;
  CHECK_FALSE(GqaLayout(gqa).ok());
}

TEST_CASE("MLA: one latent row per token and layer") {
  MlaOptions mla;
  mla.layers = 61;
  CHECK(MlaLayout(mla)->RowBytesPerToken() == BytesPerToken{61 * 576 * 2, 1});
  mla.packing = Packing::kF32;
  CHECK(base::FieldOf(MlaLayout(mla).status()) == "bytes_per_element");
}

TEST_CASE("a small V4-style model gets its own layout") {
  const uint32_t ratios[] = {0, 4, 16, 4};
  HybridOptions options;
  options.ratios = ratios;
  options.width = 32;
  options.index_width = 16;
  options.window = 8;
  options.row_packing = Packing::kF32;
  options.index_packing = Packing::kF32;
  const auto layout = HybridLayout(options);
  REQUIRE(layout.ok());
  CHECK(layout->profile() == Profile::kF);
  CHECK(layout->block_tokens() == 16);
  CHECK(layout->ExactReplayTokens() == 28);
  CHECK(layout->BlockBytes() == 2 * 4 * (128 + 64) + 128);
  // At 19: windows 4 x 8 rows, CSA overlap 4 rows and 3 open rows of both compressors, HCA 3 open rows.
  CHECK(layout->SnapshotBytes(19) ==
        4 * 8 * 128 + 2 * (4 * 2 * (32 + 16) * 4 + 3 * 4 * (32 + 16) * 4) + 3 * 2 * 32 * 4);
}

TEST_CASE("profiles follow the packings") {
  CHECK(Get("deepseek-v4-flash").profile() == Profile::kS);
  CHECK(Get("deepseek-v4-flash", With(Packing::kBf16, Packing::kBf16)).profile() == Profile::kQ);
  CHECK(Get("deepseek-v4-flash", With(Packing::kF32, Packing::kF32)).profile() == Profile::kF);
  CHECK(OpaqueLayout()->profile() == Profile::kOpaque);
}

TEST_CASE("block_tokens may be overridden by a multiple of the lcm") {
  PresetOptions options;
  options.block_tokens = 256;
  CHECK(Get("deepseek-v4-flash", options).BlockBytes() == 2 * 449'824);
  options.block_tokens = 64;
  CHECK(base::FieldOf(Preset("deepseek-v4-flash", options).status()) == "block_tokens");
  CHECK(Get("deepseek-v4.1-flash", options).block_tokens() == 64);
}

TEST_CASE("builders refuse what cannot be, by name") {
  CHECK(base::CodeOf(Preset("deepseek-v5").status()) == base::Code::kUnsupported);
  CHECK(base::FieldOf(Preset("deepseek-v4-pro", With(Packing::kFp4Key68, Packing::kRaw)).status()) == "row_packing");
  CHECK(base::FieldOf(Preset("deepseek-v4-pro", With(Packing::kFp8Row656, Packing::kRaw)).status()) == "row_packing");
  CHECK(base::FieldOf(Preset("deepseek-v4-pro", With(Packing::kRaw, Packing::kFp8Row584)).status()) == "index_packing");
  CHECK(base::FieldOf(GqaLayout({}).status()) == "layers");
  GqaOptions gqa;
  gqa.layers = 1;
  gqa.kv_heads = 1u << 17;
  gqa.head_dim = 1u << 17;
  CHECK(base::FieldOf(GqaLayout(gqa).status()) == "row_bytes");
  const uint32_t ratios[] = {0, 2, 1};
  const uint32_t sources[] = {1};
  SharedSourceOptions shared;
  shared.ratios = ratios;
  shared.sources = sources;
  CHECK(base::FieldOf(SharedSourceLayout(shared).status()) == "ratios[2]");
  const uint32_t wrong[] = {0, 1, 2};
  shared.sources = wrong;
  CHECK(base::FieldOf(SharedSourceLayout(shared).status()) == "sources[0]");
}
