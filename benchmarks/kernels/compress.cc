// SPDX-License-Identifier: Apache-2.0
// The compressors at V4's shapes. From memory: the fused path to packed entries against a read pass over the same
// values and gates (what it writes is a hundredth of that), and against PoolPass of roofline.h, which reads them and
// takes the exps that nothing can do without, one for each gate: 1024 a token for CSA, 512 for HCA. That is the ceiling
// where computing takes longer than memory, as bf16 rows do. What the kernel has on top of it is an entry's norm,
// rotation and packing: every 4 tokens for CSA, every 128 for HCA. In the second-level cache: each function against the
// scalar reference. The rows of every kind are compared with the reference's before anything is measured.
//
// Thread rule: one thread.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "benchmarks/kernels/roofline.h"
#include "benchmarks/ratio.h"
#include "kernels/dispatch.h"

namespace {

using namespace kvstrata::benchmarks;
using kvstrata::kernels::Get;

constexpr uint32_t kWidth = 512;
constexpr uint32_t kRope = 64;
// As floats 134 MB of values and as many of gates, as bf16 half of that: beyond any cache. HCA has half the channels
// and twice the tokens.
constexpr uint64_t kElements = uint64_t{1} << 25;
// What the reference is timed on: 2 MiB of values and gates.
constexpr uint64_t kFewElements = uint64_t{1} << 18;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "compress benchmark: %s\n", what);
  std::exit(1);
}

struct Kind {
  const char* name;
  uint32_t ratio;
  bool overlap;
  uint64_t channels() const { return overlap ? 2 * kWidth : kWidth; }
};
constexpr Kind kCsa = {"csa", 4, true};
constexpr Kind kHca = {"hca", 128, false};

// Uniform in [-1, 1).
float Next(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
}

uint16_t Half(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// Values of [-1, 1) and gates of [-4, 4), the bf16 ones cut off the others, so that both say nearly the same.
struct World {
  HugeBuffer values{kElements * 4};
  HugeBuffer gates{kElements * 4};
  HugeBuffer half_values{kElements * 2};
  HugeBuffer half_gates{kElements * 2};
  HugeBuffer packed{kElements / kWidth / 8 * 584};
  HugeBuffer rows{kElements / kWidth / 8 * kWidth * 4};
  std::vector<float> ape, weight, frequencies, state, workspace;

  World() : ape(128 * 2 * kWidth), weight(kWidth), frequencies(kRope / 2), state(4 * 128 * kWidth) {
    uint64_t random = 7;
    for (uint64_t i = 0; i < kElements; ++i) {
      values.as<float>()[i] = Next(random);
      gates.as<float>()[i] = 4 * Next(random);
      half_values.as<uint16_t>()[i] = Half(values.as<float>()[i]);
      half_gates.as<uint16_t>()[i] = Half(gates.as<float>()[i]);
    }
    for (float& bias : ape) bias = Next(random);
    for (float& scale : weight) scale = 1.0f + 0.1f * Next(random);
    for (uint32_t k = 0; k < kRope / 2; ++k) frequencies[k] = static_cast<float>(std::pow(10000.0, -2.0 * k / kRope));
    workspace.resize(1 << 16);
  }
};

kvstrata_compress_args CompressArgs(World& w, const Kind& kind, int32_t type, uint64_t elements, int32_t output) {
  kvstrata_compress_args a{};
  a.struct_size = sizeof a;
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.pool_flags = kind.overlap ? KVSTRATA_KERNELS_POOL_OVERLAP : 0;
  a.ratio = kind.ratio;
  a.width = kWidth;
  a.rope_dims = kRope;
  a.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  a.input_type = type;
  a.output_type = output;
  a.eps = 1e-6f;
  a.tokens = elements / kind.channels();
  const bool half = type == KVSTRATA_KERNELS_BF16;
  a.values = half ? w.half_values.as<void>() : w.values.as<void>();
  a.gates = half ? w.half_gates.as<void>() : w.gates.as<void>();
  a.ape = w.ape.data();
  a.prev_values = w.state.data();
  a.prev_gates = a.prev_values + 4 * kWidth;
  a.open_values = a.prev_gates + 4 * kWidth;
  a.open_gates = a.open_values + 128 * kWidth;
  a.norm_weight = w.weight.data();
  a.frequencies = w.frequencies.data();
  a.entries = w.rows.as<void>();
  a.packed.codes = w.packed.as();
  a.packed.rope = a.packed.codes + 448;
  a.packed.scales = a.packed.codes + 576;
  a.packed.code_stride_bytes = a.packed.rope_stride_bytes = a.packed.scale_stride_bytes = 584;
  a.entry_capacity = a.tokens / kind.ratio;
  a.workspace = w.workspace.data();
  a.workspace_bytes = w.workspace.size() * sizeof(float);
  return a;
}

kvstrata_pool_args PoolArgs(World& w, const Kind& kind, int32_t type, uint64_t elements) {
  const kvstrata_compress_args c = CompressArgs(w, kind, type, elements, KVSTRATA_KERNELS_F32);
  kvstrata_pool_args a{};
  a.struct_size = sizeof a;
  a.flags = c.pool_flags;
  a.ratio = c.ratio;
  a.width = c.width;
  a.tokens = c.tokens;
  a.values = c.values;
  a.gates = c.gates;
  a.ape = c.ape;
  a.prev_values = c.prev_values;
  a.prev_gates = c.prev_gates;
  a.open_values = c.open_values;
  a.open_gates = c.open_gates;
  a.entries = static_cast<float*>(c.entries);
  a.entry_capacity = c.entry_capacity;
  a.input_type = type;
  return a;
}

kvstrata_emit_entries_args EmitArgs(World& w, uint64_t rows) {
  kvstrata_emit_entries_args a{};
  a.struct_size = sizeof a;
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  a.width = kWidth;
  a.rope_dims = kRope;
  a.ratio = 4;
  a.eps = 1e-6f;
  a.rows = rows;
  a.pooled = w.values.as<float>();
  a.norm_weight = w.weight.data();
  a.frequencies = w.frequencies.data();
  a.entries = w.rows.as<float>();
  return a;
}

template <typename Function, typename A>
void Call(Function function, const A& args) {
  Require(function(&args, nullptr) == 0, "a call failed");
}

// The rows of both levels without rounding points. Pooled values lie below 1, normed ones below 40; a level's sums and
// exps differ by less than 2^-14 of that.
void Check(World& w, const kvstrata_kernels& k, const kvstrata_kernels& r, const Kind& kind, int32_t type) {
  kvstrata_compress_args a = CompressArgs(w, kind, type, kFewElements, KVSTRATA_KERNELS_F32);
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  Call(r.compress, a);
  const uint64_t count = a.entry_capacity * kWidth;
  const std::vector<float> expected(w.rows.as<float>(), w.rows.as<float>() + count);
  Call(k.compress, a);
  for (uint64_t i = 0; i < count; ++i) {
    Require(std::fabs(w.rows.as<float>()[i] - expected[i]) < 40 * 0x1p-14f, "a row is not the reference's");
  }
}

template <typename T>
void PoolAll(bool wide, const kvstrata_compress_args& a) {
  const T* values = static_cast<const T*>(a.values);
  const T* gates = static_cast<const T*>(a.gates);
  wide ? PoolPass512(values, gates, kElements) : PoolPass256(values, gates, kElements);
}

void FromMemory(World& w, const kvstrata_kernels& k, const Kind& kind, int32_t type, const char* goal) {
  const bool half = type == KVSTRATA_KERNELS_BF16;
  const kvstrata_compress_args a = CompressArgs(w, kind, type, kElements, KVSTRATA_KERNELS_PACKED);
  const std::string name = std::string("compress_") + kind.name + (half ? "_bf16_" : "_f32_") + k.name;
  const size_t bytes = kElements * (half ? 2 : 4);
  PrintShare((name + "_of_read_pass").c_str(), goal, [&] { Call(k.compress, a); },
             [&] {
               ReadPass(a.values, bytes);
               ReadPass(a.gates, bytes);
             });
  const bool wide = k.level >= KVSTRATA_KERNELS_LEVEL_CPU_AVX512;
  if (k.level < KVSTRATA_KERNELS_LEVEL_CPU_AVX2 || (wide ? !HasFma512() : !HasFma256())) return;
  const char* ceiling = kind.overlap ? ">=0.70" : ">=0.85";
  PrintShare((name + "_of_pool_pass").c_str(), ceiling, [&] { Call(k.compress, a); },
             [&] { half ? PoolAll<uint16_t>(wide, a) : PoolAll<float>(wide, a); });
}

void AgainstReference(World& w, const kvstrata_kernels& k, const kvstrata_kernels& r, const Kind& kind, int32_t type) {
  const std::string tail = std::string(type == KVSTRATA_KERNELS_BF16 ? "_bf16_" : "_f32_") + k.name + "_vs_reference";
  const kvstrata_pool_args pool = PoolArgs(w, kind, type, kFewElements);
  const auto pool_of = [&](const kvstrata_kernels& t) { return kind.overlap ? t.csa_pool : t.hca_pool; };
  PrintShare((std::string(kind.name) + "_pool" + tail).c_str(), ">=5.0", [&] { Call(pool_of(k), pool); },
             [&] { Call(pool_of(r), pool); });
  const kvstrata_compress_args a = CompressArgs(w, kind, type, kFewElements, KVSTRATA_KERNELS_PACKED);
  PrintShare((std::string("compress_") + kind.name + tail).c_str(), ">=5.0", [&] { Call(k.compress, a); },
             [&] { Call(r.compress, a); });
}

}  // namespace

int main() {
  World w;
  const kvstrata_kernels& reference = *Get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  const kvstrata_kernels& best = *Get(KVSTRATA_KERNELS_LEVEL_AUTO);
  std::vector<const kvstrata_kernels*> levels = {&best};
  const kvstrata_kernels* avx2 = Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX2);
  if (avx2 != nullptr && avx2 != &best) levels.push_back(avx2);
  for (const kvstrata_kernels* k : levels) {
    for (const Kind& kind : {kCsa, kHca}) {
      for (const int32_t type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
        Check(w, *k, reference, kind, type);
        const bool half = type == KVSTRATA_KERNELS_BF16;
        const char* goal = kind.overlap ? (half ? ">=0.60" : ">=0.80") : (half ? ">=0.70" : ">=0.75");
        FromMemory(w, *k, kind, type, goal);
        AgainstReference(w, *k, reference, kind, type);
      }
    }
    const kvstrata_emit_entries_args emit = EmitArgs(w, 256);
    PrintShare((std::string("emit_entries_") + k->name + "_vs_reference").c_str(), ">=5.0",
               [&] { Call(k->emit_entries, emit); }, [&] { Call(reference.emit_entries, emit); });
  }
}
