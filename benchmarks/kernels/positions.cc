// SPDX-License-Identifier: Apache-2.0
// RoPE and RMSNorm against the scalar reference, in the second-level cache, at V4's shapes: 64 heads of a query and
// single rows. Results are compared with the reference's before anything is measured.
//
// Thread rule: one thread.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "benchmarks/ratio.h"
#include "kernels/dispatch.h"

namespace {

using namespace kvstrata::benchmarks;
using kvstrata::kernels::Get;

constexpr uint32_t kWidth = 512;
constexpr uint32_t kRope = 64;
constexpr uint64_t kRows = 64;  // 128 KiB, and as much of results

struct World {
  std::vector<float> source, work, weight, frequencies;
  World() : source(kRows * kWidth), work(kRows * kWidth), weight(kWidth, 1.25f), frequencies(kRope / 2) {
    uint64_t state = 7;
    for (float& value : source) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      value = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
    }
    for (uint32_t k = 0; k < kRope / 2; ++k) frequencies[k] = static_cast<float>(std::pow(10000.0, -2.0 * k / kRope));
  }
};

kvstrata_rope_args RopeArgs(World& w, uint32_t heads) {
  kvstrata_rope_args a{};
  a.struct_size = sizeof a;
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.heads = heads;
  a.width = kWidth;
  a.rope_dims = kRope;
  a.tokens = kRows / heads;
  a.values = w.work.data();
  a.first_position = 100000;
  a.position_step = 1;
  a.frequencies = w.frequencies.data();
  return a;
}

kvstrata_rms_norm_args NormArgs(World& w) {
  kvstrata_rms_norm_args a{};
  a.struct_size = sizeof a;
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.width = kWidth;
  a.eps = 1e-6f;
  a.rows = kRows;
  a.source = w.source.data();
  a.weight = w.weight.data();
  a.destination = w.work.data();
  return a;
}

// Both levels' results of one call on the same rows, which lie below 4: half a bf16 step of that apart at most.
template <typename Function, typename A>
void Check(World& w, Function kernel, Function reference, const A& args) {
  w.work = w.source;
  const int32_t expected_status = reference(&args, nullptr);
  const std::vector<float> expected = w.work;
  w.work = w.source;
  bool same = expected_status == 0 && kernel(&args, nullptr) == 0;
  for (size_t i = 0; i < expected.size(); ++i) same = same && std::fabs(w.work[i] - expected[i]) <= 0x1p-7f;
  if (same) return;
  std::fprintf(stderr, "positions benchmark: the result is not the reference's\n");
  std::exit(1);
}

template <typename Function, typename A>
void Measure(World& w, const std::string& name, Function kernel, Function reference, const A& args) {
  Check(w, kernel, reference, args);
  const auto run = [&](Function function) {
    if (function(&args, nullptr) != 0) std::exit(1);
  };
  PrintShare(
      name.c_str(), ">=5.0", [&] { run(kernel); }, [&] { run(reference); });
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
    const std::string tail = std::string("_") + k->name + "_vs_reference";
    Measure(w, "rope_rows" + tail, k->rope, reference.rope, RopeArgs(w, 1));
    Measure(w, "rope_64_heads" + tail, k->rope, reference.rope, RopeArgs(w, 64));
    Measure(w, "rms_norm" + tail, k->rms_norm, reference.rms_norm, NormArgs(w));
  }
}
