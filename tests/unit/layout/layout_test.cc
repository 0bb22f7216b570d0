// SPDX-License-Identifier: Apache-2.0
// Validation and arithmetic of layouts.
#include "lib/layout/layout.h"

#include <functional>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/layout/presets.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using namespace kvstrata::core::layout;

namespace {

// One stream of each shape: 0 rows of ratio 4, 1 window, 2 overlap, 3 open, 4 rows of ratio 1.
LayoutDesc SmallDesc() {
  LayoutDesc desc;
  desc.streams = {
      {StreamKind::kRows, Role::kCsaEntry, 2, 4, 584, 0, Packing::kFp8Row584, kExact},
      {StreamKind::kState, Role::kWindow, 2, 0, 64, 8, Packing::kBf16, kExact},
      {StreamKind::kState, Role::kOverlap, 2, 4, 128, 0, Packing::kF32, kExact},
      {StreamKind::kState, Role::kOpen, 2, 4, 256, 0, Packing::kF32, kExact},
      {StreamKind::kRows, Role::kKey, 3, 1, 10, 0, Packing::kRaw, 0},
  };
  desc.replay = {ReplayMode::kFull, 8, 3};
  return desc;
}

Layout Make(LayoutDesc desc) {
  auto layout = Layout::Create(std::move(desc));
  INFO(layout.status().ToString());
  REQUIRE(layout.ok());
  return *layout;
}

}  // namespace

TEST_CASE("block_tokens 0 is the lcm of the ratios, or 128 without any") {
  CHECK(Make(SmallDesc()).block_tokens() == 4);
  LayoutDesc desc = SmallDesc();
  desc.streams[4].ratio = 6;
  CHECK(Make(desc).block_tokens() == 12);
  CHECK(OpaqueLayout()->block_tokens() == 128);
}

TEST_CASE("rows and bytes of a stream follow from ratio and position") {
  LayoutDesc desc = SmallDesc();
  desc.block_tokens = 16;
  const Layout layout = Make(desc);
  CHECK(layout.BlockRows(0) == 4);
  CHECK(layout.BlockRows(4) == 16);
  CHECK(layout.BlockRows(1) == 0);
  CHECK(layout.StreamBlockBytes(0) == 4 * 584);
  CHECK(layout.BlockBytes() == 4 * 584 + 16 * 10);
  CHECK(layout.RowBytesPerToken() == BytesPerToken{156, 1});
  for (uint64_t position : {0u, 1u, 3u, 4u, 5u, 7u, 8u, 9u, 15u, 16u, 17u, 1000u}) {
    CAPTURE(position);
    CHECK(layout.StateRows(0, position) == 0);
    CHECK(layout.StateRows(1, position) == (position < 8 ? position : 8));
    CHECK(layout.StateRows(2, position) == (position < 4 ? 0 : 4));
    CHECK(layout.StateRows(3, position) == position % 4);
    CHECK(layout.OpenBlockRows(0, position) == position % 16 / 4);
    CHECK(layout.OpenBlockRows(4, position) == position % 16);
    CHECK(layout.OpenBlockRows(1, position) == 0);
    CHECK(layout.SnapshotBytes(position) ==
          layout.StateRows(1, position) * 64 + layout.StateRows(2, position) * 128 + position % 4 * 256);
    CHECK(layout.OpenBlockBytes(position) == position % 16 / 4 * 584 + position % 16 * 10);
  }
  CHECK(layout.StateRows(1, uint64_t{1} << 40) == 8);
}

TEST_CASE("a rate that is no whole number stays exact") {
  LayoutDesc desc = SmallDesc();
  desc.streams = {{StreamKind::kRows, Role::kHcaEntry, 0, 128, 584, 0, Packing::kFp8Row584, 0}};
  const BytesPerToken rate = Make(desc).RowBytesPerToken();
  CHECK(rate == BytesPerToken{73, 16});  // 584 / 128 in lowest terms
  CHECK(rate.value() == 4.5625);
}

TEST_CASE("what follows from role and ratio may be left out, and is filled in") {
  const Layout layout = Make(SmallDesc());
  CHECK(layout.stream(1).ratio == 1);
  CHECK(layout.stream(2).state_rows == 4);
  CHECK(layout.stream(3).state_rows == 3);
  CHECK(OpaqueLayout()->stream(0).state_rows == 1);
  LayoutDesc given = SmallDesc();
  given.streams[1].ratio = 1;
  given.streams[2].state_rows = 4;
  given.streams[3].state_rows = 3;
  CHECK(Make(given) == layout);
  given.streams[3].state_rows = 4;  // the open group's buffer
  CHECK(Make(given) == layout);
}

TEST_CASE("replay lengths") {
  const Layout layout = Make(SmallDesc());
  CHECK(layout.ExactReplayTokens() == 21);
  CHECK(layout.BoundedReplayTokens() == 0);
  LayoutDesc desc = SmallDesc();
  desc.replay.mode = ReplayMode::kBounded;
  CHECK(Make(desc).BoundedReplayTokens() == 8);
  CHECK(Make(desc).ExactReplayTokens() == 21);
  desc.replay = {};
  CHECK(Make(desc).ExactReplayTokens() == 0);
}

TEST_CASE("an opaque state has a size per snapshot") {
  const auto layout = OpaqueLayout(64);
  REQUIRE(layout.ok());
  CHECK(layout->has_variable_state());
  CHECK(layout->has_required_state());
  CHECK_FALSE(layout->has_rows());
  CHECK(layout->StateRows(0, 77) == 1);
  CHECK(layout->StateBytes(0, 77) == 0);
  CHECK(layout->SnapshotBytes(77) == 0);
  CHECK(layout->BlockBytes() == 0);
  CHECK(layout->block_tokens() == 64);
}

TEST_CASE("streams are found by role, layer and draft") {
  const Layout layout = Make(SmallDesc());
  CHECK(layout.Find(Role::kOpen, 2) == 3);
  CHECK(layout.Find(Role::kKey, 3) == 4);
  CHECK_FALSE(layout.Find(Role::kKey, 2).has_value());
  CHECK_FALSE(layout.Find(Role::kKey, 3, true).has_value());
}

TEST_CASE("each invalid field is refused by name and value") {
  struct Case {
    std::string field;
    std::string value;  // must appear in the message
    std::function<void(LayoutDesc&)> change;
  };
  const std::vector<Case> cases = {
      {"family", "deepseek-v9", [](LayoutDesc& d) { d.family = "deepseek-v9"; }},
      {"profile", "9", [](LayoutDesc& d) { d.profile = static_cast<Profile>(9); }},
      {"streams", "0 streams", [](LayoutDesc& d) { d.streams.clear(); }},
      {"streams", "4097", [](LayoutDesc& d) { d.streams.resize(4097, d.streams[0]); }},
      {"streams[0].kind", "7", [](LayoutDesc& d) { d.streams[0].kind = static_cast<StreamKind>(7); }},
      {"streams[0].kind", "state", [](LayoutDesc& d) { d.streams[0].kind = StreamKind::kState; }},
      {"streams[1].kind", "rows", [](LayoutDesc& d) { d.streams[1].kind = StreamKind::kRows; }},
      {"streams[3].role", "4", [](LayoutDesc& d) { d.streams[3].role = static_cast<Role>(4); }},
      {"streams[4].packing", "77", [](LayoutDesc& d) { d.streams[4].packing = static_cast<Packing>(77); }},
      {"streams[4].layer", "65536", [](LayoutDesc& d) { d.streams[4].layer = 65536; }},
      {"streams[4].flags", "32", [](LayoutDesc& d) { d.streams[4].flags = 32; }},
      {"streams[4].flags", "24", [](LayoutDesc& d) { d.streams[4].flags = kReplicated | kSplit; }},
      {"streams[4].row_bytes", "1048577", [](LayoutDesc& d) { d.streams[4].row_bytes = (1u << 20) + 1; }},
      {"streams[4].row_bytes", "0", [](LayoutDesc& d) { d.streams[4].row_bytes = 0; }},
      {"streams[0].row_bytes", "583", [](LayoutDesc& d) { d.streams[0].row_bytes = 583; }},
      {"streams[1].row_bytes", "63", [](LayoutDesc& d) { d.streams[1].row_bytes = 63; }},
      {"streams[2].row_bytes", "130", [](LayoutDesc& d) { d.streams[2].row_bytes = 130; }},
      {"streams[0].ratio", "0", [](LayoutDesc& d) { d.streams[0].ratio = 0; }},
      {"streams[0].ratio", "769", [](LayoutDesc& d) { d.streams[0].ratio = 769; }},
      {"streams[1].ratio", "2", [](LayoutDesc& d) { d.streams[1].ratio = 2; }},
      {"streams[3].ratio", "1", [](LayoutDesc& d) { d.streams[3].ratio = 1; }},
      {"streams[0].state_rows", "1", [](LayoutDesc& d) { d.streams[0].state_rows = 1; }},
      {"streams[1].state_rows", "0", [](LayoutDesc& d) { d.streams[1].state_rows = 0; }},
      {"streams[1].state_rows", "1048577", [](LayoutDesc& d) { d.streams[1].state_rows = (1u << 20) + 1; }},
      {"streams[2].state_rows", "5", [](LayoutDesc& d) { d.streams[2].state_rows = 5; }},
      {"streams[3].state_rows", "5", [](LayoutDesc& d) { d.streams[3].state_rows = 5; }},
      {"streams[3].state_rows", "2", [](LayoutDesc& d) { d.streams[3].state_rows = 2; }},
      {"streams[5].role", "key", [](LayoutDesc& d) { d.streams.push_back(d.streams[4]); }},
      {"block_tokens", "769", [](LayoutDesc& d) { d.block_tokens = 769; }},
      {"block_tokens", "4294967295", [](LayoutDesc& d) { d.block_tokens = 4294967295u; }},
      {"block_tokens", "6", [](LayoutDesc& d) { d.block_tokens = 6; }},
      {"block_tokens", "768",
       [](LayoutDesc& d) {  // lcm(4, 767) = 3068
         d.streams[4].ratio = 767;
       }},
      {"replay.mode", "5", [](LayoutDesc& d) { d.replay.mode = static_cast<ReplayMode>(5); }},
      {"replay.window", "0", [](LayoutDesc& d) { d.replay.window = 0; }},
      {"replay.window", "1048577", [](LayoutDesc& d) { d.replay.window = (1u << 20) + 1; }},
      {"replay.window", "8", [](LayoutDesc& d) { d.replay.mode = ReplayMode::kNone; }},
      {"replay.layers", "0", [](LayoutDesc& d) { d.replay.layers = 0; }},
      {"replay.layers", "65537", [](LayoutDesc& d) { d.replay.layers = 65537; }},
      {"replay.layers", "3",
       [](LayoutDesc& d) {
         d.replay = {ReplayMode::kNone, 0, 3};
       }},
  };
  for (const Case& test : cases) {
    CAPTURE(test.field, test.value);
    LayoutDesc desc = SmallDesc();
    test.change(desc);
    const auto layout = Layout::Create(desc);
    REQUIRE_FALSE(layout.ok());
    CHECK(base::CodeOf(layout.status()) == base::Code::kInvalidArgument);
    CHECK(base::FieldOf(layout.status()) == test.field);
    CHECK(std::string(layout.status().message()).find(test.value) != std::string::npos);
  }
}

TEST_CASE("state of varying size must be raw opaque bytes without a row count") {
  LayoutDesc desc;
  desc.streams = {{StreamKind::kState, Role::kOpaque, 0, 0, 0, 0, Packing::kBf16, 0}};
  CHECK(base::FieldOf(Layout::Create(desc).status()) == "streams[0].packing");
  desc.streams[0].packing = Packing::kRaw;
  desc.streams[0].state_rows = 2;
  CHECK(base::FieldOf(Layout::Create(desc).status()) == "streams[0].state_rows");
}

TEST_CASE("the largest layout does not overflow") {
  LayoutDesc desc;
  for (uint32_t layer = 0; layer < kMaxStreams; ++layer) {
    desc.streams.push_back(
        {StreamKind::kState, Role::kWindow, layer, 0, kMaxRowBytes, kMaxStateRows, Packing::kRaw, 0});
  }
  CHECK(Make(desc).SnapshotBytes(~uint64_t{0}) == uint64_t{1} << 52);
}

TEST_CASE("a draft twin is a stream of its own and counts only when asked for") {
  LayoutDesc desc = SmallDesc();
  desc.streams.push_back(desc.streams[4]);
  desc.streams[5].flags = kDraft | kOptional;
  desc.streams.push_back(desc.streams[1]);
  desc.streams[6].flags = kDraft | kOptional;
  const Layout layout = Make(desc);
  CHECK(layout.Find(Role::kKey, 3, true) == 5);
  CHECK(layout.BlockBytes(true) == layout.BlockBytes() + 4 * 10);
  CHECK(layout.SnapshotBytes(100, true) == layout.SnapshotBytes(100) + 8 * 64);
  CHECK(layout.OpenBlockBytes(3, true) == layout.OpenBlockBytes(3) + 3 * 10);
}

TEST_CASE("two layouts that differ say in which fields (K13, R12)") {
  LayoutDesc desc = SmallDesc();
  desc.block_tokens = 128;
  const Layout stored = Make(desc);
  CHECK(DescribeDifference(stored, stored).empty());
  desc.block_tokens = 256;
  CHECK(DescribeDifference(stored, Make(desc)) == std::vector<std::string>{"block_tokens: stored 128, given 256"});
  desc.block_tokens = 128;
  desc.streams[4].row_bytes = 12;
  desc.streams[4].flags = kExact | kSplit;
  CHECK(DescribeDifference(stored, Make(desc)) ==
        std::vector<std::string>{"streams[4].row_bytes: stored 10, given 12",
                                 "streams[4].flags: stored -, given exact+split"});
}

TEST_CASE("every field of the descriptor changes the digest (K13, I14)") {
  const Layout layout = Make(SmallDesc());
  const std::vector<std::function<void(LayoutDesc&)>> changes = {
      [](LayoutDesc& d) { d.family = "gqa"; },
      [](LayoutDesc& d) { d.profile = Profile::kF; },
      [](LayoutDesc& d) { d.block_tokens = 8; },
      [](LayoutDesc& d) { d.replay.mode = ReplayMode::kBounded; },
      [](LayoutDesc& d) { d.replay.window = 9; },
      [](LayoutDesc& d) { d.replay.layers = 4; },
      [](LayoutDesc& d) { d.streams[0].role = Role::kHcaEntry; },
      [](LayoutDesc& d) { d.streams[0].layer = 4; },
      [](LayoutDesc& d) { d.streams[0].ratio = 2; },
      [](LayoutDesc& d) { d.streams[0].packing = Packing::kBf16; },  // the same 584 bytes of another type
      [](LayoutDesc& d) { d.streams[4].row_bytes = 11; },
      [](LayoutDesc& d) { d.streams[1].state_rows = 9; },
      [](LayoutDesc& d) { d.streams[4].flags = kReplicated; },
      [](LayoutDesc& d) { std::swap(d.streams[0], d.streams[4]); },
      [](LayoutDesc& d) { d.streams.pop_back(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    LayoutDesc desc = SmallDesc();
    changes[i](desc);
    const Layout changed = Make(desc);
    CHECK(changed.digest() != layout.digest());
    CHECK_FALSE(changed == layout);
    CHECK_FALSE(DescribeDifference(layout, changed).empty());
  }
}

TEST_CASE("many differences are counted, not all listed") {
  const auto packed = Preset("deepseek-v4-flash");
  PresetOptions options;
  options.row_packing = Packing::kBf16;
  const auto wide = Preset("deepseek-v4-flash", options);
  REQUIRE((packed.ok() && wide.ok()));
  const auto lines = DescribeDifference(*packed, *wide);
  CHECK(lines.size() == kMaxDifferences);
  // 43 windows, 21 CSA and 20 HCA streams differ in row_bytes and packing: 168 fields.
  CHECK(lines.back() == "and 153 more");
}
