// SPDX-License-Identifier: Apache-2.0
// RoPE and RMSNorm in the second-level cache, at V4's shapes: 64 heads of a query and single rows; against the scalar
// reference, and RMSNorm against a pass that only reads and writes as much (the second-level cache gives 32 bytes a
// cycle here, and each line written is fetched and put back, so this is what bounds it). Rows begin at cache lines, as
// engines allocate them, but for the lines called `unaligned`, 16 bytes off, as from malloc: there every vector of 64
// bytes lies in two lines, and the last of every second head in two pages. Results are compared with the reference's
// before anything is measured.
//
// Thread rule: one thread.
#include <algorithm>
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
constexpr uint64_t kRows = 64;  // 128 KiB, and as much of results

constexpr uint64_t kOff = 16;  // bytes, of the unaligned rows

struct World {
  HugeBuffer source_lines{kRows * kWidth * sizeof(float)};
  HugeBuffer work_lines{kRows * kWidth * sizeof(float) + kOff};
  HugeBuffer weight_lines{kWidth * sizeof(float)};
  std::vector<float> frequencies;

  World() : frequencies(kRope / 2) {
    std::fill_n(weight_lines.as<float>(), kWidth, 1.25f);
    uint64_t state = 7;
    for (uint64_t i = 0; i < kRows * kWidth; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      source()[i] = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
    }
    for (uint32_t k = 0; k < kRope / 2; ++k) frequencies[k] = static_cast<float>(std::pow(10000.0, -2.0 * k / kRope));
  }

  float* source() const { return source_lines.as<float>(); }
  float* work(uint64_t off = 0) const { return work_lines.as<float>() + off / sizeof(float); }
};

kvstrata_rope_args RopeArgs(const World& w, uint32_t heads, uint64_t off = 0) {
  kvstrata_rope_args a{};
  a.struct_size = sizeof a;
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.heads = heads;
  a.width = kWidth;
  a.rope_dims = kRope;
  a.tokens = kRows / heads;
  a.values = w.work(off);
  a.first_position = 100000;
  a.position_step = 1;
  a.frequencies = w.frequencies.data();
  return a;
}

kvstrata_rms_norm_args NormArgs(const World& w) {
  kvstrata_rms_norm_args a{};
  a.struct_size = sizeof a;
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.width = kWidth;
  a.eps = 1e-6f;
  a.rows = kRows;
  a.source = w.source();
  a.weight = w.weight_lines.as<float>();
  a.destination = w.work();
  return a;
}

// Both levels' results of one call on the same rows, which lie below 4: half a bf16 step of that apart at most.
template <typename Function, typename A>
void Check(const World& w, Function kernel, Function reference, const A& args, float* work) {
  const auto rows_of = [&](Function function) {
    std::copy_n(w.source(), kRows * kWidth, work);
    if (function(&args, nullptr) != 0) std::exit(1);
    return std::vector<float>(work, work + kRows * kWidth);
  };
  const std::vector<float> expected = rows_of(reference);
  const std::vector<float> got = rows_of(kernel);
  bool same = true;
  for (size_t i = 0; i < expected.size(); ++i) same = same && std::fabs(got[i] - expected[i]) <= 0x1p-7f;
  if (same) return;
  std::fprintf(stderr, "positions benchmark: the result is not the reference's\n");
  std::exit(1);
}

// A call takes less than a microsecond: each side makes a few, or one measures the clock.
constexpr int kTimes = 20;

template <typename Function>
void Times(Function&& function) {
  for (int i = 0; i < kTimes; ++i) function();
}

template <typename Function, typename A>
void Measure(const World& w, const std::string& name, Function kernel, Function reference, const A& args, float* work) {
  Check(w, kernel, reference, args, work);
  const auto run = [&](Function function) {
    Times([&] {
      if (function(&args, nullptr) != 0) std::exit(1);
    });
  };
  PrintShare(
      name.c_str(), ">=5.0", [&] { run(kernel); }, [&] { run(reference); });
}

// With and without rounding points: rounding costs arithmetic and no memory.
void NormOfPass(const World& w, const kvstrata_kernels& k) {
  for (const int32_t profile : {KVSTRATA_KERNELS_PROFILE_Q, KVSTRATA_KERNELS_PROFILE_F}) {
    kvstrata_rms_norm_args args = NormArgs(w);
    args.profile = profile;
    const bool is_q = profile == KVSTRATA_KERNELS_PROFILE_Q;
    const std::string name = std::string("rms_norm_") + (is_q ? "q_" : "f_") + k.name + "_of_read_write_pass";
    constexpr size_t kBytes = kRows * kWidth * sizeof(float);
    PrintShare(
        name.c_str(), is_q ? ">=0.75" : ">=0.90", [&] { Times([&] { k.rms_norm(&args, nullptr); }); },
        [&] { Times([&] { ReadWritePass(w.source(), kBytes, w.work(), kBytes); }); });
  }
}

}  // namespace

int main() {
  const World w;
  const kvstrata_kernels& reference = *Get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  const kvstrata_kernels& best = *Get(KVSTRATA_KERNELS_LEVEL_AUTO);
  std::vector<const kvstrata_kernels*> levels = {&best};
  const kvstrata_kernels* avx2 = Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX2);
  if (avx2 != nullptr && avx2 != &best) levels.push_back(avx2);
  for (const kvstrata_kernels* k : levels) {
    const std::string tail = std::string("_") + k->name + "_vs_reference";
    Measure(w, "rope_rows" + tail, k->rope, reference.rope, RopeArgs(w, 1), w.work());
    Measure(w, "rope_64_heads" + tail, k->rope, reference.rope, RopeArgs(w, 64), w.work());
    Measure(w, "rope_64_heads_unaligned" + tail, k->rope, reference.rope, RopeArgs(w, 64, kOff), w.work(kOff));
    Measure(w, "rms_norm" + tail, k->rms_norm, reference.rms_norm, NormArgs(w), w.work());
    NormOfPass(w, *k);
  }
}
