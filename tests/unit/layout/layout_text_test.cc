// SPDX-License-Identifier: Apache-2.0
// The canonical text: round trips, the exact bytes, and what a strict parser must refuse.
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/layout/layout.h"
#include "lib/layout/presets.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using namespace kvstrata::core::layout;

namespace {

constexpr char kGolden[] =
    "kvstrata-layout 1\n"
    "family deepseek-v4\n"
    "profile f\n"
    "block_tokens 16\n"
    "replay full window 8 layers 3\n"
    "streams 11\n"
    "stream 0 state window layer 0 ratio 1 row_bytes 128 state_rows 8 packing f32 flags exact+replicated\n"
    "stream 1 rows csa_entry layer 1 ratio 4 row_bytes 128 state_rows 0 packing f32 flags exact+replicated\n"
    "stream 2 rows index_key layer 1 ratio 4 row_bytes 64 state_rows 0 packing f32 flags exact+replicated\n"
    "stream 3 state window layer 1 ratio 1 row_bytes 128 state_rows 8 packing f32 flags exact+replicated\n"
    "stream 4 state overlap layer 1 ratio 4 row_bytes 256 state_rows 4 packing f32 flags exact+replicated\n"
    "stream 5 state index_overlap layer 1 ratio 4 row_bytes 128 state_rows 4 packing f32 flags exact+replicated\n"
    "stream 6 state open layer 1 ratio 4 row_bytes 512 state_rows 3 packing f32 flags exact+replicated\n"
    "stream 7 state index_open layer 1 ratio 4 row_bytes 256 state_rows 3 packing f32 flags exact+replicated\n"
    "stream 8 rows hca_entry layer 2 ratio 16 row_bytes 128 state_rows 0 packing f32 flags exact+replicated\n"
    "stream 9 state window layer 2 ratio 1 row_bytes 128 state_rows 8 packing f32 flags exact+replicated\n"
    "stream 10 state open layer 2 ratio 16 row_bytes 256 state_rows 15 packing f32 flags exact+replicated\n"
    "end\n";

Layout Tiny() {
  const uint32_t ratios[] = {0, 4, 16};
  HybridOptions options;
  options.ratios = ratios;
  options.width = 32;
  options.index_width = 16;
  options.window = 8;
  options.row_packing = Packing::kF32;
  options.index_packing = Packing::kF32;
  return HybridLayout(options).value();
}

std::vector<Layout> Samples() {
  std::vector<Layout> samples = {Tiny(), OpaqueLayout().value()};
  for (const std::string_view name : PresetNames()) {
    for (const Packing packing : {Packing::kRaw, Packing::kBf16, Packing::kF32}) {
      for (const bool draft : {false, true}) {
        samples.push_back(Preset(name, {packing, packing, 256, draft}).value());
      }
    }
  }
  GqaOptions gqa;
  gqa.layers = 2;
  gqa.kv_heads = 2;
  gqa.head_dim = 8;
  gqa.split = true;
  samples.push_back(GqaLayout(gqa).value());
  samples.push_back(MlaLayout({.layers = 3}).value());
  return samples;
}

// Whatever the bytes: an error, or a layout whose text they are.
void CheckStrict(const std::string& text) {
  const auto layout = Layout::FromText(text);
  if (layout.ok() && layout->ToText() == text) return;
  if (!layout.ok()) {
    const base::Code code = base::CodeOf(layout.status());
    const bool named = std::string(layout.status().message()).find("line ") != std::string::npos;
    if (named && (code == base::Code::kCorrupt || code == base::Code::kFormatTooNew)) return;
  }
  INFO(text);
  FAIL("neither refused by line nor canonical: " << layout.status());
}

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("the text is written exactly so, for ever") { CHECK(Tiny().ToText() == kGolden); }

TEST_CASE("every layout comes back from its text") {
  for (const Layout& layout : Samples()) {
    const auto read = Layout::FromText(layout.ToText());
    INFO(read.status().ToString());
    REQUIRE(read.ok());
    CHECK(*read == layout);
    CHECK(read->digest() == layout.digest());
    CHECK(DescribeDifference(*read, layout).empty());
    CHECK(layout.ToText().size() <= kMaxTextBytes);
  }
}

TEST_CASE("the longest layout still has a text that can be read") {
  LayoutDesc desc;
  for (uint32_t i = 0; i < kMaxStreams; ++i) {
    desc.streams.push_back({StreamKind::kState, Role::kIndexOverlap, kMaxLayer - i, 768, kMaxRowBytes, 0, Packing::kF32,
                            kExact | kOptional | kDraft | kReplicated});
  }
  const Layout layout = Layout::Create(desc).value();
  CHECK(Layout::FromText(layout.ToText()).ok());
}

TEST_CASE("a wrong line is named") {
  const struct {
    const char* from;
    const char* to;
    const char* line;
  } cases[] = {
      {"kvstrata-layout 1", "kvstrata-layout 0", "line 1"},
      {"kvstrata-layout 1", "kvstrata-layuot 1", "line 1"},
      {"family deepseek-v4", "family deepseek-v9", "line 2"},
      {"profile f", "profile z", "line 3"},
      {"block_tokens 16", "block_tokens 016", "line 4"},
      {"block_tokens 16", "block_tokens 24", "line 4"},
      {"block_tokens 16", "block_tokens 0", "line 4"},
      {"block_tokens 16", "block_tokens 4294967312", "line 4"},
      {"block_tokens 16", "block_tokens -16", "line 4"},
      {"block_tokens 16", "block_tokens +16", "line 4"},
      {"block_tokens 16", "block_tokens 16 ", "line 4"},
      {"block_tokens 16", "block_tokens  16", "line 4"},
      {"block_tokens 16", "block_tokens 16\r", "line 4"},
      {"window 8 layers", "window 0 layers", "line 5"},
      {"streams 11", "streams 10", "line 17"},
      {"streams 11", "streams 12", "line 18"},
      {"streams 11", "streams 4294967295", "line 18"},
      {"stream 3 ", "stream 4 ", "line 10"},
      {"stream 2 rows index_key layer 1 ratio 4", "stream 2 rows index_key layer 1 ratio 0", "line 9"},
      {"window layer 0 ratio 1", "window layer 0 ratio 0", "line 7"},
      {"state_rows 3 packing", "state_rows 0 packing", "line 13"},
      {"exact+replicated", "replicated+exact", "line 7"},
      {"exact+replicated", "exact+exact+replicated", "line 7"},
      {"exact+replicated", "exact+", "line 7"},
      {"exact+replicated", "", "line 7"},
      {"exact+replicated", "secret", "line 7"},
      {"end\n", "end", "line 18"},
      {"end\n", "end\n\n", "line 19"},
      {"end\n", "end\nmore\n", "line 19"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.from, test.to);
    const auto layout = Layout::FromText(Replaced(kGolden, test.from, test.to));
    REQUIRE_FALSE(layout.ok());
    CHECK(base::CodeOf(layout.status()) == base::Code::kCorrupt);
    CHECK(std::string(layout.status().message()).find(std::string(test.line) + ":") != std::string::npos);
  }
}

TEST_CASE("a later version is told apart from damage") {
  const auto layout = Layout::FromText(Replaced(kGolden, "kvstrata-layout 1", "kvstrata-layout 2"));
  CHECK(base::CodeOf(layout.status()) == base::Code::kFormatTooNew);
}

TEST_CASE("a text beyond the limit is refused unread") {
  CHECK(base::CodeOf(Layout::FromText(std::string(kMaxTextBytes + 1, 'x')).status()) == base::Code::kCorrupt);
}

TEST_CASE("every byte changed, dropped or doubled, and every truncation, is refused or canonical") {
  const std::string text = kGolden;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char c : {'\0', '\n', ' ', '0', '9', 'a', '+', '-', '\xff', static_cast<char>(text[i] ^ 1)}) {
      std::string changed = text;
      changed[i] = c;
      CheckStrict(changed);
    }
    CheckStrict(std::string(text).erase(i, 1));
    CheckStrict(std::string(text).insert(i, 1, text[i]));
    CHECK_FALSE(Layout::FromText(text.substr(0, i)).ok());
  }
}

TEST_CASE("random damage to the presets' texts is refused or canonical") {
  const unsigned seed = std::random_device{}();
  std::printf("layout_text_test: random damage, seed %u\n", seed);
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const Layout& layout : Samples()) {
    for (int round = 0; round < 40; ++round) {
      std::string text = layout.ToText();
      const int changes = 1 + static_cast<int>(random() % 3);
      for (int i = 0; i < changes; ++i) text[random() % text.size()] = static_cast<char>(random() % 256);
      if (random() % 8 == 0) text.resize(random() % text.size());
      CheckStrict(text);
    }
  }
}
