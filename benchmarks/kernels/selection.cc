// SPDX-License-Identifier: Apache-2.0
// Index scores of one query with 64 heads over 262,144 keys, one thread, as a share of what the machine's multiply-adds
// allow; a prefill chunk; and each level against the scalar reference. The scores are compared with the reference's in
// the same run.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "benchmarks/kernels/roofline.h"
#include "benchmarks/ratio.h"
#include "kernels/dispatch.h"

namespace {

namespace b = kvstrata::benchmarks;
using Args = kvstrata_index_scores_args;

constexpr uint32_t kHeads = 64;
constexpr uint32_t kWidth = 128;
constexpr uint64_t kEntries = 262144;
constexpr uint64_t kChecked = 4096;  // entries that the reference scores, too
constexpr uint64_t kTokens = 32;     // of the prefill chunk

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "selection: %s\n", what);
  std::exit(1);
}

const kvstrata_kernels& Reference() { return *kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_REFERENCE); }

// Sums of twelve uniform numbers: near enough to gaussian for scores.
float Gaussian(uint64_t& state) {
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    sum += static_cast<float>(state >> 40) * 0x1p-24f;
  }
  return sum;
}

uint16_t Bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

struct World {
  b::HugeBuffer floats{kEntries * kWidth * sizeof(float)};
  b::HugeBuffer halves{kEntries * kWidth * sizeof(uint16_t)};
  b::HugeBuffer fp8{kEntries * 132};
  b::HugeBuffer fp4{kEntries * 68};
  std::vector<uint16_t> queries = std::vector<uint16_t>(kTokens * kHeads * kWidth);
  std::vector<float> float_queries = std::vector<float>(queries.size());
  std::vector<float> weights = std::vector<float>(kTokens * kHeads);
  b::HugeBuffer scores{kEntries * sizeof(float)};
  std::vector<unsigned char> workspace;

  World() {
    uint64_t state = 1;
    for (uint64_t i = 0; i < kEntries * kWidth; ++i) {
      floats.as<float>()[i] = Gaussian(state);
      halves.as<uint16_t>()[i] = Bf16(floats.as<float>()[i]);
    }
    for (size_t i = 0; i < queries.size(); ++i) {
      queries[i] = Bf16(Gaussian(state));
      const uint32_t bits = uint32_t{queries[i]} << 16;
      std::memcpy(&float_queries[i], &bits, sizeof bits);
    }
    for (float& weight : weights) weight = Gaussian(state);
    Pack(KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, 128, 132, fp8);
    Pack(KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, 64, 68, fp4);
  }

  void Pack(int32_t format, uint64_t scales, uint64_t row, const b::HugeBuffer& rows) {
    kvstrata_pack_rows_args a{};
    a.struct_size = sizeof a;
    a.format = format;
    a.source_type = KVSTRATA_KERNELS_F32;
    a.rows = kEntries;
    a.source = floats.as();
    a.codes = rows.as();
    a.code_stride_bytes = row;
    a.scales = rows.as() + scales;
    a.scale_stride_bytes = row;
    if (kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_AUTO)->pack_rows(&a, nullptr) != 0) Fail("pack_rows failed");
  }

  Args Base(uint64_t tokens, uint64_t entries) {
    Args a{};
    a.struct_size = sizeof a;
    a.heads = kHeads;
    a.width = kWidth;
    a.ratio = 4;
    a.tokens = tokens;
    a.first_position = 4 * entries;
    a.entries = entries;
    a.queries = queries.data();
    a.query_type = KVSTRATA_KERNELS_BF16;
    a.weights = weights.data();
    a.scores = scores.as<float>();
    return a;
  }

  Args Floats(uint64_t tokens, uint64_t entries) {
    Args a = Base(tokens, entries);
    a.queries = float_queries.data();
    a.query_type = KVSTRATA_KERNELS_F32;
    a.keys = floats.as();
    a.key_type = KVSTRATA_KERNELS_F32;
    return a;
  }

  Args Halves(uint64_t tokens, uint64_t entries) {
    Args a = Base(tokens, entries);
    a.keys = halves.as();
    a.key_type = KVSTRATA_KERNELS_BF16;
    return a;
  }

  Args Packed(uint64_t tokens, uint64_t entries, bool is_fp4) {
    Args a = Base(tokens, entries);
    a.key_format = is_fp4 ? KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 : KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8;
    const b::HugeBuffer& rows = is_fp4 ? fp4 : fp8;
    a.packed_keys.codes = rows.as();
    a.packed_keys.scales = rows.as() + (is_fp4 ? 64 : 128);
    a.packed_keys.code_stride_bytes = a.packed_keys.scale_stride_bytes = is_fp4 ? 68 : 132;
    return a;
  }

  void Run(const kvstrata_kernels& level, Args a) {
    uint64_t bytes = 0;
    if (level.index_scores_workspace_bytes(&a, &bytes) != 0) Fail("index_scores_workspace_bytes failed");
    if (workspace.size() < bytes) workspace.resize(bytes);
    a.workspace = workspace.data();
    a.workspace_bytes = workspace.size();
    if (level.index_scores(&a, nullptr) != 0) Fail("index_scores failed");
  }

  // The first scores against the reference's, within 1e-4 of the largest: far above the tolerance of kernels.h for
  // gaussian data, far below what a wrong key or head gives.
  void Check(const kvstrata_kernels& level, Args a) {
    Run(level, a);
    std::vector<float> expected(kChecked);
    Args few = a;
    few.tokens = 1;
    few.entries = kChecked;
    few.scores = expected.data();
    Run(Reference(), few);
    float largest = 0;
    for (float score : expected) largest = std::fmax(largest, std::fabs(score));
    for (uint64_t s = 0; s < kChecked; ++s) {
      if (!(std::fabs(expected[s] - a.scores[s]) <= 1e-4f * largest)) Fail("a score is not the reference's");
    }
  }
};

double Flop(const Args& a) {
  return 2.0 * static_cast<double>(a.tokens) * static_cast<double>(a.entries) * a.heads * a.width;
}

void PrintPeak(World& world, const kvstrata_kernels& level, const char* name, const char* goal, const Args& a,
               void (*peak)(double)) {
  world.Check(level, a);
  b::PrintShare(
      name, goal, [&] { world.Run(level, a); }, [&] { peak(Flop(a)); });
}

void PrintLevel(World& world, int32_t number, const char* name, const Args& whole) {
  const kvstrata_kernels* level = kvstrata::kernels::Get(number);
  if (level == nullptr) return;
  Args a = whole;
  a.entries = kChecked;
  b::PrintShare((std::string("index_scores_") + name + "_vs_reference").c_str(), ">=5.0", [&] { world.Run(*level, a); },
                [&] { world.Run(Reference(), a); });
}

}  // namespace

int main() {
  World world;
  const kvstrata_kernels* avx2 = kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX2);
  const kvstrata_kernels* avx512 = kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX512);
  const kvstrata_kernels* bf16 = kvstrata::kernels::Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16);
  if (bf16 != nullptr) {
    PrintPeak(world, *bf16, "index_scores_fp8_of_bf16_peak", ">=0.88", world.Packed(1, kEntries, false), b::DotBf16);
    PrintPeak(world, *bf16, "index_scores_fp4_of_bf16_peak", ">=0.88", world.Packed(1, kEntries, true), b::DotBf16);
    PrintPeak(world, *bf16, "index_scores_bf16_of_bf16_peak", ">=0.88", world.Halves(1, kEntries), b::DotBf16);
    PrintPeak(world, *bf16, "index_scores_prefill_fp8_of_bf16_peak", ">=0.88",
              world.Packed(kTokens, kEntries / kTokens, false), b::DotBf16);
  }
  if (avx512 != nullptr) {
    PrintPeak(world, *avx512, "index_scores_avx512_fp32_of_fma_peak", ">=0.80", world.Floats(1, kEntries), b::Fma512);
    PrintPeak(world, *avx512, "index_scores_avx512_fp8_of_fma_peak", ">=0.75", world.Packed(1, kEntries, false),
              b::Fma512);
  }
  if (avx2 != nullptr) {
    PrintPeak(world, *avx2, "index_scores_avx2_fp32_of_fma_peak", ">=0.82", world.Floats(1, kEntries), b::Fma256);
    PrintPeak(world, *avx2, "index_scores_avx2_fp8_of_fma_peak", ">=0.75", world.Packed(1, kEntries, false), b::Fma256);
  }
  PrintLevel(world, KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16, "fp8_avx512_bf16", world.Packed(1, kEntries, false));
  PrintLevel(world, KVSTRATA_KERNELS_LEVEL_CPU_AVX512, "fp32_avx512", world.Floats(1, kEntries));
  PrintLevel(world, KVSTRATA_KERNELS_LEVEL_CPU_AVX2, "fp32_avx2", world.Floats(1, kEntries));
  return 0;
}
