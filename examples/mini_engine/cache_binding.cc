// SPDX-License-Identifier: Apache-2.0
#include "examples/mini_engine/cache_binding.h"

namespace mini_engine {
namespace {

using kvstrata::buffer;
using kvstrata::packing;
using kvstrata::role;

constexpr uint32_t kExact = KVSTRATA_STREAM_EXACT;

// Value and gate of one token, fp32: the P half of an overlap row, all channels of an open row.
uint32_t OverlapRowBytes(uint32_t width) { return 2 * width * 4; }
uint32_t OpenRowBytes(uint32_t channels) { return 2 * channels * 4; }

void AddCarry(kvstrata::layout_builder& b, uint32_t layer, const Carry& carry, role overlap, role open) {
  if (carry.overlap) b.state(overlap, layer, carry.ratio, OverlapRowBytes(carry.width), 0, packing::f32, kExact);
  if (carry.ratio > 1) b.state(open, layer, carry.ratio, OpenRowBytes(carry.channels), 0, packing::f32, kExact);
}

kvstrata::mutable_byte_view Bytes(std::vector<float>& floats) { return {floats.data(), floats.size() * sizeof(float)}; }

// Values, then gates, in one allocation: two columns that begin at its start and at its middle.
buffer CarryBuffer(uint32_t stream, std::vector<float>& memory, uint32_t channels) {
  const uint32_t bytes = channels * 4;
  buffer out = buffer::linear(stream, Bytes(memory));
  out.column(bytes, 0, bytes).column(bytes, memory.size() / 2 * sizeof(float), bytes);
  return out;
}

void AddCarryBuffers(std::vector<buffer>& out, Carry& carry) {
  const auto next = [&] { return static_cast<uint32_t>(out.size()); };
  if (carry.overlap) out.push_back(CarryBuffer(next(), carry.previous, carry.width));
  if (carry.ratio > 1) out.push_back(CarryBuffer(next(), carry.open, carry.channels));
}

}  // namespace

kvstrata::result<kvstrata::layout> MakeLayout(const ModelConfig& config) {
  const Ops ops(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  const RowFormat row(ops, config, RowFormat::Kind::kRow);
  const RowFormat key(ops, config, RowFormat::Kind::kIndexKey);
  const auto row_packing = static_cast<packing>(row.packing());
  kvstrata::layout_builder b;
  b.family("deepseek-v4")
      .block_tokens(config.block_tokens())
      .numeric_profile(config.storage == RowStorage::kPacked ? kvstrata::profile::s : kvstrata::profile::q)
      .replay(config.bounded_replay ? kvstrata::replay_mode::bounded : kvstrata::replay_mode::full, config.window,
              static_cast<uint32_t>(config.layers.size()));
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const LayerKind kind = config.layers[layer];
    const uint32_t ratio = config.ratio(kind);
    if (kind == LayerKind::kCsa) {
      b.rows(role::csa_entry, layer, ratio, row.row_bytes(), row_packing, kExact);
      b.rows(role::index_key, layer, ratio, key.row_bytes(), static_cast<packing>(key.packing()), kExact);
    } else if (kind == LayerKind::kHca) {
      b.rows(role::hca_entry, layer, ratio, row.row_bytes(), row_packing, kExact);
    }
    b.window(layer, config.window, row.row_bytes(), row_packing, kExact);
    if (kind == LayerKind::kWindow) continue;
    AddCarry(b, layer, Carry(ratio, config.width, kind == LayerKind::kCsa), role::overlap, role::open);
    if (kind == LayerKind::kCsa) {
      AddCarry(b, layer, Carry(ratio, config.index_width, true), role::index_overlap, role::index_open);
    }
  }
  return b.build();
}

kvstrata::identity MakeIdentity(const Model& model, const std::string& tenant) {
  const ModelConfig& c = model.config;
  kvstrata::identity out;
  out.set_number("model.weights", DigestOf(model.weights));
  out.set("model.quantization", "none");
  out.set("rope", "plain theta=10000; yarn theta=160000 factor=16 length=65536 beta=32/1 mscale=1; dims=" +
                      std::to_string(c.rope_dims) + "/" + std::to_string(c.index_rope_dims));
  out.set("packing", "rows=" + std::to_string(model.row_format.packing()) +
                         " keys=" + std::to_string(model.key_format.packing()) + " hadamard=1 fp4-keys=1");
  out.set("adapter", "");
  out.set("engine.state_version", c.name + " 1");
  // A row's floats differ between kernel levels within a tolerance, so rows of one level are no rows of another.
  out.set("kernel.numerics", std::string("profile-q ") + model.ops.name());
  out.set("tenant", tenant);
  return out;
}

std::vector<buffer> MakeBuffers(Engine& engine) {
  const ModelConfig& c = engine.model().config;
  std::vector<buffer> out;
  const auto next = [&] { return static_cast<uint32_t>(out.size()); };
  for (size_t layer = 0; layer < c.layers.size(); ++layer) {
    LayerMemory& memory = engine.memory(layer);
    if (memory.kind != LayerKind::kWindow) out.push_back(buffer::linear(next(), memory.entries.bytes));
    if (memory.kind == LayerKind::kCsa) out.push_back(buffer::linear(next(), memory.keys.bytes));
    out.push_back(buffer::ring(next(), memory.ring, c.window));
    if (memory.kind != LayerKind::kWindow) AddCarryBuffers(out, memory.carry);
    if (memory.kind == LayerKind::kCsa) AddCarryBuffers(out, memory.index_carry);
  }
  return out;
}

Resume ToResume(const kvstrata::plan_result& result) {
  Resume out;
  out.usable_tokens = result.usable_tokens;
  out.replay_from = result.replay_from;
  out.write_floor = result.write_floor;
  out.has_state = result.usable_tokens != 0 && result.snapshot_position == result.replay_from;
  return out;
}

uint64_t FullKvBytesPerToken(const ModelConfig& config) {
  return uint64_t{2} * config.layers.size() * config.heads * config.width * 2;
}

}  // namespace mini_engine
