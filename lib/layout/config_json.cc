// SPDX-License-Identifier: Apache-2.0
#include "lib/layout/config_json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/status.h"

namespace kvstrata::core::layout {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kMaxConfigNumber = 1u << 30;
constexpr size_t kMaxConfigLayers = kMaxStreams;

absl::Status Unsupported(std::string_view field, std::string_view message) {
  return base::MakeStatus(base::Code::kUnsupported, field, message);
}

std::string Shortened(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 64)) shown += c >= ' ' && c <= '~' ? c : '?';
  return "\"" + shown + "\"";
}

// Brackets outside strings, before any parser recurses or allocates for them.
absl::Status CheckDepth(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxConfigDepth) {
        return base::InvalidArgument("config", "nested deeper than " + std::to_string(kMaxConfigDepth));
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return absl::OkStatus();
}

// Typed reading of one JSON object; null counts as absent. The first failure sticks, so that a reader asks for all it
// needs and checks once.
class Config {
 public:
  explicit Config(const Json& object) : object_(object) {}

  const absl::Status& status() const { return status_; }
  bool Has(const char* name) const { return Get(name) != nullptr; }

  uint32_t Number(const char* name, std::optional<uint32_t> otherwise = std::nullopt) {
    const Json* value = Get(name);
    if (value == nullptr) {
      if (!otherwise.has_value()) Fail(name, "missing");
      return otherwise.value_or(0);
    }
    return ToNumber(name, *value);
  }

  bool Boolean(const char* name, bool otherwise) {
    const Json* value = Get(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) Fail(name, "not true or false");
    return value->is_boolean() ? value->get<bool>() : otherwise;
  }

  std::string Text(const char* name) {
    const Json* value = Get(name);
    if (value == nullptr) return {};
    if (!value->is_string()) Fail(name, "not a string");
    return value->is_string() ? value->get<std::string>() : std::string();
  }

  std::vector<uint32_t> Numbers(const char* name) {
    std::vector<uint32_t> numbers;
    for (const Json* value : Array(name)) {
      numbers.push_back(ToNumber(name + ("[" + std::to_string(numbers.size()) + "]"), *value));
    }
    return numbers;
  }

  std::vector<std::string> Texts(const char* name) {
    std::vector<std::string> texts;
    for (const Json* value : Array(name)) {
      if (!value->is_string()) Fail(name + ("[" + std::to_string(texts.size()) + "]"), "not a string");
      texts.push_back(value->is_string() ? value->get<std::string>() : std::string());
    }
    return texts;
  }

  const Json* Object(const char* name) {
    const Json* value = Get(name);
    if (value != nullptr && !value->is_object()) Fail(name, "not an object");
    return value != nullptr && value->is_object() ? value : nullptr;
  }

  void Fail(std::string_view name, std::string_view problem) {
    if (status_.ok()) status_ = base::InvalidArgument(name, problem);
  }

 private:
  const Json* Get(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::vector<const Json*> Array(const char* name) {
    std::vector<const Json*> elements;
    const Json* value = Get(name);
    if (value == nullptr) return elements;
    if (!value->is_array() || value->size() > 2 * kMaxConfigLayers) {
      Fail(name, "not an array, or too long");
      return elements;
    }
    for (const Json& element : *value) elements.push_back(&element);
    return elements;
  }

  uint32_t ToNumber(std::string_view name, const Json& value) {
    if (value.is_number_integer() && value >= 0 && value <= kMaxConfigNumber) return value.get<uint32_t>();
    Fail(name, "not a whole number in 0.." + std::to_string(kMaxConfigNumber));
    return 0;
  }

  const Json& object_;
  absl::Status status_;
};

// Layers of the backbone, bounded before anything is sized by it.
uint32_t LayerCount(Config& config) {
  const uint32_t layers = config.Number("num_hidden_layers");
  if (layers == 0 || layers > kMaxConfigLayers) {
    config.Fail("num_hidden_layers", std::to_string(layers) + " is not in 1.." + std::to_string(kMaxConfigLayers));
    return 1;
  }
  return layers;
}

Packing OrDefault(Packing given, Packing packed) { return given == Packing::kRaw ? packed : given; }

// --- deepseek_v4 ---

// One ratio per layer from `layer_types` and `compress_rates`; `hca_from` becomes the HCA rate.
std::vector<uint32_t> RatiosFromTypes(Config& config, uint32_t& hca_from) {
  uint32_t csa = 4;
  uint32_t hca = 128;
  if (const Json* object = config.Object("compress_rates"); object != nullptr) {
    Config rates(*object);
    csa = rates.Number("compressed_sparse_attention", csa);
    hca = rates.Number("heavily_compressed_attention", hca);
    if (!rates.status().ok()) config.Fail("compress_rates", std::string(rates.status().message()));
  }
  csa = config.Number("compress_rate_csa", csa);
  hca = config.Number("compress_rate_hca", hca);
  if (csa == 0 || csa >= hca) {
    config.Fail("compress_rates",
                std::to_string(csa) + " and " + std::to_string(hca) + ": CSA's rate must be the smaller");
  }
  hca_from = hca;
  std::vector<uint32_t> ratios;
  for (const std::string& type : config.Texts("layer_types")) {
    if (type != "sliding_attention" && type != "compressed_sparse_attention" &&
        type != "heavily_compressed_attention") {
      config.Fail("layer_types[" + std::to_string(ratios.size()) + "]", Shortened(type) + " is not known");
    }
    ratios.push_back(type == "sliding_attention" ? 0 : type == "compressed_sparse_attention" ? csa : hca);
  }
  return ratios;
}

// The list has one ratio per layer, then one per draft layer.
void SplitDrafts(Config& config, const char* name, uint32_t layers, std::vector<uint32_t>& ratios,
                 std::vector<uint32_t>& drafts) {
  if (ratios.size() < layers) {
    config.Fail(name, std::to_string(ratios.size()) + " elements for " + std::to_string(layers) + " layers");
    return;
  }
  drafts.assign(ratios.begin() + layers, ratios.end());
  ratios.resize(layers);
  if (drafts.empty())
    drafts.assign(std::min<size_t>(config.Number("num_nextn_predict_layers", 0), kMaxConfigLayers), 0);
  if (std::ranges::any_of(drafts, [](uint32_t ratio) { return ratio != 0; })) {
    config.Fail(name, "a draft layer's ratio is not 0");
  }
}

absl::StatusOr<Layout> ReadV4(Config& config, const PresetOptions& options) {
  HybridOptions hybrid;
  const uint32_t layers = LayerCount(config);
  const bool by_type = config.Has("layer_types");
  const char* list = by_type ? "layer_types" : "compress_ratios";
  // Without either list the type's own defaults are not what was released: refuse to guess.
  if (!config.Has(list)) config.Fail("compress_ratios", "missing, and layer_types too");
  std::vector<uint32_t> ratios = by_type ? RatiosFromTypes(config, hybrid.hca_from) : config.Numbers("compress_ratios");
  for (size_t i = 0; !by_type && i < ratios.size(); ++i) {
    if (ratios[i] == 0 || ratios[i] == 4 || ratios[i] == 128) continue;
    config.Fail("compress_ratios[" + std::to_string(i) + "]", std::to_string(ratios[i]) + " is not 0, 4 or 128");
  }
  std::vector<uint32_t> drafts;
  SplitDrafts(config, list, layers, ratios, drafts);
  if (config.Number("num_key_value_heads", 1) != 1) config.Fail("num_key_value_heads", "not 1");
  hybrid.ratios = ratios;
  hybrid.draft_ratios = drafts;
  hybrid.width = config.Number("head_dim", 512);
  hybrid.index_width = config.Number("index_head_dim", 128);
  hybrid.window = config.Number("sliding_window", 128);
  if (!config.status().ok()) return config.status();
  hybrid.row_packing = OrDefault(options.row_packing, Packing::kFp8Row584);
  hybrid.index_packing = OrDefault(options.index_packing, Packing::kFp4Key68);
  hybrid.block_tokens = options.block_tokens;
  hybrid.include_draft = options.include_draft;
  return HybridLayout(hybrid);
}

// --- deepseek_v41 ---

absl::StatusOr<Layout> ReadV41(Config& config, const PresetOptions& options) {
  SharedSourceOptions shared;
  const uint32_t layers = LayerCount(config);
  std::vector<uint32_t> ratios = config.Numbers("compress_ratios");
  const std::vector<uint32_t> sources = config.Numbers("kv_source_layers");
  std::vector<uint32_t> drafts;
  SplitDrafts(config, "compress_ratios", layers, ratios, drafts);
  if (sources.empty()) config.Fail("kv_source_layers", "missing or empty");
  shared.ratios = ratios;
  shared.sources = sources;
  shared.draft_layers = static_cast<uint32_t>(drafts.size());
  shared.width = config.Number("head_dim", 512);
  shared.index_width = config.Number("index_head_dim", 128);
  shared.window = config.Number("sliding_window", 128);
  if (!config.status().ok()) return config.status();
  shared.row_packing = options.row_packing;
  shared.index_packing = OrDefault(options.index_packing, Packing::kFp4Key68);
  shared.block_tokens = options.block_tokens;
  shared.include_draft = options.include_draft;
  return SharedSourceLayout(shared);
}

// --- deepseek_v32 ---

absl::StatusOr<Layout> ReadV32(Config& config, const PresetOptions& options) {
  LatentIndexOptions latent;
  latent.layers = LayerCount(config);
  latent.draft_layers = config.Number("num_nextn_predict_layers", 0);
  latent.kv_lora_rank = config.Number("kv_lora_rank");
  latent.rope_dim = config.Number("qk_rope_head_dim");
  latent.index_width = config.Number("index_head_dim");
  if (!config.status().ok()) return config.status();
  latent.row_packing = OrDefault(options.row_packing, Packing::kFp8Row656);
  latent.index_packing = OrDefault(options.index_packing, Packing::kFp8Key132);
  latent.block_tokens = options.block_tokens;
  latent.include_draft = options.include_draft;
  return LatentIndexLayout(latent);
}

// --- models with plain rows ---

// Element type of the rows: the caller's, else the model's.
Packing ElementOf(Config& config, const PresetOptions& options) {
  if (options.row_packing != Packing::kRaw) return options.row_packing;
  const char* name = config.Has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string type = config.Text(name);
  if (type == "float32") return Packing::kF32;
  if (type == "float16") return Packing::kF16;
  if (!type.empty() && type != "bfloat16") config.Fail(name, Shortened(type) + " is not bfloat16, float16 or float32");
  return Packing::kBf16;
}

uint32_t ElementBytes(Packing packing) { return packing == Packing::kF32 ? 4 : 2; }

absl::StatusOr<Layout> ReadMla(Config& config, const PresetOptions& options) {
  MlaOptions mla;
  mla.layers = LayerCount(config);
  mla.kv_lora_rank = config.Number("kv_lora_rank");
  mla.rope_dim = config.Number("qk_rope_head_dim");
  mla.packing = ElementOf(config, options);
  if (!config.status().ok()) return config.status();
  mla.bytes_per_element = ElementBytes(mla.packing);
  mla.block_tokens = options.block_tokens;
  return MlaLayout(mla);
}

// Layers that keep a window only. A window without `layer_types` is refused, since which layers have it is then known
// to the model's code alone.
absl::StatusOr<std::vector<uint32_t>> WindowLayers(Config& config, std::string_view model_type, uint32_t layers) {
  std::vector<uint32_t> windowed;
  if (config.Has("layer_types")) {
    const std::vector<std::string> types = config.Texts("layer_types");
    if (types.size() != layers)
      config.Fail("layer_types", std::to_string(types.size()) + " elements for " + std::to_string(layers) + " layers");
    for (uint32_t i = 0; i < types.size(); ++i) {
      if (types[i] == "sliding_attention") windowed.push_back(i);
      if (types[i] == "sliding_attention" || types[i] == "full_attention") continue;
      return Unsupported("layer_types[" + std::to_string(i) + "]", Shortened(types[i]) + " is not known");
    }
    return windowed;
  }
  const uint32_t window = config.Number("sliding_window", 0);
  const bool used = config.Boolean("use_sliding_window", !model_type.starts_with("qwen"));
  if (used && window != 0 && window < config.Number("max_position_embeddings", kMaxConfigNumber)) {
    return Unsupported("sliding_window", std::to_string(window) + " without layer_types");
  }
  return windowed;
}

absl::StatusOr<Layout> ReadGqa(Config& config, std::string_view model_type, const PresetOptions& options) {
  GqaOptions gqa;
  gqa.layers = LayerCount(config);
  const auto windowed = WindowLayers(config, model_type, gqa.layers);
  if (!windowed.ok()) return windowed.status();
  const uint32_t heads = config.Number("num_attention_heads");
  gqa.kv_heads = config.Number("num_key_value_heads", heads);
  if (config.Has("head_dim")) {
    gqa.head_dim = config.Number("head_dim");
  } else {
    const uint32_t hidden = config.Number("hidden_size");
    if (heads == 0 || hidden % heads != 0) config.Fail("hidden_size", "not a multiple of num_attention_heads");
    gqa.head_dim = heads == 0 ? 0 : hidden / heads;
  }
  gqa.window_layers = *windowed;
  if (!windowed->empty()) gqa.window = config.Number("sliding_window");
  gqa.packing = ElementOf(config, options);
  if (!config.status().ok()) return config.status();
  gqa.bytes_per_element = ElementBytes(gqa.packing);
  gqa.block_tokens = options.block_tokens;
  return GqaLayout(gqa);
}

constexpr std::string_view kMlaModels[] = {"deepseek_v2", "deepseek_v3", "kimi_k2", "minicpm3"};

// Models whose every layer stores K and V of num_key_value_heads (or num_attention_heads) x head_dim.
constexpr std::string_view kGqaModels[] = {"arcee",
                                           "cohere",
                                           "gemma",
                                           "gemma2",
                                           "gemma3_text",
                                           "glm",
                                           "glm4",
                                           "glm4_moe",
                                           "gpt_neox",
                                           "gpt_oss",
                                           "granite",
                                           "granitemoe",
                                           "hunyuan_v1_dense",
                                           "internlm2",
                                           "llama",
                                           "ministral",
                                           "mistral",
                                           "mixtral",
                                           "nemotron",
                                           "olmo",
                                           "olmo2",
                                           "olmo3",
                                           "phi",
                                           "phi3",
                                           "qwen2",
                                           "qwen2_moe",
                                           "qwen3",
                                           "qwen3_moe",
                                           "seed_oss",
                                           "smollm3",
                                           "stablelm",
                                           "starcoder2"};

absl::StatusOr<Layout> ReadModel(const Json& object, const PresetOptions& options) {
  Config config(object);
  const std::string type = config.Text("model_type");
  if (!config.status().ok()) return config.status();
  const auto is = [&type](std::string_view name) { return name == type; };
  if (is("deepseek_v41") || (is("deepseek_v4") && config.Has("kv_source_layers"))) return ReadV41(config, options);
  if (is("deepseek_v4")) return ReadV4(config, options);
  if (is("deepseek_v32")) return ReadV32(config, options);
  if (std::ranges::any_of(kMlaModels, is)) return ReadMla(config, options);
  if (std::ranges::any_of(kGqaModels, is)) return ReadGqa(config, type, options);
  // Models with several parts nest the language model's fields.
  if (const Json* inner = config.Object("text_config"); inner != nullptr && !config.Has("num_hidden_layers")) {
    Config nested(*inner);
    if (nested.Object("text_config") == nullptr) return ReadModel(*inner, options);
  }
  return Unsupported("model_type", type.empty() ? "missing" : Shortened(type) + " is not known");
}

}  // namespace

absl::StatusOr<Layout> FromConfigJson(std::string_view text, const PresetOptions& options) {
  if (text.size() > kMaxConfigBytes) {
    return base::MakeStatus(base::Code::kTooLarge, "config",
                            std::to_string(text.size()) + " bytes, the most is " + std::to_string(kMaxConfigBytes));
  }
  if (auto status = CheckDepth(text); !status.ok()) return status;
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return base::InvalidArgument("config", "not a JSON object");
  return ReadModel(json, options);
}

}  // namespace kvstrata::core::layout
