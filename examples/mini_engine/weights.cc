// SPDX-License-Identifier: Apache-2.0
#include "examples/mini_engine/weights.h"

#include <cmath>
#include <cstring>

namespace mini_engine {
namespace {

// A bijection of 64 bits in which every input bit reaches every output bit (two multiply-xorshift rounds).
uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  return x;
}

// Hands out tensors one after the other; the order of the calls is part of the model.
class Source {
 public:
  explicit Source(uint64_t seed) : seed_(seed) {}

  // Uniform in [center - spread, center + spread): 24 random bits, exact in a float.
  std::vector<float> Uniform(size_t count, float center, float spread) {
    std::vector<float> out(count);
    const uint64_t tensor = Mix(seed_ + 0x9e3779b97f4a7c15u * ++tensors_);
    for (size_t i = 0; i < count; ++i) {
      const auto bits = static_cast<int32_t>(Mix(tensor + i) >> 40);
      const float unit = static_cast<float>(bits - (1 << 23)) * 0x1p-23f;
      out[i] = center + spread * unit;
    }
    return out;
  }
  // Variance 1/inputs: the variance of uniform [-a, a) is a*a/3.
  Matrix Projection(size_t outputs, size_t inputs) {
    return Uniform(outputs * inputs, 0.0f, std::sqrt(3.0f / static_cast<float>(inputs)));
  }
  std::vector<float> Norm(size_t count) { return Uniform(count, 1.0f, 0.25f); }

 private:
  uint64_t seed_;
  uint64_t tensors_ = 0;
};

CompressorWeights MakeCompressor(Source& source, uint32_t ratio, uint32_t width, bool overlap, uint32_t hidden) {
  const size_t channels = size_t{overlap ? 2u : 1u} * width;
  CompressorWeights out;
  out.values = source.Projection(channels, hidden);
  out.gates = source.Projection(channels, hidden);
  out.bias = source.Uniform(ratio * channels, 0.0f, 1.0f);
  out.norm = source.Norm(width);
  return out;
}

LayerWeights MakeLayer(Source& source, const ModelConfig& c, LayerKind kind) {
  const size_t group_width = size_t{c.heads} / c.o_groups * c.width;
  LayerWeights w;
  w.attention_norm = source.Norm(c.hidden);
  w.q_down = source.Projection(c.q_rank, c.hidden);
  w.q_norm = source.Norm(c.q_rank);
  w.q_up = source.Projection(size_t{c.heads} * c.width, c.q_rank);
  w.kv = source.Projection(c.width, c.hidden);
  w.kv_norm = source.Norm(c.width);
  w.sinks = source.Uniform(c.heads, 0.0f, 1.0f);
  w.o_down = source.Projection(size_t{c.o_groups} * c.o_rank, group_width);
  w.o_up = source.Projection(c.hidden, size_t{c.o_groups} * c.o_rank);
  w.mlp_norm = source.Norm(c.hidden);
  w.mlp_gate = source.Projection(c.mlp_width, c.hidden);
  w.mlp_up = source.Projection(c.mlp_width, c.hidden);
  w.mlp_down = source.Projection(c.hidden, c.mlp_width);
  if (kind == LayerKind::kWindow) return w;
  w.compressor = MakeCompressor(source, c.ratio(kind), c.width, kind == LayerKind::kCsa, c.hidden);
  if (kind == LayerKind::kHca) return w;
  w.index = MakeCompressor(source, c.csa_ratio, c.index_width, true, c.hidden);
  w.index_q = source.Projection(size_t{c.index_heads} * c.index_width, c.q_rank);
  w.index_weights = source.Projection(c.index_heads, c.hidden);
  return w;
}

class Fnv {
 public:
  void Add(const std::vector<float>& values) {
    for (const float value : values) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      for (int shift = 0; shift < 32; shift += 8) hash_ = (hash_ ^ ((bits >> shift) & 0xff)) * 0x100000001b3u;
    }
  }
  void Add(const CompressorWeights& w) {
    for (const auto* one : {&w.values, &w.gates, &w.bias, &w.norm}) Add(*one);
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace

Weights MakeWeights(const ModelConfig& config) {
  Source source(config.seed);
  Weights out;
  out.embedding = source.Uniform(size_t{config.vocabulary} * config.hidden, 0.0f, 1.7320508f);  // variance 1
  for (const LayerKind kind : config.layers) out.layers.push_back(MakeLayer(source, config, kind));
  out.final_norm = source.Norm(config.hidden);
  out.head = source.Projection(config.vocabulary, config.hidden);
  return out;
}

uint64_t DigestOf(const Weights& weights) {
  Fnv fnv;
  fnv.Add(weights.embedding);
  for (const LayerWeights& w : weights.layers) {
    for (const auto* one : {&w.attention_norm, &w.q_down, &w.q_norm, &w.q_up, &w.kv, &w.kv_norm, &w.sinks, &w.o_down,
                            &w.o_up, &w.mlp_norm, &w.mlp_gate, &w.mlp_up, &w.mlp_down, &w.index_q, &w.index_weights}) {
      fnv.Add(*one);
    }
    fnv.Add(w.compressor);
    fnv.Add(w.index);
  }
  fnv.Add(weights.final_norm);
  fnv.Add(weights.head);
  return fnv.hash();
}

}  // namespace mini_engine
