// SPDX-License-Identifier: Apache-2.0
// Reading config.json. The samples carry the attention fields of the released models; other fields are left out, as
// the reader looks at none of them.
#include "lib/layout/config_json.h"

#include <cstdio>
#include <random>
#include <string>

#include "lib/base/status.h"
#include "lib/layout/presets.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using namespace kvstrata::core::layout;

namespace {

std::string List(std::initializer_list<std::pair<int, int>> runs) {
  std::string text;
  for (const auto& [value, count] : runs) {
    for (int i = 0; i < count; ++i) text += (text.empty() ? "" : ", ") + std::to_string(value);
  }
  return "[" + text + "]";
}

// `pairs` times "4, 128" after `head`, then `tail`.
std::string V4Ratios(const std::string& head, int pairs, const std::string& tail) {
  std::string text = "[" + head;
  for (int i = 0; i < pairs; ++i) text += ", 4, 128";
  return text + tail + "]";
}

std::string V4Config(int layers, const std::string& ratios) {
  return R"({"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
    "sliding_window": 128, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "rope_theta": 10000,
    "compress_rope_theta": 160000, "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1},
    "num_nextn_predict_layers": 1, "num_hidden_layers": )" +
         std::to_string(layers) + R"(, "compress_ratios": )" + ratios + "}";
}

std::string FlashConfig() { return V4Config(43, V4Ratios("0, 0", 20, ", 4, 0")); }
std::string ProConfig() { return V4Config(61, V4Ratios("128, 128", 29, ", 4, 0")); }

std::string V41Config(const std::string& sources = "[2, 8, 14, 20]") {
  return R"({"model_type": "deepseek_v41", "num_hidden_layers": 40, "head_dim": 512, "index_head_dim": 128,
    "sliding_window": 128, "index_source_layers": [2, 8, 14, 20, 24, 28, 32, 36], "kv_source_layers": )" +
         sources + R"(, "compress_ratios": )" + List({{0, 2}, {2, 18}, {1, 20}, {0, 3}}) + "}";
}

Layout Read(const std::string& text, const PresetOptions& options = {}) {
  auto layout = FromConfigJson(text, options);
  INFO(layout.status().ToString());
  REQUIRE(layout.ok());
  return *layout;
}

std::string FieldAtFault(const std::string& text) { return base::FieldOf(FromConfigJson(text).status()); }

}  // namespace

TEST_CASE("the released configs give the presets") {
  for (const bool draft : {false, true}) {
    for (const Packing packing : {Packing::kRaw, Packing::kBf16}) {
      const PresetOptions options = {packing, packing, 0, draft};
      CHECK(Read(FlashConfig(), options).digest() == Preset("deepseek-v4-flash", options)->digest());
      CHECK(Read(ProConfig(), options).digest() == Preset("deepseek-v4-pro", options)->digest());
      CHECK(Read(V41Config(), options).digest() == Preset("deepseek-v4.1-flash", options)->digest());
      const std::string v32 = R"({"model_type": "deepseek_v32", "num_hidden_layers": 61, "num_key_value_heads": 128,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "num_nextn_predict_layers": 1})";
      CHECK(Read(v32, options).digest() == Preset("deepseek-v3.2", options)->digest());
    }
  }
}

TEST_CASE("V4 with three drafting layers") {
  PresetOptions options;
  options.include_draft = true;
  const Layout layout = Read(V4Config(43, V4Ratios("0, 0", 20, ", 4, 0, 0, 0")), options);
  CHECK(layout.SnapshotBytes(128, true) == 3'644'416 + 3 * 74'752);
}

TEST_CASE("V4 by layer types and rates") {
  const std::string tiny = R"({"model_type": "deepseek_v4", "num_hidden_layers": 4, "num_key_value_heads": 1,
    "head_dim": 32, "sliding_window": 8, "index_head_dim": 16,
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                    "compressed_sparse_attention"],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}})";
  const uint32_t ratios[] = {0, 4, 16, 4};
  HybridOptions hybrid;
  hybrid.ratios = ratios;
  hybrid.width = 32;
  hybrid.index_width = 16;
  hybrid.window = 8;
  hybrid.row_packing = Packing::kF32;
  hybrid.index_packing = Packing::kF32;
  CHECK(Read(tiny, {Packing::kF32, Packing::kF32, 0, false}) == HybridLayout(hybrid).value());
  // A 32-wide row has no packed form.
  CHECK(FieldAtFault(tiny) == "row_packing");

  // The rates' defaults, and a rate below the usual threshold between the two kinds.
  std::string types = R"("compressed_sparse_attention", "heavily_compressed_attention")";
  const std::string by_default =
      R"({"model_type": "deepseek_v4", "num_hidden_layers": 2, "layer_types": [)" + types + "]}";
  CHECK(Read(by_default).stream(0).ratio == 4);
  CHECK(Read(by_default).block_tokens() == 128);
  const std::string small = R"({"model_type": "deepseek_v4", "num_hidden_layers": 2, "layer_types": [)" + types +
                            R"(], "compress_rate_csa": 2, "compress_rate_hca": 8})";
  CHECK(Read(small).Find(Role::kHcaEntry, 1).has_value());
  CHECK(Read(small).block_tokens() == 8);
}

TEST_CASE("GQA, MHA and MLA models") {
  const Layout llama = Read(R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16"})");
  CHECK(llama.family() == "gqa");
  CHECK(llama.RowBytesPerToken() == BytesPerToken{32 * 4'096, 1});
  CHECK(llama.stream(0).packing == Packing::kBf16);
  // Two 2-byte types are two layouts (I14).
  const Layout half = Read(R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "float16"})");
  CHECK(half.BlockBytes() == llama.BlockBytes());
  CHECK_FALSE(half.digest() == llama.digest());
  const Layout neox = Read(R"({"model_type": "gpt_neox", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "torch_dtype": "float32"})");
  CHECK(neox.RowBytesPerToken() == BytesPerToken{2 * 2 * 64 * 4, 1});
  const Layout qwen = Read(R"({"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": null, "use_sliding_window": false})");
  CHECK(qwen.RowBytesPerToken() == BytesPerToken{36 * 4'096, 1});
  const Layout nested = Read(R"({"model_type": "mistral3", "text_config": {"model_type": "mistral",
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}})");
  CHECK(nested.RowBytesPerToken() == BytesPerToken{2 * 2 * 32 * 2, 1});
  const Layout v3 = Read(R"({"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64})");
  CHECK(v3.family() == "mla");
  CHECK(v3.RowBytesPerToken() == BytesPerToken{61 * 576 * 2, 1});
}

TEST_CASE("a model with window layers") {
  const Layout layout = Read(R"({"model_type": "gpt_oss", "num_hidden_layers": 4, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]})");
  CHECK(layout.RowBytesPerToken() == BytesPerToken{2 * 2 * 1'024, 1});
  CHECK(layout.SnapshotBytes(128) == 2 * 128 * 2'048);
  CHECK(layout.ExactReplayTokens() == 254);
}

TEST_CASE("what is not known is refused by name") {
  const auto unknown = FromConfigJson(R"({"model_type": "mamba2", "num_hidden_layers": 2})").status();
  CHECK(base::CodeOf(unknown) == base::Code::kUnsupported);
  CHECK(base::FieldOf(unknown) == "model_type");
  CHECK(std::string(unknown.message()).find("mamba2") != std::string::npos);
  CHECK(FieldAtFault("{}") == "model_type");
  CHECK(FieldAtFault(R"({"model_type": 4})") == "model_type");
  // Which layers have the window, the text does not say.
  const auto window = FromConfigJson(R"({"model_type": "mistral", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "sliding_window": 4096, "max_position_embeddings": 32768})")
                          .status();
  CHECK(base::CodeOf(window) == base::Code::kUnsupported);
  CHECK(base::FieldOf(window) == "sliding_window");
  const auto linear = FromConfigJson(R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64,
    "num_attention_heads": 4, "layer_types": ["linear_attention"]})")
                          .status();
  CHECK(base::CodeOf(linear) == base::Code::kUnsupported);
  CHECK(base::FieldOf(linear) == "layer_types[0]");
}

TEST_CASE("each wrong field is named") {
  CHECK(FieldAtFault(R"({"model_type": "llama"})") == "num_hidden_layers");
  CHECK(FieldAtFault(R"({"model_type": "llama", "num_hidden_layers": 4294967296})") == "num_hidden_layers");
  CHECK(FieldAtFault(R"({"model_type": "llama", "num_hidden_layers": -1})") == "num_hidden_layers");
  CHECK(FieldAtFault(R"({"model_type": "llama", "num_hidden_layers": 2.5})") == "num_hidden_layers");
  CHECK(FieldAtFault(R"({"model_type": "llama", "num_hidden_layers": "2"})") == "num_hidden_layers");
  CHECK(FieldAtFault(R"({"model_type": "llama", "num_hidden_layers": 2})") == "num_attention_heads");
  CHECK(FieldAtFault(R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 0,
    "hidden_size": 64})") == "hidden_size");
  CHECK(FieldAtFault(R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
    "head_dim": 16, "torch_dtype": "int8"})") == "torch_dtype");
  CHECK(FieldAtFault(R"({"model_type": "deepseek_v3", "num_hidden_layers": 2})") == "kv_lora_rank");
  CHECK(FieldAtFault(R"({"model_type": "deepseek_v4", "num_hidden_layers": 2})") == "compress_ratios");
  CHECK(FieldAtFault(V4Config(3, "[0, 4]")) == "compress_ratios");
  CHECK(FieldAtFault(V4Config(2, "[0, 8]")) == "compress_ratios[1]");
  CHECK(FieldAtFault(V4Config(2, "[0, 4, 4]")) == "compress_ratios");
  CHECK(FieldAtFault(V4Config(2, "{}")) == "compress_ratios");
  CHECK(FieldAtFault(V41Config("[]")) == "kv_source_layers");
  CHECK(FieldAtFault(V41Config("[8, 14, 20]")) == "ratios[2]");
  CHECK(FieldAtFault(V41Config("[2, 8, 14, 50]")) == "sources[3]");
}

TEST_CASE("text that is no config, too deep or too large") {
  for (const std::string text : {"", "[]", "nul", "{", "\xff\xfe", "1e999", "{\"a\": 1e999}", "\"\\ud800\""}) {
    CAPTURE(text);
    CHECK(FieldAtFault(text) == "config");
  }
  CHECK(FieldAtFault(std::string(100'000, '[')) == "config");
  std::string deep = R"({"model_type": "llama", "x": )";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  CHECK(FieldAtFault(deep) == "config");
  CHECK(base::CodeOf(FromConfigJson(std::string(kMaxConfigBytes + 1, ' ')).status()) == base::Code::kTooLarge);
}

TEST_CASE("random damage to a config never gives more than an error or a valid layout") {
  const unsigned seed = std::random_device{}();
  std::printf("config_json_test: random damage, seed %u\n", seed);
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const std::string& sample : {FlashConfig(), V41Config()}) {
    for (int round = 0; round < 1'000; ++round) {
      std::string text = sample;
      for (uint32_t i = 0; i < 1 + random() % 4; ++i) text[random() % text.size()] = static_cast<char>(random() % 128);
      const auto layout = FromConfigJson(text);
      if (layout.ok()) CHECK(Layout::FromText(layout->ToText()).ok());
    }
  }
}
